"""A server that answers slower than anybody waits for: a byte now and then, without end."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Final

_PAUSE_S: Final = 0.02


@contextlib.contextmanager
def dripping(start: bytes) -> Iterator[tuple[int, list[socket.socket]]]:
    """Answer every connection of a free port with `start` and then a byte every 20 ms.

    Gives the port, and the connections that are still answered.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    open_now: list[socket.socket] = []
    ends = threading.Event()

    def drip(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.sendall(start)
            while not ends.wait(_PAUSE_S):
                connection.sendall(b"x")
        open_now.remove(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                open_now.append(connection)
                threading.Thread(target=drip, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], open_now
    finally:
        ends.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()

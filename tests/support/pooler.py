"""A pooler before PostgreSQL, as operators have them: it gives a session of the server to whoever asks next."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class _End:
    """One end of a connection, in messages of the protocol."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise ConnectionError
            data += piece
        return data

    def startup(self) -> bytes:
        size = self.take(4)
        return size + self.take(int.from_bytes(size) - 4)

    def message(self) -> bytes:
        kind, size = self.take(1), self.take(4)
        return kind + size + self.take(int.from_bytes(size) - 4)


class Pooler:
    """Passes messages on; `keeps` sessions for their clients, or shares them after each transaction."""

    def __init__(self, server: str, *, keeps: bool) -> None:
        self._server = server
        self._keeps = keeps
        self._idle: list[_End] = []
        self._lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.ends: list[socket.socket] = [self.listener]

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.listener.getsockname()[1])

    def run(self) -> None:
        """Serve until the listener is closed."""
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.ends.append(client)
                threading.Thread(target=self._serve, args=(_End(client),), daemon=True).start()

    def _serve(self, client: _End) -> None:
        held: _End | None = None
        with suppress(OSError):
            startup = client.startup()
            held, said = self._opened(startup)
            # As poolers do: the key for cancelling is the pooler's own.
            client.socket.sendall(said + b"K" + (12).to_bytes(4) + (1).to_bytes(4) + bytes(4) + b"Z\0\0\0\5I")
            while True:
                if not self._keeps and held is not None:
                    with self._lock:
                        self._idle.append(held)
                    held = None
                message = client.message()
                while True:
                    if held is None:
                        with self._lock:
                            held = self._idle.pop() if self._idle else None
                        held = held or self._opened(startup)[0]
                    held.socket.sendall(message)
                    if message[:1] == b"X":
                        raise ConnectionError
                    if message[:1] in (b"S", b"Q") and self._answered(client, held):
                        break
                    message = client.message()
        client.socket.close()

    def _answered(self, client: _End, server: _End) -> bool:
        """Pass on an answer; return whether the transaction is over."""
        while True:
            message = server.message()
            client.socket.sendall(message)
            if message[:1] == b"Z":
                return message[5:] == b"I"

    def _opened(self, startup: bytes) -> tuple[_End, bytes]:
        """Return a session of the server, and what it says of its settings."""
        end = socket.socket(socket.AF_UNIX)
        end.connect(self._server)
        self.ends.append(end)
        server, said = _End(end), b""
        end.sendall(startup)
        while True:
            message = server.message()
            if message[:1] == b"Z":
                return server, said
            if message[:1] in (b"R", b"S"):
                said += message


@contextmanager
def pooled(server: str, *, keeps: bool) -> Iterator[int]:
    """A pooler before the server that listens at a socket of this path; the port where it listens on loopback."""
    pooler = Pooler(server, keeps=keeps)
    thread = threading.Thread(target=pooler.run, daemon=True)
    thread.start()
    try:
        yield pooler.port
    finally:
        for one in pooler.ends:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        thread.join()

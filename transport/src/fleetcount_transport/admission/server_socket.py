"""The socket between a gate and the server behind it, which has no name by which anybody else could open it.

It knows nothing of gRPC or TLS. A port of 127.0.0.1 in its place is open to every user of the machine, who could go
round the gate and use up the descriptors that it leaves free, and each connection would hold one of 28,000 ports.
"""

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

from fleetcount_protocol.errors import MachineError


class ServerSocket:
    """A socket at which `listen` lets a server listen, given its path; the path is gone when this returns.

    What stays is a descriptor of the socket, through which this process connects, so that nothing is left behind
    however the process ends. Paths go through /proc, where they are short: systems allow a socket about 100 bytes.

    Raises:
        MachineError: the directory for temporary files cannot be written, or the machine has no /proc.
    """

    def __init__(self, listen: Callable[[str], object]) -> None:
        try:
            directory = Path(tempfile.mkdtemp(prefix="fleetcount-"))
        except OSError as error:
            raise MachineError(f"{tempfile.gettempdir()} cannot hold a socket: {error.strerror}") from error
        place = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        try:
            listen(f"/proc/self/fd/{place}/server")
            self._socket = os.open("server", os.O_PATH, dir_fd=place)
            os.unlink("server", dir_fd=place)
        except (OSError, RuntimeError) as error:
            raise MachineError("no server can listen at a socket; it takes Linux with /proc") from error
        finally:
            os.close(place)
            directory.rmdir()

    def connect(self) -> socket.socket:
        """Return a connection to the server. It has a name at this side, by which gRPC speaks of it: no two share one.

        It never waits: a socket of this kind connects at once or not at all.

        Raises:
            OSError: no server listens, it has too many connections that it has not accepted yet, or no descriptor is
                left.
        """
        one = socket.socket(socket.AF_UNIX)
        try:
            one.setblocking(False)
            one.bind("")  # The kernel gives it a name that no other connection has.
            one.connect(f"/proc/self/fd/{self._socket}")
        except BaseException:
            one.close()
            raise
        return one

    def close(self) -> None:
        """Give the descriptor back; connections stay."""
        os.close(self._socket)


def name_at_server(connection: socket.socket) -> str:
    """Return the name by which gRPC's server speaks of the other end of a connection that `connect` returned."""
    return "unix-abstract:" + bytes(connection.getsockname())[1:].decode("ascii")

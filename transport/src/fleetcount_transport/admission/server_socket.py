"""The socket between a gate and the server behind it, which nobody else on the machine can open.

It knows nothing of gRPC or TLS. A port of 127.0.0.1 in its place is open to every user of the machine, who could go
round the gate and use up the descriptors that it leaves free, and each connection would hold one of 28,000 ports.
"""

import asyncio
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Final

from fleetcount_protocol.errors import MachineError

_LONGEST_BYTES: Final = 90
"""The longest path of a server's socket: systems allow 103 to 107 bytes, and a number takes up to 12 more."""


class ServerSocket:
    """A socket at `path`, in a directory of its own that only this user may enter; `close` removes both.

    Raises:
        MachineError: the directory for temporary files cannot be written, or its path is too long for a socket.
    """

    def __init__(self) -> None:
        try:
            directory = Path(tempfile.mkdtemp(prefix="fleetcount-"))
        except OSError as error:
            raise MachineError(f"{tempfile.gettempdir()} cannot hold a socket: {error.strerror}") from error
        self.path = directory / "server"
        self._connected = 0
        if len(os.fsencode(self.path)) > _LONGEST_BYTES:
            self.close()
            raise MachineError(f"TMPDIR gives a socket the path {self.path}, allowed: at most {_LONGEST_BYTES} bytes")

    async def connect(self) -> socket.socket:
        """Return a connection to the server. It has a name at this side, by which gRPC speaks of it: no two share one.

        Raises:
            OSError: no server listens, or no descriptor is left.
        """
        self._connected += 1
        name = self.path.with_name(str(self._connected))
        one = socket.socket(socket.AF_UNIX)
        try:
            one.setblocking(False)
            one.bind(str(name))
            try:
                await asyncio.get_running_loop().sock_connect(one, str(self.path))
            finally:
                name.unlink()
        except BaseException:
            one.close()
            raise
        return one

    def close(self) -> None:
        """Remove the socket and its directory; connections stay."""
        shutil.rmtree(self.path.parent, ignore_errors=True)

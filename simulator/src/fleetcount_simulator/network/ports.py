"""Free ports of this machine, reserved among the processes that use this module.

A reservation lasts also while the process that listens on the port is down. Listens on nothing itself.
"""

import atexit
import errno
import secrets
import socket
import threading
from collections import deque
from functools import cache
from typing import Final

from fleetcount_protocol.errors import UsageError

_PORTS: Final = range(20_000, 32_768)
"""Below the ephemeral ports: an outgoing connection of another process could occupy one of those."""
_BLOCK: Final = 64


def free_ports(host: str, count: int) -> list[int]:
    """Return `count` distinct ports that are free on this host now.

    While this process runs, no other process gets them from this function.

    Raises:
        UsageError: the host is no address of this machine.
    """
    try:
        return _own(host).give(count)
    except OSError as error:
        raise UsageError(f"host {host!r} is no address of this machine to listen on: {error.strerror}") from error


class _OwnPorts:
    """Blocks of ports, reserved by binding the first port of each block for the life of this process.

    A port is given once. When no block is left, ports are given again, the least recently given first.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._marks: list[socket.socket] = []
        atexit.register(self._close_all)
        self._new = deque[int]()
        self._given = deque[int]()
        self._giving = threading.Lock()

    def give(self, count: int) -> list[int]:
        """See `free_ports`; raises OSError."""
        found: list[int] = []
        with self._giving:
            while len(found) < count:
                if not self._new:
                    self._reserve_block()
                if not self._new and not self._given:
                    raise OSError(errno.EADDRINUSE, "all its ports are taken")
                port = (self._new or self._given).popleft()
                self._given.append(port)
                if (here := self._bound(port)) is not None:
                    here.close()
                    found.append(port)
        return found

    def _close_all(self) -> None:
        for mark in self._marks:
            mark.close()

    def _reserve_block(self) -> None:
        firsts = [*_PORTS[::_BLOCK]]
        while firsts:
            first = firsts.pop(secrets.randbelow(len(firsts)))
            if (mark := self._bound(first)) is not None:
                self._marks.append(mark)
                self._new.extend(range(first + 1, min(first + _BLOCK, _PORTS.stop)))
                return

    def _bound(self, port: int) -> socket.socket | None:
        """Return a socket that is bound to a port, None if another socket is bound to it."""
        one = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            one.bind((self._host, port))
        except OSError as error:
            one.close()
            if error.errno != errno.EADDRINUSE:
                raise
            return None
        return one


_own = cache(_OwnPorts)

"""Ports of this machine to listen on, which nobody takes between the moment they are named and the first listener.

Nor while a process that has one is down for a while. Listens on nothing itself.
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
"""Below those that systems give to outgoing connections, which could take one before somebody listens on it."""
_BLOCK: Final = 64


def free_ports(host: str, count: int) -> list[int]:
    """Return `count` ports that are free on this host now, each another one; no other process is given them.

    So it is among processes that use this function, as long as this one lives.

    Raises:
        UsageError: the host is no address of this machine.
    """
    try:
        return _own(host).give(count)
    except OSError as error:
        raise UsageError(f"host {host!r} is no address of this machine to listen on: {error.strerror}") from error


class _OwnPorts:
    """Blocks of ports; the first of each is bound as long as this process lives, which keeps others out of the block.

    A port is given once, and again, the longest given first, when there is no other block left.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._marks: list[socket.socket] = []
        atexit.register(self._let_go)
        self._new = deque[int]()
        self._given = deque[int]()
        self._giving = threading.Lock()

    def give(self, count: int) -> list[int]:
        """See `free_ports`; raises OSError."""
        found: list[int] = []
        with self._giving:
            while len(found) < count:
                if not self._new:
                    self._take_block()
                if not self._new and not self._given:
                    raise OSError(errno.EADDRINUSE, "all its ports are taken")
                port = (self._new or self._given).popleft()
                self._given.append(port)
                if (here := self._bound(port)) is not None:
                    here.close()
                    found.append(port)
        return found

    def _let_go(self) -> None:
        for mark in self._marks:
            mark.close()

    def _take_block(self) -> None:
        firsts = [*_PORTS[::_BLOCK]]
        while firsts:
            first = firsts.pop(secrets.randbelow(len(firsts)))
            if (mark := self._bound(first)) is not None:
                self._marks.append(mark)
                self._new.extend(range(first + 1, min(first + _BLOCK, _PORTS.stop)))
                return

    def _bound(self, port: int) -> socket.socket | None:
        """Return a socket that is bound to a port, None if somebody else's is."""
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

"""The server of a demo's page, in a thread of its own: it starts before the demo loads anything, and ends after it.

The main thread runs the demo and handles signals. Opens no browser.
"""

import contextlib
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

import uvicorn
from fleetcount_protocol.errors import MachineError

from fleetcount_site.serving import address_of, listen, server
from fleetcount_site.watch.board import Board
from fleetcount_site.watch.events import EventWriter
from fleetcount_site.watch.page import watch_app

_START_S: Final = 10.0
_END_S: Final = 5.0
_POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The address of the page, and the writer of its events."""

    address: str
    teller: EventWriter


@contextlib.contextmanager
def showing(port: int = 0) -> "Generator[Shown]":
    """Serve a demo's page on this machine's loopback address until the block ends; port 0 takes a free one.

    At the end open pages get the last statements, then the server ends.

    Raises:
        UsageError: the port is in use or out of range.
        MachineError: the server does not start.
    """
    listener, board = listen(port=port), Board()
    teller = EventWriter(board)
    running = server(watch_app(board, teller))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, name="page", daemon=True)
    try:
        thread.start()
        _wait_for_start(running, thread)
        yield Shown(address=address_of(listener), teller=teller)
    finally:
        board.close()
        running.should_exit = True
        thread.join(_END_S)
        listener.close()


def _wait_for_start(running: uvicorn.Server, thread: threading.Thread) -> None:
    deadline = time.monotonic() + _START_S
    while not running.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise MachineError("the web server of the page did not start")
        time.sleep(_POLL_S)

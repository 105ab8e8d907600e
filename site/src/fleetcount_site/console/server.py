"""The server of a console: reads the state every few seconds in a thread of its own, and serves the latest.

It serves GET alone, on the loopback address, and must not change anything, here or at the aggregator.
"""

import threading
from collections.abc import Callable
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from fleetcount_site import serving
from fleetcount_site.console.state import AggregatorState, StateReader
from fleetcount_site.console.tables import body, parts
from fleetcount_site.pages import page

_READ_EVERY_S: Final = 3.0
_END_S: Final = 5.0
"""Seconds in which a reading under way may end; the process does not wait for it longer."""
_UNCACHED: Final = {"cache-control": "no-store"}


class LatestState:
    """The latest state of an aggregator, and the thread that reads it."""

    def __init__(self, reader: StateReader, every_s: float = _READ_EVERY_S) -> None:
        self._reader = reader
        self._every_s = every_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="state", daemon=True)
        self.state: AggregatorState = reader.read()
        self.error = ""

    def __enter__(self) -> "LatestState":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._ends.wait(self._every_s):
            try:
                self.state, self.error = self._reader.read(), ""
            except Exception as error:
                self.error = f"The last reading failed ({type(error).__name__}); what is below is older."


def console_app(latest: LatestState) -> Starlette:
    """Return the application of a console."""

    async def front(request: Request) -> Response:
        state = latest.state
        text = page(f"{state.aggregator} - fleetcount console", body(state), scripts=("console.js",))
        return HTMLResponse(text, headers=_UNCACHED)

    async def now(request: Request) -> Response:
        found = dict(parts(latest.state))
        if latest.error:
            found["state"] = f'<span class="bad">{latest.error}</span>'
        return JSONResponse(found, headers=_UNCACHED)

    return serving.secured([Route("/", front, methods=["GET"]), Route("/now", now, methods=["GET"])])


def serve(reader: StateReader, port: int, ready: Callable[[str], None]) -> None:
    """Serve a console until Ctrl-C or SIGTERM; port 0 takes a free one, and `ready` is called with the address.

    Raises:
        UsageError: the port is in use.
        MachineError: the store cannot be read (StoreError), or the server does not start.
    """
    reader.check()
    listener = serving.listen(port=port)
    with listener, LatestState(reader) as latest:
        serving.run(console_app(latest), listener, ready)

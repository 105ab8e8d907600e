"""The server of a console: looks every few seconds in a thread of its own, and shows what was seen last.

GET alone, on this machine's loopback address; it must not change anything, here or at the aggregator.
"""

import threading
from collections.abc import Callable
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from fleetcount_site import serving
from fleetcount_site.console.looking import Looker, Seen
from fleetcount_site.console.tables import body, parts
from fleetcount_site.pages import page

LOOK_S: Final = 3.0
"""How long a console waits between two looks, in seconds."""
_UNSEEN: Final = {"cache-control": "no-store"}


class Looking:
    """What was seen last, and the thread that looks."""

    def __init__(self, looker: Looker, every_s: float = LOOK_S) -> None:
        self._looker = looker
        self._every_s = every_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="look", daemon=True)
        self.seen: Seen = looker.look()
        self.failed = ""

    def __enter__(self) -> "Looking":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(self._every_s):
            try:
                self.seen, self.failed = self._looker.look(), ""
            except Exception as error:
                self.failed = f"The last look failed ({type(error).__name__}); what is below is older."


def console_app(looking: Looking) -> Starlette:
    """Return the application of a console."""

    async def front(request: Request) -> Response:
        seen = looking.seen
        text = page(f"{seen.aggregator} - fleetcount console", body(seen), scripts=("console.js",))
        return HTMLResponse(text, headers=_UNSEEN)

    async def now(request: Request) -> Response:
        found = dict(parts(looking.seen))
        if looking.failed:
            found["state"] = f'<span class="bad">{looking.failed}</span>'
        return JSONResponse(found, headers=_UNSEEN)

    return serving.secured([Route("/", front, methods=["GET"]), Route("/now", now, methods=["GET"])])


def show(looker: Looker, port: int, ready: Callable[[str], None]) -> None:
    """Serve a console until Ctrl-C or SIGTERM; port 0 takes a free one, and `ready` is told the address.

    Raises:
        UsageError: a port that is taken.
        MachineError: the store cannot be read (StoreError), or the server does not start.
    """
    looker.check()
    listener = serving.listen(port=port)
    with listener, Looking(looker) as looking:
        serving.run(console_app(looking), listener, ready)

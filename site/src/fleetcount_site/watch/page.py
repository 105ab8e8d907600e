"""The page of a demo and its routes: the page itself, its stream of events, and an example report.

It shows the content of a board and of an `EventWriter`; it must not know the rules of a run.
"""

from collections.abc import AsyncIterator
from typing import Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fleetcount_site.pages import MAP_SCRIPTS, RECORD_SCRIPTS, page
from fleetcount_site.serving import secured
from fleetcount_site.watch.board import Board, BoardFullError
from fleetcount_site.watch.events import EventWriter

SCRIPTS: Final = (*MAP_SCRIPTS, *RECORD_SCRIPTS, "watch-cards.js", "watch.js")
_LONGEST_ID: Final = 64
_LAYERS: Final = (
    ("expected", "Expected"),
    ("receipts", "Receipts"),
    ("estimate", "Estimate"),
    ("truth", "Truth"),
    ("width", "Width of intervals"),
)

_BODY: Final = """
<header>
<h1 id="question">A fleet is counted</h1>
<p id="about" class="soft">Vehicles, aggregators and a broker run on this machine, as processes of their own.</p>
<p id="state" role="status" aria-live="polite"><strong>starting</strong></p>
</header>
<div class="columns watch">
<section aria-labelledby="map-title">
<h2 id="map-title">The map</h2>
<fieldset class="controls" id="layers"><legend class="hidden">What the map shows</legend>{layers}</fieldset>
<p id="layer-words" class="soft"></p>
<div id="map" class="map" role="img" aria-label="Map of the cells; the table below has the same numbers"></div>
<div id="scale"></div>
<p id="cell" role="status" aria-live="polite" class="soft">Choose a cell on the map or in the table.</p>
</section>
<section aria-labelledby="run-title">
<h2 id="run-title">The run</h2>
<ol id="stages" class="stages"></ol>
<dl id="run" class="facts"></dl>
<h2>Who signed</h2>
<ul id="signatures"><li class="soft">The record comes at the end; your browser will check its signatures.</li></ul>
</section>
</div>
<section aria-labelledby="promise-title">
<h2 id="promise-title">What is promised</h2>
<div id="promise"></div>
</section>
<section aria-labelledby="seen-title">
<h2 id="seen-title">What each party sees of one vehicle's report</h2>
<p class="soft">One of the demo's vehicles, its report made for this page by the device's own code and sent to nobody.
The answer stays; its shares are drawn anew at every load. A square is one cell's share, as a shade.</p>
<p class="controls"><button type="button" id="again" disabled>Split it again</button></p>
<ul id="cards" class="cards"><li><h3>Not yet</h3>
<p class="soft">Shares are made for a signed question, which comes when all vehicles are connected.</p></li></ul>
</section>
<section aria-labelledby="table-title">
<h2 id="table-title">The same numbers as a table</h2>
<div class="scroll" tabindex="0"><table id="table"></table></div>
</section>
<noscript><p>This page needs its scripts, which come from this machine alone.</p></noscript>
"""


def _body() -> str:
    layers = "".join(
        f'<label><input type="radio" name="layer" value="{name}"{" checked" if name == "expected" else " disabled"}>'
        f" {words}</label>"
        for name, words in _LAYERS
    )
    return _BODY.format(layers=layers).strip()


def watch_app(board: Board, teller: EventWriter) -> Starlette:
    """Return the application of a demo's page."""
    text = page("fleetcount demo", _body(), scripts=SCRIPTS)

    async def front(request: Request) -> Response:
        return HTMLResponse(text)

    async def events(request: Request) -> Response:
        stream = board.follow(request.headers.get("last-event-id", "")[:_LONGEST_ID])
        try:
            # The first text takes the place on the board: later there is no other answer to give.
            first = await anext(stream)
        except BoardFullError as error:
            return PlainTextResponse(f"{error}\n", status_code=503, headers={"retry-after": "5"})
        headers = {"cache-control": "no-store"}
        return StreamingResponse(_encoded(first, stream), media_type="text/event-stream", headers=headers)

    async def report(request: Request) -> Response:
        seen = await run_in_threadpool(teller.example)
        headers = {"cache-control": "no-store"}
        if seen is None:
            return JSONResponse({"error": "the window is not signed yet"}, status_code=404, headers=headers)
        return JSONResponse(seen, headers=headers)

    return secured(
        [
            Route("/", front, methods=["GET"]),
            Route("/events", events, methods=["GET"]),
            Route("/report.json", report, methods=["GET"]),
        ]
    )


async def _encoded(first: str, texts: AsyncIterator[str]) -> AsyncIterator[bytes]:
    yield first.encode()
    async for text in texts:
        yield text.encode()

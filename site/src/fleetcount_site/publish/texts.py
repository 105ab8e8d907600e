"""The HTML of a site's pages: the index, a question, a release.

Texts of windows are escaped here. Numbers come from scripts beside the page; in a browser without scripts the page says
that it needs them.
"""

from collections.abc import Sequence
from typing import Final

from fleetcount_site.pages import LINE_SCRIPTS, MAP_SCRIPTS, RECORD_SCRIPTS, escaped, page
from fleetcount_site.publish.entry import Entry

_ATOM: Final = "application/atom+xml"
_JSON_FEED: Final = "application/feed+json"
_EVERY_ADVERSARY: Final = "What could be learned of one device: every adversary in turn"
_NO_SCRIPT: Final = (
    "<noscript><p class=bad>Map and signatures need scripts, which this page loads from its own folder only. "
    "The files below hold the same numbers.</p></noscript>"
)
_TOGETHER: Final = '<p id="together"></p>\n'
"""Where a page says how many devices are in all cells together, of sets how many told any, by the opened total."""
_SEVERAL: Final = """<p id="several">Each number counts the vehicles that told this cell. A vehicle may tell several at
once and then counts in each: their sum is no number of vehicles.</p>"""
_WHOLE_REPORTS: Final = (
    "The counts are of devices whose reports arrived whole, in both rounds where there are two. Where reports are lost "
    "more often than elsewhere the counts are too low by as much; no interval speaks of that."
)


def utc(seconds: int) -> str:
    """Return a time as in "2026-11-23 04:00 UTC"."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def index_page(title: str, entries: Sequence[Entry]) -> str:
    """Return the page that lists everything published, with the feeds of every entry."""
    cards = "\n".join(_card(entry) for entry in entries)
    body = f"""<h1>{escaped(title)}</h1>
<p class="lead">Counts of a fleet without tracking: each number is noised before anybody sees it, stands with its
interval, and is signed by aggregators of different operators. Every aggregator sees which device took part and when,
and not what it said.</p>
<ul class="cards">
{cards}
</ul>"""
    return page(title, body)


def _card(entry: Entry) -> str:
    last = entry.windows[-1]
    count = len(entry.windows)
    what = "one release" if entry.single else f"{count:,} released window{'s' * (count > 1)}"
    feeds = (
        ""
        if entry.single
        else f' · <a href="{entry.slug}/feed.xml">Atom</a> · <a href="{entry.slug}/feed.json">JSON feed</a>'
    )
    return f"""<li><h2><a href="{entry.slug}/index.html">{escaped(entry.title)}</a></h2>
<p>{what}, {_cells(entry)}; the last of {utc(last.opens)}.</p>
<p class="soft">{escaped(entry.plain[0])}</p>
<p class="soft"><a href="{entry.slug}/release.html">last signed release</a>{feeds}</p></li>"""


def _cells(entry: Entry) -> str:
    values = entry.table.design.values
    return f"{values:,} cell{'s' * (values > 1)}"


def question_page(entry: Entry) -> str:
    """Return the page of a question: map, slider, a cell's line, regions, table and files."""
    several = len(entry.windows) > 1
    body = f"""<p class="soft"><a href="../index.html">All that is published</a></p>
<h1>{escaped(entry.title)}</h1>
{_plain(entry)}
{_NO_SCRIPT}
<div class="controls"{"" if several else " hidden"}>
<button type="button" id="play" aria-pressed="false">Play</button>
<label class="hidden" for="slider">Window</label>
<input type="range" id="slider" min="0" max="0" value="0" step="1">
</div>
<p><strong id="when">loading ...</strong> · <a id="release" href="release.html">its signed release</a></p>
<p class="hidden" id="said" role="status"></p>
{_numbers_text(entry)}{_TOGETHER if entry.total else ""}<div class="columns">
{_map(entry)}
<section aria-labelledby="cell-name">
<h2 id="cell-name">Cell</h2>
<p class="number" id="cell-range"></p>
<p class="soft" id="cell-text"></p>
<div class="lines" id="line"{"" if several else " hidden"}></div>
{_region(entry)}
</section>
</div>
{_missing(entry)}
<h2>Who signed</h2>
<p id="verdict" class="soft">not checked yet</p>
<p><button type="button" id="verify">Check this window's signatures</button></p>
{"" if entry.places is None else _numbers("")}
{_statement(entry)}
{_files(entry)}"""
    scripts = (*MAP_SCRIPTS, *LINE_SCRIPTS, *RECORD_SCRIPTS, "sums.js", "data.js", "question.js")
    feeds = None if entry.single else {_ATOM: "feed.xml", _JSON_FEED: "feed.json"}
    return page(entry.title, body, scripts=scripts, root="../", feeds=feeds)


def _map(entry: Entry) -> str:
    if entry.places is None:
        return _numbers(" open")  # Without places there is no map: the table replaces it.
    return f"""<figure>
<div id="map" class="map" role="application" aria-label="Map of {entry.places.values:,} cells; the table below has the
same numbers"></div>
<p class="controls"><button type="button" id="draw" aria-pressed="false">Draw a region</button></p>
<div id="scale"></div>
<figcaption>Colour: the estimate of a cell, on one scale for all windows. Point at a cell for its
interval.{_note(entry)}</figcaption>
</figure>"""


def _plain(entry: Entry) -> str:
    first, *more = entry.plain
    rest = "".join(f"\n<p>{escaped(sentence)}</p>" for sentence in more)
    return f'<p class="lead">{escaped(first)}</p>{rest}\n<p class="soft">{_WHOLE_REPORTS}</p>'


def _numbers_text(entry: Entry) -> str:
    over = "" if entry.single else ", all windows together"
    return f'<p id="read">{escaped(entry.numbers + over)}</p>\n' if entry.numbers else ""


def _numbers(state: str) -> str:
    return f"""<details id="numbers"{state}><summary>The same numbers as a table</summary>
<div class="scroll" tabindex="0" role="region" aria-label="Counts of this window"><table id="table"></table></div>
</details>"""


def _note(entry: Entry) -> str:
    return f" {escaped(entry.note[0].upper() + entry.note[1:])}." if entry.note else ""


def _region(entry: Entry) -> str:
    every = "" if len(entry.windows) > 1 else " hidden"
    # The script finds all its places; of sets nothing is added up.
    before, after = (f"{_SEVERAL}<div hidden>", "</div>") if entry.several else ("", "")
    return f"""{before}<h2>A region of your own</h2>
<p class="controls"><span><label for="cells">Cells</label>
<input type="text" id="cells" size="12" placeholder="1,5-9 or (7,2)" autocomplete="off"></span>
<button type="button" id="clear">Clear</button></p>
<p class="bad" id="cells-state" role="status"></p>
<div id="region" hidden>
<p id="region-now" role="status"></p>
<p{every}><button type="button" id="region-sum">Add up all windows</button></p>
<p id="region-all" role="status"></p>
<p class="soft">The interval of a sum is that of the exact law of all its noise. It holds for a region chosen for its
place; one that is chosen because its numbers stand out needs a wider one.</p>
</div>{after}"""


def _missing(entry: Entry) -> str:
    from collections import Counter

    reasons = Counter(entry.table.missing.values())
    if not reasons:
        return ""
    words = "; ".join(f"{count:,} {escaped(reason)}" for reason, count in sorted(reasons.items()))
    return f'<p class="soft">Windows without a release: {words}. Nothing stands in for them.</p>'


def _statement(entry: Entry) -> str:
    rows = "\n".join(f"<li>{escaped(text)}</li>" for text in entry.statement)
    return f"<details><summary>{_EVERY_ADVERSARY}</summary>\n<ul>\n{rows}\n</ul></details>"


def _files(entry: Entry) -> str:
    rows = "\n".join(
        f'<li><a href="{name}" download>{escaped(what)}</a></li>' for what, name in entry.downloads.items()
    )
    feeds = "" if entry.single else '\n<li><a href="feed.xml">Atom feed</a>, <a href="feed.json">JSON feed</a></li>'
    return f"<h2>Files</h2>\n<ul>\n{rows}{feeds}\n</ul>"


def release_page(entry: Entry) -> str:
    """Return the page of one release; its scripts read the content from the signed bytes alone."""
    figure = (
        ""
        if entry.places is None
        else (
            '<figure><div id="map" class="map" role="application" aria-label="Map; the table has its numbers">'
            '</div><div id="scale"></div></figure><p class="soft" id="said" role="status"></p>'
        )
    )
    body = f"""<p class="soft"><a href="index.html">{escaped(entry.title)}</a></p>
<h1 id="title">A signed release</h1>
{_plain(entry)}
{_NO_SCRIPT}
<p id="verdict" class="soft" role="status">reading the signed record ...</p>
<p class="controls"><a id="before" href="release.html" hidden>the release before</a>
<a id="after" href="release.html" hidden>the release after</a></p>
<dl class="facts" id="facts"></dl>
{figure}
<div class="scroll" tabindex="0" role="region" aria-label="Both signals" id="both" hidden>
<table id="crosstab"></table></div>
<div class="scroll" tabindex="0" role="region" aria-label="Counts"><table id="table"></table></div>
<details><summary>{_EVERY_ADVERSARY}</summary>
<div class="scroll" tabindex="0" role="region" aria-label="Privacy statement"><table id="statement"></table></div>
</details>
<p>Facts, numbers and tables above are read in your browser from the bytes that the aggregators signed.
<a id="file" href="release.html" download>The record as a file</a>, for <code>fleetcount verify</code>; SHA-256
<code id="digest"></code></p>"""
    scripts = (*MAP_SCRIPTS, *RECORD_SCRIPTS, "data.js", "release.js")
    return page(f"Release: {entry.title}", body, scripts=scripts, root="../")

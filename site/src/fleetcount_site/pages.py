"""The parts of every page: its HTML shell, its content security policy, and the files it may load.

Builds texts; it must not read a record or open a socket. Nothing in a page comes from another host or runs inline.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

ASSETS: Final = "assets"
"""The folder of the files that all pages of a site share, from the site's root."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
"""The content security policy: a page's own files and nothing else, no inline script, nothing evaluated."""

MAP_SCRIPTS: Final = ("vendor/leaflet/leaflet.js", "map.js", "tables.js")
LINE_SCRIPTS: Final = ("vendor/uplot/uPlot.iife.min.js", "lines.js")
RECORD_SCRIPTS: Final = ("layout.js", "domain.js", "window.js", "record.js", "signatures.js")
"""Scripts by purpose, in the order in which they must load; all of them add to one object `fleetcount`."""

_STYLES_OF: Final = {
    "vendor/leaflet/leaflet.js": "vendor/leaflet/leaflet.css",
    "vendor/uplot/uPlot.iife.min.js": "vendor/uplot/uPlot.min.css",
    "report.js": "report.css",
    "watch.js": "watch.css",
}
_KINDS: Final = (".js", ".css", ".png", "LICENSE")


def escaped(text: object) -> str:
    """Return a text escaped for HTML, for places between tags and in quoted attributes."""
    return html.escape(str(text), quote=True)


def page(
    title: str,
    body: str,
    *,
    scripts: Iterable[str] = (),
    root: str = "",
    data: Iterable[str] = (),
    feeds: Mapping[str, str] | None = None,
) -> str:
    """Return a whole HTML page.

    `body` is HTML that the caller has escaped. `scripts` are names of `assets`, loaded in this order before `data`,
    scripts beside the page with its numbers; their style sheets are added. `root` is the path from the page to the
    site's root ("" or "../"). `feeds` are addresses by content type.
    """
    names = list(dict.fromkeys(scripts))
    here = f"{root}{ASSETS}/"
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{escaped(title)}</title>",
        # Without it a browser requests an icon that the server does not have.
        '<link rel="icon" href="data:,">',
        *(f'<link rel="stylesheet" href="{here}{name}">' for name in styles_of(names)),
        *(
            f'<link rel="alternate" type="{escaped(kind)}" href="{escaped(address)}">'
            for kind, address in (feeds or {}).items()
        ),
        *(f'<script defer src="{here}{name}"></script>' for name in names),
        *(f'<script defer src="{escaped(name)}"></script>' for name in data),
    ]
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        *head,
        "</head>",
        "<body>",
        '<a class="skip" href="#content">To the content</a>',
        f'<main id="content">\n{body}\n</main>',
        "</body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


def styles_of(scripts: Iterable[str]) -> Sequence[str]:
    """Return the style sheets of a page with these scripts, in the order of loading."""
    return [*(_STYLES_OF[name] for name in scripts if name in _STYLES_OF), "parts.css", "style.css"]


@cache
def assets() -> Mapping[str, Path]:
    """Return the files that pages load, by name below `ASSETS`: own ones, and vendored ones under "vendor/"."""
    package = Path(str(resources.files("fleetcount_site")))
    own = {path.name: path for path in sorted((package / "static").iterdir()) if path.suffix in _KINDS}
    vendored = sorted(path for path in (package / "vendor").rglob("*") if path.name.endswith(_KINDS))
    return own | {path.relative_to(package).as_posix(): path for path in vendored}

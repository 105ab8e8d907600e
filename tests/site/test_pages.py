"""The shell of every page: what a browser is told, and that a page opened from a file or over http breaks no rule."""

from pathlib import Path
from typing import Any

import pytest
from fleetcount_site.pages import LINE_SCRIPTS, MAP_SCRIPTS, RECORD_SCRIPTS, page
from playwright.sync_api import Browser

from tests.site.conftest import Visit

SQUARES = """fleetcount.made = fleetcount.drawMap(document.getElementById('map'), {
  cells: [1, 2, 3, 4].map(value => { const x = (value - 1) % 2, y = value > 2 ? 1 : 0;
    return {value, label: x + ',' + y, ring: [[x, y], [x + 1, y], [x + 1, y + 1], [x, y + 1]]}; }),
  degrees: false, scale: fleetcount.colourScale(10), onPick: value => { document.title = 'picked ' + value; },
}); fleetcount.made.show([0, 5, 10, null], [true, false, false, false]);"""


def written(folder: Path, body: str) -> Path:
    """Return a page with a map in a folder that has the shared files."""
    (folder / "made.js").write_text(f"'use strict'; {body}")
    scripts = (*MAP_SCRIPTS, *LINE_SCRIPTS, *RECORD_SCRIPTS)
    found = folder / "index.html"
    found.write_text(
        page("A <title>", '<h1>Map</h1><div id="map" class="map"></div>', scripts=scripts, data=["made.js"])
    )
    return found


def test_a_title_stays_a_text() -> None:
    assert "<title>A &lt;title&gt; &quot;x&quot;</title>" in page('A <title> "x"', "")


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_a_page_from_a_file_shows_its_map_and_breaks_no_rule(
    browser: Browser, assets_folder: Path, width: int, scheme: str
) -> None:
    visit = Visit(browser, written(assets_folder, SQUARES).as_uri(), width=width, scheme=scheme)
    box: Any = visit.page.locator("#map").bounding_box()
    visit.page.mouse.click(box["x"] + box["width"] / 2 + 40, box["y"] + box["height"] / 2 - 40)

    assert visit.page.title() == "picked 4"
    assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert visit.page.evaluate("isSecureContext && typeof crypto.subtle.digest") == "function"
    assert visit.complaints == []
    assert all(one.startswith(("file:", "data:")) for one in visit.requests)
    visit.close()

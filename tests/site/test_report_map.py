"""The map of a study's report: drawn by the module of published pages, from a file, with pictures behind it."""

import json
import re
import shutil
from pathlib import Path

import pytest
from fleetcount_site.report import write_report
from playwright.sync_api import Browser

from tests.simulator.report_studies import MadeUp, write_study
from tests.site.conftest import Visit

pytestmark = [pytest.mark.nightly, pytest.mark.processes]
"""A browser each: what every run asks of one is in tests/site/test_walk.py."""

HOSTILE = "</script><script>document.title='taken'</script>"
SQUARES = tuple(
    f"POLYGON(({x} {y}, {x + 1} {y}, {x + 1} {y + 1}, {x} {y + 1}, {x} {y}))" for y in range(2) for x in range(3)
)


@pytest.fixture(scope="module")
def report_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study = MadeUp(outlines=SQUARES, labels=(HOSTILE, *"bcdef"))
    return write_report(write_study(tmp_path_factory.mktemp("report") / "study", study))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), pytest.param(400, "dark", marks=pytest.mark.nightly)])
def test_a_report_from_a_file_draws_its_map_and_breaks_no_rule(
    browser: Browser, report_page: Path, width: int, scheme: str
) -> None:
    visit = Visit(browser, report_page.as_uri(), width=width, scheme=scheme)
    page = visit.page
    page.get_by_role("button", name="Truth").click()
    # By the map's own picture: the middle of the first cell, which is south-west.
    box = page.locator("#map").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2 + 30)

    found = re.search(r"(?s)id=\"report-data\">(.*?)</script>", report_page.read_text("utf-8"))
    assert found is not None
    drawn = json.loads(found[1])["map"]
    told = page.locator("#map-told").text_content() or ""
    assert told.startswith(f"b: truth {drawn['layers'][0]['values'][1]:g}, estimate ")
    assert drawn["texts"][0].startswith(HOSTILE)
    assert page.locator("button[value='0']").get_attribute("aria-pressed") == "true"
    assert "devices" in (page.locator("#map-scale").text_content() or "")
    assert not page.locator("#figure-map .still").is_visible()
    assert page.title() != "taken"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert visit.complaints == []
    assert all(one.startswith(("file:", "data:")) for one in visit.requests)
    visit.close()


def test_a_report_without_its_scripts_shows_pictures(browser: Browser, report_page: Path, tmp_path: Path) -> None:
    alone = tmp_path / "report.html"
    shutil.copy(report_page, alone)
    shutil.copytree(report_page.parent / "figures", tmp_path / "figures")

    visit = Visit(browser, alone.as_uri())

    assert visit.page.locator("#figure-map .still").is_visible()
    assert not visit.page.locator("#map").is_visible()
    visit.close()

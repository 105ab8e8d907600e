"""The report in a real browser, opened from the disk without a network, as wide as a phone and a desk, light and dark.

Needs a Chromium: the one that the system has, or the one Playwright has installed; without either these tests skip.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleetcount_site.report import write_report
from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

from tests.simulator.report_studies import MadeUp, attack, write_study

pytestmark = pytest.mark.processes

MEASURE = """() => {
  const shown = element => { const box = element.getBoundingClientRect(); return box.width > 0 && box.height > 0; };
  return {
    headings: [...document.querySelectorAll('h1, h2')].map(one => one.textContent),
    panels: [...document.querySelectorAll('.chart, #map')].map(shown),
    drawn: [...document.querySelectorAll('.chart canvas')].map(one => {
      const pixels = one.getContext('2d').getImageData(0, 0, one.width, one.height).data;
      const found = new Set();
      for (let place = 0; place < pixels.length; place += 4)
        if (pixels[place + 3] > 250) found.add(`rgb(${pixels[place]}, ${pixels[place + 1]}, ${pixels[place + 2]})`);
      return [...found];
    }),
    stills: [...document.querySelectorAll('.still')].filter(shown).length,
    roles: ['s0', 's1', 's2', 'bad', 'ink', 'soft', 'within', 'paper'].map(
      role => getComputedStyle(document.documentElement).getPropertyValue('--' + role)),
    captions: [...document.querySelectorAll('figcaption')].map(shown),
    swatches: [...document.querySelectorAll('.key svg')].map(one => getComputedStyle(one.firstElementChild).fill),
    paper: getComputedStyle(document.documentElement).backgroundColor,
    outside: [...document.querySelectorAll('.chart canvas, .axis, h4, .told, .key li')].filter(one => {
      const box = one.getBoundingClientRect();
      return box.left < 0 || box.right > window.innerWidth;
    }).map(one => one.textContent),
    wide: document.documentElement.scrollWidth - window.innerWidth,
  };
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        try:
            # No sandbox of its own: a container's root has none, and the page is ours.
            started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except Error as error:
            pytest.skip(f"no Chromium here (install Debian's chromium): {str(error).splitlines()[0]}")
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the pages of a sweep, of a map, and of a study with hostile texts."""
    folder = tmp_path_factory.mktemp("studies")
    sweep = MadeUp(
        axes=("population.devices", "faults.drop_out"),
        points=tuple(
            {"population.devices": float(size), "faults.drop_out": share}
            for size in (1_000, 10_000, 100_000)
            for share in (0.0, 0.01, 0.05)
        ),
        mechanisms=("sampling", "direct", "warner"),
        epochs=3,
        attackers=(
            attack(),
            attack(case=1, measured=0.9, low=0.85, high=0.94, within=False),
            attack(measure="shift", bound=8),
        ),
    )
    squares = tuple(
        f"POLYGON(({x} {y}, {x + 1} {y}, {x + 1} {y + 1}, {x} {y + 1}, {x} {y}))" for x in range(8) for y in range(6)
    )
    hostile = "<script>document.title='taken'</script><img src=x onerror=alert(1)>"
    studies = {
        "sweep": sweep,
        "map": MadeUp(outlines=squares, labels=tuple(f"{value}" for value in range(48))),
        "hostile": MadeUp(title=hostile, labels=(hostile, "w" * 300, "道路"), scenario=f"# {hostile}\nname = 'x'"),
    }
    return {name: write_report(write_study(folder / name, study)) for name, study in studies.items()}


class Visit:
    """One page, opened with everything but itself blocked; what it asked for and complained of is kept."""

    def __init__(self, browser: Browser, path: Path, width: int, scheme: str) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        # Any: Playwright's own closed texts.
        chosen: Any = scheme
        self._context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=chosen, offline=True)
        self.page: Page = self._context.new_page()
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.as_uri())
        self.page.screenshot(path=path.with_name(f"{width}-{scheme}.png"), full_page=True)
        self.seen: dict[str, Any] = self.page.evaluate(MEASURE)
        self.title = self.page.title()
        self._context.close()


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
@pytest.mark.parametrize("name", ["sweep", "map", "hostile"])
def test_a_page_is_whole_readable_and_alone(
    browser: Browser, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    visit = Visit(browser, pages[name], width, scheme)
    seen = visit.seen

    assert visit.complaints == []
    folder = pages[name].parent.as_uri()
    asked = [one for one in visit.requests if not one.startswith("data:")]
    assert [one for one in asked if not one.startswith((f"{folder}/assets/", f"{folder}/figures/"))] == [
        pages[name].as_uri()
    ]
    assert seen["wide"] <= 0
    assert seen["headings"][1:4] == ["What was asked", "Three numbers", "What to look out for"]
    assert seen["panels"]
    assert all(seen["panels"])
    assert all(seen["captions"])
    assert seen["stills"] == 0
    assert all(len(colours) > 3 for colours in seen["drawn"])
    assert seen["outside"] == []


def test_colours_follow_the_page(browser: Browser, pages: dict[str, Path]) -> None:
    light, dark = (Visit(browser, pages["sweep"], 1280, scheme).seen for scheme in ("light", "dark"))

    assert light["paper"] == "rgb(255, 255, 255)"
    assert dark["paper"] == "rgb(22, 24, 27)"
    for seen in (light, dark):
        # A role that the style sheet does not know would be empty, and drawn black.
        assert all(seen["roles"])
        assert "rgb(0, 0, 0)" not in seen["swatches"]
        first = {colour for colours in seen["drawn"] for colour in colours}
        assert set(seen["swatches"]) <= first
    assert set(light["swatches"]).isdisjoint(dark["swatches"])


def test_a_dot_says_its_numbers_by_keyboard_and_by_pointer(browser: Browser, pages: dict[str, Path]) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    page = context.new_page()
    page.goto(pages["sweep"].as_uri())
    chart, told = page.locator("#attackers-0"), page.locator("#attackers-0-told")
    chart.focus()
    page.keyboard.press("ArrowRight")
    first = told.text_content()
    page.keyboard.press("ArrowRight")
    second = told.text_content()
    ring = chart.locator(".ring").bounding_box()
    page.keyboard.press("ArrowLeft")
    again = told.text_content()
    assert ring is not None
    page.mouse.move(ring["x"] + ring["width"] / 2 + 4, ring["y"] + ring["height"] / 2)
    pointed = told.text_content()
    context.close()

    assert first == again == "sampling · 1,000 · 0: 60 % (50 % to 70 %)"
    assert second == pointed == "direct · 1,000 · 0: 90 % (85 % to 94 %)"


def test_without_scripts_there_are_pictures(browser: Browser, pages: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(pages["map"].as_uri())
    for still in page.locator(".still").all():
        still.scroll_into_view_if_needed()
        expect(still).to_be_visible()
        expect(still).not_to_have_js_property("naturalWidth", 0)
    assert not page.locator(".drawn").first.is_visible()
    context.close()


def test_texts_of_a_scenario_stay_texts(browser: Browser, pages: dict[str, Path]) -> None:
    visit = Visit(browser, pages["hostile"], 1280, "light")

    assert visit.title.startswith("<script>")
    assert visit.seen["headings"][0].startswith("<script>document.title='taken'</script>")
    assert visit.complaints == []


def test_a_printed_page_shows_all_rows(browser: Browser, pages: dict[str, Path]) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    page = context.new_page()
    page.emulate_media(media="print", color_scheme="dark")
    page.goto(pages["sweep"].as_uri())
    hidden = page.evaluate(
        "() => [...document.querySelectorAll('.scroll')].filter(one => one.scrollHeight > one.clientHeight + 1).length"
    )
    paper = page.evaluate("() => getComputedStyle(document.documentElement).backgroundColor")
    context.close()

    assert hidden == 0
    assert paper == "rgb(255, 255, 255)"

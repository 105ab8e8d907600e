"""A month of hourly maps of 4,095 cells as pages: the bytes that a reader loads, and how long a browser takes.

The records are drawn as aggregators would make them; pages come over loopback. A quick run has 12 windows. The browser
is Debian's Chromium without a GPU, or the one that Playwright has; without either a row says so.
"""

import contextlib
import gzip
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fleetcount.__main__ import run_command
from fleetcount_site import serving
from fleetcount_site.publish.serve import site_routes
from playwright.sync_api import Browser, Error, Page, sync_playwright
from rows import Row, Unit, quick, report, smoke

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.published import trusted_toml, write_town

COLUMNS, ROWS = (12, 8) if smoke() else (63, 65)
WINDOWS = 4 if smoke() else 12 if quick() else 720
VISITS = 1 if smoke() else 3 if quick() else 5
STEPS = 3 if smoke() else 60
SIZE = f"{COLUMNS * ROWS:,} cells, {WINDOWS} windows"
FIRST_MAP_S, PAGE_KB, STEP_MS = 2.0, 500.0, 100.0
"""What a reader must not wait or load longer; a step may be half of it one day."""
STEP = """() => new Promise(done => {
  const slider = document.getElementById('slider');
  const when = document.getElementById('when'), before = when.textContent;
  slider.value = String(Number(slider.value) - 1);
  const began = performance.now();
  slider.dispatchEvent(new Event('input'));
  const look = () => when.textContent === before ? setTimeout(look, 0)
    : requestAnimationFrame(() => setTimeout(() => done(performance.now() - began), 0));
  look();
})"""
"""One step of the slider, until the frame that shows it is painted, the loading of numbers that it needs included."""


def published(folder: Path) -> Path:
    """Draw the records and publish them; return the folder of their pages."""
    write_town(folder / "kept", COLUMNS, ROWS, range(WINDOWS))
    keys = trusted_toml(folder / "trusted.toml")
    began = time.perf_counter()
    if run_command(["publish", str(folder / "kept"), "--output", str(folder / "site"), "--keys", str(keys)]) != 0:
        raise SystemExit("the records could not be published")
    report(Row(path=f"publish: {SIZE}, every signature checked", ours=time.perf_counter() - began, unit="s"))
    return folder / "site"


def demand(what: str, ours: float, unit: Unit, must: float, note: str, aim: float | None = None) -> None:
    """Report a figure beside what it must be at most."""
    report(
        Row(
            path=f"publish: {SIZE}, {what}",
            ours=ours,
            unit=unit,
            peer="the limit",
            peer_value=must,
            ratio=ours / must,
            must=1,
            aim=aim,
            larger_is_better=False,
            note=note,
        )
    )


@contextlib.contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve the pages as `fleetcount serve` does; give their address."""
    listener = serving.listen()
    running = serving.server(serving.secured(site_routes(site)))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield serving.address_of(listener)
    finally:
        running.should_exit = True
        thread.join()
        listener.close()


class Visit:
    """A page in a browser that has nothing of it: milliseconds to its map, to everything, and each file it loaded."""

    def __init__(self, browser: Browser, address: str) -> None:
        self._context = browser.new_context(viewport={"width": 1280, "height": 900})
        self.page: Page = self._context.new_page()
        self.loaded: list[str] = []
        self.page.on("request", lambda request: self.loaded.append(request.url))
        began = time.perf_counter()
        self.page.goto(f"{address}question/index.html")
        self.page.wait_for_selector("body[data-ready=map], body[data-ready=all]")
        self.map_s = time.perf_counter() - began
        self.page.wait_for_selector("body[data-ready=all]", timeout=60_000)
        self.all_s = time.perf_counter() - began

    def close(self) -> None:
        """Leave the page, and all that it has cached."""
        self._context.close()


def compressed_kb(site: Path, address: str, loaded: Sequence[str]) -> float:
    """Return thousands of bytes of what was loaded from the site, each file compressed by gzip."""
    names = {one.removeprefix(address) for one in loaded if one.startswith(address)}
    return sum(len(gzip.compress((site / name).read_bytes(), 6)) for name in names) / 1e3


def looked_at(browser: Browser, site: Path) -> None:
    """Report what a reader's browser loads and how long it takes."""
    with served(site) as address:
        visits = [Visit(browser, address) for _ in range(VISITS)]
        steps = [visits[0].page.evaluate(STEP) for _ in range(min(STEPS, WINDOWS - 1))]
        size = compressed_kb(site, address, visits[-1].loaded)
        for one in visits:
            one.close()
    demand("the page of a question, gz, in kB", size, "", PAGE_KB, "all that it loads by itself: map, line and record")
    many = f"median of {VISITS} visits, nothing cached"
    demand("from the address to its map", statistics.median(one.map_s for one in visits), "s", FIRST_MAP_S, many)
    demand("to everything, checked", statistics.median(one.all_s for one in visits), "s", FIRST_MAP_S, many)
    demand("a step of the slider", statistics.median(steps), "ms", STEP_MS, f"median of {len(steps)}", aim=0.5)


def main() -> None:
    """Print a row for every figure."""
    with tempfile.TemporaryDirectory() as place:
        site = published(Path(place))
        found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        with sync_playwright() as playwright:
            try:
                browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
            except Error:
                why = "needs Chromium (scripts/programs)"  # What its driver says names paths of this machine.
                report(Row(path=f"publish: {SIZE}, in a browser", ours=None, unit="s", note=why))
                return
            looked_at(browser, site)
            browser.close()


if __name__ == "__main__":
    main()

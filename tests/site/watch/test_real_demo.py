"""`fleetcount demo --watch` as a person has it: real processes, a real browser, and Ctrl-C at the end or before."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleetcount_protocol.release.record import verify_record_signatures
from fleetcount_protocol.release.record_json import record_from_json
from playwright.sync_api import Browser, Page

from tests.site.conftest import Visit
from tests.support.processes import pace

pytestmark = [pytest.mark.nightly, pytest.mark.processes, pytest.mark.timeout(300)]


def wait(page: Page, words: str, seconds: float = 150) -> None:
    """Wait until an expression of the page is true."""
    deadline = time.monotonic() + seconds * pace()
    while not page.evaluate(f"() => Boolean({words})"):
        assert time.monotonic() < deadline, words
        time.sleep(0.05)


class Demo:
    """A demo of 60 vehicles with its page."""

    def __init__(self, folder: Path) -> None:
        (folder / "tmp").mkdir()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "fleetcount",
                "demo",
                "--watch",
                "--vehicles",
                "60",
                "--output",
                str(folder / "out"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(folder / "tmp")},
        )
        assert self.process.stdout is not None
        found = re.fullmatch(r"watch it at (http://127\.0\.0\.1:\d+/)\n", self.process.stdout.readline())
        assert found is not None
        self.address = found[1]

    def interrupt(self) -> tuple[int, str, str]:
        """Send Ctrl-C; return the exit code and what was written."""
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=60 * pace())
        return self.process.returncode, out, err


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """Return a demo that has printed its address."""
    started = Demo(tmp_path)
    yield started
    if started.process.poll() is None:
        started.process.send_signal(signal.SIGINT)
        started.process.communicate(timeout=60 * pace())


def test_a_demo_is_watched_from_the_first_map_to_its_signed_release(
    browser: Browser, demo: Demo, tmp_path: Path
) -> None:
    visit = Visit(browser, demo.address)
    page = visit.page

    wait(page, "document.querySelector('#map canvas') && fleetcount.watched.question")
    wait(page, "fleetcount.watched.release")
    page.reload()
    wait(page, "fleetcount.watched.release && fleetcount.watched.state.text.startsWith('The files are in')")

    assert "2 of 2 signatures verified in your browser" in page.inner_text("#signatures")
    assert page.inner_text("#fact-own-vehicles") == "60 of 60 hold every receipt of round one, 60 of both"
    record, signatures = record_from_json((tmp_path / "out" / "release.json").read_text())
    verify_record_signatures(record, signatures)
    shown = page.evaluate("() => fleetcount.watched.release.cells.map(c => [c.estimate, c.low, c.high])")
    assert shown == [[float(cell.estimate), cell.low, cell.high] for cell in record.cells]
    code, out, err = demo.interrupt()
    assert (code, "Traceback" in err) == (0, False)
    assert out.endswith(f"the page stays at {demo.address} until Ctrl-C\n")
    wait(page, "fleetcount.watched.state.now === 'closed'", 10)
    assert visit.complaints == []
    visit.close()


def test_ctrl_c_before_the_end_is_told_to_the_page(browser: Browser, demo: Demo, tmp_path: Path) -> None:
    visit = Visit(browser, demo.address)
    wait(visit.page, "document.getElementById('stage-starting')")

    code, _, err = demo.interrupt()

    assert code == 130
    assert err.splitlines()[-1] == "fleetcount demo: interrupted"
    wait(visit.page, "fleetcount.watched.state.now === 'interrupted'", 10)
    assert visit.page.inner_text("#state") == "interrupted Somebody ended the demo."
    assert not (tmp_path / "out").exists()
    assert list((tmp_path / "tmp").iterdir()) == []
    visit.close()

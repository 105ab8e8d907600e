"""The page of a demo in a real browser: at once, live, after a reload, at the end, and when it is lied to."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from fleetcount_protocol.release.record import ReleaseRecord, sign_record
from fleetcount_protocol.window.window import Window
from fleetcount_site.watch.server import Shown, showing
from playwright.sync_api import Browser, Page

from tests.site.conftest import Visit
from tests.site.watch.conftest import question, run
from tests.support.protocol_samples import signing_key

pytestmark = [pytest.mark.nightly, pytest.mark.processes]
"""A browser each: what every run asks of one is in tests/site/test_walk.py."""

Released = tuple[ReleaseRecord, tuple[bytes, ...]]


def wait(page: Page, words: str) -> None:
    """Wait until an expression of the page is true; the page itself evaluates no text."""
    deadline = time.monotonic() + 30
    while not page.evaluate(f"() => Boolean({words})"):
        assert time.monotonic() < deadline, words
        time.sleep(0.02)


@pytest.fixture
def visit(browser: Browser, shown: Shown) -> Iterator[Callable[..., Visit]]:
    """Return what opens the demo's page; at the end no page broke a rule or asked another host."""
    open_now: list[Visit] = []

    def opened(**how: Any) -> Visit:
        open_now.append(Visit(browser, shown.address, **how))
        return open_now[-1]

    yield opened
    for one in open_now:
        assert one.complaints == []
        assert all(asked.startswith((shown.address, "data:")) for asked in one.requests)
        one.close()


def rows(page: Page) -> list[list[str]]:
    """Return the texts of the table's body."""
    found: list[list[str]] = page.evaluate(
        "() => [...document.getElementById('table').tBodies[0].rows].map(r => [...r.cells].map(c => c.textContent))"
    )
    return found


def test_the_map_is_there_before_anything_has_run(visit: Callable[..., Visit], shown: Shown, window: Window) -> None:
    page = visit().page
    shown.teller.asked(question(window))

    wait(page, "document.querySelector('#map canvas') && fleetcount.watched.question")

    assert page.inner_text("h1") == "In which <cell> are you?"
    assert rows(page)[0] == ["0,0", "0", "–", "5"]
    assert page.inner_text("#promise p >> nth=0")
    assert page.locator("input[name=layer]:disabled").count() == 4


def test_a_run_is_shown_as_it_goes_and_a_reload_catches_up(
    visit: Callable[..., Visit], shown: Shown, window: Window
) -> None:
    page = visit().page
    run(shown, window)

    for _ in range(2):
        wait(page, "fleetcount.watched.receipts && fleetcount.watched.expectation")
        page.wait_for_selector("#cards canvas")
        wait(page, "document.getElementById('fact-refusals')")
        assert page.inner_text("#fact-refusals") == "2 too late"
        assert page.inner_text("#fact-own-vehicles") == "4 of 10 hold every receipt of round one, 3 of both"
        assert [row[1] for row in rows(page)] == ["2", "0", "0", "0", "1", "0"]
        assert page.locator("#cards > li").count() == 4
        assert page.is_checked("input[value=receipts]")
        page.reload()


def test_shares_are_others_at_every_load_and_the_answer_stays(
    visit: Callable[..., Visit], shown: Shown, window: Window
) -> None:
    run(shown, window)
    page = visit().page
    seen = []
    for _ in range(3):
        page.wait_for_selector("#cards canvas")
        seen.append([page.inner_text(f"#cards li >> nth={place} >> code") for place in range(3)])
        seen[-1].append(page.inner_text("#cards .together"))
        page.click("#again") if len(seen) == 1 else page.reload()
        wait(page, "fleetcount.watched.question && !document.getElementById('again').disabled")

    assert all(len({one[place] for one in seen}) == 3 for place in range(3))
    assert len({one[3] for one in seen}) == 1
    assert "p = 1/4." in seen[0][3]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), pytest.param(400, "dark", marks=pytest.mark.nightly)])
def test_the_release_is_shown_with_its_signatures_checked_here(
    visit: Callable[..., Visit], shown: Shown, window: Window, released: Released, width: int, scheme: str
) -> None:
    page = visit(width=width, scheme=scheme).page
    run(shown, window)
    shown.teller.released(*released)
    wait(page, "fleetcount.watched.release")

    assert "2 of 2 signatures verified in your browser" in page.inner_text("#signatures")
    assert rows(page)[:2] == [["0,0", "4", "0 to 14", "14", "5"], ["1,0", "-12", "0, below noise", "0", "0"]]
    page.locator("#table tbody button").nth(1).click()
    assert "estimate -12, interval 0, below noise;" in page.inner_text("#cell")
    assert page.inner_text("#fact-intervals") == "6 of 6 truths lie in their 95 % interval"
    assert page.is_checked("input[value=estimate]")
    for layer in ("truth", "width", "expected", "receipts", "estimate"):
        page.check(f"input[value={layer}]")
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_everything_is_reached_by_keyboard(
    visit: Callable[..., Visit], shown: Shown, window: Window, released: Released
) -> None:
    run(shown, window)
    shown.teller.released(*released)
    page = visit().page
    wait(page, "fleetcount.watched.release")

    page.focus("input[value=estimate]")
    page.keyboard.press("ArrowRight")
    assert page.is_checked("input[value=truth]")
    page.focus("#table tbody button >> nth=4")
    page.keyboard.press("Enter")

    wait(page, "document.getElementById('cell').textContent.startsWith('1,1: estimate 8, interval 1 to 19; truth 3')")
    assert page.locator("#table tr[aria-selected=true]").count() == 1


def flipped(made: Released) -> Released:
    record, (first, second) = made
    return record, (bytes([first[0] ^ 1]) + first[1:], second)


def swapped(made: Released) -> Released:
    record, (first, second) = made
    return record, (second, first)


def lonely(made: Released) -> Released:
    record, (first, _) = made
    return record, (first,)


def of_another_window(made: Released) -> Released:
    record = replace(made[0], window=replace(made[0].window, name="another question"))
    return record, tuple(sign_record(record, signing_key(place)) for place in range(2))


@pytest.mark.parametrize(
    "change",
    [
        flipped,
        pytest.param(swapped, marks=pytest.mark.nightly),
        pytest.param(lonely, marks=pytest.mark.nightly),
        of_another_window,
    ],
)
def test_a_record_that_does_not_verify_shows_no_number(
    visit: Callable[..., Visit],
    shown: Shown,
    window: Window,
    released: Released,
    change: Callable[[Released], Released],
) -> None:
    run(shown, window)
    shown.teller.released(*change(released))
    page = visit().page

    page.wait_for_selector("#signatures .bad")

    assert "The record is not shown" in page.inner_text("#signatures")
    assert page.is_disabled("input[value=estimate]")
    assert rows(page)[0][1] == "2"


def test_the_end_is_told_before_the_server_goes(browser: Browser, window: Window) -> None:
    with showing() as shown:
        visit = Visit(browser, shown.address)
        run(shown, window)
        wait(visit.page, "fleetcount.watched.receipts")
        shown.teller.now("closed", "The demo was ended with Ctrl-C.")

    wait(visit.page, "fleetcount.watched.state.now === 'closed'")
    assert visit.page.inner_text("#state") == "ended The demo was ended with Ctrl-C."
    assert visit.complaints == []
    visit.close()

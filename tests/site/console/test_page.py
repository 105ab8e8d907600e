"""The console in a browser, over an aggregator of its own process: live, by keyboard, narrow and dark."""

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from fleetcount.run.console import asks
from fleetcount_aggregator.config import AggregatorConfig, load_config
from fleetcount_site.console.state import StateReader
from playwright.sync_api import Browser, expect

from tests.site.conftest import Visit
from tests.site.console.conftest import Process, served
from tests.support.deployment import LiveDeployment
from tests.support.processes import pace

pytestmark = [pytest.mark.nightly, pytest.mark.processes]
"""A browser each: what every run asks of one is in tests/site/test_walk.py."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDeployment]:
    """Return one aggregator that runs and one that does not."""
    deployment = LiveDeployment(tmp_path_factory.mktemp("console"))
    deployment.start(0)
    deployment.children[0].ready()
    yield deployment
    deployment.children[0].terminate()
    deployment.children[0].ended()


@pytest.fixture
def visiting(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """Return a function that opens a page; at the end none of them has complained or asked another host."""
    visits: list[Visit] = []

    def opened(address: str, **settings: object) -> Visit:
        visits.append(Visit(browser, address, **settings))  # type: ignore[arg-type]
        return visits[-1]

    yield opened
    for one in visits:
        one.close()
        assert one.complaints == []
        assert {urlsplit(request).hostname for request in one.requests} <= {"127.0.0.1"}


def test_a_real_aggregator_is_seen_as_it_runs_and_as_it_ends(
    live: LiveDeployment, visiting: Callable[..., Visit]
) -> None:
    listen = f"127.0.0.1:{live.children[0].ready()['metrics_port']}"
    reader = StateReader(load_config(live.config(0), {}), asks(listen))
    wait_ms = 30_000 * pace()

    with served(reader) as address:
        one = visiting(address)
        page = one.page
        expect(page.locator("h1")).to_have_text("Aggregator alpha")
        expect(page.locator("#state")).to_contain_text("not ready: peers", timeout=wait_ms)
        expect(page.locator("[data-part=checks]")).to_contain_text("beta", timeout=wait_ms)
        expect(page.get_by_role("row", name="device_ca")).to_contain_text("days")
        expect(page.locator("[data-part=windows]")).to_have_text("No windows.")
        live.children[0].terminate()
        live.children[0].ended()
        expect(page.locator("#state")).to_contain_text("does not answer", timeout=wait_ms)
        one.close()  # Before the server, whose absence it would complain of.
    live.start(0)
    live.children[0].ready()


def test_it_fits_a_narrow_screen_and_needs_no_mouse(visiting: Callable[..., Visit], console: str) -> None:
    page = visiting(console, width=400, scheme="dark").page

    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = []
    for _ in range(5):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.dataset.part"))
    assert reached == ["checks", "windows", "certificates", "questions", "ledger"]
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("table").count() == page.locator("caption").count() == 2
    assert page.locator("[data-part] b").count() == 0
    assert page.locator("form, input, button").count() == 0


def test_a_part_that_changes_keeps_the_focus(visiting: Callable[..., Visit], console: str, process: Process) -> None:
    page = visiting(console).page
    page.locator("[data-part=checks]").focus()

    process.say({"name": "peers", "ok": True, "reason": ""})

    expect(page.locator("[data-part=checks]")).to_contain_text("holds", timeout=20_000)
    assert page.evaluate("document.activeElement.dataset.part") == "checks"


def test_without_scripts_it_is_the_same_tables(browser: Browser, console: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(console)

    expect(page.get_by_role("table", name="What it needs to do all of its work")).to_contain_text("FAILS")
    assert "load it again" in page.content()
    context.close()


def test_a_console_that_has_ended_says_so(browser: Browser, configured: AggregatorConfig, process: Process) -> None:
    with served(StateReader(configured, process.ask)) as address:
        one = Visit(browser, address)
    expect(one.page.locator("#state")).to_contain_text("The console does not answer", timeout=20_000)
    one.close()

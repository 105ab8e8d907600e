"""The console in a browser, over an aggregator of its own process: live, by keyboard, narrow, dark, and read-only."""

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fleetcount.console_command import asks
from fleetcount_aggregator.config import AggregatorConfig, load_config
from fleetcount_site import serving
from fleetcount_site.console.looking import Looker
from fleetcount_site.console.showing import Looking, console_app
from playwright.sync_api import Browser, expect

from tests.site.conftest import Visit
from tests.site.console.conftest import Process
from tests.support.deployment import LiveDeployment
from tests.support.processes import pace


@contextlib.contextmanager
def served(looker: Looker) -> Iterator[str]:
    """Serve a console that looks all the time until the block ends."""
    listener = serving.listen()
    with listener, Looking(looker, every_s=0.2) as looking:
        running = serving.server(console_app(looking))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield serving.address_of(listener)
        finally:
            running.should_exit = True
            thread.join(10)


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
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
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


def test_a_real_aggregator_is_seen_as_it_runs_and_as_it_ends(live: LiveDeployment, visit: Callable[..., Visit]) -> None:
    listen = f"127.0.0.1:{live.children[0].ready()['metrics_port']}"
    looker = Looker(load_config(live.config(0), {}), asks(listen))
    wait_ms = 30_000 * pace()

    with served(looker) as address:
        one = visit(address)
        page = one.page
        expect(page.locator("h1")).to_have_text("Aggregator alpha")
        peers = page.get_by_role("table", name="When they were last asked")
        expect(peers.get_by_role("row", name="beta")).to_contain_text("NO", timeout=wait_ms)
        expect(page.locator("#state")).to_contain_text("not ready: peers", timeout=wait_ms)
        expect(page.locator("[data-part=alerts]")).to_contain_text("alpha does not reach beta", timeout=wait_ms)
        expect(page.get_by_role("row", name="device_ca")).to_contain_text("days")
        expect(page.locator("[data-part=tasks]")).to_have_text("No tasks.")
        live.children[0].terminate()
        live.children[0].ended()
        expect(page.locator("#state")).to_contain_text("does not answer", timeout=wait_ms)
        expect(page.locator("[data-part=alerts]")).to_contain_text("FleetcountDown", timeout=wait_ms)
        one.close()  # Before the server, whose absence it would complain of.
    live.start(0)
    live.children[0].ready()


@pytest.fixture
def shown(configured: AggregatorConfig, process: Process) -> Iterator[str]:
    """Return where a console without a store is shown, with an alert and a check that fails."""
    checks = [{"name": "peers", "ok": False, "reason": "beta: <b>silent</b> since 40 s"}]
    process.say('fleetcount_certificate_days_left{certificate="own"} 2\n', readyz={"checks": checks})
    with served(Looker(configured, process.ask)) as address:
        yield address


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_narrow_screen_and_needs_no_mouse(visit: Callable[..., Visit], shown: str, scheme: str) -> None:
    page = visit(shown, width=400, scheme=scheme).page

    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = []
    for _ in range(8):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.dataset.part"))
    assert reached == ["alerts", "tasks", "checks", "peers", "certificates", "refused", "series", "ledger"]
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("table").count() == page.locator("caption").count() > 2
    assert page.locator("[data-part] b").count() == 0
    assert page.locator("form, input, button").count() == 0


def test_a_part_that_changes_keeps_the_focus(visit: Callable[..., Visit], shown: str, process: Process) -> None:
    page = visit(shown).page
    page.locator("[data-part=checks]").focus()

    process.say("", readyz={"checks": [{"name": "peers", "ok": True, "reason": ""}]})

    expect(page.locator("[data-part=checks]")).to_contain_text("holds", timeout=20_000)
    assert page.evaluate("document.activeElement.dataset.part") == "checks"


def test_without_scripts_it_is_the_same_tables(browser: Browser, shown: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(shown)

    expect(page.get_by_role("table", name="What it needs to do all of its work")).to_contain_text("FAILS")
    assert "load it again" in page.content()
    context.close()


def test_a_console_that_has_ended_says_so(browser: Browser, configured: AggregatorConfig, process: Process) -> None:
    with served(Looker(configured, process.ask)) as address:
        one = Visit(browser, address)
    expect(one.page.locator("#state")).to_contain_text("The console does not answer", timeout=20_000)
    one.close()


def test_nothing_can_be_asked_for_but_the_page(shown: str) -> None:
    where = urlsplit(shown).netloc
    for method, path, host, status in (
        ("POST", "/now", where, 405),
        ("DELETE", "/", where, 405),
        ("GET", "/metrics", where, 404),
        ("GET", "/", "elsewhere.example", 421),
    ):
        connection = http.client.HTTPConnection(where, timeout=10)
        connection.request(method, path, headers={"Host": host})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        assert answer.status == status
        assert "frame-ancestors 'none'" in str(answer.headers["content-security-policy"])


def test_the_console_looks_on_after_a_look_that_fails(
    configured: AggregatorConfig, process: Process, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    del tmp_path
    looker = Looker(configured, process.ask)
    looks = threading.Event()

    def fails() -> None:
        looks.set()
        raise ZeroDivisionError

    with Looking(looker, every_s=0.01) as looking:
        monkeypatch.setattr(looker, "look", fails)
        assert looks.wait(60)
        looks.clear()
        assert looks.wait(60)
        assert looking.failed == "The last look failed (ZeroDivisionError); what is below is older."
        monkeypatch.undo()

"""What a console takes over from a store and from pages, and above all what it does not: any number of reports."""

import re
import sqlite3
from collections.abc import Mapping
from decimal import Decimal

import pytest
from fleetcount_aggregator.config import AggregatorConfig
from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.opening import open_engine, reading
from fleetcount_aggregator.windows import status
from fleetcount_aggregator.windows.budget import question_charge, spent_from
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.messages import Receipt
from fleetcount_site.console import looking
from fleetcount_site.console.looking import Looker, how_often
from fleetcount_site.console.tables import body, parts

from tests.site.console.conftest import Process
from tests.support.aggregators import Network, TestDevice

SECRET = 8731
"""A number that stands nowhere but where reports, or refused ones, are counted."""


def digits_of(text: str) -> set[str]:
    """Return the numbers of a page, without those of ids."""
    return set(re.findall(r"\d+", re.sub(r"<code>[^<]*</code>", "", text)))


async def test_no_number_of_reports_is_on_the_page(
    looker: Looker, process: Process, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: Mapping[RejectReason, int] = {RejectReason.TOO_LATE: SECRET, RejectReason.MALFORMED: SECRET}
    monkeypatch.setattr(status.sql, "read_rejections", lambda *_: refused)
    await network.ask()
    metrics = network.core(0).context.host.metrics
    metrics.refused(RejectReason.TOO_LATE, 0)
    process.show(network.core(0).context, f"fleetcount_reports_total {SECRET}\n")
    looker.look()
    metrics.refused(RejectReason.TOO_LATE, SECRET)
    process.show(network.core(0).context, f"fleetcount_reports_total {SECRET}\n")
    process.pages = process.pages and process.pages | {
        "/windows": process.pages["/windows"].replace(b'"more"', b'"reports": 8731, "more"')
    }

    text = body(looker.look())

    assert str(SECRET) not in text
    assert not {number for number in digits_of(text) if abs(int(number) - SECRET) <= 1 or int(number) == 2 * SECRET}
    assert "malformed, too_late" in text
    assert "<td>every second</td>" in text
    await network.stop_all()


async def test_as_many_reports_as_there_are_leave_the_same_page(
    looker: Looker, process: Process, network: Network
) -> None:
    window = await network.ask()
    await network.advance_to(window.round_one_opens)
    await network.look_after_all()
    pages = []
    for devices in ((), (1,), (2, 3)):
        for device in [TestDevice(network, window, number) for number in devices]:
            await device.open_sessions()
            assert all(isinstance(answer, Receipt) for answer in await device.send(device.first(0)))
        process.show(network.core(0).context)
        pages.append({**parts(looker.look()), "alerts": ""})

    assert pages[0] == pages[1] == pages[2]
    assert "collecting" in pages[0]["windows"]
    await network.stop_all()


async def test_a_window_says_why_it_waits_and_until_when(looker: Looker, process: Process, network: Network) -> None:
    window = await network.ask()
    process.pages = None

    [stored] = looker.look().windows

    assert (stored.until, stored.line.name) == (window.round_one_opens, window.name)
    assert stored.wait.startswith("opens ")
    wait = {"for": "peer", "text": "waits for beta since 40 s (unreachable)", "until": 1_800_000_900.0}
    row = {"window": str(window.window_id), "name": window.name, "state": "agreeing", "wait": wait}
    process.say("", windows={"windows": [row], "quarantined": {"ef" * 32: "frames: <cut>"}})
    seen = looker.look()
    assert [(one.wait, one.until) for one in seen.windows] == [(wait["text"], wait["until"])]
    text = parts(seen)["windows"]
    assert "waits for beta since 40 s (unreachable)" in text
    assert "in quarantine: frames: &lt;cut&gt;" in text
    await network.stop_all()


async def test_a_process_that_does_not_answer_or_is_another_is_said_to(
    looker: Looker, process: Process, network: Network
) -> None:
    for pages in (None, {}, {"/metrics": b"<html>"}, {"/metrics": b"other_metric 1\n"}):
        process.pages = pages

        seen = looker.look()

        assert seen.runs is False
        assert [one.rule.name for one in seen.alerts if one.firing] == ["FleetcountDown"]
        assert "does not answer" in parts(seen)["state"]
        assert [peer.answers for peer in seen.peers] == [None]
    await network.stop_all()


async def test_what_fails_is_in_the_first_line(looker: Looker, process: Process, network: Network) -> None:
    checks = [{"name": "store", "ok": True, "reason": ""}, {"name": "peers", "ok": False, "reason": "beta: <silent>"}]
    metrics = 'fleetcount_peer_reachable{peer="beta"} 0\nfleetcount_certificate_days_left{certificate="own"} 2\n'
    process.say(metrics + 'fleetcount_clock_skew_seconds{peer="beta"} -1.5\n', readyz={"checks": checks})

    found = parts(looker.look())

    assert "not ready: peers; alerts: FleetcountCertificateEnds, FleetcountCertificateEndsSoon" in found["state"]
    assert "beta: &lt;silent&gt;" in found["checks"]
    assert "-1.5 s" in found["peers"]
    assert "counts after 5 min" in found["alerts"]
    await network.stop_all()


async def test_a_console_changes_no_byte_of_a_store_and_survives_its_loss(
    looker: Looker, process: Process, network: Network, configured: AggregatorConfig
) -> None:
    await network.ask()
    await network.stop_all()
    file = configured.store_place.file
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    before = file.read_bytes()

    assert len(looker.look().windows) == 1
    assert file.read_bytes() == before
    file.rename(file.with_name("away"))
    assert "does not exist" in parts(looker.look())["state"]
    file.with_name("away").rename(file)
    assert len(looker.look().windows) == 1


def test_a_store_that_cannot_be_read_is_one_line(configured: AggregatorConfig, process: Process) -> None:
    file, looker = configured.store_place.file, Looker(configured, process.ask)
    for content, said in ((None, "does not exist"), (b"no database" * 100, "cannot be read"), (b"", "cannot be read")):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(StoreError, match=said) as refused:
            looker.check()
        assert "\n" not in str(refused.value)


async def test_a_store_of_a_later_version_is_refused(
    looker: Looker, network: Network, configured: AggregatorConfig
) -> None:
    await network.stop_all()
    with sqlite3.connect(configured.store_place.file) as database:
        database.execute("UPDATE schema_version SET version = 900")
    database.close()

    with pytest.raises(StoreError, match="version 900"):
        looker.check()


@pytest.mark.processes
def test_a_store_in_postgresql_is_read_in_a_transaction_that_may_not_write(
    configured: AggregatorConfig, process: Process, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = StorePlace(directory=configured.store_place.directory, url=postgres_url)
    open_engine(place).close()
    monkeypatch.setattr(AggregatorConfig, "store_place", place)
    looker = Looker(configured, process.ask)

    looker.check()

    seen = looker.look()
    assert (seen.trouble, list(seen.windows)) == ("", [])
    assert "search_path" not in body(seen)
    with pytest.raises(StoreError, match="read-only transaction"), reading(place) as database:
        database.execute("DELETE FROM ledger")


async def test_question_and_ledger_are_shown(looker: Looker, process: Process, network: Network) -> None:
    question = await network.stand()
    process.pages = None

    found = parts(looker.look())

    assert question.name in found["questions"]
    assert "0 of 5" in found["questions"]
    assert "may lose epsilon" in found["ledger"]
    assert f'<th scope="row">{question.signal.casefold()}</th>' in found["ledger"]
    assert "Share of the budget" in found["ledger"]
    await network.stop_all()


async def test_a_window_takes_its_share_of_its_signals_budget_while_it_is_open_and_after(
    looker: Looker, process: Process, network: Network, configured: AggregatorConfig
) -> None:
    window = await network.ask()
    process.pages = None
    [question] = network.core(0).context.questions.values()
    charge = question_charge(question.asked)
    [(signal, spent)] = spent_from(window.round_one_opens, [charge], Limits()).items()

    seen = looker.look()

    assert dict(seen.spent) == {signal: spent}
    found = re.search(r"<td>([\d.]+) of 700</td><td>0\.1 %</td>", parts(seen)["ledger"])
    assert found is not None
    assert spent <= Decimal(found[1]) < spent + Decimal("0.001")
    later = charge.units[0].last + configured.limits.budget_period_s
    assert dict(status.read_spent(configured.store_place, Limits(), later - 1)) == {signal: spent}
    assert dict(status.read_spent(configured.store_place, Limits(), later)) == {}
    await network.stop_all()


def test_how_often_is_coarse() -> None:
    assert how_often(0, seen_s=299) == "not since this console began to look"
    words = [how_often(rate) for rate in (0, 0.1, 1, 1.1, 60, 61, 10_000)]

    assert words == ["not in the last 5 minutes", *["now and then"] * 2, *["every minute"] * 2, *["every second"] * 2]
    assert looking._METRICS.isdisjoint({"fleetcount_peer_calls_total"})

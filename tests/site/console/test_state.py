"""What a console takes over from a store and from pages, and above all what it does not: any number of reports."""

import re
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
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
from fleetcount_site.console.state import StateReader
from fleetcount_site.console.tables import body, parts

from tests.site.console.conftest import Process
from tests.support.aggregators import Network, TestDevice

SECRET = 8731
"""A number that stands nowhere but where reports, or refused ones, are counted."""


def digits_of(text: str) -> set[str]:
    """Return the numbers of a page, without those of ids."""
    return set(re.findall(r"\d+", re.sub(r"<code>[^<]*</code>", "", text)))


async def test_no_number_of_reports_is_on_the_page(
    reader: StateReader, process: Process, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: Mapping[RejectReason, int] = {RejectReason.TOO_LATE: SECRET, RejectReason.MALFORMED: SECRET}
    monkeypatch.setattr(status.sql, "read_rejections", lambda *_: refused)
    await network.ask()
    process.show(network.core(0).context)
    process.pages = process.pages and process.pages | {
        "/windows": process.pages["/windows"].replace(b'"more"', b'"reports": 8731, "more"')
    }

    text = body(reader.read())

    assert str(SECRET) not in text
    assert not {number for number in digits_of(text) if abs(int(number) - SECRET) <= 1 or int(number) == 2 * SECRET}
    assert "malformed, too_late" in text
    await network.stop_all()


async def test_as_many_reports_as_there_are_leave_the_same_page(
    reader: StateReader, process: Process, network: Network
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
        pages.append(parts(reader.read()))

    assert pages[0] == pages[1] == pages[2]
    assert "collecting" in pages[0]["windows"]
    await network.stop_all()


async def test_a_window_says_why_it_waits_and_until_when(
    reader: StateReader, process: Process, network: Network
) -> None:
    window = await network.ask()
    process.pages = None

    [stored] = reader.read().windows

    assert (stored.until, stored.line.name) == (window.round_one_opens, window.name)
    assert stored.wait.startswith("opens ")
    wait = {"for": "peer", "text": "waits for beta since 40 s (unreachable)", "until": 1_800_000_900.0}
    row = {"window": str(window.window_id), "name": window.name, "state": "agreeing", "wait": wait}
    process.say(windows={"windows": [row], "quarantined": {"ef" * 32: "frames: <cut>"}})
    state = reader.read()
    assert [(one.wait, one.until) for one in state.windows] == [(wait["text"], wait["until"])]
    text = parts(state)["windows"]
    assert "waits for beta since 40 s (unreachable)" in text
    assert "frames: &lt;cut&gt;" in text
    await network.stop_all()


async def test_a_process_that_does_not_answer_or_is_another_is_said_to(
    reader: StateReader, process: Process, network: Network
) -> None:
    for pages in (None, {}, {"/readyz": b"<html>"}, {"/readyz": b"[]"}, {"/readyz": b"{}"}):
        process.pages = pages

        state = reader.read()

        assert state.answers is False
        assert "does not answer" in parts(state)["state"]
    await network.stop_all()


async def test_what_fails_is_in_the_first_line(reader: StateReader, process: Process, network: Network) -> None:
    process.say({"name": "store", "ok": True}, {"name": "peers", "ok": False, "reason": "beta: <silent>"})

    found = parts(reader.read())

    assert "It runs; not ready: peers." in found["state"]
    assert "beta: &lt;silent&gt;" in found["checks"]
    await network.stop_all()


async def test_a_console_changes_no_byte_of_a_store_and_survives_its_loss(
    reader: StateReader, process: Process, network: Network, configured: AggregatorConfig
) -> None:
    await network.ask()
    await network.stop_all()
    file = configured.store_place.file
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    before = file.read_bytes()

    assert len(reader.read().windows) == 1
    assert file.read_bytes() == before
    file.rename(file.with_name("away"))
    assert "does not exist" in parts(reader.read())["state"]
    file.with_name("away").rename(file)
    assert len(reader.read().windows) == 1


def test_a_store_that_cannot_be_read_is_one_line(configured: AggregatorConfig, process: Process) -> None:
    file, reader = configured.store_place.file, StateReader(configured, process.ask)
    for content, said in ((None, "does not exist"), (b"no database" * 100, "cannot be read"), (b"", "cannot be read")):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(StoreError, match=said) as refused:
            reader.check()
        assert "\n" not in str(refused.value)


async def test_a_store_of_a_later_version_is_refused(
    reader: StateReader, network: Network, configured: AggregatorConfig
) -> None:
    await network.stop_all()
    with sqlite3.connect(configured.store_place.file) as database:
        database.execute("UPDATE schema_version SET version = 900")
    database.close()

    with pytest.raises(StoreError, match="version 900"):
        reader.check()


@pytest.mark.processes
def test_a_store_in_postgresql_is_read_in_a_transaction_that_may_not_write(
    configured: AggregatorConfig, process: Process, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = StorePlace(directory=configured.store_place.directory, url=postgres_url)
    open_engine(place).close()
    monkeypatch.setattr(AggregatorConfig, "store_place", place)
    reader = StateReader(configured, process.ask)

    reader.check()

    state = reader.read()
    assert (state.store_error, list(state.windows)) == ("", [])
    assert "search_path" not in body(state)
    with pytest.raises(StoreError, match="read-only transaction"), reading(place) as database:
        database.execute("DELETE FROM ledger")


async def test_question_and_ledger_are_shown(reader: StateReader, process: Process, network: Network) -> None:
    question = await network.stand()
    process.pages = None

    found = parts(reader.read())

    assert question.name in found["questions"]
    assert "0 of 5" in found["questions"]
    assert "may lose epsilon" in found["ledger"]
    assert f'<th scope="row">{question.signal.casefold()}</th>' in found["ledger"]
    assert "Share of the budget" in found["ledger"]
    await network.stop_all()


async def test_a_window_takes_its_share_of_its_signals_budget_while_it_is_open_and_after(
    reader: StateReader, process: Process, network: Network, configured: AggregatorConfig
) -> None:
    window = await network.ask()
    process.pages = None
    [question] = network.core(0).context.questions.values()
    charge = question_charge(question.asked)
    [(signal, spent)] = spent_from(window.round_one_opens, [charge], Limits()).items()

    state = reader.read()

    assert dict(state.spent) == {signal: spent}
    found = re.search(r"<td>([\d.]+) of 700</td><td>0\.1 %</td>", parts(state)["ledger"])
    assert found is not None
    assert spent <= Decimal(found[1]) < spent + Decimal("0.001")
    more = parts(replace(state, spent={signal: Decimal("350.1001")}))["ledger"]
    assert "<td>350.101 of 700</td><td>50.1 %</td>" in more, "never less than was spent"
    later = charge.units[0].last + configured.limits.budget_period_s
    assert dict(status.read_spent(configured.store_place, Limits(), later - 1)) == {signal: spent}
    assert dict(status.read_spent(configured.store_place, Limits(), later)) == {}
    await network.stop_all()

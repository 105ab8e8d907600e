"""How long what has ended is kept, what it is answered meanwhile, and what an aggregator with years behind it holds."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from fleetcount_aggregator.durable_steps import move
from fleetcount_aggregator.intake.device_service import UnknownWindowError
from fleetcount_aggregator.memory.windows import broker_unreachable
from fleetcount_aggregator.storage.ended import FIRST_KEY, ArchivedWindow, archive_windows, read_archived
from fleetcount_aggregator.storage.row_types import LedgerRow, Lifecycle, WindowChange, WindowRow
from fleetcount_aggregator.storage.rows import read_ledger, read_ledger_rows
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.windows.retention import Retention
from fleetcount_protocol.errors import QuestionError, RejectReason
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_protocol.messages import AbortWindow, FinishedRecord, Receipt, Refusal, WindowState
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.release.record import decode_record
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import START, Network, TestDevice, answer_all

COINS = [(0, 1), (0, 2), (3, 3), (0, 0), (0, 5)]
KEEP_S = 3600
DAY_S = 86_400
MANY = 150
WINDOWS = ("round_one_opens", "round_one_closes", "round_two_closes", "expiry")


def network_of(directory: Path | None = None, **limits: object) -> Network:
    network = Network(2, directory=directory)
    network.limits = replace(network.limits, keep_digests_s=KEEP_S, **limits)  # type: ignore[arg-type]
    return network


async def released(network: Network) -> tuple[Window, list[TestDevice], FinishedRecord]:
    """Ask a window, let it end everywhere, and return it with its devices and its record."""
    window = await network.ask(expiry=START + 40_000)
    devices = await answer_all(network, window, COINS)
    await network.run_to_the_end(window)
    answer = await network.core(0).service.release(window.window_id)
    record = FinishedRecord(window_id=window.window_id, record=answer.record, signatures=answer.signatures)
    return window, devices, record


async def pass_to(network: Network, moment: int) -> None:
    """Let time pass, and everybody look at what has ended."""
    await network.advance_to(moment)
    for _ in range(3):
        await network.look_after_all()


async def rests(network: Network, rest: Lifecycle) -> list[list[WindowId]]:
    seats = range(len(network.seats))
    return [
        [row.window_id for row in await network.core(one).context.store.read(read_archived, rest, FIRST_KEY, 10**11)]
        for one in seats
    ]


async def test_what_a_release_purges_retention_does_not_purge_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of()
    await network.start_all()
    window = await network.ask(expiry=START + 40_000)
    windows = network.core(0).context.windows
    await move(windows, window.window_id, WindowState.ABORTED)
    purge, purged = windows.store.purge, list[WindowId]()

    async def noted(window_id: WindowId) -> None:
        purged.append(window_id)
        await purge(window_id)

    monkeypatch.setattr(windows.store, "purge", noted)
    await asyncio.gather(windows.purge(window.window_id), windows.purge(window.window_id))

    assert purged == [window.window_id]


@pytest.mark.parametrize("durable", [False, True])
async def test_the_same_bytes_get_the_same_receipt_until_the_digests_go_and_then_a_reason(
    durable: bool, tmp_path: Path
) -> None:
    network = network_of(tmp_path if durable else None)
    await network.start_all()
    window, devices, record = await released(network)
    late = devices[0].second(*COINS[0])
    first = await devices[0].send(late)

    await pass_to(network, window.expiry + KEEP_S - 1)
    before = await devices[0].send(late)
    at_rest = await rests(network, Lifecycle.ARCHIVED)
    await pass_to(network, window.expiry + KEEP_S + 61)
    after = await devices[0].send(late)

    assert at_rest == [[window.window_id]] * 2
    assert await rests(network, Lifecycle.RETIRED) == [[window.window_id]] * 2
    assert all(isinstance(one, Receipt) for one in first)
    assert before == first
    assert [one.reason for one in after if isinstance(one, Refusal)] == [RejectReason.TOO_LATE] * len(first)
    assert not list(tmp_path.glob("*.digests"))
    answer = await network.core(0).service.release(window.window_id)
    assert (answer.state, answer.record, answer.signatures) == (WindowState.RELEASED, record.record, record.signatures)
    assert await network.core(1).helper.deliver_record(AggregatorId("alpha"), record) is WindowState.RELEASED
    status = await network.core(1).helper.status(window.window_id, AggregatorId("alpha"))
    assert (status.state, status.set_digest is not None, status.ledger_rows) == (WindowState.RELEASED, True, 1)
    await network.stop_all()


async def test_a_forgotten_window_is_unknown_and_its_debit_stays_counted() -> None:
    network = network_of(keep_records_s=31 * DAY_S)
    await network.start_all()
    window, _, _ = await released(network)
    over = window.expiry + KEEP_S + 31 * DAY_S

    await pass_to(network, over - 61)
    await pass_to(network, over - 1)
    kept = await network.core(0).service.release(window.window_id)
    await pass_to(network, over + 61)

    assert kept.state is WindowState.RELEASED
    for position in range(2):
        store = network.core(position).context.store
        with pytest.raises(UnknownWindowError):
            await network.core(position).service.release(window.window_id)
        assert not await store.read(read_ledger)
        assert await store.read(read_ledger_rows) == 1
    later = {name: getattr(window, name) + over + 1000 - START for name in WINDOWS}
    again = await network.ask(**later)
    await network.come_to(again)
    context, beta = network.core(0).context, AggregatorId("beta")
    shown = await context.peers.shown_ledger(beta, again.window_id, context.peers[beta])
    assert shown == (1, 1)
    await context.peers.note_ledger_rows(beta, shown)


async def test_a_window_whose_outcome_a_broker_keeps_waits_for_the_broker() -> None:
    network = network_of()
    await network.start_all()
    withdrawn: list[WindowId] = []

    async def withdraw(window_id: WindowId) -> bool:
        withdrawn.append(window_id)
        return True

    network.core(0).context.windows.outcomes.withdraw = broker_unreachable
    window, _, _ = await released(network)
    await pass_to(network, window.expiry + KEEP_S + 61)
    waiting = await rests(network, Lifecycle.RETIRED)
    network.core(0).context.windows.outcomes.withdraw = withdraw
    await pass_to(network, window.expiry + KEEP_S + 161)

    assert waiting == [[], [window.window_id]]
    assert await rests(network, Lifecycle.RETIRED) == [[window.window_id]] * 2
    assert withdrawn == [window.window_id]


async def test_an_open_window_costs_nothing_until_it_is_due() -> None:
    network = network_of()
    await network.start_all()
    window = await network.ask(
        round_one_opens=START + 5000, round_one_closes=START + 5010, round_two_closes=START + 5020
    )
    await network.come_to(window)

    resting = [network.core(one).scheduler.pending() for one in range(2)]
    await network.advance_to(START + 5000)
    due = [[one.window_id for one in network.core(position).scheduler.pending()] for position in range(2)]

    assert resting == [[], []]
    assert due == [[window.window_id]] * 2


async def test_a_window_that_moves_while_it_rests_is_looked_at_at_once() -> None:
    network = network_of()
    await network.start_all()
    window = await network.ask(
        round_one_opens=START + 5000, round_one_closes=START + 5010, round_two_closes=START + 5020
    )
    await network.come_to(window)
    before = network.core(1).scheduler.pending()

    await network.core(1).helper.abort(AggregatorId("alpha"), abort_of(window))

    assert before == []
    assert [one.window_id for one in network.core(1).scheduler.pending()] == [window.window_id]


@pytest.mark.parametrize("purged", [False, True])
async def test_a_damaged_row_of_an_ended_window_keeps_no_other_from_its_rest(tmp_path: Path, purged: bool) -> None:
    network = network_of(tmp_path)
    core = await network.start(1)
    await network.start(0)
    both = [(await network.ask(name=name, values=2)).window_id for name in ("damaged", "whole")]
    for window_id in both:
        await move(core.context.windows, window_id, WindowState.ABORTED)
        core.context.windows._ended[window_id] = core.context.windows[window_id]
        if purged:
            await core.context.windows.purge(window_id)
    store = core.context.store
    assert isinstance(store, Store)
    await store.write(
        lambda db: db.execute("UPDATE windows SET abort_reason = 'other' WHERE window_id = ?", (both[0],))
    )

    retention = Retention(core.context.windows, core.context.questions)
    for _ in range(2):
        await retention.look()

    assert [row.window_id for row in await store.read(read_archived, Lifecycle.ARCHIVED, FIRST_KEY, 10**11)] == both[1:]
    assert list(core.context.windows.quarantined) == both[:1]
    await network.stop_all()


def abort_of(window: Window) -> AbortWindow:
    return AbortWindow(window_id=window.window_id, reason="install_failed")


async def fill(network: Network, count: int, signal: str) -> list[Window]:
    """Put released windows of years ago to rest in the leader's store, one an hour, as if each had ended in its
    turn.
    """
    store = network.core(0).context.store
    base = network.window(signal=signal)
    windows: list[Window] = []
    for number in range(count):
        moment = START - 3600 * (count - number)
        window = replace(
            base,
            round_one_opens=moment,
            round_one_closes=moment + 10,
            round_two_closes=moment + 20,
            expiry=moment + DAY_S,
        )
        windows.append(window)
        await store.decide_windows(
            (),
            WindowRow(
                window_id=window.window_id,
                canonical=window.canonical,
                verify_key=b"",
                state=WindowState.RELEASED,
                abort_reason="",
                installed_at=moment,
            ),
        )
        debit = LedgerRow(
            window_id=window.window_id, signal=signal, opens=moment, closes=moment + 20, epsilon="1", debited_at=moment
        )
        await store.apply(WindowChange(window_id=window.window_id, required=frozenset(WindowState), debit=debit))
        store.data_keys.destroy(window.window_id)
    await store.write(
        archive_windows, [ArchivedWindow(window_id=one.window_id, expiry=one.expiry, led=True) for one in windows]
    )
    return windows


async def test_a_start_after_years_loads_nothing() -> None:
    network = network_of()
    await network.start_all()
    windows = await fill(network, MANY, "Vehicle.Speed")

    context = (await network.start(0)).context
    await network.look_after_all()
    [old, *_], newest = windows, windows[-1]
    states = [await context.windows.state_of(one.window_id) for one in (old, newest)]

    assert (context.windows, context.windows.states, context.windows.live) == ({}, {}, {})
    assert states == [WindowState.RELEASED] * 2


async def test_so_many_questions_may_be_open_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetcount_aggregator.windows.question_install.MAX_QUESTIONS", 2)
    network = network_of()
    await network.start_all()
    for one in ("A", "B"):
        await network.ask(signal=f"Vehicle.{one}")

    with pytest.raises(QuestionError, match="2 questions are not over yet; no more are taken"):
        await network.ask(signal="Vehicle.C")
    assert len(network.core(0).service.offered()) == 2
    await network.advance_to(START + 500)
    later = {name: START + 510 + 10 * place for place, name in enumerate(WINDOWS)} | {"expiry": START + 90_000}
    assert (await network.ask(signal="Vehicle.C", **later)).signal == "Vehicle.C"


async def test_a_question_that_is_over_leaves_memory_when_no_budget_looks_back_to_it() -> None:
    network = network_of()
    await network.start_all()
    question = await network.stand()
    window = window_at(question, 0)
    await network.advance_to(window.round_one_opens)
    await network.look_after_all()
    await answer_all(network, window, COINS)
    await network.run_to_the_end(window)
    await pass_to(network, question.schedule.end)
    await pass_to(network, question.schedule.end + 1000)
    over = question.schedule.end + network.limits.budget_period_s

    await pass_to(network, over - 1)
    before = [question.question_id in network.core(one).context.questions for one in range(2)]
    await pass_to(network, over + 61)
    after = [network.core(one).context.questions for one in range(2)]
    answer = await network.core(0).service.release(window.window_id)
    context = (await network.start(0)).context

    assert before == [True, True]
    assert after == [{}, {}]
    assert decode_record(answer.record).window.window_id == window.window_id
    assert (context.questions, context.windows) == ({}, {})
    network.limits = replace(network.limits, budget_period_s=10 * network.limits.budget_period_s)
    assert question.question_id in (await network.start(0)).context.questions, "a longer period looks back further"

"""What an aggregator keeps in memory of ended windows: nothing; and what it does with windows that do not decode."""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sized
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.storage.ended import ArchivedWindow, archive_windows
from fleetcount_aggregator.storage.row_types import DecidedWindow, StepRow, WindowChange, WindowRow
from fleetcount_aggregator.storage.rows import read_window
from fleetcount_aggregator.storage.store import Store
from fleetcount_protocol.errors import DecodeError, PeerProblem, QuestionError
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_protocol.messages import FinishedRecord, Receipt, WindowState
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.release.record import decode_record
from fleetcount_protocol.window.fields import Release, ReleaseKind

from tests.support.aggregators import Network, TestDevice, answer_all
from tests.support.nightly import NIGHTLY

COINS = [(0, 1), (0, 2), (3, 3), (0, 0), (0, 5)]
MANY = 2_100 if NIGHTLY else 400
FAINT = Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1, 1000), level=Fraction(19, 20))
LIMITS = Limits(smallest_min_batch_size=2, give_up_s=600, first_retry_s=1, longest_retry_s=60, total_epsilon=None)


async def run_window(network: Network, question: Question, index: int) -> list[TestDevice]:
    """Let devices answer a window and let it end everywhere; return the devices."""
    window = window_at(question, index)
    await network.advance_to(window.round_one_opens)
    await network.look_after_all()
    devices = await answer_all(network, window, COINS, offset=10 * index)
    await network.run_to_the_end(window)
    return devices


async def fill(network: Network, question: Question, position: int, last: int) -> None:
    """Put ended windows up to `last` into a store, as if they had been released and delivered in their turn."""
    seat, context = network.seats[position], network.core(position).context
    first = context.questions[question.question_id].following
    await network.stop(position)
    store = seat.open_store()
    released = frozenset({WindowState.RELEASED})
    writes: list[Coroutine[Any, Any, object]] = []
    resting: list[ArchivedWindow] = []
    for index in range(first, last + 1):
        window = window_at(question, index)
        row = WindowRow(
            window_id=window.window_id,
            canonical=window.canonical,
            verify_key=b"",
            state=WindowState.RELEASED,
            abort_reason="",
            installed_at=window.round_one_opens,
        )
        resting.append(ArchivedWindow(window_id=window.window_id, expiry=window.expiry, led=position == 0))
        decided = DecidedWindow(question_id=question.question_id, index=index, window_id=window.window_id)
        writes.append(store.decide_windows([decided], row))
        for name in ("sign", "delivered") if position == 0 else ("sign",):
            step = StepRow(name=name, request=b"the record", answer=b"")
            writes.append(store.apply(WindowChange(window_id=window.window_id, required=released, step=step)))
    for at in range(0, len(writes), 1000):
        await asyncio.gather(*writes[at : at + 1000])
    await store.write(archive_windows, resting)
    await store.close()


async def finished(network: Network, window_id: WindowId) -> FinishedRecord:
    answer = await network.core(0).service.release(window_id)
    return FinishedRecord(window_id=window_id, record=answer.record, signatures=answer.signatures)


async def test_thousands_of_ended_windows_are_not_loaded_and_answer_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(2, directory=tmp_path, limits=LIMITS)
    await network.start_all()
    schedule = replace(network.question()[0].question.schedule, every_s=20, windows=MANY + 2)
    question = await network.stand(schedule=schedule, release=FAINT)
    devices = await run_window(network, question, 0)
    for position in range(2):
        await fill(network, question, position, MANY)
    await network.advance_to(schedule.closes(MANY))
    reads: Counter[WindowId] = Counter()
    read = Store.read

    async def counted(store: Store, work: Any, *args: Any, **named: Any) -> Any:
        if work is read_window:
            reads[args[0]] += 1
        return await read(store, work, *args, **named)

    monkeypatch.setattr(Store, "read", counted)

    await network.start_all()
    at_start = sum(reads.values())
    old = window_at(question, 0).window_id
    record = await finished(network, old)

    for position in range(2):
        context = network.core(position).context
        assert len(context.windows) == len(context.windows.states) < 20, "only the windows that had not ended"
        assert max(largest_in(context), largest(context.questions[question.question_id])) < 20
    assert at_start < 20
    assert decode_record(record.record).window.window_id == old
    assert await network.core(1).helper.deliver_record(AggregatorId("alpha"), record) is WindowState.RELEASED
    assert (await network.core(0).helper.status(old, AggregatorId("beta"))).state is WindowState.RELEASED
    [again, *_] = await devices[0].send(devices[0].second(*COINS[0]))
    assert isinstance(again, Receipt)
    await run_window(network, question, MANY + 1)
    latest = decode_record((await finished(network, window_at(question, MANY + 1).window_id)).record)
    assert latest.chain is not None
    assert (latest.chain.previous_index, latest.chain.missing) == (MANY, ())
    await network.stop_all()


def largest(owner: object) -> int:
    """Return how much the fullest container of an object holds."""
    return max(len(one) for one in vars(owner).values() if isinstance(one, Sized) and not isinstance(one, bytes))


def largest_in(context: Context) -> int:
    """Return how much the fullest container of what is in memory holds."""
    return max(map(largest, (context.windows, context.windows.sessions, context.questions, context.peers)))


async def test_what_a_running_question_holds_does_not_grow_with_its_windows(tmp_path: Path) -> None:
    """Two thousand windows are decided about without a start in between; the next record names every one of them."""
    network = Network(2, directory=tmp_path, limits=LIMITS)
    await network.start_all()
    schedule = replace(network.question()[0].question.schedule, every_s=20, windows=MANY + 2)
    question = await network.stand(schedule=schedule, release=FAINT)
    await run_window(network, question, 0)
    contexts = [network.core(position).context for position in range(2)]

    await network.advance_to(schedule.closes(MANY))
    await network.look_after_all()
    held = [(largest_in(one), largest(one.questions[question.question_id])) for one in contexts]
    with pytest.raises(PeerRefusalError) as missed:
        await network.core(1).helper._of_leader(AggregatorId("alpha"), window_at(question, 7).window_id)
    await run_window(network, question, MANY + 1)

    assert [one.questions[question.question_id].following for one in contexts] == [MANY + 2] * 2
    assert max(max(one) for one in held) < 20
    assert missed.value.problem is PeerProblem.ABORTED
    latest = decode_record((await finished(network, window_at(question, MANY + 1).window_id)).record)
    assert latest.chain is not None
    assert latest.chain.previous_index == 0
    assert [one.index for one in latest.chain.missing] == list(range(1, MANY + 1))
    await network.stop_all()


async def test_windows_that_end_leave_memory_and_come_back_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetcount_aggregator.memory.windows._MOST_ENDED", 1)
    network = Network(2)
    await network.start_all()
    question = await network.stand()
    for index in range(4):
        await run_window(network, question, index)
    ids = [window_at(question, index).window_id for index in range(4)]
    held = [[one for one in ids if one in network.core(position).context.windows] for position in range(2)]

    states = [
        await network.core(1).helper.deliver_record(AggregatorId("alpha"), await finished(network, one)) for one in ids
    ]

    assert held == [[ids[3]]] * 2
    assert states == [WindowState.RELEASED] * 4
    assert [one for one in ids if one in network.core(1).context.windows] == [ids[3]]
    assert not network.core(0).scheduler._delivered
    assert [one for one, _ in network.core(0).context.windows.outcomes.since(0)] == ids


async def test_a_window_whose_bytes_are_damaged_is_not_passed_over(tmp_path: Path) -> None:
    network = Network(2, directory=tmp_path)
    await network.start_all()
    window = await network.ask()
    context = network.core(0).context
    row = await context.store.read(read_window, window.window_id)
    assert row is not None
    other = WindowId(bytes(32))
    await context.store.decide_windows(
        (), replace(row, window_id=other, canonical=row.canonical.replace(b"Vehicle.C", b"Vehicle C"))
    )

    with pytest.raises(DecodeError, match="signal is 'Vehicle CurrentLocation'"):
        await context.windows.load(context.questions)
    await network.stop_all()


async def test_a_window_whose_debit_still_counts_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetcount_protocol.window.window.MIN_BATCH_SIZE", 1)
    network = Network(2, directory=tmp_path, limits=replace(LIMITS, smallest_min_batch_size=1))
    await network.start_all()
    window = await network.ask(min_batch_size=1)
    await answer_all(network, window, COINS)
    await network.run_to_the_end(window)
    await network.stop_all()
    monkeypatch.undo()

    await network.start_all()
    later = {name: getattr(window, name) + 900 for name in ("round_one_opens", "round_one_closes", "round_two_closes")}

    with pytest.raises(QuestionError, match=r"what was charged is not known, since in the store .*question"):
        await network.ask(**later)
    await network.stop_all()

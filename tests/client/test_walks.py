"""A device follows a drill-down from signed record to signed record; where its place was left out it says "none"."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_client.contact import OutcomeKind
from fleetcount_client.device import Device
from fleetcount_client.memory_transport import MemoryTransport
from fleetcount_client.policy import JoinRule
from fleetcount_client.question_rows import WalkRecords
from fleetcount_client.transport import Unreachable
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_mechanisms.statement import epsilon_of
from fleetcount_protocol.errors import SignatureError
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.messages import ReleaseAnswer, WindowState
from fleetcount_protocol.question.fields import DrillDown
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.release.chain import ChainLink, MissingWindow
from fleetcount_protocol.release.record import ReleaseRecord, decode_record, sign_record
from fleetcount_protocol.window.domain import Prefixes
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.window.window import Window

from tests.client.deployment import Deployment, open_policy
from tests.support.protocol_samples import record

PLACE = 0b101_10_011 << 24
Releases = dict[WindowId, ReleaseAnswer]


def walking(world: Deployment, **changes: object) -> Question:
    """Return two walks over levels of 3, 5 and 8 bits, one step every five minutes."""
    fields: dict[str, object] = {
        "domain": Prefixes(bits=3, cells=tuple(range(8))),
        "mode": Mode.DIRECT,
        "mechanism": None,
        "drill_down": DrillDown(levels=(3, 5, 8), threshold=40, most_survivors=2),
        "schedule": replace(world.question().schedule, windows=6, round_two_s=0),
    }
    return world.question(**(fields | changes))


def released(world: Deployment, window: Window, *busy: int, signers: int = 2) -> ReleaseAnswer:
    """Return the record of a step in which these cells are busy, signed by all."""
    assert isinstance(window.domain, Prefixes)
    missing = tuple(MissingWindow(index=index, reason="paused") for index in range(window.question.index))
    made = record(window, chain=ChainLink(previous=None, previous_index=None, missing=missing))
    values = {window.domain.cells.index(cell) + 1 for cell in busy}
    cells = tuple(replace(cell, estimate=Fraction(50 if cell.value in values else 3)) for cell in made.cells)
    made = replace(made, cells=cells)
    keys = [world.signing_keys[one.aggregator_id] for one in window.aggregators]
    signatures = [sign_record(made, keys[min(position, signers - 1)]) for position in range(len(keys))]
    return ReleaseAnswer(state=WindowState.RELEASED, record=made.canonical, signatures=tuple(signatures))


def driven(world: Deployment, path: Path, question: Question, releases: Releases, **options: object) -> Device:
    world.offers = [world.offer(question)]
    transport = MemoryTransport(world.intakes, lambda: tuple(world.offers), releases)
    policy = open_policy(allow_direct=True, total_epsilon=Fraction(20))
    fields: dict[str, object] = {"transport": transport, "policy": policy, "truth": PLACE, "join": JoinRule.AUTO}
    return world.device(path / "device.db", **(fields | options))  # type: ignore[arg-type]


def said(world: Deployment, window: Window) -> int | None:
    """Return the value a device has told in a direct window, None if nothing."""
    for report_id in world.report_ids(window, 0):
        return world.decoded(window, report_id).index(1)
    return None


async def test_a_device_follows_the_records_and_answers_none_to_the_end_of_a_walk_that_left_it(tmp_path: Path) -> None:
    world = Deployment()
    question = walking(world)
    with_it = [window_at(question, 0), window_at(question, 1, (0b101,)), window_at(question, 2, (0b10110,))]
    without = [window_at(question, 3), window_at(question, 4, (0b001,)), window_at(question, 5, (0b00111,))]
    releases = {
        with_it[0].window_id: released(world, with_it[0], 0b101),
        with_it[1].window_id: released(world, with_it[1], 0b10110),
        without[0].window_id: released(world, without[0], 0b001),
        without[1].window_id: released(world, without[1], 0b00111),
    }
    device = driven(world, tmp_path, question, releases)

    outcomes = await device.answer()

    assert [one.kind for one in outcomes] == [OutcomeKind.DELIVERED] * 6
    assert [said(world, window) for window in with_it] == [0b101 + 1, 0b10 + 1, 0b011 + 1]
    assert [said(world, window) for window in without] == [0b101 + 1, 0, 0]
    assert len(device.spool.charges()) == 6


async def test_the_whole_question_is_reserved_at_joining_every_level_a_window(tmp_path: Path) -> None:
    world = Deployment()
    question = walking(world)
    one = epsilon_of(question.design)
    assert one is not None
    little = open_policy(allow_direct=True, total_epsilon=Fraction(one) * 11 / 2)
    device = driven(world, tmp_path, question, {}, policy=little)

    [refused] = await device.answer()
    assert refused.rule == "total_epsilon"
    assert "the limit is" in device.questions.rows()[0].reason
    enough = driven(world, tmp_path / "..", question, {})
    enough.questions.take(world.offers)
    assert [charge.asked_at for charge in enough.spool.charges()] == [question.schedule.opens(n) for n in range(6)]


def unsigned(world: Deployment, first: Window) -> ReleaseAnswer:
    return released(world, first, 0b101, signers=1)


def another(world: Deployment, first: Window) -> ReleaseAnswer:
    return released(world, replace(first, min_batch_size=11), 0b101)


def damaged(world: Deployment, first: Window) -> ReleaseAnswer:
    good = released(world, first, 0b101)
    return replace(good, record=good.record[:-1])


def of_another_walk(world: Deployment, first: Window) -> ReleaseAnswer:
    question = walking(world)
    assert window_at(question, 0) == first
    return released(world, window_at(question, 3), 0b101)


@pytest.mark.parametrize("spoil", [unsigned, another, damaged, of_another_walk])
async def test_a_record_that_not_all_have_signed_for_this_very_window_leads_nowhere(
    tmp_path: Path, spoil: Callable[[Deployment, Window], ReleaseAnswer]
) -> None:
    world = Deployment()
    question = walking(world)
    first = window_at(question, 0)
    device = driven(world, tmp_path, question, {first.window_id: spoil(world, first)})

    outcomes = await device.answer()

    assert [one.window_id for one in outcomes] == [first.window_id, window_at(question, 3).window_id]
    assert said(world, window_at(question, 1, (0b101,))) is None


async def test_a_record_of_an_earlier_walk_leads_no_later_one(tmp_path: Path) -> None:
    """It is signed by all and not from the future: only that it is of another window speaks against it."""
    world = Deployment()
    question = walking(world)
    earlier, later = window_at(question, 0), window_at(question, 3)
    device = driven(world, tmp_path, question, {later.window_id: released(world, earlier, 0b101)})

    await device.answer()

    assert said(world, later) == 0b101 + 1
    assert said(world, window_at(question, 4, (0b101,))) is None


def test_devices_of_one_process_read_a_record_once_and_under_its_signatures_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Deployment()
    question = walking(world)
    first = window_at(question, 0)
    answer = released(world, first, 0b101)
    records, read = WalkRecords(world.trust()), []
    now = decode_record(answer.record).released_at

    def counted(data: bytes) -> ReleaseRecord:
        read.append(data)
        return decode_record(data)

    monkeypatch.setattr("fleetcount_protocol.release.record.decode_record", counted)

    assert [records.after(question, first, answer, now) for _ in range(3)] == [(0b101,)] * 3
    assert read == [answer.record]
    with pytest.raises(SignatureError):
        records.after(question, first, replace(answer, signatures=answer.signatures[::-1]), now)
    # What is remembered is bounded: behind so many other records the first is read anew.
    for other in range(20):
        records.after(question, first, released(world, first, other % 8, other // 8), now)
    read.clear()
    assert records.after(question, first, answer, now) == (0b101,)
    assert read == [answer.record]


@pytest.mark.parametrize(
    "answer",
    [
        ReleaseAnswer(state=WindowState.ABORTED, abort_reason="too_few_reports"),
        ReleaseAnswer(state=WindowState.RELEASING),
        None,
    ],
)
async def test_without_the_record_the_rest_of_the_walk_is_left_out_and_the_next_answered(
    tmp_path: Path, answer: ReleaseAnswer | None
) -> None:
    world = Deployment()
    question = walking(world)
    first = window_at(question, 0)
    device = driven(world, tmp_path, question, {} if answer is None else {first.window_id: answer})

    outcomes = await device.answer()

    assert [one.window_id for one in outcomes] == [first.window_id, window_at(question, 3).window_id]


async def test_where_nothing_survived_nothing_is_answered(tmp_path: Path) -> None:
    world = Deployment()
    question = walking(world)
    first = window_at(question, 0)
    device = driven(world, tmp_path, question, {first.window_id: released(world, first)})

    outcomes = await device.answer()

    assert [one.window_id for one in outcomes] == [first.window_id, window_at(question, 3).window_id]


async def test_a_record_that_comes_while_round_one_is_open_is_waited_for_and_each_is_asked_for_once(
    tmp_path: Path,
) -> None:
    world = Deployment()
    question = walking(world)
    windows = [window_at(question, 0), window_at(question, 1, (0b101,)), window_at(question, 2, (0b10110,))]
    asked: list[WindowId] = []

    class Later(MemoryTransport):
        async def release(self, window: Window) -> ReleaseAnswer:
            asked.append(window.window_id)
            if world.timer.now() < question.schedule.opens(1) + 60:
                raise Unreachable("not yet")
            return released(world, window, 0b101 if window is not windows[1] and window.values == 8 else 0b10110)

    transport = Later(world.intakes, lambda: tuple(world.offers))
    device = driven(world, tmp_path, question, {}, transport=transport)

    await device.answer(horizon_s=question.schedule.opens(3) - world.timer.now() - 1)

    assert [said(world, window) for window in windows] == [0b101 + 1, 0b10 + 1, 0b011 + 1]
    assert asked.count(windows[0].window_id) > 1
    assert asked.count(windows[1].window_id) == 1
    assert asked[-1] == windows[1].window_id


async def test_a_device_that_starts_in_the_middle_of_a_walk_reads_it_from_its_first_step(tmp_path: Path) -> None:
    world = Deployment()
    rate = SamplingDie.uniform(Fraction(1, 4), 8)
    schedule = replace(world.question().schedule, windows=6, every_s=400)
    question = walking(world, mode=Mode.SAMPLING, mechanism=rate, schedule=schedule)
    windows = [window_at(question, 0), window_at(question, 1, (0b101,)), window_at(question, 2, (0b10110,))]
    releases = {
        windows[0].window_id: released(world, windows[0], 0b101),
        windows[1].window_id: released(world, windows[1], 0b10110),
    }
    world.timer.advance(question.schedule.opens(2) - world.timer.now() - 10)
    device = driven(world, tmp_path, question, releases)

    outcomes = await device.answer(horizon_s=100)

    assert [(one.window_id, one.kind) for one in outcomes] == [(windows[2].window_id, OutcomeKind.DELIVERED)]
    (report_id,) = world.report_ids(windows[2], 2)
    world.verifies(windows[2], report_id)

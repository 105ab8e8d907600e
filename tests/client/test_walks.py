"""A device follows a drill-down from signed record to signed record; where its place was left out it says "none"."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_client.device import Device
from fleetcount_client.memory_transport import MemoryTransport
from fleetcount_client.outcome import OutcomeKind
from fleetcount_client.policy import JoinRule
from fleetcount_client.transport import Unreachable
from fleetcount_client.walks import WalkRecords
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.errors import SignatureError
from fleetcount_protocol.ids import TaskId
from fleetcount_protocol.messages import ReleaseAnswer, TaskState
from fleetcount_protocol.release import ChainLink, MissingWindow, ReleaseRecord, decode_record, sign_record
from fleetcount_protocol.series.derive import window_task
from fleetcount_protocol.series.fields import DrillDown
from fleetcount_protocol.series.series import Series
from fleetcount_protocol.task.domain import Prefixes
from fleetcount_protocol.task.task import Mode, Task

from tests.client.deployment import Deployment, open_policy
from tests.support.protocol_samples import record

PLACE = 0b101_10_011 << 24
Releases = dict[TaskId, ReleaseAnswer]


def walking(world: Deployment, **changes: object) -> Series:
    """Return two walks over levels of 3, 5 and 8 bits, one step every five minutes."""
    fields: dict[str, object] = {
        "domain": Prefixes(bits=3, cells=tuple(range(8))),
        "mode": Mode.DIRECT,
        "mechanism": None,
        "drill_down": DrillDown(levels=(3, 5, 8), threshold=40, most_survivors=2),
        "schedule": replace(world.series().schedule, windows=6, round_two_s=0),
    }
    return world.series(**(fields | changes))


def released(world: Deployment, task: Task, *busy: int, signers: int = 2) -> ReleaseAnswer:
    """Return the record of a step in which these cells are busy, signed by all."""
    assert isinstance(task.domain, Prefixes)
    missing = tuple(MissingWindow(index=index, reason="paused") for index in range(task.series.index))
    made = record(task, chain=ChainLink(previous=None, previous_index=None, missing=missing))
    values = {task.domain.cells.index(cell) + 1 for cell in busy}
    cells = tuple(replace(cell, estimate=Fraction(50 if cell.value in values else 3)) for cell in made.cells)
    made = replace(made, cells=cells)
    keys = [world.signing_keys[one.aggregator_id] for one in task.aggregators]
    signatures = [sign_record(made, keys[min(position, signers - 1)]) for position in range(len(keys))]
    return ReleaseAnswer(state=TaskState.RELEASED, record=made.canonical, signatures=tuple(signatures))


def driven(world: Deployment, path: Path, series: Series, releases: Releases, **options: object) -> Device:
    world.offers = [world.offer(series)]
    transport = MemoryTransport(world.intakes, lambda: tuple(world.offers), releases)
    policy = open_policy(allow_direct=True, total_epsilon=Fraction(20))
    fields: dict[str, object] = {"transport": transport, "policy": policy, "truth": PLACE, "join": JoinRule.AUTO}
    return world.device(path / "device.db", **(fields | options))  # type: ignore[arg-type]


def said(world: Deployment, task: Task) -> int | None:
    """Return the value a device has told in a direct window, None if nothing."""
    for report_id in world.report_ids(task, 0):
        return world.decoded(task, report_id).index(1)
    return None


async def test_a_device_follows_the_records_and_answers_none_to_the_end_of_a_walk_that_left_it(tmp_path: Path) -> None:
    world = Deployment()
    series = walking(world)
    with_it = [window_task(series, 0), window_task(series, 1, (0b101,)), window_task(series, 2, (0b10110,))]
    without = [window_task(series, 3), window_task(series, 4, (0b001,)), window_task(series, 5, (0b00111,))]
    releases = {
        with_it[0].task_id: released(world, with_it[0], 0b101),
        with_it[1].task_id: released(world, with_it[1], 0b10110),
        without[0].task_id: released(world, without[0], 0b001),
        without[1].task_id: released(world, without[1], 0b00111),
    }
    device = driven(world, tmp_path, series, releases)

    outcomes = await device.answer()

    assert [one.kind for one in outcomes] == [OutcomeKind.DELIVERED] * 6
    assert [said(world, task) for task in with_it] == [0b101 + 1, 0b10 + 1, 0b011 + 1]
    assert [said(world, task) for task in without] == [0b101 + 1, 0, 0]
    assert len(device.spool.charges()) == 6


async def test_the_whole_series_is_reserved_at_joining_every_level_a_window(tmp_path: Path) -> None:
    world = Deployment()
    series = walking(world)
    one = series.design.epsilon
    assert one is not None
    little = open_policy(allow_direct=True, total_epsilon=Fraction(one) * 11 / 2)
    device = driven(world, tmp_path, series, {}, policy=little)

    [refused] = await device.answer()
    assert refused.rule == "total_epsilon"
    assert "the limit is" in device.series.rows()[0].reason
    enough = driven(world, tmp_path / "..", series, {})
    enough.series.take(world.offers)
    assert [charge.asked_at for charge in enough.spool.charges()] == [series.schedule.opens(n) for n in range(6)]


def unsigned(world: Deployment, first: Task) -> ReleaseAnswer:
    return released(world, first, 0b101, signers=1)


def another(world: Deployment, first: Task) -> ReleaseAnswer:
    return released(world, replace(first, min_batch_size=11), 0b101)


def damaged(world: Deployment, first: Task) -> ReleaseAnswer:
    good = released(world, first, 0b101)
    return replace(good, record=good.record[:-1])


def of_another_walk(world: Deployment, first: Task) -> ReleaseAnswer:
    series = walking(world)
    assert window_task(series, 0) == first
    return released(world, window_task(series, 3), 0b101)


@pytest.mark.parametrize("spoil", [unsigned, another, damaged, of_another_walk])
async def test_a_record_that_not_all_have_signed_for_this_very_task_leads_nowhere(
    tmp_path: Path, spoil: Callable[[Deployment, Task], ReleaseAnswer]
) -> None:
    world = Deployment()
    series = walking(world)
    first = window_task(series, 0)
    device = driven(world, tmp_path, series, {first.task_id: spoil(world, first)})

    outcomes = await device.answer()

    assert [one.task_id for one in outcomes] == [first.task_id, window_task(series, 3).task_id]
    assert said(world, window_task(series, 1, (0b101,))) is None


def test_devices_of_one_process_read_a_record_once_and_under_its_signatures_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Deployment()
    series = walking(world)
    first = window_task(series, 0)
    answer = released(world, first, 0b101)
    records, read = WalkRecords(world.trust()), []

    def counted(data: bytes) -> ReleaseRecord:
        read.append(data)
        return decode_record(data)

    monkeypatch.setattr("fleetcount_protocol.release.record.decode_record", counted)

    assert [records.after(series, first, answer) for _ in range(3)] == [(0b101,)] * 3
    assert read == [answer.record]
    with pytest.raises(SignatureError):
        records.after(series, first, replace(answer, signatures=answer.signatures[::-1]))
    # What is remembered is bounded: behind so many other records the first is read anew.
    for other in range(20):
        records.after(series, first, released(world, first, other % 8, other // 8))
    read.clear()
    assert records.after(series, first, answer) == (0b101,)
    assert read == [answer.record]


@pytest.mark.parametrize(
    "answer",
    [
        ReleaseAnswer(state=TaskState.ABORTED, abort_reason="too_few_reports"),
        ReleaseAnswer(state=TaskState.RELEASING),
        None,
    ],
)
async def test_without_the_record_the_rest_of_the_walk_is_left_out_and_the_next_answered(
    tmp_path: Path, answer: ReleaseAnswer | None
) -> None:
    world = Deployment()
    series = walking(world)
    first = window_task(series, 0)
    device = driven(world, tmp_path, series, {} if answer is None else {first.task_id: answer})

    outcomes = await device.answer()

    assert [one.task_id for one in outcomes] == [first.task_id, window_task(series, 3).task_id]


async def test_where_nothing_survived_nothing_is_answered(tmp_path: Path) -> None:
    world = Deployment()
    series = walking(world)
    first = window_task(series, 0)
    device = driven(world, tmp_path, series, {first.task_id: released(world, first)})

    outcomes = await device.answer()

    assert [one.task_id for one in outcomes] == [first.task_id, window_task(series, 3).task_id]


async def test_a_record_that_comes_while_round_one_is_open_is_waited_for_and_each_is_asked_for_once(
    tmp_path: Path,
) -> None:
    world = Deployment()
    series = walking(world)
    tasks = [window_task(series, 0), window_task(series, 1, (0b101,)), window_task(series, 2, (0b10110,))]
    asked: list[TaskId] = []

    class Later(MemoryTransport):
        async def release(self, task: Task) -> ReleaseAnswer:
            asked.append(task.task_id)
            if world.timer.now() < series.schedule.opens(1) + 60:
                raise Unreachable("not yet")
            return released(world, task, 0b101 if task is not tasks[1] and task.values == 8 else 0b10110)

    transport = Later(world.intakes, lambda: tuple(world.offers))
    device = driven(world, tmp_path, series, {}, transport=transport)

    await device.answer(horizon_s=series.schedule.opens(3) - world.timer.now() - 1)

    assert [said(world, task) for task in tasks] == [0b101 + 1, 0b10 + 1, 0b011 + 1]
    assert asked.count(tasks[0].task_id) > 1
    assert asked.count(tasks[1].task_id) == 1
    assert asked[-1] == tasks[1].task_id


async def test_a_device_that_starts_in_the_middle_of_a_walk_reads_it_from_its_first_step(tmp_path: Path) -> None:
    world = Deployment()
    rate = SamplingDie.uniform(Fraction(1, 4), 8)
    schedule = replace(world.series().schedule, windows=6, every_s=400)
    series = walking(world, mode=Mode.SAMPLING, mechanism=rate, schedule=schedule)
    tasks = [window_task(series, 0), window_task(series, 1, (0b101,)), window_task(series, 2, (0b10110,))]
    releases = {
        tasks[0].task_id: released(world, tasks[0], 0b101),
        tasks[1].task_id: released(world, tasks[1], 0b10110),
    }
    world.timer.advance(series.schedule.opens(2) - world.timer.now() - 10)
    device = driven(world, tmp_path, series, releases)

    outcomes = await device.answer(horizon_s=100)

    assert [(one.task_id, one.kind) for one in outcomes] == [(tasks[2].task_id, OutcomeKind.DELIVERED)]
    (report_id,) = world.report_ids(tasks[2], 2)
    world.verifies(tasks[2], report_id)

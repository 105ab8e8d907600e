"""From a record of a walk to the next step: the cells that survived, or the one public reason why it is not asked."""

from dataclasses import replace
from fractions import Fraction

import pytest
from fleetcount_protocol.errors import TaskError, UsageError
from fleetcount_protocol.release import ChainLink, ReleaseRecord
from fleetcount_protocol.release.walk import WalkEnd, next_step
from fleetcount_protocol.series.derive import window_task
from fleetcount_protocol.series.drill_down import parents
from fleetcount_protocol.task.task import Task

from tests.support.protocol_samples import record
from tests.support.series_samples import HOURLY, drill_down_series, sampling_series

SERIES = drill_down_series()
LINK = ChainLink(previous=None, previous_index=None, missing=())


def estimated(task: Task, busy: dict[int, int], released_at: int | None = None) -> ReleaseRecord:
    """Return a record of a step in which these cells reach these numbers and all others none."""
    made = record(task, chain=replace(LINK, previous=None, previous_index=None, missing=()))
    cells = tuple(replace(cell, estimate=Fraction(busy.get(cell.value, 0))) for cell in made.cells)
    return replace(made, cells=cells, released_at=released_at or made.released_at)


def test_the_record_of_a_step_leads_to_the_next() -> None:
    first = window_task(SERIES, 0)

    assert next_step(SERIES, estimated(first, {1: 40, 3: 41, 4: 39})) == (1, 5)
    assert parents(window_task(SERIES, 1, (1, 5)).domain, SERIES.drill_down, 1) == (1, 5)  # type: ignore[arg-type]
    assert next_step(SERIES, estimated(first, {4: 39})) is WalkEnd.NOTHING_SURVIVED


def test_a_record_of_a_time_after_the_next_step_opens_is_late() -> None:
    first, opens = window_task(SERIES, 0), SERIES.schedule.opens(1)

    assert next_step(SERIES, estimated(first, {1: 40}, opens)) == (1,)
    assert next_step(SERIES, estimated(first, {1: 40}, opens + 60)) is WalkEnd.RECORD_LATE


def test_nothing_follows_from_another_record() -> None:
    other = drill_down_series(name="another")
    with pytest.raises(UsageError, match="not of a drill-down"):
        next_step(SERIES, estimated(window_task(other, 0), {1: 40}))
    plain = sampling_series()
    with pytest.raises(UsageError, match="not of a drill-down"):
        next_step(plain, estimated(window_task(plain, 0), {1: 40}))
    with pytest.raises(UsageError, match="not of a drill-down"):
        next_step(SERIES, record())


def test_nothing_follows_from_a_task_that_the_series_does_not_have() -> None:
    made = estimated(window_task(SERIES, 0), {1: 40})
    changed = replace(made, task=replace(made.task, min_batch_size=11))

    with pytest.raises(UsageError, match="is not what window 0 of series"):
        next_step(SERIES, changed)


def test_the_schedule_leaves_time_for_the_record() -> None:
    tight = replace(HOURLY, windows=6, every_s=1_200)
    with pytest.raises(TaskError, match="every_s is 1200, a drill-down needs at least 1260 s"):
        drill_down_series(schedule=tight)
    drill_down_series(schedule=replace(tight, every_s=1_260))

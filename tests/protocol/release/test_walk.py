"""From a record of a walk to the next step: the cells that survived, or the one public reason why it is not asked."""

from dataclasses import replace
from fractions import Fraction

import pytest
from fleetcount_protocol.errors import QuestionError, UsageError
from fleetcount_protocol.question.fields import parents
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.release.chain import ChainLink
from fleetcount_protocol.release.record import ReleaseRecord
from fleetcount_protocol.release.walk import WalkEnd, next_step
from fleetcount_protocol.window.window import Window

from tests.support.protocol_samples import record, with_total
from tests.support.question_samples import GAUSSIAN, HOURLY, drill_down_question, sampling_question

QUESTION = drill_down_question()
LINK = ChainLink(previous=None, previous_index=None, missing=())


def estimated(window: Window, busy: dict[int, int], released_at: int | None = None) -> ReleaseRecord:
    """Return a record of a step in which these cells reach these numbers and all others none."""
    made = record(window, chain=replace(LINK, previous=None, previous_index=None, missing=()))
    cells = tuple(replace(cell, estimate=Fraction(busy.get(cell.value, 0))) for cell in made.cells)
    return replace(made, cells=cells, released_at=released_at or made.released_at)


def test_the_record_of_a_step_leads_to_the_next() -> None:
    first = window_at(QUESTION, 0)

    assert next_step(QUESTION, estimated(first, {1: 40, 3: 41, 4: 39})) == (1, 5)
    assert parents(window_at(QUESTION, 1, (1, 5)).domain, QUESTION.drill_down, 1) == (1, 5)  # type: ignore[arg-type]
    assert next_step(QUESTION, estimated(first, {4: 39})) is WalkEnd.NOTHING_SURVIVED


def test_a_total_survives_no_step() -> None:
    question = drill_down_question(release=with_total(GAUSSIAN, 4))
    made = estimated(window_at(question, 0), {1: 40, 5: 900})

    assert made.cells[-1].label == "total"
    assert next_step(question, made) == (1,)


def test_a_record_of_a_time_after_the_next_step_opens_is_late() -> None:
    first, opens = window_at(QUESTION, 0), QUESTION.schedule.opens(1)

    assert next_step(QUESTION, estimated(first, {1: 40}, opens)) == (1,)
    assert next_step(QUESTION, estimated(first, {1: 40}, opens + 60)) is WalkEnd.RECORD_LATE


def test_nothing_follows_from_another_record() -> None:
    other = drill_down_question(name="another")
    with pytest.raises(UsageError, match="not of a drill-down"):
        next_step(QUESTION, estimated(window_at(other, 0), {1: 40}))
    plain = sampling_question()
    with pytest.raises(UsageError, match="not of a drill-down"):
        next_step(plain, estimated(window_at(plain, 0), {1: 40}))
    with pytest.raises(UsageError, match="not of a drill-down"):
        next_step(QUESTION, record())


def test_nothing_follows_from_a_window_that_the_question_does_not_have() -> None:
    made = estimated(window_at(QUESTION, 0), {1: 40})
    changed = replace(made, window=replace(made.window, min_batch_size=11))

    with pytest.raises(UsageError, match="is not what window 0 of question"):
        next_step(QUESTION, changed)


def test_the_schedule_leaves_time_for_the_record() -> None:
    tight = replace(HOURLY, windows=6, every_s=1_200)
    with pytest.raises(QuestionError, match="every_s is 1200, a drill-down needs at least 1260 s"):
        drill_down_question(schedule=tight)
    drill_down_question(schedule=replace(tight, every_s=1_260))

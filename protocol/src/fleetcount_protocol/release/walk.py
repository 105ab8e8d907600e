"""From the signed record of one step of a drill-down to the next step: its cells, or the reason why it is not asked.

Run by every party on the same public bytes, so that no message is needed. It verifies no signature (`record`) and has
no clock: the time of a record is in the record.
"""

import enum

from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.question.fields import parents, surviving_cells
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.release.record import ReleaseRecord
from fleetcount_protocol.window.domain import Prefixes


class WalkEnd(enum.Enum):
    """Why a later step of a walk is not asked: the closed, public list."""

    WALK_ENDED = "walk_ended"
    """The step before has no record."""
    NOTHING_SURVIVED = "nothing_survived"
    RECORD_LATE = "record_late"
    """The record before has a time after the step opens, or did not arrive while the step was open."""


def next_step(question: Question, before: ReleaseRecord) -> tuple[int, ...] | WalkEnd:
    """Return the cells whose children the window after `before` asks about (`window_at`), or why it is not asked.

    Raises:
        UsageError: a record that is not of this drill-down, or of the last step of a walk.
    """
    walk, window = question.drill_down, before.window.question
    if walk is None or window.question_id != question.question_id:
        raise UsageError(f"the record is not of a drill-down {question.question_id}")
    index = window.index + 1
    step, domain = walk.step_of(index), before.window.domain
    if not step or index >= question.schedule.windows or not isinstance(domain, Prefixes):
        raise UsageError(f"window {window.index} is the last step of its walk; nothing follows from its record")
    if before.window.canonical != window_at(question, window.index, parents(domain, walk, step - 1)).canonical:
        raise UsageError(
            f"the record's window is not what window {window.index} of question {question.question_id} must be"
        )
    if before.released_at > question.schedule.opens(index):
        return WalkEnd.RECORD_LATE
    estimates = [cell.estimate for cell in before.cells[: domain.values]]  # Behind them a total, which is no place.
    return surviving_cells(domain, estimates, walk) or WalkEnd.NOTHING_SURVIVED

"""What two aggregators take part in, by name: what one that was put back from a backup asks every other.

Holds and checks; what of it is unknown where is the aggregators' business.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import SeriesId, TaskId

__all__ = ["SharedIds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedIds:
    """A part of the tasks (no windows) and, in the first part, all series that two aggregators take part in.

    `following`: what to ask for after, None if this was the last part.

    Raises:
        DecodeError: ids that do not ascend, or a task above `following`.
    """

    task_ids: tuple[TaskId, ...]
    series_ids: tuple[SeriesId, ...]
    following: TaskId | None

    def __post_init__(self) -> None:
        if not (_ascend(self.task_ids) and _ascend(self.series_ids)):
            raise DecodeError("shared ids must ascend")
        if self.following is not None and self.task_ids and self.following < self.task_ids[-1]:
            raise DecodeError("a shared task is above what is asked for next")


def _ascend(ids: Sequence[bytes]) -> bool:
    return all(one < other for one, other in pairwise(ids))

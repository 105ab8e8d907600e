"""The ids of the questions that two aggregators have in common; one restored from a backup asks its peers for them.

A checked value only: the aggregators compare it with what they store.
"""

from dataclasses import dataclass
from itertools import pairwise

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import QuestionId


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedIds:
    """Ids of questions that two aggregators have in common, ascending; `more` means that there are larger ones.

    Raises:
        DecodeError: ids that do not ascend, or `more` without an id.
    """

    question_ids: tuple[QuestionId, ...]
    more: bool = False

    def __post_init__(self) -> None:
        if not all(one < other for one, other in pairwise(self.question_ids)):
            raise DecodeError("shared ids must ascend")
        if self.more and not self.question_ids:
            raise DecodeError("shared ids say that there are more, but name none")

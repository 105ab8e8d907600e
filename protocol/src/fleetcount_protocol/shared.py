"""What two aggregators take part in, by name: what one that was put back from a backup asks every other.

Holds and checks; what of it is unknown where is the aggregators' business.
"""

from dataclasses import dataclass
from itertools import pairwise

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import QuestionId


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedIds:
    """A part of the question that two aggregators take part in; `more` if there are others above the last.

    Raises:
        DecodeError: ids that do not ascend, or more above none.
    """

    question_ids: tuple[QuestionId, ...]
    more: bool = False

    def __post_init__(self) -> None:
        if not all(one < other for one, other in pairwise(self.question_ids)):
            raise DecodeError("shared ids must ascend")
        if self.more and not self.question_ids:
            raise DecodeError("there are no shared ids above none")

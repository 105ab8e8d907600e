"""The question of this aggregator: what was signed, the seed of its verify keys, its orders, and how far it has come.

Holds and derives; it must not store, call a peer or look at a clock.
"""

import asyncio
from dataclasses import dataclass, field

from fleetcount_protocol.ids import AggregatorId, QuestionId
from fleetcount_protocol.question.derive import window_at, window_verify_key
from fleetcount_protocol.question.orders import SignedOrder, skipped_windows, stopped_at
from fleetcount_protocol.question.question import Question, SignedQuestion

from fleetcount_aggregator.host.states import MissingReason
from fleetcount_aggregator.installed_window import InstalledWindow


@dataclass(kw_only=True)
class InstalledQuestion:
    """A question this aggregator has checked and stored.

    `orders` are those taken; `given` the notes of what each other aggregator has; `refused_by` the one that does not
    take the question; `was_debited` whether a debit of it was seen (`windows.charges`). `following` is the first window
    that is not decided about; those before it are in the store alone (`windows.decided`), which may have decided about
    more where `is_behind`. `lock`: orders and windows, one at a time.
    """

    signed: SignedQuestion
    seed: bytes = field(repr=False)
    position: int
    orders: tuple[SignedOrder, ...] = ()
    given: set[str] = field(default_factory=set[str])
    following: int = 0
    is_behind: bool = False
    refused_by: str = ""
    was_debited: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    @property
    def asked(self) -> Question:
        """The question itself."""
        return self.signed.question

    @property
    def question_id(self) -> QuestionId:
        """The question's name."""
        return self.signed.question.question_id

    @property
    def is_leader(self) -> bool:
        """Whether this aggregator drives the windows."""
        return self.position == 0

    @property
    def others(self) -> tuple[AggregatorId, ...]:
        """The other aggregators of the question, in its order."""
        ids = [one.aggregator_id for one in self.asked.aggregators]
        return tuple(ids[: self.position] + ids[self.position + 1 :])

    @property
    def stopped(self) -> int | None:
        """The first window that a stop skips for good, None while none is stopped."""
        return stopped_at(one.order for one in self.orders)

    @property
    def was_withdrawn(self) -> bool:
        """Whether a party refused it, or stopped it before its first window."""
        return bool(self.refused_by) or self.stopped == 0

    def skips(self, index: int) -> MissingReason | None:
        """Return why the orders skip a window, None if they do not."""
        if self.stopped is not None and index >= self.stopped:
            return MissingReason.STOPPED
        skipped = skipped_windows(self.asked, [one.order for one in self.orders])
        return MissingReason.PAUSED if any(index in one for one in skipped) else None

    def is_later_step(self, index: int) -> bool:
        """Whether a window asks what follows from the record of the window before."""
        walk = self.asked.drill_down
        return walk is not None and walk.step_of(index) > 0

    def window(self, index: int, survivors: tuple[int, ...] = ()) -> InstalledWindow:
        """Return a window with its verify key: the same at every aggregator and at any time."""
        window = window_at(self.asked, index, survivors)
        return InstalledWindow(
            asked=window,
            verify_key=window_verify_key(self.seed, window.window_id),
            position=self.position,
        )

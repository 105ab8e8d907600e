"""The questions and windows of this aggregator as values, with what follows from each; and a window as a stored row.

A window follows from its question: algorithm, rounds, sizes, share number. Which of them are in memory, and in what
state, `memory.windows` and `memory.questions` know.
"""

import asyncio
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from fleetcount_protocol.ids import AggregatorId, QuestionId, WindowId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.orders import SignedOrder, skipped_windows, stopped_at
from fleetcount_protocol.question.question import Question, SignedQuestion, window_at, window_verify_key
from fleetcount_protocol.vdaf.prio3 import Prio3, first_instalment_size, second_instalment_size
from fleetcount_protocol.window.window import Window, context_of, decode_window, prio3_for

from fleetcount_aggregator.host.states import FINAL_STATES, MissingReason
from fleetcount_aggregator.storage.data_keys import DataKey
from fleetcount_aggregator.storage.errors import Damage, DamagedError
from fleetcount_aggregator.storage.row_types import WindowRow
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.verification.share_arithmetic import ProofSetting

WHOLE: Final = 0
"""Round number of a report that travels in one piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """When the instalments of one round are taken: from `opens` to before `closes`, Unix seconds of this aggregator."""

    opens: int
    closes: int


@dataclass(frozen=True, kw_only=True)
class InstalledWindow:
    """A window this aggregator has checked and stored, and its secret verify key."""

    asked: Window
    verify_key: bytes = field(repr=False)
    position: int

    @property
    def window_id(self) -> WindowId:
        """The window's name."""
        return self.asked.window_id

    @property
    def is_leader(self) -> bool:
        """Whether this aggregator drives the window."""
        return self.position == 0

    @property
    def leader_id(self) -> AggregatorId:
        """Who drives the window."""
        return self.asked.leader.aggregator_id

    @property
    def others(self) -> tuple[AggregatorId, ...]:
        """The other aggregators of the window, in its order."""
        ids = [one.aggregator_id for one in self.asked.aggregators]
        return tuple(ids[: self.position] + ids[self.position + 1 :])

    @cached_property
    def prio3(self) -> Prio3:
        """The window's algorithm."""
        return prio3_for(self.asked)

    @cached_property
    def context(self) -> bytes:
        """The context string of every share and proof."""
        return context_of(self.asked)

    @cached_property
    def setting(self) -> ProofSetting:
        """What the workers need."""
        return ProofSetting(window=self.asked.canonical, verify_key=self.verify_key, position=self.position)

    @cached_property
    def rounds(self) -> dict[int, Interval]:
        """When the rounds that the window has are open: rounds 1 and 2, or 0 when reports travel whole."""
        window = self.asked
        if window.two_instalments:
            return {
                1: Interval(opens=window.round_one_opens, closes=window.round_one_closes),
                2: Interval(opens=window.round_one_closes, closes=window.round_two_closes),
            }
        return {WHOLE: Interval(opens=window.round_one_opens, closes=window.round_one_closes)}

    @cached_property
    def closes(self) -> int:
        """When the last round closes, Unix seconds."""
        return max(one.closes for one in self.rounds.values())

    @cached_property
    def shortest_round_s(self) -> int:
        """How long the shorter of its rounds is open."""
        return min(one.closes - one.opens for one in self.rounds.values())

    @cached_property
    def part_sizes(self) -> dict[int, int]:
        """Bytes of this aggregator's share part, by round."""
        if WHOLE in self.rounds:
            return {WHOLE: self.prio3.input_share_size(self.position)}
        return {
            1: first_instalment_size(self.prio3, self.position),
            2: second_instalment_size(self.prio3, self.position),
        }

    def public_share_size(self, round_number: int) -> int:
        """Bytes of the public share in an instalment of this round; round one carries none."""
        return 0 if round_number == 1 else self.prio3.public_share_size


@dataclass(kw_only=True)
class InstalledQuestion:
    """A question this aggregator has checked and stored.

    `orders` are those taken; `given` the notes of what each other aggregator has; `refused_by` the one that does not
    take the question; `order` the Renyi order of its charge, None for the usual one (`windows.budget`); `offer_digest`
    the digest of what devices are told, b"" while they are told nothing, None until it is known (`intake.offers`);
    `was_debited` whether a debit of it was seen (`windows.budget`). `following` is the first window that is not decided
    about; those before it are in the store alone (`memory.questions`), which may have decided about more where
    `is_behind`. `lock`: orders and windows, one at a time.
    """

    signed: SignedQuestion
    seed: bytes = field(repr=False)
    position: int
    orders: tuple[SignedOrder, ...] = ()
    given: set[str] = field(default_factory=set[str])
    following: int = 0
    is_behind: bool = False
    refused_by: str = ""
    order: int | None = None
    offer_digest: bytes | None = None
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


# A window as it lies in the store.


def _place(window_id: WindowId) -> tuple[bytes, ...]:
    return b"verify key", window_id


async def learned_key(store: Store, window_id: WindowId) -> DataKey:
    """Return a window's data key, read in a thread where this process has not read it yet: its server may be away.

    Raises:
        StoreError: the window has ended.
    """
    keys = store.data_keys
    return keys.of(window_id) if keys.knows(window_id) else await asyncio.to_thread(keys.of, window_id)


async def learn_window(store: Store, own: AggregatorId, row: WindowRow) -> InstalledWindow:
    """Return a stored window as `installed_of` does; a data key that this process has not read is read in a thread.

    Raises:
        FleetcountError: as `installed_of`; the server that has the key is away.
    """
    if row.state not in FINAL_STATES:
        await learned_key(store, row.window_id)
    return installed_of(store, own, row)


def installed_of(store: Store, own: AggregatorId, row: WindowRow) -> InstalledWindow:
    """Return a stored window, whose data key is in memory; one that has ended has no verify key any more.

    Raises:
        FleetcountError: it cannot be read (another at-rest key, a damaged file, a rule it breaks).
    """
    window, has_ended = decode_window(row.canonical), row.state in FINAL_STATES
    if window.window_id != row.window_id:
        what = f"the bytes of window {row.window_id.hex()} are another window's"
        raise DamagedError(Damage(table="windows", what=what, window_id=row.window_id))
    data_keys = store.data_keys
    return InstalledWindow(
        asked=window,
        verify_key=b"" if has_ended else data_keys.of(row.window_id).open(row.verify_key, *_place(row.window_id)),
        position=window.position_of(own),
    )


async def window_row(store: Store, window: InstalledWindow, now: int) -> WindowRow:
    """Return a new window as it goes into the store, its verify key sealed under its data key, which is made here.

    Raises:
        StoreError: the disk does not take the key.
    """
    data_key = await asyncio.to_thread(store.data_keys.make, window.window_id)
    return WindowRow(
        window_id=window.window_id,
        canonical=window.asked.canonical,
        verify_key=data_key.seal(window.verify_key, *_place(window.window_id)),
        state=WindowState.ANNOUNCED,
        abort_reason="",
        installed_at=now,
    )

"""The walks of drill-downs as a device follows them: from the public record of each step to the window of the next.

It believes a record only with the signatures of all, for the very window that it has derived itself from the record
before, down to the signed question. It reads no signal: what it asks for follows from the clock and the question alone.
"""

import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fleetcount_mechanisms.randomness import RandomSource
from fleetcount_protocol.errors import MachineError, PeerError, UsageError
from fleetcount_protocol.ids import QuestionId, WindowId
from fleetcount_protocol.question.derive import window_at
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.window.window import Window

from fleetcount_client.backoff import Backoff, Retry, uniform_seconds
from fleetcount_client.timer import Timer
from fleetcount_client.transport import Transport
from fleetcount_client.trust import TrustStore

if TYPE_CHECKING:
    from fleetcount_protocol.messages import ReleaseAnswer
    from fleetcount_protocol.release.walk import WalkEnd

_LOG: Final = logging.getLogger(__name__)
_READERS_SPREAD: Final = 4
"""Records are asked for within the first fourth of round one, each device at a time of its own."""
_LOOKS: Final = 20
"""How often at least a device looks for a record that is late, while round one is open."""
_KEPT: Final = 8
"""Records whose survivors are remembered: enough for the two or three steps that are read at one time."""


class WalkRecords:
    """What the records of walks say, verified; may be shared by many devices of one process, which read the same ones.

    Keeps no record, only what followed from the latest few: at most 255 cells each.
    """

    def __init__(self, trust: TrustStore) -> None:
        self._trust = trust
        self._known: dict[tuple[WindowId, bytes, tuple[bytes, ...]], tuple[int, ...] | WalkEnd] = {}

    def after(self, question: Question, before: Window, answer: "ReleaseAnswer") -> "tuple[int, ...] | WalkEnd | None":
        """Return what the answer about a step's window says of the next step (`next_step`); None: there is no record
        yet.

        Raises:
            DecodeError, UsageError: the record is damaged or of another window.
            SignatureError: a signature is missing or does not verify.
        """
        from fleetcount_protocol.messages import WindowState  # Only with the first drill-down.
        from fleetcount_protocol.release.walk import WalkEnd

        if answer.state is WindowState.ABORTED:
            return WalkEnd.WALK_ENDED
        if answer.state is not WindowState.RELEASED:
            return None
        # The signatures are part of the name: the same bytes under other signatures are read anew.
        name = before.window_id, hashlib.sha256(answer.record).digest(), answer.signatures
        if name not in self._known:
            self._known[name] = self._read(question, before, answer)
            if len(self._known) > _KEPT:
                del self._known[next(iter(self._known))]
        return self._known[name]

    def _read(self, question: Question, before: Window, answer: "ReleaseAnswer") -> "tuple[int, ...] | WalkEnd":
        from fleetcount_protocol.release.record import decode_record  # As above.
        from fleetcount_protocol.release.walk import next_step

        record = decode_record(answer.record)
        if record.window.canonical != before.canonical:
            raise UsageError("it is of another window")
        self._trust.check_record(record, answer.signatures)
        return next_step(question, record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Walks:
    """Follows walks for one device. `pause_until` waits for a moment and may close what is idle meanwhile.

    What is known of the latest step of each question is kept in memory: after a restart a walk is read again.
    """

    transport: Transport
    records: WalkRecords
    timer: Timer
    source: RandomSource
    retry: Retry
    pause_until: Callable[[float], Awaitable[None]]
    _known: "dict[QuestionId, tuple[int, tuple[int, ...] | WalkEnd]]" = field(
        init=False, repr=False, default_factory=dict
    )

    async def survivors(self, question: Question, index: int) -> "tuple[int, ...] | WalkEnd":
        """Return the cells whose children a window asks about, none for what is no later step, or why it is not asked.

        Asks again while the record before is not there, until round one of the window closes.
        """
        from fleetcount_protocol.release.walk import WalkEnd  # As above.

        walk = question.drill_down
        if walk is None or not walk.step_of(index):
            return ()
        opens, length = question.schedule.opens(index), question.schedule.round_one_s
        if self._known.get(question.question_id, (-1, ()))[0] != index:
            spread = uniform_seconds(self.source, length / _READERS_SPREAD)
            await self.pause_until(max(self.timer.now(), opens) + spread)
        base = min(self.retry.base_s, length / _LOOKS)
        often = Retry(base_s=base, cap_s=min(self.retry.cap_s, length / _LOOKS))
        backoff = Backoff(often, self.source)
        while self.timer.now() < opens + length:
            try:
                found = await self._follow(question, index - walk.step_of(index), index)
            except (MachineError, PeerError, UsageError) as error:
                _LOG.info("the record before window %d of question %s: %s", index, question.name, error)
                found = None
            if found is not None:
                return found
            await self.pause_until(min(self.timer.now() + backoff.next_delay(), opens + length))
        return WalkEnd.RECORD_LATE

    async def _follow(self, question: Question, first: int, index: int) -> "tuple[int, ...] | WalkEnd | None":
        """Go on from the latest step that is known, or from the first of the walk; None while a record is missing."""
        at, found = self._known.get(question.question_id, (first, ()))
        if not first <= at <= index:
            at, found = first, ()
        while at < index and isinstance(found, tuple):
            before = window_at(question, at, found)
            following = self.records.after(question, before, await self.transport.release(before))
            if following is None:
                return None
            at, found = at + 1, following
            self._known[question.question_id] = at, found
        return found

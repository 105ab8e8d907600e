"""The question a device knows of, in its state file: what was offered, what its owner said, and what is reserved.

Every change of the ledger is one transaction with its reason. Verifies no signature and decides nothing about privacy.
"""

import enum
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from fleetcount_mechanisms.randomness import RandomSource
from fleetcount_protocol.clock import LARGEST_LEAD_S
from fleetcount_protocol.errors import MachineError, PeerError, UsageError
from fleetcount_protocol.ids import QuestionId, WindowId
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.window.window import Window
from fleetcount_transport import failpoints

from fleetcount_client.charges import Charge
from fleetcount_client.contact import TrustStore
from fleetcount_client.ledger import Ledger
from fleetcount_client.policy import PolicyRefusal
from fleetcount_client.spool import Spool
from fleetcount_client.timer import Backoff, Retry, Timer, uniform_seconds
from fleetcount_client.transport import Transport

if TYPE_CHECKING:
    from fleetcount_protocol.messages import ReleaseAnswer
    from fleetcount_protocol.release.walk import WalkEnd

_COIN_SECRET_BYTES: Final = 32
_PUT: Final = (
    "INSERT INTO questions VALUES(?,?,?,?,?,?,?,?) ON CONFLICT(device,question_id) DO UPDATE SET offer=excluded.offer,"
    "state=excluded.state,changed_at=excluded.changed_at,reason=excluded.reason,rule=excluded.rule"
)
"""Of a row that keeps its length only the pages that differ are written: an offer has some thousand bytes."""
_END: Final = "UPDATE questions SET state=?,changed_at=? WHERE device=? AND question_id=? AND state=?"


class QuestionState(enum.Enum):
    """Where a question stands for a device; all numbers take as many bytes, so that a stored row keeps its length."""

    OFFERED = 2
    """Checked and allowed, it waits for the owner's word."""
    JOINED = 3
    LEFT = 4
    """The owner left, or said no; only the owner's word brings it back."""
    REFUSED = 5
    """The policy or the budget does not allow it; the reason says why."""
    ENDED = 6
    """Its last window has closed, or an order has stopped it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRow:
    """One question: the offer as it was last checked, where it stands since when (Unix seconds), and why.

    With a `rule` the reason is that of a refusal: of the question or, while the device takes part, of its latest
    window.
    """

    question_id: QuestionId
    name: str
    offer: bytes = field(repr=False)
    state: QuestionState
    changed_at: float
    reason: str
    rule: str = ""


class QuestionRows:
    """The question of one device inside its spool. Every change is durable when its method returns."""

    __slots__ = ("_spool",)

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def all(self) -> tuple[QuestionRow, ...]:
        """Return every question, the latest change first."""
        query = (
            "SELECT question_id,name,offer,state,changed_at,reason,rule FROM questions WHERE device=?"
            " ORDER BY changed_at DESC,question_id"
        )
        return tuple(self._spool.file.rows(query, (self._spool.name,), _row))

    def get(self, question_id: QuestionId) -> QuestionRow | None:
        """Return one question, None when it is not known."""
        query = (
            "SELECT question_id,name,offer,state,changed_at,reason,rule FROM questions WHERE device=? AND question_id=?"
        )
        rows = self._spool.file.rows(query, (self._spool.name, question_id), _row)
        return rows[0] if rows else None

    def put(self, row: QuestionRow) -> None:
        """Write a question in the place of what is known of it."""
        named = (self._spool.name, row.question_id, row.name, row.offer)
        self._spool.file.changed(_PUT, (*named, row.state.value, row.changed_at, row.reason, row.rule))

    def erase(self, question_id: QuestionId) -> None:
        """Forget a question, but none of its charges."""
        where = self._spool.name, question_id
        self._spool.file.changed("DELETE FROM questions WHERE device=? AND question_id=?", where)

    def join(
        self,
        row: QuestionRow,
        judge: Callable[[Ledger], Sequence[Charge] | PolicyRefusal],
        now: float,
        held: QuestionRow | None = None,
    ) -> PolicyRefusal | None:
        """Reserve all charges and write the question as joined in one transaction, if `judge` lets it, else as refused.

        `judge` says of the ledger as it stands what is to be charged, or why not. What is `held` is not written again.
        """
        failpoints.reach("before_reserve")
        with self._spool.change() as ledger:
            new = judge(ledger)
            if not isinstance(new, PolicyRefusal):
                for charge in new:
                    self._spool.insert_charge(charge)
                    ledger.put(charge)
                row = replace(row, state=QuestionState.JOINED, changed_at=now, reason="", rule="")
            elif (row.state, row.reason) != (QuestionState.REFUSED, new.message):
                row = replace(row, state=QuestionState.REFUSED, changed_at=now, reason=new.message, rule=new.rule)
            if row != held:
                self.put(row)
        failpoints.reach("after_reserve")
        return new if isinstance(new, PolicyRefusal) else None

    def leave(self, row: QuestionRow, keep: frozenset[bytes] = frozenset()) -> int:
        """Write how a question stands and free its units, but those to `keep` and those that anything was sent for.

        Returns how many were freed.
        """
        failpoints.reach("before_free")
        with self._spool.change() as ledger:
            freed = self._free(ledger, row.question_id, keep)
            self.put(row)
        failpoints.reach("after_free")
        return freed

    def end(self, question_id: QuestionId, now: float, ledger: Ledger) -> None:
        """Write inside a change of the ledger that a joined question has ended; free what nothing was sent for."""
        failpoints.reach("before_free")
        row = QuestionState.ENDED.value, now, self._spool.name, question_id, QuestionState.JOINED.value
        if self._spool.file.changed(_END, row):
            self._free(ledger, question_id)
        failpoints.reach("after_free")

    def _free(self, ledger: Ledger, question_id: QuestionId, keep: frozenset[bytes] = frozenset()) -> int:
        free = [
            charge.charge_id
            for charge in ledger.charges
            if charge.question_id == question_id and not charge.sent and charge.charge_id not in keep
        ]
        for charge_id in free:
            where = self._spool.name, charge_id
            self._spool.file.changed("DELETE FROM ledger WHERE device=? AND charge_id=? AND sent=0", where)
            ledger.drop(charge_id)
        return len(free)

    def coin_secret(self, source: RandomSource) -> bytes:
        """Return the 32 bytes from which this device's coins follow; drawn once, they live as long as its ledger."""
        file, name = self._spool.file, self._spool.name
        for _ in range(2):
            found = file.rows("SELECT secret FROM device WHERE name=? AND secret IS NOT NULL", (name,))
            if found:
                return bytes(found[0][0])
            # Of two processes the first one's stays.
            drawn = source.random_bytes(_COIN_SECRET_BYTES)
            file.changed("UPDATE device SET secret=? WHERE name=? AND secret IS NULL", (drawn, name))
        raise MachineError("the device's secret cannot be kept: its ledger has not begun")


def _row(row: tuple[Any, ...]) -> QuestionRow:
    return QuestionRow(
        question_id=QuestionId(row[0]),
        name=row[1],
        offer=bytes(row[2]),
        state=QuestionState(row[3]),
        changed_at=row[4],
        reason=row[5],
        rule=row[6],
    )


# The walks of drill-downs as a device follows them: from the public record of each step to the window of the next.
#
# It believes a record only with the signatures of all, for the very window that it has derived itself from the record
# before, down to the signed question. It reads no signal: what it asks for follows from the clock and the question
# alone.

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

    def after(
        self, question: Question, before: Window, answer: "ReleaseAnswer", now: float
    ) -> "tuple[int, ...] | WalkEnd | None":
        """Return what the answer about a step's window says of the next step (`next_step`); None: there is no record
        yet. `now` is the device's clock.

        Raises:
            DecodeError, UsageError: the record is damaged, of another window or from the future.
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
            self._known[name] = self._read(question, before, answer, now)
            if len(self._known) > _KEPT:
                del self._known[next(iter(self._known))]
        return self._known[name]

    def _read(
        self, question: Question, before: Window, answer: "ReleaseAnswer", now: float
    ) -> "tuple[int, ...] | WalkEnd":
        from fleetcount_protocol.release.record import decode_record  # As above.
        from fleetcount_protocol.release.walk import next_step

        record = decode_record(answer.record)
        if record.window.canonical != before.canonical:
            raise UsageError("it is of another window")
        if record.released_at > now + LARGEST_LEAD_S + question.time_precision_s:
            raise UsageError(f"it was released at {record.released_at}, which is in the future")
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
    pause_until: Callable[[float], Awaitable[float]]
    _known: "dict[QuestionId, tuple[int, tuple[int, ...] | WalkEnd]]" = field(
        init=False, repr=False, default_factory=dict
    )

    async def survivors(self, question: Question, index: int) -> "tuple[int, ...] | WalkEnd":
        """Return the cells whose children a window asks about, none for what is no later step, or why it is not asked.

        Asks again while the record before is not there, until round one of the window closes.
        """
        from fleetcount_protocol.release.walk import WalkEnd

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
            answer = await self.transport.release(before)
            following = self.records.after(question, before, answer, self.timer.now())
            if following is None:
                return None
            at, found = at + 1, following
            self._known[question.question_id] = at, found
        return found

"""The question a device knows of, in its state file: what was offered, what its owner said, and what is reserved.

Every change of the ledger is one transaction with its reason. Verifies no signature and decides nothing about privacy.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fleetcount_mechanisms.randomness import RandomSource
from fleetcount_protocol.ids import QuestionId
from fleetcount_transport import failpoints

from fleetcount_client.charges import Charge
from fleetcount_client.ledger import Ledger
from fleetcount_client.panel_coin import COIN_SECRET_BYTES
from fleetcount_client.policy import PolicyRefusal
from fleetcount_client.spool import Spool

_PUT: Final = "INSERT OR REPLACE INTO questions VALUES(?,?,?,?,?,?,?,?)"


class QuestionState(enum.Enum):
    """Where a question stands for a device."""

    OFFERED = 1
    """Checked and allowed, it waits for the owner's word."""
    JOINED = 2
    LEFT = 3
    """The owner left, or said no; only the owner's word brings it back."""
    REFUSED = 4
    """The policy or the budget does not allow it; the reason says why."""
    ENDED = 5
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
        return tuple(map(_row, self._spool.file.rows(query, (self._spool.name,))))

    def get(self, question_id: QuestionId) -> QuestionRow | None:
        """Return one question, None when it is not known."""
        query = (
            "SELECT question_id,name,offer,state,changed_at,reason,rule FROM questions WHERE device=? AND question_id=?"
        )
        rows = self._spool.file.rows(query, (self._spool.name, question_id))
        return _row(rows[0]) if rows else None

    def put(self, row: QuestionRow) -> None:
        """Write a question in the place of what is known of it."""
        with self._spool.change() as (connection, _):
            connection.execute(_PUT, self._values(row))

    def erase(self, question_id: QuestionId) -> None:
        """Forget a question, but none of its charges."""
        with self._spool.change() as (connection, _):
            connection.execute(
                "DELETE FROM questions WHERE device=? AND question_id=?", (self._spool.name, question_id)
            )

    def join(
        self,
        row: QuestionRow,
        charges: Sequence[Charge],
        judge: Callable[[Ledger, Sequence[Charge]], PolicyRefusal | None],
    ) -> PolicyRefusal | None:
        """Reserve all charges and write the question as joined in one transaction, if `judge` lets it; or change
        nothing.

        Units that something was sent for before keep their charge and are not judged again.
        """
        failpoints.reach("before_reserve")
        with self._spool.change() as (connection, ledger):
            new = [ledger.dated(charge) for charge in charges if charge.charge_id not in ledger]
            refusal = judge(ledger, new)
            if refusal is None:
                for charge in new:
                    self._spool.insert_charge(connection, charge)
                    ledger.put(charge)
                connection.execute(_PUT, self._values(row))
        failpoints.reach("after_reserve")
        return refusal

    def leave(self, row: QuestionRow, keep: frozenset[bytes] = frozenset()) -> int:
        """Write how a question stands and free its units, but those to `keep` and those that anything was sent for.

        Returns how many were freed.
        """
        failpoints.reach("before_free")
        with self._spool.change() as (connection, ledger):
            free = [
                charge.charge_id
                for charge in ledger.charges
                if charge.question_id == row.question_id and not charge.sent and charge.charge_id not in keep
            ]
            for charge_id in free:
                where = (self._spool.name, charge_id)
                connection.execute("DELETE FROM ledger WHERE device=? AND charge_id=? AND sent=0", where)
                ledger.drop(charge_id)
            connection.execute(_PUT, self._values(row))
        failpoints.reach("after_free")
        return len(free)

    def coin_secret(self, source: RandomSource) -> bytes:
        """Return the 32 bytes from which this device's coins follow; drawn once, they live as long as its ledger."""
        query = "SELECT secret FROM device WHERE name=?"
        with self._spool.change() as (connection, _):
            found = connection.execute(query, (self._spool.name,)).fetchone()
            if found is not None and found[0] is not None:
                return bytes(found[0])
            secret = source.random_bytes(COIN_SECRET_BYTES)
            connection.execute("UPDATE device SET secret=? WHERE name=?", (secret, self._spool.name))
        return secret

    def _values(self, row: QuestionRow) -> tuple[object, ...]:
        named = (self._spool.name, row.question_id, row.name, row.offer)
        return (*named, row.state.value, row.changed_at, row.reason, row.rule)


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

"""One charge of a device's ledger, and when a ledger may begin to answer.

Values and rules of time; what charges add up to is the ledger's (`ledger`). Loads nothing that only an answer needs.
"""

import hashlib
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from math import ceil, inf
from typing import TYPE_CHECKING, Final

from fleetcount_mechanisms.answers import Relation
from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.ids import QuestionId
from fleetcount_protocol.layout import uint
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_protocol.window.window import Window

from fleetcount_client.policy import OwnerPolicy, PolicyRefusal

if TYPE_CHECKING:
    from fleetcount_mechanisms.accounting.vectors import LossVector


_DAY_S: Final = 86_400
_UNIT_LABEL: Final = b"fleetcount device unit v1"


def unit_id(question_id: QuestionId, unit: int) -> bytes:
    """Return the 32-byte name of a unit, under which the ledger charges it: SHA-256(label || question || unit)."""
    return hashlib.sha256(_UNIT_LABEL + question_id + uint(unit, 8)).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One answered window, or one reserved unit of a question: what it costs against each class of adversary.

    The truth is read at some moment from `asked_at`, the opening of round one of its first window, to before
    `asked_until`, the end of round one of its last, both Unix seconds. A charge counts whole in every period that holds
    a second from `asked_at` to `counts_until`: one window counts at the second it opens, several that share a coin from
    the first to `asked_until`, which None stands for. `loss` is what readers of the releases learn, in the vector of
    the `promise` it was charged under, for a change of the truth by `relation`; None when nothing finite is known.
    `epsilon`, for display, is that of a unit of one window whose loss is pure. `exposure` is the chance that all
    aggregators together see any of its answers, `answers` how many of them they are expected to see. While nothing was
    `sent` for it, a reservation can be taken back.
    """

    charge_id: bytes
    name: str
    signal: str
    asked_at: int
    asked_until: int
    counts_until: int | None = None
    epsilon: Decimal | None
    exposure: Fraction
    answers: Fraction
    relation: Relation = Relation.ANY_VALUE
    promise: str = ""
    loss: "LossVector | None" = None
    question_id: bytes | None = None
    sent: bool = True

    @property
    def last(self) -> int:
        """The last second at which it counts."""
        return self.asked_until if self.counts_until is None else self.counts_until


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAssignment:
    """A joined device's part in one window: what paid for it, the unit's coin, the aggregators with their keys.

    `sampled` is None where the mode has no sampling coin. `choice` says which of several codes it tells, the same in
    all steps of a walk; None where no codes are asked for.
    """

    window: Window
    charge: Charge
    sampled: bool | None = field(repr=False)
    choice: bytes | None = field(repr=False)
    aggregators: tuple[Aggregator, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerAge:
    """When a ledger began, and when the certificate it began with was first valid (None: not known), Unix seconds."""

    created_at: float
    first_valid: int | None = None


def _nothing_lost(policy: OwnerPolicy, age: LedgerAge) -> float | None:
    """Return the moment before which no ledger under this certificate answers, if this ledger began before it."""
    if age.first_valid is None:
        return None
    wait = policy.ledger_wait_s if policy.enrolment_wait_s is None else policy.enrolment_wait_s
    first_answer = age.first_valid + wait
    return first_answer if age.created_at <= first_answer else None


def ready_at(policy: OwnerPolicy, age: LedgerAge) -> float:
    """Return from when on a ledger answers (docs/embedding.md, "A new device").

    No ledger answers before its certificate has been valid for the enrolment wait. One that began by then has lost
    nothing and answers from that moment on; one that began later may stand in for a lost one, and waits until all that
    one may have spent is over.
    """
    if policy.ledger_wait_s == 0:
        return -inf
    first_answer = _nothing_lost(policy, age)
    return age.created_at + policy.ledger_wait_s if first_answer is None else first_answer


def unknown_before(policy: OwnerPolicy, age: LedgerAge) -> float:
    """Return the moment before which this device may have answered without this ledger's knowledge, -inf if never.

    A policy without a wait takes every ledger for its first.
    """
    if policy.ledger_wait_s == 0:
        return -inf
    return age.created_at if _nothing_lost(policy, age) is None else -inf


def judge_age(policy: OwnerPolicy, age: LedgerAge, now: float) -> PolicyRefusal | None:
    """Return why a ledger does not answer yet; None when it does. A clock set back before its beginning waits too."""
    ready = ready_at(policy, age)
    if now >= ready:
        return None
    if _nothing_lost(policy, age) is None:
        why = f"its ledger began {utc_text(age.created_at)} and may stand in for a lost one"
        key = "fresh_ledger_wait_s in [policy]"
    else:
        days = (ready - (age.first_valid or 0)) / _DAY_S
        why = f"a new ledger answers nothing under a certificate that is younger than {days:g} days"
        key = "enrolment_wait_s in [policy], before a certificate's first start,"
    message = f"this device answers from {utc_text(ceil(ready))}, because {why}; set {key} to change it"
    return PolicyRefusal(rule="fresh_ledger", message=message)

"""What this aggregator's releases have cost, by signal and window, and whether one more window fits.

Pure over rows; the debit itself is written by the store in the transaction that stores the noised share (release).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from fleetcount_mechanisms.answers import Relation
from fleetcount_mechanisms.design import LedgerLoss
from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.window.domain import normal_signal
from fleetcount_protocol.window.window import Window

from fleetcount_aggregator.context import Limits
from fleetcount_aggregator.storage.store import LedgerRow

NO_FINITE_EPSILON = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What one window's release loses on one signal in [opens, closes), and for which change of the truth."""

    signal: str
    opens: int
    closes: int
    loss: LedgerLoss


def charge_of(window: Window) -> Charge:
    """Return what a window costs: the public view of its release (docs/privacy.md)."""
    return Charge(
        signal=window.signal,
        opens=window.round_one_opens,
        closes=max(window.round_one_closes, window.round_two_closes),
        loss=window.design.ledger_loss,
    )


def charge_of_question(question: Question, stopped: int | None = None) -> Charge:
    """Return what overlaps with any window of a question: the loss of one, from the first to the last before a stop."""
    schedule = question.schedule
    closes = schedule.end if stopped is None else schedule.closes(max(0, stopped - 1))
    return Charge(signal=question.signal, opens=schedule.opens(0), closes=closes, loss=question.design.ledger_loss)


def debit_row(window: Window, now: int) -> LedgerRow:
    """Return the ledger row of a window's release."""
    charge = charge_of(window)
    return LedgerRow(
        window_id=window.window_id,
        signal=charge.signal,
        opens=charge.opens,
        closes=charge.closes,
        epsilon=NO_FINITE_EPSILON if charge.loss.epsilon is None else str(charge.loss.epsilon),
        debited_at=now,
    )


def check_budget(new: Charge, others: Iterable[Charge], limits: Limits) -> None:
    """Refuse a window whose loss, added to that of every window on the same signal and an overlapping window, is too
    large.

    The sum must hold for the new window and, with it, for every window it overlaps: two short windows that do not touch
    each other may both overlap a long one. Names play no part: a renamed repeat is a repeat. Signals are compared in
    their normal form; what comes one after the other adds up in `period_budget`. The sum holds for any value replaced
    by any other; with one-sided charges in it for a value replaced by none. Epsilons stated at a delta add up as their
    deltas do, which must not pass `total_delta`.

    Raises:
        QuestionError: with the sum and the limit.
    """
    if new.loss.relation is Relation.ONE_SIDED and not limits.allow_one_sided:
        raise QuestionError(
            "the release hides a value behind none only (one-sided); allowed only with [limits] allow_one_sided = true"
        )
    if new.loss.epsilon is None:
        if not limits.allow_exact_release:
            raise QuestionError(
                "the release has no finite epsilon; allowed only with [limits] allow_exact_release = true"
            )
        return
    everyone = [new, *others]
    for one in everyone:
        if one is not new and not _overlaps(new, one):
            continue
        losses = [two.loss for two in everyone if _overlaps(one, two) and two.loss.epsilon is not None]
        total = sum((loss.epsilon or Decimal(0) for loss in losses), Decimal(0))
        delta = sum((loss.delta for loss in losses), Decimal(0))
        if delta > limits.total_delta:
            raise QuestionError(
                f"delta {new.loss.delta:f} and those of the windows that overlap on {new.signal!r} sum to {delta:f},"
                f" allowed: at most {float(limits.total_delta):g}"
            )
        if total > limits.largest_epsilon:
            raise QuestionError(
                f"epsilon {new.loss.epsilon} ({new.loss.relation.value}) and the windows that overlap on {new.signal!r}"
                f" sum to {total}, allowed: at most {limits.largest_epsilon}"
            )


def _overlaps(one: Charge, other: Charge) -> bool:
    same_signal = normal_signal(one.signal) == normal_signal(other.signal)
    return same_signal and one.opens < other.closes and other.opens < one.closes

"""The privacy statement of a case: what each adversary could learn of one device, from one release and from all.

The design's own statement, composed over the epochs; nothing here is measured.
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final

from fleetcount_mechanisms.accounting.question_statement import NEIGHBOURS, question_views
from fleetcount_mechanisms.statement import AdversaryView, views_of

from fleetcount_simulator.engines.participation import answers_allowed
from fleetcount_simulator.model import Case
from fleetcount_simulator.standing import StandingQuestion

_PLACES: Final = Decimal("0.00001")
_FINE_PLACES: Final = Decimal("0.000000001")
_CHANGES: Final = ("One answer", "One day", "All windows")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What one adversary could learn: from one release, and from the `releases` that a device answers in all.

    `epsilon` is None where it is not finite; numbers are rounded up to 5 places.
    """

    adversary: str
    audience: str
    text: str
    epsilon: Decimal | None
    delta: Decimal
    releases: int
    total_epsilon: Decimal | None
    total_delta: Decimal


def statement_of(case: Case) -> tuple[Statement, ...]:
    """Return the statement of a case, the public first.

    The losses of several releases add up (basic composition, also for adaptive questions); what is seen with
    probability delta in each release is seen at least once with probability 1 - (1 - delta)^T. The same holds for
    T losses (eps, delta) (Kairouz, Oh, Viswanath 2015, Theorem 3.3).

    A question of many windows has a statement of its own: for each adversary what one answer, one day and all windows
    tell at one delta (`fleetcount_mechanisms.accounting.question_statement`).

    Raises:
        ScenarioError: as `Case.design`.
    """
    if case.epochs.question is not None and case.epochs.question.windows > 1:
        return _of_question(case, case.epochs.question)
    allowed = answers_allowed(case)
    answered = case.epochs.count if allowed is None else min(case.epochs.count, allowed)
    return tuple(_composed(view, answered) for view in views_of(case.design))


def _of_question(case: Case, question: StandingQuestion) -> tuple[Statement, ...]:
    views = question_views(case.design, question.shape, question.delta)
    made: list[Statement] = []
    for answer, day, whole in zip(*(views[place :: len(NEIGHBOURS)] for place in range(len(NEIGHBOURS))), strict=True):
        made.append(
            Statement(
                adversary=answer.adversary,
                audience=answer.audience,
                text=" ".join(
                    f"{what}: {one.sentence}" for what, one in zip(_CHANGES, (answer, day, whole), strict=True)
                ),
                epsilon=answer.epsilon,
                delta=answer.delta,
                releases=question.windows,
                total_epsilon=whole.epsilon,
                total_delta=whole.delta,
            )
        )
    return tuple(made)


def _composed(view: AdversaryView, releases: int) -> Statement:
    text = view.sentence
    epsilon = None if view.epsilon is None else view.epsilon * releases
    delta = 1 - (1 - Fraction(view.delta)) ** releases
    # Rounded up to 5 places, or to 9 where delta is below 10^-5, as with Gaussian noise.
    unit = _PLACES if delta >= Fraction(_PLACES) or delta == 0 else _FINE_PLACES
    total = Decimal(math.ceil(delta / Fraction(unit))) * unit
    if releases > 1:
        bound = "no finite epsilon" if epsilon is None else f"epsilon {epsilon}"
        text += f" All {releases} releases together: {bound}, delta {total:f}."
    return Statement(
        adversary=view.adversary,
        audience=view.audience,
        text=text,
        epsilon=view.epsilon,
        delta=view.delta,
        releases=releases,
        total_epsilon=epsilon,
        total_delta=total,
    )

"""The promised bounds on a guess at one device's truth, with which measured guess rates are compared.

They follow from the exact losses of `fleetcount_mechanisms` alone; nothing is drawn.
"""

import math

from fleetcount_mechanisms.answers import AnswerForm, Relation
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.losses import exposure
from fleetcount_mechanisms.statement import epsilon_of, ledger_loss_of, relation_of


def allows_two_values(design: Design) -> bool:
    """Return whether the promise covers a change from one value to another, and not only from a value to none."""
    return design.values > 1 and relation_of(design) is Relation.ANY_VALUE


def guess_bound(design: Design, noises: int, questions: int = 1, candidates: int = 2) -> float:
    """Return the largest promised rate of right guesses among equally likely candidates, after `questions` releases.

    `noises` of the aggregators' noises are unknown to the attacker. With one or more the release's own loss eps holds,
    Q releases adding up to Q eps: e^eps/(e^eps + C - 1) for C candidates. A one-sided loss (P[z | value] <=
    e^eps P[z | none], the other way without limit) allows 1 - e^-eps/2 between a value and none: the best
    guess is "value" wherever a value is possible. Delta is added once per release.
    Without noise: the local loss of a response in the same way; for sampling the truth is seen with probability
    x = 1 - (1-p)^Q, which gives x + (1 - x)/C; for direct answers 1.
    """
    if noises and design.noised:
        rate = _bound(questions * float(epsilon_of(design) or 0), relation_of(design), candidates)
        return min(rate + questions * float(ledger_loss_of(design).delta), 1.0)
    if design.local_epsilon is not None:
        return _bound(questions * design.local_epsilon, design.kind.relation, candidates)
    if design.form is AnswerForm.TRUTH:
        return 1.0
    seen = float(exposure(design.exposure, questions))
    return seen + (1 - seen) / candidates


def _bound(loss: float, relation: Relation, candidates: int) -> float:
    if relation.one_way:
        return 1 - math.exp(-loss) / 2
    return 1 / (1 + (candidates - 1) * math.exp(-loss))

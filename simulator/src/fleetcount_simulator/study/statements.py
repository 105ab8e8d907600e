"""The privacy statement of a case: what each adversary could learn of one device, from one release and from all.

Exact bounds of `fleetcount_mechanisms.losses`, composed over the epochs; nothing here is measured.
"""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, cast

from fleetcount_mechanisms import losses
from fleetcount_mechanisms.losses import AdversaryView
from fleetcount_mechanisms.responses import KaryResponse, OptimizedUnaryEncoding
from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_simulator.model import Case, Mechanism
from fleetcount_simulator.scenario.laws import law_of

__all__ = ["Statement", "statement_of"]

_PLACES: Final = Decimal("0.00001")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What one adversary could learn: from one release, and from the `releases` that a device answers in all.

    `epsilon` is None where no finite one exists; numbers are rounded up to 5 places.
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
    probability delta in each release is seen at least once with probability 1 - (1 - delta)^T.

    Raises:
        MechanismError: a mechanism without a statement.
    """
    views = _views(case.mechanism, case.population.question.values, case.aggregators)
    answered = _answered(case, losses.release_epsilon(views))
    return tuple(_composed(view, answered) for view in views)


def _answered(case: Case, loss: Decimal | None) -> int:
    """Return in how many epochs a device answers before its ledger is used up."""
    budget = case.epochs.device_epsilon
    if budget is None or not loss:
        return case.epochs.count
    return min(case.epochs.count, int(budget // Fraction(loss)))


def _composed(view: AdversaryView, releases: int) -> Statement:
    text = view.sentence
    epsilon = None if view.epsilon is None else view.epsilon * releases
    delta = 1 - (1 - Fraction(view.delta)) ** releases
    total = _rounded_up(delta)
    if releases > 1:
        bound = "no finite epsilon" if epsilon is None else f"epsilon {epsilon}"
        text += f" All {releases} releases together: {bound}, delta {total}."
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


def _rounded_up(value: Fraction) -> Decimal:
    return Decimal(-(-value.numerator * 10**5 // value.denominator)) * _PLACES


def _views(mechanism: Mechanism, values: int, aggregators: int) -> tuple[AdversaryView, ...]:
    law, noise = law_of(mechanism, values), mechanism.noise_epsilon
    if isinstance(law, SamplingDie):
        if noise is None:
            return losses.exact_sampling_views(law, aggregators)
        return losses.sampling_views(law, noise, aggregators)
    if isinstance(law, OptimizedUnaryEncoding):
        # Its local loss holds against everybody; what noise adds for the public is not claimed.
        return losses.response_views(cast("KaryResponse", law), None, aggregators)
    if law is not None:
        return losses.response_views(law, noise, aggregators)
    if noise is None:
        raise ValueError(f"kind {mechanism.kind!r} has noise")
    if mechanism.kind == "one-sided":
        return _one_sided_views(noise, aggregators, mechanism.direction or "up")
    return losses.direct_views(noise, values, aggregators)


def _one_sided_views(noise: Fraction, aggregators: int, direction: str) -> tuple[AdversaryView, ...]:
    """Return the views of counts with one-sided noise (AGeo; Takagi et al., Asymmetric Differential Privacy)."""
    protected, open_side = "had a value", "that it had none is not protected"
    if direction == "down":
        protected, open_side = "had none of the values", "that it had one is not protected"
    loss = _rounded_up(noise)
    sentence = f"sees the released counts; epsilon {loss} for the claim that a device {protected}; {open_side}."
    rest = f"any {aggregators - 1} of the {aggregators} aggregators, together with any number of devices"
    audiences = {
        "public_and_broker": "everyone who reads the release, and the broker",
        "one_aggregator": "one aggregator",
        "all_but_one_aggregators": rest,
    }
    shared: dict[str, Any] = {"epsilon": loss, "delta": Decimal(0), "neighbours": "one-sided", "sentence": sentence}
    exposed = AdversaryView(
        adversary="all_aggregators",
        audience=f"all {aggregators} aggregators together",
        epsilon=None,
        delta=Decimal(1),
        neighbours="one-sided",
        sentence="sees the answer of every device; no finite epsilon, delta 1: learns a device's truth for certain.",
    )
    return (*(AdversaryView(adversary=one, audience=who, **shared) for one, who in audiences.items()), exposed)

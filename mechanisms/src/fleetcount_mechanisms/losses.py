"""The exact privacy loss of every release, one value an adversary: who looks, at what, and what remains hidden.

It must not state a loss smaller than the truth: the decimals of a view are rounded up.

Losses are for one device's record being replaced in a fixed public set of participants. "One-cell" neighbours: its
truth changes between 0 (none of the values) and some v. "Two-cell": from some u >= 1 to some v >= 1. p is the sampling
rate, e1 the epsilon of each aggregator's geometric noise. The releases are those of [SP] (Joy and Gerla, section 4),
hardened.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from fleetcount_mechanisms.errors import MechanismError, require_at_least, require_positive
from fleetcount_mechanisms.exponential import near_exp, near_log, rounded_up
from fleetcount_mechanisms.loss_formulas import (
    Neighbours,
    central_delta,
    exact_message_epsilon,
    exact_release_epsilon,
    exposure,
    linked_delta,
    message_epsilon,
    message_epsilon_binary,
    message_epsilon_of_face,
    neighbours_of,
    noise_epsilon_for,
    noise_epsilon_one_cell,
    noise_epsilon_two_cell,
    release_epsilon_one_cell,
    release_epsilon_two_cell,
    release_sd,
    sampling_sd,
)
from fleetcount_mechanisms.responses import KaryResponse, Mangat, MangatVector, RandomizedResponse
from fleetcount_mechanisms.sampling import SamplingDie

__all__ = [
    "AdversaryView",
    "Neighbours",
    "central_delta",
    "direct_views",
    "exact_sampling_views",
    "exposure",
    "linked_delta",
    "message_epsilon",
    "message_epsilon_binary",
    "message_epsilon_of_face",
    "neighbours_of",
    "noise_epsilon_for",
    "noise_epsilon_one_cell",
    "noise_epsilon_two_cell",
    "release_epsilon",
    "release_epsilon_one_cell",
    "release_epsilon_two_cell",
    "release_sd",
    "response_release_epsilon",
    "response_views",
    "sampling_sd",
    "sampling_views",
]

_PLACES = 5
_NONE = Decimal("0.00000")
_PUBLIC = "public_and_broker"
_READERS = "everyone who reads the release, and the broker"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdversaryView:
    """What one adversary can learn of one device from one release.

    adversary is a stable slug, audience the same in words; epsilon is rounded up to 5 decimal places, None when no
    finite epsilon exists; delta is rounded up too; neighbours names the change protected; sentence is for people.

    Raises:
        MechanismError: a negative epsilon, or a delta outside [0, 1].
    """

    adversary: str
    audience: str
    epsilon: Decimal | None
    delta: Decimal
    neighbours: str
    sentence: str

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.epsilon is not None and self.epsilon < 0:
            raise MechanismError(f"epsilon is {self.epsilon}, allowed: 0 or more")
        if not 0 <= self.delta <= 1:
            raise MechanismError(f"delta is {self.delta}, allowed: 0..1")


# The views: one value an adversary.


def _noise_and_aggregators(noise_epsilon: object, aggregators: object) -> tuple[Fraction, int]:
    noise = require_positive("noise epsilon", noise_epsilon)
    if noise > 100:
        raise MechanismError(f"noise epsilon is {noise}, allowed: 0 < noise epsilon <= 100")
    return noise, require_at_least("aggregators", aggregators, 2)


def _change(neighbours: str) -> str:
    """Return a neighbour relation in words."""
    if neighbours == "any-bit":
        return "a change of one place of one device's truth"
    return (
        "any change of one device's truth"
        if neighbours == "any-value"
        else f"a {neighbours} change of one device's truth"
    )


def _finite(
    adversary: str, audience: str, epsilon: Fraction, neighbours: str, sees: str, *, change: str | None = None
) -> AdversaryView:
    shown = rounded_up(epsilon, _PLACES)
    protects = change or _change(neighbours)
    return AdversaryView(
        adversary=adversary,
        audience=audience,
        epsilon=shown,
        delta=_NONE,
        neighbours=neighbours,
        sentence=f"sees {sees}; epsilon {shown}, delta 0, for {protects}.",
    )


def _revealed(adversary: str, audience: str, delta: Fraction, neighbours: str, sees: str) -> AdversaryView:
    shown = rounded_up(delta, _PLACES)
    learns = "for certain" if delta == 1 else f"with probability {shown} and nothing otherwise"
    return AdversaryView(
        adversary=adversary,
        audience=audience,
        epsilon=None,
        delta=shown,
        neighbours=neighbours,
        sentence=f"sees {sees}; no finite epsilon, delta {shown}: learns a device's truth {learns}.",
    )


def _released_to_all(loss: Fraction, aggregators: int, neighbours: str, what: str) -> tuple[AdversaryView, ...]:
    """Return the views the noise of one honest aggregator covers: public, one aggregator, all but one with devices."""
    rest = f"any {aggregators - 1} of the {aggregators} aggregators, together with any number of devices"
    protects = f"{_change(neighbours)}, as long as"
    return (
        _finite(_PUBLIC, _READERS, loss, neighbours, what, change=f"{protects} one aggregator adds its noise"),
        _finite(
            "one_aggregator",
            "one aggregator",
            loss,
            neighbours,
            f"its shares and {what}",
            change=f"{protects} another adds its noise",
        ),
        _finite(
            "all_but_one_aggregators",
            rest,
            loss,
            neighbours,
            f"their shares and {what}",
            change=f"{protects} the remaining one adds its noise",
        ),
    )


def _all_aggregators(delta: Fraction, aggregators: int, neighbours: str) -> AdversaryView:
    what = "both rounds of every device" if delta < 1 else "the answer of every device"
    return _revealed("all_aggregators", f"all {aggregators} aggregators together", delta, neighbours, what)


def _one_message(die: SamplingDie) -> AdversaryView:
    return _finite(
        "one_round_two_message",
        "whoever opens one round-two message alone",
        exact_message_epsilon(die),
        "any-value",
        "one round-two message without its round-one message",
        change="any change of one device's truth",
    )


def sampling_views(
    die: SamplingDie, noise_epsilon: Fraction, aggregators: int, values: int | None = None
) -> tuple[AdversaryView, ...]:
    """Return the views of the default release: the noised difference of the two rounds over cells 1..V.

    Public, one aggregator and all but one of them see a loss of eps'; all together see the truth with probability p; if
    the bit "this device was sampled" leaks, e1 (one-cell) or 2 e1 (two-cell) remains; one round-two message alone loses
    max ln(1 + p/pi_v).

    Raises:
        MechanismError: a noise epsilon not in (0, 100], fewer than 2 aggregators, or `values` other than the die's.
    """
    noise, parties = _noise_and_aggregators(noise_epsilon, aggregators)
    if values is not None and values != die.values:
        raise MechanismError(f"values is {values}, allowed: the die's own {die.values}")
    neighbours = neighbours_of(die.values)
    sampled = _finite(
        "sampled_bit_leaked",
        "whoever knows that a device was sampled, and reads the release",
        exact_release_epsilon(Fraction(1), noise, neighbours),
        neighbours.value,
        "the released counts and that bit",
    )
    loss = exact_release_epsilon(die.sampling_rate, noise, neighbours)
    return (
        *_released_to_all(loss, parties, neighbours.value, "the released counts"),
        _all_aggregators(linked_delta(die), parties, neighbours.value),
        sampled,
        _one_message(die),
    )


def exact_sampling_views(die: SamplingDie, aggregators: int) -> tuple[AdversaryView, ...]:
    """Return the views of the release of [SP] itself, the exact difference: no finite epsilon for anybody, delta = p.

    Raises:
        MechanismError: fewer than 2 aggregators.
    """
    parties = require_at_least("aggregators", aggregators, 2)
    kind = neighbours_of(die.values).value
    delta = linked_delta(die)
    rest = f"any {parties - 1} of the {parties} aggregators, together with any number of devices"
    return (
        _revealed(_PUBLIC, _READERS, delta, kind, "the exact counts"),
        _revealed("one_aggregator", "one aggregator", delta, kind, "its shares and the exact counts"),
        _revealed("all_but_one_aggregators", rest, delta, kind, "their shares and the exact counts"),
        _all_aggregators(delta, parties, kind),
        _revealed(
            "sampled_bit_leaked",
            "whoever knows that a device was sampled, and reads the release",
            Fraction(1),
            kind,
            "the exact counts and that bit",
        ),
        _one_message(die),
    )


def direct_views(
    noise_epsilon: Fraction, values: int, aggregators: int, *, baseline_released: bool = False
) -> tuple[AdversaryView, ...]:
    """Return the views of direct mode: every truth in shares, only the aggregators' noise between it and the public.

    The loss is e1 for one-cell neighbours (V = 1 and output 0 not released) and 2 e1 otherwise.

    Raises:
        MechanismError: a noise epsilon not in (0, 100], V below 1, or fewer than 2 aggregators.
    """
    noise, parties = _noise_and_aggregators(noise_epsilon, aggregators)
    neighbours = Neighbours.TWO_CELL if baseline_released else neighbours_of(values)
    loss = exact_release_epsilon(Fraction(1), noise, neighbours)
    return (
        *_released_to_all(loss, parties, neighbours.value, "the released counts"),
        _all_aggregators(Fraction(1), parties, neighbours.value),
    )


def release_epsilon(views: Iterable[AdversaryView]) -> Decimal | None:
    """Return what the ledgers charge: the epsilon of the public view, None if it has none.

    Raises:
        MechanismError: no public view among them.
    """
    for view in views:
        if view.adversary == _PUBLIC:
            return view.epsilon
    raise MechanismError(f"the views hold no {_PUBLIC!r}, allowed: the views of one release")


# Responses: the local loss holds against everybody; noise on all outputs only improves what the public sees.

_Pairs = list[tuple[Fraction, Fraction]]


def _law_pairs(response: RandomizedResponse) -> list[_Pairs]:
    """Return, for pairs of truths that cover all up to symmetry, the outputs' probabilities under the two."""
    if isinstance(response, KaryResponse):
        keep, other = response.keep, response.other
        rest = other * (response.values - 1)
        return [[(keep, other), (other, keep), (rest, rest)]]
    truths = range(response.values + 1)
    return [
        [(response.probability(output, first), response.probability(output, second)) for output in truths]
        for first in truths
        for second in truths
        if first != second
    ]


def _mixture_loss(pairs: _Pairs, power: Fraction) -> Fraction:
    """Return the largest ratio of two mixtures of release laws that differ by factors 1..power between outputs.

    The release given an output has a density in {1, power} up to a constant, in every pattern over the outputs. The
    ratio of the mixtures is largest when the outputs with the largest ratio of probabilities have the factor `power`.
    """
    ordered = sorted(pairs, key=_ratio, reverse=True)
    largest, first, second = Fraction(1), Fraction(0), Fraction(0)
    for one, two in ordered:
        first, second = first + one, second + two
        largest = max(largest, (1 + (power - 1) * first) / (1 + (power - 1) * second))
    return largest


def _ratio(pair: tuple[Fraction, Fraction]) -> tuple[bool, Fraction]:
    # Outputs impossible under the second truth come first.
    return (True, pair[0]) if pair[1] == 0 else (False, pair[0] / pair[1])


def response_release_epsilon(response: RandomizedResponse | MangatVector, noise_epsilon: Fraction) -> Decimal:
    """Return the exact loss of the noised counts of all outputs, rounded up.

    An answer that changes moves two outputs (e**(2 e1) between their release laws); a bit of a vector moves one cell.
    The loss is for any change of the truth (of one bit, for a vector), at most 2 e1 (e1) and at most the local loss.

    Raises:
        MechanismError: a noise epsilon not in (0, 100].
    """
    return rounded_up(_released_response_loss(response, noise_epsilon), _PLACES)


def _released_response_loss(response: RandomizedResponse | MangatVector, noise_epsilon: Fraction) -> Fraction:
    noise, _ = _noise_and_aggregators(noise_epsilon, 2)
    if not isinstance(response, MangatVector):
        laws, power = _law_pairs(response), near_exp(2 * noise)
    else:
        laws, power = _bit_pairs(response), near_exp(noise)
    return near_log(max(_mixture_loss(pairs, power) for pairs in laws))


def _bit_pairs(response: MangatVector) -> list[_Pairs]:
    law = response.bit_probability
    return [[(law(bit, first), law(bit, 1 - first)) for bit in (0, 1)] for first in (0, 1)]


def _local(adversary: str, audience: str, response: RandomizedResponse | MangatVector, sees: str) -> AdversaryView:
    loss = Fraction(response.epsilon)
    if isinstance(response, Mangat | MangatVector):
        change = "a Yes replaced by a No (that a No is a No is not protected)"
        return _finite(adversary, audience, loss, "one-sided", sees, change=change)
    return _finite(adversary, audience, loss, "any-value", sees, change="any change of one device's truth")


def response_views(
    response: RandomizedResponse | MangatVector, noise_epsilon: Fraction | None, aggregators: int
) -> tuple[AdversaryView, ...]:
    """Return the views of response mode: the local loss against everybody, and less where noise on all outputs covers.

    For a vector the loss is that of one place; m places cost m times as much. Mangat's local loss is one-sided; with
    noise the public's loss is for any change.

    Raises:
        MechanismError: a noise epsilon not in (0, 100], or fewer than 2 aggregators.
    """
    parties = require_at_least("aggregators", aggregators, 2)
    everybody = (
        _local("all_aggregators", f"all {parties} aggregators together", response, "every device's randomized answer"),
        _local("one_answer_alone", "whoever opens one answer alone", response, "one randomized answer"),
    )
    if noise_epsilon is not None:
        loss = _released_response_loss(response, noise_epsilon)
        kind = "any-bit" if isinstance(response, MangatVector) else "any-value"
        return (*_released_to_all(loss, parties, kind, "noised counts of randomized answers"), *everybody)
    rest = f"any {parties - 1} of the {parties} aggregators, together with any number of devices"
    what = "exact counts of randomized answers"
    return (
        _local(_PUBLIC, _READERS, response, what),
        _local("one_aggregator", "one aggregator", response, f"its shares and {what}"),
        _local("all_but_one_aggregators", rest, response, f"their shares and {what}"),
        *everybody,
    )

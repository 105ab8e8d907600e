"""Every number of every statement, and what ledgers charge, recomputed by enumeration at 100 digits.

Nothing here uses the formulas under test: answers are enumerated from the papers' definitions, a release is a sum over
them of products of a**|z - v|. No claim is below the truth, none above it by more than 10**-5.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import cache
from typing import Any, Final

import pytest
from fleetcount_mechanisms.answers import AnswerLaw, Truth, answer_names
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.noise import NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.responses import (
    AsymmetricVector,
    Flips,
    KaryResponse,
    Mangat,
    MangatVector,
    OptimizedUnaryEncoding,
    TwoCoin,
    Warner,
)
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_mechanisms.statement import epsilon_of, ledger_loss_of, views_of

from tests.support.nightly import NIGHTLY

SETS: Final = 2000 if NIGHTLY else 400
DIGITS: Final = Context(prec=100)
SLACK: Final = Decimal("1e-5")
ROUNDING: Final = Decimal("1e-90")
"""The error of the enumeration itself, which meets claims that are exactly the truth."""
EDGES: Final = (Fraction(1, 1000), Fraction(1, 2), Fraction(999, 1000))
NOISE_EDGES: Final = (Fraction(1, 1000), Fraction(1), Fraction(10), Fraction(100))
Vector = tuple[int, ...]
Law = dict[Vector, Fraction]


# Random parameters, a quarter of them at an edge.


def chance(draw: random.Random) -> Fraction:
    return draw.choice(EDGES) if draw.random() < 0.25 else Fraction(draw.randint(1, 999), 1000)


def noise_epsilon(draw: random.Random) -> Fraction:
    return draw.choice(NOISE_EDGES) if draw.random() < 0.25 else Fraction(draw.randint(1, 5000), 1000)


def die(draw: random.Random, values: int) -> SamplingDie:
    weights = [draw.randint(1, 50) for _ in range(values + 1)]
    return die_of(chance(draw), weights)


def die_of(rate: Fraction, weights: list[int]) -> SamplingDie:
    faces = tuple((1 - rate) * Fraction(weight, sum(weights)) for weight in weights)
    return SamplingDie(sampling_rate=rate, values=len(faces) - 1, face_probabilities=faces, allow_large_rate=True)


def above(draw: random.Random, least: Fraction) -> Fraction:
    return least + (1 - least) * chance(draw)


ANSWERS: Final[dict[str, Callable[[random.Random, int], AnswerLaw]]] = {
    "sampling": die,
    "direct": lambda draw, values: Truth(values),
    "two-coin": lambda draw, values: TwoCoin(chance(draw), chance(draw)),
    "warner": lambda draw, values: Warner(above(draw, Fraction(1, 2))),
    "mangat": lambda draw, values: Mangat(chance(draw)),
    "mangat-vector": lambda draw, values: MangatVector(chance(draw), values),
    "k-ary": lambda draw, values: KaryResponse(above(draw, Fraction(1, values + 1)), values),
    "unary": lambda draw, values: OptimizedUnaryEncoding(chance(draw) / 2, values),
    "asymmetric": lambda draw, values: AsymmetricVector(chance(draw), draw.choices(tuple(Flips), k=values)),
}
YES_OR_NO: Final = ("two-coin", "warner", "mangat")


def design_of(draw: random.Random) -> Design:
    name = draw.choice(sorted(ANSWERS))
    values = 1 if name in YES_OR_NO else draw.randint(1, 3)
    answer, size = ANSWERS[name](draw, values), noise_epsilon(draw)
    noise: Any = TwoSidedNoise(size)
    if name == "direct" and draw.random() < 0.5:
        noise = OneSidedNoise(size, draw.choice(["up", "down"]))
    elif name != "direct" and draw.random() < 0.25:
        noise = NoNoise()
    return Design(answer=answer, noise=noise, values=values, aggregators=draw.randint(2, 5))


# What one device adds to the opened numbers, from the definitions alone.


def one_hot(values: int, place: int) -> Vector:
    return tuple(int(cell == place) for cell in range(1, values + 1))


def truths(values: int) -> list[Vector]:
    return [one_hot(values, place) for place in range(values + 1)]


def bit_law(answer: Any, bit: int, cell: int) -> tuple[Fraction, Fraction]:
    """Return the chances of 0 and 1: Mangat keeps a 1 and turns a 0 by `flip`; unary shows a 1 half of the time.

    Of an asymmetric answer a bit is wrong by `flip` one way, or both ways by flip in 1 + flip.
    """
    if isinstance(answer, AsymmetricVector):
        f, way = answer.flip, answer.flips[cell - 1]
        wrong = f / (1 + f) if way is Flips.BOTH else f * (way is (Flips.DOWN if bit else Flips.UP))
        one = 1 - wrong if bit else wrong
    elif isinstance(answer, MangatVector):
        one = Fraction(1) if bit else answer.flip
    else:
        one = Fraction(1, 2) if bit else answer.flip
    return 1 - one, one


def position_law(answer: Any, values: int, place: int) -> list[Fraction]:
    if isinstance(answer, KaryResponse):
        return [answer.keep if one == place else (1 - answer.keep) / values for one in range(values + 1)]
    if isinstance(answer, TwoCoin):
        q, r = answer.truth_probability, answer.yes_probability
        yes = (1 - q) * r + (q if place else 0)
    elif isinstance(answer, Warner):
        yes = answer.keep if place else 1 - answer.keep
    else:
        yes = Fraction(1) if place else answer.flip
    return [1 - yes, yes]


def answered(answer: Any, truth: Vector) -> Law:
    """Return the law of one answer: the pair of faces, the output or the bits, as a vector."""
    values, place = len(truth), (truth.index(1) + 1 if 1 in truth else 0)
    if isinstance(answer, Truth):
        return {truth: Fraction(1)}
    if isinstance(answer, SamplingDie):
        equal = ((1 - answer.sampling_rate) / (values + 1),) * (values + 1)
        faces = {(face, face): chance for face, chance in enumerate(answer.face_probabilities or equal)}
        faces[0, place] = faces.get((0, place), Fraction(0)) + answer.sampling_rate
        return dict(faces)
    if isinstance(answer, MangatVector | OptimizedUnaryEncoding | AsymmetricVector):
        law: Law = {(): Fraction(1)}
        for cell, bit in enumerate(truth, start=1):
            chances = bit_law(answer, bit, cell)
            law = {(*had, b): had_p * p for had, had_p in law.items() for b, p in enumerate(chances)}
        return law
    chances = position_law(answer, values, place)
    return {tuple(int(one == output) for one in range(values + 1)): p for output, p in enumerate(chances)}


def opened(answer: Any, truth: Vector) -> Law:
    """Return the law of what the device adds to the opened numbers."""
    if not isinstance(answer, SamplingDie):
        return answered(answer, truth)
    law: Law = {}
    for (one, two), p in answered(answer, truth).items():
        moved = tuple(b - a for a, b in zip(one_hot(len(truth), one), one_hot(len(truth), two), strict=True))
        law[moved] = law.get(moved, Fraction(0)) + p
    return law


# The largest ratio and the least delta between two truths.


@cache
def power(noise: Fraction, size: int) -> Decimal:
    exponent = DIGITS.divide(Decimal(-noise.numerator * size), Decimal(noise.denominator))
    return DIGITS.exp(exponent)


def released(law: Law, noise: Any) -> dict[Vector, Decimal]:
    """Return the release's density, but for a constant, wherever a ratio of two can be extreme.

    Noise on both sides of numbers in -1..1 has constant ratios outside of them; on one side, above them or below.
    """
    length = len(next(iter(law)))
    side = {"up": 1, "down": -1}.get(getattr(noise, "direction", ""), 0)
    table: dict[Vector, Decimal] = {}
    for point in itertools.product((-1, 0, 1), repeat=length):
        total = Decimal(0)
        for vector, p in law.items():
            away = [z - v for z, v in zip(point, vector, strict=True)]
            if side and any(one * side < 0 for one in away):
                continue
            total += decimal(p) * power(noise.epsilon, sum(map(abs, away)))
        table[point] = total
    return table


def decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


Table = dict[Vector, Decimal]


def loss(one: Table, two: Table) -> Decimal:
    """Return ln max P/P', infinite where an output is impossible under the second."""
    ratios = [p / two[z] if two.get(z) else Decimal("inf") for z, p in one.items() if p]
    return max(ratios).ln()


def worst(tables: dict[Vector, Table], pairs: list[tuple[Vector, Vector]]) -> Decimal:
    return max((loss(tables[one], tables[two]) for one, two in pairs), default=Decimal(0))


def any_value(values: int) -> list[tuple[Vector, Vector]]:
    return list(itertools.permutations(truths(values), 2))


def related(design: Design, relation: str) -> list[tuple[Vector, Vector]]:
    """Return the ordered changes that a view names; a bit of a vector changes alike whatever the others are."""
    none = one_hot(design.values, 0)
    to_none = [(truth, none) for truth in truths(design.values) if truth != none]
    from_none = [(none, truth) for truth, _ in to_none]
    if relation in ("one-sided", "one-sided-down"):
        return from_none if getattr(design.noise, "direction", "up") == "down" else to_none
    if relation == "asymmetric":
        flips = dict(zip(truths(design.values)[1:], design.answer.flips, strict=True))  # type: ignore[union-attr]  # its own law.
        return [
            (one, two)
            for one, two in any_value(design.values)
            if flips.get(one) is not Flips.DOWN and flips.get(two) is not Flips.UP
        ]
    return to_none + from_none if relation == "any-bit" else any_value(design.values)


def plain(law: Law) -> Table:
    return {z: decimal(p) for z, p in law.items()}


def delta(laws: dict[Vector, Law], values: int) -> Fraction:
    """Return the least delta at an epsilon beyond every finite ratio: the largest chance of an impossible output."""
    return max(
        sum((p for z, p in laws[one].items() if p and not laws[two].get(z)), Fraction(0))
        for one, two in any_value(values)
    )


def claims(design: Design) -> Iterator[tuple[str, Decimal | None, Decimal]]:
    """Yield every claim with its name, and the truth: an epsilon, or a delta where no epsilon is finite."""
    answer, noise, values = design.answer, design.noise, design.values
    alone = {truth: answered(answer, truth) for truth in truths(values)}
    sums = {truth: opened(answer, truth) for truth in truths(values)}
    tables = {t: plain(law) if isinstance(noise, NoNoise) else released(law, noise) for t, law in sums.items()}
    bare = {t: plain(law) for t, law in alone.items()}
    for view in views_of(design):
        pairs = related(design, view.neighbours)
        if view.adversary in ("public_and_broker", "one_aggregator", "all_but_one_aggregators"):
            seen, laws = tables, sums
        elif view.adversary == "sampled_bit_leaked":
            laws = {truth: {truth: Fraction(1)} for truth in truths(values)}
            seen = {t: released(law, noise) for t, law in laws.items()} if design.noised else {}
        elif view.adversary == "one_round_two_message":
            laws = {t: second_round(law) for t, law in alone.items()}
            seen = {t: plain(law) for t, law in laws.items()}
        else:
            seen, laws = bare, alone
        if view.epsilon is None:
            yield view.adversary, view.delta, decimal(delta(laws, values))
        else:
            yield view.adversary, view.epsilon, worst(seen, pairs)
            assert view.delta == 0
    charged = ledger_loss_of(design)
    if charged.epsilon is not None:
        yield "ledger", charged.epsilon, worst(tables, related(design, charged.relation.value))


def second_round(law: Law) -> Law:
    found: Law = {}
    for (_, two), p in law.items():
        found[(two,)] = found.get((two,), Fraction(0)) + p
    return found


@pytest.mark.parametrize("block", range(10))
def test_no_claim_is_below_the_truth_and_none_far_above_it(block: int) -> None:
    with localcontext(DIGITS):
        for number in range(block, SETS, 10):
            check_claims(design_of(random.Random(number)))


@pytest.mark.parametrize("noise", [NoNoise(), TwoSidedNoise(Fraction(3, 2))], ids=["exact", "noised"])
@pytest.mark.parametrize("values", [1, 2, 3])
def test_no_claim_of_a_die_with_equal_faces_is_below_the_truth(values: int, noise: Any) -> None:
    answer = die_of(Fraction(313, 1000), [1] * (values + 1))
    assert answer.face_probabilities is None, "drawn weights may be equal too, once in hundreds"

    with localcontext(DIGITS):
        check_claims(Design(answer=answer, noise=noise, values=values, aggregators=2))


def check_claims(design: Design) -> None:
    for name, claim, truth in claims(design):
        assert claim is not None
        assert truth - ROUNDING <= claim <= truth + SLACK, (design, name, claim, truth)


def test_every_family_of_answers_is_recomputed() -> None:
    assert sorted(ANSWERS) == sorted(answer_names())


@pytest.mark.parametrize("flip", [Fraction(1, 100), Fraction(1, 10), Fraction(1, 2), Fraction(99, 100)], ids=str)
@pytest.mark.parametrize("noise", [Fraction(1, 100), Fraction(1), Fraction(10)], ids=str)
def test_sets_of_s_values_lose_at_most_s_times_the_charge_of_a_value(flip: Fraction, noise: Fraction) -> None:
    design = Design(answer=MangatVector(flip, 3), noise=TwoSidedNoise(noise), values=3, aggregators=2)
    charge = ledger_loss_of(design).epsilon
    assert charge is not None
    with localcontext(DIGITS):
        truths_of_sets: list[Vector] = list(itertools.product((0, 1), repeat=3))
        every = {truth: released(opened(design.answer, truth), design.noise) for truth in truths_of_sets}
        for size in (1, 2, 3):
            sets = [pair for pair in itertools.permutations(every, 2) if max(map(sum, pair)) <= size]
            assert worst(every, sets) <= size * charge


def test_a_place_of_the_vector_loses_less_than_a_value_that_moves() -> None:
    design = Design(answer=MangatVector(Fraction(1, 10), 3), noise=TwoSidedNoise(Fraction(1)), values=3, aggregators=2)

    assert (epsilon_of(design), ledger_loss_of(design).epsilon) == (Decimal("0.93471"), Decimal("1.77614"))

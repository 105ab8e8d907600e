"""The design of a question: its statement is what enumeration says, its parts are refused by name."""

import itertools
import math
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

import pytest
from fleetcount_mechanisms.answers import AnswerForm, Relation, Truth, answer_named, kind_of, register_answer
from fleetcount_mechanisms.design import Design, Outputs
from fleetcount_mechanisms.errors import InfeasibleTargetError, MechanismError
from fleetcount_mechanisms.losses import released_loss
from fleetcount_mechanisms.noise import GaussianNoise, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.noise_draws import draw_noise
from fleetcount_mechanisms.planned_noise import noise_for, response_release_epsilon
from fleetcount_mechanisms.randomness import SeededRandom
from fleetcount_mechanisms.responses import AsymmetricVector, Mangat, MangatVector, OptimizedUnaryEncoding, Warner
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_mechanisms.statement import epsilon_of, relation_of, views_of

from tests.support.cases import case
from tests.support.designs import NOISES, allowed, answers, design_name, every_design

Vector = tuple[int, ...]
Law = dict[Vector, Fraction]
ALONE = every_design((2,))


# What one device adds to the opened numbers, by enumeration.


def truths(design: Design) -> list[Vector]:
    """Return every truth as the indicator of its cells; all subsets where a truth is a set of values."""
    if design.kind.multi_hot:
        return list(itertools.product((0, 1), repeat=design.values))
    return [tuple(int(cell == truth) for cell in range(1, design.values + 1)) for truth in range(design.values + 1)]


def opened_law(design: Design, truth: Vector) -> Law:
    answer: Any = design.answer
    place = truth.index(1) + 1 if 1 in truth else 0
    law: Law = {}

    def add(vector: Vector, chance: Fraction) -> None:
        law[vector] = law.get(vector, Fraction(0)) + chance

    if design.form is AnswerForm.TRUTH:
        add(truth, Fraction(1))
    elif design.form is AnswerForm.TWO_ROUNDS:
        cells = range(1, design.values + 1)
        for one, two in itertools.product(range(design.values + 1), repeat=2):
            moved = tuple(int(two == cell) - int(one == cell) for cell in cells)
            add(moved, answer.pair_probability(one, two, place))
    elif design.form is AnswerForm.BITS:
        for bits in itertools.product((0, 1), repeat=design.values):
            cells = enumerate(zip(bits, truth, strict=True), start=1)
            chances = (answer.bit_probability(bit, own, cell) for cell, (bit, own) in cells)
            add(bits, math.prod(chances, start=Fraction(1)))
    else:
        for output in range(design.values + 1):
            unit = tuple(int(cell == output) for cell in range(design.values + 1))
            add(unit, answer.probability(output, place))
    return {vector: chance for vector, chance in law.items() if chance}


def related(design: Design) -> Iterator[tuple[Vector, Vector]]:
    """Yield the ordered changes of truth that the statement's relation covers."""
    for one, two in itertools.permutations(truths(design), 2):
        apart = sum(a != b for a, b in zip(one, two, strict=True))
        if relation_of(design) is Relation.ANY_VALUE or (relation_of(design) is Relation.ANY_BIT and apart == 1):
            yield one, two
        elif relation_of(design) is Relation.ASYMMETRIC:
            places = [truth.index(1) + 1 if any(truth) else 0 for truth in (one, two)]
            if cast("AsymmetricVector", design.answer).hides(*places):
                yield one, two
        elif relation_of(design).one_way and apart == 1 and sum(one) > sum(two):
            yield (two, one) if getattr(design.noise, "direction", "up") == "down" else (one, two)


def worst_loss(first: Law, second: Law, design: Design) -> float:
    """Return the largest log-ratio of the opened numbers' laws with the noise of one honest aggregator.

    Ratios of geometric laws that differ by a shift of at most one a number are extreme within two of the origin.
    """
    densities = [[density(law, point, design) for law in (first, second)] for point in box(first, design)]
    return max(math.log(one / two) if two else math.inf for one, two in densities if one)


def box(law: Law, design: Design) -> Iterator[Vector]:
    length = len(next(iter(law)))
    return itertools.product(range(-2, 4) if isinstance(design.noise, OneSidedNoise) else range(-2, 3), repeat=length)


def density(law: Law, point: Vector, design: Design) -> float:
    return sum(
        float(chance) * math.prod(noise_mass(design, z - v) for z, v in zip(point, vector, strict=True))
        for vector, chance in law.items()
    )


def noise_mass(design: Design, z: int) -> float:
    noise = design.noise
    if isinstance(noise, NoNoise):
        return float(z == 0)
    size = z if getattr(noise, "direction", "up") == "up" else -z
    if isinstance(noise, OneSidedNoise) and size < 0:
        return 0.0
    return math.exp(-float(noise.epsilon or 0) * abs(z))


PURE = [one for one in ALONE if not isinstance(one.noise, GaussianNoise)]
"""Gaussian noise has no pure loss; `test_gaussian_losses` enumerates its deltas."""


@pytest.mark.parametrize("design", PURE, ids=design_name)
def test_the_public_view_is_what_the_enumeration_of_the_release_says(design: Design) -> None:
    worst = max(worst_loss(opened_law(design, one), opened_law(design, two), design) for one, two in related(design))

    if epsilon_of(design) is None:
        assert worst == math.inf
        return
    # Rounded up at the fifth place; the enumeration is in floating point.
    assert worst - 1e-9 <= float(epsilon_of(design))
    assert float(epsilon_of(design)) <= worst + 1.1e-5


def test_delta_of_an_exact_release_is_the_least_that_enumeration_allows() -> None:
    for design in (one for one in ALONE if not one.noised):
        with case(design_name(design)):
            public, power = views_of(design)[0], Fraction(10**9)
            deltas = [
                sum(max(law.get(z, Fraction(0)) - power * other.get(z, Fraction(0)), Fraction(0)) for z in law)
                for law, other in ((opened_law(design, a), opened_law(design, b)) for a, b in related(design))
            ]

            assert Fraction(public.delta) == max(deltas)


def test_another_process_is_handed_the_same_design() -> None:
    for design in ALONE:
        with case(design_name(design)):
            views_of(design)

            handed = pickle.loads(pickle.dumps(design))

            assert handed == design
            assert views_of(handed) == views_of(design)


def test_all_aggregators_together_see_what_the_answer_itself_shows() -> None:
    for design in ALONE:
        with case(design_name(design)):
            everyone = next(view for view in views_of(design) if view.adversary == "all_aggregators")

            if design.device_randomizes:
                bare = Design(answer=design.answer, noise=NoNoise(), values=design.values, aggregators=2)
                assert (everyone.epsilon, everyone.delta) == (epsilon_of(bare), 0)
                assert everyone.neighbours == kind_of(design.answer).relation.value
            else:
                assert (everyone.epsilon, Fraction(everyone.delta)) == (None, design.exposure)


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("values", [1, 3])
def test_a_one_sided_statement_promises_one_side_and_says_what_it_does_not(direction: Any, values: int) -> None:
    design = Design(answer=Truth(values), noise=OneSidedNoise(Fraction(1, 3), direction), values=values, aggregators=3)
    none, first, *others = (opened_law(design, truth) for truth in truths(design))
    shown, hidden = (first, none) if direction == "up" else (none, first)
    sentence = views_of(design)[0].sentence

    assert worst_loss(shown, hidden, design) == pytest.approx(1 / 3)
    assert worst_loss(hidden, shown, design) == math.inf, "the other side has no finite loss"
    assert "if one aggregator adds its noise" in sentence
    assert "epsilon 0.33334" in sentence
    assert ("that it had none is not protected" in sentence) == (direction == "up")
    assert ("that it had one is not protected" in sentence) == (direction == "down")
    for other in others:
        assert worst_loss(first, other, design) == worst_loss(other, first, design) == math.inf
    assert ("nor which of two values it had" in sentence) == (values > 1)


# What else follows.


def test_a_statement_names_every_adversary_once_and_the_public_first() -> None:
    for design in every_design():
        with case(design_name(design)):
            views = views_of(design)
            slugs = [view.adversary for view in views]

            assert slugs[:4] == ["public_and_broker", "one_aggregator", "all_but_one_aggregators", "all_aggregators"]
            assert len(set(slugs)) == len(slugs)
            assert views[2].audience.startswith(f"any {design.aggregators - 1} of the {design.aggregators} ")
            assert views[3].audience == f"all {design.aggregators} aggregators together"


AUDIENCES = {
    "public_and_broker": "everyone who reads the release, and the broker",
    "one_aggregator": "one aggregator",
    "sampled_bit_leaked": "whoever knows that a device was sampled, and reads the release",
    "one_round_two_message": "whoever opens one round-two message alone",
    "one_answer_alone": "whoever opens one answer alone",
}


def test_every_view_names_the_audience_that_has_it() -> None:
    for design in every_design():
        with case(design_name(design)):
            for view in views_of(design):
                if view.adversary in AUDIENCES:
                    assert view.audience == AUDIENCES[view.adversary]
                if view.adversary == "one_aggregator":
                    assert "its shares and " in view.sentence.lower().replace(
                        "shares and released", "its shares and released"
                    )
                if view.adversary == "public_and_broker":
                    assert "shares" not in view.sentence.lower()


@pytest.mark.parametrize(("values", "losses"), [(1, 1), (2, 2), (3, 2)])
def test_from_two_values_on_a_change_moves_two_cells(values: int, losses: int) -> None:
    design = design_of(Truth(values), TwoSidedNoise(Fraction(7, 10)))

    assert Fraction(epsilon_of(design) or 0) == losses * Fraction(7, 10)
    p, up = 0.25, math.exp(0.7)
    sampled = design_of(SamplingDie.uniform(Fraction(1, 4), values), TwoSidedNoise(Fraction(7, 10)))
    fallen = 1 if losses == 1 else 1 - p + p / up
    assert float(epsilon_of(sampled) or 0) == pytest.approx(math.log((1 - p + p * up) / fallen), abs=1e-5)


@pytest.mark.parametrize("values", [1, 2, 3])
def test_with_the_sampled_bit_known_the_loss_is_that_of_a_direct_answer(values: int) -> None:
    die, noise = SamplingDie.uniform(Fraction(1, 4), values), TwoSidedNoise(Fraction(7, 10))
    design = Design(answer=die, noise=noise, values=values, aggregators=2)

    leaked = next(view for view in views_of(design) if view.adversary == "sampled_bit_leaked")

    assert leaked.epsilon == Decimal("0.7" if values == 1 else "1.4")


def test_one_message_loses_what_its_rarest_face_loses() -> None:
    faces = (Fraction(1, 2), Fraction(1, 16), Fraction(3, 16))
    design = design_of(SamplingDie(sampling_rate=Fraction(1, 4), values=2, face_probabilities=faces), NoNoise())

    message = next(view for view in views_of(design) if view.adversary == "one_round_two_message")

    assert message.epsilon == Decimal("1.60944"), "ln(1 + (1/4)/(1/16)) = ln 5, rounded up"


def test_every_decimal_of_a_statement_is_rounded_up() -> None:
    for design in every_design():
        with case(design_name(design)):
            for view in views_of(design):
                shown = re.findall(r"(?:epsilon|delta) ([0-9.]+[0-9])", view.sentence)
                for one in shown:
                    assert Decimal(one) in (view.epsilon, view.delta)
            if isinstance(design.noise, TwoSidedNoise):
                exact = released_loss(design.answer, design.noise.epsilon)
                assert 0 <= Fraction(epsilon_of(design) or 0) - exact < Fraction(1, 10**5)


def test_exposure_and_outputs_follow_from_the_answer() -> None:
    for design in every_design():
        with case(design_name(design)):
            weights = [hit - miss for hit, miss in design.channels]

            assert (design.exposure, min(weights)) == (max(weights), design.channel[0] - design.channel[1])
            assert design.baseline_opened == design.device_randomizes == (design.outputs is not Outputs.CELLS)
            assert design.output_count == design.values + design.baseline_opened
            assert design.rounds == (2 if design.name == "sampling" else 1)


@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(1, 3), Fraction(1), Fraction(5, 2)], ids=str)
@pytest.mark.parametrize("values", [1, 3])
def test_the_noise_for_a_target_is_the_weakest_that_keeps_it(values: int, epsilon: Fraction) -> None:
    for answer in answers(values):
        noise = noise_for(answer, epsilon)
        design = Design(answer=answer, noise=noise, values=values, aggregators=2)
        step = Fraction(1, 1000 if design.device_randomizes else 10**6)
        assert Fraction(epsilon_of(design) or 0) <= epsilon + Fraction(1, 10**5)
        if noise.epsilon < 10:
            weaker = Design(answer=answer, noise=TwoSidedNoise(noise.epsilon + step), values=values, aggregators=2)
            assert Fraction(epsilon_of(weaker) or 0) > epsilon


def test_a_yes_no_question_asked_directly_gets_the_noise_it_asked_for_and_not_twice_as_much() -> None:
    one, many = (noise_for(Truth(values), Fraction(1)) for values in (1, 3))

    # One opened number moves by one if V = 1; a device that moves between two cells moves two.
    assert (one.epsilon, many.epsilon) == (1, Fraction(1, 2))


def test_a_target_that_no_noise_reaches_is_refused_with_the_least_that_one_does() -> None:
    with pytest.raises(InfeasibleTargetError, match=r"epsilon is 1/1000000, allowed: at least 0\.00"):
        noise_for(Warner(Fraction(3, 4)), Fraction(1, 10**6))


def test_noise_on_unary_bits_lowers_what_the_public_sees() -> None:
    unary = OptimizedUnaryEncoding.from_epsilon(Fraction(2), 3)

    # Two bits move: at most the two noises together, at most the coins.
    assert response_release_epsilon(unary, Fraction(1, 10)) <= Fraction(2, 10)
    assert response_release_epsilon(unary, Fraction(50)) <= 2


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.name)
def test_noise_has_the_moments_it_states(noise: Any) -> None:
    drawn = draw_noise(noise, SeededRandom(11), 20_000)
    mean = sum(drawn) / len(drawn)
    variance = sum((one - mean) ** 2 for one in drawn) / len(drawn)

    assert mean == pytest.approx(noise.mean, abs=6 * math.sqrt(noise.draw_variance / len(drawn)) + 1e-12)
    assert variance == pytest.approx(noise.draw_variance, rel=0.15)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: design_of(Truth(3), NoNoise()), "a direct release has no noise"),
        (
            lambda: design_of(Mangat(Fraction(1, 3)), OneSidedNoise(Fraction(1))),
            "one-sided noise is on answers by mangat",
        ),
        (lambda: design_of(Truth(3), TwoSidedNoise(Fraction(1)), 6), "aggregators is 6, allowed: aggregators <= 5"),
        (lambda: design_of(Truth(3), TwoSidedNoise(Fraction(1)), 1), "aggregators is 1, allowed: aggregators >= 2"),
        (lambda: OneSidedNoise(Fraction(1), "sideways"), "direction is 'sideways', allowed: 'up', 'down'"),  # type: ignore[arg-type] # is refused
        (lambda: TwoSidedNoise(Fraction(101)), "noise epsilon is 101, allowed: 0 < noise epsilon <= 100"),
        (lambda: answer_named("vector-mangat", 3, epsilon_local=Fraction(1)), "did you mean 'mangat-vector'?"),
        (lambda: answer_named("warner", 3, epsilon_local=Fraction(1)), "'warner' answers yes or no, V = 1"),
        (lambda: answer_named("k-ary", 3), "keep is missing, or epsilon_local"),
        (lambda: answer_named("k-ary", 3, parameters={"flip": Fraction(1, 3)}), "parameter 'flip' of k-ary is unknown"),
        (lambda: kind_of("truth"), "answer is a str, allowed: sampling, direct"),  # type: ignore[arg-type] # is refused
        (lambda: register_answer(kind_of(Truth(1))), "is registered twice"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call: Callable[[], object], words: str) -> None:
    with pytest.raises(MechanismError) as caught:
        call()

    assert words in str(caught.value)


def design_of(answer: Any, noise: Any, aggregators: int = 2) -> Design:
    return Design(answer=answer, noise=noise, values=answer.values, aggregators=aggregators)


def test_every_pair_of_answer_and_noise_is_either_a_design_or_refused() -> None:
    for values in (1, 3):
        for answer, noise in itertools.product(answers(values), NOISES):
            if allowed(answer, noise):
                assert views_of(design_of(answer, noise))
            else:
                with pytest.raises(MechanismError):
                    design_of(answer, noise)


def test_the_relation_of_a_charge_is_that_of_the_public_view(monkeypatch: pytest.MonkeyPatch) -> None:
    relations = {"one-cell": Relation.ANY_VALUE, "two-cell": Relation.ANY_VALUE} | {one.value: one for one in Relation}

    for word, relation in relations.items():
        assert relation_of(with_neighbours(monkeypatch, word)) is relation
    with pytest.raises(MechanismError, match="neighbours is 'three-cell', allowed: one-cell, two-cell, any-value"):
        _ = relation_of(with_neighbours(monkeypatch, "three-cell"))


def with_neighbours(monkeypatch: pytest.MonkeyPatch, word: str) -> Design:
    """Return a design whose statement is about that change."""
    design = design_of(Truth(3), NOISES[1])
    views = tuple(replace(view, neighbours=word) for view in views_of(design))
    monkeypatch.setattr("fleetcount_mechanisms.statement.views_of", lambda *_: views)
    return design_of(Truth(3), NOISES[1])


def test_one_law_has_one_design_whatever_made_it() -> None:
    die = SamplingDie.uniform(Fraction(1, 4), 3)
    named = answer_named("sampling", 3, parameters={"sampling_rate": Fraction(1, 4)})

    assert design_of(die, NOISES[1]) == design_of(named, TwoSidedNoise(Fraction(7, 10)))
    assert {design_of(die, NOISES[1]), design_of(named, NOISES[1])} == {design_of(die, NOISES[1])}
    assert MangatVector(Fraction(1, 3), 2) == answer_named("mangat-vector", 2, parameters={"flip": Fraction(1, 3)})

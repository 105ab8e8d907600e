"""Which values are protected against which: the order that is asked, and the least flips that keep it."""

import itertools
import math
from fractions import Fraction

import pytest
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.protection import flips_protecting
from fleetcount_mechanisms.responses import AsymmetricVector, Flips

UP, DOWN, BOTH = Flips


def test_a_value_that_is_hidden_is_wrong_upwards_and_one_that_hides_it_downwards() -> None:
    assert flips_protecting(2, {1: [2]}) == (UP, DOWN)
    assert flips_protecting(2, {1: [2, 0], 2: [1]}) == (BOTH, BOTH)
    assert flips_protecting(1, {1: [0]}) == (UP,)
    assert flips_protecting(1, {0: [1]}) == (DOWN,)
    assert flips_protecting(3, {1: [2, 3], 2: [3]}) == (UP, BOTH, DOWN)


@pytest.mark.parametrize(
    ("protects", "words"),
    [
        ({1: [1]}, "protects 1 against itself"),
        ({1: [3]}, "protects names the value 3, allowed: 0"),
        ({-1: [1]}, "protects names the value -1"),
        ({1: [2]}, None),
        ({1: [0]}, "protects does not name 2"),
        ({}, "protects does not name 1"),
    ],
)
def test_a_protection_of_unknown_values_of_itself_or_of_a_part_is_refused(
    protects: dict[int, list[int]], words: str | None
) -> None:
    if words is None:
        assert flips_protecting(2, protects)
        return
    with pytest.raises(MechanismError, match=words):
        flips_protecting(2, protects)


def test_what_is_no_order_is_refused_with_the_pair_that_is_missing() -> None:
    with pytest.raises(MechanismError, match="against b and b against c, allowed: an order, a against c too"):
        flips_protecting(3, {1: [2], 2: [3]}, lambda value: "-abc"[value])
    assert flips_protecting(3, {1: [2], 2: [0], 3: [0]}), "none hides all that is hidden without being named"


def test_every_order_that_is_asked_is_hidden_and_what_is_hidden_is_an_order() -> None:
    """All relations over three values and none that name every value: each pair asked has the loss, and no more."""
    pairs = list(itertools.permutations(range(4), 2))
    kept = 0
    for chosen in itertools.product((False, True), repeat=len(pairs)):
        asked = [pair for pair, taken in zip(pairs, chosen, strict=True) if taken]
        protects = {one: [other for first, other in asked if first == one] for one in range(4)}
        try:
            law = AsymmetricVector.from_epsilon(Fraction(1), flips_protecting(3, protects))
        except MechanismError:
            continue
        kept += 1
        assert all(law.hides(one, other) for one, other in asked)
        hidden = {pair for pair in itertools.product(range(4), repeat=2) if law.hides(*pair)}
        assert all((x, z) in hidden for x, y in hidden for w, z in hidden if y == w)
    assert kept > 100


@pytest.mark.parametrize("flips", list(itertools.product(Flips, repeat=2)), ids=str)
def test_a_hidden_change_loses_epsilon_at_most_and_any_other_without_limit(flips: tuple[Flips, Flips]) -> None:
    """[ADP] Definition IV.2 over all outputs: the exact ratio of the laws of V = 2 independent bits."""
    law = AsymmetricVector.from_epsilon(Fraction(3, 2), flips)
    laws = {
        truth: {
            bits: law.bit_probability(bits[0], int(truth == 1), 1) * law.bit_probability(bits[1], int(truth == 2), 2)
            for bits in itertools.product((0, 1), repeat=2)
        }
        for truth in range(3)
    }
    worst = Fraction(1)
    for one, two in itertools.permutations(range(3), 2):
        ratios = [p / laws[two][bits] if laws[two][bits] else None for bits, p in laws[one].items() if p]
        assert (None not in ratios) == law.hides(one, two)
        if law.hides(one, two):
            worst = max(worst, *(ratio for ratio in ratios if ratio is not None))
    moved = 2 if any(law.hides(*pair) for pair in ((1, 2), (2, 1))) else 1
    assert worst == law.flip**-moved
    assert math.log(worst) <= law.epsilon <= 1.5


def test_only_flips_make_a_law() -> None:
    for flips in ((), ("up",), (1,)):
        with pytest.raises(MechanismError):
            AsymmetricVector(Fraction(1, 2), flips)  # type: ignore[arg-type]  # on purpose.

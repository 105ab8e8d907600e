"""Brakes of a made fleet, asked so that faulty ones are hidden and sound ones are not, at epsilon 2 an answer.

Vehicles are simulated here and nothing is sent: each tosses its own coins, and one release of two aggregators is drawn.
A question file asks the same with kind = "asymmetric" and protects = { faulty = ["worn", "sound"], worn = ["sound"] }.
"""

from collections import Counter
from fractions import Fraction
from math import prod

import numpy as np
from fleetcount_analysis.reading import read
from fleetcount_mechanisms import AsymmetricVector, Design, Flips, SeededRandom, TwoSidedNoise, draw_noise
from fleetcount_mechanisms.protection import flips_protecting
from fleetcount_mechanisms.statement import hidden_words, views_of

NONE, FAULTY, WORN, SOUND = range(4)
NAMES = ("not known", "faulty", "worn", "sound")
TRUE = {NONE: 2_000, FAULTY: 1_500, WORN: 9_000, SOUND: 37_500}
PROTECTS = {FAULTY: [WORN, SOUND], WORN: [SOUND]}
EPSILON, LEVEL = Fraction(2), Fraction(95, 100)


def one_hot(truth: int) -> list[int]:
    """Return the bit of each of the three values; a vehicle that does not know has none."""
    return [int(value == truth) for value in (FAULTY, WORN, SOUND)]


def explained(law: AsymmetricVector, bits: tuple[int, ...], truth: int) -> bool:
    """Return whether a vehicle of this truth can have answered so."""
    return prod(one.probability(bit, had) for one, bit, had in zip(law.bit_laws, bits, one_hot(truth), strict=True)) > 0


if __name__ == "__main__":
    source = SeededRandom(1)
    both_ways = AsymmetricVector.from_epsilon(EPSILON, [Flips.BOTH] * 3)
    law = AsymmetricVector.from_epsilon(EPSILON, flips_protecting(3, PROTECTS))
    design = Design(answer=law, noise=TwoSidedNoise(Fraction(1, 4)), values=3, aggregators=2)
    answers = Counter((truth, law.randomize_bits(one_hot(truth), source)) for truth in TRUE for _ in range(TRUE[truth]))
    # A release opens how many answered, since that counts the bits that are wrong, and then the bits of each value.
    sums = np.sum([often * np.array([1, *bits]) for (_, bits), often in answers.items()], axis=0)
    noise = [np.sum([draw_noise(one, source, count) for _ in range(2)], axis=0) for one, count in design.opened_noise]
    found = read(design, sums + np.concatenate(noise), LEVEL)

    print(f"{sum(TRUE.values()):,} vehicles; one 95 % interval a value, the truth, and the error")
    print("brakes     95 % interval      about    truth   error   if all hid all")
    for value in (FAULTY, WORN, SOUND):
        low, high, about = found.low[value - 1], found.high[value - 1], found.estimates[value - 1]
        error, other = (one.standard_deviation(TRUE[value], sum(TRUE.values()), value) for one in (law, both_ways))
        span = f"{low:>7,} to {high:>6,} {about:>10,.0f} {TRUE[value]:>8,}"
        print(f"{NAMES[value]:<9}{span} {error:>7.0f} {other:>16.0f}")
    print("an answer that no other truth explains, if both operators work together:")
    for truth, vehicles in TRUE.items():
        known = sum(
            often
            for (had, bits), often in answers.items()
            if had == truth and not any(explained(law, bits, other) for other in TRUE if other != truth)
        )
        print(f"  {NAMES[truth]:<9} {known:>6,} of {vehicles:>6,} vehicles")
    seen = {view.adversary: view.epsilon for view in views_of(design)}
    print(f"readers of the release: epsilon {seen['public_and_broker']}, for any change, with noise of one operator")
    print(f"both operators together: epsilon {seen['all_aggregators']}, for {hidden_words(law, NAMES.__getitem__)}")

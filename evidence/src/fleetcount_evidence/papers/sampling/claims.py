"""Computes the claims of [SP]; claims.toml has the claims.

Every number of ours comes from the mechanisms; the module contains no result.
"""

import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final

from fleetcount_mechanisms.exact_difference import central_delta, message_epsilon, message_epsilon_of_face
from fleetcount_mechanisms.losses import (
    Neighbours,
)
from fleetcount_mechanisms.planned_noise import noise_epsilon_for, sampling_sd
from fleetcount_mechanisms.planning import crossover_share
from fleetcount_mechanisms.response_laws import two_coin_sd
from fleetcount_mechanisms.responses import TwoCoin
from fleetcount_mechanisms.sampling import SamplingDie, toss

from fleetcount_evidence.papers.catalogue import Catalogue
from fleetcount_evidence.papers.extracts import Extracts
from fleetcount_evidence.papers.results import Results, Settings
from fleetcount_evidence.papers.sampling.toys import SampledTwoCoin, SamplingAndNoise

PADDED: Final = 1_000_000
P45, P25 = Fraction(9, 20), Fraction(1, 4)
COINS: Final = TwoCoin(truth_probability=Fraction(4, 5), yes_probability=Fraction(1, 5))


def add_claims(extracts: Extracts, _settings: Settings, results: Results) -> None:
    """State every claim of the paper with our result."""
    catalogue = Catalogue.load("sampling")
    _introduction(catalogue)
    _toys(catalogue)
    _die(catalogue)
    _privacy(catalogue)
    _accuracy(catalogue, extracts)
    _leakage(catalogue)
    results.claims.extend(catalogue.finished())


def _introduction(catalogue: Catalogue) -> None:
    coins = TwoCoin(truth_probability=Fraction(17, 20), yes_probability=Fraction(3, 10))
    noise = coins.probability(1, 0)
    expected = 60 * coins.probability(1, 1) + 40 * noise - 100 * noise
    by_paper, by_ours = float(expected / Fraction(4, 5)), float(expected / coins.truth_probability)
    catalogue.number("SP-1-footnote-first", Fraction(60, 100) * coins.truth_probability)
    catalogue.number("SP-1-footnote-second", noise)
    catalogue.number("SP-1-divisor", coins.truth_probability, by_paper=by_paper, by_ours=by_ours)
    catalogue.number("SP-1-sd-ten-thousand", two_coin_sd(100, 10_000, 0.85, 0.3))
    catalogue.number("SP-1-sd-million", two_coin_sd(100, PADDED, 0.85, 0.3))
    catalogue.number("SP-1-million-share", Fraction(100 * 100, PADDED))


def _toys(catalogue: Catalogue) -> None:
    noise = SamplingAndNoise(sampling_rate=P45)
    sums = {yes * noise.law(1)[1] + (1000 - yes) * noise.law(0)[1] for yes in (0, 5, 500, 1000)}
    sampled = SampledTwoCoin(sampling_rate=P45, coins=COINS)
    q, r = COINS.truth_probability, COINS.yes_probability
    equation_4 = P45 * q * 50 + P45 * (1 - q) * r * 1000
    growth = [sampled.standard_deviation(50, 10**decade) for decade in range(3, 7)]
    catalogue.fact("SP-3.2-unsolvable", len(sums) == 1, holds=len(sums) == 1)
    catalogue.number("SP-3.3-equation-4", 50 * sampled.law(1)[1] + 950 * sampled.law(0)[1], paper=float(equation_4))
    catalogue.fact("SP-3.3-grows", growth, holds=all(a < b for a, b in pairwise(growth)))


def _die(catalogue: Catalogue) -> None:
    die = SamplingDie.uniform(P25, 9)
    outputs = [v for v in range(die.values + 2) if v <= die.values and die.round_one_probability(v) > 0]
    last, pi0, p = die.face_probability(die.values), die.face_probability(0), die.sampling_rate
    printed = 1 - sum(die.face_probability(v) for v in range(die.values + 1)) - p
    baseline_one = 100 * die.round_one_probability(0)
    baseline_two = 90 * die.round_two_probability(0, 0) + 10 * die.round_two_probability(0, 1)
    catalogue.number("SP-4-area", Fraction(9_500**2, 10**6))
    sections = (9_500 / Fraction("0.15")) ** 2
    catalogue.number("SP-4-sections", sections)
    catalogue.number("SP-4-bits", math.ceil(sections).bit_length())
    catalogue.number("SP-4.2-outputs", len(outputs))
    catalogue.number("SP-4.2-equation-12", last, paper=float(printed))
    catalogue.number("SP-4.2-equation-14", baseline_one, paper=float(pi0 * 100 + p * 10))
    catalogue.number("SP-4.2-equation-15", baseline_two, paper=float(pi0 * 100))


def _privacy(catalogue: Catalogue) -> None:
    die, nine = SamplingDie.uniform(P45, 1), SamplingDie.uniform(P25, 9)
    pi0, p = float(die.face_probability(0)), float(P45)
    no_ratio = die.round_two_probability(0, 1) / die.round_two_probability(0, 0)
    worst = central_delta(p, 1, 100.0)
    moves = _moves(die, 0)
    binary, multi = message_epsilon(die), message_epsilon(SamplingDie.uniform(P45, 9))
    likely_yes = die.round_two_probability(1, 1)
    posterior = float(likely_yes / (likely_yes + die.round_two_probability(1, 0)))
    largest = max(math.log(1 + float(P25 / nine.face_probability(v))) for v in range(10))
    deltas = [central_delta(p, count, 1.0) for count in (1, 100)]
    noise = noise_epsilon_for(Fraction(1), P45, Neighbours.ONE_CELL)
    catalogue.fact("SP-abstract-dp", f"({100:g}, {worst:g})-DP and no better", holds=worst == 0, noise=float(noise))
    catalogue.fact("SP-1-scalable", deltas, holds=moves != 0, moves=float(moves))
    catalogue.number("SP-3.1-half", posterior)
    catalogue.number("SP-4.4-equation-19", no_ratio, paper=(pi0 + p) / pi0)
    catalogue.number("SP-4.4-equation-21", _tossed_loss(die, 0), paper=math.log((pi0 + p) / pi0))
    catalogue.number("SP-4.4-equation-25", _tossed_loss(die, 1), paper=math.log((1 - pi0) / (1 - pi0 - p)))
    catalogue.number("SP-4.4-equation-29", max(_tossed_loss(nine, v) for v in range(10)), paper=largest)
    catalogue.fact("SP-4.4-extra-output", [binary, multi], holds=multi < binary)


@dataclass(frozen=True, slots=True)
class _Word:
    """A source of randomness that always returns one number: with all numbers in turn, a law can be enumerated."""

    number: int

    def random_bytes(self, count: int) -> bytes:
        """Return the number as `count` bytes."""
        return self.number.to_bytes(count, "big")


def _tossed_loss(die: SamplingDie, output: int) -> float:
    """Return ln of the largest ratio, over two truths, of Pr[the round-two answer is `output`], by the device's `toss`.

    A uniform die has denominator (V + 1) intervals of numbers of equal size with one outcome each: `toss` gets one
    number of each interval.
    """
    units = die.sampling_rate.denominator * (die.values + 1)
    numbers = [_Word(unit * (die.limit // units)) for unit in range(units)]
    answered = [
        Counter(toss(die, truth, number).round_two for number in numbers)[output] for truth in range(die.values + 1)
    ]
    return math.log(Fraction(max(answered), min(answered)))


def _moves(die: SamplingDie, truth: int) -> Fraction:
    """Return the probability that a device of this truth gives different answers in round two and in round one."""
    outputs = range(die.values + 1)
    return sum((die.pair_probability(i, j, truth) for i in outputs for j in outputs if i != j), Fraction(0))


def _difference_sd(die: SamplingDie, yes: int, population: int) -> float:
    """Return the sd of the estimated number of Yes with a binary die, from the exact law of one device's difference."""
    variances = [_moves(die, truth) * (1 - _moves(die, truth)) for truth in (0, 1)]
    return math.sqrt((population - yes) * variances[0] + yes * variances[1]) / float(die.sampling_rate)


def _accuracy(catalogue: Catalogue, extracts: Extracts) -> None:
    counts = [place.checkins for place in extracts.locations()[:4]]
    checkins = sum(count * places for count, places in extracts.checkin_histogram().items())
    ratios = {rate: [_response_ratio(count, rate) for count in counts] for rate in (P25, P45)}
    worst = [min(ratios[P25]), max(ratios[P45])]
    groups = extracts.patients("age")
    patients, largest = sum(group.patients for group in groups), max(group.patients for group in groups)
    response = [two_coin_sd(largest, total, 0.8, 0.2) for total in (patients, 10_000)]
    die = SamplingDie.uniform(P45, 1)
    sampling = [_difference_sd(die, largest, total) for total in (patients, 10_000)]
    growth = [_difference_sd(die, 100, total) for total in (10**3, 10**9)]
    shares = [crossover_share(rate, COINS) or Fraction(0) for rate in (P45, P25)]
    catalogue.number("SP-5.1-checkins", checkins)
    catalogue.number(
        "SP-5.1-ratio",
        worst,
        counts=", ".join(f"{count:,}" for count in counts),
        at25=f"{_count_for(3.5, P25):,} to {_count_for(1.6, P25):,}",
        at45=f"{_count_for(3.5, P45):,} to {_count_for(1.6, P45):,}",
    )
    catalogue.number("SP-5.1-patients", patients)
    catalogue.number("SP-5.1-others", 10_000 - patients)
    grows = response[1] / response[0] / (sampling[1] / sampling[0])
    catalogue.measured("SP-5.1-ten-thousand", grows, ours=[*response, *sampling], largest=largest)
    same = math.isclose(growth[0], growth[1])
    catalogue.fact("SP-4-constant-error", growth, holds=same, share_45=float(shares[0]), share_25=float(shares[1]))


def _response_ratio(count: int, rate: Fraction) -> float:
    return two_coin_sd(count, PADDED, 0.8, 0.2) / sampling_sd(count, rate)


def _count_for(ratio: float, rate: Fraction) -> int:
    """Return the least count whose ratio is at most `ratio`, by bisection: the ratio decreases in the count."""
    low, high = 1, PADDED
    while low < high:
        middle = (low + high) // 2
        if _response_ratio(middle, rate) > ratio:
            low = middle + 1
        else:
            high = middle
    return low


def _leakage(catalogue: Catalogue) -> None:
    q, r = float(COINS.truth_probability), float(COINS.yes_probability)
    uniform = message_epsilon(SamplingDie.uniform(P45, 1))
    small, large = (message_epsilon_of_face(face, float(P45)) for face in (0.1, 0.5))
    face = float(P45) / math.expm1(COINS.epsilon / 4)
    catalogue.undecided("SP-5.2-figure", [COINS.epsilon, uniform])
    catalogue.fact("SP-5.2-direction", [small, large], holds=large > small)
    catalogue.number("SP-6-four-times", COINS.epsilon / uniform, face=face)
    catalogue.number("SP-A-equation-30", COINS.epsilon_yes, paper=math.log((q + (1 - q) * r) / ((1 - q) * r)))
    sides = [COINS.epsilon_yes, COINS.epsilon_no]
    catalogue.fact("SP-A-no-side", sides, holds=COINS.epsilon == COINS.epsilon_yes)

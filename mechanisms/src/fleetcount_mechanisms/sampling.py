"""Sampling Privacy: the die, the two-round answer of a device and the estimate from the difference of the rounds.

It must not open, sum or print a single answer: an answer's representation hides its contents.

Faces of the die: s, 0, 1, ..., V. A device that throws s answers 0 in round one and its truth in round two; one that
throws v answers v in both. (Paper: Joy and Gerla, Differential Privacy By Sampling, section 4, Equations 6 to 8, 12
and 13, with V + 1 outputs and V + 2 faces.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from fleetcount_mechanisms.errors import (
    MechanismError,
    require_at_least,
    require_between,
    require_counts,
    require_fraction,
    require_open_unit,
    require_position,
)
from fleetcount_mechanisms.randomness import RandomSource, UniformBelow, WeightedChoice, uniform_below, weighted_index

_HALF = Fraction(1, 2)
# Bound once: looking these attributes up takes a fifth of a toss, and a simulated fleet tosses once a device.
_from_bytes = int.from_bytes
_new_tuple = tuple.__new__


class TwoRoundAnswer(NamedTuple):
    """What a device answers in the two rounds, positions 0..V, and whether it was sampled; never printed.

    A tuple and not a dataclass: building a frozen dataclass would take as long as the coins themselves.
    """

    round_one: int
    round_two: int
    sampled: bool

    def __repr__(self) -> str:
        """Hide the answer, which is a secret of its device."""
        return "TwoRoundAnswer(<hidden>)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDie:
    """The die every device throws: faces s, 0, ..., V, given exactly.

    sampling_rate (pi_s, written p) is the probability of s; face_probabilities are (pi_0, ..., pi_V), or None for the
    uniform die with pi_v = (1 - p)/(V + 1); values is V. The uniform die is built and thrown at
    a cost that does not depend on V.

    Raises:
        MechanismError: p not exact or not in (0, 1), p >= 1/2 without allow_large_rate, V < 1, not V + 1 faces, a face
            of probability 0 (only sampled devices would answer its cell, so no epsilon would be finite), or a sum that
            is not exactly 1.
    """

    sampling_rate: Fraction
    values: int
    face_probabilities: tuple[Fraction, ...] | None = None
    allow_large_rate: bool = field(default=False, compare=False)
    byte_count: int = field(init=False, repr=False, compare=False)
    limit: int = field(init=False, repr=False, compare=False)
    face_span: int = field(init=False, repr=False, compare=False)
    faces_span: int = field(init=False, repr=False, compare=False)
    choice: WeightedChoice | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the probabilities and prepare the throw."""
        rate = require_open_unit("sampling rate", self.sampling_rate)
        require_at_least("values", self.values, 1)
        if rate >= _HALF and not self.allow_large_rate:
            raise MechanismError(f"sampling rate is {rate}, allowed: below 1/2 (allow_large_rate=True overrides)")
        object.__setattr__(self, "sampling_rate", rate)
        if self.face_probabilities is not None:
            object.__setattr__(self, "face_probabilities", self._checked_faces(self.face_probabilities))
        self._prepare()

    def _checked_faces(self, given: Sequence[Fraction]) -> tuple[Fraction, ...] | None:
        require_counts("face probabilities", given, self.values + 1)
        faces = tuple(require_fraction(f"probability of face {face}", value) for face, value in enumerate(given))
        for face, probability in enumerate(faces):
            if probability <= 0:
                raise MechanismError(f"probability of face {face} is {probability}, allowed: above 0")
        total = sum(faces, self.sampling_rate)
        if total != 1:
            raise MechanismError(f"sampling rate and face probabilities sum to {total}, allowed: exactly 1")
        # Equal faces are the uniform die: one value object for one law.
        return None if min(faces) == max(faces) else faces

    def _prepare(self) -> None:
        numerator, denominator = self.sampling_rate.numerator, self.sampling_rate.denominator
        choice = None
        if self.face_probabilities is not None:
            common = lcm(denominator, *(face.denominator for face in self.face_probabilities))
            weights = (*self.face_probabilities, self.sampling_rate)
            choice = WeightedChoice(tuple(int(weight * common) for weight in weights))
        # In units of 1/(denominator * (V + 1)) a face weighs denominator - numerator. Each unit owns `step` of the
        # numbers drawn, those from `limit` on are drawn again, and so one division gives the face: 0..V for a face,
        # more for s.
        uniform = UniformBelow(bound=denominator * (self.values + 1))
        step = uniform.limit // uniform.bound
        face_span = step * (denominator - numerator)
        object.__setattr__(self, "byte_count", uniform.byte_count)
        object.__setattr__(self, "limit", uniform.limit)
        object.__setattr__(self, "face_span", face_span)
        object.__setattr__(self, "faces_span", face_span * (self.values + 1))
        object.__setattr__(self, "choice", choice)

    @classmethod
    def uniform(cls, sampling_rate: Fraction, values: int, *, allow_large_rate: bool = False) -> "SamplingDie":
        """Return the die whose faces 0..V are equally likely, pi_v = (1 - p)/(V + 1).

        Raises:
            MechanismError: as for the class.
        """
        return cls(sampling_rate=sampling_rate, values=values, allow_large_rate=allow_large_rate)

    def face_probability(self, face: int) -> Fraction:
        """Return pi_v of face v in 0..V.

        Raises:
            MechanismError: no such face.
        """
        require_between("face", face, 0, self.values)
        if self.face_probabilities is None:
            return (1 - self.sampling_rate) / (self.values + 1)
        return self.face_probabilities[face]

    @property
    def smallest_face_probability(self) -> Fraction:
        """The smallest pi_v, which decides the loss of a single round-two message."""
        return self.face_probability(0) if self.face_probabilities is None else min(self.face_probabilities)

    def round_one_probability(self, output: int) -> Fraction:
        """Return P[round one says `output`], the same for every truth (Equation 12)."""
        return self.face_probability(output) + (self.sampling_rate if output == 0 else 0)

    def round_two_probability(self, output: int, truth: int) -> Fraction:
        """Return P[round two says `output` | truth] (Equation 13)."""
        told = output == require_position(truth, self.values)
        return self.face_probability(output) + (self.sampling_rate if told else 0)

    def pair_probability(self, round_one: int, round_two: int, truth: int) -> Fraction:
        """Return P[both rounds | truth]: what all aggregators together see of one device."""
        require_position(truth, self.values)
        same = self.face_probability(round_one) if round_one == round_two else Fraction(0)
        return same + (self.sampling_rate if (round_one, round_two) == (0, truth) else 0)


def toss(die: SamplingDie, truth: int, source: RandomSource) -> TwoRoundAnswer:
    """Toss the coins of both rounds for a device whose truth is a position in 0..V (0 = none of the values).

    Run by the device, once per query; a re-transmission must send the stored answer. The time does not depend on V.

    Raises:
        MechanismError: the truth is not a position in 0..V (the message withholds it).
    """
    if type(truth) is not int or not 0 <= truth <= die.values:
        require_position(truth, die.values)
    if die.choice is not None:
        return _toss_weighted(die, die.choice, truth, source)
    number = _from_bytes(source.random_bytes(die.byte_count))
    while number >= die.limit:
        number = _from_bytes(source.random_bytes(die.byte_count))
    face = number // die.face_span
    sampled = number >= die.faces_span
    # Both alternatives are built before one is selected, so that the running time does not depend on the coin.
    return _new_tuple(TwoRoundAnswer, ((face, 0)[sampled], (face, truth)[sampled], sampled))


def _toss_weighted(die: SamplingDie, choice: WeightedChoice, truth: int, source: RandomSource) -> TwoRoundAnswer:
    face = choice.draw(source)
    sampled = face > die.values
    return TwoRoundAnswer((face, 0)[sampled], (face, truth)[sampled], sampled)


def toss_in_unit(die: SamplingDie, sampled: bool, truth: int, source: RandomSource) -> TwoRoundAnswer:
    """Draw one answer of a unit whose sampling coin is tossed already: `sampled` is the outcome of that coin.

    A device that is not sampled answers v with probability pi_v/(1 - p), so over a coin with P[sampled] = p the law of
    one answer is that of `toss`.

    Raises:
        MechanismError: the truth is not a position in 0..V (the message withholds it).
    """
    if type(truth) is not int or not 0 <= truth <= die.values:
        require_position(truth, die.values)
    if die.face_probabilities is None:
        face = uniform_below(source, die.values + 1)
    else:
        common = lcm(*(probability.denominator for probability in die.face_probabilities))
        face = weighted_index(source, [int(probability * common) for probability in die.face_probabilities])
    return _new_tuple(TwoRoundAnswer, ((face, 0)[sampled], (face, truth)[sampled], sampled))


def estimate(die: SamplingDie, difference: Sequence[int]) -> tuple[Fraction, ...]:
    """Return the unbiased estimates of n_1, ..., n_V from the (noised) differences of cells 1..V (Eq. 11, 16).

    Raises:
        MechanismError: not exactly V differences.
    """
    require_counts("difference", difference, die.values)
    return tuple(Fraction(value) / die.sampling_rate for value in difference)


def estimate_baseline(devices: int, estimates: Sequence[Fraction]) -> Fraction:
    """Return the estimate of n_0, the number of devices without a value; a release has no cell for it."""
    return devices - sum(estimates, Fraction(0))

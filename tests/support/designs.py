"""Every design there is: each answer law with each noise that goes with it, for V in {1, 3} and k in {2, 3, 5}."""

from collections.abc import Iterator
from fractions import Fraction

from fleetcount_mechanisms.answers import AnswerForm, AnswerLaw, Truth, answer_named, answer_names, kind_named
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.responses import AsymmetricVector, Flips
from fleetcount_mechanisms.sampling import SamplingDie

NOISES: tuple[NoiseLaw, ...] = (
    NoNoise(),
    TwoSidedNoise(Fraction(7, 10)),
    OneSidedNoise(Fraction(7, 10)),
    OneSidedNoise(Fraction(7, 10), "down"),
    GaussianNoise(Fraction(121, 2)),
)


def rows_of(levels: Levels) -> list[list[int]]:
    """Return the row of every opened number: what each of the values 1..V adds to it."""
    columns = [levels.all_sums([int(cell == one) for cell in range(levels.values)]) for one in range(levels.values)]
    return [list(row) for row in zip(*columns, strict=True)]


def answers(values: int) -> Iterator[AnswerLaw]:
    """Yield a law of every family that answers V values."""
    for name in answer_names():
        kind = kind_named(name)
        try:
            if kind.from_epsilon is not None:
                yield answer_named(name, values, epsilon_local=Fraction(3, 2))
            else:
                yield answer_named(name, values, parameters=dict.fromkeys(kind.parameters, Fraction(1, 4)))
        except MechanismError:
            assert kind.form is AnswerForm.POSITION, f"{name} takes V = {values}"
            assert values > 1, f"{name} takes a yes/no question"
    if values == 3:
        yield AsymmetricVector.from_epsilon(Fraction(3, 2), (Flips.UP, Flips.DOWN, Flips.BOTH))
        faces = (Fraction(1, 4), Fraction(1, 8), Fraction(1, 8), Fraction(1, 4))
        yield SamplingDie(sampling_rate=Fraction(1, 4), values=3, face_probabilities=faces)


def allowed(answer: AnswerLaw, noise: NoiseLaw) -> bool:
    """Return whether the two go together: the truth needs noise, and one-sided noise needs the truth."""
    if isinstance(answer, Truth):
        return not isinstance(noise, NoNoise)
    return not isinstance(noise, OneSidedNoise)


def every_design(aggregators: tuple[int, ...] = (2, 3, 5)) -> list[Design]:
    """Return every design, in a fixed order."""
    return [
        Design(answer=answer, noise=noise, values=values, aggregators=k)
        for values in (1, 3)
        for answer in answers(values)
        for noise in NOISES
        if allowed(answer, noise)
        for k in aggregators
    ]


def design_name(design: Design) -> str:
    """Return a readable test id."""
    side = getattr(design.noise, "direction", "")
    noise = design.noise.name.replace(" ", "-")
    faces = "-faces" if getattr(design.answer, "face_probabilities", None) else ""
    faces += "".join(f"-{one.name.lower()}" for one in getattr(design.answer, "flips", ()))
    return f"{design.name}{faces}-{noise}{side}-V{design.values}-k{design.aggregators}"

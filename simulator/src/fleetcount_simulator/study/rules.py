"""The noise that a promise needs by several rules of accounting, against the number of windows: the table `rules`.

It compares rules, for readers; the noise of a study is solved by its own mechanism. It must not draw.
"""

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from math import log10
from typing import Final

from fleetcount_mechanisms.accounting.question_losses import units_loss
from fleetcount_mechanisms.accounting.solving import noise_for_promise, sd_of_cell
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import FEWEST_AGGREGATORS, Design
from fleetcount_mechanisms.noise import LARGEST_NOISE_EPSILON, GaussianNoise, NoiseLaw, TwoSidedNoise
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.question.fields import Coin

from fleetcount_simulator.model import Case, Row
from fleetcount_simulator.standing import StandingQuestion, schedule_of

_RATES: Final = (Fraction(1, 2), Fraction(1, 4))
_POINTS: Final = 5
_GRID: Final = 100
"""Steps of the grid of variances per factor of ten: a step changes the standard deviation by 1.2 %."""
_LEAST, _MOST = 0.9, 40.0
"""The variance that a coin needs lies between these multiples of p^2 times the variance of direct answers."""
_DIRECT: Final = (
    ("geometric, added up", "basic"),
    ("geometric, exact", "exact"),
    ("Gaussian", "gaussian"),
)


def rule_rows(case: Case) -> list[Row]:
    """Return `rule`, `windows` and `sd` of an empty cell's estimate, for up to as many windows as the case's question
    has.

    Empty where the case has no [schedule] or its question no promise, or devices hold sets. Direct mode by three rules,
    then Gaussian noise with a sampling coin that holds for a window, a day or the question, at p = 1/2 and 1/4. A rule
    by which no noise keeps the promise is left out.
    """
    question = case.epochs.question
    if question is None or question.epsilon is None or case.population.question.sets:
        return []  # The rules are compared for one value a device.
    values, parties = case.population.question.values, case.aggregators
    return [
        dict(row)
        for row in _rows(question.epsilon, question.delta, question.schedule.every_s, question.windows, values, parties)
    ]


@lru_cache(maxsize=8)
def _rows(
    epsilon: Fraction, delta: Fraction, every_s: int, windows: int, values: int, parties: int
) -> tuple[tuple[tuple[str, object], ...], ...]:
    found: list[tuple[tuple[str, object], ...]] = []
    for count in _counts(windows):
        made = [(name, _direct(rule, count, values, epsilon, delta)) for name, rule in _DIRECT]
        made += _sampled(count, every_s, values, epsilon, delta)
        for name, (answer, noise) in ((name, one) for name, one in made if one is not None):
            sd = sd_of_cell(Design(answer=answer, noise=noise, values=values, aggregators=parties))
            found.append((("rule", name), ("windows", count), ("sd", sd)))
    return tuple(found)


def _counts(windows: int) -> list[int]:
    """Return 1, the number of windows, and numbers in between, each about the same factor apart."""
    return sorted({max(1, round(windows ** (step / (_POINTS - 1)))) for step in range(_POINTS)})


_Made = tuple[Truth | SamplingDie, NoiseLaw]


def _direct(rule: str, windows: int, values: int, epsilon: Fraction, delta: Fraction) -> _Made | None:
    answer, cells = Truth(values), 2 if values > 1 else 1
    if rule == "basic":
        noise: NoiseLaw = TwoSidedNoise(min(epsilon / (cells * windows), Fraction(LARGEST_NOISE_EPSILON)))
        return answer, noise
    question = StandingQuestion(schedule=schedule_of(windows, 1, 0), coin=Coin.WINDOW, epsilon=epsilon, delta=delta)
    law = TwoSidedNoise if rule == "exact" else GaussianNoise
    return answer, noise_for_promise(answer, question.shape, epsilon, delta, law)


def _sampled(
    windows: int, every_s: int, values: int, epsilon: Fraction, delta: Fraction
) -> Iterator[tuple[str, _Made | None]]:
    made = _direct("gaussian", windows, values, epsilon, delta)
    if made is None:
        return
    for rate in _RATES:
        answer = SamplingDie.uniform(rate, values, allow_large_rate=True)
        for coin in Coin:
            question = StandingQuestion(
                schedule=schedule_of(windows, every_s, 0), coin=coin, epsilon=epsilon, delta=delta
            )
            noise = _least_noise_on_grid(answer, Counter(question.shape.units), epsilon, delta, made[1])
            yield f"p = {rate}, coin a {coin.name.lower()}", None if noise is None else (answer, noise)


def _least_noise_on_grid(
    answer: SamplingDie, units: Counter[int], epsilon: Fraction, delta: Fraction, direct: NoiseLaw
) -> GaussianNoise | None:
    """Return the least Gaussian noise of a coarse grid that keeps the promise: the exact solver takes seconds.

    `direct` is the noise of direct answers. None where no variance of the grid keeps the promise.
    """
    scale = _LEAST * float(answer.sampling_rate) ** 2 * direct.draw_variance

    def noise_of(step: int) -> GaussianNoise:
        return GaussianNoise(max(Fraction(1, 4), Fraction(round(scale * 10 ** (6 + step / _GRID)), 10**6)))

    def keeps(step: int) -> bool:
        design = Design(answer=answer, noise=noise_of(step), values=answer.values, aggregators=FEWEST_AGGREGATORS)
        return units_loss(design, units, delta) <= epsilon

    low, high = -1, round(_GRID * log10(_MOST / _LEAST))
    if not keeps(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return noise_of(high)

"""The ways to ask a question of many windows under one promise, side by side: the error and the adversary of each.

The promise is (epsilon, delta) for all answers of one device, against everyone except all aggregators together; each
row has the weakest noise that keeps it. The rows differ in what all aggregators together learn.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final, Literal

from fleetcount_mechanisms.accounting.question_losses import units_loss
from fleetcount_mechanisms.accounting.solving import noise_for_promise
from fleetcount_mechanisms.accounting.vectors import ScheduleShape
from fleetcount_mechanisms.answers import AnswerForm, AnswerLaw, Truth, kind_of
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import InfeasibleTargetError
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import GaussianNoise, NoNoise, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import PlannedNoise, Spread
from fleetcount_mechanisms.planning import Plan, default_sampling_rate
from fleetcount_mechanisms.randomness import rounded_up
from fleetcount_mechanisms.responses import KaryResponse, OptimizedUnaryEncoding, Warner
from fleetcount_mechanisms.sampling import SamplingDie

Unit = Literal["window", "day", "question"]
_HALF: Final = Fraction(1, 2)
_GRID: Final = 10**4
_LARGEST_LOCAL: Final = Fraction(20)
_PLACES: Final = 5
LARGEST_ONCE: Final = Fraction(10)
"""The largest loss of one answer that a question allows."""
_ONCE_NOISE: Final = TwoSidedNoise(Fraction(10))
"""The weakest noise that a question allows: what is asked of few devices is multiplied by many."""


class Threat(Enum):
    """The adversary that a device is protected from; the value is the word on the command line."""

    ONE_HONEST = "one-honest"
    """At least one operator is honest: whatever the others do together, the promise holds."""
    ALL_COLLUDE = "all-collude"
    """All operators may collude; then they see each answer with a probability below 1, and nothing of the others."""
    NONE_TRUSTED = "none-trusted"
    """No operator is trusted: the promise holds against all of them together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One row: a way to ask, the adversary it protects from, and its plan, whose error is that of one window.

    `unit` is the span of one toss of the sampling coin, None without a coin.
    """

    name: str
    threat: Threat
    unit: Unit | None
    plan: Plan


def compare(  # noqa: PLR0913 - what is asked, and of whom, by name
    devices: int,
    values: int,
    shapes: dict[Unit, ScheduleShape],
    epsilon: Fraction,
    delta: Fraction,
    *,
    aggregators: int = 2,
    level: Fraction = Fraction(95, 100),
    spread: Spread | Callable[[type[PlannedNoise]], Spread] | None = None,
    periods: Mapping[Unit, Sequence[Mapping[int, int]]] | None = None,
    one_in: int = 1,
    total: bool = True,
) -> tuple[Compared, ...]:
    """Return the ways to ask for V values, those of one threat together; `shapes` has one shape a unit of the coin.

    `periods` are the units that a period of a ledger touches if such questions follow one another
    (`noise_for_promise`), by the unit of the coin; without it each row is of one question alone. With
    `one_in` above 1 responses are also asked of a device in one window of so many, with all of epsilon there.
    With `total` direct answers and those under a coin a window open the total too, which costs a cell next to nothing
    (`Spread.with_total_for`).
    A way that cannot keep the promise with noise of an allowed size is left out; with several levels (`spread`) so are
    responses, and with levels of unequal noise samples too. A `spread` that is a function of the law of noise is of a
    number (`planning.spread_for_show`), which direct answers alone have.

    Raises:
        MechanismError: devices or values below 1, epsilon not in (0, 700], or delta not in (0, 1).
    """
    found, plain = list[Compared](), Spread(levels=Levels(values)) if spread is None else spread
    windows, single = sum(shapes["window"].units), isinstance(plain, Spread) and plain.levels.count == 1
    ways = list(_ways(values, windows))
    touched = max(windows, *(Counter(units).total() for units in periods["window"])) if periods else windows
    if single and (local := _local(values, touched, epsilon, delta)) is not None:
        ways.append(("response", Threat.NONE_TRUSTED, None, local, TwoSidedNoise if windows == 1 else GaussianNoise))
    for name, threat, unit, answer, law in ways:
        parts = plain if isinstance(plain, Spread) else plain(law)
        equal = isinstance(plain, Spread) and not set(parts.ratios) - {1}
        if kind_of(answer).form is not AnswerForm.TRUTH and not equal:
            continue
        try:
            held = None if periods is None else periods[unit or "window"]
            shape = shapes[unit or "window"]
            largest = max((*shape.units, *(size for units in held or () for size in units)))
            opened = parts.with_total_for(answer, law, largest) if total else parts
            noise = noise_for_promise(answer, shape, epsilon, delta, law, periods=held, spread=opened)
        except InfeasibleTargetError:
            continue
        plan = Plan(devices=devices, design=opened.design(answer, noise, aggregators), level=level)
        found.append(Compared(name=name, threat=threat, unit=unit, plan=plan))
    if single and one_in > 1 and shapes["window"].windows > 1:
        once = _rotated(devices, values, -(-shapes["window"].windows // one_in), epsilon, aggregators, level, one_in)
        if once is not None:
            found.append(once)
    return tuple(found)


_Way = tuple[str, Threat, Unit | None, AnswerLaw, type[GaussianNoise] | type[TwoSidedNoise]]


def _ways(values: int, windows: int) -> Iterator[_Way]:
    truth = Truth(values)
    yield "direct, Gaussian", Threat.ONE_HONEST, None, truth, GaussianNoise
    yield "direct, geometric", Threat.ONE_HONEST, None, truth, TwoSidedNoise
    if windows == 1:
        die = SamplingDie.uniform(default_sampling_rate(values), values)
        yield f"sampling {die.sampling_rate}", Threat.ALL_COLLUDE, "window", die, TwoSidedNoise
        return
    for rate in (_HALF, Fraction(1, 4)):
        die = SamplingDie.uniform(rate, values, allow_large_rate=True)
        for unit in ("window", "day", "question"):
            yield f"sampling {rate}, a coin a {unit}", Threat.ALL_COLLUDE, unit, die, GaussianNoise


def _local(values: int, answers: int, epsilon: Fraction, delta: Fraction) -> KaryResponse | Warner | None:
    """Return the response of the largest loss, a multiple of 1/10,000, so many of which keep the promise."""

    def keeps(steps: int) -> bool:
        answer = _response(values, Fraction(steps, _GRID))
        design = Design(answer=answer, noise=NoNoise(), values=values, aggregators=2)
        return rounded_up(units_loss(design, Counter({1: answers}), delta), _PLACES) <= epsilon

    low, high = 0, int(min(epsilon, _LARGEST_LOCAL) * _GRID) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return _response(values, Fraction(low, _GRID)) if low else None


def _rotated(
    devices: int, values: int, answers: int, epsilon: Fraction, aggregators: int, level: Fraction, one_in: int
) -> Compared | None:
    """Return the better response in one window of several, k-ary or unary; or None.

    Each of a device's `answers` in the question has an equal share of epsilon.
    """
    local = Fraction(int(min(epsilon / answers, LARGEST_ONCE) * _GRID), _GRID)
    if not local:
        return None
    laws = [_response(values, local)] if values == 1 else [_response(values, local), _unary(values, local)]
    plans = [
        Plan(
            devices=devices,
            design=Design(answer=law, noise=_ONCE_NOISE, values=values, aggregators=aggregators),
            level=level,
            one_in=one_in,
        )
        for law in laws
    ]
    best = min(plans, key=lambda plan: plan.sd(min(devices, 100)))
    return Compared(name=f"response, one window of {one_in:,}", threat=Threat.NONE_TRUSTED, unit=None, plan=best)


def _unary(values: int, epsilon: Fraction) -> OptimizedUnaryEncoding:
    return OptimizedUnaryEncoding.from_epsilon(epsilon, values)


def _response(values: int, epsilon: Fraction) -> KaryResponse | Warner:
    return Warner.from_epsilon(epsilon) if values == 1 else KaryResponse.from_epsilon(epsilon, values)

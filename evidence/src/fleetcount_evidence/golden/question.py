"""The golden groups of questions, and the public function that answers each of them.

A row has texts of exact numbers as `inputs`, one decimal as `expected`, and says `how`. It must not compute a number
itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import Final, cast

from fleetcount_analysis.errors import AnalysisError
from fleetcount_mechanisms.accounting.budget import LARGEST_BUDGET, LossBudget
from fleetcount_mechanisms.accounting.exposure import chance_of_all, chance_of_any, expected_answers, quantile
from fleetcount_mechanisms.accounting.units import gaussian_unit_delta
from fleetcount_mechanisms.accounting.vectors import LossVector
from fleetcount_mechanisms.composition import (
    basic_epsilon,
    optimal_delta_repeated,
    optimal_loss_approximate,
    optimal_loss_repeated,
)
from fleetcount_mechanisms.conversion import (
    order_epsilon,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_epsilon_simple,
)
from fleetcount_mechanisms.errors import MechanismError, require_at_least
from fleetcount_mechanisms.loss_formulas import noise_epsilon_two_cell, release_sd
from fleetcount_mechanisms.renyi import (
    gaussian_divergence,
    gaussian_rho,
    panel_gaussian_divergence,
    panel_geometric_divergence,
    panel_pure_epsilon,
    pure_divergence,
    pure_rho,
)

from fleetcount_evidence.golden.question_accuracy import (
    change_variance,
    discrete_gaussian_variance,
    noise_tail,
    window_variance,
)
from fleetcount_evidence.golden.rows import LARGEST_EXPONENT, GoldenRow, MalformedGoldenError, shown

Number = Fraction | float
_CLOSE: Final = Fraction(1, 10**12)
_LEDGER_STEP: Final = Fraction(1, 10**11)
"""Ledgers round up each charge to 2**-40."""
_MOST_DIGITS: Final = 400
_MOST_BITS: Final = 400_000
"""Of a power of p: a little more than the smallest number that is read has."""
_DIGITS: Final = Context(prec=15, rounding=ROUND_HALF_EVEN, Emin=-999_999, Emax=999_999)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """The inputs of a row, or of one of its charges, read by name.

    Raises:
        MalformedGoldenError: (each method) the input is missing or of another form.
    """

    where: str
    fields: Mapping[str, object]
    used: set[str] = field(default_factory=set[str])

    @classmethod
    def of(cls, value: object, where: str) -> "_Inputs":
        """Return an object's fields."""
        if not isinstance(value, Mapping):
            raise MalformedGoldenError(f"{where} is {shown(value)}; it must be an object")
        return cls(where=where, fields=cast("Mapping[str, object]", value))  # A JSON object.

    def raw(self, name: str) -> object:
        if name not in self.fields:
            raise MalformedGoldenError(f"{self.where}: input {name!r} is missing")
        self.used.add(name)
        return self.fields[name]

    def number(self, name: str) -> Fraction:
        return _exact(self.raw(name), f"{self.where}.{name}")

    def whole(self, name: str) -> int:
        value = self.number(name)
        if value.denominator != 1:
            raise MalformedGoldenError(f"{self.where}.{name} is {value}; it must be an integer")
        return value.numerator

    def items(self, name: str) -> Sequence[object]:
        value = self.raw(name)
        if not isinstance(value, list) or not value:
            raise MalformedGoldenError(f"{self.where}.{name} is {shown(value)}; it must be a list")
        return cast("list[object]", value)  # A JSON list.

    def finish(self) -> None:
        """Check that every input was read."""
        unknown = sorted(set(self.fields) - self.used)
        if unknown:
            raise MalformedGoldenError(f"{self.where}: input {shown(unknown[0])} is not one of this group")


def _exact(value: object, where: str) -> Fraction:
    """Return a number, or its text: decimal, or a fraction like '9/10'.

    Raises:
        MalformedGoldenError: it is neither.
        AnalysisError: it is a number that is too large or too small to be judged.
    """
    if isinstance(value, int | Fraction) and not isinstance(value, bool):
        return Fraction(value)
    try:
        if not isinstance(value, str) or len(value) > _MOST_DIGITS:
            raise ValueError("no short text")
        top, _, bottom = value.partition("/")
        parts = [Decimal(part) for part in ((top, bottom) if bottom else (top,))]
        if not all(part.is_finite() for part in parts) or (bottom and not parts[1]):
            raise ValueError("no number")
    except (ValueError, InvalidOperation):
        raise MalformedGoldenError(f"{where} is {shown(value)}; it must be a number like '0.5' or '9/10'") from None
    if any(part and abs(part.adjusted()) > LARGEST_EXPONENT for part in parts):
        raise AnalysisError(f"{where} is {shown(value)}, allowed: 1e-{LARGEST_EXPONENT} to 1e{LARGEST_EXPONENT}, or 0")
    return Fraction(parts[0]) / (Fraction(parts[1]) if bottom else 1)


def _group(answer: Callable[[_Inputs], Number]) -> Callable[[GoldenRow], Mapping[str, object]]:
    def recompute(row: GoldenRow) -> Mapping[str, object]:
        row.raw("how")
        inputs = _Inputs.of(row.raw("inputs"), f"{row.where}, inputs")
        expected = row.raw("expected")
        wanted = _exact(expected, f"{row.where}.expected")
        found = Fraction(answer(inputs))
        inputs.finish()
        slack = _LEDGER_STEP if "charges" in inputs.fields else Fraction(0)
        close = abs(found - wanted) <= _CLOSE * abs(wanted) + slack
        return {"expected": expected if close else _text(found)}

    return recompute


def _text(number: Fraction) -> str:
    return str(_DIGITS.divide(Decimal(number.numerator), Decimal(number.denominator)))


def _zcdp_order(one: _Inputs) -> Fraction:
    order = one.number("order")
    return order_epsilon(order * one.number("rho"), order, one.number("delta"))


def _unit_delta(one: _Inputs) -> Fraction:
    return gaussian_unit_delta(
        one.number("p"), one.whole("unit_windows"), one.number("variance"), one.number("epsilon")
    )


def _panel_pure(one: _Inputs) -> Fraction:
    windows, changed = one.whole("unit_windows"), one.whole("changed_windows")
    return panel_pure_epsilon(one.number("p"), windows, changed, one.number("e1"), one.whole("cells"))


def _tosses(one: _Inputs) -> tuple[Fraction, int]:
    """Return p and U, of which p**U can be written down."""
    rate, units = one.number("p"), one.whole("units")
    bits = rate.denominator.bit_length()
    if units * bits > _MOST_BITS:
        raise MechanismError(f"units is {units}, allowed: 1..{_MOST_BITS // bits} for this p")
    return rate, units


def _units(one: _Inputs) -> tuple[int, ...]:
    units = require_at_least("units", one.whole("units"), 1)
    if units > 100_000:
        raise MechanismError(f"units is {units}, allowed: 1..100,000")
    return (one.whole("unit_windows"),) * units


def _fixed_loss_sd(one: _Inputs) -> float:
    rate, epsilon = one.number("p"), one.number("epsilon")
    return release_sd(one.whole("count"), rate, noise_epsilon_two_cell(epsilon, rate), 2)


def _noise_variance(one: _Inputs) -> Fraction:
    """Return the variance of the noise of a row whose input `variance` is the law's parameter s.

    A golden file writes sigma^2 for the parameter and Var for the law's own variance, "exact variance of N_Z(0,s)" in
    its group `gaussian_variance`, where `variance` = 1/4 has Var = .215. Its rows `variance_*` have s = 9 and 660, at
    which both are the same to 70 digits; at s = 1 they differ by 2e-7, below that by a seventh and more.
    """
    variance = one.number("variance")
    # Beyond 100 both agree to 800 digits, and without noise the variance is none.
    return discrete_gaussian_variance(variance) if 0 != variance <= 100 else variance


def _window(one: _Inputs) -> Fraction:
    one.raw("n_s")
    one.raw("n_both")
    return window_variance(one.number("p"), _noise_variance(one), one.whole("aggregators"), one.whole("n_t"))


def _change(sign: int) -> Callable[[_Inputs], Fraction]:
    def answer(one: _Inputs) -> Fraction:
        counts, noises = (one.whole("n_t"), one.whole("n_s")), one.whole("aggregators")
        shared = sign * 2 * one.whole("n_both")
        return change_variance(one.number("p"), _noise_variance(one), noises, counts, shared)

    return answer


# The ledger.


def _vector(one: _Inputs, orders: tuple[int, ...]) -> LossVector:
    """Return what one charge of a row loses."""
    kind, pure = one.raw("kind"), None
    if kind == "gaussian":
        moved = one.whole("cells"), one.whole("windows"), one.number("variance")
        at = [gaussian_divergence(*moved, order) for order in orders]
    elif kind == "geometric":
        copies, noise = one.whole("cells") * one.whole("windows"), one.number("e1")
        at, pure = [copies * pure_divergence(noise, order) for order in orders], copies * noise
    elif kind == "panel_gaussian":
        units, law = one.whole("units"), (one.number("p"), one.whole("unit_windows"), one.number("variance"))
        at = [units * panel_gaussian_divergence(*law, order) for order in orders]
    elif kind == "panel_geometric":
        units, unit = one.whole("units"), (one.number("p"), one.whole("unit_windows"), one.number("e1"))
        at = [units * panel_geometric_divergence(*unit, order) for order in orders]
        pure = units * panel_pure_epsilon(unit[0], unit[1], unit[1], unit[2], 2)
    elif kind in ("pure", "mangat_vector"):
        epsilon, places = one.number("epsilon"), one.whole("places") if kind == "mangat_vector" else 1
        at, pure = [places * pure_divergence(epsilon, order) for order in orders], places * epsilon
    elif kind == "one_sided":
        pure = one.number("epsilon")
        at = [pure] * len(orders)
    else:
        raise MalformedGoldenError(f"{one.where}: kind is {shown(kind)}; it must be a kind of charge")
    one.finish()
    return LossVector.of(orders, at, pure)


def _ledger(one: _Inputs) -> Fraction:
    places = one.items("orders")
    numbers = _Inputs(where=one.where, fields={str(place): order for place, order in enumerate(places)})
    orders = tuple(sorted(numbers.whole(str(place)) for place in range(len(places))))
    budget = LossBudget(epsilon=Fraction(LARGEST_BUDGET), delta=one.number("delta"), orders=orders)
    charges = [_Inputs.of(charge, f"{one.where}, charge") for charge in one.items("charges")]
    return Fraction(budget.spent(sum((_vector(charge, orders) for charge in charges), LossVector.nothing(orders))))


_ANSWERS: Final[Mapping[str, Callable[[_Inputs], Number]]] = {
    "rr_rho": lambda one: pure_rho(one.number("epsilon")),
    "rr_renyi": lambda one: pure_divergence(one.number("epsilon"), one.number("order")),
    "geometric_basic": lambda one: basic_epsilon([one.number("e1")]) * 2 * one.whole("windows"),
    "geometric_optimal": lambda one: optimal_loss_repeated(
        one.number("e1"), 2 * one.whole("windows"), one.number("delta")
    ),
    "geometric_optimal_delta": lambda one: optimal_delta_repeated(
        one.number("e1"), 2 * one.whole("windows"), one.number("epsilon")
    ),
    "gaussian_rho": lambda one: gaussian_rho(one.whole("cells"), one.whole("windows"), one.number("variance")),
    "zcdp_epsilon_tight": lambda one: zcdp_epsilon(one.number("rho"), one.number("delta")),
    "zcdp_epsilon_simple": lambda one: zcdp_epsilon_simple(one.number("rho"), one.number("delta")),
    "zcdp_delta_tight": lambda one: zcdp_delta(one.number("rho"), one.number("epsilon")),
    "order_epsilon": _zcdp_order,
    "panel_pure": _panel_pure,
    "panel_renyi_gaussian": lambda one: panel_gaussian_divergence(
        one.number("p"), one.whole("unit_windows"), one.number("variance"), one.whole("order")
    ),
    "panel_renyi_geometric": lambda one: panel_geometric_divergence(
        one.number("p"), one.whole("unit_windows"), one.number("e1"), one.number("order")
    ),
    "panel_delta_joint_convexity": _unit_delta,
    "kov_approximate": lambda one: optimal_loss_approximate(
        one.number("epsilon"), one.number("delta_each"), one.whole("releases"), one.number("delta")
    ),
    "exposure_any": lambda one: chance_of_any(*_tosses(one)),
    "exposure_all": lambda one: chance_of_all(*_tosses(one)),
    "exposure_quantile": lambda one: Fraction(quantile(one.number("p"), _units(one))),
    "exposure_expected": lambda one: expected_answers(one.number("p"), _units(one)),
    "gaussian_variance": lambda one: discrete_gaussian_variance(one.number("variance")),
    "variance_window": _window,
    "variance_difference_same_coin": _change(-1),
    "variance_difference_other_coin": _change(0),
    "variance_sum_same_coin": _change(1),
    "noise_tail": lambda one: noise_tail(one.number("variance"), one.whole("aggregators"), one.whole("h")),
    "fixed_loss_sd": _fixed_loss_sd,
    "ledger_total": _ledger,
}

QUESTION_GROUPS: Final = {name: _group(answer) for name, answer in _ANSWERS.items()}
"""By group name: the function that recomputes a row's `expected`; texts that agree to 12 digits are returned as given.

A group is looked up by `groups`.
"""

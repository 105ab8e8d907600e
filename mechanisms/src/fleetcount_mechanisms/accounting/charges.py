"""What a design's answers lose: divergences, pure losses, and the vectors that ledgers add.

The one place that tells designs apart; formulas are those of `renyi`. It must not know a limit or a time. Losses are
for any value, or none, of one device replaced by any other, in the eyes of the public and of all aggregators but one;
for designs whose `charge_relation` is one-sided they are for a value replaced by none only.
"""

from fractions import Fraction
from typing import Final

from fleetcount_mechanisms.accounting.vectors import LossVector, checked_orders
from fleetcount_mechanisms.answers import AnswerForm, Relation
from fleetcount_mechanisms.design import Design, Outputs
from fleetcount_mechanisms.errors import MechanismError, require_at_least
from fleetcount_mechanisms.losses import any_value_loss, released_loss
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.renyi import (
    gaussian_divergence,
    panel_gaussian_divergence,
    panel_geometric_divergence,
    panel_linear_divergence,
    panel_pure_epsilon,
    pure_divergence,
)

_MOST_WINDOWS: Final = 100_000


def window_loss(design: Design, orders: tuple[int, ...], windows: int = 1) -> LossVector:
    """Return what `windows` answers lose, each with coins of its own.

    Raises:
        MechanismError: orders that do not grow within 2..4096, windows not in 1..100,000, or a design without a finite
            loss: exact sums of Sampling Privacy, which are (epsilon, delta) with delta = p.
    """
    if design.form is AnswerForm.TWO_ROUNDS:
        return unit_loss(design, orders, 1).times(_checked_windows(windows))
    return unit_loss(design, orders, windows)


def unit_loss(design: Design, orders: tuple[int, ...], windows: int) -> LossVector:
    """Return what one unit of `windows` answers loses, all of which share one toss of the sampling coin.

    Without a sampling coin it is the loss of so many answers. Raises as `window_loss`.
    """
    at = [unit_divergence(design, windows, order) for order in checked_orders(orders)]
    return LossVector.of(orders, at, unit_pure(design, windows))


def charge_relation(design: Design) -> Relation:
    """Return for which change of the truth the charges hold: any value, or one-sided.

    One-sided losses enter a ledger for "a value replaced by none" only; a ledger that promises more refuses them.
    """
    if isinstance(design.noise, OneSidedNoise):
        return Relation.ONE_SIDED
    one_sided = design.device_randomizes and not design.noised and design.kind.relation is Relation.ONE_SIDED
    return Relation.ONE_SIDED if one_sided else Relation.ANY_VALUE


def moved_cells(design: Design) -> int:
    """Return how many opened numbers one changed answer moves, each by 1: those of one zoom, once a zoom."""
    return design.zoom_count * zoom_cells(design)


def zoom_cells(design: Design) -> int:
    """Return how many opened numbers of one zoom it moves: two, or one where there is one cell alone."""
    alone = design.values == 1 and design.outputs is not Outputs.ALL
    return 1 if alone else 2


def told_windows(design: Design, windows: int) -> int:
    """Return how many windows of one zoom lose as much: under one toss of a coin each zoom of a window counts as one.

    The numbers of the zooms of a window are moved by one answer, which is one of the answers that the windows of a
    unit may hold (docs/spec.md, Theorem 1).
    """
    return windows * design.zoom_count


def truth_weight(design: Design) -> Fraction:
    """Return the chance that an answer depends on the truth: p, 1 for the truth itself, P - Q of a response.

    Of a vector two bits change, and one of them is enough.
    """
    if design.form is AnswerForm.BITS and zoom_cells(design) == 2:
        return 1 - (1 - design.exposure) ** 2
    return design.exposure


def noise_divergence(noise: NoiseLaw, moved: int, order: Fraction | int) -> Fraction:
    """Return the divergence of the noised numbers alone where `moved` of them change by 1 (F1, F4).

    Raises:
        MechanismError: a law of noise that is not two-sided, moved below 1, or an order not above 1.
    """
    if isinstance(noise, GaussianNoise):
        return gaussian_divergence(require_at_least("moved numbers", moved, 1), 1, noise.variance, order)
    return moved * pure_divergence(_geometric(noise), order)


def noise_pure(noise: NoiseLaw, moved: int) -> Fraction | None:
    """Return the pure epsilon of the same, None where the law has none; raises as `noise_divergence`."""
    return None if isinstance(noise, GaussianNoise) else moved * _geometric(noise)


def unit_divergence(design: Design, windows: int, order: int) -> Fraction:
    """Return the divergence of one unit of answers at an integer order, to 1e-60; raises as `window_loss`."""
    _checked_windows(windows)
    _require_finite(design)
    if _one_way(design):
        return windows * _one_way_loss(design)
    if design.form is not AnswerForm.TWO_ROUNDS:
        return windows * min(_answer_divergences(design, order))
    moved, told, rate = windows * moved_cells(design), told_windows(design, windows), design.exposure
    direct, pure = noise_divergence(design.noise, moved, order), unit_pure(design, windows)
    if isinstance(design.noise, GaussianNoise):
        panel = panel_gaussian_divergence(rate, told, design.noise.variance, order)
    else:
        panel = panel_geometric_divergence(rate, told, _geometric(design.noise), order)
    pure_bound = () if pure is None else (pure_divergence(pure, order),)
    return min(panel, panel_linear_divergence(rate, direct, order), *pure_bound)


def unit_pure(design: Design, windows: int) -> Fraction | None:
    """Return the pure epsilon of one unit of answers, to 1e-60, None without one; raises as `window_loss`."""
    _checked_windows(windows)
    _require_finite(design)
    if _one_way(design):
        return windows * _one_way_loss(design)
    if design.form is AnswerForm.TWO_ROUNDS:
        if isinstance(design.noise, GaussianNoise):
            return None
        told, epsilon = told_windows(design, windows), _geometric(design.noise)
        return panel_pure_epsilon(design.exposure, told, told, epsilon, zoom_cells(design))
    alone = _answer_pure(design)
    return None if alone is None else windows * alone


def _checked_windows(windows: int) -> int:
    if require_at_least("windows", windows, 1) > _MOST_WINDOWS:
        raise MechanismError(f"windows is {windows}, allowed: 1..{_MOST_WINDOWS}")
    return windows


def _require_finite(design: Design) -> None:
    if design.form is AnswerForm.TWO_ROUNDS and not design.noised:
        raise MechanismError(
            f"exact sums of answers sampled at {design.exposure} have no finite epsilon, allowed: noise on them"
        )


def _geometric(noise: NoiseLaw) -> Fraction:
    if not isinstance(noise, TwoSidedNoise):
        raise MechanismError(f"noise is {noise.name!r}, allowed: two-sided geometric, discrete Gaussian")
    return noise.epsilon


# One-sided losses: the sum is all there is, at every order.


def _one_way(design: Design) -> bool:
    return charge_relation(design) is Relation.ONE_SIDED


def _one_way_loss(design: Design) -> Fraction:
    if isinstance(design.noise, OneSidedNoise):
        return design.zoom_count * design.noise.epsilon
    return Fraction(design.local_epsilon or 0)


# One answer without a sampling coin: the truth, or a randomized one.


def _local(design: Design) -> Fraction | None:
    """Return the device's own loss for any change, which holds whatever is added to the counts."""
    if not design.device_randomizes or design.kind.relation is not Relation.ANY_VALUE:
        return None
    return Fraction(design.local_epsilon or 0)


def _answer_pure(design: Design) -> Fraction | None:
    if isinstance(design.noise, GaussianNoise | NoNoise):
        return _local(design)
    if design.device_randomizes:
        return any_value_loss(design.answer, _geometric(design.noise))
    return noise_pure(design.noise, moved_cells(design))


def _answer_divergences(design: Design, order: int) -> list[Fraction]:
    """Return bounds of one answer's divergence; all hold."""
    local, pure = _local(design), _answer_pure(design)
    found = [pure_divergence(epsilon, order) for epsilon in (local, pure) if epsilon is not None]
    if design.noised:
        direct = noise_divergence(design.noise, moved_cells(design), order)
        found.append(panel_linear_divergence(truth_weight(design), direct, order))
    if design.kind.multi_hot and isinstance(design.noise, TwoSidedNoise):
        # A value that moves changes two places, each of which loses at most this much (docs/privacy.md).
        places = 1 if design.values == 1 else 2
        found.append(places * pure_divergence(released_loss(design.answer, design.noise.epsilon), order))
    return found

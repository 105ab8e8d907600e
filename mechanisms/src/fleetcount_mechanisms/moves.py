"""What one changed answer moves of the opened numbers, and what that costs without a sampling coin.

A move is the noises of the numbers that change together, each with the whole number by which it changes; their losses
add up, and the worst move is charged. This is `linear`'s price over the rows of levels, in closed form. It must not
know a design or a coin.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import cast

from fleetcount_mechanisms.composition import optimal_loss_repeated
from fleetcount_mechanisms.errors import MechanismError, require_at_least
from fleetcount_mechanisms.levels import Move
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, TwoSidedNoise
from fleetcount_mechanisms.renyi import best_order, gaussian_rho, pure_divergence, zcdp_epsilon


def move_rho(move: Move) -> Fraction:
    """Return the zCDP of a move under Gaussian noise, sum of d_i**2/(2 s_i) (docs/spec.md, F4).

    Raises:
        MechanismError: another law.
    """
    return sum((amount**2 * gaussian_rho(1, 1, _gaussian(law).variance) for law, amount in move), Fraction(0))


def move_pure(move: Move) -> Fraction | None:
    """Return the pure epsilon of a move, sum of d_i e_i, None for Gaussian noise.

    Raises:
        MechanismError: a law of noise that is not two-sided.
    """
    if isinstance(move[0][0], GaussianNoise):
        return None
    return sum((amount * _geometric(law) for law, amount in move), Fraction(0))


def move_divergence(move: Move, order: Fraction | int) -> Fraction:
    """Return the Renyi divergence of a move (docs/spec.md, F1 and F4).

    Gaussian: exact at integer orders, an upper bound at others. Geometric: exact for numbers that move by 1; one that
    moves by d is charged as randomized response of d e_i, an upper bound for every pair of laws with that pure loss.

    Raises:
        MechanismError: a law of noise that is not two-sided, or an order not above 1.
    """
    if isinstance(move[0][0], GaussianNoise):
        return order * move_rho(move)
    known = {(law, amount): pure_divergence(amount * _geometric(law), order) for law, amount in set(move)}
    return sum((known[moved] for moved in move), Fraction(0))


def moves_rho(moves: Sequence[Move]) -> Fraction:
    """Return the zCDP of the worst move under Gaussian noise."""
    return max(map(move_rho, moves))


def moves_pure(moves: Sequence[Move]) -> Fraction | None:
    """Return the pure epsilon of the worst move, None for Gaussian noise."""
    found = [pure for pure in map(move_pure, moves) if pure is not None]
    return max(found, default=None)


def moves_divergence(moves: Sequence[Move], order: Fraction | int) -> Fraction:
    """Return the Renyi divergence of the worst move."""
    return max(move_divergence(move, order) for move in moves)


def moves_loss(moves: Sequence[Move], answers: int, delta: Fraction) -> Fraction:
    """Return the epsilon at delta of so many answers that all change, each by the worst move.

    The best zCDP conversion for Gaussian noise. Exact for geometric noise of one parameter on numbers that move by 1
    (Kairouz, Oh, Viswanath), else the best of pure and Renyi losses, an upper bound.

    Raises:
        MechanismError: a law of noise that is not two-sided, answers below 1, or delta not in (0, 1).
    """
    require_at_least("answers", answers, 1)
    if isinstance(moves[0][0][0], GaussianNoise):
        return max(Fraction(0), zcdp_epsilon(answers * moves_rho(moves), delta))
    first = moves[0]
    if len(moves) == 1 and set(first) == {(first[0][0], 1)}:
        return max(Fraction(0), optimal_loss_repeated(_geometric(first[0][0]), len(first) * answers, delta))
    # Some answers may change by one move and others by another, so that the worst is taken at every order.
    pure = answers * cast("Fraction", moves_pure(moves))
    return max(Fraction(0), min(pure, best_order(lambda order: answers * moves_divergence(moves, order), delta)[1]))


def _gaussian(law: NoiseLaw) -> GaussianNoise:
    if not isinstance(law, GaussianNoise):
        raise MechanismError(f"noise is {law.name!r}, allowed: discrete Gaussian")
    return law


def _geometric(law: NoiseLaw) -> Fraction:
    if not isinstance(law, TwoSidedNoise):
        raise MechanismError(f"noise is {law.name!r}, allowed: two-sided geometric, discrete Gaussian")
    return law.epsilon

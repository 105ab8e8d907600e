"""The errors of this package and the checks that raise them.

It must not put a device's truth, a coin or a noise value into a message: only public parameters are quoted.

    MechanismError (ValueError)      a parameter is outside its range; the message gives the value and the range
    └── InfeasibleTargetError        every parameter is in range, but no mechanism can meet them all at once
"""

from collections.abc import Collection, Sequence
from fractions import Fraction


class MechanismError(ValueError):
    """A parameter is outside its range."""


class InfeasibleTargetError(MechanismError):
    """No mechanism meets the targets asked for together."""


def did_you_mean(given: object, known: Collection[str]) -> str:
    """Return "; did you mean 'x'?" for the nearest known name, its words in any order, or ""."""
    from difflib import get_close_matches  # Imported here: only the path of an error needs it.

    by_words = {_words(name): name for name in known}
    near = get_close_matches(_words(given), by_words, n=1) if isinstance(given, str) else []
    return f"; did you mean {by_words[near[0]]!r}?" if near else ""


def _words(name: str) -> str:
    return "-".join(sorted(name.replace("_", "-").split("-")))


def require_fraction(name: str, value: object) -> Fraction:
    """Return `value` as a Fraction; floats are refused, because a rounded probability is a different probability.

    Raises:
        MechanismError: `value` is neither an int nor a Fraction.
    """
    if isinstance(value, bool) or not isinstance(value, int | Fraction):
        raise MechanismError(f"{name} must be an exact Fraction or int, not {type(value).__name__} ({value!r})")
    return Fraction(value)


def require_open_unit(name: str, value: object) -> Fraction:
    """Return `value` as a Fraction strictly between 0 and 1.

    Raises:
        MechanismError: not exact, or not in (0, 1).
    """
    fraction = require_fraction(name, value)
    if not 0 < fraction < 1:
        raise MechanismError(f"{name} is {fraction}, allowed: 0 < {name} < 1")
    return fraction


def require_positive(name: str, value: object) -> Fraction:
    """Return `value` as a Fraction greater than 0.

    Raises:
        MechanismError: not exact, or not above 0.
    """
    fraction = require_fraction(name, value)
    if fraction <= 0:
        raise MechanismError(f"{name} is {fraction}, allowed: {name} > 0")
    return fraction


def require_at_least(name: str, value: object, least: int) -> int:
    """Return `value` as an int of at least `least`.

    Raises:
        MechanismError: not an int, or below `least`.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise MechanismError(f"{name} must be an int, not {type(value).__name__} ({value!r})")
    if value < least:
        raise MechanismError(f"{name} is {value}, allowed: {name} >= {least}")
    return value


def require_between(name: str, value: object, least: int, most: int) -> int:
    """Return `value` as an int from `least` to `most`.

    Raises:
        MechanismError: another value.
    """
    if type(value) is not int or not least <= value <= most:
        raise MechanismError(f"{name} is {value!r}, allowed: {least}..{most}")
    return value


def require_position(truth: object, values: int) -> int:
    """Return a device's truth if it is a position in 0..`values`; the message never shows it.

    Raises:
        MechanismError: not an int in 0..`values`.
    """
    if type(truth) is not int:
        raise MechanismError(f"a truth must be an int in 0..{values}, not {type(truth).__name__}")
    if not 0 <= truth <= values:
        raise MechanismError(f"a truth must be in 0..{values} (the value given is withheld)")
    return truth


def require_counts(name: str, counts: Sequence[object], length: int) -> None:
    """Check that a sequence has `length` entries.

    Raises:
        MechanismError: the sequence has another length.
    """
    if len(counts) != length:
        raise MechanismError(f"{name} has {len(counts)} entries, allowed: exactly {length}")

"""Which values a question protects against which, as it is asked: the flips of an asymmetric answer that follow.

A policy of asymmetric differential privacy is an order of the values ([ADP] Definition IV.1): x is below y where having
x may not be told from having y. Run by whoever asks; a device reads the flips alone. It must not choose an epsilon.
"""

from collections.abc import Callable, Collection, Mapping

from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.responses import Flips


def flips_protecting(
    values: int, protects: Mapping[int, Collection[int]], named: Callable[[int], str] = str
) -> tuple[Flips, ...]:
    """Return the flips of the least protection that hides each x in 1..V behind every y of `protects[x]`.

    0 is none: it hides every value that is hidden at all, and is hidden behind every value that hides one. What is
    hidden behind one value is hidden behind all that hide any, since each bit is wrong by itself.

    Raises:
        MechanismError: a value outside 0..V, one that is protected against itself, one that is not named at all, or a
            relation that is no order: x against y and y against z, but not x against z; values as `named`.
    """
    for one, others in protects.items():
        for value in (one, *others):
            if type(value) is not int or not 0 <= value <= values:
                raise MechanismError(f"protects names the value {value}, allowed: 0 (none) to {values}")
        if one in others:
            raise MechanismError(f"protects {named(one)} against itself, allowed: against other values")
        for other in others:
            missing = sorted(set(protects.get(other, ())) - {0, one, *others})
            if one and missing:
                x, y, z = (named(value) for value in (one, other, missing[0]))
                raise MechanismError(
                    f"protects {x} against {y} and {y} against {z}, allowed: an order, {x} against {z} too"
                )
    hidden = {one for one, others in protects.items() if others}
    behind = {other for others in protects.values() for other in others}
    for value in range(1, values + 1):
        if value not in hidden | behind:
            raise MechanismError(
                f"protects does not name {named(value)}, allowed: each value, as one that is protected or one that"
                " hides another; its answers would be the truth"
            )
    return tuple(
        Flips.BOTH if value in hidden & behind else Flips.UP if value in hidden else Flips.DOWN
        for value in range(1, values + 1)
    )

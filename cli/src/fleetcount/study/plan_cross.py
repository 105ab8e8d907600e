"""`fleetcount plan --cross`: what cells, margins and total of a table of several signals err by.

It must not ask a device or start a process.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from fleetcount_analysis.answers import joined_errors
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import NoiseLaw
from fleetcount_mechanisms.planned_noise import Spread
from fleetcount_mechanisms.planning import Plan, plan_question
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.window.domain import CROSSED


def cross_spread(
    values: int, shape: Sequence[int], shares: Sequence[Fraction] | None, mechanism: str, law: type[NoiseLaw]
) -> Spread:
    """Return the cells and margins of a table of so many values of each signal, equal parts of the budget by default.

    Raises:
        UsageError: not two or three signals, another product than `values`, shares that are not one a level, or not 1
            together; or answers that are not direct.
    """
    least, most = CROSSED
    if not least <= len(shape) <= most or math.prod(shape) != values:
        said = ",".join(map(str, shape))
        raise UsageError(f"--cross is {said}, allowed: {least} or {most} numbers whose product is --values = {values}")
    if mechanism != "direct":
        raise UsageError(
            f"--cross is given with {mechanism} answers, allowed with --mechanism direct; of others a margin is the sum"
            " of its cells"
        )
    if shares is not None and (len(shares) != len(shape) + 1 or min(shares) <= 0 or sum(shares) != 1):
        said = ", ".join(map(str, shares))
        raise UsageError(
            f"--shares are {said}, allowed: one above 0 for the cells and each of {len(shape)} margins, 1 together"
        )
    return Spread.of_shares(Levels(values, margins=tuple(shape)), shares or (), law)


def cross_lines(planned: Plan, epsilon: Fraction) -> list[str]:
    """Return a heading and one line each for cells, margins and total; nothing for a release without margins.

    Raises:
        MechanismError: no noise of cells alone reaches epsilon.
    """
    design = planned.design
    shape = design.levels.margins
    if not shape:
        return []
    alone = plan_question(planned.devices, design.answer, epsilon, design.aggregators, noise=type(design.noise)).sd(0)  # type: ignore[arg-type]
    lines = [
        f"A table of {' by '.join(map(str, shape))}; standard error in devices with all its numbers reconciled, and of",
        "sums of cells where cells alone are released under the same epsilon:",
    ]
    names = ["a cell", *(f"a value of signal {place}, {size} of them" for place, size in enumerate(shape, start=1))]
    for name, size, error in zip([*names, "the total"], design.levels.sizes, joined_errors(design), strict=False):
        lines.append(f"  {name}: {error:,.1f}, {alone * math.sqrt(design.values / size):,.1f}")
    return [*lines, ""]


def cross_errors(design: Design) -> dict[str, Any]:
    """Return the errors of cells and margins of `cross_lines` for programs, without the total's and the sums'."""
    if not design.levels.margins:
        return {}
    cell, *margins = joined_errors(design)[: 1 + len(design.levels.margins)]
    return {"cross": list(design.levels.margins), "joined_standard_errors": {"cell": cell, "margins": margins}}

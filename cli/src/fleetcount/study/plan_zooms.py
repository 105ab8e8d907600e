"""`fleetcount plan --zooms`: what every zoom of one report will give, and what one zoom alone would.

It must not ask a device or start a process.
"""

from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetcount_mechanisms.planning import Plan


def zoom_lines(planned: "Plan", epsilon: Fraction) -> list[str]:
    """Return the errors of an empty square at every zoom, under what heads them; nothing of a release of one zoom.

    Raises:
        MechanismError: no noise of one zoom reaches epsilon.
    """
    design = planned.design
    if design.zooms is None:
        return []
    from fleetcount_analysis.answers import consistent_errors
    from fleetcount_mechanisms.planning import plan_question

    law = type(design.noise)
    alone = plan_question(planned.devices, design.answer, epsilon, design.aggregators, noise=law).sd(0)  # type: ignore[arg-type]
    own = planned.sd(0)
    lines = [
        f"{design.zoom_count} zooms of {design.zooms.columns} by {design.zooms.rows} squares in one report; standard"
        " error of an empty square as released,",
        "in counts of all zooms that add up, and as a sum of squares under the same epsilon with one zoom alone:",
    ]
    sided = design.noise.mean != 0
    # Noise with one side has a mean, and no best combination of zooms was worked out for it.
    agreeing = [None] * design.zoom_count if sided else list(consistent_errors(design))
    for zoom, (size, joint) in enumerate(zip(design.zooms.sizes, agreeing, strict=True)):
        shown = "-" if joint is None else f"{joint:,.1f}"
        head = f"  squares of {2**zoom} times the side, {size:,} of them"
        lines.append(f"{head}: {own:,.1f}, {shown}, {alone * 2**zoom:,.1f}")
    return [*lines, ""]

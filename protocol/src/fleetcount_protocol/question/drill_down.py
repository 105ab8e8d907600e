"""Which places a drill-down asks about next: the children of the cells that the record before found busy.

Run by every party on the signed public record of the step before, so that nothing more is signed. It must not see
anything else of a release: what follows from public numbers costs no further privacy.
"""

from collections.abc import Sequence
from fractions import Fraction

from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.question.fields import DrillDown
from fleetcount_protocol.window.domain import Prefixes


def surviving_cells(domain: Prefixes, estimates: Sequence[Fraction], walk: DrillDown) -> tuple[int, ...]:
    """Return the cells whose estimate reached the threshold, ascending; of too many those with the largest estimates.

    `estimates` are those of the record, one a cell of the `domain` of its window, in its order. Of equal estimates the
    smaller cell is kept. Nothing is returned where no cell reached the threshold: the walk has ended.

    Raises:
        UsageError: another number of estimates than of cells.
    """
    if len(estimates) != domain.values:
        raise UsageError(f"{len(estimates)} estimates for {domain.values} cells")
    busy = [
        (-estimate, cell) for cell, estimate in zip(domain.cells, estimates, strict=True) if estimate >= walk.threshold
    ]
    return tuple(sorted(cell for _, cell in sorted(busy)[: walk.most_survivors]))


def candidates(survivors: tuple[int, ...], walk: DrillDown, step: int) -> Prefixes:
    """Return what step 1, 2, ... of a walk asks: all children of the cells that survived the step before.

    Raises:
        UsageError: no survivor, more than the question allows, or cells that are not those of the step before,
        ascending.
    """
    bits = walk.levels[step - 1]
    if not 1 <= len(survivors) <= walk.most_survivors:
        raise UsageError(f"{len(survivors)} cells survived, allowed for a next step: 1 to {walk.most_survivors}")
    if list(survivors) != sorted(set(survivors)) or not 0 <= survivors[0] <= survivors[-1] < 1 << bits:
        raise UsageError(f"surviving cells must ascend, each of {bits} bits")
    deeper = walk.levels[step] - bits
    cells = tuple((cell << deeper) + child for cell in survivors for child in range(1 << deeper))
    return Prefixes(bits=walk.levels[step], cells=cells)


def parents(domain: Prefixes, walk: DrillDown, step: int) -> tuple[int, ...]:
    """Return the cells whose children a step asks about, ascending: none for the first step of a walk."""
    deeper = walk.levels[step] - walk.levels[step - 1] if step else 0
    return tuple(sorted({cell >> deeper for cell in domain.cells})) if step else ()

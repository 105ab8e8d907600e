"""The exact optimum over any number of sizes, by mixed-integer programming; for few values.

Its loss is the lower bound that the paper calls "Optimal" ([INF, section 7.2]).
"""

import numpy as np
from fleetcount_analysis.errors import NoOptimumError, RangeError
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

from fleetcount_evidence.buckets.setting import BucketSetting, SensitiveValues, UnsatisfiableError


def optimal_bucketing(
    values: SensitiveValues, *, smallest: int | None = None, largest: int = 50, time_limit_s: float = 600.0
) -> BucketSetting:
    """Return the valid setting of least loss with sizes `smallest`..`largest` (HiGHS).

    Variables: b_S buckets of each size and n_iS records of value i in them. Constraints: n_iS <= floor(f'_i S) b_S,
    every record is placed, every bucket is full. The solver uses floats: check the result (`validity`, `assign`).

    Raises:
        RangeError: not 1 <= smallest <= largest.
        UnsatisfiableError: no setting is valid.
        NoOptimumError: the solver stopped before it could prove an optimum.
    """
    low = values.smallest_size if smallest is None else smallest
    if not 1 <= low <= largest:
        raise RangeError("sizes", (low, largest), "1 <= smallest <= largest")
    sizes = range(low, largest + 1)
    cost = np.zeros(len(sizes) * (1 + len(values.counts)))
    cost[: len(sizes)] = [(size - 1) ** 2 for size in sizes]
    result = milp(
        cost,
        constraints=_constraints(values, sizes),
        integrality=np.ones_like(cost),
        bounds=Bounds(0, values.records),
        options={"time_limit": time_limit_s, "mip_rel_gap": 0},
    )
    if result.status == 2:
        raise UnsatisfiableError(f"no bucket sizes from {low} to {largest} keep the thresholds")
    if result.status != 0 or result.x is None:
        raise NoOptimumError(f"the solver stopped without an optimum: {result.message}")
    return BucketSetting.of(*zip(sizes, np.rint(result.x[: len(sizes)]).astype(int).tolist(), strict=True))


def _constraints(values: SensitiveValues, sizes: range) -> list[LinearConstraint]:
    kinds, width = len(values.counts), len(sizes)
    variables = width * (1 + kinds)

    def column(value: int, size: int) -> int:
        return width * (1 + value) + size

    most = lil_array((kinds * width, variables))
    placed = lil_array((kinds, variables))
    filled = lil_array((width, variables))
    for s, size in enumerate(sizes):
        filled[s, s] = -size
        for i, cap in enumerate(values.most_in_one(size)):
            row = i * width + s
            most[row, column(i, s)], most[row, s] = 1, -cap
            placed[i, column(i, s)] = 1
            filled[s, column(i, s)] = 1
    counts = np.array(values.counts, dtype=np.float64)
    return [
        LinearConstraint(most.tocsr(), -np.inf, 0),
        # SciPy has no stubs; pyright infers the bounds' types from their scalar defaults.
        LinearConstraint(placed.tocsr(), counts, counts),  # pyright: ignore[reportArgumentType]
        LinearConstraint(filled.tocsr(), 0, 0),
    ]

"""Decides exactly whether a bucket setting can keep the thresholds.

`assignment` computes an assignment for a valid setting.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Final

from fleetcount_analysis.errors import RangeError

from fleetcount_evidence.buckets.setting import BucketSetting, SensitiveValues

MOST_SIZES: Final = 16


def capacities(values: SensitiveValues, setting: BucketSetting) -> list[list[int]]:
    """Return a_ij = floor(f'_i S_j) b_j, for each size j a list over the values i ([INF, Definition 4.16])."""
    return [[most * size.buckets for most in values.most_in_one(size.size)] for size in setting.sizes]


def setting_is_valid(values: SensitiveValues, setting: BucketSetting) -> bool:
    """Return whether some assignment of the records keeps every threshold in every bucket.

    Exact for any number of sizes: records of value i flow to size j up to a_ij, size j takes S_j b_j. By the
    max-flow min-cut theorem (Gale) all sizes can be filled if and only if, for every set J of sizes,

        sum over i of min(o_i, sum over j in J of a_ij) >= sum over j in J of b_j S_j,

    and the capacities sum to |T|. For one and two sizes this is [INF, Lemma 4.13 and Theorem 4.17]; the paper's own
    extension to three sizes (its Example 5.32) asks only for single sizes J and is not sufficient.

    Raises:
        RangeError: more than 16 sizes (the time grows as 2^sizes).
    """
    if len(setting.sizes) > MOST_SIZES:
        raise RangeError("number of sizes", len(setting.sizes), f"1 to {MOST_SIZES}")
    if setting.records != values.records:
        return False
    caps = capacities(values, setting)
    positions = range(len(setting.sizes))
    subsets = (chosen for number in range(1, len(caps) + 1) for chosen in combinations(positions, number))
    return all(_fills(values.counts, setting, caps, chosen) for chosen in subsets)


def _fills(counts: Sequence[int], setting: BucketSetting, caps: Sequence[Sequence[int]], chosen: Sequence[int]) -> bool:
    room = (sum(caps[j][i] for j in chosen) for i in range(len(counts)))
    supply = sum(min(count, most) for count, most in zip(counts, room, strict=True))
    return supply >= sum(setting.sizes[j].records for j in chosen)


def naive_conditions_hold(values: SensitiveValues, setting: BucketSetting) -> bool:
    """Return whether PC, FC of each single size, and CC hold: necessary, but not sufficient for three sizes.

    Kept to show [INF, Example 5.32]; use `setting_is_valid`.
    """
    caps = capacities(values, setting)
    privacy = all(sum(column) >= count for column, count in zip(zip(*caps, strict=True), values.counts, strict=True))
    fill = all(_fills(values.counts, setting, caps, (j,)) for j in range(len(caps)))
    return privacy and fill and setting.records == values.records

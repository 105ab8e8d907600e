"""Which devices were counted in a network run, and why the others were not: from receipts and the agreed set's digest.

Pure. The aggregators do not tell which devices they counted. A device knows its receipts, and the digest on which the
aggregators agreed shows whether the reports with all receipts are the set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from fleetcount_protocol.ids import Digest, WindowId
from fleetcount_protocol.release.commitments import set_digest
from numpy.typing import NDArray

from fleetcount_simulator.held_sets import HeldSets, ValueSet
from fleetcount_simulator.model import Integers
from fleetcount_simulator.network.fleet_report import OUTCOMES, FleetReport


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Account:
    """`counted` (V+1,): the histogram of the devices in the agreed set; `tallies` by the names of `faults.TALLIES`.

    Every device is counted, or in exactly one of "lost", "half_pairs", "late", "absent" and "refused". `missing` is the
    number of devices without a fault that were not counted: this machine was too slow for them. Of sets `counted` has
    how many told no value and how many told each, and `devices` how many there are.
    """

    counted: Integers
    missing: int
    tallies: Mapping[str, int] = field(default_factory=dict[str, int])
    devices: int | None = None


def explains(window_id: WindowId, reports: Sequence[FleetReport], digest: Digest) -> bool:
    """Return whether the reports with all their receipts are exactly the set that the aggregators agreed on."""
    return set_digest(window_id, (item for report in reports for item in report.items())) == digest


def by_value(account: Account, sets: Sequence[ValueSet], values: int) -> Account:
    """Return an account by value, (V+1,), of one whose devices are counted by the set that they told, (H+1,)."""
    told = HeldSets(sets=sets, values=values, most=values).holders(account.counted)
    return replace(account, counted=told, devices=int(account.counted.sum()))


def account_of(
    reports: Sequence[FleetReport],
    truths: NDArray[np.integer],
    unharmed: NDArray[np.bool_],
    values: int,
    rounds: int,
) -> Account:
    """Return the account of all fleet processes.

    By device number: `truths` (N,) are the values 0..V, `unharmed` (N,) is whether a device has no fault.
    """
    owners = np.concatenate([report.owners[report.complete] for report in reports])
    counted = np.unique(owners)
    numbers = np.concatenate([report.numbers for report in reports])
    flags = np.concatenate([report.flags for report in reports])
    outcomes = np.concatenate([report.outcomes for report in reports])
    left = ~np.isin(numbers, counted)
    missing = int(np.count_nonzero(unharmed[numbers[left]]))
    causes: dict[str, NDArray[np.bool_]] = {
        "absent": outcomes == OUTCOMES.index("absent"),
        "refused": outcomes == OUTCOMES.index("refused"),
        "late": (flags & FleetReport.LATE) != 0,
        "half_pairs": ((flags & FleetReport.FIRST) != 0) & (rounds == 2),
        "lost": np.ones(len(numbers), dtype=np.bool_),
    }
    tallies: dict[str, int] = {}
    for name, cause in causes.items():
        tallies[name] = int(np.count_nonzero(left & cause))
        left &= ~cause
    tallies["counted_twice"] = len(owners) - len(counted)
    tallies["resent"] = int(np.count_nonzero(flags & FleetReport.RESENT))
    histogram = np.bincount(truths[counted].astype(np.int64), minlength=values + 1)
    return Account(counted=histogram.astype(np.int64), missing=missing, tallies=tallies)

"""The faults of each single device of a network run, drawn before anything is sent.

Draws with seeded NumPy generators, never with a device's coins; the probabilities are those of `faults`.
"""

from dataclasses import dataclass, field
from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

from fleetcount_simulator.engines.participation import ABSENT, HALF, REFUSED, presence
from fleetcount_simulator.faults import skew_in_windows
from fleetcount_simulator.model import Case


class DeviceFault(IntFlag):
    """A fault of one device; it may have several."""

    LOST = 1
    """Nothing it uploads arrives."""
    DROPPED = 2
    """It is switched off once all messages of round one have receipts."""
    LATE = 4
    """Its last message is delayed until the window has closed."""
    REPEATED = 8
    """Everything it uploads is sent once more, later."""
    ABSENT = 16
    """It is off in round one, and does not answer."""
    REFUSED = 32
    """Its ledger has no room for one more answer: its own policy refuses."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetFaults:
    """Per device: `flags` (N,) uint8 of `DeviceFault`, and by how many windows its clock is fast, (N,) float64."""

    flags: NDArray[np.uint8] = field(repr=False)
    skews: NDArray[np.float64] = field(repr=False)

    @property
    def unharmed(self) -> NDArray[np.bool_]:
        """Shape (N,): whether the device has no fault that could keep it from being counted."""
        harmed = (self.flags & ~np.uint8(DeviceFault.REPEATED)) != 0
        return np.asarray(~(harmed | (self.skews != 0)), dtype=np.bool_)


def draw_device_faults(case: Case, epoch: int, rounds: int, seed: np.random.SeedSequence) -> FleetFaults:
    """Return the faults of all devices of a case that is asked in `rounds` at one epoch; the same for the same seed."""
    rng = np.random.default_rng(seed)
    count, faults = case.population.devices, case.faults
    flags = np.zeros(count, dtype=np.uint8)
    # Always the same draws in the same order: switching one fault on does not change the draws of another.
    for fault, share in (
        (DeviceFault.LOST, faults.loss),
        (DeviceFault.DROPPED, faults.drop_out),
        (DeviceFault.LATE, faults.late),
        (DeviceFault.REPEATED, faults.duplicates),
    ):
        flags[rng.random(count) < float(share)] |= np.uint8(fault)
    skew = float(skew_in_windows(faults))
    skews = rng.uniform(-1.0, 1.0, count) * skew
    states = presence(case, epoch, rounds, 0, count)
    if states is not None:
        for state, fault in ((HALF, DeviceFault.DROPPED), (ABSENT, DeviceFault.ABSENT), (REFUSED, DeviceFault.REFUSED)):
            flags[states == state] |= np.uint8(fault)
    return FleetFaults(flags=flags, skews=skews)

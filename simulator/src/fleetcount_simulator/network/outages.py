"""Outages of aggregators in a network run: one goes down at a given step, and starts again or not.

Kills by process id, or arms a fail point of docs/operating-trouble.md; times are scaled to the run's windows as in
`faults`.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from fleetcount_protocol.window.window import Window

from fleetcount_simulator.faults import WINDOW_S
from fleetcount_simulator.model import Faults
from fleetcount_simulator.network.parties import Parties

_AFTER_CLOSE_S: Final = 0.3
_IN_STATE: Final = {
    "agreeing": ("leader.after_proposals", "helper.after_propose_store"),
    "releasing": ("leader.after_helpers_sealed", "helper.after_seal_store"),
}
"""A fail point in the middle of each state, at the leader and at a helper: a state is too short to hit by a timer."""
_COLLECTING: Final = "collecting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Aggregator `position` goes down at `step` and starts again after `down_s` seconds; None: never."""

    position: int
    step: str
    down_s: float | None

    @property
    def in_window(self) -> bool:
        """Whether it happens in the middle of the last window."""
        return self.step == _COLLECTING or self.step.startswith(("intake.", "verification."))

    @property
    def failpoint(self) -> str:
        """The fail point at which it happens; "" for a kill at a time."""
        if self.step in _IN_STATE:
            return _IN_STATE[self.step][min(self.position, 1)]
        return "" if self.step == _COLLECTING else self.step


def outages_of(faults: Faults, window_s: float) -> tuple[Outage, ...]:
    """Return a study's outages, scaled from its windows of a minute to windows of `window_s` seconds."""
    scale = Fraction(window_s) / WINDOW_S
    return tuple(
        Outage(position=position, step=step, down_s=float(seconds * scale) if seconds else None)
        for position, step, seconds in faults.outage
    )


def first_failpoints(faults: Faults) -> dict[int, str]:
    """Return the fail point with which each aggregator starts; in-window ones are armed in the last window."""
    armed: dict[int, str] = {}
    for outage in outages_of(faults, WINDOW_S):
        if outage.failpoint and not outage.in_window:
            armed.setdefault(outage.position, outage.failpoint)
    return armed


async def carry_out(parties: Parties, outages: Sequence[Outage], window: Window) -> None:
    """Carry out all outages of a run, those of one aggregator one after the other; return when all restarts are done.

    Raises:
        ProcessError: an aggregator does not start again.
    """
    by_position: dict[int, list[Outage]] = {}
    for outage in outages:
        by_position.setdefault(outage.position, []).append(outage)
    async with asyncio.TaskGroup() as group:
        for position, one_by_one in by_position.items():
            group.create_task(_of_one(parties, position, one_by_one, window), name=f"outages of {position}")


async def _of_one(parties: Parties, position: int, outages: Sequence[Outage], window: Window) -> None:
    armed = next((outage.failpoint for outage in outages if outage.failpoint and not outage.in_window), "")
    for number, outage in enumerate(outages):
        if outage.in_window:
            await _until(_middle(window))
            parties.kill(position)
            if outage.failpoint:
                await parties.ended(position)
                await parties.start(position, outage.failpoint)
                await parties.ready(position)
        elif not outage.failpoint or outage.failpoint != armed:
            await _until(window.round_two_closes + _AFTER_CLOSE_S)
            parties.kill(position)
        await parties.ended(position)
        if outage.down_s is None:
            return
        await asyncio.sleep(outage.down_s)
        armed = next((one.failpoint for one in outages[number + 1 :] if one.failpoint and not one.in_window), "")
        await parties.start(position, armed)
        await parties.ready(position)


def _middle(window: Window) -> float:
    opens = window.round_one_opens if window.round_two_closes == window.round_one_closes else window.round_one_closes
    return (opens + window.round_two_closes) / 2


async def _until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - time.time()))

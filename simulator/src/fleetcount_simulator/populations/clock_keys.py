"""The keys of every trace: the times of the epochs, and the number of devices. It reads no data."""

from fractions import Fraction
from typing import Final

from fleetcount_transport.settings import UnfitKeyError, setting, settings
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import Range

from fleetcount_simulator.cells.settings import ANY_LENGTH
from fleetcount_simulator.populations.fixed import MAX_DEVICES
from fleetcount_simulator.populations.snapshots import MAX_EPOCHS, Clock, Fleet

_MOMENT: Final = Range("[0, 1000000000000]")
_WINDOW: Final = Range("[0, 1000000000]")


@settings
class FleetKeys:
    """The number of devices of a population that is read from data."""

    devices: int | None = setting(
        Table.integer,
        2,
        MAX_DEVICES,
        default=None,
        about="how many, 2 to 10^12; fewer than the data have are drawn, more repeat them; default: as the data",
        example="10000",
    )


@settings
class TraceKeys(FleetKeys):
    """The keys of every trace: the number of devices, and the times of the epochs."""

    draw: str | None = setting(
        Table.choice,
        ("any", "seen"),
        default=None,
        about='when fewer are drawn: "any" (default), or "seen": those seen at epoch 0 first',
        example='"seen"',
    )
    interval_s: Fraction = setting(
        Table.number,
        ANY_LENGTH,
        default=Fraction(300),
        about="seconds from one epoch to the next; default 300",
        example="300",
    )
    start_s: Fraction | None = setting(
        Table.number,
        _MOMENT,
        default=None,
        about="when epoch 0 begins, in the data's time; default: the first row",
        example="600",
    )
    epochs: int | None = setting(
        Table.integer,
        1,
        MAX_EPOCHS,
        default=None,
        about="how many epochs, 1 to 100000; default: as far as the data reach",
        example="12",
    )
    window_s: Fraction | None = setting(
        Table.number,
        _WINDOW,
        default=None,
        about="how long after an epoch's beginning a vehicle may first be seen; 0: its first moment only",
        example="60",
    )

    def clock(self, window: Fraction | None) -> Clock:
        """Return the times of the epochs; `window` is the default of `window_s` (None: the whole interval).

        Raises:
            UnfitKeyError: a window longer than the interval.
        """
        usual = self.interval_s if window is None else window
        within = usual if self.window_s is None else self.window_s
        if within > self.interval_s:
            raise UnfitKeyError("window_s", allowed=f"at most interval_s, which is {self.interval_s}")
        return Clock(
            start=None if self.start_s is None else float(self.start_s),
            interval=float(self.interval_s),
            window=float(within),
            count=self.epochs,
        )

    def fleet(self, seed: int) -> Fleet:
        """Return the number of devices and how they are drawn.

        Raises:
            UnfitKeyError: `draw` without `devices`.
        """
        if self.draw is not None and self.devices is None:
            raise UnfitKeyError("draw", problem="is not used without population.devices: all vehicles are taken")
        return Fleet(devices=self.devices, seed=seed, seen_first=self.draw == "seen")

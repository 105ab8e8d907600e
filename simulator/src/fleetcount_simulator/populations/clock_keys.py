"""The keys every trace has: when it is asked, and how many devices are taken from it. It reads no data."""

from fractions import Fraction
from typing import Final

from fleetcount_transport.toml_values import Range

from fleetcount_simulator.cells.settings import ANY_LENGTH, Key, Settings
from fleetcount_simulator.populations.fixed import MAX_DEVICES
from fleetcount_simulator.populations.snapshots import MAX_EPOCHS, Clock, Fleet

DEVICES: Final = Key(
    name="devices",
    about="how many devices, 2 to 10^12; fewer than the data have are drawn, more repeat them; default: as the data",
    example="10000",
)
FLEET_KEYS: Final = (
    DEVICES,
    Key(
        name="draw",
        about='when devices are fewer than vehicles: "any" (default), or "seen": those seen at epoch 0 first',
        example='"seen"',
    ),
)
CLOCK_KEYS: Final = (
    Key(name="interval_s", about="seconds from one epoch to the next; default 300", example="300"),
    Key(name="start_s", about="when the first epoch begins, in the data's time; default: the first row", example="600"),
    Key(name="epochs", about="how many epochs, 1 to 100000; default: as far as the data reach", example="12"),
    Key(
        name="window_s",
        about="a vehicle counts when first seen within this long of an epoch's beginning; 0: its first moment only",
        example="60",
    ),
)
_MOMENT: Final = Range("[0, 1000000000000]")


def clock_of(settings: Settings, window: Fraction | None) -> Clock:
    """Return when the epochs are; `window` is the default (None: the whole interval).

    Raises:
        ScenarioError: a key outside its range, or a window longer than the interval.
    """
    interval = settings.number("interval_s", ANY_LENGTH, Fraction(300))
    within = settings.number("window_s", Range("[0, 1000000000]"), interval if window is None else window)
    if within > interval:
        raise settings.refuse("window_s", f"at most interval_s, which is {interval}")
    start = settings.optional("start_s", _MOMENT)
    return Clock(
        start=None if start is None else float(start),
        interval=float(interval),
        window=float(within),
        count=settings.whole("epochs", 1, MAX_EPOCHS),
    )


def fleet_of(settings: Settings, seed: int) -> Fleet:
    """Return how many devices there are and how they are drawn.

    Raises:
        ScenarioError: a key outside its range, or a draw of all.
    """
    devices = settings.whole("devices", 2, MAX_DEVICES)
    draw = settings.choice("draw", ("any", "seen"), "any")
    if settings.has("draw") and devices is None:
        raise settings.wrong("draw", "is not used without population.devices: all vehicles are taken")
    return Fleet(devices=devices, seed=seed, seen_first=draw == "seen")

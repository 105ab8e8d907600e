"""Units of signals and the exact way from one to another.

Names are those of the Vehicle Signal Specification and their usual other spellings. Pure.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

_ONE: Final = Fraction(1)
_ZERO: Final = Fraction(0)


@dataclass(frozen=True, slots=True)
class Conversion:
    """A number in another unit is `factor` times it plus `offset`."""

    factor: Fraction = _ONE
    offset: Fraction = _ZERO


SAME: Final = Conversion()

_TABLE: Final = """
length: mm 1/1000, cm 1/100, m 1, km 1000, inch 0.0254, mi 1609.344
speed: m/s 1, km/h 5/18, kmh 5/18, kph 5/18, mph 0.44704, knots 463/900, kt 463/900
acceleration: m/s^2 1, cm/s^2 1/100
volume: ml 1/1000, cm^3 1/1000, l 1, m^3 1000
angle: degrees 1, degree 1, deg 1
angular speed: degrees/s 1, rpm 6
power: W 1, kW 1000, PS 735.49875
energy: J 1, kJ 1000, Wh 3600, kWh 3600000
mass: g 1/1000, kg 1, t 1000, lbs 0.45359237
voltage: mV 1/1000, V 1
current: mA 1/1000, A 1
charge: mAh 1/1000, Ah 1
duration: ns 1/1000000000, us 1/1000000, ms 1/1000, s 1, min 60, h 3600, day 86400, days 86400, weeks 604800
pressure: Pa 1, hPa 100, mbar 100, kPa 1000, bar 100000, psi 8896443230521/1290320000
mass a time: g/s 1, kg/h 5/18
energy a distance: Wh/km 1, kWh/100km 10
volume a distance: ml/100km 1/1000, l/100km 1
frequency: Hz 1, kHz 1000, cpm 1/60
share: percent 1/100, % 1/100, ratio 1
force: N 1, kN 1000
torque: Nm 1, N.m 1
"""
_CELSIUS: Final = Conversion(_ONE, Fraction("273.15"))
_FAHRENHEIT: Final = Conversion(Fraction(5, 9), Fraction("459.67") * 5 / 9)
_TEMPERATURES: Final = {
    "K": Conversion(),
    **dict.fromkeys(("Celsius", "celsius", "degC", "°C"), _CELSIUS),
    **dict.fromkeys(("Fahrenheit", "fahrenheit", "degF", "°F"), _FAHRENHEIT),
}


def _known() -> dict[str, tuple[str, Conversion]]:
    known = {name: ("temperature", one) for name, one in _TEMPERATURES.items()}
    for line in _TABLE.strip().splitlines():
        quantity, units = line.split(": ")
        for one in units.split(", "):
            name, factor = one.split(" ")
            known[name] = (quantity, Conversion(Fraction(factor)))
    return known


_KNOWN: Final = _known()
"""Of each unit what it measures, and the way to the quantity's own one."""


def comparable(unit: str, wanted: str) -> bool:
    """Return whether it is known how two units go together: both are in the table, or they are one."""
    return (unit in _KNOWN and wanted in _KNOWN) or (unit == wanted and unit != "")


def conversion(unit: str, wanted: str) -> Conversion | None:
    """Return how a number of a unit becomes one of another; None where they measure different things.

    A unit that is not given ("") or is in no table becomes any other as it stands.
    """
    here, there = _KNOWN.get(unit), _KNOWN.get(wanted)
    if here is None or there is None or unit == wanted:
        return SAME
    if here[0] != there[0]:
        return None
    one, other = here[1], there[1]
    return Conversion(one.factor / other.factor, (one.offset - other.offset) / other.factor)

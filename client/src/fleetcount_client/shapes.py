"""What the owner says of a signal's readings: their type, unit, precision and range; and how several become one.

Exact to the end: numbers are fractions (`fleetcount_protocol.window.signal`). It must not read anything itself.
"""

import asyncio
import enum
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final, cast

from fleetcount_protocol.window.domain import ValueDomain
from fleetcount_protocol.window.signal import Kind, Signal, converted, decimal_text, exact, kind_of, name_of
from fleetcount_transport.settings import UnfitKeyError, setting, settings
from fleetcount_transport.toml_table import Table
from fleetcount_transport.toml_values import Range, exact_number

from fleetcount_client.signals import Description, KnowingSource, Reading, Said, SignalSource, knowing, read_source
from fleetcount_client.units import SAME, Conversion, comparable, conversion

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_TRUTHS: Final = {"true": True, "false": False, "1": True, "0": False}
_ANY_NUMBER: Final = Range("[-1000000000, 1000000000]")
_STEP: Final = Range("(0, 1000000000]")


class SignalType(enum.Enum):
    """What a signal's readings are, as its owner says."""

    BOOLEAN = "boolean"
    """true or false; so are the texts of these names, 1 and 0."""
    INTEGER = "integer"
    """Whole numbers; so are texts that write one."""
    DECIMAL = "decimal"
    """Numbers; so are texts that write one."""
    TEXT = "text"
    """Names; so are truth values and whole numbers."""

    @property
    def kind(self) -> Kind:
        """The kind of readings of this type."""
        return {"boolean": Kind.TRUTH_VALUE, "text": Kind.TEXT}.get(self.value, Kind.NUMBER)

    @property
    def made_of(self) -> frozenset[Kind]:
        """The kinds of values that may be read as this type."""
        numbers = frozenset({Kind.NUMBER, Kind.TEXT})
        return numbers if self.kind is Kind.NUMBER else numbers | {Kind.TRUTH_VALUE}

    def read(self, said: Signal) -> Signal:
        """Return a reading as one of this type; None for what is none."""
        if self is SignalType.TEXT:
            return name_of(said)
        if self is SignalType.BOOLEAN:
            return _TRUTHS.get(name_of(said) or "")
        number = exact(Fraction(said) if isinstance(said, str) and _NUMBER.fullmatch(said) else said)
        if number is None or (self is SignalType.INTEGER and number.denominator != 1):
            return None
        return number if isinstance(said, str) else said


def _type(table: Table, key: str) -> SignalType:
    return SignalType(table.choice(key, [one.value for one in SignalType]))


def _valid(table: Table, key: str) -> tuple[Fraction, Fraction]:
    value = table.raw(key)
    ends = [exact_number(one) for one in cast("list[object]", value)] if isinstance(value, list) else []
    if len(ends) != 2 or ends[0] is None or ends[1] is None or ends[0] > ends[1]:
        raise table.refuse(key, 'the lowest and the highest number that is a value: ["0", "250.996"]')
    return ends[0], ends[1]


@settings
class Shape:
    """[signals."PATH"]: `type`, `unit`, `precision` and range `valid` of readings, None or "" where nobody says.

    A number v is `factor` * v + `offset` in `unit`. Without both it is converted to `unit` from the unit that the
    source itself says. It is then rounded to a multiple of `precision`, a half to the even one. Outside `valid`, whose
    ends are values, it is no value: what a bus sends for "not available" and "error" lies there.
    """

    type: SignalType | None = setting(_type, default=None)
    unit: str = setting(Table.printable, 40, default="")
    factor: Fraction | None = setting(Table.number, _ANY_NUMBER, default=None)
    offset: Fraction | None = setting(Table.number, _ANY_NUMBER, default=None)
    precision: Fraction | None = setting(Table.number, _STEP, default=None)
    valid: tuple[Fraction, Fraction] | None = setting(_valid, default=None)

    def __post_init__(self) -> None:
        if self.factor == 0:
            raise UnfitKeyError("factor", allowed="a number other than 0, by which every reading is the offset")

    @property
    def converts(self) -> bool:
        """Whether the owner says how the source's numbers become readings."""
        return self.factor is not None or self.offset is not None

    def way_from(self, unit: str) -> Conversion | None:
        """Return how a number of the source, in the unit that it says ("" for none), becomes a reading; None: never.

        Never where the two units measure different things, or where the owner's factor and offset are not those between
        them.
        """
        own = conversion(unit, self.unit)
        if not self.converts:
            return own
        said = Conversion(Fraction(1) if self.factor is None else self.factor, self.offset or Fraction(0))
        # With a factor that was written for another catalogue a distance would be a thousand times itself.
        return said if own == said or not comparable(unit, self.unit) else None

    def wrong(self, unit: str) -> str:
        """Return why numbers in a unit never become readings, in words for the owner; "" where they do."""
        if self.way_from(unit) is not None:
            return ""
        if not self.converts:
            return f"its source says {unit!r}, which is never {self.unit!r}"
        return f"its source says {unit!r}, and factor and offset do not make it {self.unit!r}"

    def unit_of(self, unit: str) -> str:
        """Return the unit of readings whose source says `unit`."""
        return self.unit or ("" if self.converts else unit)

    def describe(self, known: Description) -> Description:
        """Return what is known of readings, from what is known of the source."""
        if wrong := known.wrong or self.wrong(known.unit):
            return replace(known, wrong=wrong)
        kind = known.kind if self.type is None else self.type.kind
        if self.type is not None and known.kind is not None and known.kind not in self.type.made_of:
            return replace(known, wrong=f"its source says {known.kind.value}, which is never of type {self.type.value}")
        way = self.way_from(known.unit) or SAME
        ends = [None if one is None else converted(one, way.factor, way.offset) for one in (known.low, known.high)]
        low, high = ends if way.factor > 0 else reversed(ends)
        if self.valid is not None:
            least, most = self.valid
            if (low is not None and low > most) or (high is not None and high < least):
                return replace(known, wrong="its source's range lies beyond valid")
            low, high = least if low is None else max(low, least), most if high is None else min(high, most)
        return Description(kind=kind, unit=self.unit_of(known.unit), low=low, high=high)

    def read(self, reading: Reading) -> Reading:
        """Return a source's reading as the owner means it."""
        if reading.value is None or (isinstance(reading.value, frozenset) and self.type in (None, SignalType.TEXT)):
            return reading
        way = self.way_from(reading.unit)
        said = reading.value if self.type is None else self.type.read(cast("Signal", reading.value))
        if self.type is not None and said is None:
            found = kind_of(reading.value)
            return Reading(fault=f"it is {found.value if found else 'no value'}, not of type {self.type.value}")
        if isinstance(said, tuple) and (self.converts or self.precision or self.valid):
            return Reading(fault="it is a position, and factor, offset, precision and valid are for a number")
        if way is None:
            return Reading(fault=self.wrong(reading.unit))
        if kind_of(said) is not Kind.NUMBER:
            return replace(reading, value=said, unit="")
        return self._number(replace(reading, value=said, unit=self.unit_of(reading.unit)), way)

    def _number(self, reading: Reading, way: Conversion) -> Reading:
        number = converted(reading.value, way.factor, way.offset)
        if number is None:
            return replace(reading, value=None)
        if self.precision is not None:
            number = round(number / self.precision) * self.precision
        if self.valid is not None and not self.valid[0] <= number <= self.valid[1]:
            low, high = map(decimal_text, self.valid)
            return replace(reading, value=None, why_none=f"it is not within valid = [{low}, {high}]")
        # A number that is as it was read keeps what is known of its rounding, for a question in another unit.
        return reading if number == exact(reading.value) else replace(reading, value=number)


class ShapedSource(KnowingSource):
    """A source whose readings are what its owner says they are."""

    __slots__ = ("_shape", "_source")

    def __init__(self, source: SignalSource, shape: Shape) -> None:
        self._source = source
        self._shape = shape

    @property
    def contact(self) -> object:
        """How whoever is asked is, for `Device.status`; None where nobody is."""
        return getattr(self._source, "contact", None)

    def misplaced(self, domain: ValueDomain) -> str:
        """Return why its positions are no places of a domain's frame, "" if they may be (`signals.unfit`)."""
        return knowing(self._source).misplaced(domain)

    def described(self) -> Description:
        """Return what is known of its readings."""
        return self._shape.describe(knowing(self._source).described())

    async def learn(self) -> None:
        """Let the source ask what it reads."""
        await knowing(self._source).learn()

    async def __call__(self) -> Reading:
        """Return what the signal is now."""
        return self._shape.read(await read_source(self._source))


class AnySource(KnowingSource):
    """Whether any of several truth values holds now: true if one does, false if none does, and else no value."""

    __slots__ = ("_sources",)

    def __init__(self, sources: Sequence[SignalSource]) -> None:
        self._sources = tuple(sources)

    @property
    def contact(self) -> object:
        """How whoever is asked is; the sources of a signal ask one."""
        return getattr(self._sources[0], "contact", None)

    def described(self) -> Description:
        """Return that its readings are truth values, and why one of them never is."""
        known = [knowing(one).described() for one in self._sources]
        wrong = [one.wrong for one in known if one.wrong]
        kinds = {one.kind for one in known} - {None, Kind.TRUTH_VALUE}
        others = sorted(kind.value for kind in kinds if kind is not None)
        said = f"any joins truth values, and one of its sources is {others[0]}" if others else ""
        return Description(kind=Kind.TRUTH_VALUE, wrong=wrong[0] if wrong else said)

    async def learn(self) -> None:
        """Let the sources ask what they read."""
        await asyncio.gather(*(knowing(one).learn() for one in self._sources))

    async def __call__(self) -> Reading:
        """Return what they say together."""
        return any_of(await asyncio.gather(*map(read_source, self._sources)))


def any_of(readings: Sequence[Reading]) -> Reading:
    """Return whether any of several readings is true. One that is not known leaves it open, unless another is true."""
    if faults := [one.fault for one in readings if one.fault]:
        return Reading(fault=faults[0])
    truths = [_truth_of(one.value) for one in readings]
    for one, truth in zip(readings, truths, strict=True):
        if truth is None and one.value is not None:
            found = kind_of(one.value)
            return Reading(fault=f"any joins truth values, and one is {found.value if found else 'none'}")
    ages = [one.age_s for one in readings if one.age_s is not None]
    age_s = max(ages, default=None)
    if True in truths:
        return Reading(value=True, age_s=age_s)
    if None not in truths:
        return Reading(value=False, age_s=age_s)
    return Reading(why_none=next(one.why_none for one, truth in zip(readings, truths, strict=True) if truth is None))


def _truth_of(said: Said) -> bool | None:
    if said is None or isinstance(said, tuple | frozenset):
        return None
    truth = SignalType.BOOLEAN.read(said)
    return truth if isinstance(truth, bool) else None

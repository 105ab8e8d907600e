"""Where a device's truth comes from: a VSS path and the program's own way to read it.

Reads a signal when asked and at no other time; never keeps, logs or shows what it read, and waits for nothing without
an end.
"""

import asyncio
import inspect
import json
import os
import re
import stat
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from traceback import walk_tb
from typing import BinaryIO, Final, cast

from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.window.domain import (
    Bins,
    Categories,
    H3Cells,
    Measured,
    Numbers,
    Part,
    Prefixes,
    SingleDomain,
    SquareGrid,
    ValueDomain,
)
from fleetcount_protocol.window.signal import Kind, Number, Signal, converted, exact, kind_of

from fleetcount_client.units import conversion

MAX_SIGNAL_BYTES: Final = 4096
_LONGEST_READ_S: Final = 30.0
"""A coroutine that takes longer has no value: the window goes on."""

_ASKED: Final = {
    Bins: Kind.NUMBER,
    Numbers: Kind.NUMBER,
    SquareGrid: Kind.POSITION,
    H3Cells: Kind.TEXT,
}
_WHOLE: Final = re.compile("0|-?[1-9][0-9]*", re.ASCII)

Said = Signal | frozenset[str] | frozenset[tuple[Number, Number]]
"""What a source says: one signal, or the set of all values that hold, for vector Mangat and for codes."""


class SignalUnavailable(Exception):  # noqa: N818 - a state of the world, not a mistake of the program
    """A source says: there is no value now, for a reason that holds no value. The device answers "none of them"."""


class SignalFault(SignalUnavailable):
    """A source says: what it reads is no value and will not become one; its owner should know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a signal is now: its value in its unit ("" if not known), and how old it is (None if not known).

    Without a value `why_none` says why, if anything does. `fault` says why what was read is never a value. None of the
    texts holds a value.
    """

    value: Said = field(default=None, repr=False)
    unit: str = ""
    age_s: float | None = None
    why_none: str = ""
    fault: str = ""


SignalSource = Callable[[], Said | Reading | Awaitable[Said | Reading]]
"""A program's own function: returns what the signal is now, or None when it has no value; may be a coroutine's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What is known of a source before it is read: kind, unit, least and largest of its readings, as far as known.

    `wrong` says why it can never be read as its configuration means, "" if it can.
    """

    kind: Kind | None = None
    unit: str = ""
    low: Fraction | None = None
    high: Fraction | None = None
    wrong: str = ""


class KnowingSource:
    """A source that knows something of what it reads."""

    __slots__ = ()

    def misplaced(self, domain: ValueDomain) -> str:
        """Return why its positions are no places of the domain's frame, in words for the owner; "" if they may be."""
        del domain
        return ""

    def described(self) -> Description:
        """Return what is known of its readings now."""
        return Description()

    async def learn(self) -> None:
        """Ask what it reads, within seconds; what could not be asked is asked again at the next call."""


_UNKNOWN: Final = KnowingSource()


def knowing(source: object) -> KnowingSource:
    """Return a source that knows what it reads; in the place of any other one that knows nothing."""
    return source if isinstance(source, KnowingSource) else _UNKNOWN


def unfit(signals: Mapping[str, SignalSource], path: str, domain: SingleDomain) -> str:
    """Return why no reading of the source of a path is ever a value of a domain; "" if one may be, or nobody knows."""
    source = knowing(signals.get(path))
    if why := source.misplaced(domain):
        return why
    known = source.described()
    return known.wrong or (misfit(domain, known.kind) if known.kind else "") or _beyond(known, domain)


def fault_of(reading: Reading, domain: SingleDomain, *, several: bool = True) -> str:
    """Return why what was read can never be a value of a domain, in words without it; "" where it may be one.

    `several` is whether a vehicle may tell several values at once; of several codes it always tells one.
    """
    if reading.fault or reading.value is None:
        return reading.fault
    values = reading.value if isinstance(reading.value, frozenset) else (reading.value,)
    kinds = {kind for kind in map(kind_of, values) if kind is not None}
    faults = sorted(filter(None, (misfit(domain, kind) for kind in kinds)))
    return faults[0] if faults else _foreign(reading.unit, domain) or _not_one(values, domain, several=several)


def _not_one(values: Collection[object], domain: SingleDomain, *, several: bool) -> str:
    codes = domain.codes if isinstance(domain, Prefixes) else None
    if codes is None:
        return "" if several or len(values) <= 1 else "it is a list of several values, and the question takes one"
    strange = any(isinstance(value, str) and codes.number_of(value) is None for value in values)
    return f"a text in it is no code of the form {codes.form.label!r}" if strange else ""


def _foreign(unit: str, domain: SingleDomain) -> str:
    if not isinstance(domain, Measured) or conversion(unit, domain.unit) is not None:
        return ""
    return f"its unit is {unit!r}, and the question's {domain.unit!r}, which measures something else"


def _beyond(known: Description, domain: SingleDomain) -> str:
    """Return why no reading of a unit and a range is any of a domain's numbers; "" where one may be."""
    if not isinstance(domain, Measured):
        return ""
    way = conversion(known.unit, domain.unit)
    if way is None:
        return _foreign(known.unit, domain)
    low, high = (None if one is None else converted(one, way.factor, way.offset) for one in (known.low, known.high))
    return "its range lies beyond all of the question's numbers" if domain.beyond(low, high) else ""


def constant(value: Said) -> Callable[[], Said]:
    """Return a source that always reads `value`."""

    def read() -> Said:
        return value

    return read


class FileSource:
    """Reads a small JSON file at each question: a number, a text, true or false, null, [x, y], or a list of texts.

    A bare text that is no JSON is taken as it stands, without the white space around it, and so is a number: 4.1 is
    exactly that. A file that is missing, empty, no regular file, larger than 4,096 bytes or of another shape has no
    value.
    """

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self) -> Signal | frozenset[str]:
        """Return what the file says now.

        Raises:
            SignalUnavailable: nothing, and why; SignalFault where it says what is no signal.
        """
        with open_regular(self._path) as file:
            data = file.read(MAX_SIGNAL_BYTES + 1)
        if len(data) > MAX_SIGNAL_BYTES:
            raise SignalFault(f"the file has more than {MAX_SIGNAL_BYTES} bytes")
        try:
            text = data.decode("utf-8-sig").strip()
        except UnicodeDecodeError:
            raise SignalFault("the file is not UTF-8") from None
        if not text:
            raise SignalUnavailable("the file is empty")
        try:
            value = json_of(text)
        except (ValueError, RecursionError):
            return text
        return signal_of(value)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file; a pipe or a device, which could hold the program, is not even opened.

    Raises:
        SignalUnavailable: it is something else, or cannot be opened.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SignalUnavailable("it is no regular file")
        # What took its place meanwhile does not hold the program either.
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise SignalUnavailable(f"the file cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise SignalUnavailable("it is no regular file")
    return file


def json_of(text: str | bytes) -> object:
    """Return what a JSON text says, with its numbers as it writes them; NaN, infinities and the like are None.

    Raises:
        ValueError, RecursionError: it is no JSON.
    """
    return cast("object", json.loads(text, parse_float=_decimal, parse_constant=lambda _: None))


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except InvalidOperation:  # An exponent of twenty digits.
        return None


def signal_of(value: object) -> Signal | frozenset[str]:
    """Return what a value of JSON is as a signal: a number, a text, true, false, [x, y], or texts; None of null.

    Raises:
        SignalFault: it is something else.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, list):
        parts = cast("list[object]", value)
        texts = [part for part in parts if isinstance(part, str)]
        return frozenset(texts) if len(texts) == len(parts) else position_of(parts)
    if isinstance(value, int | Decimal):
        return value if exact(value) is not None else None
    raise SignalFault(f"it is {Kind.OTHER.value}")


def position_of(parts: Sequence[object]) -> Signal:
    """Return a position; None where a number of it is missing. Raises SignalFault for what is none."""
    if len(parts) == 2 and None in parts:
        return None
    if len(parts) != 2 or None in map(exact, parts):
        raise SignalFault(f"it is {Kind.OTHER.value}, and a position is two numbers")
    return cast("tuple[Number, Number]", tuple(parts))


async def read_signal(signals: Mapping[str, SignalSource], path: str) -> Reading:
    """Return what the signal at a VSS path is now, without a value when it cannot be read or takes over 30 s.

    OSError, ValueError, LookupError and ArithmeticError of a source count as "no value"; any other exception is a fault
    of its program, named by its type and where it was raised: its text may hold a value.

    Raises:
        UsageError: no source is configured for the path.
    """
    source = signals.get(path)
    if source is None:
        raise UsageError(f"no source for the signal {path!r}; configured are {sorted(signals)}")
    return await read_source(source)


async def read_parts(signals: Mapping[str, SignalSource], parts: Sequence[Part]) -> list[Reading]:
    """Return what the signals of a question are at one moment, each as `read_signal` does: all are asked at once."""
    if len(parts) == 1:
        return [await read_signal(signals, parts[0].signal)]
    return await asyncio.gather(*(read_signal(signals, part.signal) for part in parts))


async def read_source(source: SignalSource) -> Reading:
    """Return what one source says now, as `read_signal` does."""
    try:
        said = source()
        if inspect.isawaitable(said):
            async with asyncio.timeout(_LONGEST_READ_S):
                said = await said
    except (Exception, asyncio.CancelledError) as error:  # A fault of one source ends no other question.
        task = cast("asyncio.Task[object]", asyncio.current_task())
        if isinstance(error, asyncio.CancelledError) and task.cancelling():
            raise  # The device ends.
        said = _unread(error)
    reading = said if isinstance(said, Reading) else Reading(value=said)
    if reading.value is None and not reading.why_none and not reading.fault:
        return replace(reading, why_none="there is no value now")
    return reading


def _unread(error: BaseException) -> Reading:
    """Return the reading of a source that raised, as `read_signal` says."""
    if isinstance(error, SignalFault):
        return Reading(fault=str(error))
    if isinstance(error, SignalUnavailable):
        return Reading(why_none=str(error))
    if isinstance(error, TimeoutError):
        return Reading(why_none="it did not answer in time")
    if isinstance(error, OSError | ValueError | LookupError | ArithmeticError):
        return Reading(why_none=f"reading it failed ({type(error).__name__})")
    *_, (frame, line) = walk_tb(error.__traceback__)
    place = Path(frame.f_code.co_filename).name
    return Reading(fault=f"reading it raised {type(error).__name__} ({place} line {line})")


def _asked(domain: Bins | Numbers | SquareGrid | H3Cells | Prefixes) -> Kind:
    if isinstance(domain, Prefixes):
        return Kind.NUMBER if domain.codes is None else Kind.TEXT
    return _ASKED[type(domain)]


def misfit(domain: SingleDomain, kind: Kind) -> str:
    """Return why no reading of a kind is ever a value of the domain, in words for the owner; "" where one may be."""
    if not isinstance(domain, Categories):
        asked = _asked(domain)
        return "" if kind is asked else f"it is {kind.value}, and the question asks for {asked.value}"
    if kind is Kind.TEXT:
        return ""
    if kind is Kind.TRUTH_VALUE:
        fits, which = not {"true", "false"}.isdisjoint(domain.names), "'true' or 'false'"
    else:
        fits, which = kind is Kind.NUMBER and any(map(_WHOLE.fullmatch, domain.names)), "a whole number"
    named = f"and none of the question's names is {which}" if kind is not Kind.POSITION else "the question has names"
    return "" if fits else f"it is {kind.value}, {named}"

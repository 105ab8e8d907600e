"""Where a device's truth comes from: a VSS path and the program's own way to read it.

Reads a signal when asked and at no other time; never keeps, logs or shows what it read.
"""

import asyncio
import inspect
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, Protocol, cast, runtime_checkable

from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.window.domain import ValueDomain
from fleetcount_protocol.window.signal import Signal

MAX_SIGNAL_BYTES: Final = 4096
_POSITION_PARTS: Final = 2
_LONGEST_READ_S: Final = 30.0
"""A coroutine that takes longer has no value: the window goes on."""

Reading = Signal | frozenset[str] | frozenset[tuple[float, float]]
"""What a source returns: one signal, or the set of all values that hold, which only vector Mangat can ask for."""

SignalSource = Callable[[], Reading | Awaitable[Reading]]
"""A program's own function: returns what the signal is now, or None when it has no value; may be a coroutine's."""


class SignalUnavailable(Exception):  # noqa: N818 - a state of the world, not a mistake of the program
    """A source says: there is no value now. The device then answers "none of them"."""


@runtime_checkable
class PlacedSource(Protocol):
    """A source that knows where on Earth its positions are."""

    def misplaced(self, domain: ValueDomain) -> str:
        """Return why its positions are no places of the domain's frame, in words for the owner; "" if they may be."""
        ...


def misplaced(signals: Mapping[str, SignalSource], path: str, domain: ValueDomain) -> str:
    """Return why the source of a path cannot say a place of a domain; "" if it may, or does not know where it is."""
    source = signals.get(path)
    return source.misplaced(domain) if isinstance(source, PlacedSource) else ""


def constant(value: Reading) -> Callable[[], Reading]:
    """Return a source that always reads `value`."""

    def read() -> Reading:
        return value

    return read


class FileSource:
    """Reads a small JSON file at each question: a number, a text, true or false, null, or [x, y] for a position.

    A bare text that is no JSON is taken as it stands, without the white space around it. A file that is missing, empty,
    larger than 4,096 bytes or of another shape reads as nothing, so that the device still answers: "none of them".
    """

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self) -> Signal:
        """Return what the file says now, or None."""
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_SIGNAL_BYTES + 1)
            text = data.decode("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return None if len(data) > MAX_SIGNAL_BYTES or not text else _parse(text)


def _parse(text: str) -> Signal:
    try:
        value = cast("object", json.loads(text))
    except (ValueError, RecursionError):
        return text
    return signal_of(value)


def signal_of(value: object) -> Signal:
    """Return what a value of JSON is as a signal: a number, a text, true, false, or [x, y]; None for anything else."""
    if isinstance(value, list):
        return _position(cast("list[object]", value))
    if isinstance(value, bool | str):
        return value
    return _number(value)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None


def _position(parts: list[object]) -> tuple[float, float] | None:
    numbers = [_number(part) for part in parts]
    if len(numbers) != _POSITION_PARTS or numbers[0] is None or numbers[1] is None:
        return None
    return numbers[0], numbers[1]


async def read_signal(signals: Mapping[str, SignalSource], path: str) -> Reading:
    """Return what the signal at a VSS path is now; None when it has no value, cannot be read, or takes over 30 s.

    A device without a value answers "none of them": silence would tell (docs/embedding.md, "Signals"). OSError,
    ValueError, LookupError and ArithmeticError of a source count as "no value"; any other error is passed on.

    Raises:
        UsageError: no source is configured for the path.
    """
    source = signals.get(path)
    if source is None:
        raise UsageError(f"no source for the signal {path!r}; configured are {sorted(signals)}")
    try:
        reading = source()
        if inspect.isawaitable(reading):
            async with asyncio.timeout(_LONGEST_READ_S):
                return await reading
    except (SignalUnavailable, OSError, ValueError, LookupError, ArithmeticError):
        return None
    return reading

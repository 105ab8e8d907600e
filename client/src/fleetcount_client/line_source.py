"""Signals from lines of JSON, as a program beside a CAN bus writes them: a growing file, or a socket of this machine.

Reads when asked and at no other time; never keeps, logs or shows what it read, and never holds the event loop.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, cast

from fleetcount_protocol.clock import Clock, SystemClock
from fleetcount_protocol.ids import split_endpoint
from fleetcount_protocol.window.signal import exact

from fleetcount_client.signals import (
    MAX_SIGNAL_BYTES,
    Reading,
    SignalFault,
    SignalUnavailable,
    json_of,
    open_regular,
    position_of,
    signal_of,
)

_TAIL_BYTES: Final = 65_536
_MOST_LINES: Final = 1000
_TIMEOUT_S: Final = 2.0
_SILENT: Final = "no line of now speaks of it"
_LATEST_S: Final = 1e11
"""The year 5138: a larger number of seconds since 1970 is one of milliseconds."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class LineValue:
    """Which members of a line's object are the signal: one, or two that are x and y.

    With `time`, the member that holds the line's time: Unix seconds, or a text as in 2026-01-26T15:57:02Z with its
    offset. A line whose time differs from the device's by more than `fresh_s` seconds (infinity: any), or that has
    none, is passed over.
    """

    keys: tuple[str, ...]
    time: str = ""
    fresh_s: float = 60.0

    def read(self, line: bytes, now: float) -> Reading | None:
        """Return what a line says of the signal, None where it does not speak of it, or not of now.

        Raises:
            SignalFault: what it says is no signal, or its time no moment.
        """
        try:
            said = json_of(line) if len(line) <= MAX_SIGNAL_BYTES else None
        except (ValueError, RecursionError):
            return None
        if not isinstance(said, dict):
            return None
        members = cast("dict[str, object]", said)
        if not all(key in members for key in self.keys):
            return None
        age_s = None
        if self.time:
            if members.get(self.time) is None:
                return None
            age_s = now - _moment(members[self.time])
            if abs(age_s) > self.fresh_s:
                return None
        values = [members[key] for key in self.keys]
        return Reading(value=position_of(values) if len(values) > 1 else signal_of(values[0]), age_s=age_s)


def _moment(said: object) -> float:
    """Return a moment as Unix seconds.

    Raises:
        SignalFault: it is no moment.
    """
    try:
        moment = datetime.fromisoformat(said) if isinstance(said, str) else None
    except ValueError:
        moment = None
    if moment is not None and moment.tzinfo is not None:
        return moment.timestamp()
    number = exact(said)
    if number is None or abs(number) > _LATEST_S:
        raise SignalFault("the time of a line is neither Unix seconds nor a moment with its offset")
    return float(number)


class LineSource:
    """Reads the newest line of a file, or the first that a socket says, which speaks of the signal.

    `place` is a file, "host:port" or "unix:PATH". Of a file the last 64 KiB are read, up to its last line end; of a
    socket 1,000 lines at most, for 2 s. A line is at most 4,096 bytes long. Whatever cannot be read is no value.
    """

    __slots__ = ("_clock", "_place", "_value")

    def __init__(self, place: Path | str, value: LineValue, clock: Clock | None = None) -> None:
        self._place = place
        self._value = value
        self._clock = clock or SystemClock()

    async def __call__(self) -> Reading:
        """Return what is said now; OSError and ValueError of the file or the socket are the caller's.

        Raises:
            SignalUnavailable: nothing, and why; SignalFault where it is no signal.
        """
        if isinstance(self._place, Path):
            return self._first(_newest_first(self._place))
        async with asyncio.timeout(_TIMEOUT_S):
            return await self._from_socket(self._place)

    def _first(self, lines: Sequence[bytes]) -> Reading:
        now = self._clock.now()
        for line in lines:
            if (said := self._value.read(line, now)) is not None:
                return said
        raise SignalUnavailable(_SILENT)

    async def _from_socket(self, place: str) -> Reading:
        if place.startswith("unix:"):
            reader, writer = await asyncio.open_unix_connection(place.removeprefix("unix:"), limit=_TAIL_BYTES)
        else:
            reader, writer = await asyncio.open_connection(*split_endpoint(place), limit=_TAIL_BYTES)
        try:
            for _ in range(_MOST_LINES):
                line = await reader.readline()
                if (said := self._value.read(line, self._clock.now())) is not None:
                    return said
                if not line:
                    break
            raise SignalUnavailable(_SILENT)
        finally:
            writer.transport.abort()  # Nothing was sent that could be lost.


def _newest_first(path: Path) -> list[bytes]:
    """Return the whole lines at a file's end; the last one counts once its line end is written."""
    with open_regular(path) as file:
        start = max(0, file.seek(0, 2) - _TAIL_BYTES)
        file.seek(start)
        lines = file.read(_TAIL_BYTES).removeprefix(_BYTE_ORDER_MARK).split(b"\n")[:-1]
    return lines[:0:-1] if start else lines[::-1]

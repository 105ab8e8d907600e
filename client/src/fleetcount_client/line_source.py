"""Signals from lines of JSON, as a program beside a CAN bus writes them: a growing file, or a socket of this machine.

Reads when asked and at no other time; never keeps, logs or shows what it read, and never holds the event loop.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from fleetcount_protocol.clock import Clock, SystemClock
from fleetcount_protocol.ids import split_endpoint
from fleetcount_protocol.window.signal import Signal

from fleetcount_client.signals import MAX_SIGNAL_BYTES, signal_of

_TAIL_BYTES: Final = 65_536
_MOST_LINES: Final = 1000
_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LineValue:
    """Which members of a line's object are the signal: one, or two that are x and y.

    With `time`, the member that holds the line's time in Unix seconds: a line whose time differs from the device's by
    more than `fresh_s` seconds, or that has none, is passed over.
    """

    keys: tuple[str, ...]
    time: str = ""
    fresh_s: float = 60.0

    def read(self, line: bytes, now: float) -> tuple[bool, Signal]:
        """Return whether a line speaks of the signal, and what it says: None for a value that is none."""
        try:
            said = cast("object", json.loads(line)) if len(line) <= MAX_SIGNAL_BYTES else None
        except (ValueError, RecursionError):
            return False, None
        if not isinstance(said, dict):
            return False, None
        members = cast("dict[str, object]", said)
        if not all(key in members for key in self.keys) or not self._is_fresh(members, now):
            return False, None
        values = [members[key] for key in self.keys]
        return True, signal_of(values if len(values) > 1 else values[0])

    def _is_fresh(self, members: dict[str, object], now: float) -> bool:
        if not self.time:
            return True
        said = signal_of(members.get(self.time))
        return isinstance(said, int | float) and not isinstance(said, bool) and abs(now - said) <= self.fresh_s


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

    async def __call__(self) -> Signal:
        """Return what is said now, or None; OSError and ValueError of the file or the socket are the caller's."""
        if isinstance(self._place, Path):
            return self._first(_newest_first(self._place))
        async with asyncio.timeout(_TIMEOUT_S):
            return await self._from_socket(self._place)

    def _first(self, lines: Sequence[bytes]) -> Signal:
        now = self._clock.now()
        return next((said for speaks, said in (self._value.read(line, now) for line in lines) if speaks), None)

    async def _from_socket(self, place: str) -> Signal:
        if place.startswith("unix:"):
            reader, writer = await asyncio.open_unix_connection(place.removeprefix("unix:"), limit=MAX_SIGNAL_BYTES)
        else:
            reader, writer = await asyncio.open_connection(*split_endpoint(place), limit=MAX_SIGNAL_BYTES)
        try:
            for _ in range(_MOST_LINES):
                line = await reader.readline()
                speaks, said = self._value.read(line, self._clock.now())
                if speaks or not line:
                    return said
            return None
        finally:
            writer.transport.abort()  # Nothing was sent that could be lost.


def _newest_first(path: Path) -> list[bytes]:
    """Return the whole lines at a file's end; the last one counts once its line end is written."""
    if not path.is_file():  # A pipe would hold the event loop until somebody writes.
        return []
    with path.open("rb") as file:
        start = max(0, file.seek(0, 2) - _TAIL_BYTES)
        file.seek(start)
        lines = file.read(_TAIL_BYTES).split(b"\n")[:-1]
    return lines[:0:-1] if start else lines[::-1]

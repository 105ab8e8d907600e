"""The series: one signed counting question asked again and again, immutable, the same bytes for every party.

Making a `Series` checks every rule, so each one that exists may be asked. `derive` makes the tasks of its windows.
"""

import hashlib
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Self

from fleetcount_mechanisms.accounting.shape import SeriesShape
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError

from fleetcount_protocol.errors import DecodeError, TaskError
from fleetcount_protocol.ids import SeriesId
from fleetcount_protocol.series.codec import decode_series_fields, encode_series_fields
from fleetcount_protocol.series.fields import Coin, DrillDown, Participants, Schedule, SeriesFields, Submission
from fleetcount_protocol.series.rules import check_series
from fleetcount_protocol.series.windows import window_fields
from fleetcount_protocol.task.codec import encode_question, encode_terms
from fleetcount_protocol.task.fields import TaskFields

__all__ = ["Coin", "DrillDown", "Participants", "Schedule", "Series", "SignedSeries", "Submission", "decode_series"]


@dataclass(frozen=True, kw_only=True)
class Series(SeriesFields):
    """A series that may be asked; its fields are those of `SeriesFields`.

    Raises:
        TaskError: a field outside its range, named with its value and the range.
    """

    def __post_init__(self) -> None:
        check_series(self)

    @cached_property
    def canonical(self) -> bytes:
        """The canonical bytes that are hashed and signed (docs/wire.md, "Series")."""
        return encode_series_fields(self)

    @cached_property
    def series_id(self) -> SeriesId:
        """SHA-256 of the canonical bytes."""
        return SeriesId(hashlib.sha256(self.canonical).digest())

    @cached_property
    def first_window(self) -> TaskFields:
        """The fields of window 0; but for its times and place those of every window (of a walk, of its first step).

        Before the start its times are those of the latest start.
        """
        return window_fields(self, self.series_id, 0)

    @cached_property
    def shared_bytes(self) -> tuple[bytes, bytes]:
        """What stands before and behind the times in the canonical bytes of every window's task."""
        return encode_question(self.first_window), encode_terms(self.first_window)

    def started(self, start: int) -> Self:
        """Return the series with its windows, counted from a start (Unix seconds) that the leader fixed.

        It is the same series: canonical bytes, id and signatures stay.

        Raises:
            TaskError: its times are fixed, it has another start already, or the start is outside what was signed.
        """
        if self.schedule.submission is None:
            raise TaskError(f"series {self.name!r} has fixed times; no start is given to it")
        if self.schedule.first not in (None, start):
            raise TaskError(f"start of the question is {start}, it started at {self.schedule.first} already")
        return replace(self, schedule=replace(self.schedule, first=start))

    def at_latest(self) -> Self:
        """Return the series itself if it has a start, else as if it starts as late as it may: to judge it before."""
        return self if self.schedule.first is not None else replace(self, schedule=self.schedule.at_latest())

    @property
    def design(self) -> Design:
        """The design of every window's question (in a drill-down, of every walk's first step: V differs later)."""
        return self.first_window.design

    @cached_property
    def shape(self) -> SeriesShape:
        """How many windows each unit of the coin, each UTC day and one answer has."""
        return self.schedule.shape(self.coin, 1 if self.drill_down is None else len(self.drill_down.levels))


def decode_series(data: bytes) -> Series:
    """Return the series whose canonical bytes these are.

    Raises:
        DecodeError: they are not the canonical bytes of a series, or the series breaks a rule.
    """
    try:
        read = decode_series_fields(data)
        series = Series(**{one.name: getattr(read, one.name) for one in fields(SeriesFields)})
    except (TaskError, MechanismError) as error:
        raise DecodeError(f"series that may not be asked: {error}") from error
    if series.canonical != data:
        raise DecodeError("series is not in its canonical form")
    return series


@dataclass(frozen=True, kw_only=True)
class SignedSeries:
    """A series with the Ed25519 signature of every listed aggregator, in its order; b"" where one is missing."""

    series: Series
    signatures: tuple[bytes, ...]

    @property
    def complete(self) -> bool:
        """Whether every place holds a signature (not whether it verifies)."""
        return len(self.signatures) == len(self.series.aggregators) and all(self.signatures)

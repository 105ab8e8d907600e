"""From the opened numbers of a window to its release record: estimates, intervals, statement.

Pure, and the same at every aggregator. It must not see a number without noise or decide about sets and shares.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from fleetcount_mechanisms.accounting.vectors import ScheduleShape
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_protocol.release import Cell, ChainLink, NoisedParticipants, ReleaseRecord, encode_record
from fleetcount_protocol.window.window import Window, decode_window

if TYPE_CHECKING:
    from fleetcount_mechanisms.statement import AdversaryView

_ENDPOINT_SLACK: Final = 1
"""Interval ends come from floating point, which may differ by a last digit between machines."""


def release_time(window: Window, now: int) -> int:
    """Return the time in a record: the next point of the window's time grid, which tells nothing about this machine."""
    step = window.time_precision_s
    return -(-max(now, window.round_two_closes, window.round_one_closes) // step) * step


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTerms:
    """What the record of a window says beyond its window: its place in the chain, and what the whole question may lose.

    The statement is about the question as it was signed, at its `delta`: `shape` has its windows, units and days.
    """

    chain: ChainLink
    shape: ScheduleShape
    delta: Fraction


def record_bytes(window: bytes, outputs: Sequence[int], released_at: int, terms: WindowTerms) -> bytes:
    """Return the canonical record of a window (canonical bytes in, canonical bytes out): what the workers run."""
    return encode_record(build_record(decode_window(window), outputs, released_at, terms))


def build_record(window: Window, outputs: Sequence[int], released_at: int, terms: WindowTerms) -> ReleaseRecord:
    """Return the record of a window from its opened outputs (docs/wire.md, "Release record").

    `outputs` are those that the window's design opens, and behind them the number of participants where the window says
    so.

    Raises:
        UsageError: numbers beyond the 64 bits of a record.
    """
    # Loaded only here: SciPy takes a second, and only who makes a record needs it. The workers load it at their start.
    from fleetcount_analysis.reading import exact_estimates, read

    design, numbers = window.design, [int(output) for output in outputs]
    opened = numbers.pop() if window.question.noised_participants else None
    reading, estimates = read(design, numbers, window.release.level), exact_estimates(design, numbers)
    baseline = numbers.pop(0) if design.baseline_opened else None
    columns = zip(numbers, estimates, reading.low.tolist(), reading.high.tolist(), strict=True)
    cells = tuple(
        Cell(value=value, label=window.label(value), raw=raw, estimate=estimate, low=low, high=high)
        for value, (raw, estimate, low, high) in enumerate(columns, start=1)
    )
    return ReleaseRecord(
        window=window,
        cells=cells,
        statement=_views(design, terms.shape, terms.delta),
        released_at=released_at,
        baseline_raw=baseline,
        chain=terms.chain,
        participants=None if opened is None else _participants(design, opened, window.release.level),
    )


@lru_cache(maxsize=16)
def _views(design: Design, shape: ScheduleShape, delta: Fraction) -> "tuple[AdversaryView, ...]":
    """Return the statement of a question, which takes a second, once a question and process."""
    from fleetcount_mechanisms.accounting.question_statement import question_views  # As above.

    return question_views(design, shape, delta)


def _participants(design: Design, opened: int, level: Fraction) -> NoisedParticipants:
    """Return the reading of a number that every device counts in and every aggregator noised: one direct cell."""
    from fleetcount_analysis.reading import read  # As above.

    count = Design(answer=Truth(1), noise=design.noise, values=1, aggregators=design.aggregators)
    reading = read(count, [opened], level)
    return NoisedParticipants(raw=opened, low=int(reading.low[0]), high=int(reading.high[0]))


def same_record(own: ReleaseRecord, other: ReleaseRecord) -> bool:
    """Return whether two records say the same: identical but for interval ends, which may differ by one."""
    if _exact(own) != _exact(other):
        return False
    return all(_same_cell(one, two) for one, two in zip(_read(own), _read(other), strict=True))


def _exact(record: ReleaseRecord) -> tuple[object, ...]:
    """Return what two records have in common to the last bit."""
    return record.window.canonical, record.statement, record.baseline_raw, record.released_at, record.chain


def _read(record: ReleaseRecord) -> list[Cell | NoisedParticipants]:
    """Return what has interval ends."""
    return [*record.cells, *([] if record.participants is None else [record.participants])]


def _same_cell(own: Cell | NoisedParticipants, other: Cell | NoisedParticipants) -> bool:
    ends = max(abs(own.low - other.low), abs(own.high - other.high))
    return ends <= _ENDPOINT_SLACK and replace(own, low=0, high=0) == replace(other, low=0, high=0)

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
from fleetcount_protocol.release.chain import ChainLink
from fleetcount_protocol.release.record import Cell, NoisedParticipants, ReleaseRecord, encode_record
from fleetcount_protocol.window.window import Window, decode_window

if TYPE_CHECKING:
    from fleetcount_mechanisms.statement import AdversaryView

_ENDPOINT_SLACK: Final = 1
"""Largest difference of interval ends: floating point may differ in the last digit between machines."""

ReleasedNumbers = tuple[tuple[int, ...], int | None]
"""The opened numbers of a record's cells, and that of its participants where it has one."""


def release_time(window: Window, now: int) -> int:
    """Return the time in a record (Unix seconds), rounded up to the window's time grid to hide this machine's."""
    step = window.time_precision_s
    return -(-max(now, window.round_two_closes, window.round_one_closes) // step) * step


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTerms:
    """The parts of a window's record that do not follow from the window: the chain link, and the terms of the
    statement.

    The statement is about the whole signed question, at its `delta`: `shape` has its windows, units and days.
    """

    chain: ChainLink
    shape: ScheduleShape
    delta: Fraction


def record_bytes(window: bytes, outputs: Sequence[int], released_at: int, terms: WindowTerms) -> bytes:
    """Return the canonical record of a window, from its canonical bytes; the workers run it."""
    return encode_record(build_record(decode_window(window), outputs, released_at, terms))


def build_record(window: Window, outputs: Sequence[int], released_at: int, terms: WindowTerms) -> ReleaseRecord:
    """Return the record of a window from its opened outputs (docs/wire.md, "Release record").

    `outputs` are the numbers that the window's design opens, followed by the noised number of participants where the
    question publishes it.

    Raises:
        UsageError: a number does not fit into the 64 bits of a record.
    """
    # Imported here, because SciPy takes a second to load and only the workers build records; they load it at their
    # start.
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
    """Return the statement of a question, which takes a second; cached, once per question and process."""
    from fleetcount_mechanisms.accounting.question_statement import question_views  # As above.

    return question_views(design, shape, delta)


def _participants(design: Design, opened: int, level: Fraction) -> NoisedParticipants:
    """Return the interval of the noised number of participants: one direct cell in which every device counts."""
    from fleetcount_analysis.reading import read  # As above.

    count = Design(answer=Truth(1), noise=design.noise, values=1, aggregators=design.aggregators)
    reading = read(count, [opened], level)
    return NoisedParticipants(raw=opened, low=int(reading.low[0]), high=int(reading.high[0]))


def largest_posterior(window: bytes, windows: tuple[ReleasedNumbers, ...]) -> float:
    """Return the largest posterior, 0 where there is none and 1 where it cannot be computed; the workers run it."""
    from fleetcount_analysis.answers.disclosure import OpenedWindow, most_told  # As above.
    from fleetcount_analysis.errors import AnalysisError

    design = decode_window(window).design
    opened = [OpenedWindow.of(design, numbers, participants) for numbers, participants in windows]
    try:
        return most_told(design, opened) or 0.0
    except AnalysisError:
        return 1.0


def same_record(own: ReleaseRecord, other: ReleaseRecord) -> bool:
    """Return whether two records are equal but for interval ends, which may differ by `_ENDPOINT_SLACK`."""
    if _exact(own) != _exact(other):
        return False
    return all(_same_cell(one, two) for one, two in zip(_read(own), _read(other), strict=True))


def _exact(record: ReleaseRecord) -> tuple[object, ...]:
    """Return the parts of a record that must be equal to the last bit."""
    return record.window.canonical, record.statement, record.baseline_raw, record.released_at, record.chain


def _read(record: ReleaseRecord) -> list[Cell | NoisedParticipants]:
    """Return the parts of a record that have interval ends."""
    return [*record.cells, *([] if record.participants is None else [record.participants])]


def _same_cell(own: Cell | NoisedParticipants, other: Cell | NoisedParticipants) -> bool:
    ends = max(abs(own.low - other.low), abs(own.high - other.high))
    return ends <= _ENDPOINT_SLACK and replace(own, low=0, high=0) == replace(other, low=0, high=0)

"""From the opened numbers of a task to its release record: estimates, intervals, statement.

Pure, and the same at every aggregator. It must not see a number without noise or decide about sets and shares.
"""

from collections.abc import Sequence
from typing import Final

from fleetcount_protocol.release import Cell, ReleaseRecord, encode_record
from fleetcount_protocol.task.task import Task, decode_task

__all__ = ["build_record", "record_bytes", "release_time", "same_record"]

_ENDPOINT_SLACK: Final = 1
"""Interval ends come from floating point, which may differ by a last digit between machines."""


def release_time(task: Task, now: int) -> int:
    """Return the time in a record: the next point of the task's time grid, which tells nothing about this machine."""
    step = task.time_precision_s
    return -(-max(now, task.round_two_closes, task.round_one_closes) // step) * step


def record_bytes(task: bytes, outputs: Sequence[int], released_at: int) -> bytes:
    """Return the canonical record of a task (canonical bytes in, canonical bytes out): what the workers run."""
    return encode_record(build_record(decode_task(task), outputs, released_at))


def build_record(task: Task, outputs: Sequence[int], released_at: int) -> ReleaseRecord:
    """Return the record of a task from its opened outputs (docs/wire.md, "Release record").

    `outputs` are those that the task's design opens.

    Raises:
        UsageError: numbers beyond the 64 bits of a record.
    """
    # Loaded only here: SciPy takes a second, and only who makes a record needs it. The workers load it at their start.
    from fleetcount_analysis.reading import exact_estimates, read

    design, numbers = task.design, [int(output) for output in outputs]
    reading, estimates = read(design, numbers, task.release.level), exact_estimates(design, numbers)
    baseline = numbers.pop(0) if design.baseline_opened else None
    columns = zip(numbers, estimates, reading.low.tolist(), reading.high.tolist(), strict=True)
    cells = tuple(
        Cell(value=value, label=task.domain.label(value), raw=raw, estimate=estimate, low=low, high=high)
        for value, (raw, estimate, low, high) in enumerate(columns, start=1)
    )
    return ReleaseRecord(
        task=task, cells=cells, statement=design.views(), released_at=released_at, baseline_raw=baseline
    )


def same_record(own: ReleaseRecord, other: ReleaseRecord) -> bool:
    """Return whether two records say the same: identical but for interval ends, which may differ by one."""
    if (own.task.canonical, own.statement, own.baseline_raw, own.released_at) != (
        other.task.canonical,
        other.statement,
        other.baseline_raw,
        other.released_at,
    ):
        return False
    return all(_same_cell(one, two) for one, two in zip(own.cells, other.cells, strict=True))


def _same_cell(own: Cell, other: Cell) -> bool:
    exact = (own.value, own.label, own.raw, own.estimate) == (other.value, other.label, other.raw, other.estimate)
    ends = max(abs(own.low - other.low), abs(own.high - other.high))
    return exact and ends <= _ENDPOINT_SLACK

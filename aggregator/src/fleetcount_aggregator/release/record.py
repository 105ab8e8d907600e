"""From the opened numbers of a task to its release record: estimates, intervals, statement.

Pure, and the same at every aggregator; sees noised numbers only. Decides nothing about sets, shares or noise.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from fleetcount_mechanisms.asymmetric import ratio_above
from fleetcount_mechanisms.responses import MangatVector
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.release import Cell, ReleaseRecord, encode_record
from fleetcount_protocol.task.codec import decode_task
from fleetcount_protocol.task.rules import task_views
from fleetcount_protocol.task.task import Mode, ReleaseKind, Task

__all__ = ["build_record", "record_bytes", "release_time", "same_record"]

Interval = tuple[int, int]
_ENDPOINT_SLACK: Final = 1
"""Interval ends come from floating point, which may differ by a last digit between machines."""
_MEAN_GRID: Final = 10**9


def release_time(task: Task, now: int) -> int:
    """Return the moment a release bears: the next point of the task's time grid, so that it says nothing of its own."""
    step = task.time_precision_s
    return -(-max(now, task.round_two_closes, task.round_one_closes) // step) * step


def record_bytes(task: bytes, outputs: Sequence[int], released_at: int) -> bytes:
    """Return the canonical record of a task (canonical bytes in, canonical bytes out): what the workers run."""
    return encode_record(build_record(decode_task(task), outputs, released_at))


def build_record(task: Task, outputs: Sequence[int], released_at: int) -> ReleaseRecord:
    """Return the record of a task from its opened outputs (docs/wire.md, "Release record").

    `outputs` are cells 1..V in sampling and direct mode, outputs 0..V in response mode.

    Raises:
        UsageError: numbers that no record can hold.
    """
    numbers = [int(output) for output in outputs]
    baseline = numbers[0] if task.mode is Mode.RESPONSE else None
    raw = numbers[1:] if task.mode is Mode.RESPONSE else numbers
    estimates, intervals = _read(task, numbers)
    cells = tuple(
        Cell(value=value, label=task.domain.label(value), raw=one, estimate=estimate, low=low, high=high)
        for value, (one, estimate, (low, high)) in enumerate(zip(raw, estimates, intervals, strict=True), start=1)
    )
    return ReleaseRecord(
        task=task, cells=cells, statement=task_views(task), released_at=released_at, baseline_raw=baseline
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


def _read(task: Task, outputs: Sequence[int]) -> tuple[Sequence[Fraction], Sequence[Interval]]:
    """Return estimates and intervals of cells 1..V under the task's own channel."""
    # Loaded only here: SciPy takes a second, and only who makes a record needs it. The workers load it at their start.
    from fleetcount_analysis.estimates import direct_estimates, response_estimates, sampling_estimates
    from fleetcount_analysis.intervals import direct_intervals, response_intervals, sampling_intervals

    mechanism, release, aggregators = task.mechanism, task.release, len(task.aggregators)
    if isinstance(mechanism, SamplingDie):
        rate = mechanism.sampling_rate
        return (
            sampling_estimates(outputs, rate),
            sampling_intervals(outputs, rate, release.noise_epsilon, aggregators, release.level),
        )
    if isinstance(mechanism, MangatVector):
        return _vector_mangat(task, mechanism, outputs)
    if mechanism is not None:
        return (
            response_estimates(outputs, mechanism),
            response_intervals(outputs, mechanism, release.noise_epsilon, aggregators, release.level),
        )
    if release.kind is ReleaseKind.ONE_SIDED and release.noise_epsilon is not None:
        return _one_sided(outputs, release.noise_epsilon, aggregators, release.level)
    return direct_estimates(outputs), direct_intervals(outputs, release.noise_epsilon, aggregators, release.level)


def _vector_mangat(
    task: Task, mechanism: MangatVector, outputs: Sequence[int]
) -> tuple[Sequence[Fraction], Sequence[Interval]]:
    """Vector Mangat: output 0 counts the devices, so nhat_v = (Y_v - q Y_0)/(1 - q) (docs/privacy.md, section 2)."""
    from fleetcount_analysis.intervals import unary_intervals  # As above.

    flip, participants, bits = mechanism.flip, outputs[0], outputs[1:]
    release = task.release
    intervals = unary_intervals(
        bits, participants, Fraction(1), flip, release.noise_epsilon, len(task.aggregators), release.level
    )
    return [(bit - flip * participants) / (1 - flip) for bit in bits], intervals


def _one_sided(
    outputs: Sequence[int], epsilon: Fraction, aggregators: int, level: Fraction
) -> tuple[Sequence[Fraction], Sequence[Interval]]:
    """One-sided noise only adds: its mean k q/(1-q), q = e^-eps, comes off for an unbiased estimate.

    The mean is irrational; it is rounded to a grid, so that every aggregator signs the same fraction.
    """
    from fleetcount_analysis.intervals import one_sided_intervals  # As above.

    ratio = ratio_above(epsilon)
    mean = Fraction(round(aggregators * ratio / (1 - ratio) * _MEAN_GRID), _MEAN_GRID)
    return [output - mean for output in outputs], one_sided_intervals(outputs, epsilon, aggregators, level)

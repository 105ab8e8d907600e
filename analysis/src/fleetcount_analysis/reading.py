"""Reading of a release: estimates, standard errors and intervals of the cells 1..V, of one release or many.

With several levels the cells are those of all levels, in the order in which they are opened, each read separately;
`answers.levels` makes them add up.

Run by aggregators, analysts and studies. Its only inputs are the question's design and the opened numbers, so that all
of them get the same results. No other module may choose the formula for a design.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, cast

import numpy as np
from fleetcount_mechanisms.asymmetric import ratio_above
from fleetcount_mechanisms.design import Design, Outputs
from fleetcount_mechanisms.noise import NoiseLaw, OneSidedNoise
from numpy.typing import ArrayLike, NDArray

from fleetcount_analysis import estimates, intervals
from fleetcount_analysis.channels import NoiseSize, noise_size, noise_sum, whole_outputs
from fleetcount_analysis.errors import ShapeError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Ends = list[tuple[int, int]]

_MEAN_GRID: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """Estimates, their standard errors and interval ends of cells 1..V, in devices; all of one shape.

    The shape is (V,) for one release and (runs, V) for many; with several levels V stands for `Design.cell_count`.
    """

    estimates: Floats
    standard_errors: Floats
    low: Integers
    high: Integers


def read(design: Design, outputs: ArrayLike, level: Fraction) -> Reading:
    """Return the reading of the opened numbers (`design.outputs`) of one release, or of one release in each row.

    Intervals come from the exact channel (see `intervals`). The reading of a row does not depend on other rows.

    Raises:
        ShapeError: the last axis is not `design.output_count` long.
        RangeError: an output that is no whole number or beyond 10^12 in size, a level outside (0, 1), or a law of noise
            that cannot be read.
    """
    opened = whole_outputs(outputs)
    rows = np.atleast_2d(opened)
    if rows.ndim != 2 or rows.shape[1] != design.output_count:
        raise ShapeError(
            f"a release has shape {opened.shape}; allowed is {design.output_count} numbers, or rows of them"
        )
    columns: list[list[Floats | Integers]] = []
    start = 0
    for noise, numbers, weighted in _runs(design):
        read_part = _read_weighted if weighted else _read_rows
        cells, ends = read_part(design, noise, rows[:, start : start + numbers], level)
        both = np.array(ends, dtype=np.int64).reshape(len(rows), -1, 2)
        parts = (cells.counts, cells.standard_errors, both[..., 0], both[..., 1])
        columns.append([one.reshape(len(rows), -1) for one in parts])
        start += numbers
    shape = (design.cell_count,) if opened.ndim == 1 else (len(rows), design.cell_count)
    counts, errors, low, high = (np.concatenate(one, axis=1).reshape(shape) for one in zip(*columns, strict=True))
    return Reading(estimates=counts, standard_errors=errors, low=low, high=high)


def exact_estimates(design: Design, outputs: Sequence[int]) -> list[Fraction]:
    """Return the unbiased estimates of cells 1..V from the opened numbers of one release, as they are in records.

    One-sided noise has an irrational mean; it is rounded to 10^-9 and subtracted, so that all aggregators sign the same
    numbers.

    Raises:
        ShapeError: not exactly `design.output_count` numbers.
        RangeError: one that is not whole.
    """
    if len(outputs) != design.output_count:
        raise ShapeError(f"a release has {len(outputs)} outputs; allowed is {design.output_count}")
    outputs = whole_outputs(outputs).tolist()
    cells = outputs[1:] if design.baseline_opened else outputs
    devices = sum(outputs) if design.outputs is Outputs.ALL else outputs[0]
    means = [_mean_noise(law, design.aggregators) for law in design.laws]
    of_each = [mean for mean, size in zip(means, design.levels.sizes, strict=True) for _ in range(size)]
    # Of levels above the cells, which answers that differ by cell do not have, each number is told as a cell is.
    channels = (*design.channels, *(design.channel,) * (design.cell_count - design.values))
    return [
        (cell - mean - miss * devices) / (hit - miss)
        for cell, mean, (hit, miss) in zip(cells, of_each, channels, strict=True)
    ]


def _mean_noise(noise: NoiseLaw, aggregators: int) -> Fraction:
    if not isinstance(noise, OneSidedNoise):
        return Fraction(0)
    ratio = ratio_above(noise.epsilon)
    mean = Fraction(round(aggregators * ratio / (1 - ratio) * _MEAN_GRID), _MEAN_GRID)
    return mean if noise.direction == "up" else -mean


def _runs(design: Design) -> list[tuple[NoiseLaw, int, bool]]:
    """Return (law, how many numbers in a row have it, whether it is the weighted sum), as they are opened."""
    place = design.levels.weighted_place
    if place is None:
        return [(law, count, False) for law, count in design.opened_noise]
    sizes = zip(design.laws, design.levels.sizes, strict=True)
    return [(law, size, level == place) for level, (law, size) in enumerate(sizes)]


def _read_weighted(
    design: Design, noise: NoiseLaw, rows: Integers, level: Fraction
) -> tuple[estimates.CellEstimates, Ends]:
    """Read weighted sums of direct answers, which may be below 0 and far beyond the number of devices."""
    law = noise_sum(noise_size(noise), design.aggregators)
    reach = law.central_reach(float((1 - level) / 2))
    errors = np.full(rows.shape, law.variance**0.5)
    ends = [(number - reach, number + reach) for number in rows.ravel().tolist()]
    return estimates.CellEstimates(counts=rows.astype(np.float64), standard_errors=errors), ends


def _read_rows(
    design: Design, noise: NoiseLaw, rows: Integers, level: Fraction
) -> tuple[estimates.CellEstimates, Ends]:
    """Read opened numbers that all have this law of noise; of randomized answers all of them are such."""
    parties = design.aggregators
    if isinstance(noise, OneSidedNoise):
        cells = estimates.one_sided_cells(rows, noise.epsilon, parties, noise.direction)
        return cells, _one_sided_ends(noise, rows, parties, level)
    size = noise_size(noise)
    if design.outputs is Outputs.CELLS:
        rate = design.channel[0]
        listed = rows.ravel().tolist()
        ends = intervals.sampling_intervals(listed, rate, size, parties, level)
        return estimates.sampling_cells(rows, rate, size, parties), ends
    return _with_baseline(design, size, rows, level)


def _with_baseline(
    design: Design, size: NoiseSize, rows: Integers, level: Fraction
) -> tuple[estimates.CellEstimates, Ends]:
    """Read randomized answers: the number of devices is the sum of all outputs, or the participation bit's count."""
    parties = design.aggregators
    if design.outputs is Outputs.ALL:
        response = cast("estimates.ResponseLaw", design.answer)
        cells = estimates.response_cells(rows, response, size, parties)
        low, high = intervals.response_ends(rows, response, size, parties, level)
    else:
        told, ways = np.array(design.told_as), sorted(set(design.told_as))
        columns = [_read_bits(design, size, rows[:, :1], rows[:, 1:][:, told == cell], cell, level) for cell in ways]
        order = np.argsort(np.concatenate([np.flatnonzero(told == cell) for cell in ways]))
        counts, errors, low, high = (np.concatenate(one, axis=1)[:, order] for one in zip(*columns, strict=True))
        cells = estimates.CellEstimates(counts=counts, standard_errors=errors)
    return cells, list(zip(low.ravel().tolist(), high.ravel().tolist(), strict=True))


def _read_bits(
    design: Design, size: NoiseSize, devices: Integers, bits: Integers, cell: int, level: Fraction
) -> tuple[Floats, Floats, Floats | Integers, Floats | Integers]:
    """Read the cells that are told as one cell is: estimates, standard errors and the ends of their intervals."""
    channel, parties = design.channels[cell - 1], design.aggregators
    cells = estimates.unary_cells(bits, devices, *channel, size, parties)
    low, high = intervals.unary_ends(bits, devices, *channel, size, parties, level)
    return cells.counts, np.broadcast_to(cells.standard_errors, bits.shape), low, high


def _one_sided_ends(noise: OneSidedNoise, rows: Integers, parties: int, level: Fraction) -> Ends:
    """Return the interval of every output: [Y - m, Y] for noise >= 0 ("up"), [Y, Y + m] for noise <= 0 ("down")."""
    reach = 0
    if noise.direction == "down":
        probe = 10**9
        low, high = intervals.one_sided_intervals([probe], noise.epsilon, parties, level)[0]
        reach = high - low
    listed = (rows + reach).ravel().tolist()
    return intervals.one_sided_intervals(listed, noise.epsilon, parties, level)

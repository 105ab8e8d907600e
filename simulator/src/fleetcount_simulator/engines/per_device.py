"""The per-device engine: every device's coins, answers and faults, a chunk of devices at a time.

Adds up what the devices of a case send; the laws are those of the real client (`fleetcount_client.answering`), not of
the sums. Memory is bounded by a chunk and by the sums, not by the number of devices. A device's draws depend on the
run's seed and its own number alone, so that neither chunks nor shards nor workers change a result.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fleetcount_simulator.engines import per_device_kernels as kernels
from fleetcount_simulator.engines.answer_laws import AnswerLaw
from fleetcount_simulator.engines.opened_sums import (
    Sums,
    checked_law,
    empty_sums,
    open_release,
    panel_unit,
    run_seed,
    unit_seed,
)
from fleetcount_simulator.engines.participation import answers_allowed, earliest_joining, presence
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.faults import SPREAD, cut_share, skew_in_windows
from fleetcount_simulator.model import Case, CaseOutcome, Integers
from fleetcount_simulator.rounding import rounding_of

CHUNK: Final = 1 << 20
"""Devices whose truths are in memory at once."""

_NONE: Final = np.zeros(0, dtype=np.uint8)
_ALTERNATING: Final = 0xAAAAAAAAAAAAAAAA
_TALLIED: Final = {
    kernels.LOST: "lost",
    kernels.MISSED: "late",
    kernels.DROPPED: "half_pairs",
    kernels.LATE: "late",
    kernels.CUT: "half_pairs",
    kernels.OFF: "absent",
    kernels.UNWILLING: "refused",
}

Truths = NDArray[np.uint16 | np.int32 | np.int64]


class PerDevice:
    """Draws every device. `chunk` is the devices drawn at once, a parameter for tests; results do not depend on it."""

    def __init__(self, chunk: int = CHUNK) -> None:
        self._chunk = chunk

    def run(self, case: Case, epoch: int, runs: Sequence[int], seed: np.random.SeedSequence) -> CaseOutcome:
        """See `Engine.run`; time O(devices) per run, and O(devices V) for bit vectors."""
        if case.population.question.sets:
            raise ScenarioError(
                "vehicles have several categories at once, and the per-device engine draws one value of each: use"
                " --engine exact-law or network"
            )
        law = checked_law(case, epoch)
        seeds = [run_seed(seed, run) for run in runs]
        streams = [_stream(one) for one in seeds]
        unit = panel_unit(case, epoch)
        if unit is not None:
            coins = [_stream(unit_seed(seed, unit, run))[:2] for run in runs]
            streams = [np.concatenate(both) for both in zip(streams, coins, strict=True)]
        sums = empty_sums(law, len(runs))
        plain, faults = not _is_faulty(case), _fault_numbers(case, law.rounds)
        rounding = rounding_of(case.population.question)
        roundings = [] if rounding is None else [_rounding_stream(one) for one in seeds]
        for start, held, present in _chunks(case, epoch, law, self._chunk):
            for row, stream in enumerate(streams):
                truths, fates = held, _NONE
                if rounding is not None:
                    truths = rounding.values(held, kernels.uniforms(roundings[row], start, held.size))
                if not plain:
                    fates = np.empty(truths.size, dtype=np.uint8)
                    tally = np.zeros(kernels.FATES + 1, dtype=np.int64)
                    kernels.draw_fates(truths, present, start, stream, faults, fates, sums.counted[row], tally)
                    _add_tally(sums, row, tally)
                _add_answers(case, law, truths, fates, start, stream, sums.opened[row])
                if plain and rounding is not None:
                    sums.counted[row] += np.bincount(truths, minlength=law.values + 1)
        if plain and rounding is None:
            sums.counted[:] = case.population.histogram(epoch)
        if law.shape == "truth":
            sums.opened[:] = sums.counted[:, 1:]
        generators = [np.random.Generator(np.random.PCG64(one.spawn(1)[0])) for one in seeds]
        return open_release(case, epoch, law, sums, generators)


def _stream(seed: np.random.SeedSequence) -> NDArray[np.uint64]:
    """Return (key, step) of a run's coins and of its bits, for the kernels.

    A step is odd, and has enough changes between neighbouring bits to spread the counter (Steele, Lea, Flood, section
    5: at least 24).
    """
    words = [int(word) for word in seed.generate_state(4, np.uint64)]
    for index in (1, 3):
        step = words[index] | 1
        words[index] = step if (step ^ step >> 1).bit_count() >= 24 else step ^ _ALTERNATING
    return np.array(words, dtype=np.uint64)


def _rounding_stream(seed: np.random.SeedSequence) -> NDArray[np.uint64]:
    """Return (key, step) of a run's roundings: child 1 of the run's seed, child 0 being that of its noise."""
    return _stream(np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, 1)))[:2]


def _is_faulty(case: Case) -> bool:
    """Return whether anything can keep a device from being counted, or make it send again."""
    one = case.faults
    shares = (one.loss, one.drop_out, one.late, one.duplicates, one.clock_skew_s, cut_share(one))
    question = case.epochs.question
    limited = (
        answers_allowed(case) is not None or earliest_joining(case) > 0 or (question is not None and question.changes)
    )
    return one.ignition or limited or any(share > 0 for share in shares)


def _chunks(case: Case, epoch: int, law: AnswerLaw, size: int) -> Iterator[tuple[int, Truths, NDArray[np.uint8]]]:
    """Yield (first device, what each holds, presence) of every chunk; presence is empty where all devices are on.

    Raises:
        ScenarioError: a device holds what is no value 0..V, or no reading 0..R.
    """
    most = case.population.question.held
    for start in range(0, case.population.devices, size):
        stop = min(start + size, case.population.devices)
        truths: Truths = np.ascontiguousarray(case.population.truths(epoch, start, stop))
        if truths.shape != (stop - start,):
            raise ScenarioError(f"the population gave {truths.shape} truths for devices {start} to {stop - 1}")
        # The kernels index with truths and check nothing.
        if int(truths.max()) > most or int(truths.min()) < 0:
            raise ScenarioError(f"a truth of devices {start} to {stop - 1} is outside 0..{most}")
        present = presence(case, epoch, law.rounds, start, stop)
        yield start, truths, _NONE if present is None else present


def _fault_numbers(case: Case, rounds: int) -> NDArray[np.float64]:
    """Return the argument `faults` of `kernels.draw_fates`, shape (9,), float64."""
    one = case.faults
    shares = [one.loss, skew_in_windows(one), SPREAD, one.drop_out, one.late, cut_share(one), one.duplicates]
    return np.array([*(float(share) for share in shares), float(rounds), 1 / case.aggregators])


def _add_tally(sums: Sums, row: int, tally: Integers) -> None:
    """Add the fates of a chunk's devices to the tallies of a run."""
    for fate, name in _TALLIED.items():
        sums.tallies[name][row] += tally[fate]
    sums.tallies["resent"][row] += tally[kernels.FATES]


def _add_answers(
    case: Case,
    law: AnswerLaw,
    truths: Truths,
    fates: NDArray[np.uint8],
    start: int,
    stream: NDArray[np.uint64],
    opened: Integers,
) -> None:
    """Add what a chunk's devices answer to the sums that are opened."""
    known: dict[str, Any] = {"truths": truths, "fates": fates, "first_device": start, "stream": stream}
    match law.shape:
        case "sampling":
            first, second = np.zeros((2, law.values + 1), dtype=np.int64)
            kernels.add_pairs(**known, rate=law.hit, first=first, second=second, naive=case.faults.naive)
            opened += (second - first)[1:]
        case "k-ary":
            kernels.add_responses(**known, keep=np.full(law.values + 1, law.hit), outputs=opened)
        case "binary":
            kernels.add_responses(**known, keep=np.array([1 - law.miss, law.hit]), outputs=opened)
        case "bits":
            kernels.add_bits(**known, chances=law.chances, ones=opened)
        case "truth":
            pass  # A device sends its truth: the sums are the counted truths.

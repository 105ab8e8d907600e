"""The exact-law engine: draws the released sums themselves, from the histogram of truths alone.

Exact in distribution and O(V) per release, for any number of devices. It reads single devices only for ignition, for
devices that join and leave (counted once per call), and for coins that hold longer than a window (below).

The laws, for n_v counted devices of value v and N in all:

* Sampling. A device answers (r1, r2) = (0, truth) with probability p, the sampling rate, and (f, f) otherwise, f one of
  0..V (`fleetcount_mechanisms.sampling`). In the cells v >= 1 its difference e_r2 - e_r1 is therefore e_truth with
  probability p and 0 otherwise: the face it threw cancels, and so does the baseline, output 0, which is not
  opened. Devices toss independently and each moves its own cell only, so D_v = Bin(n_v, p), independent over v: exact.
* A half pair that is counted all the same (`naive`) subtracts its round-one answer: face v >= 1 with probability
  (1-p)/(V+1), nothing otherwise, for every truth. H half pairs subtract a multinomial.
* Yes-or-no responses. Bin(n_1, P[Yes | Yes]) + Bin(n_0, P[Yes | No]) devices answer Yes, the others No.
* k-ary response. With P = P[v | v] and Q = P[v | another], an answer is the truth with probability P - Q and otherwise
  uniform on all V+1 outputs. So Bin(n_v, P - Q) devices of value v answer v, and all the others together are one
  uniform multinomial.
* Bits. The V bits of a device are independent, so cell v holds Bin(n_v, P[1 | 1]) + Bin(N - n_v, P[1 | 0]) ones.
* Direct and one-sided. n_v itself.

A coin that holds for several windows of a question correlates their sums through the devices that were sampled: the
joint law needs each device's values over time. There the coins of all devices are drawn, once per unit, and the sampled
devices of every value are counted in every window: exact, O(devices) per window and run.

Of sets the devices of each are counted, and what they tell is drawn by `held_sets`; they are told as they are.

Of a question with readings between points the n_v are drawn in every run: of n_r devices that hold reading r,
Bin(n_r, part_r) round up (`rounding`), independent over r, since devices round independently: exact.

Noise is that of `noise_sums.levels_noise`. Faults thin each n_v by one multinomial of `faults.fates`.
"""

from collections.abc import Sequence

import numpy as np
from fleetcount_mechanisms.design import Design

from fleetcount_simulator.engines.answer_laws import AnswerLaw, answer_law
from fleetcount_simulator.engines.noise_sums import levels_noise
from fleetcount_simulator.engines.opened_sums import (
    Sums,
    checked_law,
    empty_sums,
    open_release,
    panel_unit,
    run_seed,
    unit_seed,
)
from fleetcount_simulator.engines.participation import (
    ABSENT,
    HALF,
    ON,
    REFUSED,
    presence_histograms,
    states_and_values,
)
from fleetcount_simulator.faults import Fates, fates
from fleetcount_simulator.held_sets import HeldSets, sets_of
from fleetcount_simulator.model import Case, CaseOutcome, Integers
from fleetcount_simulator.rounding import rounding_of


class ExactLaw:
    """Draws the law of the released sums."""

    def run(self, case: Case, epoch: int, runs: Sequence[int], seed: np.random.SeedSequence) -> CaseOutcome:
        """See `Engine.run`."""
        law = checked_law(case, epoch)
        present = presence_histograms(case, epoch, law.rounds)
        generators = [np.random.Generator(np.random.PCG64(run_seed(seed, run))) for run in runs]
        sums, sets = empty_sums(law, len(runs)), sets_of(case.population.question)
        if sets is not None:
            sums.devices = np.zeros(len(runs), dtype=np.int64)
        chances = fates(case.faults, law.rounds, case.aggregators)
        unit = panel_unit(case, epoch)
        coins = [] if unit is None else [unit_seed(seed, unit, run) for run in runs]
        panels = _panels(case, epoch, law, coins)
        for row, generator in enumerate(generators):
            if sets is not None:
                held, _ = _thin(case, chances, present, sums, row, generator)
                _tell(sets, held, sums, row, generator)
                continue
            if unit is None:
                values = _rounded(case, present, generator)
                sums.counted[row], halves = _thin(case, chances, values, sums, row, generator)
                sums.opened[row] = _answers(law, sums.counted[row], generator)
                miss = law.miss
            else:
                first, rest = (_rounded(case, held, generator) for held in (panels[row], present - panels[row]))
                sampled, _ = _thin(case, chances, first, sums, row, generator)
                others, halves = _thin(case, chances, rest, sums, row, generator)
                sums.counted[row], sums.opened[row] = sampled + others, sampled[1:]
                miss = 1 / (law.values + 1)  # A sampled device's half pair holds 0 and takes nothing away.
            if case.faults.naive and halves and law.rounds == 2:
                sums.opened[row] -= _half_pairs(law.values, miss, halves, generator)
        return open_release(case, epoch, law, sums, generators)


def _tell(sets: HeldSets, held: Integers, sums: Sums, row: int, generator: np.random.Generator) -> None:
    """Fill in the sums of a run from how many of its counted devices hold each set, (H+1,)."""
    told, devices = sets.told(held, generator), int(held.sum())
    sums.counted[row] = [devices - told[-1], *told[:-1]]
    sums.opened[row] = told[: sums.opened.shape[1]]
    if sums.devices is not None:
        sums.devices[row] = devices


def drawn_outputs(design: Design, histogram: Integers, runs: int, generator: np.random.Generator) -> Integers:
    """Return shape (runs, outputs): releases of a design when all devices of a histogram (V+1,) are counted.

    Raises:
        ScenarioError: as `answer_law` and `levels_noise`.
    """
    law = answer_law(design)
    sums = (design.opened_sums(_opened(law, histogram, generator)) for _ in range(runs))
    noise = (levels_noise(design, design.summed_count, generator) for _ in range(runs))
    return np.array([row + added for row, added in zip(sums, noise, strict=True)], dtype=np.int64)


def _opened(law: AnswerLaw, histogram: Integers, generator: np.random.Generator) -> list[int]:
    """Return the sums of one release before noise; for bits the number of devices comes first."""
    sums: list[int] = _answers(law, histogram, generator).tolist()
    return [int(histogram.sum()), *sums] if law.shape == "bits" else sums


def _rounded(case: Case, held: Integers, generator: np.random.Generator) -> Integers:
    """Return the devices of every state by value, (4, V+1), from those by what they hold, (4, H+1)."""
    rounding = rounding_of(case.population.question)
    return held if rounding is None else rounding.histogram(held, generator)


def _panels(case: Case, epoch: int, law: AnswerLaw, coins: Sequence[np.random.SeedSequence]) -> Integers:
    """Return shape (runs, 4, H+1): of the devices sampled in each run, how many are in which state, by what they
    hold.
    """
    width = case.population.question.held + 1
    flat = np.zeros((len(coins), 4 * width), dtype=np.int64)
    if coins:
        generators = [np.random.Generator(np.random.PCG64(one)) for one in coins]
        for index, _ in states_and_values(case, epoch, law.rounds):
            for row, generator in enumerate(generators):
                sampled = index[generator.random(index.size) < law.hit]
                flat[row] += np.bincount(sampled, minlength=flat.shape[1])
    return flat.reshape(len(coins), 4, width)


def _thin(
    case: Case, chances: Fates, present: Integers, sums: Sums, row: int, generator: np.random.Generator
) -> tuple[Integers, int]:
    """Return the counted devices by value, (V+1,), and the number of half pairs; tally the other devices."""
    tallies = sums.tallies
    tallies["absent"][row] += present[ABSENT].sum()
    tallies["refused"][row] += present[REFUSED].sum()
    counted = present[ON]
    sending = int(present[[ON, HALF]].sum())
    halves = 0
    for state, one in ((ON, chances), (HALF, chances.without_drop_out())):
        if one.counted == 1 or not present[state].any():
            continue
        fallen = _fallen(one, present[state], generator)
        if state == ON:
            counted = counted - fallen.sum(axis=0)
        lost, missed, dropped, late, cut = (int(number) for number in fallen.sum(axis=1))
        tallies["lost"][row] += lost
        tallies["late"][row] += missed + late
        tallies["half_pairs"][row] += dropped + cut
        sending -= lost + missed
        halves += dropped + late + cut
    if case.faults.duplicates:
        tallies["resent"][row] += generator.binomial(sending, float(case.faults.duplicates))
    return counted, halves


def _fallen(chances: Fates, counts: Integers, generator: np.random.Generator) -> Integers:
    """Return shape (5, V+1): the devices lost, missed, dropped, late and cut of every value."""
    parts = [chances.lost, chances.missed, chances.dropped, chances.late, chances.cut]
    # The last column is the remainder, the devices counted.
    drawn = generator.multinomial(counts, [float(part) for part in (*parts, chances.counted)])
    return np.asarray(drawn[:, : len(parts)].T, dtype=np.int64)


def _answers(law: AnswerLaw, counted: Integers, generator: np.random.Generator) -> Integers:
    """Return the sums of the outputs of the counted devices; see the module for the laws."""
    total = int(counted.sum())
    match law.shape:
        case "sampling":
            return np.asarray(generator.binomial(counted[1:], law.hit), dtype=np.int64)
        case "binary":
            yes = int(generator.binomial(counted[1], law.hit)) + int(generator.binomial(counted[0], law.miss))
            return np.array([total - yes, yes], dtype=np.int64)
        case "k-ary":
            kept = generator.binomial(counted, law.hit - law.miss)
            uniform = np.full(law.values + 1, 1 / (law.values + 1))
            return np.asarray(kept + generator.multinomial(total - int(kept.sum()), uniform), dtype=np.int64)
        case "bits":
            miss, hit = law.chances
            own = generator.binomial(counted[1:], hit)
            return np.asarray(own + generator.binomial(total - counted[1:], miss), dtype=np.int64)
        case "truth":
            return counted[1:]


def _half_pairs(values: int, miss: float, halves: int, generator: np.random.Generator) -> Integers:
    """Return what `halves` round-one answers add to the cells 1..V, each cell with chance `miss` per answer."""
    faces = np.full(values + 1, miss)
    faces[0] = 1 - values * miss
    return np.asarray(generator.multinomial(halves, faces)[1:], dtype=np.int64)

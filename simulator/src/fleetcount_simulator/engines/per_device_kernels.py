"""The inner loops of the per-device engine: one device after the other, compiled by Numba and kept on disk.

For simulation only: the generator is fast and predictable, and gives no privacy. No loop allocates or looks up a file.

The generator is counter-based. Word number c of a stream (key, step) is mix(key + c * step) modulo 2^64, with an odd
step and SplitMix64's finalizer mix (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014,
Figure 16). Device i of a run owns the words `WORDS` * i to `WORDS` * i + `WORDS` - 1 of the run's stream of coins and,
for bit vectors, the words V * i to V * i + V - 1 of the stream of bits. So a device's draws depend on the run's seed
and on its number alone: neither on chunks nor on workers.

A word's upper 53 bits are a uniform x in [0, 1), multiples of 2^-53. Word 0 is the answer, 1 the loss, 2 the clock's
error, 3 and 4 the sending times of the rounds, 5 the drop-out, 6 the delay and the outage, 7 the repetition.
"""

from typing import Any, Final

import numpy as np
from fleetcount_kernel.compiling import kept
from numpy.typing import NDArray

from fleetcount_simulator.engines.participation import ABSENT, HALF, REFUSED
from fleetcount_simulator.model import Integers

WORDS: Final = 8
_BLOCK: Final = 512
_PANEL: Final = 4
"""Index of (key, step) of a unit's sampling coins in a stream that has them."""

COUNTED: Final = 0
LOST: Final = 1
MISSED: Final = 2
DROPPED: Final = 3
LATE: Final = 4
CUT: Final = 5
OFF: Final = 6
UNWILLING: Final = 7
FATES: Final = 8
"""What became of a device, as a number below this: counted, lost, missed round one, dropped out, late, cut off by an
outage, absent, refused by its ledger."""


@kept
def _uniform(key: np.uint64, step: np.uint64, number: np.uint64) -> float:
    """Return the number'th uniform x of a stream."""
    word = key + number * step
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    word = word ^ (word >> np.uint64(31))
    return float(np.int64(word >> np.uint64(11)) * 2.0**-53)


@kept
def uniforms(stream: NDArray[np.uint64], first_device: int, devices: int) -> NDArray[np.float64]:
    """Return one uniform x of each of so many devices, from a stream in which each owns one word."""
    found = np.empty(devices, dtype=np.float64)
    for row in range(devices):
        found[row] = _uniform(stream[0], stream[1], np.uint64(first_device + row))
    return found


@kept
def add_pairs(
    truths: NDArray[Any],
    fates: NDArray[np.uint8],
    first_device: int,
    stream: NDArray[np.uint64],
    rate: float,
    first: Integers,
    second: Integers,
    naive: bool,
) -> None:
    """Add the answers of both rounds of Sampling Privacy to the histograms `first` and `second`, shape (V+1,) each.

    x < p is face s: (0, truth); otherwise face floor((x - p)(V+1)/(1-p)), twice. With a unit's coin y in the stream,
    y < p is face s, otherwise face floor(x(V+1)). `fates` is empty when all devices are counted; a half pair adds its
    first answer alone, and only when `naive`.
    """
    # Coins first, a block at a time and without branches, so that several are tossed in one instruction.
    ones, twos = np.empty(_BLOCK, dtype=np.int32), np.empty(_BLOCK, dtype=np.int32)
    for start in range(0, truths.size, _BLOCK):
        block = truths[start : start + _BLOCK]
        _toss(block, first_device + start, stream, rate, first.size, ones, twos)
        for row in range(block.size):
            fate = fates[start + row] if fates.size else COUNTED
            if fate == COUNTED:
                first[ones[row]] += 1
                second[twos[row]] += 1
            elif naive and fate in (DROPPED, LATE, CUT):
                first[ones[row]] += 1


@kept
def _toss(
    truths: NDArray[Any],
    first_device: int,
    stream: NDArray[np.uint64],
    rate: float,
    faces: int,
    ones: NDArray[np.int32],
    twos: NDArray[np.int32],
) -> None:
    """Fill in both answers of every device of a block."""
    key, step = stream[0], stream[1]
    panel = stream.size > _PANEL
    # The sampling coin of a unit has a word of its own, and so the window's word is uniform over the faces alone.
    below = 0.0 if panel else rate
    scale = faces / (1 - below)
    for row in range(truths.size):
        at = np.uint64(first_device + row) * np.uint64(WORDS)
        x = _uniform(key, step, at)
        coin = _uniform(stream[_PANEL], stream[_PANEL + 1], at) if panel else x
        # Rounding may reach the last face plus one. Faces of sampled devices are negative fractions, and masked.
        face = min(np.int32((x - below) * scale), np.int32(faces - 1))
        sampled = -np.int32(coin < rate)
        ones[row] = face & ~sampled
        twos[row] = (face & ~sampled) | (np.int32(truths[row]) & sampled)


@kept
def add_responses(
    truths: NDArray[Any],
    fates: NDArray[np.uint8],
    first_device: int,
    stream: NDArray[np.uint64],
    keep: NDArray[np.float64],
    outputs: Integers,
) -> None:
    """Add the randomized answers 0..V to `outputs`, shape (V+1,); `keep[t]` is P[t | t].

    x < keep is the truth, otherwise one of the V others, each as likely.
    """
    key, step = stream[0], stream[1]
    values = outputs.size - 1
    for row in range(truths.size):
        if fates.size and fates[row] != COUNTED:
            continue
        truth = int(truths[row])
        x = _uniform(key, step, np.uint64(first_device + row) * np.uint64(WORDS))
        other = min(int((x - keep[truth]) / (1 - keep[truth]) * values), values - 1) if x >= keep[truth] else truth
        outputs[other + (x >= keep[truth] and other >= truth)] += 1


@kept
def add_bits(
    truths: NDArray[Any],
    fates: NDArray[np.uint8],
    first_device: int,
    stream: NDArray[np.uint64],
    chances: NDArray[np.float64],
    ones: Integers,
) -> None:
    """Add V randomized bits per device to `ones`, shape (V,); bit v is 1 where x < `chances`[whether it is true, v]."""
    key, step = stream[2], stream[3]
    values = ones.size
    for row in range(truths.size):
        if fates.size and fates[row] != COUNTED:
            continue
        start = np.uint64(first_device + row) * np.uint64(values)
        truth = int(truths[row])
        for cell in range(values):
            chance = chances[1, cell] if cell + 1 == truth else chances[0, cell]
            ones[cell] += _uniform(key, step, start + np.uint64(cell)) < chance


@kept
def draw_fates(
    truths: NDArray[Any],
    presence: NDArray[np.uint8],
    first_device: int,
    stream: NDArray[np.uint64],
    faults: NDArray[np.float64],
    fates: NDArray[np.uint8],
    counted: Integers,
    tally: Integers,
) -> None:
    """Fill in what becomes of every device, in the order of `fleetcount_simulator.faults`.

    Adds the counted ones to the histogram `counted`, shape (V+1,), and all to `tally`, shape (FATES + 1,), by their
    fate, those that sent again at FATES. `faults` is (loss, largest clock error in windows, spread, drop-out, late,
    cut, duplicates, rounds, 1 / aggregators); `presence` is empty when all are on.
    """
    key, step = stream[0], stream[1]
    for row in range(fates.size):
        at = np.uint64(first_device + row) * np.uint64(WORDS)
        state = presence[row] if presence.size else np.uint8(0)
        if state == REFUSED:
            fate = UNWILLING
        elif state == ABSENT:
            fate = OFF
        else:
            fate = _fate(key, step, at, state == HALF, faults)
            if fate not in (LOST, MISSED) and faults[6] > 0:
                tally[FATES] += _uniform(key, step, at + np.uint64(7)) < faults[6]
        fates[row] = fate
        tally[fate] += 1
        if fate == COUNTED:
            counted[truths[row]] += 1


@kept
def _fate(key: np.uint64, step: np.uint64, at: np.uint64, off_later: bool, faults: NDArray[np.float64]) -> int:
    """Return the fate of one device that is on; a word is drawn only where something depends on it."""
    two_rounds = faults[7] == 2
    if faults[0] > 0 and _uniform(key, step, at + np.uint64(1)) < faults[0]:
        return LOST
    # By how many windows the clock is slow. A clock that is slow by less than the margin at the end makes nothing late.
    slow = 0.0
    if faults[1] > 0:
        slow = faults[1] * (2 * _uniform(key, step, at + np.uint64(2)) - 1)
    risky = slow > 1 - faults[2]
    fate = COUNTED
    # The last of k uniform moments is the k-th root of one.
    if slow <= -1 or (risky and faults[2] * _uniform(key, step, at + np.uint64(3)) ** faults[8] + slow > 1):
        fate = MISSED if two_rounds else LATE
    elif two_rounds and (off_later or (faults[3] > 0 and _uniform(key, step, at + np.uint64(5)) < faults[3])):
        fate = DROPPED
    elif two_rounds and risky and faults[2] * _uniform(key, step, at + np.uint64(4)) ** faults[8] + slow > 1:
        fate = LATE
    if fate != COUNTED or faults[4] + faults[5] == 0:
        return fate
    x = _uniform(key, step, at + np.uint64(6))
    if x < faults[4]:
        return LATE
    cut = x < faults[4] + (1 - faults[4]) * faults[5]
    return (CUT if two_rounds else LOST) if cut else COUNTED

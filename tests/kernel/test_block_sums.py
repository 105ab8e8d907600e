"""Sums of products and what is made of them are exact, in both ways, for operands that fill limbs and accumulators."""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fleetcount_kernel import block_sums as ways
from fleetcount_kernel.compiling import compiled
from fleetcount_kernel.field64 import lagrange_coefficients
from fleetcount_kernel.power_sums import TABLE_ROWS, write_powers
from fleetcount_kernel.proofs import ProofBatch, ScalarBatchVerifier, VerifierSetting
from fleetcount_kernel.simd import HAS_MULTIPLY_ADD, WIDTH, Words, load, multiply_add_low, splat, store
from fleetcount_kernel.verifier import KernelBatchVerifier
from fleetcount_protocol.vdaf.field import FIELD64, evaluation_domain
from fleetcount_protocol.vdaf.prio3 import Prio3, prio3_one_hot, prio3_two_round

# The first test on a machine compiles.
pytestmark = pytest.mark.timeout(600)

P = FIELD64.modulus
ALL_ONES = 2**64 - 1
ENTRIES = [ALL_ONES, P - 1, P, 2**32 - 1, ALL_ONES ^ (2**32 - 1), 1 << 63, 2**32, 0]
"""One a lane. A malformed report's words may be p or more; its sums are computed and thrown away."""

FUSED_BOUND = 128
SHORTFALL = ((2**19 << 32) | 1) << 12 | 0xFFF
"""A power that, met with a half of ones, makes both parts cut off as large as they can be (`_whole_sum`)."""

POWERS = [P - 1, SHORTFALL, (1 << 52) - 1, ((1 << 12) - 1) << 52, (1 << 22) - 1, 0xFFF, 1, 0]


def way(sums: Callable[..., Any], write: Callable[..., Any], power_rows: int) -> Callable[[Words, int, int], None]:
    @compiled
    def run(rows: Words, count: int, table: int) -> None:
        """Take entries and powers from the first rows, write x and y behind them."""
        for index in range(2 * count):
            write(rows, table + power_rows * index, load(rows, count + index))
        x, y = sums(rows, 0, count, table, table + power_rows, 2)
        store(rows, 3 * count, x)
        store(rows, 3 * count + 1, y)

    return run


SPLIT = way(ways.split_block_sums, ways.split_write_power, 3)
FUSED = way(ways.fused_block_sums, ways.fused_write_power, 1)
needs_fused = pytest.mark.skipif(not HAS_MULTIPLY_ADD, reason="this machine has no multiplication of 52-bit numbers")
BOTH = [pytest.param(SPLIT, id="split"), pytest.param(FUSED, id="fused", marks=needs_fused)]


def sums(run: Callable[[Words, int, int], None], entries: Any, powers: Any) -> list[list[int]]:
    """Return x and y as the compiled code has them, eight of each."""
    count = len(entries)
    table = 3 * count + 2
    rows = np.zeros((table + 6 * count, WIDTH), dtype=np.uint64)
    rows[:count], rows[count : 3 * count] = entries, powers
    run(rows, count, table)
    return rows[3 * count : 3 * count + 2].tolist()


def exact(entries: Any, powers: Any) -> list[list[int]]:
    """Return x and y by Python's whole numbers."""
    count = len(entries)
    weights = ([powers[step] for step in range(count)], [powers[2 * step + 1] for step in range(count)])
    return [
        [sum(int(entries[step][lane]) * int(form[step][lane]) for step in range(count)) % P for lane in range(WIDTH)]
        for form in weights
    ]


def rows_of(values: Sequence[Sequence[int]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.array(values, dtype=np.uint64)


@pytest.mark.parametrize("run", BOTH)
@pytest.mark.parametrize("count", [1, 2, ways.LARGEST_BLOCK, FUSED_BOUND])
def test_every_extreme_entry_with_every_extreme_power(run: Callable[..., None], count: int) -> None:
    for turn in range(len(POWERS)):
        entries = rows_of([ENTRIES] * count)
        powers = rows_of([POWERS[turn:] + POWERS[:turn]] * (2 * count))

        assert sums(run, entries, powers) == exact(entries, powers)


@compiled
def written(rows: Words) -> None:
    """Write the table of the numbers in the first two rows behind them."""
    for index in range(2):
        ways.write_power(rows, 2 + ways.POWER_ROWS * index, load(rows, index))


def test_a_table_of_constants_is_that_which_compiled_code_writes() -> None:
    for first, second in pairwise(POWERS):
        rows = np.zeros((2 + 2 * ways.POWER_ROWS, WIDTH), dtype=np.uint64)
        rows[:2] = [[first], [second]]
        written(rows)
        assert rows[2:, 0].tolist() == ways.power_rows([first, second])


@pytest.mark.parametrize("run", BOTH)
def test_mixed_and_random_operands(run: Callable[..., None]) -> None:
    draws, count = random.Random(7), ways.LARGEST_BLOCK
    for _ in range(200):
        words = [draws.choice([*ENTRIES, draws.randrange(1 << 64)]) for _ in range(count * WIDTH)]
        weights = [draws.choice([*POWERS, draws.randrange(P)]) for _ in range(2 * count * WIDTH)]
        entries, powers = rows_of([words]).reshape(count, WIDTH), rows_of([weights]).reshape(2 * count, WIDTH)

        assert sums(run, entries, powers) == exact(entries, powers)


def test_the_split_way_bears_what_it_claims() -> None:
    entries, powers = rows_of([[ALL_ONES] * WIDTH] * 1024), rows_of([[P - 1, 2**44 - 1] * 4] * 2048)

    assert sums(SPLIT, entries, powers) == exact(entries, powers)


@needs_fused
def test_the_bound_of_the_fused_way_is_sharp_and_no_block_passes_it() -> None:
    """128 of the worst products are exact and 129 are not: the proof in `_whole_sum` has no slack to lean on."""
    for count, holds in ((FUSED_BOUND, True), (FUSED_BOUND + 1, False)):
        entries, powers = rows_of([[ALL_ONES] * WIDTH] * count), rows_of([[SHORTFALL] * WIDTH] * (2 * count))

        assert (sums(FUSED, entries, powers) == exact(entries, powers)) is holds
    assert ways.LARGEST_BLOCK <= FUSED_BOUND


@compiled
def powers_of(rows: Words, block: int) -> None:
    """Replace the base in row 0 by both giants, and the rows behind the table by the powers in it."""
    giant, giant_of_square = write_powers(rows, load(rows, 0), block, 2)
    store(rows, 0, giant)
    store(rows, 1, giant_of_square)
    for index in range(2 * block):
        store(rows, 2 + TABLE_ROWS + index, ways.read_power(rows, 2 + ways.POWER_ROWS * index))


@pytest.mark.parametrize("block", [1, 2, 3, 4, 5, 20, 63, 64])
def test_the_table_has_every_power_that_a_block_takes(block: int) -> None:
    bases = [0, 1, 2, 2**32 - 1, 2**32, P - 1, P // 3, 7**22 % P]
    rows = np.zeros((2 + TABLE_ROWS + 2 * block, WIDTH), dtype=np.uint64)
    rows[0] = bases
    powers_of(rows, block)

    for exponent in [*range(1, block + 1), *range(2, 2 * block + 1, 2)]:
        assert rows[2 + TABLE_ROWS + exponent - 1].tolist() == [pow(base, exponent, P) for base in bases]
    assert rows[:2].tolist() == [[pow(base, exponent, P) for base in bases] for exponent in (block, 2 * block)]


@compiled
def weights_of(rows: Words, count: int) -> None:
    """Write the coefficients behind the point, the inverse and the nodes."""
    lagrange_coefficients(rows, load(rows, 0), 2, count, load(rows, 1), 2 + count)


@pytest.mark.parametrize("count", [1, 2, 4, 8, 32])
def test_lagrange_coefficients_are_those_of_plain_python_at_any_point(count: int) -> None:
    domain = evaluation_domain(FIELD64, count)
    points = [0, 1, 2, P - 1, domain.nodes[-1], 2**32, P // 2, 7**20 % P]
    rows = np.zeros((2 + 2 * count, WIDTH), dtype=np.uint64)
    rows[0], rows[1] = points, domain.size_inverse
    rows[2 : 2 + count] = np.array(domain.nodes, dtype=np.uint64)[:, np.newaxis]
    weights_of(rows, count)

    for lane, point in enumerate(points):
        assert rows[2 + count :, lane].tolist() == domain.lagrange_coefficients(point)


@pytest.mark.parametrize("prio3", [prio3_two_round(4096, 2), prio3_one_hot(4096, 2)], ids=["two rounds", "one round"])
@pytest.mark.parametrize("word", [P - 1, 2**32 - 1, P - 2**32, ALL_ONES])
def test_the_longest_vectors_of_extreme_words(prio3: Prio3, word: int) -> None:
    draws = random.Random(9)
    words = (prio3.input_share_size(0) - 32) // 8
    batch = ProofBatch(
        nonces=draws.randbytes(32),
        public_shares=draws.randbytes(2 * prio3.public_share_size),
        input_shares=b"".join(word.to_bytes(8, "little") * words + draws.randbytes(32) for _ in range(2)),
    )
    setting = VerifierSetting(prio3=prio3, verify_key=bytes(32), ctx=b"", aggregator=0)

    assert KernelBatchVerifier(setting).verify(batch) == ScalarBatchVerifier(setting).verify(batch)


def test_without_the_instruction_its_use_is_refused_before_llvm_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetcount_kernel.simd.HAS_MULTIPLY_ADD", False)

    @compiled
    def use(rows: Words) -> None:
        store(rows, 0, multiply_add_low(load(rows, 0), splat(np.uint64(3)), splat(np.uint64(5))))

    with pytest.raises(Exception, match="no multiplication of 52-bit numbers"):
        use(np.zeros((1, WIDTH), dtype=np.uint64))

"""The compiled entry points of an aggregator: from groups of eight reports to verifier shares and sums of outputs.

Each report has a lane of its own, and its answer depends on that lane alone. Compiled code only; `verifier` calls it.
"""

from typing import Final

import numpy as np
from fleetcount_protocol.vdaf.field import FIELD64

from fleetcount_kernel.compiling import compiled, entry_point
from fleetcount_kernel.derivations import SEED_ROWS, joint_seed, keep_digest
from fleetcount_kernel.field64 import add, multiply, subtract, sum_limbs
from fleetcount_kernel.plan import Plan
from fleetcount_kernel.queries import query_bits, query_one_hot, query_set, query_two_round, set_excess
from fleetcount_kernel.shares import measurement_share, prepare, valid_lanes
from fleetcount_kernel.simd import (
    WIDTH,
    Lanes,
    Words,
    gather,
    larger,
    load,
    scatter,
    select_less,
    shift_left,
    shift_right,
    splat,
    store,
)

_ZERO: Final = np.uint64(0)
_ONE: Final = np.uint64(1)
_MODULUS: Final = np.uint64(FIELD64.modulus)


@entry_point
def verify_groups(
    plan: Plan, rows: Words, nonces: Words, publics: Words, inputs: Words, count: int, answers: Words
) -> None:
    """Verify a number of reports that is a multiple of eight; the first `count` of them are real, the rest is padding.

    Columns have one row of words for each report. A row of `answers` gets the reason (`shares.prepare`), the seed
    (4 words) and the verifier share (verifiers, then the joint-randomness part); the last two are zeros for a refused
    report. The outputs of real reports without a reason are added to the rows of sums.
    """
    for first in range(0, nonces.shape[0], WIDTH):
        reasons = prepare(plan, nonces, publics, inputs, first, rows)
        valid = valid_lanes(plan, reasons, count - first, rows)
        scatter(answers, first, 0, reasons)
        for index in range(SEED_ROWS):
            scatter(answers, first, 1 + index, load(rows, plan.seeds_at + SEED_ROWS + index) & valid)
        column = 1 + SEED_ROWS
        excess = _add_outputs(plan, valid, rows)
        ones = set_excess(plan, excess[0], rows) if plan.holder > 0 else excess[0]
        for proof in range(plan.proofs):
            if plan.holder > 0:
                query_set(plan, proof, ones, rows)
            elif plan.chunk_length > 0:
                query_bits(plan, proof, rows)
            elif plan.vectors == 1:
                query_one_hot(plan, proof, excess[0], rows)
            else:
                query_two_round(plan, proof, excess, rows)
            for index in range(plan.verifier):
                scatter(answers, first, column + index, load(rows, plan.verifiers_at + index) & valid)
            column += plan.verifier
        for index in range(SEED_ROWS):
            scatter(answers, first, column + index, load(rows, plan.seeds_at + index) & valid)


@entry_point
def add_outputs(plan: Plan, rows: Words, inputs: Words, count: int) -> bool:
    """Add the outputs of the first `count` reports, unverified, to the rows of sums.

    Return False when a word of any share is not below p (at a helper: not below the plan's limit); the sum must then
    not be used.
    """
    largest_explicit = largest_squeezed = splat(_ZERO)
    for first in range(0, inputs.shape[0], WIDTH):
        explicit, squeezed = measurement_share(plan, inputs, first, rows)
        largest_explicit = larger(largest_explicit, explicit)
        largest_squeezed = larger(largest_squeezed, squeezed)
        _add_outputs(plan, valid_lanes(plan, splat(_ZERO), count - first, rows), rows)
    good = select_less(largest_explicit, splat(_MODULUS), splat(_ONE), splat(_ZERO))
    good = select_less(largest_squeezed, load(rows, plan.rejected_from_at), good, splat(_ZERO))
    store(rows, plan.seeds_at, good)
    return bool(rows[plan.seeds_at].min())


@entry_point
def combine_groups(plan: Plan, rows: Words, shares: Words, answers: Words) -> None:
    """Decide about a number of reports that is a multiple of eight from all aggregators' verifier shares.

    `shares` has all rows of aggregator 0, one for each report, then all of aggregator 1, and so on. A row of `answers`
    gets 1 if all proofs hold, else 0, and the joint-randomness seed (4 words), zeros if a proof does not hold.
    """
    count = answers.shape[0]
    for first in range(0, count, WIDTH):
        largest, holds = splat(_ZERO), splat(_ONE)
        for proof in range(plan.proofs):
            largest = larger(largest, _sum_verifiers(plan, proof, shares, first, count, rows))
            holds = holds & _decide(plan, rows)
        # A word of p or more is a second encoding of an element: not canonical, so the report is refused.
        holds = select_less(largest, splat(_MODULUS), holds, splat(_ZERO))
        joint_seed(plan, shares, first, count, plan.verifier * plan.proofs, rows)
        keep_digest(rows, plan.seeds_at)
        scatter(answers, first, 0, holds)
        # All bits set where the proofs hold, no bit elsewhere: a mask instead of a branch.
        keep = splat(_ZERO) - holds
        for index in range(SEED_ROWS):
            scatter(answers, first, 1 + index, load(rows, plan.seeds_at + index) & keep)


@compiled
def _sum_verifiers(plan: Plan, proof: int, shares: Words, first: int, count: int, rows: Words) -> Lanes:
    """Write the sum of all aggregators' verifiers of one proof to the verifier rows; return the largest word seen."""
    largest = splat(_ZERO)
    for index in range(plan.verifier):
        total = splat(_ZERO)
        for aggregator in range(plan.shares):
            word = gather(shares, aggregator * count + first, plan.verifier * proof + index)
            largest = larger(largest, word)
            total = add(total, word)
        store(rows, plan.verifiers_at + index, total)
    return largest


@compiled
def _decide(plan: Plan, rows: Words) -> Lanes:
    """Return 1 where the verifier rows prove a report valid: the first is 0, the last is the gadget's output."""
    first, last = plan.verifiers_at, plan.verifiers_at + plan.verifier - 1
    # Every circuit's gadget is a sum of products of neighbouring wires; of one product for the one-hot circuits.
    gadget = splat(_ZERO)
    for left in range(first + 1, last, 2):
        gadget = add(gadget, multiply(load(rows, left), load(rows, left + 1)))
    wrong = load(rows, first) | (load(rows, last) ^ gadget)
    return select_less(wrong, splat(_ONE), splat(_ONE), splat(_ZERO))


@compiled
def _add_outputs(plan: Plan, valid: Lanes, rows: Words) -> tuple[Lanes, Lanes]:
    """Add the truncated measurement shares to the sums: r2 - r1 on 1..V for two vectors, the vector itself for one.

    Return the sum of each vector's entries less 1/k, for one vector twice the same. Both are computed in one pass,
    because the rows of a long measurement are in the second-level cache and reading them is the cost of a pass.
    """
    first, second, sums = plan.measurement_at, plan.measurement_at + plan.length, plan.sums_at
    if plan.vectors == 1:
        total = high = splat(_ZERO)
        for index in range(plan.outputs):
            entry = load(rows, first + index)
            total, high = total + entry, high + shift_right(entry, 32)
            store(rows, sums + index, add(load(rows, sums + index), entry & valid))
        excess = _excess(plan, total, high, rows)
        return excess, excess
    left_total, right_total = load(rows, first), load(rows, second)
    left_high, right_high = shift_right(left_total, 32), shift_right(right_total, 32)
    for index in range(plan.outputs):
        left, right = load(rows, first + 1 + index), load(rows, second + 1 + index)
        left_total, left_high = left_total + left, left_high + shift_right(left, 32)
        right_total, right_high = right_total + right, right_high + shift_right(right, 32)
        store(rows, sums + index, add(load(rows, sums + index), subtract(right, left) & valid))
    return _excess(plan, left_total, left_high, rows), _excess(plan, right_total, right_high, rows)


@compiled
def _excess(plan: Plan, total: Lanes, high: Lanes, rows: Words) -> Lanes:
    """Return a sum of entries less 1/k, from the sum modulo 2**64 and the sum of the upper halves.

    The lower halves' sum is below 2**64, so that its remainder, `total` less 2**32 `high`, is the number itself.
    """
    low, zero = total - shift_left(high, 32), splat(_ZERO)
    return subtract(sum_limbs(low, zero, zero, high, zero, zero), load(rows, plan.shares_inverse_at))

"""All values that Prio3 derives by hashing, for eight reports (draft-irtf-cfrg-vdaf, section 7.2.6).

Words of a stream are assumed to be below p. Each function that writes a stream returns the largest word of each lane,
with which the caller finds the reports where that is wrong. A digest is written to rows 0..3. Compiled code only.
"""

from typing import Final

import numpy as np

from fleetcount_kernel.compiling import compiled
from fleetcount_kernel.plan import Plan
from fleetcount_kernel.simd import Lanes, Words, gather, load, splat, store
from fleetcount_kernel.sponge import (
    absorb_bytes,
    absorb_rows,
    absorb_word,
    finish,
    squeeze_rows,
    start,
)

SEED_ROWS: Final = 4
"""Words of a seed, blind or joint-randomness part."""


@compiled
def expand_measurement(
    plan: Plan, aggregator: int, seeds: Words, first: int, column: int, count: int, row: int, rows: Words
) -> Lanes:
    """Write the first `count` words of a helper's measurement share to rows `row` and on; return the largest.

    The seeds begin at word `column` of records `first` to `first` + 7.
    """
    start(rows)
    position = absorb_bytes(rows, 0, plan.measurement_head_at, plan.measurement_head_bytes)
    position = absorb_columns(rows, position, seeds, first, column, SEED_ROWS)
    position = absorb_word(rows, position, splat(np.uint64(aggregator)), 1)
    finish(rows, position)
    return squeeze_rows(rows, row, count)


@compiled
def expand_proofs(plan: Plan, aggregator: int, seeds: Words, first: int, column: int, row: int, rows: Words) -> Lanes:
    """Write a helper's share of all proofs to rows `row` and on; return the largest word."""
    start(rows)
    position = absorb_bytes(rows, 0, plan.proof_head_at, plan.proof_head_bytes)
    position = absorb_columns(rows, position, seeds, first, column, SEED_ROWS)
    position = absorb_word(rows, position, splat(np.uint64(plan.proofs + (aggregator << 8))), 2)
    finish(rows, position)
    return squeeze_rows(rows, row, plan.proof * plan.proofs)


@compiled
def hash_part(
    plan: Plan, aggregator: int, blinds: Words, first: int, column: int, nonces: Words, row: int, rows: Words
) -> None:
    """Write an aggregator's joint-randomness part as the digest; its measurement share is in rows `row` and on.

    The blinds begin at word `column` of their records.
    """
    start(rows)
    position = absorb_bytes(rows, 0, plan.joint_part_head_at, plan.joint_part_head_bytes)
    position = absorb_columns(rows, position, blinds, first, column, SEED_ROWS)
    position = absorb_word(rows, position, splat(np.uint64(aggregator)), 1)
    position = absorb_columns(rows, position, nonces, first, 0, 2)
    position = absorb_rows(rows, position, row, plan.measurement)
    finish(rows, position)


@compiled
def joint_seed(plan: Plan, parts: Words, first: int, stride: int, column: int, rows: Words) -> None:
    """Write the joint-randomness seed as the digest, from the parts of all aggregators.

    The part of aggregator j begins at word `column` of record `first` + j `stride`.
    """
    start(rows)
    position = absorb_bytes(rows, 0, plan.joint_seed_head_at, plan.joint_seed_head_bytes)
    for aggregator in range(plan.shares):
        position = absorb_columns(rows, position, parts, first + aggregator * stride, column, SEED_ROWS)
    finish(rows, position)


@compiled
def joint_randomness(plan: Plan, row: int, rows: Words) -> Lanes:
    """Write the joint randomness of all proofs, from the seed in rows `row` and on; return the largest words."""
    start(rows)
    position = absorb_bytes(rows, 0, plan.joint_randomness_head_at, plan.joint_randomness_head_bytes)
    position = absorb_rows(rows, position, row, SEED_ROWS)
    position = absorb_word(rows, position, splat(np.uint64(plan.proofs)), 1)
    finish(rows, position)
    return squeeze_rows(rows, plan.joint_at, plan.joint * plan.proofs)


@compiled
def query_randomness(plan: Plan, nonces: Words, first: int, rows: Words) -> Lanes:
    """Write the query randomness of all proofs; return the largest words."""
    start(rows)
    position = absorb_bytes(rows, 0, plan.query_head_at, plan.query_head_bytes)
    position = absorb_word(rows, position, splat(np.uint64(plan.proofs)), 1)
    position = absorb_columns(rows, position, nonces, first, 0, 2)
    finish(rows, position)
    return squeeze_rows(rows, plan.query_at, plan.query * plan.proofs)


@compiled
def absorb_columns(rows: Words, position: int, records: Words, first: int, column: int, count: int) -> int:
    """Absorb `count` words of each of eight records, from word `column` on; return the new position."""
    for offset in range(count):
        position = absorb_word(rows, position, gather(records, first, column + offset), 8)
    return position


@compiled
def keep_digest(rows: Words, row: int) -> None:
    """Copy the digest, the first four words of the streams, to rows `row` and on."""
    for index in range(SEED_ROWS):
        store(rows, row + index, load(rows, index))

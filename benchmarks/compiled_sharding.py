"""Sharding of eight devices' answers at a time (draft-irtf-cfrg-vdaf, section 7.2.1), for simulated devices.

The same bytes as `Prio3.shard` for the same nonce, randomness and measurement. A real device never runs this: its one
report is the scalar code's. Compiled code; `batch_sharding` calls it.
"""

from typing import Final

import numpy as np
from fleetcount_kernel.compiling import compiled, entry_point
from fleetcount_kernel.derivations import (
    SEED_ROWS,
    absorb_columns,
    expand_measurement,
    expand_proofs,
    hash_part,
    joint_randomness,
    keep_digest,
)
from fleetcount_kernel.field64 import add, multiply, subtract
from fleetcount_kernel.plan import Plan
from fleetcount_kernel.simd import (
    WIDTH,
    Lanes,
    Words,
    gather,
    larger,
    load,
    scatter,
    select_less,
    shift_right,
    splat,
    store,
)
from fleetcount_kernel.sponge import absorb_bytes, absorb_rows, absorb_word, finish, squeeze_rows, start

_ZERO: Final = np.uint64(0)
_ONE: Final = np.uint64(1)


@entry_point
def shard_groups(
    plan: Plan,
    rows: Words,
    nonces: Words,
    rands: Words,
    measurements: Words,
    leaders: Words,
    publics: Words,
    again: Words,
) -> None:
    """Shard a number of measurements that is a multiple of eight.

    A row of `measurements` is what the circuit's `encode` takes: two positions, one position, or the bits. A row of
    `leaders` begins with the leader's measurement and proofs, a row of `publics` is the public share, and the word of
    `again` is 1 when the scalar code must do this report.
    """
    blind = 2 * SEED_ROWS * (plan.shares - 1)
    for first in range(0, nonces.shape[0], WIDTH):
        _encode(plan, measurements, first, plan.measurement, rows)
        largest = splat(_ZERO)
        for helper in range(1, plan.shares):
            largest = larger(largest, _subtract_stream(plan, helper, rands, first, plan.measurement, rows))
            hash_part(plan, helper, rands, first, _seed_column(helper) + SEED_ROWS, nonces, plan.stream_at, rows)
            keep_digest(rows, plan.parts_at + SEED_ROWS * helper)
        hash_part(plan, 0, rands, first, blind, nonces, plan.measurement_at, rows)
        keep_digest(rows, plan.parts_at)
        _joint_seed(plan, rows)
        keep_digest(rows, plan.seeds_at)
        largest = larger(largest, joint_randomness(plan, plan.seeds_at, rows))
        largest = larger(largest, _leader_proofs(plan, rands, measurements, first, rows))
        _scatter_rows(rows, plan.measurement_at, plan.measurement, leaders, first, 0)
        _scatter_rows(rows, plan.proofs_at, plan.proof * plan.proofs, leaders, first, plan.measurement)
        _scatter_rows(rows, plan.parts_at, SEED_ROWS * plan.shares, publics, first, 0)
        _mark(plan, largest, again, first, rows)


@entry_point
def shard_first_groups(plan: Plan, rows: Words, rands: Words, positions: Words, leaders: Words, again: Words) -> None:
    """Make the leader's words of round one, e_r1 less the helpers' streams; `again` as for `shard_groups`."""
    for first in range(0, rands.shape[0], WIDTH):
        _encode(plan, positions, first, plan.length, rows)
        largest = splat(_ZERO)
        for helper in range(1, plan.shares):
            largest = larger(largest, _subtract_stream(plan, helper, rands, first, plan.length, rows))
        _scatter_rows(rows, plan.measurement_at, plan.length, leaders, first, 0)
        _mark(plan, largest, again, first, rows)


@compiled
def _seed_column(helper: int) -> int:
    """Return where a helper's seed begins in the randomness; its blind follows.

    Behind the last helper's come the leader's blind and the prover's seed.
    """
    return 2 * SEED_ROWS * (helper - 1)


@compiled
def _mark(plan: Plan, largest: Lanes, again: Words, first: int, rows: Words) -> None:
    limit = load(rows, plan.rejected_from_at)
    scatter(again, first, 0, select_less(largest, limit, splat(_ZERO), splat(_ONE)))


@compiled
def _encode(plan: Plan, measurements: Words, first: int, count: int, rows: Words) -> None:
    """Write the first `count` elements of the encoded measurements to the measurement rows."""
    for row in range(count):
        entry = gather(measurements, first, row) if plan.chunk_length > 0 else splat(_ZERO)
        store(rows, plan.measurement_at + row, entry)
    if plan.chunk_length == 0:
        for vector in range(count // plan.length):
            for lane in range(WIDTH):
                place = np.int64(measurements[first + lane, vector])
                rows[plan.measurement_at + plan.length * vector + place, lane] = _ONE


@compiled
def _subtract_stream(plan: Plan, helper: int, rands: Words, first: int, count: int, rows: Words) -> Lanes:
    """Write a helper's measurement share to the stream rows and take it from the leader's; return its largest word."""
    largest = expand_measurement(plan, helper, rands, first, _seed_column(helper), count, plan.stream_at, rows)
    _subtract_rows(rows, plan.measurement_at, plan.stream_at, count)
    return largest


@compiled
def _subtract_rows(rows: Words, left: int, right: int, count: int) -> None:
    for index in range(count):
        store(rows, left + index, subtract(load(rows, left + index), load(rows, right + index)))


@compiled
def _scatter_rows(rows: Words, row: int, count: int, records: Words, first: int, column: int) -> None:
    for index in range(count):
        scatter(records, first, column + index, load(rows, row + index))


@compiled
def _joint_seed(plan: Plan, rows: Words) -> None:
    """Leave the joint-randomness seed as the digest."""
    start(rows)
    position = absorb_bytes(rows, 0, plan.joint_seed_head_at, plan.joint_seed_head_bytes)
    finish(rows, absorb_rows(rows, position, plan.parts_at, SEED_ROWS * plan.shares))


@compiled
def _leader_proofs(plan: Plan, rands: Words, measurements: Words, first: int, rows: Words) -> Lanes:
    """Write the leader's share of all proofs: the proofs less every helper's stream; return the largest word drawn."""
    start(rows)
    position = absorb_bytes(rows, 0, plan.prove_head_at, plan.prove_head_bytes)
    position = absorb_columns(rows, position, rands, first, _seed_column(plan.shares) + SEED_ROWS, SEED_ROWS)
    finish(rows, absorb_word(rows, position, splat(np.uint64(plan.proofs)), 1))
    largest = squeeze_rows(rows, plan.prove_at, plan.wires * plan.proofs)
    for proof in range(plan.proofs):
        _prove(plan, proof, measurements, first, rows)
    for helper in range(1, plan.shares):
        stream = expand_proofs(plan, helper, rands, first, _seed_column(helper), plan.stream_at, rows)
        largest = larger(largest, stream)
        _subtract_rows(rows, plan.proofs_at, plan.stream_at, plan.proof * plan.proofs)
    return largest


# The proof itself (section 7.3.3): the gadget applied to the wire polynomials, at twice as many points.


@compiled
def _prove(plan: Plan, proof: int, measurements: Words, first: int, rows: Words) -> None:
    """Write one proof: the wires' seeds, and the values of the gadget polynomial but the last."""
    seeds, proof_row, nodes = plan.prove_at + plan.wires * proof, plan.proofs_at + plan.proof * proof, plan.wire_nodes
    left, right, values = plan.wires_at, plan.wires_at + nodes, proof_row + plan.wires
    for index in range(plan.wires):
        store(rows, proof_row + index, load(rows, seeds + index))
    for index in range(2 * nodes - 1):
        store(rows, values + index, splat(_ZERO))
    for call in range(plan.joint):
        store(rows, plan.powers_at + call, load(rows, plan.joint_at + plan.joint * proof + call))
    for pair in range(plan.wires // 2):
        store(rows, left, load(rows, seeds + 2 * pair))
        store(rows, right, load(rows, seeds + 2 * pair + 1))
        if plan.chunk_length > 0:
            _wire_bits(plan, proof, pair, measurements, first, rows)
        else:
            _wire_one_hot(plan, proof, measurements, first, rows)
        for index in range(nodes):
            _add_product(rows, values + 2 * index, left + index, right + index)
        _move_between(plan, left, rows)
        _move_between(plan, right, rows)
        for index in range(nodes - 1):
            _add_product(rows, values + 2 * index + 1, left + index, right + index)


@compiled
def _add_product(rows: Words, result: int, left: int, right: int) -> None:
    store(rows, result, add(load(rows, result), multiply(load(rows, left), load(rows, right))))


@compiled
def _wire_one_hot(plan: Plan, proof: int, measurements: Words, first: int, rows: Words) -> None:
    """Write the calls' inputs behind the seeds: (x, x), or (x1, x1), (x2, x2), (x1, x2); x is rho**position or 0."""
    left, right = plan.wires_at, plan.wires_at + plan.wire_nodes
    rho = load(rows, plan.joint_at + proof)
    one = _weight(plan, rho, gather(measurements, first, 0))
    store(rows, left + 1, one)
    store(rows, right + 1, one)
    if plan.vectors == 2:
        two = _weight(plan, rho, gather(measurements, first, 1))
        store(rows, left + 2, two)
        store(rows, right + 2, two)
        store(rows, left + 3, one)
        store(rows, right + 3, two)


@compiled
def _weight(plan: Plan, rho: Lanes, position: Lanes) -> Lanes:
    """Return rho**position, and 0 for position 0."""
    power, bit = splat(_ONE), 0
    while plan.length >> bit:
        is_set = shift_right(position, bit) & splat(_ONE)
        power = select_less(splat(_ZERO), is_set, multiply(power, rho), power)
        rho = multiply(rho, rho)
        bit += 1
    return select_less(splat(_ZERO), position, power, splat(_ZERO))


@compiled
def _wire_bits(plan: Plan, proof: int, pair: int, measurements: Words, first: int, rows: Words) -> None:
    """Write all calls' inputs of one pair of wires: rho**(pair + 1) m and m - 1; zeros behind the last call.

    The power rows hold rho**(pair + 1) of each call and are moved on to the next pair.
    """
    left, right = plan.wires_at, plan.wires_at + plan.wire_nodes
    for call in range(plan.calls):
        place = plan.chunk_length * call + pair
        entry = gather(measurements, first, place) if place < plan.measurement else splat(_ZERO)
        power = load(rows, plan.powers_at + call)
        store(rows, left + 1 + call, power & (splat(_ZERO) - entry))
        store(rows, right + 1 + call, subtract(entry, splat(_ONE)))
        rho = load(rows, plan.joint_at + plan.joint * proof + call)
        store(rows, plan.powers_at + call, multiply(power, rho))
    for index in range(1 + plan.calls, plan.wire_nodes):
        store(rows, left + index, splat(_ZERO))
        store(rows, right + index, splat(_ZERO))


@compiled
def _move_between(plan: Plan, first: int, rows: Words) -> None:
    """Replace a polynomial's values at the wire nodes by those half a step further (`field.double_values`).

    In place, without reordering: the first transform leaves the coefficients with reversed indices, the twists stand in
    that order, and the second transform takes them so.
    """
    nodes, roots = plan.wire_nodes, plan.wire_nodes_at
    half = nodes >> 1
    while half > 0:
        stride = nodes // (2 * half)
        for block in range(first, first + nodes, 2 * half):
            for index in range(half):
                upper, lower = load(rows, block + index), load(rows, block + index + half)
                root = load(rows, roots + (nodes - index * stride) % nodes)
                store(rows, block + index, add(upper, lower))
                store(rows, block + index + half, multiply(subtract(upper, lower), root))
        half >>= 1
    for index in range(nodes):
        store(rows, first + index, multiply(load(rows, first + index), load(rows, plan.twists_at + index)))
    half = 1
    while half < nodes:
        stride = nodes // (2 * half)
        for block in range(first, first + nodes, 2 * half):
            for index in range(half):
                upper = load(rows, block + index)
                lower = multiply(load(rows, block + index + half), load(rows, roots + index * stride))
                store(rows, block + index, add(upper, lower))
                store(rows, block + index + half, subtract(upper, lower))
        half <<= 1

"""From the bytes of eight reports to field elements and randomness, with the reasons of reports that are refused.

Source: draft-irtf-cfrg-vdaf, section 7.2.2. A report with a word of p or more in one of its streams (once in 2**32
words) is marked for the scalar verifier. Compiled code only.
"""

from typing import Final

import numpy as np
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.vdaf.field import FIELD64

from fleetcount_kernel.compiling import compiled
from fleetcount_kernel.derivations import (
    SEED_ROWS,
    absorb_columns,
    expand_measurement,
    expand_proofs,
    hash_part,
    joint_randomness,
    keep_digest,
    query_randomness,
)
from fleetcount_kernel.field64 import equals_one, power_of_two_power
from fleetcount_kernel.plan import Plan
from fleetcount_kernel.simd import (
    WIDTH,
    Lanes,
    Words,
    gather,
    larger,
    load,
    load_transposed,
    select_less,
    splat,
    store,
)
from fleetcount_kernel.sponge import absorb_bytes, absorb_rows, finish, start

DO_AGAIN: Final = np.uint64(255)
"""The reason of a report that the scalar verifier must verify; no RejectReason has this number."""

_MODULUS: Final = np.uint64(FIELD64.modulus)
_MALFORMED: Final = np.uint64(RejectReason.MALFORMED.value)
_INVALID_PROOF: Final = np.uint64(RejectReason.INVALID_PROOF.value)
_ZERO: Final = np.uint64(0)
_ONE: Final = np.uint64(1)
_ALL_BITS: Final = np.uint64((1 << 64) - 1)


@compiled
def prepare(plan: Plan, nonces: Words, publics: Words, inputs: Words, first: int, rows: Words) -> Lanes:
    """Write the measurement, proofs, joint, query and seeds rows of eight reports; return their reasons.

    A reason is 0, `DO_AGAIN`, MALFORMED for a leader's word that is not below p, or INVALID_PROOF for a query point
    that is a root of unity of the wires' domain. Rows 4..7 of the seeds are the joint-randomness seed, 0..3 the part.
    """
    explicit, largest = measurement_share(plan, inputs, first, rows)
    aggregator, blind = plan.aggregator, plan.measurement + plan.proof * plan.proofs
    if aggregator > 0:
        blind = SEED_ROWS
        largest = larger(largest, expand_proofs(plan, aggregator, inputs, first, 0, plan.proofs_at, rows))
    hash_part(plan, aggregator, inputs, first, blind, nonces, plan.measurement_at, rows)
    keep_digest(rows, plan.seeds_at)
    _own_joint_seed(plan, publics, first, rows)
    keep_digest(rows, plan.seeds_at + SEED_ROWS)
    largest = larger(largest, joint_randomness(plan, plan.seeds_at + SEED_ROWS, rows))
    largest = larger(largest, query_randomness(plan, nonces, first, rows))
    return judge(plan, explicit, largest, rows)


@compiled
def judge(plan: Plan, explicit: Lanes, largest: Lanes, rows: Words) -> Lanes:
    """Return the reasons that follow from the largest explicit and stream words and from the query points."""
    reasons = splat(_ZERO)
    for proof in range(plan.proofs):
        point = load(rows, plan.query_at + plan.query * (proof + 1) - 1)
        on_domain = equals_one(power_of_two_power(point, plan.wire_nodes))
        reasons = select_less(splat(_ZERO), on_domain, splat(_INVALID_PROOF), reasons)
    reasons = select_less(explicit, splat(_MODULUS), reasons, splat(_MALFORMED))
    return select_less(largest, load(rows, plan.rejected_from_at), reasons, splat(DO_AGAIN))


@compiled
def measurement_share(plan: Plan, inputs: Words, first: int, rows: Words) -> tuple[Lanes, Lanes]:
    """Write the measurement rows, at the leader the proofs too; return the largest explicit and largest stream words.

    A leader's share is explicit, a helper's is the stream of its seed. The words are per lane, 0 for the other kind.
    """
    if plan.aggregator == 0:
        largest = _load_columns(inputs, first, 0, plan.measurement, rows, plan.measurement_at)
        proofs = _load_columns(inputs, first, plan.measurement, plan.proof * plan.proofs, rows, plan.proofs_at)
        return larger(largest, proofs), splat(_ZERO)
    count, row = plan.measurement, plan.measurement_at
    largest = expand_measurement(plan, plan.aggregator, inputs, first, 0, count, row, rows)
    return splat(_ZERO), largest


@compiled
def _load_columns(records: Words, first: int, column: int, count: int, rows: Words, row: int) -> Lanes:
    """Copy `count` words of eight records to rows `row` and on; return the largest of each record."""
    largest = splat(_ZERO)
    eights = count - count % WIDTH
    for offset in range(0, eights, WIDTH):
        load_transposed(records, first, column + offset, rows, row + offset)
        for index in range(row + offset, row + offset + WIDTH):
            largest = larger(largest, load(rows, index))
    for offset in range(eights, count):
        word = gather(records, first, column + offset)
        largest = larger(largest, word)
        store(rows, row + offset, word)
    return largest


@compiled
def valid_lanes(plan: Plan, reasons: Lanes, count: int, rows: Words) -> Lanes:
    """Return all bits set in the first `count` lanes whose reason is 0, and no bit elsewhere."""
    present = select_less(load(rows, plan.lane_numbers_at), splat(np.uint64(count)), splat(_ALL_BITS), splat(_ZERO))
    return select_less(reasons, splat(_ONE), present, splat(_ZERO))


@compiled
def _own_joint_seed(plan: Plan, publics: Words, first: int, rows: Words) -> None:
    """Write the joint-randomness seed as the digest, from the device's parts and this aggregator's computed one."""
    start(rows)
    position = absorb_bytes(rows, 0, plan.joint_seed_head_at, plan.joint_seed_head_bytes)
    for share in range(plan.shares):
        if share == plan.aggregator:
            position = absorb_rows(rows, position, plan.seeds_at, SEED_ROWS)
        else:
            position = absorb_columns(rows, position, publics, first, SEED_ROWS * share, SEED_ROWS)
    finish(rows, position)

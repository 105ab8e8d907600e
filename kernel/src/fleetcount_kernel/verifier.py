"""The compiled batch verifier: a `BatchVerifier` with byte for byte the answers of the scalar one.

It arranges columns in groups of eight. The kernel does not decide about a report with a stream word that is not below
p: the scalar verifier does. This module itself decides about no proof.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.vdaf.field import FIELD64
from fleetcount_protocol.vdaf.prio3 import Prio3

from fleetcount_kernel.compiling import make_ready
from fleetcount_kernel.derivations import SEED_ROWS
from fleetcount_kernel.plan import Layout, Plan, new_plan
from fleetcount_kernel.proofs import (
    NONCE_SIZE,
    ProofBatch,
    ScalarBatchVerifier,
    VerifiedBatch,
    VerifierSetting,
    add_vectors,
    add_words,
)
from fleetcount_kernel.shares import DO_AGAIN
from fleetcount_kernel.simd import WIDTH, Words
from fleetcount_kernel.verifying import add_outputs, combine_groups, verify_groups

_WORD_BYTES: Final = 8
_NOTHING: Final = ProofBatch(nonces=b"", public_shares=b"", input_shares=b"")


class KernelBatchVerifier:
    """Eight reports at a time in compiled code; several threads may use one verifier.

    The first one in a process loads the machine code, the first on a machine compiles it (`compiling`). Tests make
    `rejected_from` smaller than p: then the scalar verifier verifies more reports, with the same answers.

    Raises:
        UsageError: a circuit without compiled code, or a machine that is not little-endian.
    """

    def __init__(self, setting: VerifierSetting, *, rejected_from: int = FIELD64.modulus) -> None:
        if sys.byteorder != "little":
            raise UsageError("the compiled verifier needs a machine that stores the low byte of a word first")
        prio3, aggregator = setting.prio3, setting.aggregator
        self.setting = setting
        self._scalar = ScalarBatchVerifier(setting)
        self._plan, self._layout = new_plan(
            prio3, aggregator, setting.ctx, setting.verify_key, rejected_from=rejected_from
        )
        self._record_sizes = (NONCE_SIZE, prio3.public_share_size, prio3.input_share_size(aggregator))
        make_ready(verify_groups, lambda: self._verify(_NOTHING))
        make_ready(add_outputs, lambda: self._add(_NOTHING))

    @property
    def name(self) -> str:
        """See `BatchVerifier.name`."""
        return "kernel"

    def verify(self, batch: ProofBatch) -> VerifiedBatch:
        """See `BatchVerifier.verify`."""
        self.setting.check(batch)
        answers, total = self._verify(batch)
        reasons = answers[:, 0].astype(np.uint8)
        for row in np.flatnonzero(reasons == DO_AGAIN).tolist():
            again = self._scalar.verify(_one(batch, row))
            reasons[row] = again.reasons[0]
            answers[row, 1:] = np.frombuffer(again.seeds + again.verifier_shares, dtype=np.uint64)
            total = add_vectors(total, again.output_sum)
        return VerifiedBatch(
            reasons=reasons.tobytes(),
            seeds=answers[:, 1 : 1 + SEED_ROWS].tobytes(),
            verifier_shares=answers[:, 1 + SEED_ROWS :].tobytes(),
            output_sum=total,
        )

    def sum_outputs(self, batch: ProofBatch) -> bytes:
        """See `BatchVerifier.sum_outputs`."""
        self.setting.check(batch)
        total, decided = self._add(batch)
        # Not decided once in 2**32 words: then the scalar verifier adds the whole batch.
        return total if decided else self._scalar.sum_outputs(batch)

    def _verify(self, batch: ProofBatch) -> tuple[Words, bytes]:
        """Return the answers, uint64 with one row for each report, and the sum of the outputs of the valid reports."""
        plan, first = self._plan, 0
        width = 1 + 2 * SEED_ROWS + plan.verifier * plan.proofs
        answers = np.empty((batch.count + -batch.count % WIDTH, width), dtype=np.uint64)
        with self._layout.memory() as memory:
            for count, (nonces, publics, inputs) in self._parts(batch):
                part = answers[first : first + len(nonces)]
                verify_groups(plan, memory, nonces, publics, inputs, count, part)
                first += count
            return answers[: batch.count], self._total(memory)

    def _add(self, batch: ProofBatch) -> tuple[bytes, bool]:
        """Return the sum of all outputs, and whether the kernel could decide about every word; else it is invalid."""
        decided = True
        with self._layout.memory() as memory:
            for count, (_, _, inputs) in self._parts(batch):
                decided &= bool(add_outputs(self._plan, memory, inputs, count))
            return self._total(memory), decided

    def _parts(self, batch: ProofBatch) -> Iterator[tuple[int, list[Words]]]:
        """Yield the number of reports and the columns of the whole groups, then of the last group.

        The last group is padded with copies of its last report. The first part may be empty.
        """
        columns = (batch.nonces, batch.public_shares, batch.input_shares)
        left = batch.count % WIDTH
        whole = batch.count - left
        pairs = list(zip(columns, self._record_sizes, strict=True))
        yield whole, [_records(column, size, whole) for column, size in pairs]
        if left:
            tails = [column[whole * size :] + column[-size:] * (WIDTH - left) for column, size in pairs]
            yield left, [_records(tail, size, WIDTH) for tail, (_, size) in zip(tails, pairs, strict=True)]

    def _total(self, memory: Words) -> bytes:
        """Return the sums of the opened outputs over all lanes, encoded."""
        sums = np.ascontiguousarray(memory[self._plan.sums_at :][self.setting.opened].T)
        while len(sums) > 1:
            half = len(sums) // 2
            sums = add_words(sums[:half], sums[half:])
        return sums.tobytes()


def combine_batch(prio3: Prio3, ctx: bytes, shares: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return (messages, holds) of n reports from all aggregators' verifier shares; the caller has checked their sizes.

    `shares` has one column of n x `Prio3.verifier_share_size` bytes for each aggregator. `messages` n x 32: the
    joint-randomness seed, zeros where the proof does not hold; `holds` n bytes of 0 or 1.
    """
    make_ready(combine_groups, lambda: _combine(prio3, ctx, [b""] * prio3.shares))
    return _combine(prio3, ctx, shares)


def _combine(prio3: Prio3, ctx: bytes, shares: Sequence[bytes]) -> tuple[bytes, bytes]:
    plan, layout = _combining_plan(prio3, ctx)
    size = prio3.verifier_share_size
    count = len(shares[0]) // size
    groups = count + -count % WIDTH
    joined = b"".join(column + bytes((groups - count) * size) for column in shares)
    answers = np.empty((groups, 1 + SEED_ROWS), dtype=np.uint64)
    with layout.memory() as memory:
        combine_groups(plan, memory, _records(joined, size, groups * prio3.shares), answers)
    return answers[:count, 1:].tobytes(), answers[:count, 0].astype(np.uint8).tobytes()


@lru_cache(maxsize=16)
def _combining_plan(prio3: Prio3, ctx: bytes) -> tuple[Plan, Layout]:
    return new_plan(prio3, 0, ctx, b"")


def _one(batch: ProofBatch, row: int) -> ProofBatch:
    columns = (batch.nonces, batch.public_shares, batch.input_shares)
    nonce, public, share = (_record(column, row, batch.count) for column in columns)
    return ProofBatch(nonces=nonce, public_shares=public, input_shares=share)


def _record(column: bytes, row: int, count: int) -> bytes:
    size = len(column) // count
    return column[row * size : (row + 1) * size]


def _records(column: bytes, size: int, count: int) -> Words:
    """Return the first `count` records as rows of words, read-only as compiled code expects them."""
    words = size // _WORD_BYTES
    return np.frombuffer(column, dtype=np.uint64, count=count * words).reshape(count, words)

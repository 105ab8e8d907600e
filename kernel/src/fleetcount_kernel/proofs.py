"""Verification of many reports at once at one aggregator: the batches, the interface and the scalar implementation.

A batch is plain bytes with one record of fixed size for each report, so that it can be sent to another process
unchanged. A bad report gives a reason in the answer, never an exception, and does not change the answer for another
report. The module neither stores, sends nor logs anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from fleetcount_protocol.errors import DecodeError, UsageError, VerificationFailed
from fleetcount_protocol.vdaf.field import FIELD64, SEED_SIZE
from fleetcount_protocol.vdaf.prio3 import Prio3, VerifyState
from fleetcount_protocol.vdaf.verifier import RejectedProof, ReportToVerify, ScalarVerifier
from fleetcount_protocol.window.window import Window, context_of, opened_outputs, prio3_for
from numpy.typing import NDArray

NONCE_SIZE: Final = 16
"""Bytes of a report's nonce, which is the report id."""

VERIFIED: Final = 0
"""The byte of `VerifiedBatch.reasons` that means "no reason"; `RejectReason` never uses it."""


USAGES: Final = {
    "measurement": 1,
    "proof": 2,
    "joint_randomness": 3,
    "prove": 4,
    "query": 5,
    "joint_seed": 6,
    "joint_part": 7,
}
"""The usage numbers of the draft's hashes (draft-irtf-cfrg-vdaf, section 7.2.6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofBatch:
    """Complete reports at one aggregator: three columns, each with one record of fixed size for each of n reports.

    `nonces` n x 16 bytes, `public_shares` n x `Prio3.public_share_size`, `input_shares` n x `Prio3.input_share_size` of
    this aggregator (both instalments joined).

    Raises:
        UsageError: the nonces have a length that is not a multiple of 16.
    """

    nonces: bytes
    public_shares: bytes
    input_shares: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.nonces) % NONCE_SIZE:
            raise UsageError(f"the nonces have {len(self.nonces)} bytes, not a multiple of {NONCE_SIZE}")

    @property
    def count(self) -> int:
        """The number of reports, n."""
        return len(self.nonces) // NONCE_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedBatch:
    """The result of the first step of verification for a batch of n reports, in their order.

    `reasons` n bytes: 0 (`VERIFIED`), or the number of a `RejectReason`: MALFORMED or INVALID_PROOF.
    `seeds` n x 32: the joint-randomness seed that the verifier message must equal (`Prio3.verify_next`).
    `verifier_shares` n x `Prio3.verifier_share_size`. Both are zeros where the report is refused.
    `output_sum`: the field vector of the outputs the window opens, summed over the verified reports of this batch.
    """

    reasons: bytes
    seeds: bytes = field(repr=False)
    verifier_shares: bytes
    output_sum: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSetting:
    """The parameters of verification for one window at one aggregator.

    `verify_key` is the window's 32 bytes, `ctx` its context, `aggregator` this party's position (0 is the leader),
    `opened` the slice of an output share that is summed.

    Raises:
        UsageError: an algorithm without joint randomness or over another field than Field64, a key of the wrong size,
            or a position outside 0..shares-1.
    """

    prio3: Prio3
    verify_key: bytes = field(repr=False)
    ctx: bytes
    aggregator: int
    opened: slice = field(default_factory=lambda: slice(None), hash=False)

    def __post_init__(self) -> None:
        self.prio3.input_share_size(self.aggregator)
        if not self.prio3.uses_joint_rand or self.prio3.field != FIELD64:
            raise UsageError(f"circuit {self.prio3.circuit.name} over {self.prio3.field.name} is not a window's")
        if len(self.verify_key) != self.prio3.verify_key_size:
            raise UsageError(f"the verify key has {len(self.verify_key)} bytes, not {self.prio3.verify_key_size}")

    @property
    def output_sum_size(self) -> int:
        """Bytes of `VerifiedBatch.output_sum`."""
        return FIELD64.encoded_size * len(range(self.prio3.circuit.output_length)[self.opened])

    def check(self, batch: ProofBatch) -> None:
        """Check that every column of the batch has one record for each report.

        Raises:
            UsageError: a column of another size.
        """
        prio3 = self.prio3
        for name, column, size in (
            ("public shares", batch.public_shares, prio3.public_share_size),
            ("input shares", batch.input_shares, prio3.input_share_size(self.aggregator)),
        ):
            if len(column) != batch.count * size:
                raise UsageError(f"the {name} have {len(column)} bytes, not {batch.count} times {size}")


def setting_of(window: Window, verify_key: bytes, aggregator: int) -> VerifierSetting:
    """Return the setting of a window at the aggregator in position `aggregator`."""
    return VerifierSetting(
        prio3=prio3_for(window),
        verify_key=verify_key,
        ctx=context_of(window),
        aggregator=aggregator,
        opened=opened_outputs(window),
    )


class BatchVerifier(Protocol):
    """Runs `Prio3.verify_init` and adds the outputs for one window at one aggregator. All implementations agree."""

    @property
    def name(self) -> str:
        """The implementation: "scalar", "arrays" or "kernel"."""
        ...

    def verify(self, batch: ProofBatch) -> VerifiedBatch:
        """Return the answer for every report.

        Raises:
            UsageError: a column of the wrong size; never because of a report.
        """
        ...

    def sum_outputs(self, batch: ProofBatch) -> bytes:
        """Return the sum of the opened outputs of all reports of the batch, without a check of their proofs.

        Used to subtract single reports, which were verified before, from a sum.

        Raises:
            UsageError: a column of the wrong size, or a report that is not canonical and so is in no sum.
        """
        ...


@dataclass(frozen=True, slots=True)
class ScalarBatchVerifier:
    """One report after the other in plain Python: for a few reports, and the oracle of every other."""

    setting: VerifierSetting

    @property
    def name(self) -> str:
        """See `BatchVerifier.name`."""
        return "scalar"

    def verify(self, batch: ProofBatch) -> VerifiedBatch:
        """See `BatchVerifier.verify`."""
        self.setting.check(batch)
        setting, prio3 = self.setting, self.setting.prio3
        verifier = ScalarVerifier(
            prio3=prio3, verify_key=setting.verify_key, ctx=setting.ctx, aggregator=setting.aggregator
        )
        no_seed, no_share = bytes(SEED_SIZE), bytes(prio3.verifier_share_size)
        reasons, seeds, shares = bytearray(), [], []
        total = bytes(setting.output_sum_size)
        for answer in verifier.verify_batch(self._reports(batch)):
            if isinstance(answer, RejectedProof):
                reasons.append(answer.reason.value)
                seeds.append(no_seed)
                shares.append(no_share)
                continue
            state = VerifyState.decode(prio3, answer.state)
            reasons.append(VERIFIED)
            seeds.append(state.joint_rand_seed)
            shares.append(answer.verifier_share)
            total = add_vectors(total, self._opened(prio3.decode_output_share(state.output_share)))
        return VerifiedBatch(
            reasons=bytes(reasons), seeds=b"".join(seeds), verifier_shares=b"".join(shares), output_sum=total
        )

    def sum_outputs(self, batch: ProofBatch) -> bytes:
        """See `BatchVerifier.sum_outputs`."""
        self.setting.check(batch)
        total = bytes(self.setting.output_sum_size)
        for report in self._reports(batch):
            total = add_vectors(total, self._opened(self._output_share(report.input_share)))
        return total

    def _output_share(self, input_share: bytes) -> list[int]:
        setting, circuit = self.setting, self.setting.prio3.circuit
        if setting.aggregator > 0:
            seed = input_share[:SEED_SIZE]
            return circuit.truncate(setting.prio3.helper_measurement_share(setting.ctx, setting.aggregator, seed))
        words = len(input_share) // FIELD64.encoded_size
        try:
            # The share ends with the blind, which is not a vector of field elements.
            explicit = FIELD64.decode_vector(input_share[:-SEED_SIZE], words - SEED_SIZE // FIELD64.encoded_size)
        except DecodeError as error:
            raise UsageError(f"a report that cannot be in a sum: {error}") from None
        return circuit.truncate(explicit[: circuit.measurement_length])

    def _opened(self, output_share: Sequence[int]) -> bytes:
        return FIELD64.encode_vector(output_share[self.setting.opened])

    def _reports(self, batch: ProofBatch) -> list[ReportToVerify]:
        count = batch.count
        columns = (batch.nonces, batch.public_shares, batch.input_shares)
        split = [records(column, count) for column in columns]
        return [ReportToVerify(nonce=n, public_share=p, input_share=s) for n, p, s in zip(*split, strict=True)]


def combine_one_by_one(prio3: Prio3, ctx: bytes, shares: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the same as `verifier.combine_batch`, report by report in plain Python."""
    count = len(shares[0]) // prio3.verifier_share_size
    messages: list[bytes] = []
    holds = bytearray()
    for report in zip(*(records(column, count) for column in shares), strict=True):
        try:
            messages.append(prio3.combine_verifier_shares(ctx, report))
            holds.append(1)
        except (VerificationFailed, DecodeError):
            messages.append(bytes(SEED_SIZE))
            holds.append(0)
    return b"".join(messages), bytes(holds)


def add_vectors(left: bytes, right: bytes) -> bytes:
    """Return the sum of two encoded Field64 vectors, element by element.

    Raises:
        UsageError: the lengths differ, or a word is not below p.
    """
    return add_words(*_words(left, right)).astype("<u8").tobytes()


def add_words(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return left + right modulo p, uint64 of the same shape; the caller guarantees that all words are below p."""
    total = left + right
    # left + right - p is below p and equals left + right + (2**64 - p) mod 2**64, whether or not the sum passed 2**64.
    passed = (total < left) | (total >= _MODULUS)
    return np.where(passed, total + _COMPLEMENT, total)


def subtract_vectors(left: bytes, right: bytes) -> bytes:
    """Return left - right of two encoded Field64 vectors, element by element.

    Raises:
        UsageError: the lengths differ, or a word is not below p.
    """
    a, b = _words(left, right)
    difference = a - b
    return np.where(a < b, difference - _COMPLEMENT, difference).astype("<u8").tobytes()


_MODULUS: Final = np.uint64(FIELD64.modulus)
_COMPLEMENT: Final = np.uint64((1 << 64) - FIELD64.modulus)


def _words(left: bytes, right: bytes) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    if len(left) != len(right) or len(left) % FIELD64.encoded_size:
        raise UsageError(f"vectors have {len(left)} and {len(right)} bytes, not one multiple of 8")
    a, b = (np.frombuffer(vector, dtype="<u8") for vector in (left, right))
    if (a >= _MODULUS).any() or (b >= _MODULUS).any():
        raise UsageError(f"a word of a vector is not below {FIELD64.modulus}")
    return a.astype(np.uint64), b.astype(np.uint64)


def records(column: bytes, count: int) -> list[bytes]:
    """Return the column's `count` records of one size."""
    size = len(column) // count if count else 0
    return [column[at * size : (at + 1) * size] for at in range(count)]

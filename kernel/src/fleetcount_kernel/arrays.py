"""The batch verifier without compiled code: the protocol's own circuits, run once for all reports on columns of NumPy.

For windows too small to load compiled code for, and for machines that have none. A report with a stream word that is
not below p, and one the draft aborts on, the scalar verifier decides. This module itself decides about no proof.
"""

from collections.abc import Sequence
from typing import Final, cast

import numpy as np
from fleetcount_protocol.vdaf.field import FIELD64, SEED_SIZE, domain_separation_tag
from numpy.typing import NDArray

from fleetcount_kernel.columns import Column, Words
from fleetcount_kernel.proofs import (
    USAGES,
    ProofBatch,
    ScalarBatchVerifier,
    VerifiedBatch,
    VerifierSetting,
    add_vectors,
    records,
)

WORTH_ARRAYS: Final = 48
"""From so many reports on columns are faster: an operation of NumPy takes half a microsecond however few there are."""
_MOST_WORDS: Final = 1 << 20
"""Words of measurements at once, 8 MiB."""
_LOW_HALF: Final = np.uint64((1 << 32) - 1)
_HALF: Final = np.uint64(32)


class ArrayBatchVerifier:
    """Byte for byte the answers of the scalar verifier, for many reports at a time; any setting that it takes.

    Fewer than `worth` reports the scalar verifier verifies. Tests make `rejected_from` smaller than p: then it verifies
    more of the others too, with the same answers.
    """

    def __init__(
        self, setting: VerifierSetting, *, worth: int = WORTH_ARRAYS, rejected_from: int = FIELD64.modulus
    ) -> None:
        prio3, flp = setting.prio3, setting.prio3.flp
        self.setting = setting
        self._worth = worth
        self._rejected_from = np.uint64(rejected_from)
        self._scalar = ScalarBatchVerifier(setting)
        self._tags = {
            name: domain_separation_tag(prio3.algorithm_id, usage, setting.ctx) for name, usage in USAGES.items()
        }
        self._measurement_bytes = FIELD64.encoded_size * prio3.circuit.measurement_length
        self._proofs_bytes, self._query_bytes, self._joint_bytes = (
            FIELD64.encoded_size * prio3.proofs * length
            for length in (flp.proof_length, flp.query_rand_length, prio3.circuit.joint_rand_length)
        )

    @property
    def name(self) -> str:
        """See `BatchVerifier.name`."""
        return "arrays"

    def verify(self, batch: ProofBatch) -> VerifiedBatch:
        """See `BatchVerifier.verify`."""
        self.setting.check(batch)
        at_once = max(1, self._worth, _MOST_WORDS // self.setting.prio3.circuit.measurement_length)
        first, *others = [self._verify(part) for part in _parts(batch, at_once)]
        for other in others:
            first = VerifiedBatch(
                reasons=first.reasons + other.reasons,
                seeds=first.seeds + other.seeds,
                verifier_shares=first.verifier_shares + other.verifier_shares,
                output_sum=add_vectors(first.output_sum, other.output_sum),
            )
        return first

    def sum_outputs(self, batch: ProofBatch) -> bytes:
        """See `BatchVerifier.sum_outputs`; report by report, since only single ones are subtracted."""
        return self._scalar.sum_outputs(batch)

    def _verify(self, batch: ProofBatch) -> VerifiedBatch:
        count = batch.count
        if count < max(1, self._worth):
            return self._scalar.verify(batch)
        columns = (batch.nonces, batch.public_shares, batch.input_shares)
        split = zip(*(records(column, count) for column in columns), strict=True)
        *streams, parts, seeds = zip(*(self._derive(*report) for report in split), strict=True)
        measurement, *by_proof = (np.frombuffer(b"".join(stream), dtype="<u8").reshape(count, -1) for stream in streams)
        odd = np.any([(words >= self._rejected_from).any(axis=1) for words in (measurement, *by_proof)], axis=0)
        shape = (count, self.setting.prio3.proofs, -1)
        vectors = [measurement.T, *(words.reshape(shape).transpose(2, 1, 0) for words in by_proof)]
        elements = [words.astype(np.uint64, order="C") for words in vectors]
        points = Column(elements[-1][-1])
        odd |= (pow(points, self.setting.prio3.flp.wire_length, FIELD64.modulus).words == 1).any(axis=0)
        # What the scalar verifier decides is zero here: canonical, no root of unity, and nothing in the sum.
        for words in elements:
            words[..., odd] = 0
        verifiers, total = self._query(elements, count)
        shares = np.concatenate([verifiers, _bytes(parts)], axis=1)
        reasons, seed_rows = np.zeros((count, 1), dtype=np.uint8), _bytes(seeds)
        for row in np.flatnonzero(odd).tolist():
            again = self._scalar.verify(_rows(batch, row, row + 1))
            for rows, answer in ((reasons, again.reasons), (seed_rows, again.seeds), (shares, again.verifier_shares)):
                rows[row] = np.frombuffer(answer, dtype=np.uint8)
            total = add_vectors(total, again.output_sum)
        return VerifiedBatch(
            reasons=reasons.tobytes(),
            seeds=seed_rows.tobytes(),
            verifier_shares=shares.tobytes(),
            output_sum=total,
        )

    def _derive(self, nonce: bytes, public_share: bytes, input_share: bytes) -> tuple[bytes, ...]:
        """Return the streams of one report (draft, section 7.2.6): measurement share, proofs, joint randomness, query.

        Behind them this aggregator's part of the joint randomness, and the seed. Words of streams are not checked.
        """
        setting, xof, tags = self.setting, self.setting.prio3.xof, self._tags
        own, proofs = bytes((setting.aggregator,)), bytes((setting.prio3.proofs,))
        if setting.aggregator:
            seed = input_share[:SEED_SIZE]
            measurement = xof(seed, tags["measurement"], own).next(self._measurement_bytes)
            proof = xof(seed, tags["proof"], proofs + own).next(self._proofs_bytes)
        else:
            split = self._measurement_bytes
            measurement, proof = input_share[:split], input_share[split:-SEED_SIZE]
        blind, at = input_share[-SEED_SIZE:], setting.aggregator * SEED_SIZE
        part = xof(blind, tags["joint_part"], own + nonce + measurement).next(SEED_SIZE)
        parts = public_share[:at] + part + public_share[at + SEED_SIZE :]
        joint_seed = xof(bytes(SEED_SIZE), tags["joint_seed"], parts).next(SEED_SIZE)
        joint = xof(joint_seed, tags["joint_randomness"], proofs).next(self._joint_bytes)
        query = xof(setting.verify_key, tags["query"], proofs + nonce).next(self._query_bytes)
        return measurement, proof, joint, query, part, joint_seed

    def _query(self, elements: Sequence[Words], count: int) -> tuple[NDArray[np.uint8], bytes]:
        """Return the verifiers, one row of bytes a report, and the sum of the opened outputs."""
        prio3, opened = self.setting.prio3, self.setting.opened
        # Columns are no integers, but all that the protocol does to its elements they can do.
        measurement, proof, joint, query = (cast("list[int]", [Column(row) for row in words]) for words in elements)
        inverse = FIELD64.inverse(prio3.shares)
        found = cast("list[Column]", prio3.flp.query(measurement, proof, query, joint, inverse))
        shape = (prio3.proofs, count)
        verifiers = np.stack([np.broadcast_to(one.words, shape) for one in found]).transpose(2, 1, 0)
        outputs = cast("list[Column]", prio3.circuit.truncate(measurement)[opened])
        sums = [(int((one.words >> _HALF).sum()) << 32) + int((one.words & _LOW_HALF).sum()) for one in outputs]
        total = FIELD64.encode_vector([one % FIELD64.modulus for one in sums])
        return np.frombuffer(verifiers.astype("<u8").tobytes(), dtype=np.uint8).reshape(count, -1), total


def _bytes(column: Sequence[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(bytearray(b"".join(column)), dtype=np.uint8).reshape(len(column), -1)


def _parts(batch: ProofBatch, at_once: int) -> list[ProofBatch]:
    """Return the batch in parts of about as many reports; one part, where it is empty."""
    return [_rows(batch, start, start + at_once) for start in range(0, max(1, batch.count), at_once)]


def _rows(batch: ProofBatch, first: int, end: int) -> ProofBatch:
    """Return some reports of a batch."""
    columns = (batch.nonces, batch.public_shares, batch.input_shares)
    sizes = [len(column) // max(1, batch.count) for column in columns]
    # By their places: a batch of nothing but bad reports asks for each of them.
    nonces, publics, inputs = (column[first * size : end * size] for column, size in zip(columns, sizes, strict=True))
    return ProofBatch(nonces=nonces, public_shares=publics, input_shares=inputs)

"""Prio3 of draft-irtf-cfrg-vdaf, section 7: shares of a measurement, the proof that it is valid, its verification.

Arguments and results are bytes, exactly those of the draft; two rounds send a share in two parts. Randomness is an
argument; the module has no state, no log and no clock.
"""

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final

from fleetcount_protocol.errors import DecodeError, UsageError, VerificationFailed
from fleetcount_protocol.vdaf.circuits import Multihot, OneHot, SumVec, TwoRoundOneHot
from fleetcount_protocol.vdaf.field import (
    FIELD64,
    SEED_SIZE,
    PrimeField,
    Xof,
    XofTurboShake128,
    derive_seed,
    domain_separation_tag,
    next_power_of_two,
    next_vector,
)
from fleetcount_protocol.vdaf.flp import Circuit, Flp
from fleetcount_protocol.vdaf.one_hot_proofs import one_hot_proof, positions_of
from fleetcount_protocol.vdaf.set_proofs import set_prover

ALGORITHM_IDS: Final = {
    "SumVecWithMultiproof": 0xFFFFFFFF,
    "TwoRoundOneHot": 0xFFFF1001,
    "OneHot": 0xFFFF1002,
    "Multihot": 0xFFFF1003,
}
"""Algorithm identifiers (draft, section 10); the last three are fleetcount's own, from the private range."""

_MIN_SHARES: Final = 2
_MAX_SHARES: Final = 255
_WINDOW_PROOFS: Final = 3

_USAGE_MEAS_SHARE: Final = 1
_USAGE_PROOF_SHARE: Final = 2
_USAGE_JOINT_RANDOMNESS: Final = 3
_USAGE_PROVE_RANDOMNESS: Final = 4
_USAGE_QUERY_RANDOMNESS: Final = 5
_USAGE_JOINT_RAND_SEED: Final = 6
_USAGE_JOINT_RAND_PART: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyState:
    """The state of a report at an aggregator between its verifier share and the verifier message.

    `output_share` canonical field elements, encoded; `joint_rand_seed` the corrected seed, empty without joint
    randomness. The output share is a secret share of a device's answer.
    """

    output_share: bytes = field(repr=False)
    joint_rand_seed: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Return the state as bytes for the aggregator's own store: output share, then seed."""
        return self.output_share + self.joint_rand_seed

    @classmethod
    def decode(cls, prio3: "Prio3", encoded: bytes) -> "VerifyState":
        """Return the state that `encode` wrote under the same algorithm.

        Raises:
            DecodeError: the bytes are not such a state.
        """
        split = prio3.output_share_size
        seed_size = SEED_SIZE if prio3.uses_joint_rand else 0
        if len(encoded) != split + seed_size:
            raise DecodeError(f"a verify state has {len(encoded)} bytes, not {split + seed_size}")
        prio3.decode_output_share(encoded[:split])
        return cls(output_share=encoded[:split], joint_rand_seed=encoded[split:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Prio3:
    """One Prio3 algorithm: circuit, identifier, number of shares (2..255) and of proofs (1..255).

    Aggregator 0 (the leader) gets explicit elements, every other a 32-byte seed. With Field64 and joint randomness the
    draft requires at least three proofs, which is the default of the functions at the end of this module.

    Raises:
        UsageError: an argument outside its range.
    """

    circuit: Circuit
    algorithm_id: int
    shares: int
    proofs: int = 1
    xof: Xof = XofTurboShake128

    def __post_init__(self) -> None:
        if not _MIN_SHARES <= self.shares <= _MAX_SHARES:
            raise UsageError(f"the number of shares is {self.shares}, not {_MIN_SHARES}..{_MAX_SHARES}")
        if not 1 <= self.proofs <= _MAX_SHARES:
            raise UsageError(f"the number of proofs is {self.proofs}, not 1..{_MAX_SHARES}")
        if not 0 <= self.algorithm_id < 1 << 32:
            raise UsageError(f"the algorithm id is {self.algorithm_id}, not 0..{(1 << 32) - 1}")

    @property
    def field(self) -> PrimeField:
        """The circuit's field."""
        return self.circuit.field

    @property
    def flp(self) -> Flp:
        """The proof system of the circuit."""
        return Flp(self.circuit)

    @property
    def uses_joint_rand(self) -> bool:
        """Whether the proofs take randomness derived from all shares."""
        return self.circuit.joint_rand_length > 0

    # Sizes in bytes.

    @property
    def nonce_size(self) -> int:
        """The report's nonce."""
        return 16

    @property
    def verify_key_size(self) -> int:
        """The aggregators' common secret."""
        return SEED_SIZE

    @property
    def rand_size(self) -> int:
        """The randomness `shard` consumes: a seed a share, and a blind a share with joint randomness."""
        return SEED_SIZE * self.shares * (2 if self.uses_joint_rand else 1)

    @property
    def public_share_size(self) -> int:
        """One joint-randomness part a share, or nothing."""
        return SEED_SIZE * self.shares if self.uses_joint_rand else 0

    def input_share_size(self, aggregator: int) -> int:
        """Return the size in bytes of the input share of an aggregator, 0..shares-1 (0 is the leader).

        Raises:
            UsageError: the aggregator is not in this range.
        """
        if not 0 <= aggregator < self.shares:
            raise UsageError(f"the aggregator is {aggregator}, not 0..{self.shares - 1}")
        blind = SEED_SIZE if self.uses_joint_rand else 0
        return (self._explicit_size if aggregator == 0 else SEED_SIZE) + blind

    @property
    def verifier_share_size(self) -> int:
        """The verifiers of all proofs and the joint-randomness part."""
        part = SEED_SIZE if self.uses_joint_rand else 0
        return self.field.encoded_size * self.flp.verifier_length * self.proofs + part

    @property
    def verifier_message_size(self) -> int:
        """The joint-randomness seed, or nothing."""
        return SEED_SIZE if self.uses_joint_rand else 0

    @property
    def output_share_size(self) -> int:
        """An output share or an aggregate share."""
        return self.field.encoded_size * self.circuit.output_length

    @property
    def _explicit_size(self) -> int:
        words = self.circuit.measurement_length + self.flp.proof_length * self.proofs
        return self.field.encoded_size * words

    # The device.

    def shard(self, ctx: bytes, measurement: Any, nonce: bytes, rand: bytes) -> tuple[bytes, tuple[bytes, ...]]:
        """Return (public share, input shares) of a measurement of the circuit's type (device; draft, section 7.2.1).

        `nonce` is 16 and `rand` `rand_size` bytes, both fresh from the system's generator.

        Raises:
            UsageError: a wrong size, or a measurement that the circuit does not allow.
        """
        return self.shard_encoded(ctx, self.circuit.encode(measurement), nonce, rand)

    def shard_encoded(
        self, ctx: bytes, encoded: Sequence[int], nonce: bytes, rand: bytes
    ) -> tuple[bytes, tuple[bytes, ...]]:
        """Return (public share, input shares) of encoded field elements, valid or not.

        The second half of `shard`; only tests and simulated attackers call it directly.

        Raises:
            UsageError: a wrong size.
        """
        if len(nonce) != self.nonce_size:
            raise UsageError(f"the nonce has {len(nonce)} bytes, not {self.nonce_size}")
        seeds = self.split_rand(rand)
        streams = [self.helper_measurement_share(ctx, j, seed) for j, seed in enumerate(seeds.helpers, start=1)]
        total = self.field.add_vectors(streams, self.circuit.measurement_length)
        leader = self.field.subtract_vectors(encoded, total)
        parts = self._joint_rand_parts(ctx, nonce, (leader, *streams), seeds.blinds)
        proofs = self._leader_proofs(ctx, encoded, seeds, parts)
        explicit = self.field.encode_vector(leader) + self.field.encode_vector(proofs)
        bodies = (explicit, *seeds.helpers)
        return b"".join(parts), tuple(map(bytes.__add__, bodies, seeds.blinds or [b""] * self.shares))

    def split_rand(self, rand: bytes) -> "_Seeds":
        """Return the seeds inside `rand`, in the draft's order.

        Raises:
            UsageError: a wrong size.
        """
        if len(rand) != self.rand_size:
            raise UsageError(f"the randomness has {len(rand)} bytes, not {self.rand_size}")
        seeds = [rand[start : start + SEED_SIZE] for start in range(0, len(rand), SEED_SIZE)]
        if not self.uses_joint_rand:
            return _Seeds(helpers=tuple(seeds[:-1]), blinds=(), prove=seeds[-1])
        return _Seeds(helpers=tuple(seeds[0:-2:2]), blinds=(seeds[-2], *seeds[1:-2:2]), prove=seeds[-1])

    def helper_measurement_share(
        self, ctx: bytes, aggregator: int, seed: bytes, length: int | None = None
    ) -> list[int]:
        """Return a helper's measurement share, or its first `length` elements: a prefix of the same stream."""
        count = self.circuit.measurement_length if length is None else length
        return self._expand(ctx, _USAGE_MEAS_SHARE, seed, bytes((aggregator,)), count)

    def _leader_proofs(self, ctx: bytes, encoded: Sequence[int], seeds: "_Seeds", parts: Sequence[bytes]) -> list[int]:
        """Return the leader's share of all proofs: the proofs less every helper's stream."""
        flp, count = self.flp, self.proofs
        prove_rand = self._expand(
            ctx, _USAGE_PROVE_RANDOMNESS, seeds.prove, bytes((count,)), flp.prove_rand_length * count
        )
        joint_rand = self._joint_rand(ctx, self._joint_rand_seed(ctx, parts))
        prove = self._prover(encoded)
        proofs: list[int] = []
        for prove_part, joint_part in zip(_split(prove_rand, count), _split(joint_rand, count), strict=True):
            proofs += prove(prove_part, joint_part)
        streams = [self._helper_proofs_share(ctx, j, seed) for j, seed in enumerate(seeds.helpers, start=1)]
        return self.field.subtract_vectors(proofs, self.field.add_vectors(streams, len(proofs)))

    def _prover(self, encoded: Sequence[int]) -> Callable[[Sequence[int], Sequence[int]], list[int]]:
        """Return `Flp.prove` of an encoded measurement, or the shorter way to the same elements where there is one."""
        circuit = self.circuit
        if isinstance(circuit, Multihot) and (prover := set_prover(circuit, encoded)) is not None:
            return prover.prove
        if isinstance(circuit, OneHot | TwoRoundOneHot) and (positions := positions_of(circuit, encoded)):
            return partial(one_hot_proof, circuit, positions)
        return partial(self.flp.prove, encoded)

    # The aggregators.

    def verify_init(
        self, verify_key: bytes, ctx: bytes, aggregator: int, nonce: bytes, public_share: bytes, input_share: bytes
    ) -> tuple[VerifyState, bytes]:
        """Return an aggregator's state and verifier share of one report (draft, section 7.2.2).

        `aggregator` is 0..shares-1.

        Raises:
            DecodeError: a nonce, public share or input share that is not canonical.
            QueryPointError: the draft's abort; it is a VerificationFailed.
            UsageError: a key of the wrong size or another aggregator.
        """
        if len(verify_key) != self.verify_key_size:
            raise UsageError(f"the verify key has {len(verify_key)} bytes, not {self.verify_key_size}")
        if len(nonce) != self.nonce_size:
            raise DecodeError(f"the nonce has {len(nonce)} bytes, not {self.nonce_size}")
        parts = self._decode_parts(public_share)
        measurement, proofs, blind = self._decode_input_share(ctx, aggregator, input_share)
        seed, own_part = b"", b""
        if self.uses_joint_rand:
            own_part = self._joint_rand_part(ctx, aggregator, blind, measurement, nonce)
            parts[aggregator] = own_part
            seed = self._joint_rand_seed(ctx, parts)
        verifiers = self._query(verify_key, ctx, nonce, measurement, proofs, self._joint_rand(ctx, seed))
        output = self.field.encode_vector(self.circuit.truncate(measurement))
        state = VerifyState(output_share=output, joint_rand_seed=seed)
        return state, self.field.encode_vector(verifiers) + own_part

    def combine_verifier_shares(self, ctx: bytes, shares: Sequence[bytes]) -> bytes:
        """Return the verifier message of a report from all aggregators' verifier shares, in their order (leader).

        Raises:
            VerificationFailed: the proof does not hold.
            DecodeError: a share that is not canonical.
            UsageError: the shares are not as many as the aggregators.
        """
        if len(shares) != self.shares:
            raise UsageError(f"there are {len(shares)} verifier shares, not {self.shares}")
        decoded = [self._decode_verifier_share(share) for share in shares]
        length = self.flp.verifier_length * self.proofs
        verifiers = self.field.add_vectors((words for words, _ in decoded), length)
        if not all(self.flp.decide(verifier) for verifier in _split(verifiers, self.proofs)):
            raise VerificationFailed("the proof does not hold")
        return self._joint_rand_seed(ctx, [part for _, part in decoded])

    def verify_next(self, ctx: bytes, state: VerifyState, message: bytes) -> list[int]:
        """Return the output share of a report whose verifier message agrees with this aggregator's state.

        `ctx` is not used; it is an argument because it is one in the draft.

        Raises:
            VerificationFailed: the device's joint-randomness parts were wrong.
            DecodeError: a message of the wrong size.
        """
        if len(message) != self.verifier_message_size:
            raise DecodeError(f"the verifier message has {len(message)} bytes, not {self.verifier_message_size}")
        if not hmac.compare_digest(message, state.joint_rand_seed):
            raise VerificationFailed("the joint randomness does not agree")
        return self.decode_output_share(state.output_share)

    def aggregate(self, output_shares: Sequence[Sequence[int]]) -> list[int]:
        """Return the sum of one aggregator's output shares, its aggregate share: zeros without a share.

        Raises:
            UsageError: a share of another length.
        """
        return self.field.add_vectors(output_shares, self.circuit.output_length)

    def unshard(self, aggregate_shares: Sequence[Sequence[int]], measurements: int) -> Any:
        """Return the aggregate result of `measurements` >= 1 reports from all aggregate shares (collector).

        Raises:
            UsageError: the shares are not as many as the aggregators, or `measurements` is below 1.
        """
        if len(aggregate_shares) != self.shares:
            raise UsageError(f"there are {len(aggregate_shares)} aggregate shares, not {self.shares}")
        if measurements < 1:
            raise UsageError(f"the number of measurements is {measurements}, not 1 or more")
        return self.circuit.decode(self.aggregate(aggregate_shares), measurements)

    def encode_output_share(self, share: Sequence[int]) -> bytes:
        """Return an output or aggregate share as bytes.

        Raises:
            UsageError: another number of elements, or an element outside 0..p-1.
        """
        if len(share) != self.circuit.output_length:
            raise UsageError(f"the share has {len(share)} elements, not {self.circuit.output_length}")
        return self.field.encode_vector(share)

    def decode_output_share(self, encoded: bytes) -> list[int]:
        """Return an output or aggregate share from its bytes.

        Raises:
            DecodeError: the bytes are not canonical.
        """
        return self.field.decode_vector(encoded, self.circuit.output_length)

    # Shared derivations (draft, section 7.2.6).

    def _expand(self, ctx: bytes, usage: int, seed: bytes, binder: bytes, length: int) -> list[int]:
        if length == 0:
            return []
        stream = self.xof(seed, domain_separation_tag(self.algorithm_id, usage, ctx), binder)
        return next_vector(stream, self.field, length)

    def _helper_proofs_share(self, ctx: bytes, aggregator: int, seed: bytes) -> list[int]:
        binder = bytes((self.proofs, aggregator))
        return self._expand(ctx, _USAGE_PROOF_SHARE, seed, binder, self.flp.proof_length * self.proofs)

    def _joint_rand_part(
        self, ctx: bytes, aggregator: int, blind: bytes, measurement: Sequence[int], nonce: bytes
    ) -> bytes:
        tag = domain_separation_tag(self.algorithm_id, _USAGE_JOINT_RAND_PART, ctx)
        binder = b"".join((bytes((aggregator,)), nonce, self.field.encode_vector(measurement)))
        return derive_seed(self.xof, blind, tag, binder)

    def _joint_rand_parts(
        self, ctx: bytes, nonce: bytes, shares: Sequence[Sequence[int]], blinds: Sequence[bytes]
    ) -> list[bytes]:
        if not self.uses_joint_rand:
            return []
        pairs = zip(shares, blinds, strict=True)
        return [self._joint_rand_part(ctx, j, blind, share, nonce) for j, (share, blind) in enumerate(pairs)]

    def _joint_rand_seed(self, ctx: bytes, parts: Sequence[bytes]) -> bytes:
        if not self.uses_joint_rand:
            return b""
        tag = domain_separation_tag(self.algorithm_id, _USAGE_JOINT_RAND_SEED, ctx)
        return derive_seed(self.xof, bytes(SEED_SIZE), tag, b"".join(parts))

    def _joint_rand(self, ctx: bytes, seed: bytes) -> list[int]:
        length = self.circuit.joint_rand_length * self.proofs
        return self._expand(ctx, _USAGE_JOINT_RANDOMNESS, seed, bytes((self.proofs,)), length)

    def _query(
        self,
        verify_key: bytes,
        ctx: bytes,
        nonce: bytes,
        measurement: Sequence[int],
        proofs: Sequence[int],
        joint_rand: Sequence[int],
    ) -> list[int]:
        """Return the verifier shares of all proofs, one after the other."""
        flp, count = self.flp, self.proofs
        binder = bytes((count,)) + nonce
        query_rand = self._expand(ctx, _USAGE_QUERY_RANDOMNESS, verify_key, binder, flp.query_rand_length * count)
        shares_inverse = _inverse(self.field, self.shares)
        parts = zip(_split(proofs, count), _split(query_rand, count), _split(joint_rand, count), strict=True)
        verifiers: list[int] = []
        for proof, query_part, joint_part in parts:
            verifiers += flp.query(measurement, proof, query_part, joint_part, shares_inverse)
        return verifiers

    # Decoding.

    def _decode_parts(self, public_share: bytes) -> list[bytes]:
        if len(public_share) != self.public_share_size:
            raise DecodeError(f"the public share has {len(public_share)} bytes, not {self.public_share_size}")
        return [public_share[start : start + SEED_SIZE] for start in range(0, len(public_share), SEED_SIZE)]

    def _decode_input_share(self, ctx: bytes, aggregator: int, share: bytes) -> tuple[list[int], list[int], bytes]:
        """Return (measurement share, proofs share, blind) of an aggregator."""
        size = self.input_share_size(aggregator)
        if len(share) != size:
            raise DecodeError(f"the input share has {len(share)} bytes, not {size}")
        if aggregator > 0:
            seed, blind = share[:SEED_SIZE], share[SEED_SIZE:]
            measurement = self.helper_measurement_share(ctx, aggregator, seed)
            return measurement, self._helper_proofs_share(ctx, aggregator, seed), blind
        length = self.circuit.measurement_length
        words = self.field.decode_vector(share[: self._explicit_size], length + self.flp.proof_length * self.proofs)
        return words[:length], words[length:], share[self._explicit_size :]

    def _decode_verifier_share(self, share: bytes) -> tuple[list[int], bytes]:
        if len(share) != self.verifier_share_size:
            raise DecodeError(f"a verifier share has {len(share)} bytes, not {self.verifier_share_size}")
        length = self.flp.verifier_length * self.proofs
        split = self.field.encoded_size * length
        return self.field.decode_vector(share[:split], length), share[split:]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seeds:
    """The seeds of one report: helpers' shares, all blinds (leader's first), the prover's."""

    helpers: tuple[bytes, ...] = field(repr=False)
    blinds: tuple[bytes, ...] = field(repr=False)
    prove: bytes = field(repr=False)


@lru_cache(maxsize=64)
def _inverse(prime_field: PrimeField, shares: int) -> int:
    return prime_field.inverse(shares)


def _split(vector: Sequence[int], parts: int) -> list[Sequence[int]]:
    size = len(vector) // parts
    return [vector[index * size : (index + 1) * size] for index in range(parts)]


# The algorithms of fleetcount's windows.


def prio3_sum_vec_with_multiproof(
    length: int, max_measurement: int, chunk_length: int, shares: int, proofs: int = _WINDOW_PROOFS
) -> Prio3:
    """Return Prio3SumVecWithMultiproof over Field64, by default with three proofs."""
    circuit = SumVec(field=FIELD64, length=length, max_measurement=max_measurement, chunk_length=chunk_length)
    return Prio3(circuit=circuit, algorithm_id=ALGORITHM_IDS["SumVecWithMultiproof"], shares=shares, proofs=proofs)


@lru_cache(maxsize=16)
def prio3_two_round(length: int, shares: int, proofs: int = _WINDOW_PROOFS) -> Prio3:
    """Return the algorithm of sampling windows: TwoRoundOneHot over `length` = V + 1, Field64, three proofs."""
    circuit = TwoRoundOneHot(length=length)
    return Prio3(circuit=circuit, algorithm_id=ALGORITHM_IDS["TwoRoundOneHot"], shares=shares, proofs=proofs)


@lru_cache(maxsize=16)
def prio3_one_hot(length: int, shares: int, proofs: int = _WINDOW_PROOFS) -> Prio3:
    """Return the algorithm of response and direct windows: OneHot over `length` = V + 1, Field64, three proofs."""
    circuit = OneHot(length=length)
    return Prio3(circuit=circuit, algorithm_id=ALGORITHM_IDS["OneHot"], shares=shares, proofs=proofs)


@lru_cache(maxsize=16)
def prio3_bits(length: int, shares: int) -> Prio3:
    """Return the algorithm of vector windows: SumVecWithMultiproof over `length` bits, with `bits_chunk_length`."""
    return prio3_sum_vec_with_multiproof(length, 1, bits_chunk_length(length), shares)


@lru_cache(maxsize=16)
def prio3_multihot(length: int, most: int, shares: int, proofs: int = _WINDOW_PROOFS) -> Prio3:
    """Return the algorithm of windows that count sets: Multihot over `length` = V values, Field64, three proofs."""
    checked = Multihot(length=length, most=most, chunk_length=1).checked_length
    circuit = Multihot(length=length, most=most, chunk_length=bits_chunk_length(checked))
    return Prio3(circuit=circuit, algorithm_id=ALGORITHM_IDS["Multihot"], shares=shares, proofs=proofs)


def bits_chunk_length(length: int) -> int:
    """Return the chunk length of `prio3_bits`: the shortest proof's, about the square root of `length`.

    A proof has 2 c wire seeds and 2 P - 1 gadget values, with P the power of two above the ceil(length / c) calls. So
    for each P the best c is ceil(length / (P - 1)); the smallest 2 c + 2 P wins, and of equals the smaller P. All
    implementations must compute the same number, because it decides the bytes of a report.

    Raises:
        UsageError: length below 1.
    """
    if length < 1:
        raise UsageError(f"length is {length}, not 1 or more")
    sizes = [1 << exponent for exponent in range(1, next_power_of_two(length + 1).bit_length())]
    best = min(sizes, key=lambda size: (-(-length // (size - 1)) + size, size))
    return -(-length // (best - 1))


# The two instalments of a two-round report: which bytes of each input share travel in which round.
#
# Round one: the leader gets the explicit words of r1's share, a helper its 32-byte seed. Round two: the leader gets the
# words of r2's share, the proofs and its blind, a helper its blind. The concatenated parts are the input shares of
# `Prio3.shard`, byte for byte.


def first_instalment_size(prio3: Prio3, aggregator: int) -> int:
    """Return the bytes of an aggregator's part of round one: 8 L for the leader (aggregator 0), 32 for a helper.

    Raises:
        UsageError: an algorithm whose circuit is not TwoRoundOneHot, or an aggregator outside 0..shares-1.
    """
    prio3.input_share_size(aggregator)
    return prio3.field.encoded_size * _length(prio3) if aggregator == 0 else SEED_SIZE


def second_instalment_size(prio3: Prio3, aggregator: int) -> int:
    """Return the bytes of an aggregator's part of round two.

    Raises:
        UsageError: as `first_instalment_size`.
    """
    return prio3.input_share_size(aggregator) - first_instalment_size(prio3, aggregator)


def first_instalments(prio3: Prio3, ctx: bytes, nonce: bytes, rand: bytes, round_one: int) -> tuple[bytes, ...]:
    """Return every aggregator's part of round one (device): e_r1 less the helpers' streams, and the helpers' seeds.

    `round_one` is the position 0..V; `nonce` and `rand` are those of the whole report: round two needs the same ones.
    No proof is made.

    Raises:
        UsageError: a wrong size, a position outside 0..V or another circuit.
    """
    length = _length(prio3)
    if len(nonce) != prio3.nonce_size:
        raise UsageError(f"the nonce has {len(nonce)} bytes, not {prio3.nonce_size}")
    if not 0 <= round_one < length:
        raise UsageError(f"round one is not 0..{length - 1}")
    seeds = prio3.split_rand(rand).helpers
    streams = [prio3.helper_measurement_share(ctx, j, seed, length) for j, seed in enumerate(seeds, start=1)]
    unit = [0] * length
    unit[round_one] = 1
    words = prio3.field.subtract_vectors(unit, prio3.field.add_vectors(streams, length))
    return (prio3.field.encode_vector(words), *seeds)


def second_instalments(
    prio3: Prio3, ctx: bytes, nonce: bytes, rand: bytes, round_one: int, round_two: int
) -> tuple[bytes, tuple[bytes, ...]]:
    """Return (public share, every aggregator's part of round two) (device).

    The arguments are those of `first_instalments` and the position of round two; round one is 0 or equals round two.

    Raises:
        UsageError: a wrong size, another pair of positions or another circuit.
    """
    public_share, input_shares = prio3.shard(ctx, (round_one, round_two), nonce, rand)
    offsets = [first_instalment_size(prio3, aggregator) for aggregator in range(prio3.shares)]
    return public_share, tuple(share[offset:] for share, offset in zip(input_shares, offsets, strict=True))


def _length(prio3: Prio3) -> int:
    if not isinstance(prio3.circuit, TwoRoundOneHot):
        raise UsageError(f"circuit {prio3.circuit.name} has one round, not two")
    return prio3.circuit.length

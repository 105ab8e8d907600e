"""The two instalments of a two-round Prio3 report: which bytes of each input share travel in which round.

Round one: the leader gets the explicit words of r1's share, a helper its 32-byte seed. Round two: the leader gets the
words of r2's share, the proofs and its blind, a helper its blind. The concatenated parts are the input shares of
`Prio3.shard`, byte for byte. This module neither draws answers nor seals or sends anything.
"""

from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.vdaf.circuits import TwoRoundOneHot
from fleetcount_protocol.vdaf.field import SEED_SIZE
from fleetcount_protocol.vdaf.prio3 import Prio3


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

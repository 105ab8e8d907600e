"""Batch sharding gives the bytes of the scalar device, for the same nonce, randomness and measurement."""

import random
from typing import Any

import pytest
from batch_sharding import BatchSharder
from fleetcount_evidence.replay.draft_circuits import prio3_sum_vec
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.vdaf.prio3 import (
    Prio3,
    first_instalments,
    prio3_bits,
    prio3_one_hot,
    prio3_sum_vec_with_multiproof,
    prio3_two_round,
    second_instalments,
)

# The first test on a machine compiles.
pytestmark = pytest.mark.timeout(600)

CTX = b"FCT1" + bytes(32)
ALGORITHMS = [
    prio3_two_round(2, 2),
    prio3_two_round(9, 3),
    prio3_two_round(101, 2),
    prio3_one_hot(2, 2),
    prio3_one_hot(33, 5),
    prio3_bits(1, 2),
    prio3_bits(10, 3),
    prio3_bits(37, 2),
    prio3_sum_vec_with_multiproof(7, 1, 7, 2),
    prio3_sum_vec_with_multiproof(7, 1, 1, 2),
    prio3_sum_vec_with_multiproof(7, 1, 20, 2, proofs=2),
]


def name(prio3: Prio3) -> str:
    return f"{prio3.circuit.name}-{prio3.circuit.measurement_length}-k{prio3.shares}"


def answers(prio3: Prio3, count: int, draws: random.Random) -> list[Any]:
    """Return measurements: every edge of the domain, then random ones."""
    length = prio3.circuit.measurement_length
    if prio3.circuit.name == "TwoRoundOneHot":
        last = length // 2 - 1
        edges = [(0, 0), (0, last), (last, last), (1, 1)]
        return [*edges, *((draws.choice([0, v]), v) for v in draws.choices(range(last + 1), k=count))][:count]
    if prio3.circuit.name == "OneHot":
        return [0, length - 1, *draws.choices(range(length), k=count)][:count]
    return [[0] * length, [1] * length, *([draws.randrange(2) for _ in range(length)] for _ in range(count))][:count]


def drawn(prio3: Prio3, count: int, seed: int = 1) -> tuple[list[bytes], list[bytes], list[Any]]:
    draws = random.Random(seed)
    nonces = [draws.randbytes(16) for _ in range(count)]
    rands = [draws.randbytes(prio3.rand_size) for _ in range(count)]
    return nonces, rands, answers(prio3, count, draws)


@pytest.mark.parametrize("count", [0, 1, 8, 19])
@pytest.mark.parametrize("prio3", ALGORITHMS, ids=name)
def test_the_bytes_are_those_of_the_scalar_device(prio3: Prio3, count: int) -> None:
    nonces, rands, measurements = drawn(prio3, count)

    batch = BatchSharder(prio3, CTX).shard(b"".join(nonces), b"".join(rands), measurements)

    alone = [prio3.shard(CTX, m, n, r) for m, n, r in zip(measurements, nonces, rands, strict=True)]
    assert batch.public_shares == b"".join(public for public, _ in alone)
    for j in range(prio3.shares):
        assert batch.shares[j] == b"".join(shares[j] for _, shares in alone)


@pytest.mark.parametrize("limit", [None, 0, 2**64 - 2**58])
@pytest.mark.parametrize("prio3", [prio3_two_round(3, 2), prio3_two_round(40, 4)], ids=name)
def test_both_instalments_are_those_of_the_scalar_device(prio3: Prio3, limit: int | None) -> None:
    nonces, rands, measurements = drawn(prio3, 13)
    columns = b"".join(nonces), b"".join(rands)
    ones, twos = [one for one, _ in measurements], [two for _, two in measurements]
    sharder = BatchSharder(prio3, CTX) if limit is None else BatchSharder(prio3, CTX, rejected_from=limit)

    first = sharder.first_instalments(*columns, ones)
    second = sharder.second_instalments(*columns, ones, twos)

    for j in range(prio3.shares):
        triples = list(zip(nonces, rands, measurements, strict=True))
        assert first[j] == b"".join(first_instalments(prio3, CTX, n, r, m[0])[j] for n, r, m in triples)
        assert second.shares[j] == b"".join(second_instalments(prio3, CTX, n, r, *m)[1][j] for n, r, m in triples)
    assert second.public_shares == b"".join(second_instalments(prio3, CTX, n, r, *m)[0] for n, r, m in triples)


@pytest.mark.parametrize("limit", [0, 2**64 - 2**57])
@pytest.mark.parametrize("prio3", [prio3_one_hot(9, 3), prio3_bits(9, 2)], ids=name)
def test_reports_of_the_slow_path_have_the_same_bytes(prio3: Prio3, limit: int) -> None:
    nonces, rands, measurements = drawn(prio3, 21)
    columns = b"".join(nonces), b"".join(rands), measurements

    assert BatchSharder(prio3, CTX, rejected_from=limit).shard(*columns) == BatchSharder(prio3, CTX).shard(*columns)


@pytest.mark.parametrize(
    ("prio3", "number"), [(prio3_two_round(1000, 2), 1_962_662), (prio3_two_round(3, 2), 407_579_759)], ids=str
)
def test_a_drawn_word_that_is_not_below_p_is_dropped_as_the_draft_says(prio3: Prio3, number: int) -> None:
    # Found by search: a word of this helper seed's streams is p or more (tests/kernel/test_verifier.py).
    rand = number.to_bytes(32, "little") + bytes(prio3.rand_size - 32)
    columns = bytes(16), rand

    assert BatchSharder(prio3, CTX).shard(*columns, [(0, 1)]).shares == prio3.shard(CTX, (0, 1), *columns)[1]
    assert BatchSharder(prio3, CTX).first_instalments(*columns, [0]) == first_instalments(prio3, CTX, *columns, 0)
    careless = BatchSharder(prio3, CTX, rejected_from=2**64 - 1)
    assert careless.shard(*columns, [(0, 1)]).shares != prio3.shard(CTX, (0, 1), *columns)[1]


@pytest.mark.parametrize(
    ("prio3", "measurements"),
    [
        (prio3_two_round(4, 2), [(1, 2)]),
        (prio3_two_round(4, 2), [(0, 4)]),
        (prio3_two_round(4, 2), [(-1, -1)]),
        (prio3_two_round(4, 2), [0]),
        (prio3_one_hot(4, 2), [4]),
        (prio3_one_hot(4, 2), [1.0]),
        (prio3_one_hot(4, 2), [1, 2]),
        (prio3_bits(3, 2), [[0, 1, 2]]),
        (prio3_bits(3, 2), [[0, 1]]),
    ],
)
def test_what_a_device_could_not_answer_is_refused(prio3: Prio3, measurements: list[Any]) -> None:
    with pytest.raises(UsageError):
        BatchSharder(prio3, CTX).shard(bytes(16), bytes(prio3.rand_size), measurements)


def test_columns_of_the_wrong_size_and_other_algorithms_are_refused() -> None:
    prio3 = prio3_one_hot(4, 2)
    with pytest.raises(UsageError, match="randomness"):
        BatchSharder(prio3, CTX).shard(bytes(16), bytes(prio3.rand_size - 1), [1])
    with pytest.raises(UsageError, match="one round"):
        BatchSharder(prio3, CTX).first_instalments(bytes(16), bytes(prio3.rand_size), [1])
    with pytest.raises(UsageError, match="whole numbers"):
        BatchSharder(prio3_two_round(4, 2), CTX).first_instalments(bytes(16), bytes(128), [4])
    with pytest.raises(UsageError, match="no compiled"):
        BatchSharder(prio3_sum_vec(4, 1, 2, 2), CTX)

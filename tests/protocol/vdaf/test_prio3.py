"""Prio3 end to end: any number of shares, every kind of tampering, every size."""

from collections.abc import Sequence
from random import Random

import pytest
from fleetcount_evidence.replay.draft_circuits import (
    DRAFT_IDS,
    prio3_count,
    prio3_histogram,
    prio3_multihot_count_vec,
    prio3_sum,
    prio3_sum_vec,
)
from fleetcount_protocol.errors import DecodeError, FleetcountError, UsageError, VerificationFailed
from fleetcount_protocol.vdaf.circuits import OneHot, TwoRoundOneHot
from fleetcount_protocol.vdaf.field import FIELD64, PrimeField
from fleetcount_protocol.vdaf.flp import QueryPointError
from fleetcount_protocol.vdaf.prio3 import (
    Prio3,
    VerifyState,
    bits_chunk_length,
    prio3_bits,
    prio3_one_hot,
    prio3_sum_vec_with_multiproof,
    prio3_two_round,
)
from hypothesis import given, settings
from hypothesis import strategies as st

CTX = b"test" + bytes(32)
KEY = bytes(range(32))
TINY = PrimeField(name="F257", modulus=257, encoded_size=2, generator=3, two_adicity=8)


def report(prio3: Prio3, measurement: object, seed: int = 0) -> tuple[bytes, bytes, tuple[bytes, ...]]:
    """Return (nonce, public share, input shares)."""
    random = Random(seed)
    nonce = random.randbytes(16)
    return nonce, *prio3.shard(CTX, measurement, nonce, random.randbytes(prio3.rand_size))


def verify(
    prio3: Prio3,
    nonce: bytes,
    public_share: bytes,
    input_shares: Sequence[bytes],
) -> list[list[int]]:
    """Run all aggregators on one report; return their output shares."""
    steps = [
        prio3.verify_init(KEY, CTX, aggregator, nonce, public_share, share)
        for aggregator, share in enumerate(input_shares)
    ]
    message = prio3.combine_verifier_shares(CTX, [verifier_share for _, verifier_share in steps])
    return [prio3.verify_next(CTX, state, message) for state, _ in steps]


def refused(prio3: Prio3, nonce: bytes, public_share: bytes, input_shares: Sequence[bytes]) -> bool:
    try:
        verify(prio3, nonce, public_share, input_shares)
    except (VerificationFailed, DecodeError):
        return True
    return False


@st.composite
def runs(draw: st.DrawFn) -> tuple[Prio3, list[object], object]:  # noqa: PLR0911 -- one return an algorithm
    """An algorithm, measurements it admits, and their aggregate."""
    shares = draw(st.integers(2, 6))
    count = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(sorted(DRAFT_IDS)))
    length = draw(st.integers(2, 9))
    chunk = draw(st.integers(1, 10))
    maximum = draw(st.integers(1, 300))
    positions = draw(st.lists(st.integers(0, length - 1), min_size=count, max_size=count))

    def histogram(places: Sequence[int]) -> list[int]:
        return [sum(place == v for place in places) for v in range(length)]

    if kind == "Count":
        bits = [position % 2 for position in positions]
        return prio3_count(shares), bits, sum(bits)
    if kind == "Sum":
        values = draw(st.lists(st.integers(0, maximum), min_size=count, max_size=count))
        return prio3_sum(maximum, shares), values, sum(values)
    if kind in {"SumVec", "SumVecWithMultiproof"}:
        rows = [draw(st.lists(st.integers(0, maximum), min_size=length, max_size=length)) for _ in range(count)]
        make = prio3_sum_vec if kind == "SumVec" else prio3_sum_vec_with_multiproof
        return make(length, maximum, chunk, shares), rows, [sum(column) for column in zip(*rows, strict=True)]
    if kind == "Histogram":
        return prio3_histogram(length, chunk, shares), positions, histogram(positions)
    if kind == "MultihotCountVec":
        vectors = [[position == v for v in range(length)] for position in positions]
        return prio3_multihot_count_vec(length, 2, chunk, shares), vectors, histogram(positions)
    if kind == "OneHot":
        return prio3_one_hot(length, shares), positions, histogram(positions)
    sampled = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    pairs = [(position if said else 0, position) for position, said in zip(positions, sampled, strict=True)]
    moved = [position for position, said in zip(positions, sampled, strict=True) if not said]
    return prio3_two_round(length, shares), pairs, histogram(moved)[1:]


@given(run=runs())
@settings(deadline=None, max_examples=80)
def test_what_is_shared_is_what_comes_out(run: tuple[Prio3, list[object], object]) -> None:
    prio3, measurements, expected = run
    outputs = [verify(prio3, *report(prio3, measurement, seed)) for seed, measurement in enumerate(measurements)]

    aggregates = [prio3.aggregate(shares) for shares in zip(*outputs, strict=True)]

    assert prio3.unshard(aggregates, len(measurements)) == expected


@pytest.mark.parametrize("shares", [2, 3, 5, 255])
def test_any_number_of_shares_gives_the_same_answer(shares: int) -> None:
    prio3 = prio3_two_round(3, shares)

    outputs = verify(prio3, *report(prio3, (0, 2)))

    assert prio3.unshard(outputs, 1) == [0, 1]


@pytest.mark.parametrize("proofs", [1, 2, 7, 255])
def test_any_number_of_proofs_holds(proofs: int) -> None:
    prio3 = prio3_one_hot(3, 2, proofs)

    assert prio3.unshard(verify(prio3, *report(prio3, 1)), 1) == [0, 1, 0]


ALL = [
    (prio3_two_round(5, 2), (0, 4)),
    (prio3_two_round(4, 3), (2, 2)),
    (prio3_one_hot(5, 2), 3),
    (prio3_bits(6, 2), [1, 0, 0, 1, 1, 0]),
    (prio3_count(2), 1),
    (prio3_histogram(4, 2, 2), 1),
]
IDS = [f"{prio3.circuit.name}-{prio3.shares}" for prio3, _ in ALL]
TAMPERED = pytest.mark.parametrize(("prio3", "measurement"), ALL, ids=IDS)


@TAMPERED
@pytest.mark.parametrize("flip", [0x01, *(pytest.param(flip, marks=pytest.mark.nightly) for flip in (0x80, 0xFF))])
def test_every_byte_of_every_input_share_counts(prio3: Prio3, measurement: object, flip: int) -> None:
    nonce, public_share, input_shares = report(prio3, measurement)
    for aggregator, share in enumerate(input_shares):
        for place in range(len(share)):
            changed = bytearray(share)
            changed[place] ^= flip

            shares = [*input_shares]
            shares[aggregator] = bytes(changed)
            assert refused(prio3, nonce, public_share, shares), (aggregator, place)


@TAMPERED
def test_every_byte_of_public_share_and_nonce_counts(prio3: Prio3, measurement: object) -> None:
    nonce, public_share, input_shares = report(prio3, measurement)
    for place in range(len(public_share)):
        changed = bytearray(public_share)
        changed[place] ^= 1
        assert refused(prio3, nonce, bytes(changed), input_shares)
    if prio3.uses_joint_rand:
        for place in range(16):
            other = bytearray(nonce)
            other[place] ^= 1
            assert refused(prio3, bytes(other), public_share, input_shares)


def test_a_report_shown_differently_to_one_aggregator_is_refused() -> None:
    prio3 = prio3_two_round(5, 2)
    nonce, public_share, input_shares = report(prio3, (0, 4))
    other_public = bytes([public_share[0] ^ 1]) + public_share[1:]

    # Each puts its own part in place, so only the helper computes another joint randomness.
    leader = prio3.verify_init(KEY, CTX, 0, nonce, public_share, input_shares[0])
    helper = prio3.verify_init(KEY, CTX, 1, nonce, other_public, input_shares[1])
    with pytest.raises(VerificationFailed):
        prio3.combine_verifier_shares(CTX, [leader[1], helper[1]])


@pytest.mark.parametrize("change", ["ctx", "key"])
def test_aggregators_that_disagree_about_context_or_key_refuse(change: str) -> None:
    prio3 = prio3_two_round(5, 2)
    nonce, public_share, input_shares = report(prio3, (0, 4))
    ctx = b"else" + bytes(32) if change == "ctx" else CTX
    key = bytes(32) if change == "key" else KEY

    _, leader_share = prio3.verify_init(KEY, CTX, 0, nonce, public_share, input_shares[0])
    _, helper_share = prio3.verify_init(key, ctx, 1, nonce, public_share, input_shares[1])

    with pytest.raises(VerificationFailed):
        prio3.combine_verifier_shares(CTX, [leader_share, helper_share])


def test_a_report_of_another_window_is_refused() -> None:
    prio3 = prio3_two_round(5, 2)
    nonce, public_share, input_shares = report(prio3, (0, 4))
    steps = [
        prio3.verify_init(KEY, b"window two", j, nonce, public_share, share) for j, share in enumerate(input_shares)
    ]

    with pytest.raises(VerificationFailed):
        prio3.combine_verifier_shares(b"window two", [share for _, share in steps])


def test_shares_in_the_wrong_seats_are_refused() -> None:
    prio3 = prio3_two_round(5, 3)
    nonce, public_share, input_shares = report(prio3, (0, 4))

    assert refused(prio3, nonce, public_share, [input_shares[0], input_shares[2], input_shares[1]])


@pytest.mark.parametrize("element", [0, 4, 9, 10, 36])
@pytest.mark.parametrize("word", [FIELD64.modulus, FIELD64.modulus + 1, 2**64 - 1])
def test_a_leader_element_that_is_not_canonical_is_refused(element: int, word: int) -> None:
    prio3 = prio3_two_round(5, 2)
    nonce, public_share, (leader, _) = report(prio3, (0, 4))
    changed = leader[: 8 * element] + word.to_bytes(8, "little") + leader[8 * element + 8 :]

    with pytest.raises(DecodeError, match="not below"):
        prio3.verify_init(KEY, CTX, 0, nonce, public_share, changed)


@TAMPERED
@pytest.mark.parametrize("change", [-1, 1])
def test_missing_and_trailing_bytes_are_refused_everywhere(prio3: Prio3, measurement: object, change: int) -> None:
    nonce, public_share, input_shares = report(prio3, measurement)

    def wrong(data: bytes) -> bytes:
        return data + b"\0" if change > 0 else data[:-1]

    state, verifier_share = prio3.verify_init(KEY, CTX, 0, nonce, public_share, input_shares[0])
    others = [
        prio3.verify_init(KEY, CTX, j, nonce, public_share, share)[1] for j, share in enumerate(input_shares) if j > 0
    ]
    message = prio3.combine_verifier_shares(CTX, [verifier_share, *others])
    with pytest.raises(DecodeError):
        prio3.verify_init(KEY, CTX, 0, wrong(nonce), public_share, input_shares[0])
    for aggregator, share in enumerate(input_shares):
        with pytest.raises(DecodeError):
            prio3.verify_init(KEY, CTX, aggregator, nonce, public_share, wrong(share))
    with pytest.raises(DecodeError):
        prio3.combine_verifier_shares(CTX, [wrong(verifier_share), *others])
    with pytest.raises(DecodeError):
        VerifyState.decode(prio3, wrong(state.encode()))
    if public_share or change > 0:
        with pytest.raises(DecodeError):
            prio3.verify_init(KEY, CTX, 0, nonce, wrong(public_share), input_shares[0])
        with pytest.raises(DecodeError):
            prio3.verify_next(CTX, state, wrong(message))


@TAMPERED
def test_sizes_are_what_they_say(prio3: Prio3, measurement: object) -> None:
    nonce, public_share, input_shares = report(prio3, measurement)
    state, verifier_share = prio3.verify_init(KEY, CTX, 0, nonce, public_share, input_shares[0])

    assert len(public_share) == prio3.public_share_size
    assert [len(share) for share in input_shares] == [prio3.input_share_size(j) for j in range(prio3.shares)]
    assert len(verifier_share) == prio3.verifier_share_size
    assert len(state.output_share) == prio3.output_share_size
    assert len(state.joint_rand_seed) == prio3.verifier_message_size


def test_the_upload_has_the_documented_sizes() -> None:
    prio3 = prio3_two_round(1000, 2)

    assert (prio3.input_share_size(0), prio3.input_share_size(1), prio3.public_share_size) == (16248, 64, 64)


@TAMPERED
def test_a_state_survives_its_bytes(prio3: Prio3, measurement: object) -> None:
    nonce, public_share, input_shares = report(prio3, measurement)
    state, _ = prio3.verify_init(KEY, CTX, 1, nonce, public_share, input_shares[1])

    assert VerifyState.decode(prio3, state.encode()) == state


def test_a_state_with_an_element_that_is_not_canonical_is_refused() -> None:
    prio3 = prio3_one_hot(2, 2)

    with pytest.raises(DecodeError, match="not below"):
        VerifyState.decode(prio3, b"\xff" * (16 + 32))


def test_a_wrong_verifier_message_is_refused() -> None:
    prio3 = prio3_one_hot(4, 2)
    nonce, public_share, input_shares = report(prio3, 3)
    state, _ = prio3.verify_init(KEY, CTX, 0, nonce, public_share, input_shares[0])

    with pytest.raises(VerificationFailed):
        prio3.verify_next(CTX, state, bytes(32))


@TAMPERED
def test_verifier_shares_that_do_not_add_up_are_refused(prio3: Prio3, measurement: object) -> None:
    nonce, public_share, input_shares = report(prio3, measurement)
    shares = [prio3.verify_init(KEY, CTX, j, nonce, public_share, share)[1] for j, share in enumerate(input_shares)]

    for place in range(0, prio3.verifier_share_size - 32, 8):
        changed = bytes([*shares[0][:place], shares[0][place] ^ 1, *shares[0][place + 1 :]])
        with pytest.raises((VerificationFailed, DecodeError)):
            prio3.combine_verifier_shares(CTX, [changed, *shares[1:]])


def test_the_abort_at_a_root_of_unity_reaches_every_aggregator() -> None:
    # In a field of 257 elements one query point in 64 is a fourth root of unity.
    prio3 = Prio3(circuit=TwoRoundOneHot(field=TINY, length=3), algorithm_id=0xFFFF1001, shares=2, proofs=1)
    aborted = 0
    for seed in range(300):
        nonce, public_share, input_shares = report(prio3, (0, 2), seed)
        outcomes: list[bool] = []
        for aggregator, share in enumerate(input_shares):
            try:
                prio3.verify_init(KEY, CTX, aggregator, nonce, public_share, share)
            except QueryPointError:
                outcomes.append(False)
            else:
                outcomes.append(True)
        assert outcomes[0] == outcomes[1]
        aborted += not outcomes[0]
        if outcomes[0]:
            verify(prio3, nonce, public_share, input_shares)

    assert 0 < aborted < 30


def test_rejected_words_in_a_stream_shift_it_for_device_and_aggregators_alike() -> None:
    # Nearly half of the masked words are rejected in this field; in Field64 one in 2**32 is.
    prio3 = Prio3(circuit=OneHot(field=TINY, length=9), algorithm_id=0xFFFF1002, shares=3, proofs=2)
    done = 0
    for seed in range(20):
        nonce, public_share, input_shares = report(prio3, 7, seed)
        try:
            outputs = verify(prio3, nonce, public_share, input_shares)
        except QueryPointError:
            continue
        assert prio3.unshard(outputs, 1) == [0] * 7 + [1, 0]
        done += 1

    assert done > 10


@pytest.mark.parametrize("shares", [-1, 0, 1, 256])
def test_a_number_of_shares_outside_2_to_255_is_refused(shares: int) -> None:
    with pytest.raises(UsageError, match=r"2\.\.255"):
        prio3_two_round(3, shares)


@pytest.mark.parametrize("proofs", [0, 256])
def test_a_number_of_proofs_outside_1_to_255_is_refused(proofs: int) -> None:
    with pytest.raises(UsageError, match=r"1\.\.255"):
        prio3_two_round(3, 2, proofs)


@pytest.mark.parametrize("algorithm_id", [-1, 1 << 32])
def test_an_algorithm_id_outside_four_bytes_is_refused(algorithm_id: int) -> None:
    with pytest.raises(UsageError, match="algorithm id"):
        Prio3(circuit=OneHot(length=2), algorithm_id=algorithm_id, shares=2)


def test_wrong_arguments_are_the_callers_fault() -> None:
    prio3 = prio3_one_hot(4, 2)
    nonce, public_share, input_shares = report(prio3, 3)

    calls = [
        lambda: prio3.shard(CTX, 3, bytes(15), bytes(prio3.rand_size)),
        lambda: prio3.shard(CTX, 3, bytes(16), bytes(prio3.rand_size - 1)),
        lambda: prio3.shard(CTX, 4, bytes(16), bytes(prio3.rand_size)),
        lambda: prio3.shard_encoded(CTX, [1, 0, 0], bytes(16), bytes(prio3.rand_size)),
        lambda: prio3.verify_init(KEY[:-1], CTX, 0, nonce, public_share, input_shares[0]),
        lambda: prio3.verify_init(KEY, CTX, 2, nonce, public_share, input_shares[0]),
        lambda: prio3.verify_init(KEY, CTX, -1, nonce, public_share, input_shares[0]),
        lambda: prio3.combine_verifier_shares(CTX, [bytes(prio3.verifier_share_size)]),
        lambda: prio3.unshard([[0] * 4], 1),
        lambda: prio3.unshard([[0] * 4] * 2, 0),
        lambda: prio3.aggregate([[0] * 3]),
        lambda: prio3.encode_output_share([0] * 3),
        lambda: prio3.input_share_size(2),
    ]
    for call in calls:
        with pytest.raises(UsageError):
            call()


def test_no_secret_is_in_a_repr() -> None:
    prio3 = prio3_one_hot(4, 2)
    nonce, public_share, input_shares = report(prio3, 3)
    state, _ = prio3.verify_init(KEY, CTX, 0, nonce, public_share, input_shares[0])
    seeds = prio3.split_rand(bytes(range(128)))

    assert repr(state) == "VerifyState()"
    assert repr(seeds) == "_Seeds()"


def test_errors_of_this_package_are_one_family() -> None:
    assert issubclass(QueryPointError, VerificationFailed)
    assert issubclass(UsageError, FleetcountError)


@pytest.mark.parametrize(
    ("length", "chunk"), [(1, 1), (2, 2), (3, 3), (4, 4), (7, 3), (15, 5), (64, 10), (100, 15), (1000, 33), (4096, 66)]
)
def test_the_chunk_length_of_bits_is_fixed_for_ever(length: int, chunk: int) -> None:
    assert bits_chunk_length(length) == chunk


def test_the_chunk_length_of_bits_gives_the_shortest_proof() -> None:
    for length in (1, 2, 3, 5, 8, 13, 40, 100, 333):
        sizes = [
            prio3_sum_vec_with_multiproof(length, 1, chunk, 2).input_share_size(0) for chunk in range(1, length + 1)
        ]
        assert prio3_bits(length, 2).input_share_size(0) == min(sizes)
    with pytest.raises(UsageError):
        bits_chunk_length(0)

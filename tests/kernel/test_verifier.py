"""The compiled verifier and NumPy's answer byte for byte as the scalar twin: good reports, bad ones, any batch."""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleetcount_aggregator.verification.choice import combine, new_batch_verifier
from fleetcount_kernel.arrays import ArrayBatchVerifier
from fleetcount_kernel.compiling import compiled
from fleetcount_kernel.field64 import add, multiply, subtract, sum_limbs
from fleetcount_kernel.plan import Plan, new_plan
from fleetcount_kernel.proofs import BatchVerifier, ProofBatch, ScalarBatchVerifier, VerifierSetting
from fleetcount_kernel.shares import judge
from fleetcount_kernel.simd import Words, load, splat, store
from fleetcount_kernel.verifier import KernelBatchVerifier
from fleetcount_protocol.errors import RejectReason, UsageError
from fleetcount_protocol.vdaf.field import FIELD64, XofTurboShake128, domain_separation_tag
from fleetcount_protocol.vdaf.prio3 import (
    Prio3,
    bits_chunk_length,
    prio3_bits,
    prio3_multihot,
    prio3_one_hot,
    prio3_sum_vec_with_multiproof,
    prio3_two_round,
)

# The first test on a machine compiles.
pytestmark = pytest.mark.timeout(600)

KEY, CTX = bytes(range(32)), b"FCT1" + bytes(32)
P = FIELD64.modulus
VECTORS = Path(__file__).parent.parent / "vectors"


def setting(prio3: Prio3, aggregator: int, ctx: bytes = CTX, key: bytes = KEY) -> VerifierSetting:
    return VerifierSetting(prio3=prio3, verify_key=key, ctx=ctx, aggregator=aggregator)


def shard(prio3: Prio3, encoded: Sequence[Sequence[int]], seed: int = 1, ctx: bytes = CTX) -> list[ProofBatch]:
    """Shard encoded measurements, valid or not; return one batch an aggregator."""
    draws = random.Random(seed)
    nonces, publics, inputs = b"", b"", [b""] * prio3.shares
    for vector in encoded:
        nonce = draws.randbytes(16)
        public, shares = prio3.shard_encoded(ctx, vector, nonce, draws.randbytes(prio3.rand_size))
        nonces, publics = nonces + nonce, publics + public
        inputs = [before + share for before, share in zip(inputs, shares, strict=True)]
    return [ProofBatch(nonces=nonces, public_shares=publics, input_shares=shares) for shares in inputs]


def honest(prio3: Prio3, count: int, seed: int = 1) -> list[list[int]]:
    """Return valid encoded measurements."""
    draws, circuit = random.Random(seed), prio3.circuit
    found: list[list[int]] = []
    for _ in range(count):
        if circuit.name == "TwoRoundOneHot":
            place = draws.randrange(circuit.measurement_length // 2)
            found.append(circuit.encode((draws.choice([0, place]), place)))
        elif circuit.name == "OneHot":
            found.append(circuit.encode(draws.randrange(circuit.measurement_length)))
        elif circuit.name == "Multihot":
            chosen = draws.sample(range(circuit.length), draws.randint(0, circuit.most))
            found.append(circuit.encode([int(value in chosen) for value in range(circuit.length)]))
        else:
            found.append(circuit.encode([draws.randrange(2) for _ in range(circuit.measurement_length)]))
    return found


def assert_same(one: BatchVerifier, batch: ProofBatch) -> None:
    """Compare a compiled verifier, and the one of NumPy, with the twin of the same setting."""
    assert isinstance(one, KernelBatchVerifier)
    expected = ScalarBatchVerifier(one.setting).verify(batch)
    assert one.verify(batch) == expected
    assert ArrayBatchVerifier(one.setting, worth=0).verify(batch) == expected


ALGORITHMS = [
    prio3_two_round(2, 2),
    prio3_two_round(5, 3),
    prio3_two_round(65, 2),
    prio3_two_round(9, 5),
    prio3_one_hot(2, 2),
    prio3_one_hot(70, 3),
    prio3_bits(1, 2),
    prio3_bits(10, 2),
    prio3_bits(37, 3),
    prio3_sum_vec_with_multiproof(7, 1, 7, 2),
    prio3_sum_vec_with_multiproof(7, 1, 1, 2),
    prio3_sum_vec_with_multiproof(7, 1, 20, 2, proofs=2),
    prio3_sum_vec_with_multiproof(63, 1, 1, 2),
    prio3_multihot(1, 1, 2),
    prio3_multihot(6, 1, 3),
    prio3_multihot(6, 6, 2),
    prio3_multihot(40, 5, 2),
    prio3_multihot(9, 4, 5),
]


def name(prio3: Prio3) -> str:
    return f"{prio3.circuit.name}-{prio3.circuit.measurement_length}-k{prio3.shares}"


@pytest.mark.parametrize("prio3", ALGORITHMS, ids=name)
def test_honest_reports_give_the_twins_bytes_at_every_aggregator(prio3: Prio3) -> None:
    for aggregator, batch in enumerate(shard(prio3, honest(prio3, 11))):
        verifier = KernelBatchVerifier(setting(prio3, aggregator))

        assert_same(verifier, batch)
        assert verifier.sum_outputs(batch) == ScalarBatchVerifier(verifier.setting).sum_outputs(batch)
        assert verifier.verify(batch).reasons == bytes(11)


def test_every_window_has_few_enough_calls_and_an_algorithm_with_more_is_refused() -> None:
    # Bits of 4,096 values, and of a set of up to all of them the bits of their number, two more and the product.
    assert max(-(-bits // bits_chunk_length(bits)) for bits in range(1, 4096 + 15)) == 63
    with pytest.raises(UsageError, match="no compiled verification"):
        new_plan(prio3_sum_vec_with_multiproof(64, 1, 1, 2), 0, CTX, bytes(32))


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 16, 23])
def test_any_number_of_reports_makes_a_batch(count: int) -> None:
    prio3 = prio3_two_round(4, 2)
    for aggregator, batch in enumerate(shard(prio3, honest(prio3, count))):
        verifier = KernelBatchVerifier(setting(prio3, aggregator))

        assert_same(verifier, batch)
        assert verifier.sum_outputs(batch) == ScalarBatchVerifier(verifier.setting).sum_outputs(batch)


@pytest.mark.parametrize("size", [0, 1, 4, 7, 16, 35, 36, 200, 333])
def test_a_context_of_any_length_shifts_the_words_of_every_hash(size: int) -> None:
    prio3, ctx = prio3_two_round(40, 2), random.Random(size).randbytes(size)
    for aggregator, batch in enumerate(shard(prio3, honest(prio3, 9), ctx=ctx)):
        assert_same(KernelBatchVerifier(setting(prio3, aggregator, ctx)), batch)


def flipped(column: bytes, bit: int) -> bytes:
    changed = bytearray(column)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize(
    "prio3", [prio3_two_round(3, 2), prio3_one_hot(3, 3), prio3_bits(5, 2), prio3_multihot(5, 3, 2)], ids=name
)
def test_a_changed_bit_changes_the_answer_for_its_report_alone(prio3: Prio3) -> None:
    draws = random.Random(3)
    for aggregator, batch in enumerate(shard(prio3, honest(prio3, 9))):
        verifier = KernelBatchVerifier(setting(prio3, aggregator))
        before = verifier.verify(batch)
        share = prio3.verifier_share_size
        for column in ("nonces", "public_shares", "input_shares"):
            for _ in range(12):
                whole = getattr(batch, column)
                bit = draws.randrange(8 * len(whole))
                hit = bit // (8 * len(whole) // 9)

                after = verifier.verify(replace(batch, **{column: flipped(whole, bit)}))

                assert after == ScalarBatchVerifier(verifier.setting).verify(
                    replace(batch, **{column: flipped(whole, bit)})
                )
                for report in set(range(9)) - {hit}:
                    assert after.reasons[report] == 0
                    for old, new, size in (
                        (before.seeds, after.seeds, 32),
                        (before.verifier_shares, after.verifier_shares, share),
                    ):
                        assert old[report * size :][:size] == new[report * size :][:size]


@pytest.mark.parametrize("value", [P - 1, P, P + 1, 2**64 - 1])
def test_every_word_of_the_leader_is_decoded_canonically(value: int) -> None:
    prio3 = prio3_two_round(4, 2)
    batch = shard(prio3, honest(prio3, 8))[0]
    verifier = KernelBatchVerifier(setting(prio3, 0))
    size = prio3.input_share_size(0)
    for word in range((size - 32) // 8):
        report = word % 8
        at = report * size + 8 * word
        column = batch.input_shares[:at] + value.to_bytes(8, "little") + batch.input_shares[at + 8 :]
        changed = replace(batch, input_shares=column)

        answer = verifier.verify(changed)

        reason = RejectReason.MALFORMED.value if value >= P else 0
        assert answer.reasons == bytes(report) + bytes([reason]) + bytes(7 - report)
        assert_same(verifier, changed)
        if reason:
            with pytest.raises(UsageError, match="cannot be in a sum"):
                verifier.sum_outputs(changed)


def test_the_blind_of_the_leader_is_not_a_field_element() -> None:
    prio3 = prio3_one_hot(4, 2)
    batch = shard(prio3, honest(prio3, 1))[0]
    changed = replace(batch, input_shares=batch.input_shares[:-32] + b"\xff" * 32)
    verifier = KernelBatchVerifier(setting(prio3, 0))

    assert verifier.verify(changed).reasons == b"\0"
    assert_same(verifier, changed)
    assert verifier.sum_outputs(changed) == ScalarBatchVerifier(verifier.setting).sum_outputs(changed)


def test_a_wrong_key_or_position_is_seen_as_the_twin_sees_it() -> None:
    prio3 = prio3_two_round(4, 3)
    batches = shard(prio3, honest(prio3, 5))
    for aggregator, key in ((1, bytes(32)), (2, KEY), (1, b"\xff" * 32)):
        assert_same(KernelBatchVerifier(setting(prio3, aggregator, key=key)), batches[1])


@pytest.mark.parametrize("limit", [0, 2**62, P - 2**58, P])
@pytest.mark.parametrize(
    "prio3", [prio3_two_round(20, 2), prio3_one_hot(9, 2), prio3_bits(9, 3), prio3_multihot(9, 3, 2)], ids=name
)
def test_reports_of_the_slow_path_have_the_same_answers(prio3: Prio3, limit: int) -> None:
    # A squeezed word that is not below p sends its report to the twin once in 2**32 words; a lower limit, often.
    for aggregator, batch in enumerate(shard(prio3, honest(prio3, 13))):
        verifier = KernelBatchVerifier(setting(prio3, aggregator), rejected_from=limit)

        assert_same(verifier, batch)
        assert verifier.sum_outputs(batch) == ScalarBatchVerifier(verifier.setting).sum_outputs(batch)


# Found by search, 2**32 words on average: with KEY and CTX these have a word of p or more where the streams are read.
LONG, SHORT = prio3_two_round(1000, 2), prio3_two_round(3, 2)
REJECTED = [
    ("measurement", LONG, 1_962_662),
    ("measurement", LONG, 3_176_950),
    ("proofs", SHORT, 407_579_759),
    ("query", SHORT, 316_035_249),
]


def largest_word(seed: bytes, usage: int, binder: bytes, words: int) -> int:
    stream = XofTurboShake128(seed, domain_separation_tag(0xFFFF1001, usage, CTX), binder)
    return max(FIELD64.unpack_words(stream.next(8 * words)))


@pytest.mark.parametrize(("stream", "prio3", "number"), REJECTED)
def test_a_drawn_word_that_is_not_below_p_is_dropped_as_the_draft_says(stream: str, prio3: Prio3, number: int) -> None:
    found, draws = number.to_bytes(32, "little"), random.Random(5)
    nonce, seed = (found[:16], bytes(32)) if stream == "query" else (bytes(16), found)
    flp = prio3.flp
    largest = {
        "measurement": lambda: largest_word(seed, 1, b"\1", prio3.circuit.measurement_length),
        "proofs": lambda: largest_word(seed, 2, b"\3\1", flp.proof_length * 3),
        "query": lambda: largest_word(KEY, 5, b"\3" + nonce, flp.query_rand_length * 3),
    }[stream]()
    assert largest >= P
    batch = ProofBatch(
        nonces=draws.randbytes(32) + nonce + draws.randbytes(16),
        public_shares=draws.randbytes(4 * prio3.public_share_size),
        input_shares=draws.randbytes(128) + seed + bytes(32) + draws.randbytes(64),
    )
    verifier = KernelBatchVerifier(setting(prio3, 1))

    assert_same(verifier, batch)
    assert verifier.sum_outputs(batch) == ScalarBatchVerifier(verifier.setting).sum_outputs(batch)
    careless = KernelBatchVerifier(setting(prio3, 1), rejected_from=2**64 - 1)
    assert careless.verify(batch) != verifier.verify(batch)


@compiled
def _judge_to_row(plan: Plan, rows: Words) -> None:
    store(rows, plan.seeds_at, judge(plan, splat(np.uint64(0)), splat(np.uint64(0)), rows))


@pytest.mark.parametrize(
    "prio3", [prio3_two_round(3, 2), prio3_one_hot(3, 2), prio3_bits(10, 2), prio3_multihot(7, 2, 2)], ids=name
)
def test_a_query_point_that_is_a_root_of_unity_of_the_wires_is_an_invalid_proof(prio3: Prio3) -> None:
    plan, layout = new_plan(prio3, 1, CTX, KEY)
    with layout.memory() as rows:
        nodes = [int(node) for node in rows[plan.wire_nodes_at :, 0][: plan.wire_nodes]]
        assert [pow(node, plan.wire_nodes, P) for node in nodes] == [1] * plan.wire_nodes
        others = [0, 2, P - 2, FIELD64.root_of_unity(2 * plan.wire_nodes)]
        for proof, point in product(range(prio3.proofs), nodes + others):
            rows[plan.query_at : plan.query_at + plan.query * prio3.proofs] = 5
            rows[plan.query_at + plan.query * (proof + 1) - 1, 3] = point

            _judge_to_row(plan, rows)

            reason = RejectReason.INVALID_PROOF.value if point in nodes else 0
            assert rows[plan.seeds_at].tolist() == [0, 0, 0, reason, 0, 0, 0, 0]


# The vectors of the repository.


def vectors(file: str) -> list[Any]:
    loaded: list[Any] = json.loads((VECTORS / file).read_text())
    return loaded


def vector_answers(entry: Any) -> tuple[Prio3, list[KernelBatchVerifier], list[ProofBatch]]:
    """Return the algorithm, a verifier and a batch an aggregator for one entry of a vector file."""
    make = {"TwoRoundOneHot": prio3_two_round, "OneHot": prio3_one_hot}[entry["algorithm"]]
    prio3 = make(entry["length"], entry["shares"], entry["proofs"])
    key, ctx, reports = bytes.fromhex(entry["verify_key"]), bytes.fromhex(entry["ctx"]), entry["reports"]
    batches = [
        ProofBatch(
            nonces=joined(report["nonce"] for report in reports),
            public_shares=joined(report["public_share"] for report in reports),
            input_shares=joined(report["input_shares"][j] for report in reports),
        )
        for j in range(prio3.shares)
    ]
    return prio3, [KernelBatchVerifier(setting(prio3, j, ctx, key)) for j in range(prio3.shares)], batches


def joined(texts: Iterable[str]) -> bytes:
    return b"".join(bytes.fromhex(text) for text in texts)


@pytest.mark.parametrize(
    "entry", vectors("two_round.json"), ids=lambda entry: f"{entry['algorithm']}-{entry['length']}"
)
def test_the_good_vectors_agree_byte_for_byte(entry: Any) -> None:
    prio3, verifiers, batches = vector_answers(entry)
    reports = entry["reports"]

    for j, (verifier, batch) in enumerate(zip(verifiers, batches, strict=True)):
        answer = verifier.verify(batch)

        assert answer.reasons == bytes(len(reports))
        assert answer.verifier_shares == joined(report["verifier_shares"][j] for report in reports)
        assert answer.seeds == joined(report["verifier_message"] for report in reports)
        outputs = [prio3.decode_output_share(bytes.fromhex(report["out_shares"][j])) for report in reports]
        total = FIELD64.add_vectors(outputs, prio3.circuit.output_length)
        assert FIELD64.decode_vector(answer.output_sum, prio3.circuit.output_length) == total


@pytest.mark.parametrize("entry", vectors("two_round_bad.json"), ids=lambda entry: entry["algorithm"])
def test_the_bad_vectors_agree_and_are_refused(entry: Any) -> None:
    prio3, verifiers, batches = vector_answers(entry)
    reports = entry["reports"]

    answers = [verifier.verify(batch) for verifier, batch in zip(verifiers, batches, strict=True)]

    for j, answer in enumerate(answers):
        assert answer.verifier_shares == joined(report["verifier_shares"][j] for report in reports)
        assert_same(verifiers[j], batches[j])
    messages, holds = combine(prio3, verifiers[0].setting.ctx, [answer.verifier_shares for answer in answers])
    for at in range(len(reports)):
        agree = all(answer.seeds[32 * at :][:32] == messages[32 * at :][:32] for answer in answers)
        assert not (holds[at] and agree)


# Combining.


def both_combine(prio3: Prio3, columns: list[bytes]) -> bytes:
    """Combine with both implementations, see that they agree, and return which reports hold."""
    compiled_answer = combine(prio3, CTX, columns, prefer="kernel")
    assert compiled_answer == combine(prio3, CTX, columns, prefer="scalar")
    return compiled_answer[1]


@pytest.mark.parametrize("count", [0, 1, 8, 13])
@pytest.mark.parametrize("prio3", ALGORITHMS, ids=name)
def test_combining_is_the_twins(prio3: Prio3, count: int) -> None:
    batches = shard(prio3, honest(prio3, count))
    columns = [KernelBatchVerifier(setting(prio3, j)).verify(batch).verifier_shares for j, batch in enumerate(batches)]

    assert both_combine(prio3, columns) == b"\1" * count


@pytest.mark.parametrize("prio3", [prio3_two_round(3, 3), prio3_bits(7, 2)], ids=name)
def test_every_word_of_a_verifier_share_counts_for_its_report_alone(prio3: Prio3) -> None:
    batches = shard(prio3, honest(prio3, 9))
    columns = [KernelBatchVerifier(setting(prio3, j)).verify(batch).verifier_shares for j, batch in enumerate(batches)]
    size = prio3.verifier_share_size
    for word in range(size // 8):
        report, aggregator = word % 9, word % prio3.shares
        at = report * size + 8 * word
        for value in (0, P - 1, P, 2**64 - 1):
            changed = [*columns]
            column = columns[aggregator]
            changed[aggregator] = column[:at] + value.to_bytes(8, "little") + column[at + 8 :]

            holds = both_combine(prio3, changed)

            # The last four words are the joint-randomness part: another seed, but the proofs hold.
            wanted = 1 if word >= size // 8 - 4 else 0
            assert holds == b"\1" * report + bytes([wanted]) + b"\1" * (8 - report)


# The pieces.

EDGE = [0, 1, 2, 2**32 - 2, 2**32 - 1, 2**32, 2**32 + 1, P // 2, P - 2**32 - 1, P - 2**32, P - 2**32 + 1, P - 2, P - 1]


@compiled
def _arithmetic(rows: Words, count: int) -> None:
    for at in range(0, 5 * count, 5):
        left, right = load(rows, at), load(rows, at + 1)
        store(rows, at + 2, add(left, right))
        store(rows, at + 3, subtract(left, right))
        store(rows, at + 4, multiply(left, right))


def test_arithmetic_is_that_of_the_field() -> None:
    draws = random.Random(7)
    words = EDGE + [draws.randrange(P) for _ in range(51)]
    pairs = np.array(list(product(words, words)), dtype=np.uint64).reshape(-1, 8, 2)
    rows = np.zeros((5 * len(pairs), 8), dtype=np.uint64)
    rows[0::5], rows[1::5] = pairs[:, :, 0], pairs[:, :, 1]

    _arithmetic(rows, len(pairs))

    for group in range(len(pairs)):
        for lane in range(8):
            left, right, *results = (int(word) for word in rows[5 * group : 5 * group + 5, lane])
            assert results == [(left + right) % P, (left - right) % P, left * right % P]


@compiled
def _limbs(rows: Words, count: int) -> None:
    for at in range(0, 7 * count, 7):
        low = load(rows, at), load(rows, at + 1), load(rows, at + 2)
        high = load(rows, at + 3), load(rows, at + 4), load(rows, at + 5)
        store(rows, at + 6, sum_limbs(low[0], low[1], low[2], high[0], high[1], high[2]))


def test_sums_of_products_of_limbs_are_reduced_for_any_six_words() -> None:
    draws = random.Random(8)
    edge = [0, 1, 2**32 - 1, 2**32, 2**63, P - 1, P, 2**64 - 1]
    rows = np.zeros((7 * 200, 8), dtype=np.uint64)
    for row, lane in product(range(len(rows)), range(8)):
        rows[row, lane] = draws.choice(edge) if draws.random() < 0.7 else draws.randrange(2**64)
    rows[:7] = 2**64 - 1

    _limbs(rows, 200)

    for at, lane in product(range(0, len(rows), 7), range(8)):
        a, b, c, d, e, f, result = (int(word) for word in rows[at : at + 7, lane])
        wanted = a + (b << 22) + (c << 44) + ((d + (e << 22) + (f << 44)) << 32)
        assert result == wanted % P


def test_what_is_chosen_says_so() -> None:
    ours, other = setting(prio3_one_hot(3, 2), 1), setting(prio3_sum_vec_with_multiproof(3, 5, 2, 2), 1)

    assert new_batch_verifier(ours).name == "kernel"
    assert new_batch_verifier(ours, prefer="scalar").name == "scalar"
    assert new_batch_verifier(ours, prefer="arrays").name == "arrays"
    assert new_batch_verifier(other).name == "arrays"
    with pytest.raises(UsageError, match="no compiled"):
        new_batch_verifier(other, prefer="kernel")


SMALL = [0, 1, 2, P - 1]


@pytest.mark.parametrize(
    ("prio3", "valid"),
    [(prio3_two_round(2, 2), 3), (prio3_one_hot(2, 2), 2), (prio3_one_hot(3, 2), 3), (prio3_bits(3, 2), 8)],
    ids=str,
)
def test_exactly_the_valid_measurements_are_accepted(prio3: Prio3, valid: int) -> None:
    vectors = list(product(SMALL, repeat=prio3.circuit.measurement_length))
    batches = shard(prio3, vectors)

    answers = [KernelBatchVerifier(setting(prio3, j)).verify(batch) for j, batch in enumerate(batches)]
    messages, holds = combine(prio3, CTX, [answer.verifier_shares for answer in answers])

    accepted = {vector for vector, good in zip(vectors, holds, strict=True) if good}
    assert accepted == {tuple(vector) for vector in honest(prio3, 200)}
    assert len(accepted) == valid
    assert all(answer.reasons == bytes(len(vectors)) for answer in answers)
    for at, good in enumerate(holds):
        if good:
            assert all(answer.seeds[32 * at :][:32] == messages[32 * at :][:32] for answer in answers)

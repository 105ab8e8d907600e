"""Uploads as columns: what the codec takes and refuses; opened together as one by one."""

import hmac
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from fleetcount_protocol.channel.session import SessionSecret, make_receipt, seal_instalment, unseal_instalment
from fleetcount_protocol.errors import DecodeError, RejectReason, UsageError
from fleetcount_protocol.ids import AggregatorId, ReportId, SessionId, WindowId
from fleetcount_protocol.limits import MAX_BATCH_BYTES, MAX_INSTALMENTS_PER_BATCH
from fleetcount_protocol.messages import Instalment, Receipt
from fleetcount_protocol.wire import device_unsealing as bulk_opening
from fleetcount_protocol.wire.device_columns import (
    UPLOAD,
    UPLOAD_ANSWER,
    InstalmentColumns,
    InstalmentReplyColumns,
    Upload,
    UploadAnswer,
    batches,
)
from fleetcount_protocol.wire.device_unsealing import SessionKeys, digest_columns, receipt_columns, unseal_columns
from hypothesis import given
from hypothesis import strategies as st

from tests.support.protocol_samples import instalment, seed_bytes
from tests.support.wire_messages import refusal

ALPHA = AggregatorId("alpha")
WINDOWS = [WindowId(seed_bytes(f"window {number}")) for number in range(2)]


def one(number: int, window: int, round_number: int, share: int, size: int) -> Instalment:
    """Return an instalment whose fields follow from a number."""
    return Instalment(
        window_id=WINDOWS[window],
        report_id=ReportId(seed_bytes(f"report {number}", 16)),
        session_id=SessionId(seed_bytes(f"session {number}", 16)),
        key_number=1 + 650 * (number % 100),
        round=round_number,
        public_share=b"" if round_number == 1 else seed_bytes(f"share {number}", share),
        ciphertext=seed_bytes(f"ciphertext {number}", size),
    )


ONE = st.builds(
    one,
    st.integers(0, 99),
    st.integers(0, 1),
    st.integers(0, 2),
    st.sampled_from([0, 64, 127, 128, 160]),
    st.sampled_from([17, 48, 127, 128, 300]),
)
BATCHES = st.lists(st.tuples(ONE, st.integers(1, 5)), min_size=1, max_size=6).map(
    lambda runs: tuple(replace(part, report_id=ReportId(bytes([n]) * 16)) for part, count in runs for n in range(count))
)


@given(BATCHES)
def test_an_upload_returns_in_order_in_as_few_runs_as_there_are(batch: tuple[Instalment, ...]) -> None:
    upload = Upload.of(ALPHA, batch)

    assert UPLOAD.decode(UPLOAD.encode(upload)) == upload
    assert upload.instalments() == list(batch)
    assert all(one.shape != other.shape for one, other in pairwise(upload.runs))


def test_an_upload_of_nothing_is_refused() -> None:
    for codec, value in ((UPLOAD, Upload.of(ALPHA, [])), (UPLOAD_ANSWER, UploadAnswer.of([]))):
        with pytest.raises(DecodeError, match="0 runs"):
            codec.decode(codec.to_pb(value).SerializeToString())


@pytest.mark.parametrize("round_number", [0, 1, 2])
def test_every_flipped_bit_of_an_upload_is_refused_or_another_upload(round_number: int) -> None:
    good = UPLOAD.encode(Upload.of(ALPHA, [one(number, 0, round_number, 64, 48) for number in range(3)]))
    taken = 0

    for bit in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found = UPLOAD.decode(bytes(flipped))
        except DecodeError:
            continue
        # What is taken says its own bytes again, so that no two bytes say one upload.
        assert UPLOAD.encode(found) == bytes(flipped) != good, bit
        taken += 1
    assert taken


GOOD = Upload.of(ALPHA, [one(number, 0, 2, 64, 48) for number in range(3)]).runs[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"round": 3},
        {"round": 1},  # With public shares.
        {"report_ids": []},
        {"report_ids": [*GOOD.report_ids[:-1], bytes(15)]},
        {"report_ids": GOOD.report_ids[:-1]},
        {"session_ids": GOOD.session_ids[:-1]},
        {"session_ids": [*GOOD.session_ids, bytes(16)]},
        {"key_numbers": GOOD.key_numbers[:-1]},
        {"key_numbers": [*GOOD.key_numbers[:-1], bytes(2)]},
        {"public_shares": [*GOOD.public_shares[:-1], bytes(63)]},
        {"public_shares": [bytes(161)] * 3},
        {"ciphertexts": [*GOOD.ciphertexts[:-1], bytes(47)]},
        {"ciphertexts": [bytes(16)] * 3},
        {"ciphertexts": [bytes(200 * 1024 + 1)] * 3},
        {"ciphertexts": []},
    ],
)
def test_columns_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    assert UPLOAD.decode(UPLOAD.encode(Upload(aggregator_id=ALPHA, runs=(GOOD,)))).runs == (GOOD,)

    with pytest.raises(DecodeError):
        UPLOAD.decode(UPLOAD.encode(Upload(aggregator_id=ALPHA, runs=(replace(GOOD, **changes),))))


def test_neighbouring_runs_of_one_shape_are_refused() -> None:
    other = replace(GOOD, window_id=WINDOWS[1])

    UPLOAD.decode(UPLOAD.encode(Upload(aggregator_id=ALPHA, runs=(GOOD, other, GOOD))))
    with pytest.raises(DecodeError, match="neighbouring"):
        UPLOAD.decode(UPLOAD.encode(Upload(aggregator_id=ALPHA, runs=(other, GOOD, GOOD))))


def test_an_upload_beyond_its_caps_is_refused() -> None:
    def many(count: int) -> Upload:
        return Upload.of(ALPHA, [one(0, 0, 1, 0, 17)] * count)

    assert len(UPLOAD.decode(UPLOAD.encode(many(MAX_INSTALMENTS_PER_BATCH))).runs[0]) == MAX_INSTALMENTS_PER_BATCH
    halves = [one(0, 0, 1, 0, 17)] * (MAX_INSTALMENTS_PER_BATCH // 2), [one(0, 1, 1, 0, 17)] * 1_025
    for upload in (many(MAX_INSTALMENTS_PER_BATCH + 1), Upload.of(ALPHA, [*halves[0], *halves[1]])):
        with pytest.raises(DecodeError):
            UPLOAD.decode(UPLOAD.encode(upload))
    with pytest.raises(DecodeError, match="bytes"):
        UPLOAD.decode(bytes(MAX_BATCH_BYTES + 1))


def test_uploads_of_many_instalments_fit_their_message() -> None:
    small = [instalment(round=0, ciphertext=bytes(17)) for _ in range(3_000)]
    mixed = [one(number, number % 2, number % 3, 64, 400) for number in range(3_000)]
    large = [instalment(round=0, ciphertext=bytes(190_000)) for _ in range(12)]
    for instalments in (small, mixed, large, small[:1], []):
        uploads = list(batches(ALPHA, instalments))
        assert [part for upload in uploads for part in upload.instalments()] == instalments
        for upload in uploads:
            assert UPLOAD.decode(UPLOAD.encode(upload)) == upload
    assert len(list(batches(ALPHA, large))) == 3


def test_the_payload_of_a_topic_is_one_instalment_or_one_answer() -> None:
    assert list(Upload.of(ALPHA, [instalment()]).only_one.instalments()) == [instalment()]
    for upload in (Upload.of(ALPHA, []), Upload.of(ALPHA, [instalment()] * 2)):
        with pytest.raises(DecodeError):
            _ = upload.only_one
    assert UploadAnswer.of([refusal()]).only_one == refusal()
    for answer in (UploadAnswer.of([]), UploadAnswer.of([refusal()] * 2)):
        with pytest.raises(DecodeError):
            _ = answer.only_one


ASKED = Upload.of(ALPHA, [one(number, 0, 2, 64, 48) for number in range(6)]).runs[0]
ANSWERED = InstalmentReplyColumns.answering(
    ASKED,
    bytes((0, RejectReason.BUSY.value, 0, RejectReason.UNKNOWN_WINDOW.value, 0, 0)),
    b"".join(seed_bytes(f"digest {number}") for number in range(4)),
    b"".join(seed_bytes(f"mac {number}") for number in range(4)),
)


def test_answers_return_one_by_one_and_split_into_those_of_several_devices() -> None:
    answer = UploadAnswer(runs=(ANSWERED, ANSWERED))

    assert UPLOAD_ANSWER.decode(UPLOAD_ANSWER.encode(answer)) == answer
    replies = answer.replies()
    assert [reply.report_id for reply in replies] == [part.report_id for part in ASKED.instalments()] * 2
    assert [isinstance(reply, Receipt) for reply in replies] == [True, False, True, False, True, True] * 2
    assert [reply.mac for reply in replies if isinstance(reply, Receipt)][3] == seed_bytes("mac 3")
    assert UploadAnswer.of(replies[:6]).replies() == replies[:6]
    assert UploadAnswer(runs=tuple(ANSWERED.split([1, 3, 2]))).replies() == replies[:6]
    assert "macs" not in repr(ANSWERED)


@pytest.mark.parametrize(
    "changes",
    [
        {"round": 3},
        {"reasons": ANSWERED.reasons[:-1]},
        {"reasons": b""},
        {"reasons": ANSWERED.reasons[:-1] + b"\x13"},
        {"report_ids": ANSWERED.report_ids[:-16]},
        {"session_ids": ANSWERED.session_ids[:-16]},
        {"digests": ANSWERED.digests[:-32]},
        {"macs": ANSWERED.macs[:-1]},
        {"macs": ANSWERED.macs + bytes(32)},
    ],
)
def test_columns_of_answers_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        UPLOAD_ANSWER.decode(UPLOAD_ANSWER.encode(UploadAnswer(runs=(replace(ANSWERED, **changes),))))


def secret_of(number: int) -> SessionSecret:
    return SessionSecret(
        session_id=SessionId(seed_bytes(f"session {number}", 16)),
        aggregator_id=AggregatorId("alpha"),
        secret=seed_bytes(f"secret {number}"),
        receipt_key=seed_bytes(f"receipt key {number}"),
        number=1 + 300 * number,
        expiry=2_000_000_000,
    )


@pytest.mark.parametrize(("round_number", "share", "size"), [(0, 64, 64), (1, 0, 32), (2, 96, 8_256)])
def test_instalments_open_together_as_they_do_alone(round_number: int, share: int, size: int) -> None:
    secrets = [secret_of(number) for number in range(5)]
    sealed = [
        seal_instalment(
            secret.window_key,
            WINDOWS[0],
            ReportId(seed_bytes(f"report {number}", 16)),
            round_number,
            1,
            seed_bytes(f"share {number}", share),
            seed_bytes(f"part {number}", size),
        )
        for number, secret in enumerate(secrets)
    ]
    sealed[3] = replace(sealed[3], ciphertext=bytes([sealed[3].ciphertext[0] ^ 1]) + sealed[3].ciphertext[1:])
    [columns] = InstalmentColumns.of(sealed)
    keys = SessionKeys(
        window_keys=[secret.window_key.key for secret in secrets],
        receipt_keys=[secret.receipt_key for secret in secrets],
    )

    opened = unseal_columns(keys, 1, columns)

    parts = [None if n == 3 else unseal_instalment(secrets[n].window_key, 1, part) for n, part in enumerate(sealed)]
    assert list(opened.parts) == parts
    assert list(opened.digests) == [part.digest for part in sealed] == digest_columns(columns)
    assert list(opened.macs) == [make_receipt(secrets[n], part).mac for n, part in enumerate(sealed)]
    assert list(unseal_columns(keys, 0, columns).parts) == [None] * 5, "another aggregator's position"
    assert secrets[0].window_key.key.hex() not in repr(keys)
    stored = receipt_columns(keys.receipt_keys, columns)
    assert (stored.parts, stored.digests, stored.macs) == ((), opened.digests, opened.macs)
    assert "parts" not in repr(opened)


def test_keys_of_another_size_and_positions_no_window_has_are_refused() -> None:
    [columns] = InstalmentColumns.of([instalment()])

    for keys, position in (
        (SessionKeys(window_keys=[bytes(31)], receipt_keys=[bytes(32)]), 0),
        (SessionKeys(window_keys=[bytes(32)], receipt_keys=[bytes(33)]), 0),
        (SessionKeys(window_keys=[bytes(32)], receipt_keys=[bytes(32)]), 5),
    ):
        with pytest.raises(UsageError):
            unseal_columns(keys, position, columns)
    for receipt_keys in ([bytes(31)], [bytes(33)], [], [bytes(32)] * 2):
        with pytest.raises(UsageError, match="allowed: 1, of 32 bytes each"):
            receipt_columns(receipt_keys, columns)


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=300))
def test_the_short_hmac_is_the_library_s(key: bytes, message: bytes) -> None:
    assert bulk_opening._hmac(key, message) == hmac.digest(key, message, "sha256")

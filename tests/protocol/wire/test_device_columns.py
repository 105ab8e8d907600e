"""Batches as columns: what the codec reads and writes, and nothing it refuses; opened as one by one."""

import hmac
from dataclasses import replace

import pytest
from fleetcount_protocol.channel.receipts import make_receipt
from fleetcount_protocol.channel.session import SessionSecret, seal_instalment, unseal_instalment
from fleetcount_protocol.errors import DecodeError, RejectReason, UsageError
from fleetcount_protocol.ids import AggregatorId, ReportId, SessionId, TaskId
from fleetcount_protocol.limits import MAX_INSTALMENTS_PER_BATCH
from fleetcount_protocol.messages import Instalment
from fleetcount_protocol.wire import device_columns as bulk
from fleetcount_protocol.wire import device_unsealing as bulk_opening
from fleetcount_protocol.wire.device import INSTALMENT_REPLIES, INSTALMENTS
from fleetcount_protocol.wire.device_columns import (
    InstalmentColumns,
    ReplyColumns,
    read_instalments,
    split_entries,
    write_replies,
)
from fleetcount_protocol.wire.device_unsealing import SessionKeys, digest_columns, receipt_columns, unseal_columns
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nightly import NIGHTLY
from tests.support.protocol_samples import instalment, seed_bytes

TASKS = [TaskId(seed_bytes(f"task {number}")) for number in range(2)]


def one(number: int, task: int, round_number: int, share: int, size: int) -> Instalment:
    """Return an instalment whose fields follow from a number."""
    return Instalment(
        task_id=TASKS[task],
        report_id=ReportId(seed_bytes(f"report {number}", 16)),
        session_id=SessionId(seed_bytes(f"session {number}", 16)),
        key_number=1 + 650 * number,
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
BATCHES = st.lists(st.tuples(ONE, st.integers(1, 5)), max_size=6).map(
    lambda runs: tuple(replace(part, report_id=ReportId(bytes([n]) * 16)) for part, count in runs for n in range(count))
)


def decoded(data: bytes) -> list[Instalment] | None:
    try:
        return [part for columns in read_instalments(data) for part in columns.instalments()]
    except DecodeError:
        return None


def decoded_by_the_codec(data: bytes) -> list[Instalment] | None:
    try:
        return list(INSTALMENTS.decode(data))
    except DecodeError:
        return None


@given(BATCHES)
def test_a_batch_returns_in_order(batch: tuple[Instalment, ...]) -> None:
    columns = read_instalments(INSTALMENTS.encode(batch))

    assert [part for run in columns for part in run.instalments()] == list(batch)
    assert [part for run in InstalmentColumns.of(batch) for part in run.instalments()] == list(batch)


def test_runs_of_tasks_rounds_and_sizes_are_read_without_the_codec() -> None:
    runs = [(0, 1, 0, 48), (0, 2, 64, 48), (1, 2, 64, 48), (1, 2, 64, 8_272), (0, 0, 160, 80)]
    batch = tuple(one(n, *run) for run in runs for n in range(20))

    columns = bulk._read_runs(INSTALMENTS.encode(batch))

    assert columns is not None
    assert [len(run) for run in columns] == [20] * 5


@given(BATCHES, st.data())
@settings(max_examples=600 if NIGHTLY else 150)
def test_a_spliced_batch_is_read_as_the_codec_reads_it(batch: tuple[Instalment, ...], data: st.DataObject) -> None:
    spliced = INSTALMENTS.encode(batch)
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(spliced)))
        end = data.draw(st.integers(start, min(len(spliced), start + 6)))
        spliced = spliced[:start] + data.draw(st.binary(max_size=6)) + spliced[end:]

    assert decoded(spliced) == decoded_by_the_codec(spliced)


@pytest.mark.parametrize("round_number", [0, 1, 2])
def test_every_flipped_bit_of_a_batch_is_read_as_the_codec_reads_it(round_number: int) -> None:
    good = INSTALMENTS.encode(tuple(one(number, 0, round_number, 64, 48) for number in range(3)))

    for bit in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decoded(bytes(flipped)) == decoded_by_the_codec(bytes(flipped)), bit


def test_a_second_spelling_in_any_entry_of_a_run_is_refused() -> None:
    entries = split_entries(INSTALMENTS.encode(tuple(one(number, 0, 2, 64, 48) for number in range(4))))
    padded = entries[2][:1] + bytes([entries[2][1], 0x80 | entries[2][2], 0])[:3] + entries[2][3:]
    zero_round = entries[2].replace(b"\x20\x02", b"\x20\x00")
    longer_round = entries[2][:1] + bytes([entries[2][1] + 1]) + entries[2][2:].replace(b"\x20\x02", b"\x20\x82\x00")

    for wrong in (padded, zero_round, longer_round, entries[2] + b"\x0a", entries[2][:-1], b"\x12" + entries[2][1:]):
        with pytest.raises(DecodeError):
            read_instalments(entries[0] + entries[1] + wrong + entries[3])


@pytest.mark.parametrize(
    "change",
    [{"public_share": bytes(161)}, {"ciphertext": bytes(16)}, {"ciphertext": bytes(200 * 1024 + 1)}, {"round": 3}],
)
def test_fields_out_of_range_are_refused(change: dict[str, object]) -> None:
    message = INSTALMENTS.to_pb((instalment(),))
    for name, value in change.items():
        setattr(message.instalments[0], name, value)

    with pytest.raises(DecodeError):
        read_instalments(message.SerializeToString(deterministic=True))


def test_a_batch_beyond_its_caps_is_refused() -> None:
    entry = INSTALMENTS.encode((one(0, 0, 1, 0, 17),))
    large = INSTALMENTS.encode((one(0, 0, 1, 0, 150_000),))

    assert len(read_instalments(entry * MAX_INSTALMENTS_PER_BATCH)[0]) == MAX_INSTALMENTS_PER_BATCH
    for data in (entry * (MAX_INSTALMENTS_PER_BATCH + 1), large * 7):
        with pytest.raises(DecodeError):
            read_instalments(data)
        with pytest.raises(DecodeError):
            split_entries(data)
    for junk in (b"\x0a", b"\x0a\x80\x80\x80\x01", b"\x0a\x05abcd", b"\x12\x00", b"\x08\x01"):
        with pytest.raises(DecodeError):
            split_entries(entry + junk)
        with pytest.raises(DecodeError):
            read_instalments(entry + junk)


@pytest.mark.parametrize("round_number", [0, 1, 2])
def test_answers_are_the_codec_s_bytes_and_split_into_entries(round_number: int) -> None:
    [asked] = InstalmentColumns.of([one(number, 0, round_number, 64, 48) for number in range(6)])
    answered = ReplyColumns(
        instalments=asked,
        reasons=[None, RejectReason.BUSY, None, RejectReason.UNKNOWN_TASK, None, None],
        digests=[seed_bytes(f"digest {number}") for number in range(6)],
        macs=[seed_bytes(f"mac {number}") for number in range(6)],
    )

    data = write_replies([answered, answered])

    assert data == INSTALMENT_REPLIES.encode((*answered.replies(), *answered.replies()))
    assert split_entries(data) == [INSTALMENT_REPLIES.encode((reply,)) for reply in answered.replies()] * 2


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
            secret.task_key,
            TASKS[0],
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
        task_keys=[secret.task_key.key for secret in secrets],
        receipt_keys=[secret.receipt_key for secret in secrets],
    )

    opened = unseal_columns(keys, 1, columns)

    parts = [None if n == 3 else unseal_instalment(secrets[n].task_key, 1, part) for n, part in enumerate(sealed)]
    assert list(opened.parts) == parts
    assert list(opened.digests) == [part.digest for part in sealed] == digest_columns(columns)
    assert list(opened.macs) == [make_receipt(secrets[n], part).mac for n, part in enumerate(sealed)]
    assert list(unseal_columns(keys, 0, columns).parts) == [None] * 5, "another aggregator's position"
    assert secrets[0].task_key.key.hex() not in repr(keys)
    stored = receipt_columns(keys.receipt_keys, columns)
    assert (stored.parts, stored.digests, stored.macs) == ((), opened.digests, opened.macs)
    assert "parts" not in repr(opened)


def test_keys_of_another_size_and_positions_no_task_has_are_refused() -> None:
    [columns] = InstalmentColumns.of([instalment()])

    for keys, position in (
        (SessionKeys(task_keys=[bytes(31)], receipt_keys=[bytes(32)]), 0),
        (SessionKeys(task_keys=[bytes(32)], receipt_keys=[bytes(33)]), 0),
        (SessionKeys(task_keys=[bytes(32)], receipt_keys=[bytes(32)]), 5),
    ):
        with pytest.raises(UsageError):
            unseal_columns(keys, position, columns)


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=300))
def test_the_short_hmac_is_the_library_s(key: bytes, message: bytes) -> None:
    assert bulk_opening._hmac(key, message) == hmac.digest(key, message, "sha256")

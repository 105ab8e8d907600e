"""Every message of the wire has one encoding; whatever else arrives is refused with our own error."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.messages import ReleaseAnswer, SealSet, WindowState, WindowStatus
from fleetcount_protocol.v1 import peer_pb2
from fleetcount_protocol.window.domain import MAX_OPENED
from fleetcount_protocol.wire import device as codec
from fleetcount_protocol.wire import device_columns as columns_codec
from fleetcount_protocol.wire import peer
from fleetcount_protocol.wire import peer as peer_codec
from fleetcount_protocol.wire.codec import WireMessage
from google.protobuf.internal import api_implementation
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cases import case
from tests.support.nightly import NIGHTLY
from tests.support.protocol_samples import seed_bytes
from tests.support.wire_messages import IDS, MESSAGES, SET, WINDOW, refusal, share

NAMES = sorted(MESSAGES)
SMALL = [name for name in NAMES if len(MESSAGES[name][0].encode(MESSAGES[name][1])) < 450]


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def fields_of(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield (start, end, number, payload) of the outermost fields, payload b"" for numbers."""
    position = 0
    while position < len(data):
        start = position
        tag, position = read(data, position)
        value, position = read(data, position)
        payload = b""
        if tag & 7 == 2:
            payload = data[position : position + value]
            position += value
        yield start, position, tag >> 3, payload


def read(data: bytes, position: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def refused(message: WireMessage[Any, Any], data: bytes) -> None:
    with pytest.raises(DecodeError):
        message.decode(data)


def test_backend_is_the_one_whose_limits_were_measured() -> None:
    assert api_implementation.Type() == "upb"


def test_message_returns() -> None:
    for name in NAMES:
        with case(name):
            message, value = MESSAGES[name]

            assert message.decode(message.encode(value)) == value
            assert message.from_pb(message.to_pb(value)) == value


def test_message_is_refused_or_another_truncated_at_every_byte() -> None:
    for name in NAMES:
        with case(name):
            message, value = MESSAGES[name]
            data = message.encode(value)
            for end in range(len(data)):
                try:
                    shorter = message.decode(data[:end])
                except DecodeError:
                    continue
                assert shorter != value
                assert message.encode(shorter) == data[:end]


@pytest.mark.parametrize("name", SMALL)
def test_every_flipped_bit_is_refused_or_another_message(name: str) -> None:
    message, value = MESSAGES[name]
    data = message.encode(value)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            other = message.decode(bytes(flipped))
        except DecodeError:
            continue
        assert other != value
        assert message.encode(other) == flipped


def test_unknown_fields_are_refused() -> None:
    for name in NAMES:
        with case(name):
            message, value = MESSAGES[name]
            data = message.encode(value)
            for unknown in (
                b"\xf8\x01\x01",
                b"\xfa\x01\x00",
                b"\xf9\x01" + bytes(8),
                b"\xfd\x01" + bytes(4),
                b"\xfb\x01\xfc\x01",
            ):
                refused(message, data + unknown)
                refused(message, unknown + data)
                parsed = message.pb_type()
                parsed.ParseFromString(data + unknown)
                with pytest.raises(DecodeError):
                    message.from_pb(parsed)


def test_unknown_fields_inside_parts_are_refused() -> None:
    for name in NAMES:
        with case(name):
            message, value = MESSAGES[name]
            data = message.encode(value)
            for start, end, number, payload in fields_of(data):
                if message.pb_type.DESCRIPTOR.fields_by_number[number].message_type is None:
                    continue
                inner = payload + b"\xf8\x01\x01"
                refused(message, data[:start] + varint(number << 3 | 2) + varint(len(inner)) + inner + data[end:])


def test_fields_twice_out_of_order_padded_or_of_another_type_are_refused() -> None:
    for name in NAMES:
        with case(name):
            message, value = MESSAGES[name]
            data = message.encode(value)
            parts = list(fields_of(data))
            repeated = {number for _, _, number, _ in parts if sum(one[2] == number for one in parts) > 1}
            for start, end, number, payload in parts:
                field = data[start:end]
                if number not in repeated and not _is_repeated(message, number):
                    refused(message, data[:start] + field + data[start:])
                if len({one[2] for one in parts}) > 1 and number != parts[-1][2]:
                    refused(message, data[:start] + data[end:] + field)
                tag, after = read(data, start)
                padded_tag = bytes([data[start] | 0x80, 0]) if after == start + 1 else None
                if padded_tag:
                    refused(message, data[:start] + padded_tag + data[after:])
                if tag & 7 == 2:
                    length = varint(len(payload))
                    padded = length[:-1] + bytes([length[-1] | 0x80, 0])
                    refused(message, data[:after] + padded + payload + data[end:])
                    refused(message, data[:after] + varint(len(payload) + len(data)) + payload + data[end:])
                for wire_type in set(range(8)) - {tag & 7}:
                    refused(message, data[:start] + varint(number << 3 | wire_type) + data[after:])


def _is_repeated(message: WireMessage[Any, Any], number: int) -> bool:
    field = message.pb_type.DESCRIPTOR.fields_by_number[number]
    return bool(field.is_repeated)


def test_default_values_written_out_are_refused() -> None:
    for name in NAMES:
        with case(name):
            message, value = MESSAGES[name]
            data = message.encode(value)
            present = {number for _, _, number, _ in fields_of(data)}
            for number, field in message.pb_type.DESCRIPTOR.fields_by_number.items():
                if number in present or field.is_repeated or field.message_type:
                    continue
                wire_type = 0 if field.type in (field.TYPE_UINT32, field.TYPE_UINT64) else 2
                refused(message, data + varint(number << 3 | wire_type) + b"\0")


def test_malformed_wire_format_is_refused() -> None:
    for name in NAMES:
        with case(name):
            message, value = MESSAGES[name]
            data = message.encode(value)
            for junk in (b"\0", b"\x02\x00", b"\x08" + b"\xff" * 11, b"\xff" * 12, b"\x0b", b"\x0c", b"\x0f", b"\x07"):
                refused(message, data + junk)


@given(st.sampled_from(NAMES), st.binary(max_size=300))
@settings(max_examples=300)
def test_noise_is_refused_or_its_own_encoding(name: str, data: bytes) -> None:
    message, _ = MESSAGES[name]
    try:
        value = message.decode(data)
    except DecodeError:
        return
    assert message.encode(value) == data


@given(st.sampled_from(NAMES), st.data())
@settings(max_examples=400 if NIGHTLY else 150)
def test_a_spliced_message_is_refused_or_its_own_encoding(name: str, data: st.DataObject) -> None:
    message, value = MESSAGES[name]
    good = message.encode(value)
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(good)))
        end = data.draw(st.integers(start, min(len(good), start + 20)))
        good = good[:start] + data.draw(st.binary(max_size=20)) + good[end:]
    try:
        value = message.decode(good)
    except DecodeError:
        return
    assert message.encode(value) == good


def test_message_beyond_its_cap_is_refused_both_ways() -> None:
    for name in NAMES:
        with case(name):
            message, value = MESSAGES[name]
            data = message.encode(value)
            tight = replace(message, largest=len(data) - 1)
            with pytest.raises(DecodeError, match=f"more than {len(data) - 1}"):
                tight.decode(data)
            with pytest.raises(DecodeError, match=f"more than {len(data) - 1}"):
                tight.from_pb(message.to_pb(value))
            with pytest.raises(UsageError, match="at most"):
                tight.encode(value)


def test_two_million_empty_parts_cost_no_memory() -> None:
    bomb = b"\x12\x00" * 500_000
    tracemalloc.start()

    for message in (columns_codec.UPLOAD, columns_codec.UPLOAD_ANSWER, peer.BATCH_PROPOSAL):
        with pytest.raises(DecodeError, match=r"more than|unknown"):
            message.decode(bomb)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000  # Some hundred bytes each for as many parts as an upload may have.


# What single fields may hold.


@pytest.mark.parametrize("kind", [0, 2, 255])
def test_a_credential_of_another_kind_is_refused(kind: int) -> None:
    request = MESSAGES["session_request"][1]
    other = replace(request, credential=bytes([kind]) + request.certificate)

    with pytest.raises(DecodeError, match=f"of kind {kind}"):
        codec.SESSION_REQUEST.decode(codec.SESSION_REQUEST.encode(other))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("session_request", {"aggregator_id": "Alpha"}),
        ("session_request", {"key_id": 256}),
        ("session_request", {"expiry": 0}),
        ("session_request", {"expiry": 2**63}),
        ("session_request", {"sealed_secret": bytes(79)}),
        ("session_request", {"credential": b"\x01" + bytes(4097)}),
        ("session_request", {"credential": b"\x01"}),
        ("session_request", {"signature": b""}),
        ("session_accepted", {"expiry": 0}),
        ("session_accepted", {"reason": 1}),
        ("session_refused", {"reason": 19}),
        ("session_refused", {"expiry": 1}),
        ("release_answer_collecting", {"state": "done"}),
        ("release_answer_collecting", {"state": ""}),
        ("release_answer_collecting", {"record": b"record"}),
        ("release_answer_collecting", {"abort_reason": "why"}),
        ("release_answer_aborted", {"abort_reason": ""}),
        ("release_answer_aborted", {"abort_reason": "a\u202eb"}),
        ("release_answer_aborted", {"abort_reason": "a" * 201}),
        ("release_answer_released", {"record": b""}),
        ("abort_answer", {"state": "ANNOUNCED"}),
        ("abort_answer", {"state": "verifying"}),  # The name of releasing before; no party says it any more.
        ("abort_window", {"reason": ""}),
        ("status", {"set_digest": bytes(31)}),
        ("status", {"abort_reason": "why"}),
        ("status", {"ledger_rows": 2**63}),
        ("commit_query", {"set_digest": b""}),
        ("record_signature", {"signature": bytes(63)}),
        ("record_signature", {"aggregator_id": ""}),
        ("finished_record", {"record": b""}),
    ],
)
def test_fields_out_of_range_are_refused(name: str, changes: dict[str, Any]) -> None:
    message, value = MESSAGES[name]
    changed = message.to_pb(value)
    for field, wrong in changes.items():
        setattr(changed, field, wrong)

    with pytest.raises(DecodeError):
        message.from_pb(changed)
    refused(message, changed.SerializeToString(deterministic=True))


def test_opening_is_about_one_window_and_set_and_each_aggregator_once() -> None:
    message, query = MESSAGES["open_query"]
    first, second = query.commitments
    other = {"window_id": type(WINDOW)(seed_bytes("x")), "set_digest": type(SET)(seed_bytes("x"))}
    for field, value in other.items():
        with pytest.raises(DecodeError, match="another window or set"):
            message.from_pb(message.to_pb(replace(query, commitments=(first, replace(second, **{field: value})))))
    for commitments in ((first, first), (first,), (first, second) * 3):
        with pytest.raises(DecodeError):
            message.from_pb(message.to_pb(replace(query, commitments=commitments)))


def test_record_proposal_is_about_one_window_and_set() -> None:
    message, offered = MESSAGES["record_proposal"]
    first, second = offered.shares
    bad = [
        (first,),
        (first, first),
        (first, replace(second, window_id=type(WINDOW)(seed_bytes("x")))),
        (first, replace(second, set_digest=type(SET)(seed_bytes("x")))),
        (first, replace(second, vector=bytes(7))),
        (first, replace(second, vector=b"")),
        (first, replace(second, vector=bytes(8 * (MAX_OPENED + 1)))),
        (first, replace(second, blind=bytes(31))),
    ]
    for shares in bad:
        with pytest.raises(DecodeError):
            message.from_pb(message.to_pb(replace(offered, shares=shares)))


def test_status_counts_ascend_and_are_above_zero() -> None:
    counts = [peer_pb2.RejectionCount(reason=reason, count=1) for reason in (4, 11)]
    bad = [counts[::-1], [counts[0], counts[0]], [peer_pb2.RejectionCount(reason=4)], [*counts] * 10]
    for rejections in bad:
        with pytest.raises(DecodeError):
            peer_codec.STATUS.from_pb(peer_pb2.GetStatusResponse(state="releasing", rejections=rejections))


def test_states_agree_with_what_comes_with_them() -> None:
    with pytest.raises(DecodeError):
        ReleaseAnswer(state=WindowState.RELEASED)
    with pytest.raises(DecodeError):
        WindowStatus(state=WindowState.ABORTED, ledger_rows=0)


def test_verifier_shares_and_keys_stay_out_of_representations() -> None:
    for name in ("batch_proposal", "batch_reply", "noised_share"):
        shown = repr(MESSAGES[name][1])
        assert "verifier_share=" not in shown
        assert "vector=" not in shown
        assert "blind=" not in shown
    assert "TOO_LATE" in repr(refusal())
    assert share(IDS and "beta").aggregator_id == "beta"  # type: ignore[arg-type]  # A plain text stands for the id.


# The accepted set travels in chunks.


LEAVES = seed_bytes("leaves", 256 * 32)


def chunks(count: int = 5) -> list[peer_pb2.SealSetRequest]:
    ids = b"".join(number.to_bytes(16) for number in range(count))
    return list(peer.split_seal_set(SealSet(window_id=WINDOW, leaf_digests=LEAVES, accepted=ids)))


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8])
def test_set_returns_from_its_chunks(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "MAX_IDS_PER_CHUNK", 4)
    sent = chunks(count)
    joined = peer.join_seal_set(sent)

    assert len(sent) == 1 + -(-count // 4)
    assert joined.accepted == b"".join(number.to_bytes(16) for number in range(count))
    assert (joined.window_id, joined.leaf_digests) == (WINDOW, LEAVES)


def test_broken_streams_of_chunks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "MAX_IDS_PER_CHUNK", 2)
    head, first, second, last = chunks(5)
    other = peer_pb2.SealSetRequest(window_id=seed_bytes("x"), accepted=last.accepted)
    headless = peer_pb2.SealSetRequest(window_id=WINDOW, leaf_digests=LEAVES[:-1])
    both = peer_pb2.SealSetRequest(window_id=WINDOW, leaf_digests=LEAVES, following=1, accepted=last.accepted)
    unknown = peer_pb2.SealSetRequest()
    unknown.ParseFromString(last.SerializeToString() + b"\xf8\x01\x01")
    empty = peer_pb2.SealSetRequest(window_id=WINDOW)
    bad = [
        [],
        [first, second, last],
        [head],
        [head, first, second],
        [head, head, first, second, last],
        [head, second, first, last],
        [head, first, first, last],
        [head, first, last, second],
        [head, first, second, last, last],
        [head, first, second, second],
        [head, first, second, other],
        [head, first, second, unknown],
        [head, first, second, empty],
        [headless],
        [both],
        [chunks(0)[0], last],
    ]
    one, two = (chunks(count)[0] for count in (1, 2))
    bad += [[one, peer_pb2.SealSetRequest(window_id=WINDOW, accepted=bytes(size))] for size in (15, 17)]
    for ids in ([IDS[0]] * 2, sorted(IDS, reverse=True)[:2]):
        bad.append([two, peer_pb2.SealSetRequest(window_id=WINDOW, accepted=b"".join(ids))])
    for stream in bad:
        with pytest.raises(DecodeError):
            peer.join_seal_set(stream)
    peer.join_seal_set([head, first, second, last])


def test_a_set_says_how_long_it_is_before_it_is_read() -> None:
    taken = peer.SealSetChunks()

    assert taken.following == 0
    taken.add(chunks(5)[0])

    assert (taken.following, taken.complete) == (5, False)


def test_set_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    peer.SealSetChunks().add(peer_pb2.SealSetRequest(window_id=WINDOW, leaf_digests=LEAVES, following=2**30))
    with pytest.raises(DecodeError, match=f"{2**30 + 1} reports of a set, not 0 to {2**30}"):
        peer.SealSetChunks().add(peer_pb2.SealSetRequest(window_id=WINDOW, leaf_digests=LEAVES, following=2**30 + 1))
    monkeypatch.setattr(peer, "MAX_REPORTS_PER_WINDOW", 4)

    with pytest.raises(DecodeError, match="not 0 to 4"):
        peer.join_seal_set(chunks(5))

"""Batches between aggregators are columns: every length is checked, each report is named once, in one form."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.limits import MAX_REPORTS_PER_PEER_BATCH, MAX_VERIFIER_BYTES
from fleetcount_protocol.messages import BatchDecision, BatchProposal, BatchReply, FinishBatch
from fleetcount_protocol.v1 import peer_pb2
from fleetcount_protocol.wire import peer
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cases import case
from tests.support.nightly import NIGHTLY

WINDOW = WindowId(bytes(range(32)))
NUMBERS = st.integers(min_value=0, max_value=2**32 - 1)
COUNTS = st.integers(min_value=1, max_value=6)
SIZES = st.sampled_from([1, 2, 20, 107, 108, 109, 127, 128, 129, MAX_VERIFIER_BYTES])


def ids_of(count: int) -> bytes:
    return b"".join(number.to_bytes(16) for number in range(1, count + 1))


def shares(size: int, count: int) -> bytes:
    return bytes(number % 251 for number in range(size * count))


@st.composite
def proposals(draw: st.DrawFn) -> BatchProposal:
    count, size = draw(COUNTS), draw(SIZES)
    return BatchProposal(
        window_id=WINDOW,
        batch=draw(NUMBERS),
        report_ids=ids_of(count),
        share_digests=shares(32, count),
        verifier_shares=shares(size, count),
    )


@st.composite
def replies(draw: st.DrawFn) -> BatchReply:
    count, size = draw(COUNTS), draw(SIZES)
    reasons = draw(
        st.lists(st.sampled_from([0, 0, *(one.value for one in RejectReason)]), min_size=count, max_size=count)
    )
    return BatchReply(
        window_id=WINDOW,
        batch=draw(NUMBERS),
        report_ids=ids_of(count),
        reasons=bytes(reasons),
        verifier_shares=shares(size, reasons.count(0)),
    )


@st.composite
def finishes(draw: st.DrawFn) -> FinishBatch:
    count = draw(st.integers(min_value=0, max_value=6))
    size = draw(st.sampled_from([0, 1, 32, 200])) if count else 0
    return FinishBatch(window_id=WINDOW, batch=draw(NUMBERS), report_ids=ids_of(count), messages=shares(size, count))


@st.composite
def decisions(draw: st.DrawFn) -> BatchDecision:
    return BatchDecision(window_id=WINDOW, batch=draw(NUMBERS), accepted=ids_of(draw(st.integers(0, 6))))


KINDS: dict[str, tuple[Any, Callable[[], st.SearchStrategy[Any]]]] = {
    "proposal": (peer.BATCH_PROPOSAL, proposals),
    "reply": (peer.BATCH_REPLY, replies),
    "finish": (peer.FINISH_BATCH, finishes),
    "decision": (peer.BATCH_DECISION, decisions),
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_batch_returns_and_its_bytes_are_its_columns(kind: str, data: st.DataObject) -> None:
    message, strategy = KINDS[kind]
    value = data.draw(strategy())

    encoded = message.encode(value)

    assert message.decode(encoded) == value
    assert all(getattr(value, name) in encoded for name in value.__slots__ if name != "batch")
    columns = sum(len(getattr(value, name)) for name in value.__slots__ if name != "batch")
    assert len(encoded) <= columns + 30


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300 if NIGHTLY else 80)
@given(data=st.data())
def test_bytes_changed_anywhere_are_refused_or_another_batch_in_its_one_form(kind: str, data: st.DataObject) -> None:
    message, strategy = KINDS[kind]
    value = data.draw(strategy())
    encoded = bytearray(message.encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(encoded) - 1))
        change = data.draw(st.sampled_from(["flip", "set", "cut", "insert", "repeat"]))
        if change == "flip":
            encoded[place] ^= 1 << data.draw(st.integers(0, 7))
        elif change == "set":
            encoded[place] = data.draw(st.integers(0, 255))
        elif change == "cut" and len(encoded) > 1:
            del encoded[place : place + data.draw(st.integers(1, 40))]
        elif change == "insert":
            encoded[place:place] = data.draw(st.binary(max_size=3))
        else:
            encoded += encoded[place:]
        if not encoded:
            encoded += b"\0"

    try:
        other = message.decode(bytes(encoded))
    except DecodeError:
        return
    assert message.encode(other) == encoded
    assert (other == value) == (encoded == message.encode(value))


PROPOSAL = BatchProposal(
    window_id=WINDOW, batch=7, report_ids=ids_of(3), share_digests=shares(32, 3), verifier_shares=shares(20, 3)
)
REPLY = BatchReply(
    window_id=WINDOW, batch=7, report_ids=ids_of(3), reasons=bytes((0, 10, 0)), verifier_shares=shares(20, 2)
)
FINISH = FinishBatch(window_id=WINDOW, batch=7, report_ids=ids_of(3), messages=shares(32, 3))
DECISION = BatchDecision(window_id=WINDOW, batch=7, accepted=ids_of(3))
CODECS: dict[type, Any] = {
    BatchProposal: peer.BATCH_PROPOSAL,
    BatchReply: peer.BATCH_REPLY,
    FinishBatch: peer.FINISH_BATCH,
    BatchDecision: peer.BATCH_DECISION,
}


def refused(value: Any, words: str, **changes: Any) -> None:
    """Assert that a batch with some columns changed is refused, as bytes and as a parsed message."""
    message = CODECS[type(value)]
    changed = message.to_pb(replace(value, **changes))

    with pytest.raises(DecodeError, match=words):
        message.decode(changed.SerializeToString(deterministic=True))
    with pytest.raises(DecodeError, match=words):
        message.from_pb(changed)


@pytest.mark.parametrize(
    ("value", "column"),
    [(PROPOSAL, "report_ids"), (REPLY, "report_ids"), (FINISH, "report_ids"), (DECISION, "accepted")],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_batch_names_each_report_once_and_whole(value: Any, column: str) -> None:
    ids = getattr(value, column)

    refused(value, "appears twice", **{column: ids[:32] + ids[:16]})
    for wrong in (ids[:-1], ids + b"\0"):
        refused(value, "not a multiple of 16", **{column: wrong})


def test_an_empty_batch_is_proposed_by_nobody() -> None:
    empty = {"report_ids": b"", "verifier_shares": b""}

    refused(PROPOSAL, "report ids has 0 bytes, not 16 to 8192", **empty, share_digests=b"")
    refused(REPLY, "report ids has 0 bytes, not 16 to 8192", **empty, reasons=b"")


def test_a_batch_has_a_cap() -> None:
    most = MAX_REPORTS_PER_PEER_BATCH

    def of(count: int) -> dict[str, Any]:
        return {"report_ids": ids_of(count), "verifier_shares": shares(1, count)}

    full = replace(PROPOSAL, **of(most), share_digests=bytes(32 * most))
    assert peer.BATCH_PROPOSAL.decode(peer.BATCH_PROPOSAL.encode(full)) == full
    words = f"has {16 * (most + 1)} bytes, not .* to {16 * most}"
    refused(PROPOSAL, words, **of(most + 1), share_digests=bytes(32 * (most + 1)))
    refused(REPLY, words, **of(most + 1), reasons=bytes(most + 1))
    refused(FINISH, words, report_ids=ids_of(most + 1), messages=bytes(most + 1))
    refused(DECISION, words, accepted=ids_of(most + 1))


@pytest.mark.parametrize("count", [0, 2, 4])
def test_columns_are_of_as_many_reports_as_the_ids(count: int) -> None:
    refused(PROPOSAL, f"share digests has {32 * count} bytes, not", share_digests=bytes(32 * count))
    refused(REPLY, f"reasons has {count} bytes, not", reasons=bytes(count))


def test_fields_of_several_sizes_are_refused() -> None:
    for wrong in (shares(20, 3)[:-1], shares(20, 3) + b"\0"):
        refused(PROPOSAL, "verifier shares of several sizes", verifier_shares=wrong)
        refused(FINISH, "verifier messages of several sizes", messages=wrong)
    refused(REPLY, "verifier shares of several sizes", verifier_shares=shares(20, 2) + b"\0")


def test_shares_have_at_least_a_byte_and_at_most_what_a_share_has() -> None:
    largest = MAX_VERIFIER_BYTES

    for wrong in (b"", bytes(2), bytes(3 * largest + 3)):
        refused(PROPOSAL, "column of 3 verifier shares has", verifier_shares=wrong)
    for wrong in (b"", bytes(1), bytes(2 * largest + 2)):
        refused(REPLY, "column of 2 verifier shares has", verifier_shares=wrong)
    refused(FINISH, "column of 3 verifier messages has", messages=bytes(3 * largest + 3))


def test_there_is_no_share_without_a_report_that_has_one() -> None:
    refused(
        REPLY, "column of 0 verifier shares has 1 bytes, not 0 to 0", reasons=bytes((10, 10, 5)), verifier_shares=b"v"
    )
    refused(FINISH, "column of 0 verifier messages has 1 bytes, not 0 to 0", report_ids=b"", messages=b"m")


def test_a_reason_is_one_of_the_list() -> None:
    for reason in set(range(256)) - {0, *(one.value for one in RejectReason)}:
        with case(str(reason)):
            refused(REPLY, f"{reason} is no reason of the list", reasons=bytes((0, reason, 0)))


def test_the_bytes_of_a_column_are_checked_before_a_part_is_cut_out() -> None:
    bomb = peer_pb2.ProposeBatchRequest(window_id=WINDOW, report_ids=bytes(2 * 1024 * 1024))

    with pytest.raises(DecodeError, match="report ids has 2097152 bytes, not 16 to 8192"):
        peer.BATCH_PROPOSAL.decode(bomb.SerializeToString(deterministic=True))

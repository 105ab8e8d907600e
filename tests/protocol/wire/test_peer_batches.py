"""Batches read with templates of their bytes: the same as through the protobuf library, for good bytes and bad ones."""

from collections.abc import Callable
from typing import Any

import pytest
from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import TaskId
from fleetcount_protocol.messages import BatchDecision, BatchProposal, BatchReply, FinishBatch
from fleetcount_protocol.v1 import peer_pb2
from fleetcount_protocol.wire import peer as peer_codec
from fleetcount_protocol.wire.strict import WireMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nightly import NIGHTLY

TASK = TaskId(bytes(range(32)))
NUMBERS = st.integers(min_value=0, max_value=2**32 - 1)
COUNTS = st.integers(min_value=1, max_value=6)
SIZES = st.sampled_from([1, 2, 20, 107, 108, 109, 127, 128, 129, 5_120])


def ids_of(count: int) -> bytes:
    return b"".join(bytes((number,)) * 16 for number in range(count))


def shares(size: int, count: int) -> bytes:
    return bytes(number % 251 for number in range(size * count))


@st.composite
def proposals(draw: st.DrawFn) -> BatchProposal:
    count, size = draw(COUNTS), draw(SIZES)
    return BatchProposal(
        task_id=TASK,
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
        task_id=TASK,
        batch=draw(NUMBERS),
        report_ids=ids_of(count),
        reasons=bytes(reasons),
        verifier_shares=shares(size, reasons.count(0)),
    )


@st.composite
def finishes(draw: st.DrawFn) -> FinishBatch:
    count = draw(st.integers(min_value=0, max_value=6))
    size = draw(st.sampled_from([0, 1, 32, 200])) if count else 0
    return FinishBatch(task_id=TASK, batch=draw(NUMBERS), report_ids=ids_of(count), messages=shares(size, count))


@st.composite
def decisions(draw: st.DrawFn) -> BatchDecision:
    return BatchDecision(task_id=TASK, batch=draw(NUMBERS), accepted=ids_of(draw(st.integers(0, 6))))


KINDS: dict[str, tuple[Any, Callable[[], st.SearchStrategy[Any]]]] = {
    "proposal": (peer_codec.BATCH_PROPOSAL, proposals),
    "reply": (peer_codec.BATCH_REPLY, replies),
    "finish": (peer_codec.FINISH_BATCH, finishes),
    "decision": (peer_codec.BATCH_DECISION, decisions),
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_templates_and_the_library_write_and_read_the_same(kind: str, data: st.DataObject) -> None:
    message, strategy = KINDS[kind]
    value = data.draw(strategy())

    encoded = message.encode(value)

    assert encoded == message.to_pb(value).SerializeToString(deterministic=True)
    assert message.decode(encoded) == value
    assert WireMessage.decode(message, encoded) == value


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300 if NIGHTLY else 80)
@given(data=st.data())
def test_bytes_changed_anywhere_mean_to_templates_what_they_mean_to_the_library(kind: str, data: st.DataObject) -> None:
    message, strategy = KINDS[kind]
    encoded = bytearray(message.encode(data.draw(strategy())))
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

    def read(decode: Callable[[bytes], Any]) -> Any:
        try:
            return decode(bytes(encoded))
        except DecodeError:
            return DecodeError

    assert read(message.decode) == read(lambda raw: WireMessage.decode(message, raw))


def test_most_messages_are_read_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a million reports take minutes; a reply with gaps and verdicts is no exception."""
    reply = BatchReply(
        task_id=TASK,
        batch=300,
        report_ids=ids_of(5),
        reasons=bytes((0, 10, 0, 5, 0)),
        verifier_shares=shares(128, 3),
    )
    encoded = peer_codec.BATCH_REPLY.encode(reply)

    def never(*_: object) -> None:
        raise AssertionError("the library was asked")

    monkeypatch.setattr(WireMessage, "decode", never)
    assert peer_codec.BATCH_REPLY.decode(encoded) == reply


def test_fields_of_several_sizes_are_refused() -> None:
    reports = [
        peer_pb2.ProposedReport(report_id=bytes((n,)) * 16, public_share_digest=bytes(32), verifier_share=bytes(n + 1))
        for n in range(2)
    ]
    request = peer_pb2.ProposeBatchRequest(task_id=TASK, reports=reports)

    with pytest.raises(DecodeError, match="several sizes"):
        peer_codec.BATCH_PROPOSAL.decode(request.SerializeToString(deterministic=True))

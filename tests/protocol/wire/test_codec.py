"""A message that is nothing but its dataclass: what corresponds to what, and what is a mistake when it is declared."""

from dataclasses import dataclass
from typing import Any

import pytest
from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import AggregatorId, QuestionId, WindowId
from fleetcount_protocol.v1 import device_pb2, peer_pb2
from fleetcount_protocol.wire.codec import Bounds, Conversion, Count, Label, Range, Size, conversion, message, single

QUESTION = QuestionId(bytes(range(32)))
ALPHA = AggregatorId("alpha")
STATUS_BOUNDS: dict[str, Any] = {"abort_reason": Label(0, 9), "rejections": Count(0, 2), "ledger_rows": Range(0, 99)}


@dataclass(frozen=True, kw_only=True)
class Abort:
    window_id: WindowId
    reason: str


@dataclass(frozen=True, kw_only=True)
class Query:
    aggregator_id: AggregatorId
    deployment: str
    after: QuestionId | None = None
    over: bool = False
    held: QuestionId | None = None


@dataclass(frozen=True, kw_only=True)
class Status:
    state: str
    abort_reason: str
    set_digest: bytes
    rejections: tuple[tuple[RejectReason, int], ...]
    ledger_rows: int


@dataclass(frozen=True, kw_only=True)
class Ids:
    question_ids: tuple[QuestionId, ...]
    more: bool


def refused(codec: Any, data: Any, words: str) -> None:
    with pytest.raises(DecodeError, match=words):
        codec.decode(data.SerializeToString(deterministic=True))


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({}, "reason is .*str.*, which None does not bound"),
        ({"reason": Size(1, 9)}, "reason is .*str.*, which Size.* does not bound"),
        ({"reason": Count(1, 9)}, "reason is .*str.*, which Count.* does not bound"),
        ({"reason": Label(1, 9), "window_id": Range(0, 1)}, "window_id is .*WindowId.*, which Range.* does not bound"),
        ({"reason": Label(1, 9), "why": Label(1, 9)}, "bounds of Abort: no field corresponds to why"),
    ],
)
def test_a_text_needs_its_bound_and_a_bound_its_field(own: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        conversion(peer_pb2.AbortRequest, Abort, {Abort: own})


def test_bytes_and_tuples_need_a_bound() -> None:
    for missing in ("set_digest", "rejections"):
        whole: dict[str, Any] = {**STATUS_BOUNDS, "state": Label(1, 9), "set_digest": Size(0, 32)}
        del whole[missing]
        with pytest.raises(TypeError, match=f"{missing.replace('_', '.')} is .*None does not bound"):
            conversion(peer_pb2.GetStatusResponse, Status, {Status: whole})


def test_fields_correspond_by_name_and_one_of_two_answers_has_some_of_them() -> None:
    bounds: Bounds = {Abort: {"reason": Label(1, 9)}, Query: {"deployment": Label(0, 9)}}

    with pytest.raises(TypeError, match="Abort: no field corresponds to reason, set_digest"):
        conversion(peer_pb2.CommitRequest, Abort, bounds)
    with pytest.raises(TypeError, match="Query: no field corresponds to after, deployment, held, over"):
        conversion(device_pb2.GetReleaseRequest, Query, bounds, subset=True)


def test_what_is_not_there_is_an_empty_field() -> None:
    codec = message("query", device_pb2.ListQuestionsRequest, Query, {Query: {"deployment": Label(0, 5)}}, 100)

    for value in (
        Query(aggregator_id=ALPHA, deployment="a"),
        Query(aggregator_id=ALPHA, deployment="a", after=QuestionId(bytes(32))),
    ):
        assert codec.decode(codec.encode(value)) == value
    assert codec.encode(Query(aggregator_id=ALPHA, deployment="a")) == b"\x0a\x05alpha\x12\x01a"
    refused(
        codec,
        device_pb2.ListQuestionsRequest(aggregator_id=ALPHA, deployment="a", after=b"1"),
        "QuestionId has 1 bytes, not 32",
    )
    refused(
        codec,
        device_pb2.ListQuestionsRequest(aggregator_id=ALPHA, deployment="abcdef"),
        "deployment: 'abcdef' has 6 .* not 0 to 5",
    )


def test_rows_are_tuples_in_the_order_of_their_fields() -> None:
    whole: Bounds = {Status: {**STATUS_BOUNDS, "state": Label(1, 9), "set_digest": Size(0, 32, 4)}}
    codec = message("status", peer_pb2.GetStatusResponse, Status, whole, 1_000)
    rows = ((RejectReason.TOO_LATE, 3), (RejectReason.BUSY, 1))
    value = Status(state="a", abort_reason="", set_digest=bytes(8), rejections=rows, ledger_rows=99)
    good = codec.to_pb(value)

    assert codec.decode(codec.encode(value)) == value
    for change, words in (
        ({"ledger_rows": 100}, "ledger rows is 100, allowed: 0 to 99"),
        ({"set_digest": bytes(7)}, "set digest has 7 bytes, not a multiple of 4"),
        ({"rejections": [*good.rejections, *good.rejections]}, "more than 2 rejections"),
        ({"rejections": [peer_pb2.RejectionCount(reason=99)]}, "99 is no reject reason, allowed: 1, 2, "),
    ):
        changed = peer_pb2.GetStatusResponse(state="a", set_digest=bytes(8))
        for name, one in change.items():
            changed.ClearField(name)  # type: ignore[arg-type]  # One of its fields.
            changed.MergeFrom(peer_pb2.GetStatusResponse(**{name: one}))  # type: ignore[arg-type]  # The same.
        refused(codec, changed, words)


def test_ids_are_joined_where_the_field_is_bytes() -> None:
    bounds: Bounds = {Ids: {"question_ids": Count(1, 2)}}
    codec = message("ids", peer_pb2.ListSharedResponse, Ids, bounds, 1_000)
    value = Ids(question_ids=(QUESTION, QUESTION), more=False)

    assert codec.to_pb(value).question_ids == QUESTION + QUESTION
    assert codec.decode(codec.encode(value)) == value
    refused(codec, peer_pb2.ListSharedResponse(), "0 question ids, not 1 to 2")
    refused(codec, peer_pb2.ListSharedResponse(question_ids=QUESTION * 3), "3 question ids, not 1 to 2")
    refused(codec, peer_pb2.ListSharedResponse(question_ids=QUESTION[1:]), "31 bytes, not a multiple of 32")


def test_parts_are_counted_before_one_is_read() -> None:
    def never(_: object) -> bytes:
        raise AssertionError("a part was read")

    @dataclass
    class Listed:
        offers: tuple[bytes, ...]
        more: bool
        unchanged: bool = False

    part: Conversion[bytes, device_pb2.QuestionOffer] = Conversion(device_pb2.QuestionOffer, lambda _: {}, never)
    bounds: Bounds = {Listed: {"offers": Count(0, 1, part)}}
    codec = message("list", device_pb2.ListQuestionsResponse, Listed, bounds, 1_000)

    refused(codec, codec.to_pb(Listed((b"a", b"b"), more=True)), "more than 1 offers")


def test_a_second_spelling_of_a_value_is_refused() -> None:
    codec = single("abort", peer_pb2.AbortResponse, str, 100, Label(0, 9))

    assert codec.decode(b"\x0a\x01a") == "a"
    for other in (b"\x0a\x81\x00a", b"\x0a\x01b\x0a\x01a", b"\x0a\x01a\x10\x01", b"\x0a\x00"):
        with pytest.raises(DecodeError):
            codec.decode(other)


def test_fields_out_of_order_are_refused() -> None:
    codec = message("abort", peer_pb2.AbortRequest, Abort, {Abort: {"reason": Label(1, 9)}}, 100)
    good = codec.encode(Abort(window_id=WindowId(bytes(range(32))), reason="why"))
    window, reason = good[:34], good[34:]

    assert codec.decode(window + reason).reason == "why"
    with pytest.raises(DecodeError, match="out of order"):
        codec.decode(reason + window)

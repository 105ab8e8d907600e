"""Uploads of several batches over gRPC: the next leaves while earlier answers are awaited, but only so many."""

import asyncio
import dataclasses
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from fleetcount_client import grpc_transport
from fleetcount_client.grpc_transport import GrpcTransport, WindowServer
from fleetcount_client.transport import Unreachable
from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import ReportId, SessionId, WindowId
from fleetcount_protocol.messages import (
    Instalment,
    QuestionList,
    QuestionOffer,
    QuestionQuery,
    Refusal,
    held_digest,
)
from fleetcount_protocol.v1.device_pb2 import ListQuestionsResponse
from fleetcount_protocol.wire.call_metadata import RETRY_TRAILER
from fleetcount_protocol.wire.device_columns import InstalmentReplyColumns, UploadAnswer
from fleetcount_protocol.wire.device_stream import AGGREGATOR_MESSAGE, DEVICE_MESSAGE, AggregatorMessage
from fleetcount_protocol.wire.question import QUESTION_LIST, QUESTION_LIST_QUERY, QUESTION_OFFER
from fleetcount_transport.key_files import TlsFiles
from fleetcount_transport.toml_table import ConfigError

from tests.client.deployment import Deployment

Handler = Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]
Lists = Callable[[bytes, Any], Awaitable[bytes]]


def refusals(batch: bytes) -> bytes:
    upload = DEVICE_MESSAGE.decode(batch).upload
    assert upload is not None
    runs = (InstalmentReplyColumns.refused(run, RejectReason.BUSY) for run in upload.runs)
    return AGGREGATOR_MESSAGE.encode(AggregatorMessage(upload=UploadAnswer(runs=tuple(runs))))


@asynccontextmanager
async def serving(handler: Handler, lists: Lists | None = None) -> AsyncIterator[tuple[GrpcTransport, Any]]:
    server = grpc.aio.server()
    methods: dict[str, Any] = {"Answer": grpc.stream_stream_rpc_method_handler(handler)}
    if lists is not None:
        methods["ListQuestions"] = grpc.unary_unary_rpc_method_handler(lists)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("fleetcount_protocol.v1.DeviceService", methods),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    world = Deployment()
    first, second = world.described
    world.described = (dataclasses.replace(first, grpc_endpoint=f"127.0.0.1:{port}"), second)
    server_of = WindowServer(aggregator_id=world.described[0].aggregator_id, endpoint=f"127.0.0.1:{port}")
    transport = GrpcTransport(deployment="test", servers=[server_of], tls=None, insecure=True, call_timeout_s=10)
    try:
        yield transport, world.window()
    finally:
        await transport.close()
        await server.stop(0)


def instalments(count: int) -> list[Instalment]:
    return [
        Instalment(
            window_id=WindowId(bytes(32)),
            report_id=ReportId(number.to_bytes(16)),
            session_id=SessionId(bytes(16)),
            key_number=1,
            round=0,
            public_share=b"",
            ciphertext=bytes(100_000),
        )
        for number in range(count)
    ]


async def test_the_next_batch_leaves_before_the_first_is_answered_and_a_fifth_does_not() -> None:
    seen: list[int] = []
    arrived = asyncio.Event()

    async def handler(stream: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        waiting: list[bytes] = []

        async def read() -> None:
            async for batch in stream:
                waiting.append(batch)
                arrived.set()

        reading = asyncio.create_task(read())
        while len(waiting) < 4:
            arrived.clear()
            await arrived.wait()
        await asyncio.sleep(0.2)
        seen.append(len(waiting))
        answered = 0
        while answered < len(waiting) or not reading.done():
            if answered == len(waiting):
                await asyncio.sleep(0.01)
                continue
            yield refusals(waiting[answered])
            answered += 1

    sent = instalments(60)
    async with serving(handler) as (transport, window):
        answers = await transport.upload(window, 0, sent)

    assert seen == [4]
    assert [answer.report_id for answer in answers] == [one.report_id for one in sent]
    assert all(isinstance(answer, Refusal) for answer in answers)


async def test_a_stream_that_ends_early_is_unreachable() -> None:
    async def handler(stream: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        first, *_ = [await anext(stream) for _ in range(4)]
        yield refusals(first)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "busy")

    async with serving(handler) as (transport, window):
        with pytest.raises(Unreachable):
            await transport.upload(window, 0, instalments(60))


async def test_a_call_whose_connection_is_given_up_is_unreachable_and_its_caller_not_cancelled() -> None:
    waits = [asyncio.Event(), asyncio.Event()]

    async def handler(stream: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for batch in stream:
            waits[0].set()
            await asyncio.Event().wait()
            yield batch

    async def lists(_: bytes, __: Any) -> bytes:
        waits[1].set()
        await asyncio.Event().wait()
        return b""

    async with serving(handler, lists) as (transport, window):
        upload = asyncio.create_task(transport.upload(window, 0, instalments(1)))
        listing = asyncio.create_task(transport.list_questions())
        for begun in waits:
            await begun.wait()
        await transport.close()  # As under a new certificate: who waits asks again over the next connection.
        ended = await asyncio.gather(upload, listing, return_exceptions=True)

    assert [type(one) for one in ended] == [Unreachable, Unreachable]


async def test_who_is_cancelled_in_a_call_is_cancelled() -> None:
    begun = asyncio.Event()

    async def handler(stream: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for batch in stream:
            begun.set()
            await asyncio.Event().wait()
            yield batch

    async with serving(handler) as (transport, window):
        call = asyncio.create_task(transport.upload(window, 0, instalments(1)))
        await begun.wait()
        call.cancel()
        await asyncio.wait([call])

    assert call.cancelled()


async def test_without_its_files_there_is_no_connection_until_they_are_there_again() -> None:
    def missing() -> TlsFiles:
        raise ConfigError("device.crt cannot be read")

    server = WindowServer(aggregator_id=Deployment().described[0].aggregator_id, endpoint="127.0.0.1:1")
    transport = GrpcTransport(deployment="test", servers=[server], tls=missing)

    with pytest.raises(Unreachable, match=r"device\.crt"):
        await transport.list_questions()


async def test_an_end_without_all_answers_is_no_answer() -> None:
    async def handler(stream: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        first, *_ = [await anext(stream) for _ in range(4)]
        yield refusals(first)

    async with serving(handler) as (transport, window):
        # The end may meet the fifth batch on its way, which is a broken stream.
        with pytest.raises((DecodeError, Unreachable)):
            await transport.upload(window, 0, instalments(60))


async def test_a_server_that_is_busy_may_say_when_to_come_back() -> None:
    said = list[str]()

    async def handler(_: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", ((RETRY_TRAILER, said[-1]),))
        yield b""

    hints: list[float] = []
    async with serving(handler) as (transport, window):
        for hint in ("7000", "x", "-1", "12345678901"):
            said.append(hint)
            with pytest.raises(Unreachable, match=r"(?i)resource_exhausted") as busy:
                await transport.upload(window, 0, instalments(1))
            hints.append(busy.value.retry_after_s)

    assert hints == [7.0, 0.0, 0.0, 0.0]


def in_order(count: int) -> list[QuestionOffer]:
    """Return offers as a list has them."""
    world = Deployment()
    offers = [world.offer(world.once(name=str(number))) for number in range(count)]
    return sorted(offers, key=lambda offer: offer.signed.question.question_id)


def listed_by(lists: Iterator[bytes]) -> Lists:
    async def answered(_: bytes, __: Any) -> bytes:
        return next(lists)

    return answered


async def test_an_offer_is_read_again_only_if_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = in_order(2)
    listed = [(one,), (one,), (one, other), (one, other), ()]
    read = list[Any]()
    read_offer = grpc_transport._read_offer

    def counted(message: Any) -> QuestionOffer | None:
        read.append(message)
        return read_offer(message)

    monkeypatch.setattr(grpc_transport, "_read_offer", counted)
    answers = listed_by(QUESTION_LIST.encode(QuestionList(offers=offers)) for offers in listed)
    async with serving(None, answers) as (transport, _):  # type: ignore[arg-type]  # Nothing is uploaded.
        found = [await transport.list_questions() for _ in listed]

    assert found == listed
    assert len(read) == 2


async def test_a_question_that_cannot_be_read_hides_no_other_in_its_list_or_the_next() -> None:
    offers = in_order(3)
    first = ListQuestionsResponse.FromString(QUESTION_LIST.encode(QuestionList(offers=tuple(offers[:2]), more=True)))
    first.offers[1].signed.question = b"a question of a later version"
    lists = [first.SerializeToString(), QUESTION_LIST.encode(QuestionList(offers=(offers[2],)))]

    async with serving(None, listed_by(iter(lists))) as (transport, _):  # type: ignore[arg-type]  # As above.
        found = await transport.list_questions()

    assert found == (offers[0], offers[2])


def digest_of(offer: QuestionOffer) -> bytes:
    return hashlib.sha256(QUESTION_OFFER.encode(offer)).digest()


async def test_a_device_that_holds_every_offer_asks_once_and_goes_on_with_what_it_holds() -> None:
    one, two, three = in_order(3)
    asked = list[QuestionQuery]()
    unchanged = QuestionList(offers=(), unchanged=True)
    lists = [
        QuestionList(offers=(one, two), more=True),
        QuestionList(offers=(three,)),
        unchanged,
        QuestionList(offers=(one,), more=True),
        QuestionList(offers=(three,)),
        unchanged,
    ]
    answers = iter(lists)

    async def answered(query: bytes, _: Any) -> bytes:
        asked.append(QUESTION_LIST_QUERY.decode(query))
        return QUESTION_LIST.encode(next(answers))

    async with serving(None, answered) as (transport, _):  # type: ignore[arg-type]  # Nothing is uploaded.
        found = [await transport.list_questions() for _ in range(4)]

    every, fewer = (held_digest(map(digest_of, offers)) for offers in ((one, two, three), (one, three)))
    assert found == [(one, two, three)] * 2 + [(one, three)] * 2
    assert [query.held for query in asked] == [None, None, every, every, None, fewer]
    assert [query.after is None for query in asked] == [True, False, True, True, False, True]


async def test_behind_a_relay_a_query_does_not_say_what_the_device_holds() -> None:
    offers = in_order(2)
    asked = list[QuestionQuery]()

    async def answered(query: bytes, _: Any) -> bytes:
        asked.append(QUESTION_LIST_QUERY.decode(query))
        return QUESTION_LIST.encode(QuestionList(offers=tuple(offers)))

    async with serving(None, answered) as (transport, _):  # type: ignore[arg-type]  # Nothing is uploaded.
        transport._relay = transport._servers[0].endpoint  # The server takes what a relay takes.
        found = [await transport.list_questions() for _ in range(2)]

    assert found == [tuple(offers)] * 2
    assert [query.held for query in asked] == [None, None]


async def test_what_a_device_holds_is_told_with_the_offers_that_it_cannot_read() -> None:
    offers = in_order(2)
    first = ListQuestionsResponse.FromString(QUESTION_LIST.encode(QuestionList(offers=tuple(offers))))
    first.offers[1].signed.question = b"a question of a later version"
    asked = list[QuestionQuery]()

    async def answered(query: bytes, _: Any) -> bytes:
        asked.append(QUESTION_LIST_QUERY.decode(query))
        return first.SerializeToString()

    async with serving(None, answered) as (transport, _):  # type: ignore[arg-type]  # As above.
        for _ in range(2):
            await transport.list_questions()

    unread = hashlib.sha256(first.offers[1].SerializeToString()).digest()
    assert asked[1].held == held_digest([digest_of(offers[0]), unread])


def altered(offers: int, **changes: bool) -> bytes:
    """Return a list of so many offers with fields that no aggregator sets together."""
    listed = ListQuestionsResponse.FromString(QUESTION_LIST.encode(QuestionList(offers=tuple(in_order(offers)))))
    for name, value in changes.items():
        setattr(listed, name, value)
    return listed.SerializeToString()


@pytest.mark.parametrize(
    ("held", "lists", "words"),
    [
        (False, [altered(0, unchanged=True)], "unchanged, and none was said to be held"),
        (False, [altered(1, more=True), altered(0, unchanged=True)], "unchanged, and none was said to be held"),
        (True, [altered(2), altered(1, unchanged=True)], "unchanged, and has 1 offers"),
        (True, [altered(2), altered(0, unchanged=True, more=True)], "unchanged, and has 0 offers and more"),
    ],
)
async def test_a_list_is_unchanged_only_for_who_said_what_it_holds_and_alone(
    held: bool, lists: list[bytes], words: str
) -> None:
    async with serving(None, listed_by(iter(lists))) as (transport, _):  # type: ignore[arg-type]  # As above.
        if held:
            await transport.list_questions()
        with pytest.raises(Unreachable, match=words):
            await transport.list_questions()


class Streams:
    """An aggregator that counts its streams; `ends` says after how many messages each ends by itself."""

    def __init__(self, *ends: int) -> None:
        self.ends = iter(ends)
        self.messages: list[int] = []
        self.open = 0
        self.silent = False

    async def answer(self, stream: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        place, last = len(self.messages), next(self.ends, 0)
        self.messages.append(0)
        self.open += 1
        try:
            async for message in stream:
                self.messages[place] += 1
                if self.silent:
                    await asyncio.Event().wait()
                yield refusals(message)
                if self.messages[place] == last:
                    return
        finally:
            self.open -= 1


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_what_follows_goes_on_the_stream_that_is_open_and_on_another_once_that_has_ended() -> None:
    streams = Streams(2)
    async with serving(streams.answer) as (transport, window):
        for _ in range(2):
            await transport.upload(window, 0, instalments(1))
        await until(lambda: not streams.open)
        for _ in range(3):
            await transport.upload(window, 0, instalments(1))
        await transport.close()
        await until(lambda: not streams.open)
        await transport.upload(window, 0, instalments(1))

    assert streams.messages == [2, 3, 1]


async def test_exchanges_at_the_same_time_have_streams_of_their_own_and_two_of_them_stay() -> None:
    streams = Streams()
    async with serving(streams.answer) as (transport, window):
        for _ in range(2):
            await asyncio.gather(*(transport.upload(window, 0, instalments(1)) for _ in range(4)))
        await until(lambda: streams.open == 2)

    assert sum(streams.messages) == 8
    assert len(streams.messages) == 6


async def test_a_message_that_crosses_the_end_of_an_idle_stream_leaves_at_once_on_another() -> None:
    taken: list[bytes] = []
    begun = 0

    async def handler(stream: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        nonlocal begun
        begun += 1
        taken.append(await anext(stream))
        yield refusals(taken[-1])
        if begun == 1:
            await anext(stream)  # It was on its way, and is not taken: the stream ends without an answer.
        else:
            await asyncio.Event().wait()

    async with serving(handler) as (transport, window):
        for _ in range(2):
            [answer] = await transport.upload(window, 0, instalments(1))
            assert isinstance(answer, Refusal)

    assert (begun, len(taken)) == (2, 2)


async def test_a_refusal_is_final_also_where_it_meets_messages_on_their_way() -> None:
    begun, said = 0, set[str]()

    async def handler(stream: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        nonlocal begun
        begun += 1
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", ((RETRY_TRAILER, "1500"),))
        yield b""

    async with serving(handler) as (transport, window):
        for turn in range(1, 21):
            with pytest.raises(Unreachable) as caught:
                await transport.upload(window, 0, instalments(60))
            said.add(str(caught.value).partition(": ")[2])
            assert begun == turn
            assert caught.value.retry_after_s == (1.5 if "exhausted" in str(caught.value) else 0)

    assert said <= {"resource_exhausted", "the stream ended before it took a message"}


async def test_an_answer_that_does_not_come_in_time_is_unreachable_and_its_stream_is_not_used_again() -> None:
    ended: list[int] = []

    async def handler(stream: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        try:
            yield refusals(await anext(stream))
            async for _message in stream:
                await asyncio.Event().wait()
        finally:
            ended.append(1)

    async with serving(handler) as (transport, window):
        await transport.upload(window, 0, instalments(1))
        for streams in transport._ways.values():
            streams._timeout_s = 0.2
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:\d+: deadline_exceeded \(timed out\)"):
            await transport.upload(window, 0, instalments(1))
        await until(lambda: ended == [1])
        await transport.upload(window, 0, instalments(1))


async def test_who_is_cancelled_between_two_messages_leaves_no_stream_and_no_task() -> None:
    streams = Streams()
    async with serving(streams.answer) as (transport, window):
        await transport.upload(window, 0, instalments(1))
        before, streams.silent = len(asyncio.all_tasks()), True
        call = asyncio.create_task(transport.upload(window, 0, instalments(60)))
        await until(lambda: sum(streams.messages) > 1)
        call.cancel()
        await asyncio.wait([call])
        await until(lambda: not streams.open)
        await until(lambda: len(asyncio.all_tasks()) < before)
        streams.silent = False
        await transport.upload(window, 0, instalments(1))

    assert call.cancelled()

"""Admission of the calls of a gRPC server: names before messages, shares, hints, an end for who takes no answer."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from fleetcount_protocol.wire.call_metadata import RETRY_TRAILER
from fleetcount_transport.admission.admission import Admission, AdmissionTable, BusyError, Shed
from fleetcount_transport.admission.call import Call
from fleetcount_transport.admission.grpc_admission import ForeignError, GrpcAdmission
from fleetcount_transport.admission.handshake_gate import HandshakeGate
from fleetcount_transport.admission.identity import Identity
from fleetcount_transport.listening import bind, grpc_server

from tests.support.told_time import told_time, turns_until

ECHO, ENDLESS, FAULTY, STREAM = "/test/Echo", "/test/Endless", "/test/Faulty", "/test/Stream"
FAULTY_FIRST, HELD, HELD_FIRST = "/test/FaultyFirst", "/test/Held", "/test/HeldFirst"


class Here:
    """A server behind its front, whose callers say their names in the metadata."""

    def __init__(self, limits: AdmissionTable) -> None:
        self.shed = Counter[Shed]()
        count = lambda reason: self.shed.update([reason])  # noqa: E731 - one line for two
        self.admission = Admission(limits, count)
        self.front = HandshakeGate(limits, limits.connections, count)
        self.grpc_admission = GrpcAdmission(self.admission, self.front)
        self.port = 0
        self.read = 0
        self.denied = ""
        self.may_answer = asyncio.Event()

    async def held(self, request: bytes, call: Call) -> bytes:
        """Answer once it may."""
        self.read += 1
        await self.may_answer.wait()
        return call.who.key + request

    def handlers(self) -> grpc.GenericRpcHandler:
        async def echo(request: bytes, call: Call) -> bytes:
            return call.who.key + request

        async def endless(_: AsyncIterator[bytes], call: Call) -> None:
            while True:
                await call.write(bytes(1 << 20))

        async def faulty(_: bytes, call: Call) -> bytes:
            self.read += 1
            self.admission.failed(call.who)
            return b""

        def name(context: Any) -> Identity:
            said = dict(context.invocation_metadata() or ()).get("name")
            if said is None or said == self.denied:
                raise ForeignError("nobody")
            return Identity(str(said).encode())

        methods = {one: self.grpc_admission.unary(work, name) for one, work in {"Echo": echo, "Faulty": faulty}.items()}

        async def tell(answer: Awaitable[bytes], _: Call) -> bytes:
            return await answer

        messages = self.grpc_admission.messages
        methods["FaultyFirst"] = messages(faulty, tell, name, unknown_alone=True)
        methods["Stream"] = messages(echo, tell, name)
        methods["Held"] = messages(self.held, tell, name)
        methods["HeldFirst"] = messages(self.held, tell, name, unknown_alone=True)
        methods["Endless"] = self.grpc_admission.stream(endless, name)
        return grpc.method_handlers_generic_handler("test", methods)

    def channel(self) -> grpc.aio.Channel:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 64 << 20)]
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=options)


@asynccontextmanager
async def here(**limits: Any) -> AsyncIterator[Here]:
    made = Here(AdmissionTable(**limits))
    server = grpc_server(made.handlers(), 1 << 20, 10)
    behind = bind(server, None)
    await server.start()
    made.port = made.front.listen("127.0.0.1:0", behind)
    try:
        yield made
    finally:
        await server.stop(0)
        made.front.close()


def named(name: str) -> tuple[tuple[str, str], ...]:
    return (("name", name),)


async def test_a_foreign_caller_is_told_before_a_byte_of_its_message_is_read_and_has_no_connection_for_long() -> None:
    with told_time() as told:
        async with here(handshake_s=4) as it, it.channel() as channel:
            call = channel.stream_stream(ECHO)()
            code = asyncio.ensure_future(call.code())
            await turns_until(code.done)
            found = code.result(), await call.details()
            told.passes(3.9)
            for _ in range(100):
                await asyncio.sleep(0)
            kept = it.front.connections
            told.passes(1.1)  # It looks four times in that time.
            await turns_until(lambda: not it.front.connections)

    assert (found, kept) == ((grpc.StatusCode.PERMISSION_DENIED, "nobody"), 1)
    assert it.shed == {Shed.FOREIGN: 1, Shed.HANDSHAKE: 1}


async def test_a_call_is_one_message_and_one_answer_to_its_caller() -> None:
    async with here() as it, it.channel() as channel:
        assert await channel.unary_unary(ECHO)(b"one", metadata=named("me ")) == b"me one"
        empty = channel.stream_stream(ECHO)(iter([]), metadata=named("me"))
        assert await empty.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_what_comes_beyond_a_share_is_busy_with_a_hint_when_to_come_back() -> None:
    async with here(calls_each=2) as it, it.channel() as channel:
        held = [channel.stream_stream(ECHO)(metadata=named("me")) for _ in range(2)]
        while it.admission.callers < 1 or it.admission._calls.of.get(b"me", 0) < 2:
            await asyncio.sleep(0.01)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary(ECHO)(b"", metadata=named("me"))
        other = await channel.unary_unary(ECHO)(b"", metadata=named("other"))
        for call in held:
            call.cancel()

    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
    assert dict(refused.value.trailing_metadata() or ()) == {RETRY_TRAILER: "1000"}
    assert other == b"other"


async def test_who_was_wrong_too_often_is_refused_unread_and_its_connection_rests() -> None:
    async with here(faults_each=2, faults_s=30) as it, it.channel() as channel:
        for _ in range(2):
            await channel.unary_unary(FAULTY)(b"", metadata=named("me"))
        call = channel.stream_stream(ECHO)(metadata=named("me"))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        hint = int(dict(await call.trailing_metadata())[RETRY_TRAILER])
        with pytest.raises(grpc.aio.AioRpcError) as unread:
            await channel.unary_unary(ECHO)(b"", metadata=named("me"), timeout=0.5)
        async with it.channel() as second:
            assert await second.unary_unary(ECHO)(b"", metadata=named("other")) == b"other"

    assert 20_000 < hint <= 30_000
    assert unread.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert it.shed == {Shed.FAULTS: 1}


async def test_a_caller_that_takes_no_answer_loses_its_connection_and_gives_its_share_back() -> None:
    async with here(idle_s=0.5) as it, it.channel() as channel:
        # The answers are not read: HTTP/2 takes some of them, and no more.
        call = channel.stream_stream(ENDLESS)(metadata=named("me"))
        async with asyncio.timeout(60):
            while not it.shed:
                await asyncio.sleep(0.05)
            while it.admission.callers:
                await asyncio.sleep(0.05)

        assert await call.code() is grpc.StatusCode.UNAVAILABLE
    assert it.shed == {Shed.UNREAD: 1}


async def test_one_caller_s_messages_are_read_a_few_at_a_time_and_another_s_meanwhile() -> None:
    async with here() as it, it.channel() as channel:
        slow = [channel.stream_stream(ECHO)(metadata=named("slow")) for _ in range(8)]
        while it.admission._calls.of.get(b"slow", 0) < 8:
            await asyncio.sleep(0.01)
        fifth = channel.unary_unary(ECHO)(b"5", metadata=named("slow"))
        other = await channel.unary_unary(ECHO)(b"", metadata=named("other"))
        done, _ = await asyncio.wait([asyncio.ensure_future(fifth.code())], timeout=0.3)
        await slow[0].write(b"1")

        assert other == b"other"
        assert not done
        assert await fifth == b"slow5"
        for call in slow:
            call.cancel()


async def test_of_an_unknown_caller_one_call_is_read_and_those_behind_one_that_fails_are_not() -> None:
    async with here(faults_unknown=1, faults_s=30) as it, it.channel() as channel:
        it.admission.failed(Identity(b"another"))  # All who are unknown have used up what they may get wrong.
        calls = [channel.stream_stream(FAULTY_FIRST)(metadata=named("me")) for _ in range(2)]
        while it.admission._calls.of.get(b"me", 0) < 2:
            await asyncio.sleep(0.01)
        for call in calls:
            await call.write(b"x")
            await call.done_writing()
        async with asyncio.timeout(60):
            await asyncio.gather(*(call.read() for call in calls), return_exceptions=True)
            codes = {await call.code() for call in calls}

    assert codes == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert (it.read, it.shed) == (1, {Shed.FAULTS: 1})


async def test_a_connection_that_died_with_half_a_message_keeps_no_other_of_its_device_waiting() -> None:
    async with here(idle_s=3600) as it, it.channel() as dead, it.channel() as alive:
        half = dead.stream_stream(FAULTY_FIRST)(metadata=named("me"))
        while it.admission._calls.of.get(b"me", 0) < 1:
            await asyncio.sleep(0.01)
        call = alive.stream_stream(FAULTY_FIRST)(metadata=named("me"))
        await call.write(b"x")
        async with asyncio.timeout(30):
            assert await call.read() == b""
        half.cancel()


async def test_of_a_known_caller_many_such_calls_are_read_at_once() -> None:
    async with here(idle_s=3600) as it, it.channel() as channel:
        it.admission.held(Identity(b"me"))
        calls = [channel.stream_stream(FAULTY_FIRST)(metadata=named("me")) for _ in range(2)]
        while it.admission._calls.of.get(b"me", 0) < 2:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(30):
            for call in reversed(calls):  # The one that came last need not wait for the first.
                await call.write(b"x")
                assert await call.read() == b""


async def test_an_error_of_a_share_is_a_value_of_its_own() -> None:
    error = BusyError(Shed.BYTES, 2.5)

    assert (error.reason, error.retry_after_s, str(error)) == (Shed.BYTES, 2.5, "bytes")


TRICKLING = 200


def begun(path: str, name: str, size: int) -> bytes:
    """Return an HTTP/2 connection's first bytes, with the heads of a call and of a message (RFC 9113, RFC 7541)."""

    def text(value: str) -> bytes:
        return bytes([len(value)]) + value.encode()

    fields = b"\x83\x86\x04" + text(path) + b"\x01" + text("here") + b"\x0f\x10" + text("application/grpc")
    fields += b"\x00" + text("te") + text("trailers") + b"\x00" + text("name") + text(name)
    head = len(fields).to_bytes(3) + b"\x01\x04" + (1).to_bytes(4) + fields
    data = (size + 5).to_bytes(3) + b"\x00\x01" + (1).to_bytes(4) + b"\x00" + size.to_bytes(4)
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5) + head + data


@pytest.mark.parametrize("path", [ECHO, STREAM])
async def test_two_hundred_that_send_byte_by_byte_lose_their_shares_in_time_and_keep_nobody_out(path: str) -> None:
    """F25: what a caller sends so slowly that a message takes longer than `idle_s` is not waited for."""
    limits = {"idle_s": 8, "handshake_s": 600, "calls": TRICKLING + 8, "connections_each": 1}
    with told_time() as told:
        async with here(**limits) as it, it.channel() as channel:
            writers: list[asyncio.StreamWriter] = []
            for number in range(TRICKLING):
                _, writer = await asyncio.open_connection("127.0.0.1", it.port)
                writer.write(begun(path, f"slow {number}", 10_000))
                writers.append(writer)
            await turns_until(lambda: it.admission.callers == TRICKLING)
            honest = []
            for _ in range(8):
                for one in writers:
                    one.write(b"x")
                honest += [await channel.unary_unary(ECHO)(b"1", metadata=named("me ")) for _ in range(6)]
                told.passes(1)
            await turns_until(lambda: it.shed[Shed.IDLE] == TRICKLING and not it.admission.callers)
            honest.append(await channel.unary_unary(ECHO)(b"1", metadata=named("me ")))
            for one in writers:
                one.close()

    assert it.shed == {Shed.IDLE: TRICKLING}
    assert set(honest) == {b"me 1"}


# Streams of messages.


async def begun_stream(channel: grpc.aio.Channel, name: str = "me", path: str = STREAM) -> Any:
    """Return a stream on which one message is answered."""
    call: Any = channel.stream_stream(path)(metadata=named(name))
    await call.write(b"1")
    assert await call.read() == name.encode() + b"1"
    return call


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_an_idle_stream_holds_no_share_takes_the_next_message_and_ends_well_in_time() -> None:
    with told_time() as told:
        async with here(idle_s=8, calls_each=1) as it, it.channel() as channel:
            call = await begun_stream(channel)
            await turns_until(lambda: len(it.grpc_admission.kept) == 1)
            found = [it.admission.callers]
            await channel.unary_unary(ECHO)(b"", metadata=named("me"))  # The only call that it may have.
            told.passes(7.9)
            await call.write(b"2")
            found.append(await call.read())
            await turns_until(lambda: len(it.grpc_admission.kept) == 1)
            told.passes(8.1)
            code = asyncio.ensure_future(call.code())
            await turns_until(code.done)
            await turns_until(lambda: not it.grpc_admission.kept)

    assert (found, code.result()) == ([0, b"me2"], grpc.StatusCode.OK)
    assert not it.shed


async def test_each_message_of_a_stream_asks_again_whether_its_caller_may_call() -> None:
    async with here(faults_each=1, calls_each=1) as it, it.channel() as channel:
        streams = [await begun_stream(channel, name) for name in ("me", "other", "third")]
        it.denied = "me"
        it.admission.failed(Identity(b"other"))
        held = channel.stream_stream(ECHO)(metadata=named("third"))
        await until(lambda: it.admission.callers == 1)
        for call in streams:
            await call.write(b"2")
        async with asyncio.timeout(30):
            codes = [await call.code() for call in streams]
        held.cancel()

    assert codes == [
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    ]
    assert it.shed == {Shed.FOREIGN: 1, Shed.FAULTS: 1, Shed.CALLS: 1}


async def test_of_a_flood_on_one_stream_four_are_read_as_one_call_and_all_are_answered_in_order() -> None:
    async with here(calls_each=1) as it, it.channel() as channel:
        call = channel.stream_stream(HELD)(metadata=named("me "))
        sent = asyncio.create_task(write_all(call, 100))
        await until(lambda: it.read == 4)
        await asyncio.sleep(0.2)
        read, calls = it.read, it.admission._calls.used
        it.may_answer.set()
        answers = [await call.read() for _ in range(100)]
        await sent

    assert (read, calls) == (4, 1)
    assert answers == [b"me %d" % number for number in range(100)]


async def write_all(call: Any, count: int) -> None:
    for number in range(count):
        await call.write(b"%d" % number)


async def test_a_connection_keeps_four_idle_streams_and_what_is_idle_beyond_them_ends() -> None:
    async with here() as it, it.channel() as channel, it.channel() as other:
        kept = [await begun_stream(channel) for _ in range(4)]
        fifth = await begun_stream(channel)
        async with asyncio.timeout(30):
            code = await fifth.code()
        kept.append(await begun_stream(other))
        await until(lambda: len(it.grpc_admission.kept) == 5)
        for call in kept:
            await call.write(b"2")
            assert await call.read() == b"me2"
        await channel.close()  # As by a device that is switched off.
        await until(lambda: len(it.grpc_admission.kept) == 1)

    assert code is grpc.StatusCode.OK


async def test_streams_end_when_the_server_does_those_with_a_message_after_its_answer() -> None:
    async with here() as it, it.channel() as channel:
        idle = await begun_stream(channel)
        busy = channel.stream_stream(HELD)(metadata=named("me"))
        await busy.write(b"1")
        await until(lambda: it.read == 1)
        it.grpc_admission.kept.end()
        codes = [await idle.code()]
        it.may_answer.set()
        answer = await busy.read()
        codes.append(await busy.code())

    assert (answer, codes) == (b"me1", [grpc.StatusCode.OK] * 2)
    assert not it.grpc_admission.kept


async def test_of_an_unknown_caller_one_message_is_read_on_a_stream_and_no_second_stream_goes_past_it() -> None:
    async with here(idle_s=3600) as it, it.channel() as channel:
        first = channel.stream_stream(HELD_FIRST)(metadata=named("me"))
        sent = asyncio.create_task(write_all(first, 3))
        await until(lambda: it.read == 1)
        second = channel.stream_stream(HELD_FIRST)(metadata=named("me"))
        await second.write(b"x")
        await asyncio.sleep(0.2)
        read = it.read
        it.may_answer.set()
        async with asyncio.timeout(30):
            answers = [await first.read() for _ in range(3)]
            other = await second.read()
            await sent

    assert (read, answers, other) == (1, [b"me0", b"me1", b"me2"], b"mex")

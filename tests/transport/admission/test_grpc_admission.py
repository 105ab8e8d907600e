"""Admission of the calls of a gRPC server: names before messages, shares, hints, an end for who takes no answer."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from fleetcount_protocol.wire.call_metadata import RETRY_TRAILER
from fleetcount_transport.admission.admission import Admission, AdmissionTable, BusyError, Shed
from fleetcount_transport.admission.grpc_admission import Call, ForeignError, GrpcAdmission
from fleetcount_transport.admission.handshake_gate import HandshakeGate
from fleetcount_transport.admission.identity import Identity
from fleetcount_transport.listening import bind, grpc_server
from fleetcount_transport.pipelining import in_order

from tests.support.told_time import told_time, turns_until

ECHO, ENDLESS, FAULTY, STREAM = "/test/Echo", "/test/Endless", "/test/Faulty", "/test/Stream"
FAULTY_FIRST = "/test/FaultyFirst"


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
            if said is None:
                raise ForeignError("nobody")
            return Identity(str(said).encode())

        methods = {one: self.grpc_admission.unary(work, name) for one, work in {"Echo": echo, "Faulty": faulty}.items()}

        async def stream(requests: AsyncIterator[bytes], call: Call) -> None:
            async def deliver(answer: Awaitable[bytes]) -> None:
                await call.write(await answer)

            await in_order(requests, lambda request: echo(request, call), deliver, 4, call.idle_s)

        methods["FaultyFirst"] = self.grpc_admission.unary(faulty, name, first_alone=True)
        methods["Endless"] = self.grpc_admission.stream(endless, name)
        methods["Stream"] = self.grpc_admission.stream(stream, name)
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

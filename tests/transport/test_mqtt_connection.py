"""The end of a connection to an MQTT broker: nothing of it stays behind, whenever its party ends."""

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiomqtt
import pytest
from fleetcount_transport.mqtt_connection import MqttConnection
from fleetcount_transport.mqtt_packets import PacketReader, Publication, acknowledgement

from tests.support.listening import listening

ALL_IDS = 65_535
CONNACK, REFUSED = bytes.fromhex("20020000"), bytes.fromhex("20020005")


@asynccontextmanager
async def broker(greeting: bytes, hang_up: asyncio.Event) -> AsyncGenerator[str]:
    """Greet whoever connects, and hang up when it is time."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(greeting)
        await hang_up.wait()
        writer.close()

    async with listening(serve) as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture
async def complaints() -> AsyncIterator[list[str]]:
    """What the event loop complains of, errors that nobody read among it."""
    said: list[str] = []

    def note(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        said.append(f"{context['message']}: {context.get('exception')!r}")

    asyncio.get_running_loop().set_exception_handler(note)
    yield said
    asyncio.get_running_loop().set_exception_handler(None)


async def session(endpoint: str, connected: asyncio.Event, lost: asyncio.Event) -> None:
    """Be connected until the broker hangs up."""
    async with MqttConnection(endpoint, identifier="c", arrived=lambda _: True) as connection:
        connected.set()
        try:
            await connection.until_lost()
        finally:
            lost.set()  # Whoever waits for it goes on in the loop's next turn: by then this waits in __aexit__.


async def collected() -> None:
    """Let callbacks run, and what nobody holds go."""
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()


async def test_a_party_that_ends_while_it_leaves_a_lost_connection_leaves_no_error_unread(
    complaints: list[str],
) -> None:
    connected, lost = asyncio.Event(), asyncio.Event()
    async with broker(CONNACK, connected) as endpoint:
        running = asyncio.create_task(session(endpoint, connected, lost))
        await lost.wait()
        running.cancel()
        await asyncio.wait({running})
    ended = running.cancelled()
    del running
    await collected()

    assert ended
    assert complaints == []


@pytest.mark.parametrize("greeting", [b"", CONNACK, REFUSED], ids=["silent", "taken", "refused"])
async def test_a_connection_that_a_broker_ends_leaves_no_error_unread(greeting: bytes, complaints: list[str]) -> None:
    at_once = asyncio.Event()
    at_once.set()
    async with broker(greeting, at_once) as endpoint:
        with pytest.raises(aiomqtt.MqttError):
            await session(endpoint, asyncio.Event(), asyncio.Event())
    await collected()

    assert complaints == []


async def test_a_topic_that_the_broker_refuses_is_an_error_and_not_silence() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CONNACK)
        await reader.readuntil(b"\x82")
        length = (await reader.readexactly(1))[0]
        packet_id = (await reader.readexactly(length))[:2]
        writer.write(b"\x90\x04" + packet_id + b"\x01\x80")
        await reader.read()
        writer.close()

    async with (
        asyncio.timeout(60),
        listening(serve) as port,
        MqttConnection(f"127.0.0.1:{port}", identifier="c", arrived=lambda _: True) as connection,
    ):
        with pytest.raises(aiomqtt.MqttError, match=r"not authorised.*1 of 2 topics"):
            await connection.subscribe([("own", 1), ("another's", 1)])


async def test_who_waits_for_messages_is_woken_twelve_times_between_two_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    slept, waited = list[float](), asyncio.Event()

    async def sleep(seconds: float, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        if seconds >= 1:
            slept.append(seconds)
            waited.set()
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    async with (
        asyncio.timeout(30),
        broker(CONNACK, asyncio.Event()) as endpoint,
        MqttConnection(endpoint, identifier="c", arrived=lambda _: True, keepalive=60),
    ):
        await waited.wait()

    assert slept == [5.0]


async def test_what_the_socket_takes_at_once_is_not_watched_and_what_it_does_not_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched, got, large = list[int](), bytearray(), bytes(16 << 20)
    loop = asyncio.get_running_loop()
    arrived, go_on, all_of_it = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(CONNACK)
        while data := await reader.read(1 << 16):
            got.extend(data)
            if b"small" in got:
                arrived.set()
                await go_on.wait()
            if len(got) > len(large):
                all_of_it.set()

    def watch(sock: int, *callback: Any, add: Callable[..., None] = loop.add_writer) -> None:
        watched.append(sock)
        add(sock, *callback)

    async with (
        asyncio.timeout(60),
        listening(serve) as port,
        MqttConnection(f"127.0.0.1:{port}", identifier="c", arrived=lambda _: True) as connection,
    ):
        monkeypatch.setattr(loop, "add_writer", watch)
        connection.send([("topic", b"small")])
        await arrived.wait()
        assert not watched
        connection.send([("topic", large)])
        go_on.set()
        await all_of_it.wait()

    assert watched


class Keeper:
    """A broker that keeps what it is sent, and acknowledges it when it is told to."""

    def __init__(self) -> None:
        self.kept: list[Publication] = []
        self._came = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, length = await reader.readexactly(2)
        await reader.readexactly(length)
        writer.write(CONNACK)
        self._writer, packets = writer, PacketReader(1 << 20)
        list(packets.feed(CONNACK))
        while data := await reader.read(1 << 16):
            self.kept += (one for one in packets.feed(data) if isinstance(one, Publication))
            self._came.set()

    async def ids(self, count: int) -> list[int]:
        """Wait for so many messages; return their packet ids."""
        while len(self.kept) < count:
            self._came.clear()
            await self._came.wait()
        return [one.packet_id for one in self.kept if one.packet_id is not None]

    def acknowledge(self, ids: list[int]) -> None:
        assert self._writer is not None
        self._writer.write(b"".join(map(acknowledgement, ids)))


@asynccontextmanager
async def kept() -> AsyncGenerator[tuple[Keeper, MqttConnection]]:
    keeper = Keeper()
    async with (
        asyncio.timeout(60),
        listening(keeper.serve) as port,
        MqttConnection(f"127.0.0.1:{port}", identifier="c", arrived=lambda _: True) as connection,
    ):
        yield keeper, connection


async def test_messages_are_with_the_broker_when_it_has_acknowledged_the_last_of_them() -> None:
    messages = [(f"a/{number}", bytes(number)) for number in range(3)]
    async with kept() as (keeper, connection):
        sent = connection.send(messages)
        first, second, third = await keeper.ids(3)
        keeper.acknowledge([second, first])
        next_one = connection.send([("b", b"")])
        *_, fourth = await keeper.ids(4)
        keeper.acknowledge([fourth])
        await next_one
        assert not sent.done()
        keeper.acknowledge([third])
        await sent
        await connection.publish_all([])

    assert [(one.topic, one.payload) for one in keeper.kept[:3]] == messages


async def test_a_packet_id_is_not_used_again_before_it_is_acknowledged() -> None:
    async with kept() as (keeper, connection):
        connection.send([("waits", b"")])
        [waiting] = await keeper.ids(1)
        others = connection.send([("a", b"")] * (ALL_IDS - 1))
        ids = await keeper.ids(ALL_IDS)
        assert sorted(ids) == list(range(1, ALL_IDS + 1))
        with pytest.raises(aiomqtt.MqttError, match=r"^the broker leaves more than 65535 messages unacknowledged$"):
            connection.send([("one too many", b"")])
        keeper.acknowledge(ids[1:])
        await others
        connection.send([("a", b"")] * 2)
        again = (await keeper.ids(ALL_IDS + 2))[ALL_IDS:]

    assert waiting not in again
    assert len(set(again)) == 2


async def test_who_waits_for_an_acknowledgement_is_told_of_the_end_of_the_connection() -> None:
    hang_up = asyncio.Event()
    async with (
        asyncio.timeout(60),
        broker(CONNACK, hang_up) as endpoint,
        MqttConnection(endpoint, identifier="c", arrived=lambda _: True, timeout=3_600) as connection,
    ):
        waiting = asyncio.create_task(connection.publish_all([("a", b"")]))
        await asyncio.sleep(0)
        hang_up.set()
        with pytest.raises(aiomqtt.MqttError, match=r"^the connection was lost$"):
            await waiting
        with pytest.raises(aiomqtt.MqttError, match=r"^the connection was lost$"):
            connection.send([("a", b"")])

"""The listener in front of a server: bytes pass as they are; who says nothing makes room, who has a name keeps it."""

import asyncio
import contextlib
import os
import socket
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fleetcount_protocol.errors import MachineError
from fleetcount_transport.admission.admission import AdmissionTable, Shed
from fleetcount_transport.admission.handshake_gate import HandshakeGate, origin_of, pause_s
from fleetcount_transport.admission.server_socket import ServerSocket

from tests.support.listening import listening, unix_socket
from tests.support.told_time import told_time, turns_until

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Here:
    """A front, what it counts, and a server behind it that answers as a test says and knows whom it serves."""

    def __init__(self, limits: AdmissionTable, most: int, *, tls: bool = False) -> None:
        self.shed = Counter[Shed]()
        self.front = HandshakeGate(limits, most, lambda reason: self.shed.update([reason]), tls=tls)
        self.served: list[str] = []
        self.port = 0
        self._clients: list[asyncio.StreamWriter] = []

    async def connect(self, said: bytes = b"", address: str = "127.0.0.1") -> Streams:
        streams = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22, local_addr=(address, 0))
        self._clients.append(streams[1])
        if said:
            streams[1].write(said)
        return streams

    async def close(self) -> None:
        """End everything, from both sides."""
        self.front.close()
        for one in self._clients:
            one.close()
            with contextlib.suppress(ConnectionError):
                await one.wait_closed()

    async def proven(self, owner: bytes) -> Streams:
        """Return a connection that has a name."""
        before = len(self.served)
        streams = await self.connect(b"hello")
        assert await streams[0].readexactly(5) == b"hello"
        self.front.prove(self.served[before], owner)
        return streams


@asynccontextmanager
async def here(
    limits: AdmissionTable | None = None,
    most: int = 100,
    answer: Callable[[bytes], bytes] = bytes,
    *,
    tls: bool = False,
) -> AsyncIterator[Here]:
    made = Here(limits or AdmissionTable(), most, tls=tls)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.served.append("unix-abstract:" + writer.get_extra_info("peername")[1:].decode())
        try:
            while data := await reader.read(1 << 16):
                writer.write(answer(data))
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    at, behind = unix_socket()
    async with listening(serve, at):
        made.port = made.front.listen("127.0.0.1:0", behind)
        try:
            yield made
        finally:
            await made.close()


def nobody() -> ServerSocket:
    """Return the way to a server that is gone."""
    at, behind = unix_socket()
    at.close()
    return behind


async def ended(streams: Streams) -> bool:
    """Return whether the connection ends; waits for that."""
    try:
        return await streams[0].read(1) == b""
    except ConnectionError:
        return True


async def answers(streams: Streams) -> bool:
    """Return whether what is said on the connection passes, and the answer too."""
    streams[1].write(b"there")
    try:
        return await streams[0].readexactly(5) == b"there"
    except (ConnectionError, asyncio.IncompleteReadError):
        return False


async def test_bytes_pass_as_they_are_in_both_directions_and_an_end_is_passed_on() -> None:
    data = os.urandom(8 << 20)
    async with here() as it:
        reader, writer = await it.connect()

        async def send() -> None:
            writer.write(data)
            await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(send())
        assert await reader.read(-1) == data
        await sending
        await turns_until(lambda: it.front.connections == 0)
    assert it.shed == {}


async def test_who_says_nothing_makes_room_for_the_next_and_who_has_a_name_does_not() -> None:
    async with here(most=4) as it:
        named = await it.proven(b"device")
        speaking = await it.connect(b"x")
        silent = [await it.connect() for _ in range(2)]
        await turns_until(lambda: it.front.connections == 4 and len(it.served) == 2)

        for _ in range(200):
            silent.append(await it.connect())
        honest = await it.proven(b"other")
        named[1].write(b"again")

        assert await named[0].readexactly(5) == b"again"
        assert await ended(silent[0])
        assert await answers(honest)
        assert it.front.connections == 4
        del speaking
    assert it.shed[Shed.CONNECTIONS] >= 199


async def test_when_all_have_a_name_the_next_is_not_taken() -> None:
    async with here(most=2) as it:
        kept = [await it.proven(b"%d" % number) for number in range(2)]

        assert await ended(await it.connect(b"hello"))
        assert [await answers(one) for one in kept] == [True, True]
    assert it.shed == {Shed.CONNECTIONS: 1}


async def test_an_address_has_so_many_and_its_own_make_room() -> None:
    async with here(AdmissionTable(connections_by_address=3)) as it:
        first = [await it.connect() for _ in range(3)]
        honest = await it.proven(b"device")

        assert await ended(first[0])
        assert it.front.connections == 3
        assert await answers(honest)


async def test_a_certificate_has_so_many_and_its_oldest_makes_room() -> None:
    async with here(AdmissionTable(connections_each=2)) as it:
        other = await it.proven(b"other")
        mine = [await it.proven(b"mine") for _ in range(3)]

        assert await ended(mine[0])
        assert [await answers(one) for one in (*mine[1:], other)] == [True, True, True]


@pytest.mark.parametrize("said", [b"", b"x"])
async def test_without_a_call_a_connection_ends_in_its_time(said: bytes) -> None:
    with told_time() as told:
        async with here(AdmissionTable(handshake_s=4)) as it:
            named, nameless = await it.proven(b"device"), await it.connect(said)
            if said:
                assert await nameless[0].readexactly(1) == said
            await turns_until(lambda: it.front.connections == 2)

            told.passes(3.9)
            assert await answers(named)
            assert it.shed == {}
            told.passes(1.1)  # It looks four times in that time.
            assert await nameless[0].read(1) == b""
            assert await answers(named)
    assert it.shed == {Shed.HANDSHAKE: 1}


async def test_a_client_that_takes_nothing_is_let_go_and_the_server_is_not_read_meanwhile() -> None:
    async with here(AdmissionTable(idle_s=0.3), answer=lambda _: bytes(64 << 20)) as it:
        _, writer = await it.connect(b"all of it")
        writer.transport.pause_reading()  # type: ignore[attr-defined] # A stream's transport is a socket's.
        await turns_until(lambda: it.front.connections == 0)
    assert it.shed == {Shed.UNREAD: 1}


async def test_a_connection_that_rests_is_read_no_more_and_ends() -> None:
    async with here() as it:
        reader, writer = await it.proven(b"device")
        with told_time() as told:
            it.front.rest(it.served[0], 30)
            writer.write(b"later")
            told.passes(29)
            other = await it.proven(b"other")
            assert it.front.connections == 2

            told.passes(1)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read(5) == b""
            assert await answers(other)
        assert it.front.connections == 1


def record(said: bytes) -> bytes:
    return b"\x16\x03\x03" + len(said).to_bytes(2) + said


async def test_what_is_no_handshake_never_reaches_the_server() -> None:
    with told_time() as told:
        async with here(AdmissionTable(handshake_s=4), tls=True) as it:
            foreign, part = await it.connect(b"GET / HTTP/1.1\r\n"), await it.connect(record(b"hello")[:-1])
            whole = await it.connect(record(b"hello"))

            assert await foreign[0].read(1) == b""
            assert await whole[0].readexactly(10) == record(b"hello")
            told.passes(5)
            assert await part[0].read(1) == b""
            assert len(it.served) == 1


async def test_a_handshake_from_a_known_address_waits_for_none_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fleetcount_transport.admission.handshake_gate._TURN_S", 3600
    )  # None of the others ends by itself.
    heard: list[bytes] = []

    def answer(said: bytes) -> bytes:
        heard.append(said)
        return b"" if b"slow" in said else said

    async with here(AdmissionTable(handshake_s=3600), answer=answer, tls=True) as it:
        reader, _ = await it.connect(record(b"first"))
        assert await reader.readexactly(10) == record(b"first")
        it.front.know(it.served[0])
        for number in range(5):
            await it.connect(record(b"slow"), f"127.0.1.{number + 1}")
        await turns_until(lambda: record(b"slow") in heard)
        known, _ = await it.connect(record(b"known"))
        await turns_until(lambda: record(b"known") in heard)

        assert await known.readexactly(10) == record(b"known")
        assert heard == [record(b"first"), record(b"slow"), record(b"known")]


@pytest.mark.parametrize(
    ("took_s", "late_s", "is_answered", "expected"),
    [
        pytest.param(0.003, 0.0002, True, 0.0, id="idle"),
        pytest.param(0.003, 0.004, True, 0.042, id="late"),
        pytest.param(0.008, 0.0002, True, 0.0492, id="slow"),
        pytest.param(0.05, 0.0002, False, 0.0, id="unanswered"),
        pytest.param(0.05, 0.01, False, 0.36, id="unanswered-and-late"),
    ],
)
def test_others_pause_where_the_machine_has_no_core_to_spare(
    took_s: float, late_s: float, is_answered: bool, expected: float
) -> None:
    assert pause_s(took_s, late_s, is_answered=is_answered) == pytest.approx(expected)


async def test_no_answer_waits_for_the_acknowledgement_of_the_one_before() -> None:
    async with here() as it:
        await it.proven(b"device")
        [connection] = it.front._by_name.values()

        assert connection.client.transport is not None
        assert connection.client.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_without_a_server_behind_it_a_connection_ends() -> None:
    it = Here(AdmissionTable(), 10)
    it.port = it.front.listen("127.0.0.1:0", nobody())

    assert await ended(await it.connect(b"hello"))
    with pytest.raises(MachineError, match="cannot listen on"):
        HandshakeGate(AdmissionTable(), 10).listen(f"127.0.0.1:{it.port}", nobody())
    await it.close()
    assert it.front.connections == 0


async def test_the_server_is_behind_a_socket_without_a_name_and_its_connections_have_one_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deep = tmp_path / ("d" * 90)  # A path that is too long for a socket.
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    async with here() as it:
        await it.proven(b"one")
        await it.proven(b"other")

        assert len(set(it.served)) == 2
        assert not any(deep.iterdir()), "others could open what has a name, and a killed process would leave it"


def test_where_no_socket_can_be_made_the_machine_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(MachineError, match="no server can listen at a socket"):
        ServerSocket(lambda _: None)
    assert not any(tmp_path.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(MachineError, match="cannot hold a socket: No such file"):
        ServerSocket(lambda _: None)


def test_a_server_with_too_many_connections_that_it_has_not_accepted_is_told_from_one_that_is_reached() -> None:
    at, behind = unix_socket()
    at.listen(0)
    waiting = list[socket.socket]()
    try:
        with pytest.raises(BlockingIOError):
            waiting.extend(behind.connect() for _ in range(64))
        assert waiting
        assert all(one.getpeername() for one in waiting)
    finally:
        for one in waiting:
            one.close()
        behind.close()
        at.close()


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
    ],
)
def test_a_network_of_ipv6_is_one_address(address: str, origin: str) -> None:
    assert origin_of(address) == origin


async def test_connections_are_counted_by_what_is_one_address() -> None:
    async with here(AdmissionTable(connections_by_address=1)) as it:
        try:
            port = it.front.listen("[::1]:0", nobody())
        except MachineError:
            pytest.skip("this machine has no IPv6: that connections are counted by network is NOT tested")
        streams = [await asyncio.open_connection("::1", port) for _ in range(2)]
        await turns_until(lambda: it.shed[Shed.CONNECTIONS] == 1)

        assert dict(it.front._by_address) == {"::/64": 1}
        assert await ended(streams[0])
        for _, writer in streams:
            writer.close()

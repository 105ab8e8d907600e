"""What travels between a device and an aggregator beside their messages: frames of HTTP/2 (RFC 9113)."""

import asyncio

import pytest
from fleetcount_aggregator.host.metrics import Metrics
from fleetcount_aggregator.transport.grpc_server import DeviceShell, device_server
from fleetcount_client.grpc_transport import GrpcTransport, WindowServer
from fleetcount_protocol.ids import AggregatorId

from tests.support.aggregators import Network
from tests.support.listening import listening

PREFACE_BYTES = 24
HEAD_BYTES = 9
DATA, SETTINGS, PING = 0, 4, 6
INITIAL_WINDOW_SIZE = 4
ACK = 1


def frames(said: bytes) -> list[tuple[int, int, bytes]]:
    """Return type, flags and payload of each frame (RFC 9113, section 4.1)."""
    found: list[tuple[int, int, bytes]] = []
    while said:
        size = int.from_bytes(said[:3])
        found.append((said[3], said[4], said[HEAD_BYTES : HEAD_BYTES + size]))
        said = said[HEAD_BYTES + size :]
    return found


def settings(payload: bytes) -> dict[int, int]:
    """Return the parameters of a SETTINGS frame (section 6.5.1)."""
    return {
        int.from_bytes(payload[at : at + 2]): int.from_bytes(payload[at + 2 : at + 6])
        for at in range(0, len(payload), 6)
    }


@pytest.mark.timeout(60)
async def test_neither_side_pings_after_what_it_was_told() -> None:
    network = Network(2)
    await network.start_all()
    await network.ask(values=4)
    server = device_server(DeviceShell(network.core(0).service, Metrics()))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    asked, told = bytearray(), bytearray()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, ahead = await asyncio.open_connection("127.0.0.1", port)

        async def pump(source: asyncio.StreamReader, to: asyncio.StreamWriter, said: bytearray) -> None:
            while data := await source.read(1 << 16):
                said += data
                to.write(data)
            to.close()

        try:
            await asyncio.gather(pump(reader, ahead, asked), pump(behind, writer, told))
        finally:
            ahead.transport.abort()

    async with listening(pass_on) as between:
        one = WindowServer(aggregator_id=AggregatorId("alpha"), endpoint=f"127.0.0.1:{between}")
        device = GrpcTransport(deployment="test", servers=[one], tls=None, insecure=True)
        for _ in range(5):
            assert await device.list_questions()
        await device.close()
    await server.stop(0)

    for said in (bytes(asked[PREFACE_BYTES:]), bytes(told)):
        kinds = [kind for kind, _, _ in frames(said)]
        assert kinds.count(DATA) >= 5
        assert PING not in kinds
        first = next(payload for kind, flags, payload in frames(said) if kind == SETTINGS and not flags & ACK)
        assert settings(first).get(INITIAL_WINDOW_SIZE, 65_535) == 65_535, "of a call no more waits unread"

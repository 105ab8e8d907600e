"""Devices who take the stream of answers for a way around the limits of calls: never ended, flooded, for others."""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.messages import Instalment
from fleetcount_protocol.wire.device_columns import Upload
from fleetcount_protocol.wire.device_stream import AGGREGATOR_MESSAGE, DEVICE_MESSAGE, DeviceMessage

from tests.attack.suite import FIGURE
from tests.attack.test_devices import HONEST, VALUES, Report, asking, opens, reasons
from tests.attack.test_floods import sessions_s
from tests.support import floods
from tests.support.cheats import Cheat
from tests.support.deployment import Deployed
from tests.support.fleet import identity_of, offer_of
from tests.support.processes import pace
from tests.support.raw_calls import DEVICE, healthy

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
STREAMS = 200
FLOOD = 2_000


def channel_of(target: Deployed, device: DeviceIdentity) -> grpc.aio.Channel:
    """Return a connection under a device's certificate to the first aggregator."""
    key, certificate = floods.pem_pair(device)  # type: ignore[arg-type] # It has a key and a certificate.
    authorities = (target.written.root / "ca" / "aggregators.crt").read_bytes()
    return target.channel(0, grpc.ssl_channel_credentials(authorities, key, certificate))


async def test_streams_that_are_never_ended_are_ended_but_for_four_and_take_little_memory(
    target: Deployed, record_property: Report
) -> None:
    device = identity_of(target)
    message = DEVICE_MESSAGE.encode(DeviceMessage(requests=(asking(target, device),)))
    async with healthy(target) as grown, channel_of(target, device) as channel:
        streams: list[Any] = []
        for _ in range(STREAMS):
            stream: Any = channel.stream_stream(DEVICE + "Answer")()
            streams.append(stream)
            await stream.write(message)
            assert isinstance(await stream.read(), bytes)
        async with asyncio.timeout(30 * pace()):
            while sum(stream.done() for stream in streams) < STREAMS - 4:
                await asyncio.sleep(0.05)
        others = await sessions_s(target, 4)
        kept, memory = STREAMS - sum(stream.done() for stream in streams), grown()

    assert kept == 4
    record_property(
        FIGURE, f"{kept} of {STREAMS} streams stay; memory {memory:+.0f} MiB; session {_ms(others)} ms meanwhile"
    )


async def test_a_flood_of_bad_requests_on_one_stream_ends_it_at_the_eighth(
    target: Deployed, record_property: Report
) -> None:
    hostile = identity_of(target)
    message = floods.bad_requests(target, 0, hostile)
    async with healthy(target):
        idle = await sessions_s(target, 4)
        async with channel_of(target, hostile) as channel:
            stream: Any = channel.stream_stream(DEVICE + "Answer")()
            flood = asyncio.gather(_written(stream, [message] * FLOOD), _answers(stream))
            flooded = await sessions_s(target, 4)
            async with asyncio.timeout(60 * pace()):
                _, answers = await flood
                code = await stream.code()

    # The library may have seen the write fail before the status.
    assert code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL)
    assert 1 <= answers <= 8
    assert statistics.median(flooded) < max(1.0 * pace(), 20 * statistics.median(idle))
    record_property(
        FIGURE, f"{answers} of {FLOOD} messages answered; session {_ms(idle)} ms alone, {_ms(flooded)} ms meanwhile"
    )


async def test_parts_under_another_s_session_are_refused_on_the_thief_s_stream_and_take_nothing_from_it(
    pair: Deployed,
) -> None:
    window = pair.ask(VALUES, lead_s=1.0, windows_s=(20.0, 1.0))
    victim, thief = Cheat(pair, window, "grpc"), Cheat(pair, window, "grpc")
    await asyncio.gather(victim.open_sessions(), thief.open_sessions())
    await offer_of(pair, window)
    await opens(window.round_one_opens)
    honest, own = ([parts[0]] for parts in (_first(victim), _first(thief)))
    forged = [replace(own[0], session_id=honest[0].session_id)]  # The thief's seal under the victim's session.
    moved = [replace(honest[0], session_id=own[0].session_id)]  # The victim's seal under the thief's.
    renamed = [replace(own[0], report_id=honest[0].report_id)]  # The victim's report, from the thief.
    async with channel_of(pair, identity_of(pair)) as channel:
        stream: Any = channel.stream_stream(DEVICE + "Answer")()
        found = [reasons(await _sent(stream, pair, parts)) for parts in (forged, moved, renamed, honest, own, honest)]
    await asyncio.gather(victim.transport.close(), thief.transport.close())

    assert found[:3] == [[RejectReason.MALFORMED]] * 3
    assert found[3:] == [[None]] * 3


def _first(cheat: Cheat) -> Sequence[Instalment]:
    """Return a cheat's honest parts of round one, sealed."""
    return cheat.seal(1, b"", cheat.split(cheat.shares(*HONEST)[1])[0])


async def _sent(stream: Any, pair: Deployed, parts: Sequence[Instalment]) -> Sequence[object]:
    await stream.write(
        DEVICE_MESSAGE.encode(DeviceMessage(upload=Upload.of(pair.written.aggregators[0].aggregator_id, parts)))
    )
    answered = AGGREGATOR_MESSAGE.decode(await stream.read()).upload
    assert answered is not None
    return answered.replies()


async def _written(stream: Any, messages: Sequence[bytes]) -> None:
    try:
        for message in messages:
            await stream.write(message)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass  # The stream has ended.


async def _answers(stream: Any) -> int:
    count = 0
    try:
        while isinstance(await stream.read(), bytes):
            count += 1
    except grpc.aio.AioRpcError:
        pass
    return count


def _ms(seconds: Sequence[float]) -> str:
    return f"{1000 * statistics.median(seconds):.0f}"

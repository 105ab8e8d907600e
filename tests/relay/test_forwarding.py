"""A relay's way to an aggregator that is lost: everybody who waits is told, and the rest before the next try grows."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, ClassVar

import grpc
import pytest
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import AggregatorId, ReportId, WindowId
from fleetcount_protocol.wire.device_columns import (
    InstalmentColumns,
    InstalmentReplyColumns,
    Upload,
    UploadAnswer,
)
from fleetcount_protocol.wire.device_stream import AGGREGATOR_MESSAGE, DEVICE_MESSAGE, AggregatorMessage
from fleetcount_relay.forwarding import Forwarder, ForwardingLimits, Upstream, UpstreamError
from fleetcount_relay.metrics import RelayMetrics

from tests.support.protocol_samples import instalment
from tests.support.told_time import told_time

ALPHA = AggregatorId("alpha")
ONE, TWO = (Upload.of(ALPHA, [replace(instalment(), report_id=ReportId(bytes([n]) * 16))]).runs[0] for n in (1, 2))


def upload_in(message: bytes) -> Upload:
    upload = DEVICE_MESSAGE.decode(message).upload
    assert upload is not None
    return upload


def refused(run: InstalmentColumns) -> InstalmentReplyColumns:
    return InstalmentReplyColumns.refused(run, RejectReason.BUSY)


class BrokenChannel:
    """A channel on which no stream begins."""

    def stream_stream(self, method: str) -> None:
        raise OSError(method)


class EchoingStream:
    """A stream on which every instalment is refused as busy; it never ends by itself."""

    def __init__(self) -> None:
        self._batches = asyncio.Queue[bytes]()

    async def write(self, batch: bytes) -> None:
        answer = UploadAnswer(runs=tuple(map(refused, upload_in(batch).runs)))
        self._batches.put_nowait(AGGREGATOR_MESSAGE.encode(AggregatorMessage(upload=answer)))

    def read(self) -> Coroutine[Any, Any, bytes]:
        return self._batches.get()

    async def code(self) -> grpc.StatusCode:
        await asyncio.Event().wait()
        return grpc.StatusCode.OK

    def cancel(self) -> None:
        pass


class EchoingChannel:
    """A channel whose streams are counted."""

    def __init__(self) -> None:
        self.streams = 0

    def stream_stream(self, _: str) -> type[EchoingStream]:
        self.streams += 1
        return EchoingStream


class Zeros:
    """Randomness that cuts a delay to its half."""

    def random_bytes(self, count: int, /) -> bytes:
        return bytes(count)


async def test_who_waits_is_told_and_every_lost_stream_doubles_the_rest_up_to_its_limit() -> None:
    rests = list[float]()

    async def pause(seconds: float) -> None:
        rests.append(seconds)

    upstream = Upstream(aggregator_id=AggregatorId("alpha"), channel=BrokenChannel())  # type: ignore[arg-type]  # never used
    limits = ForwardingLimits(first_retry_s=1.0, longest_retry_s=6.0)
    forwarder = Forwarder(upstream, RelayMetrics(), limits, pause=pause, source=Zeros())
    running = asyncio.create_task(forwarder.run())

    for lost in range(1, 6):
        with pytest.raises(UpstreamError, match="alpha is out of reach"):
            await asyncio.wait_for(forwarder.send([ONE, TWO]), 60)
        while len(rests) < lost:
            await asyncio.sleep(0)

    assert rests == [0.5, 1.0, 2.0, 3.0, 3.0]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("turns", range(8))
async def test_who_comes_while_an_idle_stream_ends_is_carried_by_the_next(turns: int) -> None:
    channel, metrics = EchoingChannel(), RelayMetrics()
    upstream = Upstream(aggregator_id=AggregatorId("alpha"), channel=channel)  # type: ignore[arg-type]  # has its streams
    forwarder = Forwarder(upstream, metrics, ForwardingLimits(idle_s=20.0, linger_s=0.0))
    running = asyncio.create_task(forwarder.run())

    with told_time() as told:
        first = await forwarder.send([ONE])
        told.passes(20.0)
        for _ in range(turns):
            await asyncio.sleep(0)
        second = await forwarder.send([TWO])

    assert (first, second) == ([refused(ONE)], [refused(TWO)])
    assert metrics.registry.get_sample_value("fleetcount_relay_stream_failures_total", {"aggregator": "alpha"}) is None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_who_waits_when_a_forwarder_is_ended_is_told() -> None:
    upstream = Upstream(aggregator_id=AggregatorId("alpha"), channel=EchoingChannel())  # type: ignore[arg-type]
    forwarder = Forwarder(upstream, RelayMetrics(), ForwardingLimits(linger_s=3600.0))
    running = asyncio.create_task(forwarder.run())
    waiting = asyncio.create_task(forwarder.send([ONE]))
    for _ in range(10):
        await asyncio.sleep(0)

    running.cancel()

    with pytest.raises(UpstreamError, match="alpha is out of reach"):
        await waiting
    await asyncio.gather(running, return_exceptions=True)


class NotedStream(EchoingStream):
    """The same, and notes what it was sent."""

    sent: ClassVar[list[bytes]] = []

    async def write(self, batch: bytes) -> None:
        self.sent.append(batch)
        await super().write(batch)


class NotingChannel(EchoingChannel):
    def stream_stream(self, _: str) -> type[EchoingStream]:
        NotedStream.sent.clear()
        return NotedStream


async def test_runs_of_one_shape_travel_as_one_and_every_device_gets_its_own_answers() -> None:
    upstream = Upstream(aggregator_id=ALPHA, channel=NotingChannel())  # type: ignore[arg-type]  # has its streams
    forwarder = Forwarder(upstream, RelayMetrics(), ForwardingLimits(linger_s=0.0))
    other = replace(ONE, window_id=WindowId(bytes(32)))
    running = asyncio.create_task(forwarder.run())

    answers = await asyncio.gather(*(forwarder.send(runs) for runs in ([ONE, other], [TWO])))

    assert answers == [[refused(ONE), refused(other)], [refused(TWO)]]
    [sent] = map(upload_in, NotedStream.sent)
    assert (sent.aggregator_id, sorted(map(len, sent.runs))) == (ALPHA, [1, 2])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

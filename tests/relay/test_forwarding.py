"""A relay's way to an aggregator that is lost: everybody who waits is told, and the rest before the next try grows."""

import asyncio

import pytest
from fleetcount_protocol.ids import AggregatorId
from fleetcount_relay.forwarding import Forwarder, ForwardingLimits, Upstream, UpstreamError
from fleetcount_relay.metrics import RelayMetrics


class BrokenChannel:
    """A channel on which no stream begins."""

    def stream_stream(self, method: str) -> None:
        raise OSError(method)


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
            await asyncio.wait_for(forwarder.send([b"one", b"two"]), 10)
        while len(rests) < lost:
            await asyncio.sleep(0)

    assert rests == [0.5, 1.0, 2.0, 3.0, 3.0]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

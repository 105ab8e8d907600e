"""Deliveries that are duplicated, reordered, cut and lost, on every line: nothing is lost, nothing counts twice."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import aiomqtt
import pytest
from fleetcount_client.transport import Transport, Unreachable
from fleetcount_protocol.channel.user_names import key_name
from fleetcount_protocol.messages import (
    Instalment,
    QuestionOffer,
    Receipt,
    Refusal,
    ReleaseAnswer,
    SessionAccepted,
    SessionRefused,
    SessionRequest,
)
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_protocol.window.window import Window
from fleetcount_simulator.network.ports import free_ports

from tests.support.broker import RunningBroker
from tests.support.deployment import Deployed, LiveDeployment
from tests.support.fleet import Fleet, Misfortune, offer_of
from tests.support.oracle import check_release
from tests.support.proxy import Fate, Proxy, proxied

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

BAD_LUCK = Misfortune(lose_request=0.2, lose_answer=0.25, send_twice=0.5, most_delay_s=0.3)


def unlucky(seed: int, most: int) -> "Fates":
    return Fates(random.Random(seed), most)


@dataclass
class Fates:
    """Every other connection is cut, somewhere from the first byte of the handshake to well behind it."""

    chance: random.Random
    most: int

    def __call__(self, number: int) -> Fate:
        cut = self.chance.randrange(1, self.most)
        delay_s = self.chance.uniform(0, 0.01)
        if number % 4 == 1:
            return Fate(downstream=cut, delay_s=delay_s)
        return Fate(upstream=cut, delay_s=delay_s) if number % 4 == 3 else Fate(delay_s=delay_s)


@dataclass
class LosesRoundTwo:
    """A transport on which round two never reaches one aggregator."""

    inner: Transport
    position: int

    async def list_questions(self) -> tuple[QuestionOffer, ...]:
        return await self.inner.list_questions()

    async def open_sessions(
        self, aggregator: Aggregator, requests: Sequence[SessionRequest]
    ) -> tuple[SessionAccepted | SessionRefused, ...]:
        return await self.inner.open_sessions(aggregator, requests)

    async def upload(
        self, window: Window, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        if position == self.position and instalments[0].round == 2:
            raise Unreachable("cut off")
        return await self.inner.upload(window, position, instalments)

    async def release(self, window: Window) -> ReleaseAnswer:
        return await self.inner.release(window)

    async def close(self) -> None:
        await self.inner.close()


@asynccontextmanager
async def replayed(broker: RunningBroker, deployment: str, users: Set[str]) -> AsyncIterator[list[int]]:
    """A broker that delivers every message of these devices once more, later and in another order."""
    counts: list[int] = []
    seen: set[bytes] = set()
    chance = random.Random(5)
    async with (
        aiomqtt.Client("127.0.0.1", broker.port, identifier=f"replayer-{deployment}") as client,
        asyncio.TaskGroup() as group,
    ):
        for topic in (f"fleetcount/v1/{deployment}/+/report/+/+/+", f"fleetcount/v1/{deployment}/+/session/+/+"):
            await client.subscribe(topic, qos=1)

        async def later(topic: str, payload: bytes) -> None:
            await asyncio.sleep(chance.uniform(0, 1.0))
            await client.publish(topic, payload, qos=1)
            counts.append(len(payload))

        async def listen() -> None:
            async for message in client.messages:
                payload = bytes(message.payload)
                if payload not in seen and not users.isdisjoint(str(message.topic).split("/")):
                    seen.add(payload)
                    group.create_task(later(str(message.topic), payload))

        listener = asyncio.create_task(listen())
        try:
            yield counts
        finally:
            listener.cancel()
            with suppress(asyncio.CancelledError):
                await listener


async def test_with_every_misfortune_on_the_way_of_devices_the_result_is_exact(
    pair: Deployed, broker: RunningBroker, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        proxies = [
            await stack.enter_async_context(proxied(one.grpc_endpoint, unlucky(seed, 6000)))
            for seed, one in enumerate(pair.written.aggregators)
        ]
        line = await stack.enter_async_context(proxied(broker.started.address, unlucky(9, 2500)))
        behind = [
            replace(one, grpc_endpoint=proxy.address)
            for one, proxy in zip(pair.written.aggregators, proxies, strict=True)
        ]
        # What is lost is sent again after 1.5 s, some of it several times, beside whatever else the machine does.
        window = pair.ask(24, windows_s=(10.0, 10.0), aggregators=behind)
        fleet = Fleet(
            pair, tmp_path, window.mechanism, ["grpc", "mqtt"], broker=line.address, misfortune=BAD_LUCK, timeout_s=1.5
        )
        users = {key_name(live.device._identity.certificate) for live in fleet.devices}
        replays = await stack.enter_async_context(replayed(broker, pair.written.name, users))
        await fleet.answer(await offer_of(pair, window))
        counted = await check_release(pair, window, fleet)

    assert len(counted) >= 16, fleet.failures
    assert min(sum(proxy.cuts for proxy in proxies), line.cuts, len(replays)) > 0
    assert (sum(proxy.cuts for proxy in proxies), line.cuts, len(replays)) > (5, 2, 20)


async def test_a_report_that_misses_one_aggregator_is_counted_by_none(trio: Deployed, tmp_path: Path) -> None:
    window = trio.ask(18)
    lost = {3: 0, 6: 1, 9: 2, 12: 2}

    def wrap(inner: Transport, number: int) -> Transport:
        return LosesRoundTwo(inner, lost[number]) if number in lost else inner

    fleet = Fleet(trio, tmp_path, window.mechanism, ["grpc"], wrap=wrap)
    await fleet.answer(await offer_of(trio, window))
    counted = await check_release(trio, window, fleet)

    assert {live.truth for live in fleet.devices} - {live.truth for live in counted} == lost.keys()
    # Each aggregator tells what it knows: half a pair here, a report that another one misses there.
    for status in await trio.ended(window):
        assert sum(count for _, count in status.rejections) == len(lost), status


class PeerLines:
    """A proxy on every line between aggregators, one a caller and callee."""

    def __init__(self, count: int) -> None:
        self._ports = free_ports("127.0.0.1", count)
        self.wanted: list[tuple[str, int]] = []

    def __call__(self, endpoint: str) -> str:
        """Return where a caller finds `endpoint`: at a proxy of its own."""
        port = self._ports[len(self.wanted)]
        self.wanted.append((endpoint, port))
        return f"127.0.0.1:{port}"


def cut_at_every_length(number: int) -> Fate:
    """Cut the first twenty connections, each a little later than the one before: from the handshake to the release."""
    length = 2_000 + 300 * number
    if number >= 20:
        return Fate()
    return Fate(downstream=length) if number % 2 else Fate(upstream=length)


@pytest.mark.nightly
async def test_aggregators_whose_lines_are_cut_at_every_length_agree_on_one_set(tmp_path: Path) -> None:
    lines = PeerLines(6)
    deployment = LiveDeployment(tmp_path / "d", 3, name="cut", peer_endpoint=lines, call_timeout_s=1.5)
    async with AsyncExitStack() as stack:
        proxies = [
            await stack.enter_async_context(proxied(endpoint, cut_at_every_length, port))
            for endpoint, port in lines.wanted
        ]
        try:
            await asyncio.to_thread(deployment.start_all)
            window = deployment.ask(12, lead_s=8.0)
            fleet = Fleet(deployment, tmp_path, window.mechanism, ["grpc"])
            await fleet.answer(await offer_of(deployment, window))

            assert await check_release(deployment, window, fleet) == fleet.devices
            assert sum(proxy.cuts for proxy in proxies) >= 8
            assert deployment.troubles() == []
        finally:
            await asyncio.to_thread(deployment.stop_all)


POOR = Fate(bytes_per_s=8_000, lost=0.2)
"""64 kbit/s, and every fifth packet is lost."""


@pytest.mark.nightly
async def test_over_lines_that_are_slow_and_lose_packets_it_takes_longer_and_everybody_is_counted(
    broker: RunningBroker, tmp_path: Path
) -> None:
    """F23: every line there is, of devices, to the broker and between aggregators."""
    lines = PeerLines(2)
    deployment = LiveDeployment(tmp_path / "d", 2, name="poor", broker=broker.started, peer_endpoint=lines)
    async with AsyncExitStack() as stack:

        async def poor(target: str, port: int = 0) -> Proxy:
            return await stack.enter_async_context(proxied(target, lambda _: POOR, port))

        between = [await poor(endpoint, port) for endpoint, port in lines.wanted]
        devices = [await poor(one.grpc_endpoint) for one in deployment.written.aggregators]
        line = await poor(broker.started.address)
        behind = [
            replace(one, grpc_endpoint=proxy.address)
            for one, proxy in zip(deployment.written.aggregators, devices, strict=True)
        ]
        try:
            await asyncio.to_thread(deployment.start_all)
            window = deployment.ask(12, lead_s=6.0, windows_s=(10.0, 10.0), aggregators=behind)
            fleet = Fleet(deployment, tmp_path, window.mechanism, ["grpc", "mqtt"], broker=line.address, timeout_s=1.5)
            await fleet.answer(await offer_of(deployment, window))

            assert await check_release(deployment, window, fleet) == fleet.devices
            assert min(proxy.losses for proxy in (*between, *devices, line)) > 0
            assert deployment.troubles() == []
        finally:
            await asyncio.to_thread(deployment.stop_all)

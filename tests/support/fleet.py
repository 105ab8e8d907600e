"""Real devices of a live deployment, with fixed coins, over real connections that a test may make worse."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Protocol

from fleetcount_client.config import DeliverySettings
from fleetcount_client.contact import Outcome, OutcomeKind, TrustStore
from fleetcount_client.device import Device
from fleetcount_client.policy import OwnerPolicy
from fleetcount_client.signals import Said, constant
from fleetcount_client.spool import SpoolFile
from fleetcount_client.transport import Transport, Unreachable
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.ids import ReportId
from fleetcount_protocol.messages import (
    Instalment,
    QuestionOffer,
    Receipt,
    Refusal,
    ReleaseAnswer,
    SessionAccepted,
    SessionRefused,
    SessionReply,
    SessionRequest,
)
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_protocol.window.window import Window
from fleetcount_simulator.network.connections import own_transport
from fleetcount_simulator.network.deployments import Deployment

from tests.support.deployment import SIGNAL
from tests.support.oracle import FixedCoins
from tests.support.processes import pace


class Written(Protocol):
    """A deployment as it was written, whoever runs it."""

    @property
    def written(self) -> Deployment:
        """What was written."""
        ...


Sent = dict[tuple[ReportId, int, int], set[bytes]]


@dataclass
class Misfortune:
    """What happens to messages: chances of losing the request, losing the answer, sending twice, being late."""

    lose_request: float = 0.0
    lose_answer: float = 0.0
    send_twice: float = 0.0
    most_delay_s: float = 0.0


@dataclass
class WatchedTransport:
    """A transport that remembers what was sent and receipted, and to which misfortunes happen."""

    inner: Transport
    misfortune: Misfortune
    seed: int
    sent: Sent = field(default_factory=dict)
    receipts: set[tuple[ReportId, int, int]] = field(default_factory=set)
    attempts: int = 0
    gate: asyncio.Event | None = None
    """What has begun to be sent waits until it is set."""

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    @property
    def names(self) -> set[ReportId]:
        """The names of reports that were ever sent: one for each window the device answered."""
        return {name for name, _, _ in self.sent}

    async def list_questions(self) -> tuple[QuestionOffer, ...]:
        return await self.inner.list_questions()

    async def open_sessions(
        self, aggregator: Aggregator, requests: Sequence[SessionRequest]
    ) -> tuple[SessionAccepted | SessionRefused, ...]:
        return await self.inner.open_sessions(aggregator, requests)

    async def upload(
        self, window: Window, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        self.attempts += 1
        if self.gate is not None:
            await self.gate.wait()
        for one in instalments:
            self.sent.setdefault((one.report_id, one.round, position), set()).add(one.digest)
        bad = self.misfortune
        await asyncio.sleep(self._chance.uniform(0, bad.most_delay_s))
        if self._chance.random() < bad.lose_request:
            raise Unreachable("the request was lost")
        if self._chance.random() < bad.send_twice:
            await self.inner.upload(window, position, instalments)
        answers = await self.inner.upload(window, position, instalments)
        if self._chance.random() < bad.lose_answer:
            raise Unreachable("the answer was lost")
        for answer in answers:
            if isinstance(answer, Receipt):
                self.receipts.add((answer.report_id, answer.round, position))
        return answers

    async def release(self, window: Window) -> ReleaseAnswer:
        return await self.inner.release(window)

    async def close(self) -> None:
        await self.inner.close()


def identity_of(deployment: Written) -> DeviceIdentity:
    """Return a new device's certificate and key."""
    return DeviceIdentity.generate(deployment.written.authorities.devices)


def transport_of(
    deployment: Written, identity: DeviceIdentity, kind: str, broker: str = "", timeout_s: float = 5.0
) -> Transport:
    """Return a device's own connection, by gRPC with its certificate or by MQTT."""
    return own_transport(
        kind,
        deployment.written.aggregators,
        identity,
        deployment=deployment.written.name,
        broker=broker or deployment.written.mqtt_broker,
        authorities=authorities_of(deployment),
        call_timeout_s=timeout_s,
    )


async def answered(transport: Transport, aggregator: Aggregator, request: SessionRequest) -> SessionReply:
    """Return an aggregator's answer to a request for a session; one that is not at the broker yet hears it later."""
    while True:
        try:
            [answer] = await transport.open_sessions(aggregator, [request])
        except Unreachable:
            continue
        return answer


def authorities_of(deployment: Written) -> bytes:
    """Return who may speak as an aggregator of a deployment, as PEM."""
    return (deployment.written.root / "ca" / "aggregators.crt").read_bytes()


@dataclass
class LiveDevice:
    """One device: its truth (a cell of its own), its coins, and what it sent."""

    truth: int
    coins: FixedCoins
    transport: WatchedTransport
    device: Device
    outcome: Outcome | None = None

    @property
    def report_id(self) -> ReportId:
        """The name of its only report."""
        (name,) = self.transport.names
        return name

    @property
    def rounds(self) -> tuple[int, int]:
        """What its coins say."""
        return self.coins.rounds(self.truth)

    @property
    def delivered(self) -> bool:
        """Whether it holds every receipt."""
        return self.outcome is not None and self.outcome.kind is OutcomeKind.DELIVERED


def coins_of(die: SamplingDie, number: int, kinds: int, seed: int) -> FixedCoins:
    """Return the coins of a fleet's device; of each kind of connection every other one is sampled."""
    return FixedCoins(die, sampled=(number // kinds) % 2 == 0, seed=seed * 1000 + number)


class Fleet:
    """One device a cell, every other one sampled, in one process and one spool file."""

    def __init__(
        self,
        deployment: Written,
        directory: Path,
        die: SamplingDie,
        kinds: Sequence[str],
        *,
        devices: int = 0,
        broker: str = "",
        misfortune: Misfortune | None = None,
        seed: int = 1,
        spread: Fraction = Fraction(1, 4),
        timeout_s: float = 5.0,
        wrap: Callable[[Transport, int], Transport] = lambda inner, _: inner,
        reading: Callable[[int], Said] = lambda number: f"place {number}",
        identities: Callable[[int], DeviceIdentity] | None = None,
    ) -> None:
        self._reading = reading
        self._deployment = deployment
        self._file = SpoolFile(directory / f"spool-{seed}.db")
        self._settings = DeliverySettings(
            spread=spread, poll_interval_s=1.0, call_timeout_s=timeout_s, retry_base_s=0.1, retry_cap_s=1.0
        )
        self._trust = TrustStore(deployment.written.name, deployment.written.trusted.values())
        self.devices: list[LiveDevice] = []
        for number in range(1, (devices or die.values) + 1):
            identity = identities(number) if identities else identity_of(deployment)
            inner = wrap(transport_of(deployment, identity, kinds[number % len(kinds)], broker, timeout_s), number)
            watched = WatchedTransport(inner, misfortune or Misfortune(), seed * 1000 + number)
            coins = coins_of(die, number, len(kinds), seed)
            self.devices.append(self._device(number, identity, watched, coins))

    def _device(
        self, number: int, identity: DeviceIdentity, transport: WatchedTransport, coins: FixedCoins
    ) -> LiveDevice:
        device = Device(
            identity=identity,
            trust=self._trust,
            policy=OwnerPolicy(
                signals=frozenset({SIGNAL}),
                smallest_min_batch_size=2,
                fresh_ledger_wait_s=0,
                allow_exact_release=True,
                allow_one_sided=True,
            ),
            spool=self._file.device(str(number)),
            transport=transport,
            signals={SIGNAL: constant(self._reading(number))},
            source=coins,
            settings=self._settings,
            idle_close_s=600.0,
        )
        return LiveDevice(truth=number, coins=coins, transport=transport, device=device)

    async def answer(self, offer: QuestionOffer) -> None:
        """Let every device answer a question of one window to its end."""

        async def one(live: LiveDevice) -> None:
            async with live.device:
                outcomes = await live.device.answer_question(offer)
                live.outcome = outcomes[0] if outcomes else None

        try:
            async with (
                asyncio.timeout(offer.signed.question.schedule.end - time.time() + 20 * pace()),
                asyncio.TaskGroup() as group,
            ):
                for live in self.devices:
                    group.create_task(one(live))
        finally:
            self._file.close()

    @property
    def delivered(self) -> list[LiveDevice]:
        """The devices that hold all receipts."""
        return [live for live in self.devices if live.delivered]

    @property
    def failures(self) -> list[Outcome | None]:
        """How it ended for the others."""
        return [live.outcome for live in self.devices if not live.delivered]


async def offer_of(deployment: Written, window: Window, kind: str = "grpc", broker: str = "") -> QuestionOffer:
    """Wait until the aggregators offer the question of a window, as a new device sees it, and return the offer."""
    [offer] = await offers_of(deployment, [window], kind, broker)
    return offer


async def offers_of(
    deployment: Written, windows: Sequence[Window], kind: str = "grpc", broker: str = "", *, timeout_s: float = 15.0
) -> list[QuestionOffer]:
    """Wait until the aggregators offer the questions of these windows with all key lists; return them in this order.

    Raises:
        TimeoutError: names those that are not offered.
    """
    scout, until = (
        transport_of(deployment, identity_of(deployment), kind, broker),
        time.monotonic() + timeout_s * pace(),
    )
    try:
        while True:
            offered: dict[bytes, QuestionOffer] = {}
            with suppress(Unreachable):
                offered = {
                    window_at(offer.signed.question, 0).window_id: offer
                    for offer in await scout.list_questions()
                    # Another test's question may count from its submission, and have no windows yet.
                    if len(offer.key_lists) == len(offer.signed.question.aggregators)
                    and offer.signed.question.schedule.first is not None
                }
            if all(window.window_id in offered for window in windows):
                return [offered[window.window_id] for window in windows]
            if time.monotonic() > until:
                missing = [window.name for window in windows if window.window_id not in offered]
                raise TimeoutError(f"after {timeout_s * pace():.0f} s these questions are not offered: {missing}")
            await asyncio.sleep(0.1)
    finally:
        await scout.close()

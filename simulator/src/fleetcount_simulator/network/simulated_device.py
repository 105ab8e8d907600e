"""One device of a fleet process: a `fleetcount_client.Device` with the faults it meets and what is noted about it.

What only a simulation knows about it must stay here; the device itself is the one a vehicle embeds.
"""

import asyncio
import hashlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from fleetcount_client.backoff import Retry
from fleetcount_client.config import DeliverySettings
from fleetcount_client.device import Device
from fleetcount_client.policy import OwnerPolicy
from fleetcount_client.signals import SignalSource, constant
from fleetcount_client.spool import SpoolFile
from fleetcount_client.transport import Transport
from fleetcount_client.trust import TrustStore
from fleetcount_client.walks import WalkRecords
from fleetcount_mechanisms.randomness import RandomSource, SeededRandom, SystemRandom
from fleetcount_protocol.channel.certificates import CertificateAuthority
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.task.signing import TrustedAggregator
from fleetcount_protocol.task.task import Aggregator, SignedTask

from fleetcount_simulator.network.connections import Connections
from fleetcount_simulator.network.device_faults import DeviceFault
from fleetcount_simulator.network.faulty_transport import FaultyTransport, SkewedTimer, Tally, Trace
from fleetcount_simulator.network.fleet_spec import FleetSpec

__all__ = ["DeviceMaker", "SimulatedDevice", "coins_of", "delays_of", "enrol", "simulated_devices"]

_RETRY: Final = Retry(base_s=0.2, cap_s=2.0)
_NOTHING: Final = Fraction(1, 10**9)


@dataclass(slots=True)
class SimulatedDevice:
    """One device, its number in the population, the faults it meets, and how its answer ended so far."""

    number: int
    faults: DeviceFault
    device: Device
    transport: FaultyTransport
    trace: Trace
    timer: SkewedTimer
    outcome: str = "unfinished"
    reason: str = field(default="", repr=False)

    async def answer(self, signed: SignedTask, deadline: float) -> None:
        """Answer a task; be switched off where its faults or the deadline (Unix seconds) say so."""
        answering = asyncio.create_task(self.device.answer_task(signed), name=f"device {self.number}")
        waiting: set[asyncio.Task[Any]] = {answering}
        if DeviceFault.DROPPED in self.faults:
            waiting.add(asyncio.create_task(self.trace.left.wait(), name="off"))
        try:
            await asyncio.wait(waiting, timeout=max(0.0, deadline - time.time()), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                self.outcome, self.reason = answering.result().kind.value, answering.result().reason
            elif self.trace.left.is_set():
                self.outcome = "dropped"
            else:
                self.reason = "no answer before the windows closed: this machine is too busy"
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await self.device.close()


async def enrol(device: Device, aggregators: Sequence[Aggregator], deadline: float, *, stay: bool) -> bool:
    """Connect a device and open the sessions of its next answers; `stay` connected. Returns whether all accepted."""
    try:
        return await device.open_sessions(aggregators, deadline)
    finally:
        if not stay:
            await device.close()


class DeviceMaker:
    """Makes the devices of a process, each with a new key, a certificate and a place in the state file."""

    def __init__(
        self, spec: FleetSpec, authority: CertificateAuthority, connections: Connections, file: SpoolFile
    ) -> None:
        self.spec = spec
        self._authority = authority
        self._idle_close_s = connections.idle_close_s
        self._file = file
        self._trust = TrustStore(spec.deployment, [_trusted(one) for one in spec.aggregators])
        self._walk_records = WalkRecords(self._trust)
        self._policies = {refusing: _policy(spec, refusing=refusing) for refusing in (False, True)}
        news_s = spec.series.news_s if spec.series else DeliverySettings().poll_interval_s
        self._settings = DeliverySettings(
            spread=Fraction(spec.spread), call_timeout_s=spec.call_timeout_s, retry=_RETRY, poll_interval_s=news_s
        )

    def identity(self) -> DeviceIdentity:
        """Return the identity of one more device."""
        return DeviceIdentity.generate(self._authority)

    def policy(self, *, refusing: bool = False) -> OwnerPolicy:
        """Return what owners allow; `refusing`, that of one whose ledger is full."""
        return self._policies[refusing]

    def device(
        self,
        place: int,
        identity: DeviceIdentity,
        transport: Transport,
        signal: SignalSource,
        *,
        timer: SkewedTimer,
        policy: OwnerPolicy,
        conditions: Callable[[], bool] = lambda: True,
    ) -> Device:
        """Return the device at a place of the process; it joins a series at its owner's word."""
        number = self.spec.numbers[place]
        return Device(
            identity=identity,
            trust=self._trust,
            policy=policy,
            spool=self._file.device(str(number)),
            transport=transport,
            signals={self.spec.signal: signal},
            timer=timer,
            source=coins_of(self.spec.coin_seed, number),
            settings=self._settings,
            conditions=conditions,
            idle_close_s=self._idle_close_s,
            walk_records=self._walk_records,
        )


def simulated_devices(maker: DeviceMaker, connections: Connections, tally: Tally) -> list[SimulatedDevice]:
    """Return the devices of a process that answer one task."""
    spec = maker.spec

    def one(place: int) -> SimulatedDevice:
        number, faults = spec.numbers[place], DeviceFault(spec.device_faults[place])
        trace, timer, identity = Trace(), SkewedTimer(), maker.identity()
        chance = delays_of(spec.coin_seed, number)
        transport = FaultyTransport(connections.of(identity), faults, trace, tally, reorder=spec.reorder, chance=chance)
        device = maker.device(
            place,
            identity,
            transport,
            constant(spec.readings[place]),
            timer=timer,
            policy=maker.policy(refusing=DeviceFault.REFUSED in faults),
        )
        return SimulatedDevice(
            number=number, faults=faults, device=device, transport=transport, trace=trace, timer=timer
        )

    return [one(place) for place in range(len(spec.numbers))]


def _trusted(one: Aggregator) -> TrustedAggregator:
    return TrustedAggregator(
        aggregator_id=one.aggregator_id, operator=one.operator, signing_public_key=one.signing_public_key
    )


def _policy(spec: FleetSpec, *, refusing: bool) -> OwnerPolicy:
    """Return the policy of an owner who allows what the study asks, and of one whose ledger is full."""
    limits: dict[str, Any] = {name: Fraction(text) for name, text in spec.limits.items()}
    if refusing:
        limits["total_epsilon"] = _NOTHING
    return OwnerPolicy(
        signals=frozenset({spec.signal}),
        smallest_min_batch_size=2,
        fresh_ledger_wait_s=0,
        allow_direct=True,
        allow_exact_release=True,
        allow_one_sided=True,
        **limits,
    )


def delays_of(coin_seed: int | None, number: int) -> random.Random:
    """Return what draws a device's delays: no secret and no coin, from the study's seed and the device's number."""
    return random.Random(f"{coin_seed}/delays/{number}")  # noqa: S311 - as said.


def coins_of(coin_seed: int | None, number: int) -> RandomSource:
    """Return a device's coins: the operating system's, or with a seed a stream of its own that anyone can repeat.

    The stream depends on the device's number in the population alone, not on the process it runs in.
    """
    if coin_seed is None:
        return SystemRandom()
    # Not a sum: devices of different numbers under different seeds must not share a stream.
    digest = hashlib.sha256(f"{coin_seed}/network/{number}".encode()).digest()
    return SeededRandom(int.from_bytes(digest[:8], "big"))

"""One device of a fleet process: a `fleetcount_client.Device` with the faults it meets and what is noted about it.

What only a simulation knows about it must stay here; the device itself is the one a vehicle embeds.
"""

import asyncio
import hashlib
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from fleetcount_client.backoff import Retry
from fleetcount_client.config import DeliverySettings
from fleetcount_client.device import Device
from fleetcount_client.outcome import Outcome, OutcomeKind
from fleetcount_client.policy import JoinRule, OwnerPolicy
from fleetcount_client.series_rows import SeriesState
from fleetcount_client.signals import SignalSource, constant
from fleetcount_client.spool import SpoolFile
from fleetcount_client.transport import Unreachable
from fleetcount_client.trust import TrustStore
from fleetcount_mechanisms.randomness import RandomSource, SeededRandom, SystemRandom
from fleetcount_protocol.channel.certificates import CertificateAuthority
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.task.signing import TrustedAggregator
from fleetcount_protocol.task.task import Aggregator, SignedTask

from fleetcount_simulator.network.connections import Connections
from fleetcount_simulator.network.device_faults import DeviceFault
from fleetcount_simulator.network.faulty_transport import FaultyTransport, SkewedTimer, Tally, Trace
from fleetcount_simulator.network.fleet_spec import FleetSpec

__all__ = ["SimulatedDevice", "coins_of", "simulated_devices"]

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

    async def enrol(self, aggregators: Sequence[Aggregator], deadline: float, *, stay: bool) -> bool:
        """Connect and open the sessions of its next answers; `stay` connected. Returns whether all accepted."""
        try:
            return await self.device.open_sessions(aggregators, deadline)
        finally:
            if not stay:
                await self.device.close()

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

    async def answer_series(self, source: Mapping[str, SignalSource], deadline: float) -> tuple[Outcome, ...]:
        """Join the series on offer and answer its windows; return how each ended, none if it may not join."""
        try:
            async with asyncio.timeout(max(0.0, deadline - time.time())):
                outcomes = await self.device.answer(source)
        except (TimeoutError, Unreachable):
            self.reason = "no answer before the last window closed: this machine is too busy"
            return ()
        finally:
            await self.device.close()
        late = next((one.reason for one in outcomes if one.kind is not OutcomeKind.DELIVERED), "")
        refused = next((row.reason for row in self.device.series.rows() if row.state is SeriesState.REFUSED), "")
        self.reason = late or refused
        return outcomes


def simulated_devices(
    spec: FleetSpec, authority: CertificateAuthority, connections: Connections, file: SpoolFile, tally: Tally
) -> list[SimulatedDevice]:
    """Return the devices of a process, each with a new key, a certificate and a place in the state file."""
    trust = TrustStore(spec.deployment, [_trusted(one) for one in spec.aggregators])
    policies = {refusing: _policy(spec, refusing=refusing) for refusing in (False, True)}
    settings = DeliverySettings(spread=Fraction(spec.spread), call_timeout_s=spec.call_timeout_s, retry=_RETRY)

    def one(place: int) -> SimulatedDevice:
        number, faults = spec.numbers[place], DeviceFault(spec.device_faults[place])
        identity = DeviceIdentity.generate(authority)
        # Delays are no secret and no coin: they come from the study's seed and the device's number.
        chance = random.Random(f"{spec.coin_seed}/delays/{number}")  # noqa: S311 - as said.
        trace, timer = Trace(), SkewedTimer()
        transport = FaultyTransport(connections.of(identity), faults, trace, tally, reorder=spec.reorder, chance=chance)
        device = Device(
            identity=identity,
            trust=trust,
            policy=policies[DeviceFault.REFUSED in faults],
            spool=file.device(str(number)),
            transport=transport,
            signals={spec.signal: constant(spec.readings[place])},
            timer=timer,
            source=coins_of(spec.coin_seed, number),
            settings=settings,
            idle_close_s=connections.idle_close_s,
            join=JoinRule.AUTO,
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


def coins_of(coin_seed: int | None, number: int) -> RandomSource:
    """Return a device's coins: the operating system's, or with a seed a stream of its own that anyone can repeat.

    The stream depends on the device's number in the population alone, not on the process it runs in.
    """
    if coin_seed is None:
        return SystemRandom()
    # Not a sum: devices of different numbers under different seeds must not share a stream.
    digest = hashlib.sha256(f"{coin_seed}/network/{number}".encode()).digest()
    return SeededRandom(int.from_bytes(digest[:8], "big"))

"""One device of a fleet process: a `fleetcount_client.Device` with the faults and traces of the study.

The device is the one that a vehicle embeds; it must not see what only the simulation knows.
"""

import asyncio
import hashlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from fleetcount_client.config import DeliverySettings
from fleetcount_client.contact import Outcome, OutcomeKind, TrustStore
from fleetcount_client.device import Device
from fleetcount_client.policy import OwnerPolicy
from fleetcount_client.question_rows import WalkRecords
from fleetcount_client.signals import SignalSource
from fleetcount_client.spool import SpoolFile
from fleetcount_client.transport import Transport
from fleetcount_mechanisms.randomness import RandomSource, SeededRandom, SystemRandom
from fleetcount_protocol.channel.certificates import CertificateAuthority
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import QuestionId
from fleetcount_protocol.messages import QuestionOffer
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_protocol.window.signing import TrustedAggregator

from fleetcount_simulator.network.connections import Connections
from fleetcount_simulator.network.faulty_transport import SkewedTimer, WindowTransport
from fleetcount_simulator.network.fleet_spec import FleetSpec

_NOTHING: Final = Fraction(1, 10**9)


@dataclass(slots=True)
class SimulatedDevice:
    """One device: its place in the process, its transport, its clock, and the outcomes of its answers.

    `refused` is the reason why it does not take part, "" if it does; `reasons` are those of undelivered answers.
    """

    place: int
    number: int
    device: Device
    transport: WindowTransport
    timer: SkewedTimer
    over: "asyncio.Future[None]"
    """Done when nothing is asked of it any more. Its own: to stop waiting for one that thousands wait for costs a look
    at each of them."""
    answering: asyncio.Task[tuple[Outcome, ...]] | None = None
    refused: str = field(default="", repr=False)
    reasons: list[str] = field(default_factory=list[str], repr=False)

    def take_part(self, offer: QuestionOffer) -> None:
        """Begin to answer a question: in the next step of the loop its policy judges it and its ledger reserves."""
        self.answering = asyncio.create_task(self.device.answer_question(offer), name=f"device {self.number}")

    async def finish(self, question_id: QuestionId, until: float, *, leaves: bool) -> None:
        """Wait for its answers until a moment (Unix seconds), or until it is `over`; then leave the question or switch
        the device off.
        """
        if self.answering is None:
            raise RuntimeError("a device that takes no part has nothing to finish")
        ends: set[asyncio.Future[Any]] = {self.answering, self.over}
        await asyncio.wait(ends, timeout=max(0.0, until - time.time()), return_when=asyncio.FIRST_COMPLETED)
        if not self.answering.done():
            if leaves:
                self.device.questions.leave(question_id)
            self.answering.cancel()
            await asyncio.wait({self.answering})
        await self.device.close()
        if self.answering.cancelled():
            if not leaves and not self.over.done():
                self.reasons.append("no answer before the windows closed: this machine is too busy")
        elif isinstance(error := self.answering.exception(), UsageError):  # It joined after the last window.
            self.refused = str(error)
        elif error is not None:
            raise RuntimeError("a device stopped answering") from error
        else:
            ended = self.answering.result()
            self.refused = next((one.reason for one in ended if one.kind is OutcomeKind.REFUSED), "")
            self.reasons += [one.reason for one in ended if one.reason and one.kind is not OutcomeKind.MISSED]


async def enrol(device: Device, aggregators: Sequence[Aggregator], deadline: float, *, stay: bool) -> bool:
    """Connect a device and open its sessions; with `stay` it stays connected. Return whether all accepted."""
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
        self._trust = TrustStore(spec.deployment, list(map(TrustedAggregator.of, spec.aggregators)))
        self._walk_records = WalkRecords(self._trust)
        self._policies = {refusing: _policy(spec, refusing=refusing) for refusing in (False, True)}
        self._settings = DeliverySettings(
            spread=Fraction(spec.spread),
            call_timeout_s=spec.call_timeout_s,
            retry_base_s=0.2,
            retry_cap_s=2.0,
        )

    def identity(self) -> DeviceIdentity:
        """Return the identity of one more device."""
        return DeviceIdentity.generate(self._authority)

    def device(
        self,
        place: int,
        identity: DeviceIdentity,
        transport: Transport,
        signals: Mapping[str, SignalSource],
        *,
        timer: SkewedTimer,
        refusing: bool,
        conditions: Callable[[], bool],
    ) -> Device:
        """Return the device at a place of the process; with `refusing` the ledger of its owner is full."""
        number = self.spec.numbers[place]
        return Device(
            identity=identity,
            trust=self._trust,
            policy=self._policies[refusing],
            spool=self._file.device(str(number)),
            transport=transport,
            signals=signals,
            timer=timer,
            source=coins_of(self.spec.coin_seed, number),
            settings=self._settings,
            conditions=conditions,
            idle_close_s=self._idle_close_s,
            walk_records=self._walk_records,
        )


def _policy(spec: FleetSpec, *, refusing: bool) -> OwnerPolicy:
    """Return the policy of an owner who allows the study's questions; with `refusing` the ledger is full."""
    limits: dict[str, Any] = {name: Fraction(text) for name, text in spec.limits.items()}
    if refusing:
        limits["total_epsilon"] = _NOTHING
    return OwnerPolicy(
        signals=frozenset(spec.signals),
        smallest_min_batch_size=2,
        fresh_ledger_wait_s=0,
        allow_direct=True,
        allow_exact_release=True,
        allow_one_sided=True,
        **limits,
    )


def delays_of(coin_seed: int | None, number: int) -> random.Random:
    """Return the generator of a device's delays, which draws no secret and no coin; the study's seed decides it."""
    return random.Random(f"{coin_seed}/delays/{number}")  # noqa: S311 - delays alone.


def coins_of(coin_seed: int | None, number: int) -> RandomSource:
    """Return a device's coins: the operating system's, or with a seed a stream of its own that anyone can repeat.

    The stream depends on the device's number in the population alone, not on the process it runs in.
    """
    if coin_seed is None:
        return SystemRandom()
    # A hash, not a sum: different pairs of seed and number must not share a stream.
    digest = hashlib.sha256(f"{coin_seed}/network/{number}".encode()).digest()
    return SeededRandom(int.from_bytes(digest[:8], "big"))

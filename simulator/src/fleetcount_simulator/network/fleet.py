"""A fleet of real devices in one process: `python -m fleetcount_simulator.network.fleet SPEC.json`.

Every vehicle is a `fleetcount_client.Device` with its own certificate, session and connections; only the process, the
state file and the limit of vehicles connected at once are shared. Speaks JSON lines on stdout, never a truth or a coin.
"""

import asyncio
import gc
import hashlib
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from fleetcount_client import (
    DeliverySettings,
    Device,
    Outcome,
    OutcomeKind,
    OwnerPolicy,
    SpoolFile,
    Transport,
    TrustStore,
    Unreachable,
    constant,
)
from fleetcount_client.backoff import Retry
from fleetcount_mechanisms.randomness import RandomSource, SeededRandom, SystemRandom
from fleetcount_protocol.channel.certificates import CertificateAuthority, load_certificate, load_private_key
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.errors import PeerError
from fleetcount_protocol.messages import Instalment, Receipt, Refusal, SessionAccepted, SessionRefused, SessionRequest
from fleetcount_protocol.task.task import Aggregator, SignedTask, Task

from fleetcount_simulator.network.fleet_spec import FleetSpec
from fleetcount_simulator.network.vehicle_transports import vehicle_transport

__all__ = ["GatedTransport", "Tally", "coins_of", "main"]

_POLL_S: Final = 0.3
_GRACE_S: Final = 2.0
_PROGRESS_S: Final = 0.3
_COLLECT_AFTER: Final = 50_000
"""New objects between two looks of the collector, 700 as Python starts."""
# The first half of a window: the gate spreads what this machine cannot do at once over the rest.
_SETTINGS: Final = DeliverySettings(
    spread=Fraction(1, 2), poll_interval_s=1.0, call_timeout_s=20.0, retry=Retry(base_s=0.3, cap_s=3.0)
)


@dataclass(slots=True)
class Tally:
    """How far the fleet is: receipts per round (0 for a report in one message) and vehicles that are done."""

    receipts: Counter[int]
    sessions: int = 0
    ended: int = 0


class GatedTransport:
    """A vehicle's transport behind the limit of vehicles connected at once; counts receipts on the way."""

    def __init__(self, inner: Transport, gate: asyncio.Semaphore, tally: Tally) -> None:
        self._inner = inner
        self._gate = gate
        self._tally = tally
        self._entering = asyncio.Lock()
        self._entered = False

    async def list_tasks(self) -> tuple[SignedTask, ...]:
        """Ask for the tasks on offer."""
        await self._enter()
        return await self._inner.list_tasks()

    async def open_sessions(
        self, aggregator: Aggregator, requests: Sequence[SessionRequest]
    ) -> tuple[SessionAccepted | SessionRefused, ...]:
        """Open sessions, once there is room."""
        await self._enter()
        answers = await self._inner.open_sessions(aggregator, requests)
        self._tally.sessions += sum(isinstance(answer, SessionAccepted) for answer in answers)
        return answers

    async def upload(
        self, task: Task, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        """Upload, once there is room."""
        await self._enter()
        answers = await self._inner.upload(task, position, instalments)
        self._tally.receipts.update(answer.round for answer in answers if isinstance(answer, Receipt))
        return answers

    async def close(self) -> None:
        """Give up the connection and the place."""
        try:
            await self._inner.close()
        finally:
            if self._entered:
                self._entered = False
                self._gate.release()

    async def _enter(self) -> None:
        async with self._entering:
            if not self._entered:
                await self._gate.acquire()
                self._entered = True


class _Fleet:
    """The vehicles of one process."""

    def __init__(self, spec: FleetSpec) -> None:
        self._spec = spec
        self.tally = Tally(receipts=Counter())
        self._gate = asyncio.Semaphore(spec.at_once)
        self._trust = TrustStore(spec.deployment, [party.trusted() for party in spec.aggregators])
        # An fsync a vehicle and step would measure the disk, not the fleet: a simulation need not survive a power cut.
        self._file = SpoolFile(Path(spec.spool_file), durable=False)
        authority = CertificateAuthority(
            certificate=load_certificate(Path(spec.device_ca_file)),
            private_key=load_private_key(Path(spec.device_ca_key_file)),
        )
        self.devices = [self._device(number, authority) for number in range(len(spec.readings))]

    def _device(self, number: int, authority: CertificateAuthority) -> Device:
        spec = self._spec
        credential = authority.issue_device()
        identity = DeviceIdentity(certificate=credential.certificate, private_key=credential.private_key)
        transport = vehicle_transport(spec, identity, _SETTINGS.call_timeout_s)
        return Device(
            identity=identity,
            trust=self._trust,
            policy=_policy(spec),
            spool=self._file.device(str(number)),
            transport=GatedTransport(transport, self._gate, self.tally),
            signals={spec.signal: constant(spec.readings[number])},
            source=coins_of(spec.coin_seed, spec.name, number),
            settings=_SETTINGS,
            idle_close_s=0.0,
        )

    async def wait_for_task(self) -> SignedTask:
        """Return the task once an aggregator offers it; one vehicle asks for all."""
        scout = GatedTransport(self._scout(), self._gate, self.tally)
        try:
            while True:
                try:
                    offered = await scout.list_tasks()
                except (Unreachable, PeerError):
                    offered = ()
                for signed in offered:
                    if signed.task.name == self._spec.task_name:
                        return signed
                await asyncio.sleep(_POLL_S)
        finally:
            await scout.close()

    def _scout(self) -> Transport:
        authority = CertificateAuthority(
            certificate=load_certificate(Path(self._spec.device_ca_file)),
            private_key=load_private_key(Path(self._spec.device_ca_key_file)),
        )
        credential = authority.issue_device()
        identity = DeviceIdentity(certificate=credential.certificate, private_key=credential.private_key)
        return vehicle_transport(self._spec, identity, 5.0)

    async def answer(self, signed: SignedTask) -> list[Outcome]:
        """Let every vehicle answer the task to its end."""

        deadline = signed.task.round_two_closes + _GRACE_S

        async def one(device: Device) -> Outcome:
            try:
                async with asyncio.timeout(max(0.0, deadline - time.time())), device:
                    return await device.answer_task(signed)
            except TimeoutError:
                return _late(signed)
            finally:
                self.tally.ended += 1

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(device)) for device in self.devices]
        self._file.close()
        return [task.result() for task in tasks]


def _late(signed: SignedTask) -> Outcome:
    """Return how the answer of a vehicle ended that was still waiting when the demo's last window had long closed."""
    return Outcome(
        task_id=signed.task.task_id,
        name=signed.task.name,
        kind=OutcomeKind.GIVEN_UP,
        reason="no answer before the windows closed: this machine is too busy",
    )


def _policy(spec: FleetSpec) -> OwnerPolicy:
    limits = {name: Fraction(text) for name, text in spec.policy.items()}
    return OwnerPolicy(
        signals=frozenset({spec.signal}),
        smallest_min_batch_size=2,
        fresh_ledger_wait_s=0,
        largest_epsilon=limits["largest_epsilon"],
        largest_local_epsilon=limits["largest_local_epsilon"],
        total_epsilon=limits["largest_epsilon"],
    )


def coins_of(coin_seed: int | None, fleet: str, number: int) -> RandomSource:
    """Return a vehicle's coins: the operating system's, or with a seed a stream of its own that anyone can repeat."""
    if coin_seed is None:
        return SystemRandom()
    # Not a sum: fleets of different names and vehicles of different numbers must not share a stream.
    digest = hashlib.sha256(f"{coin_seed}/{fleet}/{number}".encode()).digest()
    return SeededRandom(int.from_bytes(digest[:8], "big"))


def _say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def _say_progress(fleet: _Fleet, parties: int) -> None:
    receipts = fleet.tally.receipts
    _say(
        event="progress",
        round_one=(receipts[0] + receipts[1]) // parties,
        round_two=receipts[2] // parties,
        ended=fleet.tally.ended,
    )


async def _report(fleet: _Fleet, parties: int) -> None:
    """Say how far the fleet is until cancelled."""
    while True:
        _say_progress(fleet, parties)
        await asyncio.sleep(_PROGRESS_S)


async def _run(spec: FleetSpec) -> None:
    started = time.perf_counter()
    fleet = _Fleet(spec)
    # Thousands of devices live to the end: the collector need not look at them again and again.
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    _say(ready=True, vehicles=len(fleet.devices), seconds=round(time.perf_counter() - started, 3))
    signed = await fleet.wait_for_task()
    _say(event="task", task_id=str(signed.task.task_id))
    reporter = asyncio.create_task(_report(fleet, len(spec.aggregators)), name="progress")
    try:
        outcomes = await fleet.answer(signed)
    finally:
        reporter.cancel()
    _say_progress(fleet, len(spec.aggregators))
    kinds = Counter(outcome.kind.value for outcome in outcomes)
    reasons = Counter(outcome.reason for outcome in outcomes if outcome.reason)
    _say(event="done", outcomes=dict(kinds), reasons=dict(reasons.most_common(5)))


def _end_with_parent() -> None:
    """End this process when its stdin closes: the parent is gone, whatever ended it."""
    # Not sys.stdin: a thread inside its lock would keep the interpreter from ending.
    while os.read(0, 4096):
        pass
    os._exit(1)


def main() -> int:
    """Run the fleet of the file named on the command line."""
    spec = FleetSpec.read(Path(sys.argv[1]))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    asyncio.run(_run(spec))
    return 0


if __name__ == "__main__":
    sys.exit(main())

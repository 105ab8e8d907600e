"""The devices of one process of a network run: `python -m fleetcount_simulator.network.clients SPEC.json`.

Every device is a `fleetcount_client.Device` with its own certificate, sessions, coins and place in the state file; the
connections are shared. Speaks JSON lines on stdout, takes commands on stdin ("probe"), never says a truth or a coin.
"""

import asyncio
import gc
import json
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from fleetcount_client import (
    DeliverySettings,
    Device,
    OutcomeKind,
    OwnerPolicy,
    SpoolFile,
    Transport,
    TrustStore,
    Unreachable,
    constant,
)
from fleetcount_client.backoff import Retry
from fleetcount_protocol.channel.certificates import CertificateAuthority, load_certificate, load_private_key
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.errors import PeerError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.messages import Instalment, Receipt
from fleetcount_protocol.task.domain import Signal
from fleetcount_protocol.task.task import SignedTask, Task

from fleetcount_simulator.network.fates import Fate
from fleetcount_simulator.network.faults import FaultyTransport, SkewedTimer, Tally, Trace, rounds_of
from fleetcount_simulator.network.fleet import coins_of
from fleetcount_simulator.network.lanes import SharedTransport
from fleetcount_simulator.network.question import reading_of
from fleetcount_simulator.network.spec import ClientsReport, ClientsSpec

__all__ = ["COINS", "OUTCOMES", "main"]

COINS: Final = "network"
"""The name under which `coins_of` gives device i of the population its stream, whatever process it runs in."""
OUTCOMES: Final = (*(kind.value for kind in OutcomeKind), "absent", "dropped", "unfinished")
"""How an answer ended: as the device itself says, or that it was off, was switched off, or was still waiting."""

_POLL_S: Final = 0.1
_PROGRESS_S: Final = 0.25
_GRACE_S: Final = 2.0
_PROBES: Final = 100
_PROBE_S: Final = 0.3
_SIGNALS: Final = frozenset({"Vehicle.CurrentLocation", "Vehicle.Speed", "Vehicle.Category"})
_ALL: Final = Fraction(1000)
_NOTHING: Final = Fraction(1, 10**9)


@dataclass(slots=True)
class _Member:
    """One device with what is known about it only because it is a simulation."""

    number: int
    fate: Fate
    device: Device
    transport: FaultyTransport
    trace: Trace
    timer: SkewedTimer
    truth: int = field(repr=False)
    outcome: str = "unfinished"


class _Clients:
    """The devices of one process."""

    def __init__(self, spec: ClientsSpec) -> None:
        self._spec = spec
        self._trust = TrustStore(spec.deployment, [party.trusted() for party in spec.aggregators])
        # An fsync a device and step would measure the disk, not the fleet: a simulation need not survive a power cut.
        self._file = SpoolFile(Path(spec.spool_file), durable=False)
        self._authority = CertificateAuthority(
            certificate=load_certificate(Path(spec.device_ca_file)),
            private_key=load_private_key(Path(spec.device_ca_key_file)),
        )
        self.transport = SharedTransport(self._connection())
        self.tally = Tally()
        self._settings = DeliverySettings(
            spread=Fraction(spec.spread),
            call_timeout_s=spec.call_timeout_s,
            retry=Retry(base_s=0.2, cap_s=2.0),
        )
        self.members = [self._member(place) for place in range(len(spec.numbers))]

    def _connection(self) -> Transport:
        spec = self._spec
        if spec.transport == "mqtt":
            from fleetcount_simulator.network.mqtt import SharedMqtt  # Each library only where it is used.

            return SharedMqtt(deployment=spec.deployment, broker=spec.broker, call_timeout_s=spec.call_timeout_s)
        return self._grpc()

    def _grpc(self) -> Transport:
        spec = self._spec
        from fleetcount_client.grpc_transport import GrpcTransport, TaskServer, TlsFiles  # As above.

        gateway = self._authority.issue_device()
        tls = TlsFiles(
            authorities=Path(spec.aggregator_ca_file).read_bytes(),
            certificate=gateway.certificate.public_bytes(Encoding.PEM),
            private_key=gateway.private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )
        servers = [
            TaskServer(aggregator_id=AggregatorId(party.aggregator_id), endpoint=party.grpc_endpoint)
            for party in spec.aggregators
        ]
        return GrpcTransport(deployment=spec.deployment, servers=servers, tls=tls, call_timeout_s=spec.call_timeout_s)

    def _member(self, place: int) -> _Member:
        spec, number = self._spec, self._spec.numbers[place]
        fate, trace, timer = Fate(spec.fates[place]), Trace(), SkewedTimer()
        credential = self._authority.issue_device()
        # Delays are no secret and no coin: they come from the study's seed and the device's number.
        chance = random.Random(f"{spec.coin_seed}/delays/{number}")  # noqa: S311 - as said.
        transport = FaultyTransport(self.transport, fate, trace, self.tally, reorder=spec.reorder, chance=chance)
        device = Device(
            identity=DeviceIdentity(certificate=credential.certificate, private_key=credential.private_key),
            trust=self._trust,
            policy=_policy(_NOTHING if Fate.REFUSED in fate else _ALL),
            spool=self._file.device(str(number)),
            transport=transport,
            timer=timer,
            source=coins_of(spec.coin_seed, COINS, number),
            settings=self._settings,
        )
        return _Member(
            number=number,
            fate=fate,
            device=device,
            transport=transport,
            trace=trace,
            timer=timer,
            truth=spec.truths[place],
        )

    async def wait_for_task(self) -> SignedTask:
        """Return the task once an aggregator offers it; one connection asks for all."""
        while True:
            try:
                offered = await self.transport.list_tasks()
            except (Unreachable, PeerError):
                offered = ()
            for signed in offered:
                if signed.task.name == self._spec.task_name:
                    return signed
            await asyncio.sleep(_POLL_S)

    async def answer(self, signed: SignedTask) -> None:
        """Let every device answer the task to its end, or until its last window has long closed."""
        task = signed.task
        readings = [reading_of(task.domain, value) for value in range(task.values + 1)]
        window_s = task.round_one_closes - task.round_one_opens
        for member, skew in zip(self.members, self._spec.skews, strict=True):
            member.timer.error_s = skew * window_s
        deadline = task.round_two_closes + _GRACE_S + max(0.0, -min(self._spec.skews, default=0.0)) * window_s
        async with asyncio.TaskGroup() as group:
            for member in self.members:
                if Fate.ABSENT in member.fate:
                    member.outcome = "absent"
                    self.tally.ended += 1
                else:
                    group.create_task(self._run(member, signed, readings[member.truth], deadline))
        await asyncio.gather(*(member.transport.stop() for member in self.members))

    async def _run(self, member: _Member, signed: SignedTask, reading: Signal, deadline: float) -> None:
        """Let one device answer; switch it off where its fate or the deadline says so."""
        signals = {signed.task.signal: constant(reading)}
        answering = asyncio.create_task(member.device.answer_task(signed, signals), name=f"device {member.number}")
        waiting: set[asyncio.Task[Any]] = {answering}
        if Fate.DROPPED in member.fate:
            waiting.add(asyncio.create_task(member.trace.left.wait(), name="off"))
        try:
            await asyncio.wait(waiting, timeout=max(0.0, deadline - time.time()), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                member.outcome = answering.result().kind.value
            elif member.trace.left.is_set():
                member.outcome = "dropped"
        finally:
            self.tally.ended += 1
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def probe(self, task: Task) -> None:
        """Send every message without an answer again: whoever holds the bytes gives their receipt at any time.

        A refusal now only says that the bytes are not there; it was no device that came too late.
        """
        # Over MQTT nobody reads the topic of a closed task any more.
        direct = SharedTransport(self._grpc())
        try:
            await asyncio.gather(
                *(
                    _probe(direct, task, member.trace, position, instalment)
                    for member in self.members
                    if _flags(member.trace, task) & ClientsReport.UNCERTAIN
                    for (_, position), instalment in list(member.trace.pending.items())
                )
            )
        finally:
            await direct.close()

    async def close(self) -> None:
        """Close connections and the state file."""
        await self.transport.close()
        self._file.close()


async def _probe(transport: Transport, task: Task, trace: Trace, position: int, instalment: Instalment) -> None:
    """Ask about one message until an aggregator that is starting again answers, for half a minute."""
    for _ in range(_PROBES):
        try:
            (answer,) = await transport.upload(task, position, [instalment])
        except (Unreachable, PeerError):
            await asyncio.sleep(_PROBE_S)
            continue
        if isinstance(answer, Receipt):
            trace.note_stored(position, instalment)
        return


def _policy(total_epsilon: Fraction) -> OwnerPolicy:
    """Return the policy of an owner who allows whatever a study asks, up to a total."""
    return OwnerPolicy(
        signals=_SIGNALS,
        smallest_min_batch_size=2,
        fresh_ledger_wait_s=0,
        largest_epsilon=_ALL,
        largest_local_epsilon=_ALL,
        largest_sampling_rate=Fraction(1),
        total_epsilon=total_epsilon,
        total_exposure=_ALL,
        allow_direct=True,
        allow_exact_release=True,
    )


# The report.


def _report(members: Sequence[_Member], task: Task) -> ClientsReport:
    places = _places(task)
    named = [
        (member, report_id, digest)
        for member in members
        for report_id, digest in member.trace.reports.items()
        if digest is not None
    ]
    return ClientsReport(
        numbers=np.array([member.number for member in members], dtype=np.int64),
        outcomes=np.array([OUTCOMES.index(member.outcome) for member in members], dtype=np.uint8),
        flags=np.array([_flags(member.trace, task) for member in members], dtype=np.uint8),
        owners=np.array([member.number for member, _, _ in named], dtype=np.int64),
        report_ids=_bytes([report_id for _, report_id, _ in named], 16),
        share_digests=_bytes([digest for _, _, digest in named], 32),
        complete=np.array([places <= member.trace.receipted for member, _, _ in named], dtype=np.bool_),
    )


def _places(task: Task) -> set[tuple[int, int]]:
    """Return the round and position of every message of one report."""
    return {(number, position) for number in rounds_of(task) for position in range(len(task.aggregators))}


def _flags(trace: Trace, task: Task) -> int:
    places = _places(task)
    missing = places - trace.receipted
    first = all(place in trace.receipted for place in places if place[0] == rounds_of(task)[0])
    return (
        ClientsReport.FIRST * first
        | ClientsReport.LATE * trace.late
        | ClientsReport.RESENT * trace.resent
        | ClientsReport.UNCERTAIN * (bool(missing) and missing <= trace.pending.keys())
    )


def _bytes(values: Sequence[bytes], size: int) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    return np.frombuffer(b"".join(values), dtype=np.uint8).reshape(len(values), size)


# The process.


def _say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def _say_progress(tally: Tally, event: str) -> None:
    first = tally.receipts[0] + tally.receipts[1]
    latest = {str(number): moment for number, moment in tally.latest.items()}
    _say(event=event, round_one=first, round_two=tally.receipts[2], ended=tally.ended, latest=latest)


async def _report_progress(tally: Tally) -> None:
    """Say how far the devices are until cancelled."""
    while True:
        _say_progress(tally, "progress")
        await asyncio.sleep(_PROGRESS_S)


async def _serve(spec: ClientsSpec) -> None:
    started = time.perf_counter()
    commands = _commands()
    clients = _Clients(spec)
    # What lives until the end need not be looked at again and again.
    gc.collect()
    gc.freeze()
    _say(ready=True, devices=len(clients.members), seconds=round(time.perf_counter() - started, 3))
    signed = await clients.wait_for_task()
    _say(event="task", task_id=str(signed.task.task_id))
    reporter = asyncio.create_task(_report_progress(clients.tally), name="progress")
    try:
        await clients.answer(signed)
    finally:
        reporter.cancel()
    _report(clients.members, signed.task).write(Path(spec.report_file))
    _say_progress(clients.tally, "done")
    while await commands.get() == "probe":
        await clients.probe(signed.task)
        _report(clients.members, signed.task).write(Path(spec.report_file))
        _say(event="probed")
    await clients.close()


def _commands() -> "asyncio.Queue[str]":
    """Return the lines of stdin as they come; when it closes the parent is gone, and this process ends."""
    queue: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        # Not sys.stdin: a thread inside its lock would keep the interpreter from ending.
        rest = b""
        while data := os.read(0, 4096):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                loop.call_soon_threadsafe(queue.put_nowait, line.decode())
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    return queue


def main() -> int:
    """Run the devices of the file named on the command line."""
    asyncio.run(_serve(ClientsSpec.read(Path(sys.argv[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

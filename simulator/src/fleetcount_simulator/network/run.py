"""One question asked of real devices through real aggregators: started, followed, released, and accounted for.

The one runner behind the demo, the network engine, the benchmarks and the tests: they differ in arguments only. Starts
the processes and measures their times; it must not do the work of a device or an aggregator.
"""

import contextlib
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.messages import ReleaseAnswer, TaskState
from fleetcount_protocol.release import ReleaseRecord, decode_record, verify_record_signatures
from fleetcount_protocol.task.domain import Signal
from fleetcount_protocol.task.task import Task, UploadStyle

from fleetcount_simulator.errors import ProcessError
from fleetcount_simulator.faults import SPREAD
from fleetcount_simulator.model import Faults
from fleetcount_simulator.network.brokers import EMBEDDED
from fleetcount_simulator.network.children import Child
from fleetcount_simulator.network.counted import Account, account_of
from fleetcount_simulator.network.device_faults import FleetFaults
from fleetcount_simulator.network.fleet_report import FleetReport
from fleetcount_simulator.network.fleet_spec import OWN, FleetSpec, write_private
from fleetcount_simulator.network.machine_speed import measure_speed
from fleetcount_simulator.network.outages import outages_of
from fleetcount_simulator.network.parties import START_S, Parties
from fleetcount_simulator.network.question import NetworkQuestion
from fleetcount_simulator.network.watch import ProgressCallback, Watch
from fleetcount_simulator.network.windows import IN_TURNS, Enrolment, Windows, load_before, windows_for

__all__ = ["Ask", "Asked", "Begun", "ProgressCallback", "ask", "begin", "checked"]

_LONGEST_CALL_S: Final = 20.0
_EXPIRY_S: Final = 86_400
_LOCAL: Final = Fraction(20)
"""The loss of a randomized response under exact limits: how large it is depends on the question."""
_FILES: Final = 16_384
"""Open files a process may want: a connection a device and aggregator, as many sockets and the stores."""
_OTHER_FILES: Final = 200
_AT_ONCE: Final = 4_000
"""Devices connected at once at the most: over gRPC each costs its process 0.2 MiB and each aggregator 0.1 MiB."""
_AT_ONCE_EMBEDDED: Final = 16
"""The embedded broker looks through all connections for every message."""
_BURST: Final = Fraction(1, 2)
"""The part of a window in which devices send first where no fault depends on it: the sooner, the larger the batches."""


def _as_they_are(windows: Windows, start_s: float) -> Windows:
    del start_s
    return windows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ask:
    """What one run asks, and of whom.

    `transports` names the transport of each fleet process; device i belongs to process i modulo their number and reads
    `readings[i]`. `connections` is "own", a connection a device, or "shared", one a process. `limits` are what the
    owners allow, fields of `OwnerPolicy`; None: exactly what is asked. `coin_seed` None leaves the coins to the
    operating system. With `frames` it is for `ask_series`, and device i reads `frames[w][i]` in window w. `shape` makes
    room for faults in the windows; it is told in how many seconds aggregators start.
    """

    name: str
    question: NetworkQuestion
    transports: tuple[str, ...]
    connections: str
    readings: Sequence[Signal] = field(repr=False)
    limits: Mapping[str, Fraction] | None = None
    device_faults: FleetFaults
    faults: Faults = Faults()  # noqa: RUF009 - Faults is frozen
    coin_seed: int | None = field(default=None, repr=False)
    shape: Callable[[Windows, float], Windows] = _as_they_are
    progress: ProgressCallback
    frames: Sequence[Sequence[Signal]] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """What came of it: the checked record (None: aborted, or no release in time), the account, the times.

    `answer` is how the task ended, None when no aggregator said so in time; `reasons` are what devices said that were
    not counted, the commonest first. `stages` are seconds: "ready" until all devices had their sessions, "round_one"
    and "round_two" from a window's opening to its last receipt, "release" from the last close to the record, "asked"
    from signing to the record. `broker` is the MQTT broker that ran: "mosquitto", "embedded" (amqtt), or "" for none.
    """

    task: Task
    record: ReleaseRecord | None
    answer: ReleaseAnswer | None
    account: Account
    reasons: Mapping[str, int]
    stages: Mapping[str, float]
    broker: str


async def ask(parties: Parties, asked: Ask, directory: Path) -> Asked:
    """Ask once; the aggregators have been started, the devices' processes start and end here.

    The devices enrol before the task is signed, and its windows are as long as that took lets expect. All files of this
    run lie below `directory`, which is private.

    Raises:
        ProcessError: a process did not start, or ended before its time.
        SignatureError: a record whose signatures do not verify.
    """
    begun, signed_at = await begin(parties, asked, directory), time.time()
    watch, windows, rounds = begun.watch, begun.windows, 2 if asked.question.two_rounds else 1
    task = parties.submit(_task(parties, asked, windows))
    answer = await watch.run(task, outages_of(asked.faults, _last_window(task)), windows.release_s)
    record = checked(answer, task, parties) if answer is not None else None
    reports = await watch.reports(released=record is not None)
    return Asked(
        task=task,
        record=record,
        answer=answer,
        account=_account(asked, task, reports, rounds),
        reasons=watch.reasons,
        stages={"ready": begun.ready_s, **watch.stages(task), "asked": watch.ended_at - signed_at},
        broker=parties.broker,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Begun:
    """Devices that are connected and have their sessions: who follows them, and windows in which all get in."""

    watch: Watch
    windows: Windows
    enrolled_s: float
    ready_s: float


async def begin(parties: Parties, asked: Ask, directory: Path) -> Begun:
    """Start the devices' processes and let every device enrol.

    Raises:
        ProcessError: as `ask`.
    """
    started, load = time.perf_counter(), load_before()
    _raise_file_limit()
    rounds = 2 if asked.question.two_rounds else 1
    draft = _task(parties, asked, Windows(round_one_s=1, round_two_s=rounds - 1, release_s=1))
    limits = _exactly(draft, max(1, len(asked.frames))) if asked.limits is None else asked.limits
    fleets = {
        await _start_fleet(parties, asked, limits, place, directory): _report_file(directory, place)
        for place in range(len(asked.transports))
    }
    count, speed = len(parties.deployment.plans), measure_speed(draft)
    start_s = await _ready(parties, list(fleets), asked.progress)
    watch = Watch(parties, fleets, len(asked.readings), rounds, asked.progress)
    devices = _by_way(asked, parties.broker, count)
    enrolment = Enrolment(devices=devices, seconds=await watch.enrol(), load=load)
    windows = asked.shape(windows_for(enrolment, rounds, count, speed), start_s)
    ready_s = time.perf_counter() - started
    return Begun(watch=watch, windows=windows, enrolled_s=enrolment.seconds, ready_s=ready_s)


async def _ready(parties: Parties, fleets: Sequence[Child], progress: ProgressCallback) -> float:
    """Wait until all processes are ready; return the seconds the aggregators still needed."""
    started, count = time.perf_counter(), len(parties.deployment.plans)
    for position in range(count):
        await parties.ready(position)
        progress("starting", position + 1, count + len(fleets))
    start_s = time.perf_counter() - started
    for place, fleet in enumerate(fleets):
        await fleet.ready(START_S)
        progress("starting", count + place + 1, count + len(fleets))
    return start_s


def _account(asked: Ask, task: Task, reports: Sequence[FleetReport], rounds: int) -> Account:
    truths = np.array([task.domain.value_of(reading) for reading in asked.readings], dtype=np.int64)
    unharmed = asked.device_faults.unharmed & (not asked.faults.outage)
    return account_of(reports, truths, unharmed, task.values, rounds)


def _last_window(task: Task) -> float:
    return (task.round_two_closes - task.round_one_closes) or (task.round_one_closes - task.round_one_opens)


def _report_file(directory: Path, place: int) -> Path:
    return directory / f"fleet-{place}.npz"


def _exactly(task: Task, times: int) -> dict[str, Fraction]:
    """Return what an owner allows who allows this task so many times and not more."""
    epsilon = task.design.ledger_loss.epsilon
    if epsilon is None:
        raise ProcessError("a release without noise is allowed by nobody who does not say so")
    return {
        "largest_epsilon": Fraction(epsilon),
        "largest_local_epsilon": _LOCAL,
        "total_epsilon": times * Fraction(epsilon),
    }


def _by_way(asked: Ask, broker: str, aggregators: int) -> dict[tuple[str, str], int]:
    """Return how many devices there are by kind of connections and by what carries them, as `windows.COST_S` has it."""
    devices: Counter[tuple[str, str]] = Counter()
    for place, transport in enumerate(asked.transports):
        count, way = len(asked.readings[place :: len(asked.transports)]), broker if transport == "mqtt" else transport
        crowded = asked.connections == OWN and count > _at_once(way, aggregators)
        devices[IN_TURNS if crowded else asked.connections, way] += count
    return devices


def _raise_file_limit() -> None:
    """Let this process and its children hold a connection a device, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _at_once(way: str, aggregators: int) -> int:
    """Return how many devices of a process may be connected at once by "grpc" or a kind of broker."""
    if way == EMBEDDED:
        return _AT_ONCE_EMBEDDED
    files = min(_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return max(1, min(_AT_ONCE, (files - _OTHER_FILES) // (aggregators if way == "grpc" else 1)))


def _task(parties: Parties, asked: Ask, windows: Windows) -> Task:
    opens = int(time.time()) + windows.lead_s
    closes = opens + windows.round_one_s
    question = asked.question
    return Task(
        name=asked.name,
        deployment=parties.deployment.name,
        signal=question.signal,
        domain=question.domain,
        mode=question.mode,
        mechanism=question.mechanism,
        aggregators=parties.deployment.aggregators,
        round_one_opens=opens,
        round_one_closes=closes,
        round_two_closes=closes + windows.round_two_s,
        expiry=closes + windows.round_two_s + _EXPIRY_S,
        time_precision_s=1,
        min_batch_size=question.min_batch_size,
        release=question.release,
        upload_style=UploadStyle.TWO_INSTALMENTS,
        verify_key_digest=Digest(bytes(32)),
    )


async def _start_fleet(
    parties: Parties, asked: Ask, limits: Mapping[str, Fraction], place: int, directory: Path
) -> Child:
    chosen = slice(place, None, len(asked.transports))
    transport = asked.transports[place]
    name = f"fleet-{place}"
    spec = FleetSpec(
        name=name,
        transport=transport,
        connections=asked.connections,
        at_once=_at_once(parties.broker if transport == "mqtt" else transport, len(parties.deployment.plans)),
        deployment=parties.deployment.name,
        task_name=asked.name,
        signal=asked.question.signal,
        aggregators=parties.deployment.aggregators,
        broker=parties.deployment.mqtt_broker,
        authorities=str(parties.deployment.root / "ca"),
        spool_file=str(directory / f"{name}.db"),
        report_file=str(_report_file(directory, place)),
        limits={key: str(value) for key, value in limits.items()},
        call_timeout_s=_LONGEST_CALL_S,
        spread=str(SPREAD if asked.faults.clock_skew_s or asked.faults.outage else _BURST),
        reorder=asked.faults.reorder,
        coin_seed=asked.coin_seed,
        numbers=list(range(len(asked.readings))[chosen]),
        readings=asked.readings[chosen],
        device_faults=asked.device_faults.flags[chosen].tolist(),
        skews=asked.device_faults.skews[chosen].tolist(),
        frames=[frame[chosen] for frame in asked.frames],
    )
    path = directory / f"{name}.json"
    write_private(path, spec.encode().encode())
    return await parties.children.start(name, [sys.executable, "-m", "fleetcount_simulator.network.fleet", str(path)])


def checked(answer: ReleaseAnswer, task: Task, parties: Parties) -> ReleaseRecord | None:
    """Return the record of an answer, None if the task was not released.

    Raises:
        SignatureError: a signature that does not verify.
        ProcessError: the record of another task.
    """
    if answer.state is not TaskState.RELEASED:
        return None
    record = decode_record(answer.record)
    verify_record_signatures(record, answer.signatures, parties.deployment.trusted)
    if record.task_id != task.task_id:
        raise ProcessError(f"the record answers task {record.task_id}, not {task.task_id}")
    return record

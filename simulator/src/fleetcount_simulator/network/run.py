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
from typing import Final, Generic, TypeVar

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
from fleetcount_simulator.network.fleet_spec import OWN, FleetSpec, SeriesPart, write_private
from fleetcount_simulator.network.happenings import Listener, Signed
from fleetcount_simulator.network.machine_speed import measure_speed
from fleetcount_simulator.network.outages import outages_of
from fleetcount_simulator.network.parties import START_S, Parties
from fleetcount_simulator.network.question import NetworkQuestion
from fleetcount_simulator.network.watch import ProgressCallback, Watch
from fleetcount_simulator.network.windows import (
    ANNOUNCE_S,
    IN_TURNS,
    Enrolment,
    Windows,
    load_before,
    windows_for,
)

__all__ = ["EXPIRY_S", "Ask", "Asked", "Enrolled", "ProgressCallback", "ask", "checked_record", "start_and_enrol"]

WatchT = TypeVar("WatchT", bound=Watch)
_LONGEST_CALL_S: Final = 20.0
EXPIRY_S: Final = 86_400
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
    operating system. With `series` the devices wait for a series of this name. `shape` makes room for faults in the
    windows; it is told in how many seconds aggregators start. `expected` is told how many seconds asking and checking
    will take, all windows together, before the first one opens. `listener` is told what happens to a single task.
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
    series: SeriesPart | None = field(default=None, repr=False)
    shape: Callable[[Windows, float], Windows] = _as_they_are
    progress: ProgressCallback
    expected: Callable[[int, int], None] | None = None
    listener: Listener | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Enrolled(Generic[WatchT]):
    """Devices that are ready to be asked: who follows them, the windows they need, and the seconds until then."""

    watch: WatchT
    windows: Windows
    ready_s: float


async def ask(parties: Parties, asked: Ask, directory: Path) -> Asked:
    """Ask once; the aggregators have been started, the devices' processes start and end here.

    The devices enrol before the task is signed, and its windows are as long as that took lets expect. All files of this
    run lie below `directory`, which is private.

    Raises:
        ProcessError: a process did not start, or ended before its time.
        SignatureError: a record whose signatures do not verify.
    """
    rounds = 2 if asked.question.two_rounds else 1
    enrolled = await start_and_enrol(parties, asked, directory, Watch, ANNOUNCE_S)
    watch, windows, signed_at = enrolled.watch, enrolled.windows, time.time()
    task = parties.submit(_task(parties, asked, windows))
    if asked.listener is not None:
        asked.listener(Signed(task=task))
    answer = await watch.run(task, outages_of(asked.faults, _last_window(task)), windows.release_s)
    record = checked_record(answer, task, parties) if answer is not None else None
    reports = await watch.reports(released=record is not None)
    return Asked(
        task=task,
        record=record,
        answer=answer,
        account=_account(asked, task, reports, rounds),
        reasons=watch.reasons,
        stages={"ready": enrolled.ready_s, **watch.stages(task), "asked": watch.ended_at - signed_at},
        broker=parties.broker,
    )


async def start_and_enrol(
    parties: Parties, asked: Ask, directory: Path, follow: "type[WatchT]", announce_s: float
) -> "Enrolled[WatchT]":
    """Start the devices' processes, wait for the aggregators and let all devices open their sessions.

    `announce_s` is as in `windows_for`.

    Raises:
        ProcessError: a process did not start, or ended before its time.
    """
    started, load = time.perf_counter(), load_before()
    _raise_file_limit()
    rounds = 2 if asked.question.two_rounds else 1
    draft = _task(parties, asked, Windows(round_one_s=1, round_two_s=rounds - 1, release_s=1))
    limits = _exactly(draft, asked.series) if asked.limits is None else asked.limits
    fleets = {
        await _start_fleet(parties, asked, limits, place, directory): _report_file(directory, place)
        for place in range(len(asked.transports))
    }
    count, speed = len(parties.deployment.plans), measure_speed(draft)
    start_s = await _ready(parties, list(fleets), asked.progress)
    watch = follow(parties, fleets, len(asked.readings), rounds, asked.progress, asked.listener)
    devices = _by_way(asked, parties.broker, count)
    enrolment = Enrolment(devices=devices, seconds=await watch.enrol(), load=load)
    windows = asked.shape(windows_for(enrolment, rounds, count, speed, announce_s), start_s)
    if asked.expected is not None:
        times = 1 if asked.series is None else len(asked.series.readings)
        asked.expected(times * windows.asking_s, times * windows.checking_s)
    return Enrolled(watch=watch, windows=windows, ready_s=time.perf_counter() - started)


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


def _exactly(task: Task, series: SeriesPart | None) -> dict[str, Fraction]:
    """Return what an owner allows who allows this task, once or in every window of a series, and not more."""
    epsilon = task.design.ledger_loss.epsilon
    if epsilon is None:
        raise ProcessError("a release without noise is allowed by nobody who does not say so")
    times = 1 if series is None else len(series.readings)
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
        expiry=closes + windows.round_two_s + EXPIRY_S,
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
        series=None if asked.series is None else asked.series.of(chosen),
        telling=asked.listener is not None,
    )
    path = directory / f"{name}.json"
    write_private(path, spec.encode().encode())
    return await parties.children.start(name, [sys.executable, "-m", "fleetcount_simulator.network.fleet", str(path)])


def checked_record(answer: ReleaseAnswer, task: Task, parties: Parties) -> ReleaseRecord | None:
    if answer.state is not TaskState.RELEASED:
        return None
    record = decode_record(answer.record)
    verify_record_signatures(record, answer.signatures, parties.deployment.trusted)
    if record.task_id != task.task_id:
        raise ProcessError(f"the record answers task {record.task_id}, not {task.task_id}")
    return record

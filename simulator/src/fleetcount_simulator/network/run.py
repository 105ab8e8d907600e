"""The runner: asks real devices one question through real aggregators, in one window or many, and accounts for them.

The demo, the network engine, the benchmarks and the tests use it with different arguments. It starts the processes and
measures their times; it must not do the work of a device or an aggregator.
"""

import contextlib
import math
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np
from fleetcount_aggregator.verification.compile_ahead import STEPS, compile_ahead
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.statement import ledger_loss_of
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.messages import ReleaseAnswer
from fleetcount_protocol.question.fields import Participants, Schedule
from fleetcount_protocol.question.question import Question, SignedQuestion, window_at
from fleetcount_protocol.release.record import ReleaseRecord
from fleetcount_protocol.window.domain import parts_of
from fleetcount_protocol.window.fields import UploadStyle
from fleetcount_protocol.window.window import Window

from fleetcount_simulator.errors import ProcessError
from fleetcount_simulator.faults import SPREAD, TALLIES
from fleetcount_simulator.model import Faults
from fleetcount_simulator.network.brokers import EMBEDDED
from fleetcount_simulator.network.children import Child
from fleetcount_simulator.network.counted import Account, account_of, by_value
from fleetcount_simulator.network.events import Listener, Signed
from fleetcount_simulator.network.fleet_report import FleetReport
from fleetcount_simulator.network.fleet_spec import OWN, FleetSpec, write_private
from fleetcount_simulator.network.machine_speed import measure_speed
from fleetcount_simulator.network.outages import outages_of
from fleetcount_simulator.network.parties import START_S, Parties
from fleetcount_simulator.network.plan import FleetPlan, widest_step
from fleetcount_simulator.network.question import NetworkQuestion
from fleetcount_simulator.network.watch import ProgressCallback, Watch
from fleetcount_simulator.network.windows import (
    IN_TURNS,
    Enrolment,
    Windows,
    lead_s,
    load_before,
    windows_for,
    with_records,
)

_LONGEST_CALL_S: Final = 20.0
_EXPIRY_S: Final = 86_400
_EVERY_S: Final = 60
"""Of a question of one window: as soon as it is there the aggregators make the window."""
_PAUSED: Final = "paused"
_LOCAL: Final = Fraction(20)
"""The limit of a randomized response's loss under exact limits, above the loss of every question."""
_FILES: Final = 16_384
"""Open files of a process at most: one connection per device and aggregator, and the stores."""
_OTHER_FILES: Final = 200
_AT_ONCE: Final = 4_000
"""Devices connected at once at most: over gRPC each costs its process 0.2 MiB and each aggregator 0.1 MiB."""
_AT_ONCE_EMBEDDED: Final = 16
"""The same for the embedded broker, which searches all connections for every message."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ask:
    """The question of one run, and its devices' connections, limits and faults.

    `transports` names the transport of each fleet process, "grpc", "mqtt" or "relay" (gRPC through one); device i
    belongs to process i modulo their number.
    `connections` is "own", one connection per device, or "shared", one per process. `limits` are the owners' limits,
    fields of `OwnerPolicy`; None: exactly the loss of the question. With `coin_seed` None the coins are the operating
    system's. `shape` makes room for faults in the windows; its second argument is the seconds in which aggregators
    start. `expected` is called before the first window opens with the seconds that asking and checking will take, all
    windows together. `listener` is called with the events of the first window.
    """

    name: str
    question: NetworkQuestion
    transports: tuple[str, ...]
    connections: str
    limits: Mapping[str, Fraction] | None = None
    faults: Faults = Faults()  # noqa: RUF009 - Faults is frozen
    coin_seed: int | None = field(default=None, repr=False)
    shape: Callable[[Windows, float], Windows] = lambda windows, _: windows
    progress: ProgressCallback
    expected: Callable[[int, int], None] | None = None
    listener: Listener | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowAsked:
    """The result of a window: the checked record (None: aborted, or no release in time), the account, the times.

    `answer` is the aggregators' answer about its end, None when there was none in time; `reasons` are the reasons of
    answers that were not delivered in any window, the most frequent first. `stages` are seconds: "ready" until all
    devices had their sessions, "asked" from the opening of the window to the record, and in a question of one window
    "round_one" and "round_two" from the opening of a round to its last receipt, "release" from the last close to the
    record. `broker` is the MQTT broker that ran: "mosquitto", "embedded" (amqtt), or "" for none.
    """

    window: Window
    record: ReleaseRecord | None
    answer: ReleaseAnswer | None
    account: Account
    reasons: Mapping[str, int]
    stages: Mapping[str, float]
    broker: str

    @property
    def signatures(self) -> tuple[bytes, ...]:
        """The signatures of the record, one per aggregator in the question's order; empty without an answer."""
        return () if self.answer is None else self.answer.signatures


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuestionAsked:
    """The results of a question, window by window.

    A paused window has neither record nor answer, and all its devices are "absent". Steps after the end of a walk have
    no result.
    """

    signed: SignedQuestion
    windows: tuple[WindowAsked, ...]

    @property
    def records(self) -> dict[int, ReleaseRecord]:
        """The records, by window; windows without one are left out."""
        return {index: one.record for index, one in enumerate(self.windows) if one.record is not None}

    @property
    def missing(self) -> int:
        """How many answers of devices without a fault were not counted: this machine was too slow for them."""
        return sum(one.account.missing for one in self.windows)


async def ask_question(parties: Parties, asked: Ask, plan: FleetPlan, directory: Path) -> QuestionAsked:
    """Ask the question of a plan; the aggregators have been started, the devices' processes start and end here.

    The devices enrol before the question is signed; the time of that decides the length of the windows. Each record is
    checked, and their chain. All files of this run lie below `directory`, which is private.

    Raises:
        ProcessError: a process did not start, or ended too early; receipts do not explain the agreed set; or records do
            not follow each other.
        SignatureError: the signatures of a record do not verify.
    """
    if plan.walk is not None:
        # The record of a step is due before the next step opens: compile before the first one, not during it.
        await compile_ahead(say=lambda _, step, of: asked.progress("compiling", step - 1, of))
        asked.progress("compiling", len(STEPS), len(STEPS))
    watch, windows, ready_s = await _start_and_enrol(parties, asked, plan, directory)
    signed = parties.submit(_question(parties, asked, plan, windows))
    question, once = signed.question, plan.question.windows == 1
    first = window_at(question, 0)
    if asked.listener is not None:
        asked.listener(Signed(window=first))
    outages = outages_of(asked.faults, windows.round_two_s or windows.round_one_s) if once else ()
    ends = await watch.attend(question, plan, outages, windows.release_s)
    check_chain({index: end.record for index, end in ends.items() if end.record is not None}, plan.pauses)
    reports = await watch.reports(question, ends)

    def one(index: int) -> WindowAsked:
        end = ends.get(index)
        window = window_at(question, index) if end is None else end.window
        asked_s = 0.0 if end is None else end.at - question.schedule.opens(index)
        return WindowAsked(
            window=window,
            record=None if end is None else end.record,
            answer=None if end is None else end.answer,
            account=_account(asked, plan, index, window, reports[index]),
            reasons=watch.reasons,
            stages={"ready": ready_s, "asked": asked_s, **(watch.stages(end) if once and end is not None else {})},
            broker=parties.broker,
        )

    came_to = range(question.schedule.windows) if plan.walk is None else sorted(ends)
    return QuestionAsked(signed=signed, windows=tuple(one(index) for index in came_to))


async def _start_and_enrol(
    parties: Parties, asked: Ask, plan: FleetPlan, directory: Path
) -> tuple[Watch, Windows, float]:
    """Start the devices' processes, wait for the aggregators and let all devices open their sessions.

    Return the watch that follows them, the windows they need, and the seconds until then.
    """
    started, load = time.perf_counter(), load_before()
    _raise_file_limit()
    rounds, times, devices = 2 if asked.question.two_rounds else 1, *plan.truths.shape
    # The windows of all steps of a walk are equally long: the step with most candidates decides.
    widest = asked.question if plan.walk is None else widest_step(asked.question, plan.walk)
    draft = _question(
        parties,
        replace(asked, question=widest),
        replace(plan, walk=None),
        Windows(round_one_s=1, round_two_s=rounds - 1, release_s=1),
    )
    limits = _exactly(draft.design, times) if asked.limits is None else asked.limits
    fleets = {
        await _start_fleet(parties, asked, plan, limits, place, directory): _report_file(directory, place)
        for place in range(len(asked.transports))
    }
    count, speed = len(parties.deployment.plans), measure_speed(window_at(draft, 0))
    start_s = await _ready(parties, list(fleets), asked.progress)
    watch = Watch(parties, fleets, devices, rounds, asked.progress, asked.listener)
    enrolment = Enrolment(
        devices=_by_way(asked, devices, parties.broker, count),
        processes=len(fleets),
        seconds=await watch.enrol(),
        load=load,
    )
    windows = asked.shape(windows_for(enrolment, rounds, count, speed), start_s)
    if plan.walk is not None:
        windows = with_records(windows, enrolment)
    # An order to pause takes its time to reach all devices: it may name the first windows.
    windows = windows.opened_after(lead_s(enrolment, times) + (windows.round_one_s if plan.pauses else 0))
    if asked.expected is not None:
        asked.expected(windows.asking_s(times), times * windows.checking_s)
    return watch, windows, time.perf_counter() - started


async def _ready(parties: Parties, fleets: Sequence[Child], progress: ProgressCallback) -> float:
    """Wait until all processes are ready; return the seconds of waiting for the aggregators."""
    started, count = time.perf_counter(), len(parties.deployment.plans)
    for position in range(count):
        await parties.ready(position)
        progress("starting", position + 1, count + len(fleets))
    start_s = time.perf_counter() - started
    for place, fleet in enumerate(fleets):
        await fleet.ready(START_S)
        progress("starting", count + place + 1, count + len(fleets))
    return start_s


def _account(asked: Ask, plan: FleetPlan, index: int, window: Window, reports: Sequence[FleetReport]) -> Account:
    values, rounds = window.values, 2 if asked.question.two_rounds else 1
    if any(first <= index <= last for first, last in plan.pauses):
        tallies = dict.fromkeys(TALLIES, 0) | {"absent": plan.truths.shape[1]}
        return Account(counted=np.zeros(values + 1, dtype=np.int64), missing=0, tallies=tallies)
    unharmed = plan.unharmed[index] & (not asked.faults.outage)
    if plan.sets:
        return by_value(account_of(reports, plan.truths[index], unharmed, len(plan.sets), rounds), plan.sets, values)
    return account_of(reports, plan.truths_of(index, window.domain), unharmed, values, rounds)


def _report_file(directory: Path, place: int) -> Path:
    return directory / f"fleet-{place}.npz"


def _exactly(design: Design, windows: int) -> dict[str, Fraction]:
    """Return the limits of an owner who allows this question in a number of windows, and not more."""
    epsilon = ledger_loss_of(design).epsilon
    if epsilon is None:
        raise ProcessError("a release without noise has no finite loss to allow: give the limits of the owners")
    return {
        "largest_epsilon": Fraction(epsilon),
        "largest_local_epsilon": _LOCAL,
        "total_epsilon": windows * Fraction(epsilon),
    }


def _by_way(asked: Ask, number: int, broker: str, aggregators: int) -> dict[tuple[str, str], int]:
    """Return the number of devices by kind of connections and by carrier: the keys of `windows.COST_S`."""
    devices: Counter[tuple[str, str]] = Counter()
    for place, transport in enumerate(asked.transports):
        count, way = len(range(place, number, len(asked.transports))), broker if transport == "mqtt" else transport
        crowded = asked.connections == OWN and count > _at_once(way, aggregators)
        devices[IN_TURNS if crowded else asked.connections, way] += count
    return devices


def _raise_file_limit() -> None:
    """Let this process and its children open one connection per device, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _at_once(way: str, aggregators: int) -> int:
    """Return how many devices of a process may be connected at once by "grpc", "relay" or a kind of broker."""
    if way == EMBEDDED:
        return _AT_ONCE_EMBEDDED
    files = min(_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return max(1, min(_AT_ONCE, (files - _OTHER_FILES) // (aggregators if way == "grpc" else 1)))


def _question(parties: Parties, asked: Ask, plan: FleetPlan, windows: Windows) -> Question:
    """Return the question; its windows follow each other as closely as their releases allow."""
    question, rounds_s = asked.question, windows.rounds_s
    return Question(
        name=asked.name,
        deployment=parties.deployment.name,
        signal=question.signal,
        domain=question.domain,
        mode=question.mode,
        mechanism=question.mechanism,
        schedule=Schedule(
            first=math.ceil(time.time() + windows.lead_s),
            every_s=max(_EVERY_S, rounds_s) if plan.question.windows == 1 else rounds_s + windows.gap_s,
            windows=plan.question.windows,
            round_one_s=windows.round_one_s,
            round_two_s=windows.round_two_s,
            expiry_s=_EXPIRY_S,
        ),
        coin=plan.question.coin,
        participants=Participants.HIDDEN,
        delta=plan.question.delta,
        release=question.release,
        upload_style=UploadStyle.TWO_INSTALMENTS,
        time_precision_s=1,
        min_batch_size=question.min_batch_size,
        aggregators=tuple(replace(one, hpke_keys=()) for one in parties.deployment.aggregators),
        verify_seed_digest=Digest(bytes(32)),
        drill_down=plan.walk,
    )


async def _start_fleet(
    parties: Parties, asked: Ask, plan: FleetPlan, limits: Mapping[str, Fraction], place: int, directory: Path
) -> Child:
    chosen = slice(place, None, len(asked.transports))
    way = asked.transports[place]
    transport = "mqtt" if way == "mqtt" else "grpc"
    name = f"fleet-{place}"
    spec = FleetSpec(
        name=name,
        transport=transport,
        connections=asked.connections,
        at_once=_at_once(parties.broker if way == "mqtt" else way, len(parties.deployment.plans)),
        deployment=parties.deployment.name,
        question_name=asked.name,
        signals=tuple(part.signal for part in parts_of(asked.question.signal, asked.question.domain)),
        aggregators=parties.deployment.aggregators,
        broker=parties.deployment.mqtt_broker,
        relay=parties.relay if way == "relay" else "",
        authorities=str(parties.deployment.root / "ca"),
        spool_file=str(directory / f"{name}.db"),
        report_file=str(_report_file(directory, place)),
        limits={key: str(value) for key, value in limits.items()},
        call_timeout_s=_LONGEST_CALL_S,
        spread=str(SPREAD),
        reorder=asked.faults.reorder,
        coin_seed=asked.coin_seed,
        numbers=list(range(plan.truths.shape[1])[chosen]),
        part=plan.part.of(chosen),
        telling=asked.listener is not None,
    )
    path = directory / f"{name}.json"
    write_private(path, spec.encode().encode())
    return await parties.children.start(name, [sys.executable, "-m", "fleetcount_simulator.network.fleet", str(path)])


def check_chain(records: Mapping[int, ReleaseRecord], pauses: Sequence[tuple[int, int]]) -> None:
    """Check that each record names the digest of the record before it, and the paused windows in between.

    Raises:
        ProcessError: a record does not; the message names the window.
    """
    paused = {window for first, last in pauses for window in range(first, last + 1)}
    before: int | None = None
    for index, record in sorted(records.items()):
        link = record.chain
        previous = None if before is None else records[before].digest
        if (link.previous_index, link.previous) != (before, previous):
            raise ProcessError(f"the record of window {index} does not follow that of window {before}")
        named = {one.index for one in link.missing if one.reason == _PAUSED}
        if named != paused & set(range(0 if before is None else before + 1, index)):
            raise ProcessError(f"the record of window {index} names {sorted(named)} as paused before it")
        before = index

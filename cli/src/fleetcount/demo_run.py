"""One demo from keys to signed record: aggregators, broker and vehicles as processes of their own on this machine.

Starts, follows and ends them. All state lies in one private directory; nothing is installed and no port is fixed.
"""

import asyncio
import hashlib
import secrets
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from fleetcount_protocol.errors import MachineError
from fleetcount_protocol.ids import AggregatorId, Digest
from fleetcount_protocol.release import ReleaseRecord
from fleetcount_protocol.task.task import Task, UploadStyle
from fleetcount_simulator.errors import ProcessError
from fleetcount_simulator.network.brokers import EMBEDDED, MOSQUITTO, StartedBroker, start_broker
from fleetcount_simulator.network.children import Child, Children
from fleetcount_simulator.network.fleet_spec import FleetSpec, TrustedParty

from fleetcount.demo_question import DemoOptions, Question
from fleetcount.demo_windows import Windows, free_cores, measure_speed, windows_for
from fleetcount.deployment import AggregatorPlan, Deployment, free_ports, write_aggregators, write_analyst
from fleetcount.exits import CannotReachError
from fleetcount.progress import Progress
from fleetcount.readers import ask_release, read_reader
from fleetcount.release_report import checked_record
from fleetcount.task_files import add_signature, new_task_files, operator_of, submit_task

__all__ = ["DemoResult", "run_demo"]

DEPLOYMENT: Final = "demo"
HOST: Final = "127.0.0.1"
NAMES: Final = ("alpha", "beta", "gamma", "delta", "epsilon")
OPERATORS: Final = ("City of Bologna", "University of Bologna", "Automobile Club", "Consumer Union", "Road Authority")
START_S: Final = 60.0
AT_ONCE: Final = {"grpc": 64, MOSQUITTO: 64, EMBEDDED: 16}
"""Vehicles connected at once: the more, the more of them share a commit; the embedded broker looks through all."""
_POLL_S: Final = 0.5
_DELIVERED: Final = "delivered"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The signed record, and how the vehicles' answers ended (known only because it is a demo).

    `broker` is the MQTT broker that ran: "mosquitto", "embedded", or "" for none.
    """

    record: ReleaseRecord
    signatures: tuple[bytes, ...]
    broker: str
    outcomes: Mapping[str, int]
    reasons: Mapping[str, int]

    @property
    def delivered(self) -> int:
        """How many vehicles hold all receipts."""
        return self.outcomes.get(_DELIVERED, 0)


@dataclass(slots=True)
class _Fleets:
    """How far the fleets are, by fleet."""

    vehicles: int
    two_rounds: bool
    counts: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def show(self, progress: Progress) -> None:
        """Move the bars."""
        first = sum(int(one["round_one"]) for one in self.counts.values())
        progress.step("round one" if self.two_rounds else "answers", min(first, self.vehicles), self.vehicles)
        second = sum(int(one["round_two"]) for one in self.counts.values())
        if self.two_rounds and second:
            progress.step("round two", min(second, self.vehicles), self.vehicles)


async def run_demo(question: Question, options: DemoOptions, directory: Path, progress: Progress) -> DemoResult:
    """Run the whole demo with its state below `directory`; every child has ended when this returns or raises.

    Raises:
        ProcessError: a child did not start or ended too early.
        RefusedByPolicyError: the aggregators aborted the task.
        MachineError: the disk does not take the state, or the release did not come.
    """
    (directory / "logs").mkdir()
    # Before anything else runs here: afterwards the children's start would be measured.
    speed = measure_speed(question, options.aggregators)
    cores = free_cores()
    async with Children(directory / "logs") as children:
        broker = await start_broker(children, directory) if "mqtt" in _transports(options) else None
        kind = "" if broker is None else broker.kind
        windows = windows_for(question, _transports(options), kind, options.aggregators, speed, cores)
        deployment = _deploy(directory / "deployment", options, broker)
        total = len(deployment.plans) + len(_transports(options))
        progress.step("starting", 0, total)
        parties = [await _start_aggregator(children, deployment, i) for i in range(len(deployment.plans))]
        draft = _draft(question, deployment)
        fleets = [
            await _start_fleet(children, question, options, deployment, draft, transport, kind)
            for transport in _transports(options)
        ]
        for started, child in enumerate([*parties, *fleets], 1):
            await child.ready(START_S)
            progress.step("starting", started, total)
        task = _ask(directory, deployment, draft, windows)
        outcomes, reasons = await _follow(parties, fleets, question, progress)
        progress.step("checking proofs and publishing", 0, 1)
        record, signatures = await _guarded(parties, _release(deployment, task, windows))
        progress.step("checking proofs and publishing", 1, 1)
    return DemoResult(record=record, signatures=signatures, broker=kind, outcomes=outcomes, reasons=reasons)


def _transports(options: DemoOptions) -> tuple[str, ...]:
    return ("grpc", "mqtt") if options.transport == "both" else (options.transport,)


# Starting.


def _deploy(root: Path, options: DemoOptions, broker: StartedBroker | None) -> Deployment:
    count = options.aggregators
    ports = free_ports(HOST, 2 * count)
    plans = [
        AggregatorPlan(
            aggregator_id=AggregatorId(NAMES[i]),
            operator=OPERATORS[i],
            host=HOST,
            device_port=ports[i],
            peer_port=ports[count + i],
        )
        for i in range(count)
    ]
    root.mkdir(mode=0o700)
    deployment = write_aggregators(
        root,
        DEPLOYMENT,
        plans,
        mqtt_broker="" if broker is None else broker.address,
        mqtt_inflight=None if broker is None else broker.inflight,
        largest_epsilon="1000",
    )
    write_analyst(deployment)
    return deployment


async def _start_aggregator(children: Children, deployment: Deployment, position: int) -> Child:
    config = deployment.config_of(position)
    command = [sys.executable, "-m", "fleetcount", "aggregator", "serve", "--config", str(config)]
    return await children.start(deployment.plans[position].aggregator_id, command)


async def _start_fleet(
    children: Children,
    question: Question,
    options: DemoOptions,
    deployment: Deployment,
    draft: Task,
    transport: str,
    broker: str,
) -> Child:
    transports = _transports(options)
    spec = FleetSpec(
        name=transport,
        transport=transport,
        deployment=deployment.name,
        task_name=question.scenario.task_name,
        signal=question.scenario.signal,
        aggregators=_trusted(deployment),
        broker=deployment.mqtt_broker,
        aggregator_ca_file=str(deployment.root / "ca" / "aggregators.crt"),
        device_ca_file=str(deployment.root / "ca" / "devices.crt"),
        device_ca_key_file=str(deployment.root / "ca" / "devices.key"),
        spool_file=str(deployment.root.parent / f"vehicles-{transport}.db"),
        # Each owner allows exactly what is asked, and not more.
        policy={"largest_epsilon": str(draft.design.epsilon), "largest_local_epsilon": "20"},
        at_once=AT_ONCE[broker if transport == "mqtt" else transport],
        coin_seed=options.seed if options.insecure_coins else None,
        readings=question.scenario.readings[transports.index(transport) :: len(transports)],
    )
    path = deployment.root.parent / f"vehicles-{transport}.json"
    path.touch(mode=0o600)
    path.write_text(spec.encode(), encoding="utf-8")
    command = [sys.executable, "-m", "fleetcount_simulator.network.fleet", str(path)]
    return await children.start(f"vehicles-{transport}", command)


def _trusted(deployment: Deployment) -> tuple[TrustedParty, ...]:
    return tuple(
        TrustedParty(
            aggregator_id=str(one.aggregator_id),
            operator=one.operator,
            signing_public_key=one.signing_public_key,
            grpc_endpoint=one.grpc_endpoint,
        )
        for one in deployment.aggregators
    )


# Asking.


def _draft(question: Question, deployment: Deployment) -> Task:
    """Return the task with windows that are still to be measured."""
    now = int(time.time())
    return Task(
        name=question.scenario.task_name,
        deployment=deployment.name,
        signal=question.scenario.signal,
        domain=question.scenario.domain,
        mode=question.mode,
        mechanism=question.mechanism,
        aggregators=deployment.aggregators,
        round_one_opens=now,
        round_one_closes=now + 1,
        round_two_closes=now + 1 + question.two_rounds,
        expiry=now + 10,
        time_precision_s=1,
        min_batch_size=max(2, question.vehicles // 2),
        release=question.release,
        upload_style=UploadStyle.TWO_INSTALMENTS,
        verify_key_digest=Digest(bytes(32)),
    )


def _ask(directory: Path, deployment: Deployment, draft: Task, windows: Windows) -> Task:
    """Write the task, let every operator sign it, and hand it to the leader, as the commands do."""
    verify_key = secrets.token_bytes(32)
    opens = int(time.time()) + windows.lead_s
    closes = opens + windows.round_one_s
    task = replace(
        draft,
        round_one_opens=opens,
        round_one_closes=closes,
        round_two_closes=closes + windows.round_two_s,
        expiry=closes + windows.round_two_s + 86_400,
        verify_key_digest=Digest(hashlib.sha256(verify_key).digest()),
    )
    path = directory / f"{task.name}.task"
    new_task_files(path, task, verify_key)
    operators = [operator_of(deployment.config_of(position)) for position in range(len(deployment.plans))]
    for operator in operators:
        add_signature(path, operator)
    submit_task(path, operators[0], time.time())
    return task


# Following.


async def _follow(
    parties: Sequence[Child], fleets: Sequence[Child], question: Question, progress: Progress
) -> tuple[Counter[str], Counter[str]]:
    """Follow every fleet to its end; return how the answers ended, and the commonest reasons."""
    state = _Fleets(vehicles=question.vehicles, two_rounds=question.two_rounds)
    outcomes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()

    async def one(fleet: Child) -> None:
        async for line in fleet.lines():
            if line.get("event") == "progress":
                state.counts[fleet.name] = line
                state.show(progress)
            elif line.get("event") == "done":
                outcomes.update(line["outcomes"])
                reasons.update(line["reasons"])
        await fleet.succeed()

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as group:
            for fleet in fleets:
                group.create_task(one(fleet))

    await _guarded(parties, all_of_them())
    return outcomes, reasons


async def _guarded(parties: Sequence[Child], work: Any) -> Any:
    """Do some work; stop when an aggregator ends meanwhile.

    Raises:
        ProcessError: an aggregator ended.
    """
    task = asyncio.ensure_future(work)
    ends = {asyncio.ensure_future(child.process.wait()): child for child in parties}
    try:
        done, _ = await asyncio.wait([task, *ends], return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            return task.result()
        child = next(ends[end] for end in ends if end in done)
        await child.succeed()
        raise ProcessError(f"{child.name} ended before the demo was over")
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        for waiting in [task, *ends]:
            waiting.cancel()


async def _release(deployment: Deployment, task: Task, windows: Windows) -> tuple[ReleaseRecord, tuple[bytes, ...]]:
    """Wait for the signed record and check it as an analyst would."""
    reader = read_reader(deployment.root / "analyst" / "analyst.toml")
    deadline = time.monotonic() + windows.release_s
    while True:
        try:
            answer = await ask_release(reader, task)
        except CannotReachError:
            answer = None
        if answer is not None and (answer.record or answer.abort_reason):
            return checked_record(answer, task, reader.trusted), answer.signatures
        if time.monotonic() > deadline:
            raise MachineError(f"no release within {windows.release_s} s after the last window")
        await asyncio.sleep(_POLL_S)

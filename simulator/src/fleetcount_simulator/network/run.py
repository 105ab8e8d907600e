"""One question asked of real devices through real aggregators: started, followed, released, and accounted for.

Puts the processes together and times them; what a device or an aggregator does is theirs.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.messages import ReleaseAnswer, TaskState
from fleetcount_protocol.release import ReleaseRecord, decode_record, verify_record_signatures
from fleetcount_protocol.task.task import Task, UploadStyle
from numpy.typing import NDArray

from fleetcount_simulator.errors import ProcessError
from fleetcount_simulator.faults import SPREAD
from fleetcount_simulator.model import Faults
from fleetcount_simulator.network.children import Child, Children
from fleetcount_simulator.network.counted import Account, account_of, explains
from fleetcount_simulator.network.fates import DeviceFates
from fleetcount_simulator.network.outages import Outage, carry_out, outages_of
from fleetcount_simulator.network.parties import START_S, Parties
from fleetcount_simulator.network.question import NetworkQuestion
from fleetcount_simulator.network.spec import ClientsReport, ClientsSpec, write_private
from fleetcount_simulator.network.windows import Observed, Windows

__all__ = ["Ask", "Asked", "ProgressCallback", "ask"]

ProgressCallback = Callable[[str, int, int], None]
"""Called with the name of a stage, how much of it is done, and of how much."""

_POLL_S: Final = 0.05
_DIGEST_TRIES: Final = 100
_EXPIRY_S: Final = 86_400
_BURST: Final = Fraction(1, 2)
"""The part of a window in which devices send first where no fault depends on it: the sooner, the larger the batches."""
_SHORTEST_CALL_S: Final = 3.0
_LONGEST_CALL_S: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ask:
    """What one run asks, and of whom.

    `transports` names the transport of each client process; device i belongs to process i modulo their number.
    """

    name: str
    question: NetworkQuestion
    transports: tuple[str, ...]
    truths: NDArray[np.integer] = field(repr=False)
    fates: DeviceFates
    faults: Faults
    coin_seed: int = field(repr=False)
    progress: ProgressCallback


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """What came of it: the checked record (None: aborted, or no release in time), the account, the times.

    `stages` are seconds: "ready" until devices and aggregators were there, "round_one" and "round_two" from a window's
    opening to its last receipt, "release" from the last close to the record, "asked" from signing to the record.
    `broker` is the MQTT broker that ran: "mosquitto", "embedded" (amqtt), or "" for none.
    """

    task: Task
    record: ReleaseRecord | None
    account: Account
    stages: Mapping[str, float]
    broker: str

    @property
    def observed(self) -> Observed:
        """How long the windows should have been."""
        return Observed(round_one_s=self.stages["round_one"], round_two_s=self.stages["round_two"])


async def ask(
    children: Children, parties: Parties, asked: Ask, windows: Callable[[float], Windows], directory: Path
) -> Asked:
    """Ask once; the aggregators have been started, the devices' processes start and end here.

    `windows` is called when everybody is there, with the seconds the aggregators needed to start. All files of this
    run lie below `directory`, which is private.

    Raises:
        ProcessError: a process did not start, or ended before its time.
        SignatureError: a record whose signatures do not verify.
    """
    started = time.perf_counter()
    clients = [
        await _start_clients(children, parties, asked, place, directory) for place in range(len(asked.transports))
    ]
    count = len(parties.deployment.plans)
    for position in range(count):
        await parties.ready(position)
        asked.progress("starting", position + 1, count + len(clients))
    ready_s = time.perf_counter() - started
    await parties.warm_up()
    for place, client in enumerate(clients):
        await client.ready(START_S)
        asked.progress("starting", count + place + 1, count + len(clients))
    all_ready_s = time.perf_counter() - started
    lengths, signed_at = windows(ready_s), time.time()
    task = parties.submit(_task(parties, asked, lengths, signed_at))
    outages = outages_of(asked.faults, _last_window(task))
    watch = _Watch(parties, asked, task, clients, outages)
    answer = await watch.run(lengths)
    record = _checked(answer, task, parties) if answer is not None else None
    reports = await watch.reports(directory, record is not None)
    unharmed = asked.fates.unharmed & (not asked.faults.outage)
    account = account_of(reports, asked.truths, unharmed, task.values, 2 if asked.question.two_rounds else 1)
    stages = {
        "ready": all_ready_s,
        **watch.round_times(),
        "release": watch.ended_at - task.round_two_closes,
        "asked": watch.ended_at - signed_at,
    }
    return Asked(task=task, record=record, account=account, stages=stages, broker=parties.broker)


def _last_window(task: Task) -> float:
    return (task.round_two_closes - task.round_one_closes) or (task.round_one_closes - task.round_one_opens)


def _task(parties: Parties, asked: Ask, windows: Windows, now: float) -> Task:
    opens = int(now) + windows.lead_s
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


async def _start_clients(children: Children, parties: Parties, asked: Ask, place: int, directory: Path) -> Child:
    numbers = range(place, len(asked.truths), len(asked.transports))
    chosen = slice(place, None, len(asked.transports))
    authorities = parties.deployment.root / "ca"
    name = f"clients-{place}"
    spec = ClientsSpec(
        name=name,
        transport=asked.transports[place],
        deployment=parties.deployment.name,
        task_name=asked.name,
        aggregators=parties.trusted,
        broker=parties.deployment.mqtt_broker,
        aggregator_ca_file=str(authorities / "aggregators.crt"),
        device_ca_file=str(authorities / "devices.crt"),
        device_ca_key_file=str(authorities / "devices.key"),
        spool_file=str(directory / f"{name}.db"),
        report_file=str(_report_file(directory, place)),
        call_timeout_s=_LONGEST_CALL_S,
        spread=str(SPREAD if asked.faults.clock_skew_s or asked.faults.outage else _BURST),
        reorder=asked.faults.reorder,
        coin_seed=asked.coin_seed,
        numbers=list(numbers),
        truths=asked.truths[chosen].tolist(),
        fates=asked.fates.flags[chosen].tolist(),
        skews=asked.fates.skews[chosen].tolist(),
    )
    path = directory / f"{name}.json"
    write_private(path, spec.encode().encode())
    return await children.start(name, [sys.executable, "-m", "fleetcount_simulator.network.clients", str(path)])


def _report_file(directory: Path, place: int) -> Path:
    return directory / f"clients-{place}.npz"


def _checked(answer: ReleaseAnswer, task: Task, parties: Parties) -> ReleaseRecord | None:
    if answer.state is not TaskState.RELEASED:
        return None
    record = decode_record(answer.record)
    verify_record_signatures(record, answer.signatures, parties.trusted_keys)
    if record.task_id != task.task_id:
        raise ProcessError(f"the record answers task {record.task_id}, not {task.task_id}")
    return record


class _Watch:
    """Follows one run: the devices' progress, the outages, aggregators that end unasked, the release."""

    def __init__(
        self, parties: Parties, asked: Ask, task: Task, clients: Sequence[Child], outages: Sequence[Outage]
    ) -> None:
        self._parties = parties
        self._asked = asked
        self._task = task
        self._clients = clients
        self._outages = outages
        self._lines: dict[str, dict[str, Any]] = {}
        self.ended_at = 0.0
        """When the end of the task was known, Unix seconds."""

    async def run(self, windows: Windows) -> ReleaseAnswer | None:
        """Return the answer with the task's end, None when no end came in time.

        Raises:
            ProcessError: a process ended before its time.
        """
        work: list[Coroutine[Any, Any, Any]] = [self._follow(client) for client in self._clients]
        following = [asyncio.ensure_future(one) for one in work]
        outages = asyncio.ensure_future(carry_out(self._parties, self._outages, self._task))
        ends = [asyncio.ensure_future(self._unasked(position)) for position in self._steady()]
        release = asyncio.ensure_future(self._release(windows))
        needed = {release, *following}
        try:
            while not all(one.done() for one in needed):
                pending = {one for one in (*needed, *ends, outages) if not one.done()}
                done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    one.result()
            return release.result()
        finally:
            everything = [*needed, *ends, outages]
            for one in everything:
                one.cancel()
            await asyncio.gather(*everything, return_exceptions=True)

    def _steady(self) -> list[int]:
        struck = {outage.position for outage in self._outages}
        return [position for position in range(len(self._task.aggregators)) if position not in struck]

    async def _unasked(self, position: int) -> None:
        raise ProcessError(await self._parties.ended(position))

    async def _follow(self, client: Child) -> None:
        """Follow one client process until its devices are done."""
        async for line in client.lines():
            self._lines[client.name] = line
            self._show()
            if line.get("event") == "done":
                return
        await client.succeed()
        raise ProcessError(f"{client.name} ended before its devices were done")

    def _show(self) -> None:
        devices, parties = len(self._asked.truths), len(self._task.aggregators)
        first = sum(int(line.get("round_one", 0)) for line in self._lines.values()) // parties
        second = sum(int(line.get("round_two", 0)) for line in self._lines.values()) // parties
        if second:
            self._asked.progress("round two", min(second, devices), devices)
        else:
            self._asked.progress("round one" if self._asked.question.two_rounds else "answers", first, devices)

    def round_times(self) -> dict[str, float]:
        """Return the seconds from the opening of each window to the last receipt in it, 0 where there was none."""
        latest: dict[str, float] = {}
        for line in self._lines.values():
            for number, moment in line.get("latest", {}).items():
                latest[number] = max(latest.get(number, 0.0), float(moment))
        first = max(latest.get("0", 0.0), latest.get("1", 0.0))
        return {
            "round_one": max(0.0, first - self._task.round_one_opens),
            "round_two": max(0.0, latest.get("2", 0.0) - self._task.round_one_closes),
        }

    async def _release(self, windows: Windows) -> ReleaseAnswer | None:
        """Ask every aggregator in turn until one knows how the task ended."""
        await asyncio.sleep(max(0.0, self._task.round_two_closes - time.time()))
        down_s = sum(outage.down_s or 0.0 for outage in self._outages)
        deadline = time.monotonic() + windows.release_s + down_s
        self._asked.progress("release", 0, 1)
        while time.monotonic() < deadline:
            for position in range(len(self._task.aggregators)):
                answer = await self._parties.release(self._task, position)
                if answer is not None and answer.state in (TaskState.RELEASED, TaskState.ABORTED):
                    self._asked.progress("release", 1, 1)
                    self.ended_at = time.time()
                    return answer
            await asyncio.sleep(_POLL_S)
        self.ended_at = time.time()
        return None

    async def reports(self, directory: Path, released: bool) -> list[ClientsReport]:
        """Return the account of every client process and let it end; uncertain messages are asked about once more."""
        files = [_report_file(directory, place) for place in range(len(self._clients))]
        reports = [ClientsReport.read(file) for file in files]
        if released:
            digest = await self._digest()
            if not explains(reports, digest):
                await asyncio.gather(*(self._probe(client) for client in self._clients))
                reports = [ClientsReport.read(file) for file in files]
            if not explains(reports, digest):
                raise ProcessError("the receipts of the devices do not explain the set the aggregators agreed on")
        for client in self._clients:
            await client.tell("end")
            await client.succeed()
        return reports

    async def _digest(self) -> Digest:
        for _ in range(_DIGEST_TRIES):
            for position in range(len(self._task.aggregators)):
                status = await self._parties.status(position, self._task.task_id)
                if status is not None and status.set_digest is not None:
                    return status.set_digest
            await asyncio.sleep(_POLL_S)
        raise ProcessError("no aggregator says on which set all of them agreed")

    async def _probe(self, client: Child) -> None:
        await client.tell("probe")
        async for line in client.lines():
            if line.get("event") == "probed":
                return
        await client.succeed()

"""Follows one run of a fleet: what its processes say, aggregators that end unasked, outages, the release, the reports.

It must not start a process or decide about a task.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fleetcount_protocol.ids import Digest
from fleetcount_protocol.messages import ReleaseAnswer, TaskState
from fleetcount_protocol.task.task import Task

from fleetcount_simulator.errors import ProcessError
from fleetcount_simulator.network.children import Child
from fleetcount_simulator.network.counted import explains
from fleetcount_simulator.network.fleet_report import FleetReport
from fleetcount_simulator.network.happenings import Held, Listener, Refused
from fleetcount_simulator.network.outages import Outage, carry_out
from fleetcount_simulator.network.parties import Parties

__all__ = ["ProgressCallback", "Watch"]

ProgressCallback = Callable[[str, int, int], None]
"""Called with the name of a stage, how much of it is done, and of how much."""

_POLL_S: Final = 0.05
_DIGEST_TRIES: Final = 100


class Watch:
    """Follows one run: the devices' progress, the outages, aggregators that end unasked, the release."""

    def __init__(
        self,
        parties: Parties,
        fleets: Mapping[Child, Path],
        devices: int,
        rounds: int,
        progress: ProgressCallback,
        listener: Listener | None = None,
    ) -> None:
        """Follow the fleet processes; each leaves its report in its file. `listener` is told what they name."""
        self._parties = parties
        self._fleets = fleets
        self._devices = devices
        self._rounds = rounds
        self._progress = progress
        self._listener = listener
        self._lines: dict[str, dict[str, Any]] = {}
        self.reasons: Counter[str] = Counter()
        self.ended_at = 0.0
        """When the end of the task was known, Unix seconds."""

    async def enrol(self) -> float:
        """Let all devices open their sessions; return the seconds it took the process that took longest.

        Raises:
            ProcessError: a process ended before its time.
        """
        for fleet in self._fleets:
            await fleet.tell("enrol")
        work = [self._until(fleet, "enrolled") for fleet in self._fleets]
        lines = await self._guarded(work, range(len(self._parties.deployment.plans)))
        return max(float(line["seconds"]) for line in lines)

    async def run(self, task: Task, outages: Sequence[Outage], release_s: float) -> ReleaseAnswer | None:
        """Return the answer with the task's end, None when no end came in time.

        Raises:
            ProcessError: a process ended before its time.
        """
        struck = {outage.position for outage in outages}
        steady = [position for position in range(len(task.aggregators)) if position not in struck]
        self._task = task
        down_s = sum(outage.down_s or 0.0 for outage in outages)
        work = [self._release(task, release_s + down_s), *(self._until(one, "done") for one in self._fleets)]
        answer: ReleaseAnswer | None
        answer, *lines = await self._guarded(work, steady, carry_out(self._parties, outages, task))
        for line in lines:
            self.reasons.update(line["reasons"])
        return answer

    async def _guarded(
        self, work: Sequence[Coroutine[Any, Any, Any]], steady: Iterable[int], *beside: Coroutine[Any, Any, None]
    ) -> list[Any]:
        """Return what all of the work returns; fail with it, with what is done beside it, or with a steady aggregator.

        Raises:
            ProcessError: one of these aggregators ended.
        """
        needed = [asyncio.ensure_future(one) for one in work]
        others = [asyncio.ensure_future(one) for one in (*beside, *map(self._unasked, steady))]
        try:
            while not all(one.done() for one in needed):
                pending = {one for one in (*needed, *others) if not one.done()}
                done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    one.result()
            return [one.result() for one in needed]
        finally:
            for one in (*needed, *others):
                one.cancel()
            await asyncio.gather(*needed, *others, return_exceptions=True)

    async def _unasked(self, position: int) -> None:
        raise ProcessError(await self._parties.ended(position))

    async def _until(self, fleet: Child, event: str) -> dict[str, Any]:
        """Follow one fleet process up to an event; return its line."""
        async for line in fleet.lines():
            self._lines[fleet.name] = line
            self._show()
            self._tell(fleet.name, line)
            if line.get("event") == event:
                return line
        await fleet.succeed()
        raise ProcessError(f"{fleet.name} ended before its devices were done")

    def _show(self) -> None:
        """Tell how far the devices are in the stage they have come to."""
        devices, parties = self._devices, len(self._parties.deployment.plans)
        first = "round one" if self._rounds == 2 else "answers"
        for stage, key, each in (("connecting", "enrolled", 1), (first, "round_one", parties)):
            self._progress(stage, min(self._sum(key) // each, devices), devices)
            if self._sum(key) < devices * each:
                break
        if second := self._sum("round_two"):
            self._progress("round two", min(second // parties, devices), devices)

    def _tell(self, process: str, line: Mapping[str, Any]) -> None:
        if self._listener is None or "refused" not in line:
            return
        if line["first"] or line["every"]:
            self._listener(Held(first=tuple(line["first"]), every=tuple(line["every"])))
        if line["refused"]:
            self._listener(Refused(process=process, reasons=line["refused"]))

    def _sum(self, key: str) -> int:
        return sum(int(line.get(key, 0)) for line in self._lines.values())

    def stages(self, task: Task) -> dict[str, float]:
        """Return the seconds from the opening of each window to the last receipt in it, and from the last to the end.

        0 where a window had no receipt.
        """
        latest: dict[str, float] = {}
        for line in self._lines.values():
            for number, moment in line.get("latest", {}).items():
                latest[number] = max(latest.get(number, 0.0), float(moment))
        first = max(latest.get("0", 0.0), latest.get("1", 0.0))
        return {
            "round_one": max(0.0, first - task.round_one_opens),
            "round_two": max(0.0, latest.get("2", 0.0) - task.round_one_closes),
            "release": self.ended_at - task.round_two_closes,
        }

    async def _release(self, task: Task, patience_s: float) -> ReleaseAnswer | None:
        """Ask every aggregator in turn until one knows how the task ended."""
        await asyncio.sleep(max(0.0, task.round_two_closes - time.time()))
        deadline = time.monotonic() + patience_s
        self._progress("release", 0, 1)
        while time.monotonic() < deadline:
            for position in range(len(task.aggregators)):
                answer = await self._parties.release(task, position)
                if answer is not None and answer.state in (TaskState.RELEASED, TaskState.ABORTED):
                    self._progress("release", 1, 1)
                    self.ended_at = time.time()
                    return answer
            await asyncio.sleep(_POLL_S)
        self.ended_at = time.time()
        return None

    async def reports(self, *, released: bool) -> list[FleetReport]:
        """Return the account of every fleet process and let it end; uncertain messages are asked about once more."""
        reports = [FleetReport.read(file) for file in self._fleets.values()]
        if released:
            digest = await self._digest(self._task)
            if not explains(self._task.task_id, reports, digest):
                await asyncio.gather(*(self._probe(fleet) for fleet in self._fleets))
                reports = [FleetReport.read(file) for file in self._fleets.values()]
            if not explains(self._task.task_id, reports, digest):
                raise ProcessError("the receipts of the devices do not explain the set the aggregators agreed on")
        await self._end_fleets()
        return reports

    async def _end_fleets(self) -> None:
        for fleet in self._fleets:
            await fleet.tell("end")
            await fleet.succeed()

    async def _digest(self, task: Task) -> Digest:
        for _ in range(_DIGEST_TRIES):
            for position in range(len(task.aggregators)):
                status = await self._parties.status(position, task.task_id)
                if status is not None and status.set_digest is not None:
                    return status.set_digest
            await asyncio.sleep(_POLL_S)
        raise ProcessError("no aggregator says on which set all of them agreed")

    async def _probe(self, fleet: Child) -> None:
        await fleet.tell("probe")
        async for line in fleet.lines():
            if line.get("event") == "probed":
                return
        await fleet.succeed()

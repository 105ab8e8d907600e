"""Follows one run of a fleet: progress of its processes, aggregators that end unexpectedly, outages, releases, reports.

It must not start a process or decide which windows are paused.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from fleetcount_protocol.ids import Digest
from fleetcount_protocol.messages import ReleaseAnswer, WindowState
from fleetcount_protocol.question.orders import OrderAction
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.release.record import ReleaseRecord, decode_record, verify_record_signatures
from fleetcount_protocol.release.walk import WalkEnd, next_step
from fleetcount_protocol.window.window import Window

from fleetcount_simulator.errors import ProcessError
from fleetcount_simulator.network.children import Child
from fleetcount_simulator.network.counted import explains
from fleetcount_simulator.network.events import Held, Listener, Refused
from fleetcount_simulator.network.fleet_report import FleetReport, window_file
from fleetcount_simulator.network.outages import Outage, carry_out
from fleetcount_simulator.network.parties import Parties
from fleetcount_simulator.network.plan import FleetPlan

ProgressCallback = Callable[[str, int, int], None]
"""Called with the name of a stage, the amount that is done, and the total."""

_POLL_S: Final = 0.05
_DIGEST_TRIES: Final = 100
_NEWS: Final = 3
"""Queries for orders between an order and the first window that it changes: the last device must know of it."""
_ENDED: Final = frozenset({WindowState.RELEASED, WindowState.ABORTED})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowEnd:
    """How a window ended: its window, an aggregator's answer (None: not in time), its checked record, and when.

    `at` is the time of the answer, Unix seconds.
    """

    window: Window
    answer: ReleaseAnswer | None
    record: ReleaseRecord | None
    at: float


Ends = Mapping[int, WindowEnd]
"""By window, without paused windows and without the steps after the end of a walk."""


class Watch:
    """Follows one run: the devices' progress, the outages and pauses, unexpected ends of aggregators, the releases."""

    _question: Question | None = None

    def __init__(
        self,
        parties: Parties,
        fleets: Mapping[Child, Path],
        devices: int,
        rounds: int,
        progress: ProgressCallback,
        listener: Listener | None = None,
    ) -> None:
        """Follow the fleet processes, which write their reports to these files; `listener` gets their events."""
        self._parties = parties
        self._fleets = fleets
        self._devices = devices
        self._rounds = rounds
        self._progress = progress
        self._listener = listener
        self._lines: dict[str, dict[str, Any]] = {}
        self.reasons: Counter[str] = Counter()

    async def enrol(self) -> float:
        """Let all devices open their sessions; return the seconds of the slowest process.

        Raises:
            ProcessError: a process ended too early.
        """
        for fleet in self._fleets:
            await fleet.tell("enrol")
        work = [self._until(fleet, "enrolled") for fleet in self._fleets]
        lines = await self._guarded(work, range(len(self._parties.deployment.plans)))
        return max(float(line["seconds"]) for line in lines)

    async def attend(self, question: Question, plan: FleetPlan, outages: Sequence[Outage], release_s: float) -> Ends:
        """Let the devices answer the question of a plan; return the end of every window outside its pauses.

        `outages` are those of a question of one window.

        Raises:
            ProcessError: a process ended too early.
            SignatureError: the signatures of a record do not verify.
        """
        struck = {outage.position for outage in outages}
        steady = [position for position in range(len(question.aggregators)) if position not in struck]
        beside = [self._give_orders(question, plan)]
        if outages:
            beside.append(carry_out(self._parties, outages, window_at(question, 0)))
        self._question = question
        paused = {window for first, last in plan.pauses for window in range(first, last + 1)}
        windows = [index for index in range(question.schedule.windows) if index not in paused]
        patience_s = release_s + sum(outage.down_s or 0.0 for outage in outages)
        work = [self._ends(question, windows, patience_s), *(self._until(one, "done") for one in self._fleets)]
        ends: Ends
        ends, *lines = await self._guarded(work, steady, *beside)
        for line in lines:
            self.reasons.update(line["reasons"])
        return ends

    async def _guarded(
        self, work: Sequence[Coroutine[Any, Any, Any]], steady: Iterable[int], *beside: Coroutine[Any, Any, None]
    ) -> list[Any]:
        """Return the results of `work`; fail when one of it, one of `beside` or an aggregator of `steady` fails.

        Raises:
            ProcessError: one of the aggregators at the positions `steady` ended.
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
        """Report the devices' progress in their present stage."""
        devices, parties = self._devices, len(self._parties.deployment.plans)
        if self._question is None:
            self._progress("connecting", min(self._sum("enrolled"), devices), devices)
            return
        if self._question.schedule.windows > 1:
            most, parts = devices * self._question.schedule.windows, self._sum("round_one") + self._sum("round_two")
            self._progress("answers", min(parts // (parties * self._rounds), most), most)
            return
        first = "round one" if self._rounds == 2 else "answers"
        self._progress(first, min(self._sum("round_one") // parties, devices), devices)
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

    def stages(self, end: WindowEnd) -> dict[str, float]:
        """Return the seconds from the opening of each round of the only window to its last receipt, and to the record.

        A round without a receipt has 0.
        """
        window, latest = end.window, dict[str, float]()
        for line in self._lines.values():
            for number, moment in line.get("latest", {}).items():
                latest[number] = max(latest.get(number, 0.0), float(moment))
        first = max(latest.get("0", 0.0), latest.get("1", 0.0))
        return {
            "round_one": max(0.0, first - window.round_one_opens),
            "round_two": max(0.0, latest.get("2", 0.0) - window.round_one_closes),
            "release": end.at - window.round_two_closes,
        }

    async def _give_orders(self, question: Question, plan: FleetPlan) -> None:
        """Pause and resume the question for every outage, early enough for all devices to learn of both at once."""
        schedule = question.schedule
        for place, (first, last) in enumerate(plan.pauses):
            await asyncio.sleep(schedule.opens(first) - schedule.every_s - _NEWS * plan.part.news_s - time.time())
            self._parties.order(question, 2 * place + 1, OrderAction.PAUSE, first)
            if last + 1 < schedule.windows:
                self._parties.order(question, 2 * place + 2, OrderAction.RESUME, last + 1)

    async def _ends(self, question: Question, windows: Sequence[int], release_s: float) -> Ends:
        ends: dict[int, WindowEnd] = {}
        walk, stage = question.drill_down, "release" if question.schedule.windows == 1 else "windows"
        for index in windows:
            window = window_after(question, index, ends.get(index - 1))
            if window is None:
                continue
            # A walk ends when the record of a step comes after the next step opens: wait no longer than that.
            due_s = question.schedule.every_s if walk is not None and walk.step_of(index + 1) else release_s
            answer = await self._end(
                window, min(release_s, due_s), partial(self._progress, stage, len(ends), len(windows))
            )
            record = None if answer is None else _checked_record(answer, window, self._parties)
            ends[index] = WindowEnd(window=window, answer=answer, record=record, at=time.time())
            if answer is not None:
                self._progress(stage, len(ends), len(windows))
        if len(ends) < len(windows):  # The walk has ended: nobody waits for the steps that are not asked.
            for fleet in self._fleets:
                await fleet.tell("over")
        return ends

    async def _end(self, window: Window, release_s: float, begun: Callable[[], None]) -> ReleaseAnswer | None:
        """Ask every aggregator in turn until one knows how a window ended; `begun` is called when it has closed."""
        closes = max(window.round_one_closes, window.round_two_closes)
        await self._until_closed(window, closes)
        begun()
        while time.time() < closes + release_s:
            for position in range(len(window.aggregators)):
                answer = await self._parties.release(window, position)
                if answer is not None and answer.state in _ENDED:
                    return answer
            await asyncio.sleep(_POLL_S)
        return None

    async def _until_closed(self, window: Window, closes: int) -> None:
        """Wait until a window closes; of a question of many, each second is a step of the progress."""
        index, windows = window.question.index, 1 if self._question is None else self._question.schedule.windows
        stage, most = f"seconds until window {index + 1} of {windows} closes", math.ceil(closes - time.time())
        while (left_s := closes - time.time()) > 0:
            if windows > 1:
                self._progress(stage, max(0, most - math.ceil(left_s)), most)
            await asyncio.sleep(left_s if windows == 1 else min(left_s, 1.0))
        if windows > 1 and most > 0:
            self._progress(stage, most, most)

    async def reports(self, question: Question, ends: Ends) -> list[list[FleetReport]]:
        """Return by window the reports of every process on its devices, and let the processes end.

        Where the receipts do not explain the agreed set, the devices send their uncertain messages once more.

        Raises:
            ProcessError: a released window that the receipts do not explain: an answer was lost or counted twice.
        """
        reports = self._read(question)
        released = {index: end.window for index, end in ends.items() if end.record is not None}
        digests = {index: await self._digest(window) for index, window in released.items()}

        def unexplained() -> list[int]:
            found = digests.items()
            return [at for at, digest in found if not explains(released[at].window_id, reports[at], digest)]

        if unexplained():
            await asyncio.gather(*(self._probe(fleet) for fleet in self._fleets))
            reports = self._read(question)
        wrong = unexplained()
        if wrong:
            raise ProcessError(f"the receipts of the devices do not explain the agreed sets of windows {wrong}")
        await self._end_fleets()
        return reports

    def _read(self, question: Question) -> list[list[FleetReport]]:
        files: list[Path] = list(self._fleets.values())
        windows = range(question.schedule.windows)
        return [[FleetReport.read(window_file(file, index)) for file in files] for index in windows]

    async def _end_fleets(self) -> None:
        for fleet in self._fleets:
            await fleet.tell("end")
            await fleet.succeed()

    async def _digest(self, window: Window) -> Digest:
        for _ in range(_DIGEST_TRIES):
            for position in range(len(window.aggregators)):
                status = await self._parties.status(position, window.window_id)
                if status is not None and status.set_digest is not None:
                    return status.set_digest
            await asyncio.sleep(_POLL_S)
        raise ProcessError("no aggregator gives the digest of the agreed set")

    async def _probe(self, fleet: Child) -> None:
        await fleet.tell("probe")
        async for line in fleet.lines():
            if line.get("event") == "probed":
                return
        await fleet.succeed()


def window_after(question: Question, index: int, before: WindowEnd | None) -> Window | None:
    """Return a window, None for a step after the end of its walk."""
    walk = question.drill_down
    if walk is None or not walk.step_of(index):
        return window_at(question, index)
    if before is None or before.record is None:
        return None
    survivors = next_step(question, before.record)
    return None if isinstance(survivors, WalkEnd) else window_at(question, index, survivors)


def _checked_record(answer: ReleaseAnswer, window: Window, parties: Parties) -> ReleaseRecord | None:
    if answer.state is not WindowState.RELEASED:
        return None
    record = decode_record(answer.record)
    verify_record_signatures(record, answer.signatures, parties.deployment.trusted)
    if record.window_id != window.window_id:
        raise ProcessError(f"the record answers window {record.window_id}, not {window.window_id}")
    return record

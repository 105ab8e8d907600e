"""Follows a fleet through a series: its joining, the pauses its leader's operator orders, every window's release.

It must not start a process or decide which windows are paused.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fleetcount_protocol.messages import ReleaseAnswer, TaskState
from fleetcount_protocol.release import ReleaseRecord
from fleetcount_protocol.release.walk import WalkEnd, next_step
from fleetcount_protocol.series.derive import window_task
from fleetcount_protocol.series.orders import OrderAction
from fleetcount_protocol.series.series import Series
from fleetcount_protocol.task.task import Task

from fleetcount_simulator.errors import ProcessError
from fleetcount_simulator.network.counted import explains
from fleetcount_simulator.network.fleet_report import FleetReport, window_file
from fleetcount_simulator.network.run import checked_record
from fleetcount_simulator.network.series_question import SeriesPlan
from fleetcount_simulator.network.watch import Watch

__all__ = ["Released", "SeriesWatch", "WindowEnd", "task_after"]

_POLL_S: Final = 0.1
_NEWS: Final = 3
"""So many times each device asks for news between an order and the first window that it changes."""
_ENDED: Final = frozenset({TaskState.RELEASED, TaskState.ABORTED})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowEnd:
    """How a window ended: its task, what was said of it (None: nothing in time), its checked record, and when.

    `at` is when that was known, Unix seconds.
    """

    task: Task
    answer: ReleaseAnswer | None
    record: ReleaseRecord | None
    at: float


Released = Mapping[int, WindowEnd]
"""By window, without those that were paused or that a walk did not come to."""


class SeriesWatch(Watch):
    """Follows one run of a series."""

    _series: Series | None = None

    async def attend(self, series: Series, plan: SeriesPlan, release_s: float) -> Released:
        """Let the devices answer the series of a plan; return the end of every window outside its pauses.

        Raises:
            ProcessError: a process ended before its time.
            SignatureError: a record whose signatures do not verify.
        """
        everybody = range(len(series.aggregators))
        self._series = series
        await self._guarded([self._until(one, "joined") for one in self._fleets], everybody)
        paused = {window for first, last in plan.pauses for window in range(first, last + 1)}
        windows = [index for index in range(series.schedule.windows) if index not in paused]
        work = [self._ends(series, windows, release_s), *(self._until(one, "done") for one in self._fleets)]
        ends: Released
        ends, *lines = await self._guarded(work, everybody, self._give_orders(series, plan))
        for line in lines:
            self.reasons.update(line["reasons"])
        return ends

    async def _give_orders(self, series: Series, plan: SeriesPlan) -> None:
        """Pause and resume the series for every outage, early enough for all devices to hear of both at once."""
        schedule = series.schedule
        for place, (first, last) in enumerate(plan.pauses):
            await asyncio.sleep(schedule.opens(first) - schedule.every_s - _NEWS * plan.part.news_s - time.time())
            self._parties.order(series, 2 * place + 1, OrderAction.PAUSE, first)
            if last + 1 < schedule.windows:
                self._parties.order(series, 2 * place + 2, OrderAction.RESUME, last + 1)

    async def _ends(self, series: Series, windows: Sequence[int], release_s: float) -> Released:
        ends: dict[int, WindowEnd] = {}
        walk = series.drill_down
        self._progress("windows", 0, len(windows))
        for index in windows:
            task = task_after(series, index, ends.get(index - 1))
            if task is None:
                continue
            # A record that comes later than the next step opens ends a walk: it is not waited for.
            due_s = series.schedule.every_s if walk is not None and walk.step_of(index + 1) else release_s
            answer = await self._end(task, min(release_s, due_s))
            record = None if answer is None else checked_record(answer, task, self._parties)
            ends[index] = WindowEnd(task=task, answer=answer, record=record, at=time.time())
            self._progress("windows", len(ends), len(windows))
        self.ended_at = time.time()
        return ends

    async def _end(self, task: Task, release_s: float) -> ReleaseAnswer | None:
        closes = max(task.round_one_closes, task.round_two_closes)
        await asyncio.sleep(closes - time.time())
        while time.time() < closes + release_s:
            for position in range(len(task.aggregators)):
                answer = await self._parties.release(task, position)
                if answer is not None and answer.state in _ENDED:
                    return answer
            await asyncio.sleep(_POLL_S)
        return None

    async def window_reports(self, series: Series, ends: Released) -> list[list[FleetReport]]:
        """Return by window what became of the devices of every process, and let the processes end.

        Where the receipts do not explain what the aggregators agreed on, uncertain messages are asked about once more.

        Raises:
            ProcessError: a released window that the receipts do not explain: an answer was lost or counted twice.
        """
        reports = self._read(series)
        released = {index: end.task for index, end in ends.items() if end.record is not None}
        digests = {index: await self._digest(task) for index, task in released.items()}

        def unexplained() -> list[int]:
            found = digests.items()
            return [at for at, digest in found if not explains(released[at].task_id, reports[at], digest)]

        if unexplained():
            await asyncio.gather(*(self._probe(fleet) for fleet in self._fleets))
            reports = self._read(series)
        wrong = unexplained()
        if wrong:
            raise ProcessError(f"the receipts of the devices do not explain what was agreed on in windows {wrong}")
        await self._end_fleets()
        return reports

    def _read(self, series: Series) -> list[list[FleetReport]]:
        files: list[Path] = list(self._fleets.values())
        windows = range(series.schedule.windows)
        return [[FleetReport.read(window_file(file, index)) for file in files] for index in windows]

    def _show(self) -> None:
        if self._series is None:
            super()._show()
            return
        parties, last = len(self._parties.deployment.plans), "round_two" if self._rounds == 2 else "round_one"
        most = self._devices * self._series.schedule.windows
        self._progress("answers", min(self._sum(last) // parties, most), most)


def task_after(series: Series, index: int, before: WindowEnd | None) -> Task | None:
    """Return the task of a window, None for a step that its walk does not come to."""
    walk = series.drill_down
    if walk is None or not walk.step_of(index):
        return window_task(series, index)
    if before is None or before.record is None:
        return None
    survivors = next_step(series, before.record)
    return None if isinstance(survivors, WalkEnd) else window_task(series, index, survivors)

"""Follows a fleet through a series: its joining, the pauses its leader's operator orders, every window's release.

It must not start a process or decide which windows are paused.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from fleetcount_protocol.messages import ReleaseAnswer, TaskState
from fleetcount_protocol.series.derive import window_task
from fleetcount_protocol.series.orders import OrderAction
from fleetcount_protocol.series.series import Series
from fleetcount_protocol.task.task import Task

from fleetcount_simulator.errors import ProcessError
from fleetcount_simulator.network.counted import explains
from fleetcount_simulator.network.fleet_report import FleetReport, window_file
from fleetcount_simulator.network.series_question import SeriesPlan
from fleetcount_simulator.network.watch import Watch

__all__ = ["Released", "SeriesWatch"]

_POLL_S: Final = 0.1
_NEWS: Final = 3
"""So many times each device asks for news between an order and the first window that it changes."""
_ENDED: Final = frozenset({TaskState.RELEASED, TaskState.ABORTED})

Released = Mapping[int, tuple[ReleaseAnswer | None, float]]
"""By window: how it ended, None when no aggregator said so in time, and when that was known, Unix seconds."""


class SeriesWatch(Watch):
    """Follows one run of a series."""

    _series: Series | None = None

    async def attend(self, series: Series, plan: SeriesPlan, release_s: float) -> Released:
        """Let the devices answer the series of a plan; return the end of every window outside its pauses.

        Raises:
            ProcessError: a process ended before its time.
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
        ends: dict[int, tuple[ReleaseAnswer | None, float]] = {}
        self._progress("windows", 0, len(windows))
        for index in windows:
            ends[index] = await self._end(window_task(series, index), release_s), time.time()
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

    async def window_reports(self, series: Series, released: Sequence[int]) -> list[list[FleetReport]]:
        """Return by window what became of the devices of every process, and let the processes end.

        Where the receipts do not explain what the aggregators agreed on, uncertain messages are asked about once more.

        Raises:
            ProcessError: a released window that the receipts do not explain: an answer was lost or counted twice.
        """
        reports = self._read(series)
        digests = {index: await self._digest(window_task(series, index)) for index in released}
        if not all(explains(reports[index], digest) for index, digest in digests.items()):
            await asyncio.gather(*(self._probe(fleet) for fleet in self._fleets))
            reports = self._read(series)
        wrong = [index for index, digest in digests.items() if not explains(reports[index], digest)]
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

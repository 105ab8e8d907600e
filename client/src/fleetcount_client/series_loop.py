"""A device's way through the windows of the series it has joined: each at its time, skipped ones left out.

Waits and decides the order; which windows and at what price is the book's, how one is answered that of the rounds.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fleetcount_protocol.errors import DecodeError, MachineError, TaskError
from fleetcount_protocol.ids import SeriesId, TaskId
from fleetcount_protocol.series.derive import window_task

from fleetcount_client.outcome import Outcome, OutcomeKind
from fleetcount_client.policy import PolicyRefusal
from fleetcount_client.rounds import Rounds
from fleetcount_client.series_book import KnownSeries, SeriesBook
from fleetcount_client.signals import SignalSource
from fleetcount_client.timer import Timer
from fleetcount_client.walks import Walks

__all__ = ["SeriesLoop"]

_LOG: Final = logging.getLogger(__name__)
_LOOK_S: Final = 60.0
"""How often a device that waits for a window looks whether it still takes part, and for keys that are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesLoop:
    """Answers the windows of joined series for one device. `pause_until` waits and may close what is idle meanwhile.

    `under_way` holds the windows that are answered just now: what was begun before a restart is taken up elsewhere.
    """

    book: SeriesBook
    rounds: Rounds
    walks: Walks
    timer: Timer
    under_way: set[TaskId]
    pause_until: Callable[[float], Awaitable[None]]

    async def run(
        self,
        series_id: SeriesId,
        signals: Mapping[str, SignalSource],
        report: Callable[[Outcome], None],
        horizon: float = math.inf,
    ) -> None:
        """Answer the windows of a joined series that open before `horizon`; `report` is told how each ended.

        Returns when none is left, or when the owner or an order has ended the device's part.
        """
        last = -1
        while (series := self.book.joined(series_id)) is not None:
            index = series.next_window(last, self.timer.now())
            if index is None:
                if series.last_chance <= self.timer.now():
                    self.book.finish(series_id)
                    return
                look = min(self.timer.now() + _LOOK_S, series.last_chance)
                if look >= horizon:
                    return
                await self.pause_until(look)
                continue
            opens = series.series.schedule.opens(index)
            if opens >= horizon:
                return
            if opens > self.timer.now():
                # Orders and the owner's word may come while it waits: it looks again before it answers.
                await self.pause_until(opens)
                continue
            outcome = await self._answer(series, index, signals)
            last = index
            if outcome is not None:
                report(outcome)

    async def _answer(self, series: KnownSeries, index: int, signals: Mapping[str, SignalSource]) -> Outcome | None:
        name = series.series.name
        if series.series.signal not in signals:
            _LOG.warning("window %d of series %s: no source is configured for %s", index, name, series.series.signal)
            return None
        survivors = await self.walks.survivors(series.series, index)
        if not isinstance(survivors, tuple):
            _LOG.info("window %d of series %s is not asked: %s", index, name, survivors.value)
            return None
        return await self._answer_after(series, index, survivors, signals)

    async def _answer_after(
        self, series: KnownSeries, index: int, survivors: tuple[int, ...], signals: Mapping[str, SignalSource]
    ) -> Outcome | None:
        series_id, name = series.series.series_id, series.series.name
        try:
            seat = self.book.seat(series, index, survivors)
            if isinstance(seat, PolicyRefusal):
                _LOG.info("window %d of series %s is not answered: %s", index, name, seat.message)
                return None

            def still_asked() -> bool:
                now = self.book.joined(series_id)
                return now is not None and not now.skips(index)

            if seat.task.task_id in self.under_way:
                return None
            self.under_way.add(seat.task.task_id)
            try:
                return await self.rounds.answer_window(seat, signals, still_asked)
            finally:
                self.under_way.discard(seat.task.task_id)
        except TaskError as error:
            _LOG.warning("window %d of series %s is not answered: %s", index, name, error)
            return None
        except (MachineError, DecodeError) as error:  # The state file is damaged, or cannot be used.
            task_id = window_task(series.series, index, survivors).task_id
            return Outcome(task_id=task_id, name=name, kind=OutcomeKind.FAILED, reason=str(error))

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
from fleetcount_protocol.task.task import Task

from fleetcount_client.outcome import Outcome, OutcomeKind
from fleetcount_client.policy import PolicyRefusal, judge_sources
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
    under_way: dict[TaskId, Task]
    pause_until: Callable[[float], Awaitable[None]]

    async def run(
        self,
        series_id: SeriesId,
        signals: Mapping[str, SignalSource],
        report: Callable[[Outcome], None],
        horizon: float = math.inf,
        *,
        until_failed: bool = False,
    ) -> None:
        """Answer the windows of a joined series that open before `horizon`; `report` is told how each ended.

        Returns when none is left, when the owner or an order has ended the device's part or, with `until_failed`, when
        this machine has failed: who takes the series up again answers the same window while it is open.
        """
        last = -1
        while (series := self.book.joined(series_id)) is not None:
            index = series.next_window(last, self.timer.now())
            if index is None:
                if series.last_chance(last) <= self.timer.now():
                    if last < 0 and (ended := self._ended(series)) is not None:
                        report(ended)
                    self.book.finish(series_id, last)
                    return
                look = min(self.timer.now() + _LOOK_S, series.last_chance(last))
                if look >= horizon:
                    return
                await self.pause_until(look)
                continue
            opens = series.asked.schedule.opens(index)
            if opens >= horizon:
                return
            if opens > self.timer.now():
                # Orders and the owner's word may come while it waits: it looks again before it answers.
                await self.pause_until(opens)
                continue
            outcome = await self._answer(series, index, signals)
            last = index
            if outcome is None:
                continue
            report(outcome)
            if outcome.kind is OutcomeKind.FAILED and until_failed:
                return
            if outcome.kind is OutcomeKind.REFUSED:
                self.book.note(series_id, PolicyRefusal(rule=outcome.rule, message=outcome.reason))

    def _ended(self, series: KnownSeries) -> Outcome | None:
        """Return how the only window ended where it closed while nobody looked; what is begun is taken up elsewhere."""
        return self.rounds.ended(window_task(series.asked, 0)) if series.asked.schedule.windows == 1 else None

    async def _answer(self, series: KnownSeries, index: int, signals: Mapping[str, SignalSource]) -> Outcome | None:
        survivors = await self.walks.survivors(series.asked, index)
        if not isinstance(survivors, tuple):
            _LOG.info("window %d of series %s is not asked: %s", index, series.asked.name, survivors.value)
            return None
        return await self._answer_after(series, index, survivors, signals)

    async def _answer_after(
        self, series: KnownSeries, index: int, survivors: tuple[int, ...], signals: Mapping[str, SignalSource]
    ) -> Outcome | None:
        series_id, name = series.asked.series_id, series.asked.name
        task = window_task(series.asked, index, survivors)
        if task.task_id in self.under_way:
            return None
        self.under_way[task.task_id] = task
        try:
            unread = judge_sources(signals, task.signal, task.domain)
            seat = unread or self.book.seat(series, index, survivors)
            if isinstance(seat, PolicyRefusal):
                _LOG.info("window %d of series %s is not answered: %s", index, name, seat.message)
                # What is not reserved was left out when the series was joined: nobody asks for it.
                reserved = seat.rule != "reserved"
                return Outcome.of(task, OutcomeKind.REFUSED, seat.message, seat.rule) if reserved else None

            def still_asked() -> bool:
                now = self.book.joined(series_id)
                return now is not None and not now.skips(index)

            return await self.rounds.answer(seat, signals, still_asked)
        except TaskError as error:
            _LOG.warning("window %d of series %s is not answered: %s", index, name, error)
            return Outcome.of(task, OutcomeKind.GIVEN_UP, str(error))
        except (MachineError, DecodeError) as error:  # The state file is damaged, or cannot be used.
            return Outcome.of(task, OutcomeKind.FAILED, str(error))
        finally:
            self.under_way.pop(task.task_id)

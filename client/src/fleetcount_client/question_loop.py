"""A device's way through the windows of the question it has joined: each at its time, skipped ones left out.

Waits and decides the order; which windows and at what price is the book's, how one is answered that of the rounds.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from fleetcount_protocol.errors import DecodeError, MachineError, QuestionError
from fleetcount_protocol.ids import QuestionId, WindowId
from fleetcount_protocol.messages import QuestionOffer
from fleetcount_protocol.question.derive import window_at
from fleetcount_protocol.window.window import Window

from fleetcount_client.charges import WindowAssignment
from fleetcount_client.outcome import Outcome, OutcomeKind
from fleetcount_client.policy import PolicyRefusal, judge_sources
from fleetcount_client.question_rows import Walks
from fleetcount_client.rounds import Rounds
from fleetcount_client.signals import SignalSource
from fleetcount_client.subscriptions import KnownQuestion, Subscriptions
from fleetcount_client.timer import Timer
from fleetcount_client.transport import Unreachable

_LOG: Final = logging.getLogger(__name__)
_LOOK_S: Final = 60.0
"""How often at least a device that waits for a window looks whether it still takes part, and for missing keys."""
_LOOKS: Final = 10
"""How often a device asks for sealing keys that are missing within round one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionLoop:
    """Answers the windows of joined questions for one device. `pause_until` waits and may close what is idle meanwhile.

    `under_way` holds the windows that are answered just now: what was begun before a restart is taken up elsewhere.
    `fetch_offers` asks the aggregators what is on offer, and raises `Unreachable` where none answers.
    """

    book: Subscriptions
    rounds: Rounds
    walks: Walks
    timer: Timer
    under_way: dict[WindowId, Window]
    pause_until: Callable[[float], Awaitable[None]]
    fetch_offers: Callable[[], Awaitable[Iterable[QuestionOffer]]]

    async def run(
        self,
        question_id: QuestionId,
        signals: Mapping[str, SignalSource],
        report: Callable[[Outcome], None],
        horizon: float = math.inf,
        *,
        until_failed: bool = False,
    ) -> None:
        """Answer the windows of a joined question that open before `horizon`; `report` is told how each ended.

        Returns when none is left, when the owner or an order has ended the device's part or, with `until_failed`, when
        this machine has failed: who takes the question up again answers the same window while it is open.
        """
        last = -1
        while (question := self.book.joined(question_id)) is not None:
            index = question.next_window(last, self.timer.now())
            if index is None:
                if question.last_chance(last) <= self.timer.now():
                    if last < 0 and (ended := self._ended(question)) is not None:
                        report(ended)
                    self.book.finish(question_id, last)
                    return
                look = min(self.timer.now() + _LOOK_S, question.last_chance(last))
                if look >= horizon:
                    return
                await self.pause_until(look)
                continue
            opens = question.asked.schedule.opens(index)
            if opens >= horizon:
                return
            if opens > self.timer.now():
                # Orders and the owner's word may come while it waits: it looks again before it answers.
                await self.pause_until(opens)
                continue
            outcome = await self._answer(question, index, signals)
            last = index
            if outcome is None:
                continue
            report(outcome)
            if outcome.kind is OutcomeKind.FAILED and until_failed:
                return
            if outcome.kind is OutcomeKind.REFUSED:
                self.book.note(question_id, PolicyRefusal(rule=outcome.rule, message=outcome.reason))

    def _ended(self, question: KnownQuestion) -> Outcome | None:
        """Return how the only window ended where it closed while nobody looked; what is begun is taken up elsewhere."""
        return self.rounds.ended(window_at(question.asked, 0)) if question.asked.schedule.windows == 1 else None

    async def _answer(self, question: KnownQuestion, index: int, signals: Mapping[str, SignalSource]) -> Outcome | None:
        survivors = await self.walks.survivors(question.asked, index)
        if not isinstance(survivors, tuple):
            _LOG.info("window %d of question %s is not asked: %s", index, question.asked.name, survivors.value)
            return None
        return await self._answer_after(question, index, survivors, signals)

    async def _answer_after(
        self, question: KnownQuestion, index: int, survivors: tuple[int, ...], signals: Mapping[str, SignalSource]
    ) -> Outcome | None:
        question_id, name = question.asked.question_id, question.asked.name
        window = window_at(question.asked, index, survivors)
        if window.window_id in self.under_way:
            return None
        self.under_way[window.window_id] = window
        try:
            unread = judge_sources(signals, window.signal, window.domain)
            seat = unread or await self._seat(question, window, survivors, signals)
            if isinstance(seat, PolicyRefusal):
                _LOG.info("window %d of question %s is not answered: %s", index, name, seat.message)
                # What is not reserved was left out when the question was joined: nobody asks for it.
                reserved = seat.rule != "reserved"
                return Outcome.of(window, OutcomeKind.REFUSED, seat.message, seat.rule) if reserved else None

            def still_asked() -> bool:
                now = self.book.joined(question_id)
                return now is not None and not now.skips(index)

            return await self.rounds.answer(seat, signals, still_asked)
        except QuestionError as error:
            _LOG.warning("window %d of question %s is not answered: %s", index, name, error)
            return Outcome.of(window, OutcomeKind.GIVEN_UP, str(error))
        except (MachineError, DecodeError) as error:  # The state file is damaged, or cannot be used.
            return Outcome.of(window, OutcomeKind.FAILED, str(error))
        finally:
            self.under_way.pop(window.window_id)

    async def _seat(
        self,
        question: KnownQuestion,
        window: Window,
        survivors: tuple[int, ...],
        signals: Mapping[str, SignalSource],
    ) -> WindowAssignment | PolicyRefusal:
        """Return the device's part in an open window, or why it has none.

        An aggregator may offer a question before it knows the keys of another that is away: counted from submission the
        first window may be open by then. As long as round one is open the device asks again.

        Raises:
            QuestionError: an aggregator has listed no sealing key that is valid over the window.
        """
        question_id, place = window.question.question_id, window.question.index
        wait = min(_LOOK_S, (window.round_one_closes - window.round_one_opens) / _LOOKS)
        while True:
            try:
                return self.book.seat(question, place, survivors)
            except QuestionError as error:
                if self.timer.now() + wait >= window.round_one_closes:
                    raise
                _LOG.info("window %d of question %s waits: %s", place, question.asked.name, error)
            await self.pause_until(self.timer.now() + wait)
            with suppress(Unreachable):
                offers = await self.fetch_offers()
                self.book.take((one for one in offers if one.signed.question.question_id == question_id), signals)
            # Where the owner or an order ended its part meanwhile, nothing is reserved any more, or the rounds see it.
            question = self.book.joined(question_id) or question

"""The answer to one window from its opening to the last receipt: both rounds, each part of each at its own random time.

Reads the truth once, when the first message is formed; charges, coins and bytes are durable before anything is sent.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from fleetcount_mechanisms.randomness import RandomSource, uniform_below
from fleetcount_protocol.channel.chain import WindowKey
from fleetcount_protocol.channel.session import seal_instalment
from fleetcount_protocol.errors import DecodeError, MachineError, QuestionError, RejectReason
from fleetcount_protocol.ids import QuestionId, WindowId
from fleetcount_protocol.messages import QuestionOffer
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.window.fields import Aggregator, UploadStyle
from fleetcount_protocol.window.window import Window
from fleetcount_transport import failpoints

from fleetcount_client.answering import (
    ReportParts,
    Truth,
    TwoRoundSecret,
    draw_two_round,
    envelope_parts,
    one_round_parts,
    round_one_parts,
    round_two_parts,
    truth_of,
)
from fleetcount_client.charges import WindowAssignment
from fleetcount_client.config import DeliverySettings
from fleetcount_client.contact import Outcome, OutcomeKind, SignalNotes
from fleetcount_client.ledger import Ledger
from fleetcount_client.policy import OwnerPolicy, PolicyRefusal, judge_sources
from fleetcount_client.private_places import PrivatePlaces
from fleetcount_client.question_rows import Walks
from fleetcount_client.sessions import Delivery, DeliveryEnd, SessionKeeper, encode_instalment, row_of, secret_of
from fleetcount_client.signals import Reading, SignalSource, read_parts
from fleetcount_client.spool import Spool
from fleetcount_client.spool_rows import Beginning, OutboxEntry, Phase, Report, SessionRow
from fleetcount_client.subscriptions import KnownQuestion, Subscriptions
from fleetcount_client.timer import Timer, uniform_seconds
from fleetcount_client.transport import Unreachable

_KINDS: Final = {
    Phase.DELIVERED: OutcomeKind.DELIVERED,
    Phase.GIVEN_UP: OutcomeKind.GIVEN_UP,
    Phase.REJECTED: OutcomeKind.REJECTED,
}

_CLOSED: Final = "round one has closed"
_ROUND_ONE_MISSED: Final = "round one closed before every receipt was there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Answers windows for one device. `pause_until` waits for a moment and may close what is idle meanwhile."""

    policy: OwnerPolicy
    spool: Spool
    sessions: SessionKeeper
    delivery: Delivery
    timer: Timer
    source: RandomSource
    settings: DeliverySettings
    book: Subscriptions
    private: PrivatePlaces
    conditions: Callable[[], bool]
    pause_until: Callable[..., Awaitable[float]]
    notes: SignalNotes

    async def answer(
        self, assignment: WindowAssignment, signals: Mapping[str, SignalSource], still_asked: Callable[[], bool]
    ) -> Outcome:
        """Answer a window that is paid for to its end, or take up an answer that was begun before.

        Raises:
            MachineError: the store failed; nothing was sent that is not stored.
        """
        formed: Sequence[OutboxEntry] = ()
        # Where nothing was sent for the unit, none of its windows has an answer.
        report, fault = self.spool.report(assignment.window.window_id) if assignment.charge.sent else None, ""
        if report is None:
            begun, fault = await self._open(assignment, signals, still_asked)
            if isinstance(begun, Outcome):
                return begun
            report, formed = begun.report, begun.entries
        outcome = await self._finish(assignment.window, report, formed)
        return replace(outcome, fault=fault) if fault else outcome

    async def take_up(self, window: Window) -> Outcome:
        """Bring an answer that was begun before to its end.

        Raises:
            MachineError: the store failed.
        """
        report = self.spool.report(window.window_id)
        return _outcome(window, report) if report is None else await self._finish(window, report)

    def ended(self, window: Window) -> Outcome | None:
        """Return how the answer to a window ended: MISSED where there is none, None while it has not ended.

        Raises:
            MachineError: the store failed.
        """
        report = self.spool.report(window.window_id)
        return _outcome(window, report) if report is None or report.phase.final else None

    async def _finish(self, window: Window, report: Report, formed: Sequence[OutboxEntry] = ()) -> Outcome:
        """Bring an answer to its end; `formed` is what its phase sends, if that was just stored."""
        while not report.phase.final:
            if report.phase is Phase.BETWEEN:
                report, formed = await self._form_second(window, report)
            else:
                report = await self._deliver(window, report, formed)
        return _outcome(window, report)

    async def _open(
        self, assignment: WindowAssignment, signals: Mapping[str, SignalSource], still_asked: Callable[[], bool]
    ) -> tuple[Beginning | Outcome, str]:
        """Return the first message, or why there is none; and the reading's fault, "" for none."""
        window = assignment.window
        opens, closes = window.round_one_opens, window.round_one_closes
        if (now := self.timer.now()) >= closes:
            return Outcome.of(window, OutcomeKind.MISSED, _CLOSED), ""
        first = min(self._moments(len(assignment.aggregators), opens, closes, now))
        opened = await self._sessions_of(window, assignment.aggregators, now, first)
        if isinstance(opened, Outcome):
            return opened, ""
        now = await self.pause_until(first)
        if why := self._missed(window, still_asked, now):
            return Outcome.of(window, OutcomeKind.MISSED, why), ""
        readings, now = await read_parts(signals, window.parts), self.timer.now()
        fault = self.notes.note(window, readings, now)
        while now < closes:
            begun = self._charge(assignment, opened, readings)
            if begun is not None:
                return begun, fault
            # Another answer, maybe of another process, has found that an aggregator has lost the session of both.
            self.sessions.take_up()
            opened = await self._sessions_of(window, assignment.aggregators, now, now)
            if isinstance(opened, Outcome):
                return opened, fault
            now = self.timer.now()
        return Outcome.of(window, OutcomeKind.MISSED, "round one closed while the signal was read"), fault

    async def _sessions_of(
        self, window: Window, aggregators: tuple[Aggregator, ...], now: float, before: float
    ) -> tuple[SessionRow, ...] | Outcome:
        closes = window.round_one_closes
        opened = await self.sessions.open_all(aggregators, window.round_two_closes, now, before, closes)
        if isinstance(opened, RejectReason):
            return Outcome.of(window, OutcomeKind.REJECTED, opened.label)
        if opened is None:
            return Outcome.of(window, OutcomeKind.GIVEN_UP, "an aggregator was out of reach until round one closed")
        return opened

    def _missed(self, window: Window, still_asked: Callable[[], bool], now: float) -> str:
        """Return why a window passes unanswered, "" if it does not."""
        if now >= window.round_one_closes:
            return _CLOSED
        if not still_asked():
            return "the window is not asked any more"
        try:
            return "" if self.conditions() else "the program's conditions did not hold at the time"
        except Exception as error:  # As of a source: a fault of the program ends no other question.
            return f"the program's conditions raised {type(error).__name__}"

    def _charge(
        self, assignment: WindowAssignment, opened: tuple[SessionRow, ...], readings: Sequence[Reading]
    ) -> Beginning | Outcome | None:
        """Begin the answer; return what is stored of it, why there is none, or None where a session is gone."""
        window = assignment.window
        shown = [
            reading
            if (shown := self.private.shown(part.signal, reading.value)) is reading.value
            else replace(reading, value=shown)
            for part, reading in zip(window.parts, readings, strict=True)
        ]
        truth = truth_of(window, shown, self.source, assignment.choice)
        charge = replace(assignment.charge, asked_at=window.round_one_opens)

        def judge(ledger: Ledger) -> PolicyRefusal | None:
            return ledger.judge_reserved(self.policy, charge.charge_id)

        def form(rows: Sequence[SessionRow]) -> Beginning:
            secrets = [secret_of(row) for row in rows]
            keys = tuple(one.window_key for one in secrets)
            report, parts = self._form(window, keys, truth, assignment.sampled)
            moved = [row_of(one.moved_on(), row.hpke_key) for one, row in zip(secrets, rows, strict=True)]
            return Beginning(report=report, entries=_outbox_entries(window, keys, parts), sessions=moved)

        failpoints.reach("before_charge")
        begun = self.spool.begin(charge, window.window_id, window.canonical, opened, form, judge)
        failpoints.reach("after_charge")
        if isinstance(begun, PolicyRefusal):
            # Another process of this device was faster: its coins are the ones that count.
            if (report := self.spool.report(window.window_id)) is None:
                return Outcome.of(window, OutcomeKind.REFUSED, begun.message, begun.rule)
            return Beginning(report=report, entries=(), sessions=())
        if begun is not None:
            self.sessions.move_on(begun.sessions)
        return begun

    def _form(
        self, window: Window, keys: tuple[WindowKey, ...], truth: Truth, sampled: bool | None
    ) -> tuple[Report, ReportParts]:
        secret = b""
        if window.design.rounds == 1:
            parts = one_round_parts(window, truth, self.source, device=self.sessions.device)
        else:
            coins = draw_two_round(window, truth, keys, self.source, sampled, device=self.sessions.device)
            whole = window.upload_style is UploadStyle.ONE_ENVELOPE
            parts = envelope_parts(window, coins) if whole else round_one_parts(window, coins)
            secret = b"" if whole else coins.encode()
        return Report(window_id=window.window_id, phase=Phase.ROUND_ONE, reason="", secret=secret), parts

    async def _deliver(self, window: Window, report: Report, formed: Sequence[OutboxEntry]) -> Report:
        opens, closes, round_number = window.round_one_opens, window.round_one_closes, 1 if report.secret else 0
        if report.phase is Phase.ROUND_TWO:
            opens, closes, round_number = closes, window.round_two_closes, 2
        entries = formed or self.spool.outbox(window.window_id, round_number)
        moments = self._moments(len(entries), opens, closes, self.timer.now(), one_now=bool(formed))
        answer = await self.delivery.deliver(window, entries, moments, closes)
        if isinstance(answer, RejectReason):
            return self._end(window, report, Phase.REJECTED, answer.label)
        if round_number == 1:
            # Also without the last receipt: the aggregator may have stored the bytes and its answer be lost. A report
            # that is incomplete anywhere is counted nowhere, and whether round two is sent never depends on a coin.
            # The reason stays with the report: receipts of round two alone do not make it a delivered one.
            missed = "" if answer is DeliveryEnd.RECEIPTED else _ROUND_ONE_MISSED
            moved = self.spool.advance(report, Phase.BETWEEN, reason=missed)
            failpoints.reach("after_round_one_receipts")
            return moved
        if answer is DeliveryEnd.WINDOW_CLOSED:
            return self._end(window, report, Phase.GIVEN_UP, "the window closed before every receipt was there")
        if report.reason:
            return self._end(window, report, Phase.GIVEN_UP, report.reason)
        moved = self._end(window, report, Phase.DELIVERED)
        failpoints.reach("after_round_two_receipts")
        return moved

    async def _form_second(self, window: Window, report: Report) -> tuple[Report, Sequence[OutboxEntry]]:
        opens, closes = window.round_one_closes, window.round_two_closes
        now = self.timer.now()
        if await self.pause_until(min(self._moments(len(window.aggregators), opens, closes, now)), now) >= closes:
            return self._end(window, report, Phase.GIVEN_UP, "round two has closed"), ()
        secret = TwoRoundSecret.decode(report.secret)
        entries = _outbox_entries(window, secret.keys, round_two_parts(window, secret))
        moved = self.spool.advance(report, Phase.ROUND_TWO, reason=report.reason, entries=entries)
        failpoints.reach("after_round_two_formed")
        return moved, entries

    def _end(self, window: Window, report: Report, phase: Phase, reason: str = "") -> Report:
        """Write how an answer ended and, where no window of its question is left, that the question has ended."""
        end = self.book.ending(window.question.question_id, window.question.index)
        return self.spool.advance(report, phase, reason=reason, end=end)

    def _moments(self, parts: int, opens: float, closes: float, now: float, *, one_now: bool = False) -> list[float]:
        """Return when each part of a round is sent: apart, uniform in what is left `now` of the first `spread` of it.

        So neither the time of one part nor the time between two tells anything. The rest of the round is for re-sends;
        a device that wakes in it sends at once. With `one_now` one part, any of them, leaves now: a round is formed at
        the earliest of its parts' moments, and given that one the others are uniform in what is left.
        """
        start = max(now, opens)
        last = opens + float(self.settings.spread) * (closes - opens)
        moments = [start + uniform_seconds(self.source, max(0.0, last - start)) for _ in range(parts)]
        if one_now:
            moments[uniform_below(self.source, parts)] = start
        return moments


def _outcome(window: Window, report: Report | None) -> Outcome:
    if report is None:
        return Outcome.of(window, OutcomeKind.MISSED, _CLOSED)
    return Outcome.of(window, _KINDS[report.phase], report.reason)


def _outbox_entries(window: Window, keys: Sequence[WindowKey], parts: ReportParts) -> list[OutboxEntry]:
    entries: list[OutboxEntry] = []
    for position, (key, part) in enumerate(zip(keys, parts.parts, strict=True)):
        instalment = seal_instalment(
            key, window.window_id, parts.report_id, parts.round, position, parts.public_share, part
        )
        entries.append(OutboxEntry(round=parts.round, position=position, instalment=encode_instalment(instalment)))
    return entries


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
    pause_until: Callable[..., Awaitable[float]]
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
        last, now = -1, self.timer.now()
        while (question := self.book.joined(question_id)) is not None:
            index = question.next_window(last, now)
            if index is None and question.last_chance(last) <= now:
                if last < 0 and (ended := self._ended(question)) is not None:
                    report(ended)
                self.book.finish(question_id, last)
                return
            look = min(now + _LOOK_S, question.last_chance(last))
            opens = look if index is None else question.asked.schedule.opens(index)
            if opens >= horizon:
                return
            if index is None or opens > now:
                # Orders and the owner's word may come while it waits: it looks again before it answers.
                now = await self.pause_until(opens, now, again=True)
                continue
            outcome, last = await self._answer(question, index, signals), index
            if outcome is not None:
                report(outcome)
                is_last = outcome.kind is OutcomeKind.DELIVERED and question.last_chance(index) == 0
                if is_last or (outcome.kind is OutcomeKind.FAILED and until_failed):
                    return  # The last answer has written that its question has ended.
                if outcome.kind is OutcomeKind.REFUSED:
                    self.book.note(question_id, PolicyRefusal(rule=outcome.rule, message=outcome.reason))
            now = self.timer.now()

    def _ended(self, question: KnownQuestion) -> Outcome | None:
        """Return how the only window ended where it closed while nobody looked; what is begun is taken up elsewhere."""
        return self.rounds.ended(window_at(question.asked, 0)) if question.asked.schedule.windows == 1 else None

    async def _answer(self, question: KnownQuestion, index: int, signals: Mapping[str, SignalSource]) -> Outcome | None:
        survivors = await self.walks.survivors(question.asked, index)
        if not isinstance(survivors, tuple):
            _LOG.info("window %d of question %s is not asked: %s", index, question.asked.name, survivors.value)
            return None
        question_id, name = question.asked.question_id, question.asked.name
        window = window_at(question.asked, index, survivors)
        if window.window_id in self.under_way:
            return None
        self.under_way[window.window_id] = window
        try:
            unread = judge_sources(signals, window.parts)
            assignment = unread or await self._assign(question, window, survivors, signals)
            if isinstance(assignment, PolicyRefusal):
                _LOG.info("window %d of question %s is not answered: %s", index, name, assignment.message)
                # What is not reserved was left out when the question was joined: nobody asks for it.
                refused = Outcome.of(window, OutcomeKind.REFUSED, assignment.message, assignment.rule)
                return None if assignment.rule == "reserved" else refused

            def still_asked() -> bool:
                now = self.book.joined(question_id)
                return now is not None and not now.skips(index)

            return await self.rounds.answer(assignment, signals, still_asked)
        except QuestionError as error:
            _LOG.warning("window %d of question %s is not answered: %s", index, name, error)
            return Outcome.of(window, OutcomeKind.GIVEN_UP, str(error))
        except (MachineError, DecodeError) as error:  # The state file is damaged, or cannot be used.
            return Outcome.of(window, OutcomeKind.FAILED, str(error))
        finally:
            self.under_way.pop(window.window_id)

    async def _assign(
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
                return self.book.assign(question, place, survivors)
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

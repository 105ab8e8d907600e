"""The questions a device takes part in: checks offers and orders, joins and leaves, says which window comes next.

Whether a device takes part follows from the clock, the budget, the owner's word and the signed question only, never
from a truth or a place. Sends nothing and reads no signal.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from math import ceil
from typing import Final

from fleetcount_mechanisms.randomness import RandomSource
from fleetcount_protocol.clock import Clock
from fleetcount_protocol.errors import DecodeError, MachineError, PeerError, QuestionError, UsageError
from fleetcount_protocol.ids import QuestionId
from fleetcount_protocol.messages import QuestionOffer
from fleetcount_protocol.question.fields import Coin
from fleetcount_protocol.question.key_list import check_distinct_keys, key_for, replaces
from fleetcount_protocol.question.orders import OrderAction, SignedOrder, skipped_windows, started_question
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.window.domain import Prefixes
from fleetcount_protocol.window.fields import Aggregator, HpkeKey
from fleetcount_protocol.window.window import Window
from fleetcount_protocol.wire.question import QUESTION_OFFER

from fleetcount_client.answering import choice_of, coin_of, slot_of
from fleetcount_client.charges import Charge, WindowAssignment, judge_age, ready_at, unit_id, unknown_before
from fleetcount_client.contact import Outcome, OutcomeKind, TrustStore
from fleetcount_client.ledger import Ledger, charges_of_question, open_units, windows_of_others
from fleetcount_client.policy import JoinRule, OwnerPolicy, PolicyRefusal, judge_question, judge_sources
from fleetcount_client.question_rows import QuestionRow, QuestionRows, QuestionState
from fleetcount_client.signals import SignalSource
from fleetcount_client.spool import Spool

_LOG: Final = logging.getLogger(__name__)
_NONE_LEFT: Final = "no window is left of it, by this device's clock"
_ANY_TIME: Final = frozenset({QuestionState.OFFERED, QuestionState.REFUSED})


@dataclass(frozen=True, kw_only=True)
class KnownQuestion:
    """A question with the key lists and orders that are known and verified of it."""

    offer: QuestionOffer
    slot: int | None = None
    """In which of the question's `one_in` windows the device is asked; None where it is asked in all."""

    @cached_property
    def asked(self) -> Question:
        """The question with its start."""
        return started_question(self.offer.signed.question, (one.order for one in self.offer.orders))

    @cached_property
    def skipped(self) -> tuple[range, ...]:
        """The windows that are not asked, by every order so far."""
        return skipped_windows(self.asked, (one.order for one in self.offer.orders))

    @cached_property
    def stopped(self) -> tuple[range, ...]:
        """The windows that never will be: a pause may end, so its windows stay reserved."""
        stops = (one.order for one in self.offer.orders if one.order.action is OrderAction.STOP)
        return skipped_windows(self.asked, stops)

    @cached_property
    def of_others(self) -> tuple[range, ...]:
        """The windows in which other devices are asked and this one is not."""
        return () if self.slot is None else windows_of_others(self.asked, self.slot)

    def next_window(self, after: int, now: float) -> int | None:
        """Return the first window behind `after` in which the device is asked, that is not over and no order skips."""
        schedule = self.asked.schedule
        soonest = (int(now) - schedule.round_one_s - schedule.opens(0)) // schedule.every_s
        for index in range(max(after + 1, soonest), schedule.windows):
            if schedule.opens(index) + schedule.round_one_s > now and not self.skips(index):
                return index
        return None

    def is_over(self, now: float, after: int = -1) -> bool:
        """Return whether no window behind `after` is left, also none that an order may bring back."""
        return self.next_window(after, now) is None and self.last_chance(after) <= now

    def last_chance(self, after: int) -> int:
        """Return when round one of the last window behind `after` closes that no stop has ended; 0 if there is none.

        Until then windows may be left that a pause skips: an order may bring them back.
        """
        last = (self.stopped[0].start if self.stopped else self.asked.schedule.windows) - 1
        return self.asked.schedule.opens(last) + self.asked.schedule.round_one_s if last > after else 0

    def skips(self, index: int) -> bool:
        """Return whether an order skips a window, or the device is not asked in it."""
        return any(index in one for one in (*self.skipped, *self.of_others))

    def keyed_aggregators(self, window: Window) -> tuple[Aggregator, ...]:
        """Return the aggregators with the sealing key of each that is valid over a window.

        Raises:
            QuestionError: an aggregator has listed no such key, or two list the same one.
        """
        lists = {one.key_list.aggregator_id: one.key_list for one in self.offer.key_lists}
        missing = next((one.aggregator_id for one in window.aggregators if one.aggregator_id not in lists), None)
        if missing is not None:
            raise QuestionError(f"no key list of {missing} is known")
        check_distinct_keys(lists.values())
        opens, closes = window.round_one_opens, window.round_two_closes
        return tuple(_keyed(one, key_for(lists[one.aggregator_id], opens, closes)) for one in window.aggregators)


@lru_cache(maxsize=16)
def _keyed(aggregator: Aggregator, key: HpkeKey) -> Aggregator:
    return replace(aggregator, hpke_keys=(key,))


class Subscriptions:
    """The questions of one device, kept in its spool."""

    def __init__(
        self,
        *,
        policy: OwnerPolicy,
        trust: TrustStore,
        spool: Spool,
        clock: Clock,
        source: RandomSource,
        first_valid: int,
        rule: JoinRule = JoinRule.ASK,
    ) -> None:
        self._policy = policy
        self._trust = trust
        self._spool = spool
        self._rows = QuestionRows(spool)
        self._clock = clock
        self._source = source
        self._first_valid = first_valid
        self._rule = rule
        self._read: dict[QuestionId, tuple[bytes, KnownQuestion]] = {}

    # What aggregators say.

    def take(
        self,
        offers: Iterable[QuestionOffer],
        signals: Mapping[str, SignalSource] | None = None,
        *,
        by_owner: bool = False,
    ) -> dict[QuestionId, Outcome]:
        """Check what is on offer and keep it; join what the policy allows by the rule or by the owner; obey orders.

        Of an offer only what verifies is kept: a bad key list or order hides neither the question nor the others.
        Returns the questions that are refused, cannot be stored, or are first seen when none of their windows is left;
        of one that not all trusted aggregators have signed nothing is kept. `signals` as for `join`.
        """
        now = self._clock.now()
        rows, refused, seen = self._recent(now), dict[QuestionId, Outcome](), set[QuestionId]()
        for offer in offers:
            question = offer.signed.question
            refused.pop(question.question_id, None)  # Each aggregator offers it: the last word counts.
            # What was offered before in this list is read anew.
            row, is_seen = rows.pop(question.question_id, None), question.question_id in seen
            seen.add(question.question_id)
            try:
                row = self._rows.get(question.question_id) if is_seen else row
                self._trust.check_question(offer.signed)
                known = None if row is None else self._readable(row)
                merged = self._with_slot(_merged(offer, known, self._trust, now))
                question = merged.asked
                if known is None and merged.next_window(-1, now) is None:
                    refused[question.question_id] = Outcome.of(_first_window(question), OutcomeKind.MISSED, _NONE_LEFT)
                    continue
                refusal = self._take(merged, row, known, signals, now, by_owner=by_owner)
            except (QuestionError, PeerError) as error:
                _LOG.info("question %s on offer is not taken: %s", question.question_id, error)
                refusal = PolicyRefusal(rule="aggregators", message=str(error)) if row is None else None
            except MachineError as error:
                _LOG.warning("question %s on offer is not taken: %s", question.question_id, error)
                refused[question.question_id] = Outcome.of(_first_window(question), OutcomeKind.FAILED, str(error))
                continue
            if refusal is not None:
                refused[question.question_id] = _refused(question, refusal)
        return refused

    def _recent(self, now: float) -> dict[QuestionId, QuestionRow]:
        """Return what is known; erase questions that are over for longer than a period, but no charge."""
        rows = {row.question_id: row for row in self._rows.all()}
        for row in list(rows.values()):
            known = self._readable(row)
            if known is None:
                continue
            over = known.asked.schedule.end + self._policy.budget_period_s
            if row.state is not QuestionState.JOINED and over < now:
                self._rows.erase(row.question_id)
                self._read.pop(row.question_id, None)
                del rows[row.question_id]
        return rows

    def _known_before(self, question_id: QuestionId) -> KnownQuestion | None:
        row = self._rows.get(question_id)
        return None if row is None else self._readable(row)

    def first_window(self, offer: QuestionOffer) -> Window:
        """Return the first window of a question as it is known, else as an offer says: what an outcome is named by."""
        try:
            known = self._known_before(offer.signed.question.question_id) or KnownQuestion(offer=offer)
            return _first_window(known.asked)
        except (MachineError, QuestionError):
            # The file cannot be used, or the offer's start is not one of the question: what it says is not taken.
            return _first_window(offer.signed.question)

    def _take(
        self,
        merged: KnownQuestion,
        held: QuestionRow | None,
        known: KnownQuestion | None,
        signals: Mapping[str, SignalSource] | None,
        now: float,
        *,
        by_owner: bool,
    ) -> PolicyRefusal | None:
        question_id = merged.asked.question_id
        encoded = QUESTION_OFFER.encode(merged.offer)
        row = held or QuestionRow(
            question_id=question_id,
            name=merged.asked.name,
            offer=encoded,
            state=QuestionState.OFFERED,
            changed_at=now,
            reason="",
        )
        if encoded != row.offer:
            row = replace(row, offer=encoded)
        self._read[question_id] = encoded, merged
        auto = self._rule is JoinRule.AUTO or merged.asked.schedule.windows == 1
        by_owner &= row.state is not QuestionState.JOINED
        if by_owner or (row.state in _ANY_TIME and auto) or (row.state is QuestionState.ENDED and row.changed_at > now):
            # What is asked once is answered as the policy says; the owner is asked about what goes on. What ended later
            # than now ended by a clock that was set back since.
            if not merged.is_over(now):
                return self._join(row, held, merged, signals, now)
        elif row.state is QuestionState.JOINED and (known is None or known.stopped != merged.stopped):
            # A stop frees what it has made pointless; nothing is freed by a pause, whose windows may come back.
            units = open_units(merged.asked, now, (*merged.stopped, *merged.of_others))
            self._rows.leave(row, frozenset(unit_id(question_id, unit) for unit in units))
            return None
        if row != held:
            self._rows.put(row)
        was_refused = by_owner and row.state is QuestionState.REFUSED
        return PolicyRefusal(rule=row.rule, message=row.reason) if was_refused else None

    # What the owner says.

    def join(self, question_id: QuestionId, signals: Mapping[str, SignalSource] | None = None) -> PolicyRefusal | None:
        """Reserve every window that is left and take part from now on; or return why not, with nothing reserved.

        `signals` are the sources of the program that answers; None where they are not known, as to the owner's command.

        Raises:
            UsageError: no such question is known.
        """
        row = self._row(question_id)
        return self._join(row, row, self.known(row), signals, self._clock.now())

    def _join(
        self,
        row: QuestionRow,
        held: QuestionRow | None,
        known: KnownQuestion,
        signals: Mapping[str, SignalSource] | None,
        now: float,
    ) -> PolicyRefusal | None:
        if row.state is QuestionState.JOINED:
            return None
        return self._rows.join(row, partial(self._new, known, signals, now), now, held)

    def would_refuse(
        self, offer: QuestionOffer, signals: Mapping[str, SignalSource] | None = None
    ) -> PolicyRefusal | None:
        """Return why `join` would refuse a question on offer now, None if it would not; stores and reserves nothing.

        All it may store is that a new ledger begins now.
        """
        try:
            self._trust.check_question(offer.signed)
            known = self._known_before(offer.signed.question.question_id)
            merged = self._with_slot(_merged(offer, known, self._trust, self._clock.now()))
        except (QuestionError, PeerError) as error:
            return PolicyRefusal(rule="aggregators", message=str(error))
        row = self._rows.get(offer.signed.question.question_id)
        if row is not None and row.state is QuestionState.JOINED:
            return None
        new = self._new(merged, signals, self._clock.now(), self._spool.ledger())
        return new if isinstance(new, PolicyRefusal) else None

    def _new(
        self, known: KnownQuestion, signals: Mapping[str, SignalSource] | None, now: float, ledger: Ledger
    ) -> list[Charge] | PolicyRefusal:
        """Return what taking part from now on would add to the ledger, or why it may not.

        Units that something was sent for before keep their charge and are not judged again.
        """
        question = known.asked
        refusal = judge_question(self._policy, question, window_at(question, 0))
        if refusal is None and signals is not None:
            refusal = judge_sources(signals, question.parts)
        if refusal is not None:
            return refusal
        age = self._spool.age(now, self._first_valid)
        ready = ready_at(self._policy, age)
        # A window that is open as the ledger becomes ready may be answered from then on, and is not waited for.
        begin = now if ready <= now else ceil(ready) + question.schedule.round_one_s - 1
        unknown = unknown_before(self._policy, age)
        charges = charges_of_question(
            question, self._policy, begin, unknown, (*known.stopped, *known.of_others), ledger
        )
        over = PolicyRefusal(rule="question", message="none of its windows is left to answer")
        if not charges:
            return judge_age(self._policy, age, now) or over
        new = ledger.new(charges)
        return ledger.judge(self._policy, new) or new

    def leave(self, question_id: QuestionId) -> int:
        """Take part no more and free every unit nothing was ever sent for; return how many these were.

        Raises:
            UsageError: no such question is known.
        """
        row = self._row(question_id)
        return self._rows.leave(
            replace(row, state=QuestionState.LEFT, changed_at=self._clock.now(), reason="the owner's word")
        )

    def _row(self, question_id: QuestionId) -> QuestionRow:
        row = self._rows.get(question_id)
        if row is None:
            raise UsageError(f"question {question_id.hex()[:12]} is not known; `device question list` shows what is")
        return row

    # What is to be done.

    def rows(self) -> tuple[QuestionRow, ...]:
        """Return every question that is known, the latest change first."""
        return self._rows.all()

    def joined(self, question_id: QuestionId) -> KnownQuestion | None:
        """Return a question if the device takes part in it now, with every order so far."""
        row = self._rows.get(question_id)
        return self.known(row) if row is not None and row.state is QuestionState.JOINED else None

    def all_joined(self) -> tuple[QuestionId, ...]:
        """Return the questions it takes part in."""
        return tuple(row.question_id for row in self._rows.all() if row.state is QuestionState.JOINED)

    def known(self, row: QuestionRow) -> KnownQuestion:
        """Return what a row holds; what stands in the device's own file was verified before it was written.

        Raises:
            MachineError: it is damaged; the next offer of the question takes its place.
        """
        kept = self._read.get(row.question_id)
        if kept is None or kept[0] != row.offer:
            try:
                kept = row.offer, self._with_slot(QUESTION_OFFER.decode(row.offer))
            except DecodeError as error:
                raise MachineError(f"question {row.name} cannot be read from the state file: {error}") from None
            # The windows share what one question object holds: another offer of it does not make it new.
            self._read[row.question_id] = kept
        return kept[1]

    def _with_slot(self, offer: QuestionOffer) -> KnownQuestion:
        """Return what an offer tells this device: of a question of one window in several also which one is its own."""
        asked = offer.signed.question
        if asked.one_in == 1:
            return KnownQuestion(offer=offer)
        # The secret lives with the ledger, which begins now: without it every call would draw another one.
        self._spool.age(self._clock.now(), self._first_valid)
        slot = slot_of(self._rows.coin_secret(self._source), asked.question_id, asked.one_in)
        return KnownQuestion(offer=offer, slot=slot)

    def _readable(self, row: QuestionRow) -> KnownQuestion | None:
        """Return what a row holds, None if it is damaged: that must not keep the others from being taken."""
        try:
            return self.known(row)
        except MachineError as error:
            _LOG.warning("%s", error)
            return None

    def assign(
        self, question: KnownQuestion, index: int, survivors: tuple[int, ...] = ()
    ) -> WindowAssignment | PolicyRefusal:
        """Return the device's part in a window of a joined question, or why it has none.

        A later step of a drill-down asks about the children of `survivors`.

        Raises:
            QuestionError: an aggregator has listed no sealing key that is valid over the window.
        """
        one = question.asked
        window, unit = window_at(one, index, survivors), unit_id(one.question_id, one.schedule.unit_of(one.coin, index))
        refusal = judge_question(self._policy, one, window)
        if refusal is not None:
            return refusal
        ledger = self._spool.ledger()
        # A clock that was set back would find windows of the unit that were over when it was charged.
        charge = ledger.get(unit)
        if charge is None or window.round_one_opens < charge.asked_at or window.round_one_closes > charge.asked_until:
            return PolicyRefusal(rule="reserved", message="nothing is reserved for this window")
        sampled = None
        if window.design.rounds == 2 and one.coin is not Coin.WINDOW:  # A coin of one window is tossed with its answer.
            sampled = coin_of(self._rows.coin_secret(self._source), unit, window.design.exposure)
        choice = None
        if isinstance(window.domain, Prefixes) and window.domain.codes is not None:
            walk = index if one.drill_down is None else one.drill_down.walk_of(index)
            choice = choice_of(self._rows.coin_secret(self._source), one.question_id, walk)
        aggregators = question.keyed_aggregators(window)
        return WindowAssignment(window=window, charge=charge, sampled=sampled, choice=choice, aggregators=aggregators)

    def note(self, question_id: QuestionId, refusal: PolicyRefusal) -> None:
        """Keep why a window of a joined question was refused, for its owner to read."""
        row = self._rows.get(question_id)
        if row is not None and row.state is QuestionState.JOINED and row.rule != refusal.rule:
            noted = replace(row, changed_at=self._clock.now(), reason=refusal.message, rule=refusal.rule)
            self._rows.put(noted)

    def finish(self, question_id: QuestionId, after: int) -> None:
        """Write a joined question as ended once no window behind `after` is left, and free what was not sent."""
        if (end := self.ending(question_id, after)) is not None:
            with self._spool.change() as ledger:
                end(ledger)

    def ending(self, question_id: QuestionId, after: int) -> Callable[[Ledger], object] | None:
        """Return what `finish` does inside a change of the ledger; None for nothing."""
        now, read = self._clock.now(), self._read.get(question_id)
        # An order that came since takes no end back.
        known = self._known_before(question_id) if read is None else read[1]
        return None if known is None or not known.is_over(now, after) else partial(self._rows.end, question_id, now)


def _refused(question: Question, refusal: PolicyRefusal) -> Outcome:
    return Outcome.of(_first_window(question), OutcomeKind.REFUSED, refusal.message, refusal.rule)


def _first_window(question: Question) -> Window:
    return window_at(question.at_latest(), 0)


def _merged(offer: QuestionOffer, known: KnownQuestion | None, trust: TrustStore, now: float) -> QuestionOffer:
    """Return what of an offer verifies together with what is known: the later key lists (`replaces`), and all
    orders.

    Raises:
        QuestionError: the question is counted from submission, and no start is known of it.
    """
    question = offer.signed.question
    earlier = () if known is None else known.offer.key_lists
    lists = {one.key_list.aggregator_id: one for one in earlier}
    for listed in offer.key_lists:
        held = lists.get(listed.key_list.aggregator_id)
        later = replaces(listed.key_list, None if held is None else held.key_list, now)
        if later and _verifies(partial(trust.check_key_list, listed, question)):
            lists[listed.key_list.aggregator_id] = listed
    orders = {} if known is None else {_place(one): one for one in known.offer.orders}
    question = started_question(question, (one.order for one in orders.values()))
    for order in sorted(offer.orders, key=lambda one: one.order.action is not OrderAction.START):
        # The first order under a number stands: an aggregator that gives two cannot change what a device did.
        if _place(order) not in orders and _verifies(partial(trust.check_order, order, question)):
            orders[_place(order)] = order
            question = started_question(question, [order.order])
    if question.schedule.first is None:
        raise QuestionError("the question is counted from submission, and no start of its leader is known")
    names = [one.aggregator_id for one in question.aggregators]
    return QuestionOffer(
        signed=offer.signed,
        key_lists=tuple(lists[name] for name in names if name in lists),
        orders=tuple(orders[place] for place in sorted(orders)),
    )


def _verifies(check: Callable[[], None]) -> bool:
    try:
        check()
    except (QuestionError, PeerError) as error:
        _LOG.info("a part of a question's offer is not taken: %s", error)
        return False
    return True


def _place(signed: SignedOrder) -> tuple[str, int]:
    return signed.order.aggregator_id, signed.order.number

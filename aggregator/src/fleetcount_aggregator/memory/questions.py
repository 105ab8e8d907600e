"""The questions of this aggregator in memory, with their notes; and the decisions about their windows in the store.

A question may have 65,536 windows: the decision about one is read from the store when a caller needs it. Its windows
name no sealing keys: devices take them from the signed lists of its aggregators. This module must neither judge a
question (`windows.question_install`) nor decide about a window (`windows.windows`), and not see a private sealing key.
"""

import asyncio
import contextlib
import math
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from fleetcount_protocol.errors import DecodeError, FleetcountError, QuestionError
from fleetcount_protocol.ids import AggregatorId, QuestionId
from fleetcount_protocol.limits import MAX_LISTED_KEYS
from fleetcount_protocol.question.key_list import (
    KeyList,
    ListedKey,
    SignedKeyList,
    check_distinct_keys,
    decode_signed_key_list,
    encode_signed_key_list,
    key_for,
    replaces,
    sign_key_list,
    verify_key_list,
)
from fleetcount_protocol.question.orders import SignedOrder, decode_signed_order, encode_signed_order, started_question
from fleetcount_protocol.question.question import (
    Question,
    SignedQuestion,
    decode_signed_question,
    encode_signed_question,
)
from fleetcount_protocol.window.fields import HpkeKey
from fleetcount_transport.logs import log

from fleetcount_aggregator.host.host import Host
from fleetcount_aggregator.host.moment import DueQueue
from fleetcount_aggregator.memory.installed import InstalledQuestion
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.storage.errors import Damage, DamagedError, StoreError
from fleetcount_aggregator.storage.question_rows import (
    archive_question,
    install_question,
    note_question,
    read_decided,
    read_notes,
    read_one_question,
    read_questions,
)
from fleetcount_aggregator.storage.row_repair import is_restored
from fleetcount_aggregator.storage.row_types import DecidedWindow, QuestionRow
from fleetcount_aggregator.storage.store import Store

QUESTION: Final = "question"
"""The name of the question itself in notes of what another aggregator has; an order has its `order_name`."""
_ORDER, _KEYS, _GIVEN, _REFUSED, _COUNTED = "order/", "keys/", "given/", "refused", "counted"
"""The names of notes. Existing stores hold them: never change one."""
_AT_ONCE: Final = 256
"""The number of decisions read by one query."""


class KeyLists:
    """The newest list of sealing keys of each aggregator, this one's too."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._newest: dict[AggregatorId, SignedKeyList] = {}
        self.edition = 0
        """Another number after a list has changed."""

    def own(self) -> SignedKeyList:
        """Return this aggregator's list, signed anew when its keys or their validity have changed.

        It bears the latest time that has certainly come: others would take no list from the future.

        Raises:
            QuestionError: it has no key that is still valid.
        """
        host, now = self._host, int(self._host.moment().sure)
        keys = tuple(
            ListedKey(key=HpkeKey(key_id=key_id, public_key=public_key), not_before=before, not_after=after)
            for key_id, public_key, (before, after) in host.keys.listed()
            if now < after
        )
        if not keys:
            raise QuestionError(f"no sealing key in [keys] hpke_key_directory is valid after {now}")
        known = self._newest.get(host.aggregator_id)
        if known is None or known.key_list.keys != keys[:MAX_LISTED_KEYS]:
            key_list = KeyList(aggregator_id=host.aggregator_id, issued_at=now, keys=keys[:MAX_LISTED_KEYS])
            known = sign_key_list(key_list, host.identity.signing_key)
            self._set(known)
        return known

    def seals_window(self, opens: int, closes: int) -> bool:
        """Return whether devices could seal to this aggregator for a window, given in Unix seconds."""
        try:
            key_for(self.own().key_list, opens, closes)
        except QuestionError:
            return False
        return True

    def keep(self, question: Question, signed: SignedKeyList) -> bool:
        """Keep another aggregator's list if it replaces the one known (`replaces`); return whether it is kept."""
        known = self._newest.get(signed.key_list.aggregator_id)
        if not replaces(signed.key_list, None if known is None else known.key_list, self._host.moment().now):
            return False
        described = {one.aggregator_id: one for one in question.aggregators}.get(signed.key_list.aggregator_id)
        try:
            if described is None:
                raise QuestionError("the question does not list the aggregator")
            verify_key_list(signed, described, self._host.identity.trusted.get(described.aggregator_id))
            others = (one for one in self.of(question) if one.key_list.aggregator_id != described.aggregator_id)
            check_distinct_keys([signed.key_list, *(one.key_list for one in others)])
        except FleetcountError as error:
            log.warning("key_list_refused", aggregator=signed.key_list.aggregator_id, reason=str(error))
            return False
        self._set(signed)
        return True

    def _set(self, signed: SignedKeyList) -> None:
        self._newest[signed.key_list.aggregator_id] = signed
        self.edition += 1

    def of(self, question: Question) -> tuple[SignedKeyList, ...]:
        """Return the lists of a question's aggregators, in its order, as far as they are known."""
        self.own()
        ids = [one.aggregator_id for one in question.aggregators]
        return tuple(self._newest[name] for name in ids if name in self._newest)


class _InOrder:
    """The ids of all questions and of those that are not over, in order, sorted again only when one of them ends or
    the caller says that there are others.
    """

    def __init__(self) -> None:
        self._every: list[QuestionId] = []
        self._not_over: list[QuestionId] = []
        self._since, self._until = math.inf, -math.inf
        self.edition = 0
        """Another number after they were sorted again."""

    def forget(self) -> None:
        """Sort again next time: a question was added or removed."""
        self._since, self._until = math.inf, -math.inf

    def above(
        self, known: Mapping[QuestionId, InstalledQuestion], after: QuestionId | None, now: int, *, over: bool
    ) -> Iterator[InstalledQuestion]:
        """Yield the questions above an id, also those that are over at `now` if asked for; see `Questions.above`."""
        self.follow(known, now)
        ids = self._every if over else self._not_over
        for place in range(0 if after is None else bisect_right(ids, after), len(ids)):
            yield known[ids[place]]

    def follow(self, known: Mapping[QuestionId, InstalledQuestion], now: int) -> None:
        """Sort them again if there are others, or other ones are over at `now`."""
        if not self._since <= now < self._until:  # A clock that was set back also ends it.
            ends = {question_id: one.asked.schedule.end for question_id, one in known.items()}
            self._every = sorted(ends)
            self._not_over = [one for one in self._every if now < ends[one]]
            self._since = max((end for end in ends.values() if end <= now), default=-math.inf)
            self._until = min((end for end in ends.values() if now < end), default=math.inf)
            self.edition += 1


class Questions(Mapping[QuestionId, InstalledQuestion]):
    """The questions by id that are not over, or whose charge still counts in a period's budget.

    A question whose write was not confirmed may be in the store, and then counts in the budget: a caller holds `lock`
    and calls `reconcile` before it judges another question.
    """

    def __init__(self, host: Host, store: Store) -> None:
        self.host = host
        self.store = store
        self.key_lists = KeyLists(host)
        self.lock = asyncio.Lock()
        """Questions are installed one at a time."""
        self.openings: DueQueue[QuestionId] = DueQueue()
        """The times (Unix seconds) at which the next window of each question is to be decided."""
        self.handovers: DueQueue[QuestionId] = DueQueue()
        """The times (Unix seconds) at which the other aggregators get what they lack of a question."""
        self.adopting = False
        """Whether the store was restored from a backup and is catching up: no new question is accepted."""
        self._known: dict[QuestionId, InstalledQuestion] = {}
        self._in_order = _InOrder()
        self._noted = 0
        self._unconfirmed: set[QuestionId] = set()

    def __getitem__(self, question_id: QuestionId) -> InstalledQuestion:
        return self._known[question_id]

    def __iter__(self) -> Iterator[QuestionId]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def above(self, after: QuestionId | None, *, over: bool = False) -> Iterator[InstalledQuestion]:
        """Yield the questions with windows to come whose ids are above one, None for all, in the order of their ids.

        With `over` also those whose last window has closed. Looks at no other question: every device asks, list by
        list. The caller takes them all before it gives way to another task.
        """
        return self._in_order.above(self._known, after, self.host.now(), over=over)

    def edition(self) -> tuple[int, ...]:
        """Return another value than before if devices may be told anything else now, be it only by the clock."""
        with contextlib.suppress(QuestionError):  # Without a valid key none is listed: who needs the list is told.
            self.key_lists.own()
        self._in_order.follow(self._known, self.host.now())
        return self._in_order.edition, self.key_lists.edition, self._noted

    # Into memory and out of it.

    async def add(
        self, signed: SignedQuestion, seed: bytes, start: SignedOrder | None, counted_at: int | None = None
    ) -> QuestionRow:
        """Store a question with its start in one transaction; return its row for `load_row`. The caller holds `lock`.

        `counted_at` is the Renyi order of its charge (`windows.budget.order_for`), None for the usual one.

        Raises:
            StoreError: the store failed; `reconcile` finds out whether the question is stored.
        """
        question_id = signed.question.question_id
        notes = {} if start is None else {order_name(start): encode_signed_order(start)}
        if counted_at is not None:
            notes[_COUNTED] = str(counted_at).encode()
        row = QuestionRow(
            question_id=question_id,
            signed=encode_signed_question(signed),
            seed=self.store.data_keys.at_rest.seal(seed, b"verify seed", question_id),
            installed_at=self.host.now(),
        )
        self._unconfirmed.add(question_id)
        stored = await self.store.write(install_question, row, notes)
        self._unconfirmed.discard(question_id)
        return stored

    async def reconcile(self) -> None:
        """Load the questions whose write was not confirmed, if the store has them.

        Raises:
            FleetcountError: the store failed, or a question cannot be read.
        """
        for question_id in list(self._unconfirmed):
            await self.follow(question_id)
            if question_id in self._known:  # Otherwise the write may still arrive.
                self._unconfirmed.discard(question_id)

    async def load(self, windows: Windows) -> None:
        """Load every question that is not over, or whose charge still counts in a period's budget.

        An elected process also drops the others, which another coordinator may have archived and deleted. A damaged
        question is logged and left out, and its unknown charge noted in `windows`.

        Raises:
            FleetcountError: a stored question cannot be read (another at-rest key).
        """
        self.adopting = await self.store.read(is_restored)
        counts_from = self.host.now() - self.host.limits.budget_period_s
        rows = await self.store.read(read_questions, ended_after=counts_from)
        for gone in self._known.keys() - {row.question_id for row in rows}:
            if self._known[gone].asked.schedule.end <= counts_from:
                del self._known[gone]
                self._in_order.forget()
        for row in rows:
            try:
                await self.load_row(row)
            except (StoreError, DecodeError, QuestionError) as error:
                log.error("question_not_served", question=str(row.question_id), reason=str(error))
                windows.quarantine(
                    Damage(
                        table="questions",
                        what=f"question {row.question_id.hex()} or a row of it is damaged",
                        hides_charge=True,
                    )
                )

    async def follow(self, question_id: QuestionId) -> None:
        """Read one question, its notes and decisions, after another process of this aggregator changed them.

        Raises:
            FleetcountError: the store failed, or the question cannot be read.
        """
        known = self._known.get(question_id)
        if known is None:
            row = await self.store.read(read_one_question, question_id)
            if row is not None:
                await self.load_row(row)
            return
        self._load_notes(known, await self.store.read(read_notes, question_id))
        decided = await count_decided(self.store, question_id, known.following)
        known.following = max(known.following, decided)

    async def load_row(self, row: QuestionRow) -> InstalledQuestion:
        """Load a stored question with its notes; its next window and its hand-over are due at once.

        Raises:
            DamagedError: the signed question or its start is missing or changed.
            DecodeError, QuestionError, StoreError: the row cannot be read.
        """
        notes = await self.store.read(read_notes, row.question_id)
        signed = stored_question(row.signed, notes)
        if signed.question.question_id != row.question_id:
            raise DamagedError(
                Damage(
                    table="questions", what=f"what was signed of question {row.question_id.hex()} is another question"
                )
            )
        if signed.question.schedule.first is None:
            raise DamagedError(
                Damage(table="question_notes", what=f"the start of question {row.question_id.hex()} is gone")
            )
        question = InstalledQuestion(
            signed=signed,
            seed=self.store.data_keys.at_rest.open(row.seed, b"verify seed", row.question_id),
            position=position_in(signed, self.host.aggregator_id),
        )
        self._load_notes(question, notes)
        question.following = await count_decided(self.store, row.question_id)
        self._known[row.question_id] = question
        self._in_order.forget()
        self.openings.put(0, row.question_id)
        self.handovers.put(0, row.question_id)
        return question

    def _load_notes(self, question: InstalledQuestion, notes: Mapping[str, bytes]) -> None:
        question.orders = orders_of(notes)
        question.given = {name for name in notes if name.startswith(_GIVEN)}
        question.refused_by, question.order = refused_by(notes), counted_at(notes)
        self._changed(question)
        for name, note in notes.items():
            if name.startswith(_KEYS):
                self.key_lists.keep(question.asked, decode_signed_key_list(note))

    async def archive(self, question: InstalledQuestion) -> None:
        """Archive a question that is over, without the key lists of other aggregators, and remove it from memory.

        Raises:
            StoreError: the store failed; the question stays.
        """
        await self.store.write(archive_question, question.question_id, question.asked.schedule.end, _KEYS)
        del self._known[question.question_id]
        self._in_order.forget()

    # Notes: durable first, then in memory.

    def _changed(self, question: InstalledQuestion) -> None:
        """Note that what devices are told of a question, or whether they are, may have changed."""
        question.offer_digest = None
        self._noted += 1

    async def note_order(self, question: InstalledQuestion, signed: SignedOrder) -> None:
        """Store an order and schedule its delivery to the other aggregators."""
        await self.store.write(note_question, question.question_id, order_name(signed), encode_signed_order(signed))
        question.orders = _in_order([*question.orders, signed])
        self._changed(question)
        self.host.failpoints.hit("question.after_order_store")
        self.handovers.put(0, question.question_id)

    async def note_given(self, question: InstalledQuestion, other: AggregatorId, what: str) -> None:
        """Note that another aggregator has the question (`QUESTION`) or an order (`order_name`)."""
        name = f"{_GIVEN}{other}/{what}"
        await self.store.write(note_question, question.question_id, name, b"")
        question.given.add(name)
        self._changed(question)

    def forget_given(self, question: InstalledQuestion, other: AggregatorId) -> None:
        """Note that an aggregator has lost the question and everything of it, so that all is delivered again."""
        question.given = {name for name in question.given if not name.startswith(f"{_GIVEN}{other}/")}
        self._changed(question)

    async def note_key_list(self, question: InstalledQuestion, signed: SignedKeyList) -> None:
        """Store another aggregator's list of sealing keys if it is newer than the known one."""
        if self.key_lists.keep(question.asked, signed):
            name = _KEYS + signed.key_list.aggregator_id
            await self.store.write(note_question, question.question_id, name, encode_signed_key_list(signed))

    async def note_refusal(self, question: InstalledQuestion, other: AggregatorId) -> None:
        """Note that another aggregator refused the question."""
        await self.store.write(note_question, question.question_id, _REFUSED, other.encode())
        question.refused_by = other
        self._changed(question)


def position_in(signed: SignedQuestion, aggregator_id: AggregatorId) -> int:
    """Return an aggregator's share number in a question.

    Raises:
        QuestionError: the question does not list it.
    """
    ids = [one.aggregator_id for one in signed.question.aggregators]
    if aggregator_id not in ids:
        raise QuestionError(f"question {signed.question.name!r} does not list aggregator {aggregator_id!r}")
    return ids.index(aggregator_id)


# Reading of notes.


def order_name(signed: SignedOrder) -> str:
    """Return the name of an order among the notes of its question."""
    return f"{_ORDER}{signed.order.aggregator_id}/{signed.order.number}"


def stored_question(data: bytes, notes: Mapping[str, bytes]) -> SignedQuestion:
    """Return a stored question with the start from its notes.

    Raises:
        DecodeError: the signed question or an order cannot be read.
        QuestionError: the start among its notes is not one of this question.
    """
    signed = decode_signed_question(data)
    return replace(signed, question=started_question(signed.question, [one.order for one in orders_of(notes)]))


def was_given(question: InstalledQuestion, other: AggregatorId, what: str) -> bool:
    """Return whether another aggregator has the question (`QUESTION`) or an order (`order_name`)."""
    return f"{_GIVEN}{other}/{what}" in question.given


def installed_everywhere(question: InstalledQuestion) -> bool:
    """Return whether every other aggregator has the question."""
    return all(was_given(question, other, QUESTION) for other in question.others)


def orders_of(notes: Mapping[str, bytes]) -> tuple[SignedOrder, ...]:
    """Return the orders among the notes of a question, by aggregator and number."""
    return _in_order(decode_signed_order(note) for name, note in notes.items() if name.startswith(_ORDER))


def refused_by(notes: Mapping[str, bytes]) -> str:
    """Return the id of the aggregator that refused the question, from its notes; "" if none did."""
    return notes.get(_REFUSED, b"").decode()


def counted_at(notes: Mapping[str, bytes]) -> int | None:
    """Return the Renyi order at which the charge of a question is counted, from its notes; None for the usual one."""
    return int(notes[_COUNTED]) if _COUNTED in notes else None


def _in_order(orders: Iterable[SignedOrder]) -> tuple[SignedOrder, ...]:
    return tuple(sorted(orders, key=lambda one: (one.order.aggregator_id, one.order.number)))


# Decisions about the windows of a question.


async def count_decided(store: Store, question_id: QuestionId, known: int = 0) -> int:
    """Return how many windows of a question are decided; the caller knows that the first `known` are.

    Raises:
        DamagedError: a decision is missing or changed.
        StoreError: the store failed.
    """
    while rows := await store.read(read_decided, question_id, above=known - 1, below=known + _AT_ONCE):
        known = rows[-1].index + 1
    return known


async def decided_window(store: Store, question_id: QuestionId, index: int) -> DecidedWindow:
    """Return the decision about the window of an index, from 0.

    Raises:
        DamagedError: the decision is missing or changed.
        StoreError: the store failed.
    """
    rows = await store.read(read_decided, question_id, above=index - 1, below=index + 1)
    if not rows:
        raise DamagedError(
            Damage(table="decided", what=f"the row of window {index} of question {question_id.hex()} is gone")
        )
    return rows[0]


async def decided_before(store: Store, question_id: QuestionId, index: int) -> AsyncGenerator[DecidedWindow]:
    """Yield the decisions about the windows before an index, the last first.

    The first query reads one, since most callers need no more; each further query reads `_AT_ONCE`.

    Raises:
        DamagedError, StoreError: as `decided_window`.
    """
    at_once = 1
    while index > 0:
        first = max(0, index - at_once)
        rows = await store.read(read_decided, question_id, above=first - 1, below=index)
        if len(rows) != index - first:
            await decided_window(store, question_id, first + len(rows))
        for row in reversed(rows):
            yield row
        index, at_once = first, _AT_ONCE

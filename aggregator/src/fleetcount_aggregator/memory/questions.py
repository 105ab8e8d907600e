"""The questions of this aggregator in memory, and what the store has beside each: its notes, and the windows decided.

A question may have 65,536 windows: what was decided about them is read from the store when it is asked for. It must not
judge a question (`windows.question_install`) nor decide about a window (`windows.windows`).
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from fleetcount_protocol.errors import DecodeError, QuestionError
from fleetcount_protocol.ids import AggregatorId, QuestionId
from fleetcount_protocol.question.key_list import SignedKeyList, decode_signed_key_list, encode_signed_key_list
from fleetcount_protocol.question.orders import SignedOrder, decode_signed_order, encode_signed_order, started_question
from fleetcount_protocol.question.question import SignedQuestion
from fleetcount_protocol.question.signing import decode_signed_question, encode_signed_question
from fleetcount_transport.logs import log

from fleetcount_aggregator.host.due_queue import DueQueue
from fleetcount_aggregator.host.host import Host
from fleetcount_aggregator.memory.installed import InstalledQuestion
from fleetcount_aggregator.memory.key_lists import KeyLists
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.storage.errors import Damage, DamagedError, StoreError
from fleetcount_aggregator.storage.row_types import DecidedWindow, QuestionRow
from fleetcount_aggregator.storage.store import Store

QUESTION: Final = "question"
"""What is given: the question itself; an order goes by its `order_name`."""
_ORDER, _KEYS, _GIVEN, _REFUSED = "order/", "keys/", "given/", "refused"
"""The names of notes, which existing stores hold: never change one."""
_AT_ONCE: Final = 256
"""Decided windows read in one go."""


class Questions(Mapping[QuestionId, InstalledQuestion]):
    """The questions in work by id, and those that still count in a period's budget.

    One that the store may have without an answer, since the call failed, is unconfirmed until `reconcile`: it counts in
    the budget, so `lock` is held, and `reconcile` called, before another one is judged.
    """

    def __init__(self, host: Host, store: Store) -> None:
        self.host = host
        self.store = store
        self.key_lists = KeyLists(host)
        self.lock = asyncio.Lock()
        """Questions are installed one at a time."""
        self.openings: DueQueue[QuestionId] = DueQueue()
        """When the next window of each question is to be decided about."""
        self.handovers: DueQueue[QuestionId] = DueQueue()
        """When to hand the other aggregators what they lack of a question."""
        self.adopting = False
        """Whether the store was put back from a backup and lacks what came after it: nothing new is taken."""
        self._known: dict[QuestionId, InstalledQuestion] = {}
        self._unconfirmed: set[QuestionId] = set()

    def __getitem__(self, question_id: QuestionId) -> InstalledQuestion:
        return self._known[question_id]

    def __iter__(self) -> Iterator[QuestionId]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    # Into memory and out of it.

    async def add(self, signed: SignedQuestion, seed: bytes, start: SignedOrder | None) -> QuestionRow:
        """Store a question with its start, in one transaction, under `lock`; return its row, to be taken up.

        Raises:
            StoreError: it failed; whether the question is stored shows at `reconcile`.
        """
        question_id = signed.question.question_id
        notes = {} if start is None else {order_name(start): encode_signed_order(start)}
        row = QuestionRow(
            question_id=question_id,
            signed=encode_signed_question(signed),
            seed=self.store.data_keys.at_rest.seal(seed, b"verify seed", question_id),
            installed_at=self.host.now(),
        )
        self._unconfirmed.add(question_id)
        stored = await self.store.install_question(row, notes)
        self._unconfirmed.discard(question_id)
        return stored

    async def reconcile(self) -> None:
        """Take up what was installed without an answer, before anything else is judged: it counts in the budget.

        Raises:
            FleetcountError: the store failed, or holds what cannot be read.
        """
        for question_id in list(self._unconfirmed):
            await self.follow(question_id)
            if question_id in self._known:  # Else it may be stored yet.
                self._unconfirmed.discard(question_id)

    async def load(self, windows: Windows) -> None:
        """Take up every question in work with its orders, and those that still count in a period's budget.

        A process that is elected drops those that count no more: another may have archived and forgotten them. One
        that is damaged, or of which a window or note is, is named and left out; so is what was charged for it.

        Raises:
            FleetcountError: a stored question cannot be read (another at-rest key).
        """
        self.adopting = await self.store.restored()
        counts_from = self.host.now() - self.host.limits.budget_period_s
        rows = await self.store.questions(ended_after=counts_from)
        for gone in self._known.keys() - {row.question_id for row in rows}:
            if self._known[gone].asked.schedule.end <= counts_from:
                del self._known[gone]
        for row in rows:
            try:
                await self.take_up(row)
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
        """Take up what the store has of one question that another process of this aggregator installed or went on with.

        Raises:
            FleetcountError: the store failed, or the question cannot be read.
        """
        known = self._known.get(question_id)
        if known is None:
            row = await self.store.one_question(question_id)
            if row is not None:
                await self.take_up(row)
            return
        self._take_up_notes(known, await self.store.question_notes(question_id))
        decided = await count_decided(self.store, question_id, known.following)
        known.following = max(known.following, decided)

    async def take_up(self, row: QuestionRow) -> InstalledQuestion:
        """Take a stored question into memory with its notes; its next window and its hand-over are due at once.

        Raises:
            DamagedError: what was signed, or its start, is not there as it was written.
            DecodeError, QuestionError, StoreError: it cannot be read.
        """
        notes = await self.store.question_notes(row.question_id)
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
        self._take_up_notes(question, notes)
        question.following = await count_decided(self.store, row.question_id)
        self._known[row.question_id] = question
        self.openings.put(0, row.question_id)
        self.handovers.put(0, row.question_id)
        return question

    def _take_up_notes(self, question: InstalledQuestion, notes: Mapping[str, bytes]) -> None:
        question.orders = orders_of(notes)
        question.given = {name for name in notes if name.startswith(_GIVEN)}
        question.refused_by = refused_by(notes)
        for name, note in notes.items():
            if name.startswith(_KEYS):
                self.key_lists.keep(question.asked, decode_signed_key_list(note))

    async def archive(self, question: InstalledQuestion) -> None:
        """Let a question that is over leave memory: nobody asks for the key lists of others any more.

        Raises:
            StoreError: the store failed; the question stays.
        """
        await self.store.archive_question(question.question_id, question.asked.schedule.end, _KEYS)
        del self._known[question.question_id]

    # Notes: durable first, then in memory.

    async def note_order(self, question: InstalledQuestion, signed: SignedOrder) -> None:
        """Keep an order, and have it handed over."""
        await self.store.note_question(question.question_id, order_name(signed), encode_signed_order(signed))
        question.orders = _in_order([*question.orders, signed])
        self.host.failpoints.hit("question.after_order_store")
        self.handovers.put(0, question.question_id)

    async def note_given(self, question: InstalledQuestion, other: AggregatorId, what: str) -> None:
        """Remember that another aggregator has something."""
        name = f"{_GIVEN}{other}/{what}"
        await self.store.note_question(question.question_id, name, b"")
        question.given.add(name)

    async def note_key_list(self, question: InstalledQuestion, signed: SignedKeyList) -> None:
        """Keep another aggregator's list of sealing keys, if it is newer than the one known."""
        if self.key_lists.keep(question.asked, signed):
            name = _KEYS + signed.key_list.aggregator_id
            await self.store.note_question(question.question_id, name, encode_signed_key_list(signed))

    async def note_refusal(self, question: InstalledQuestion, other: AggregatorId) -> None:
        """Remember that another aggregator does not take the question."""
        await self.store.note_question(question.question_id, _REFUSED, other.encode())
        question.refused_by = other


def position_in(signed: SignedQuestion, aggregator_id: AggregatorId) -> int:
    """Return an aggregator's share number in a question.

    Raises:
        QuestionError: the question does not list it.
    """
    ids = [one.aggregator_id for one in signed.question.aggregators]
    if aggregator_id not in ids:
        raise QuestionError(f"question {signed.question.name!r} does not list aggregator {aggregator_id!r}")
    return ids.index(aggregator_id)


# What the notes of a question say.


def order_name(signed: SignedOrder) -> str:
    """Return the name of an order among the notes of its question."""
    return f"{_ORDER}{signed.order.aggregator_id}/{signed.order.number}"


def stored_question(data: bytes, notes: Mapping[str, bytes]) -> SignedQuestion:
    """Return a question as it is stored, with the start that stands among its notes.

    Raises:
        DecodeError: what was signed or an order cannot be read.
        QuestionError: the start among its notes is not one of this question.
    """
    signed = decode_signed_question(data)
    return replace(signed, question=started_question(signed.question, [one.order for one in orders_of(notes)]))


def was_given(question: InstalledQuestion, other: AggregatorId, what: str) -> bool:
    """Return whether another aggregator has something."""
    return f"{_GIVEN}{other}/{what}" in question.given


def is_spread(question: InstalledQuestion) -> bool:
    """Return whether every other aggregator has the question."""
    return all(was_given(question, other, QUESTION) for other in question.others)


def forget_given(question: InstalledQuestion, other: AggregatorId) -> None:
    """Let everything be given again to an aggregator that came back without the question."""
    question.given = {name for name in question.given if not name.startswith(f"{_GIVEN}{other}/")}


def orders_of(notes: Mapping[str, bytes]) -> tuple[SignedOrder, ...]:
    """Return the orders among the notes of a question, by aggregator and number."""
    return _in_order(decode_signed_order(note) for name, note in notes.items() if name.startswith(_ORDER))


def refused_by(notes: Mapping[str, bytes]) -> str:
    """Return which other aggregator does not take the question, by its notes; "" if none is known to refuse it."""
    return notes.get(_REFUSED, b"").decode()


def _in_order(orders: Iterable[SignedOrder]) -> tuple[SignedOrder, ...]:
    return tuple(sorted(orders, key=lambda one: (one.order.aggregator_id, one.order.number)))


# What was decided about the windows of a question.


async def count_decided(store: Store, question_id: QuestionId, known: int = 0) -> int:
    """Return how many windows of a question are decided, where `known` or more are; reads the others.

    Raises:
        DamagedError: one of them is not as it was written, or is gone.
        StoreError: the store failed.
    """
    while rows := await store.decided(question_id, above=known - 1, below=known + _AT_ONCE):
        known = rows[-1].index + 1
    return known


async def decided_window(store: Store, question_id: QuestionId, index: int) -> DecidedWindow:
    """Return what was decided about one window, from 0 on.

    Raises:
        DamagedError: it is not as it was written, or not there.
        StoreError: the store failed.
    """
    rows = await store.decided(question_id, above=index - 1, below=index + 1)
    if not rows:
        raise DamagedError(
            Damage(table="decided", what=f"the row of window {index} of question {question_id.hex()} is gone")
        )
    return rows[0]


async def decided_before(store: Store, question_id: QuestionId, index: int) -> AsyncGenerator[DecidedWindow]:
    """Give what was decided about the windows before one, the last first: one alone, then `_AT_ONCE` at a time.

    Raises:
        DamagedError, StoreError: as `decided_window`.
    """
    at_once = 1
    while index > 0:
        first = max(0, index - at_once)
        rows = await store.decided(question_id, above=first - 1, below=index)
        if len(rows) != index - first:
            await decided_window(store, question_id, first + len(rows))
        for row in reversed(rows):
            yield row
        index, at_once = first, _AT_ONCE

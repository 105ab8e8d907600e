"""What the store notes beside a question: its orders, the key lists of others, what each was given, who refused it.

The one place that spells the names of notes, which existing stores hold: never change one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.question.key_list import SignedKeyList, decode_signed_key_list, encode_signed_key_list
from fleetcount_protocol.question.orders import SignedOrder, decode_signed_order, encode_signed_order, started_question
from fleetcount_protocol.question.question import SignedQuestion
from fleetcount_protocol.question.signing import decode_signed_question

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.installed_question import InstalledQuestion
from fleetcount_aggregator.windows.key_lists import keep_key_list

QUESTION: Final = "question"
"""What is given: the question itself; an order goes by its `order_name`."""
_ORDER, _KEYS, _GIVEN, _REFUSED = "order/", "keys/", "given/", "refused"


def order_name(signed: SignedOrder) -> str:
    """Return the name of an order among the notes of its question."""
    return f"{_ORDER}{signed.order.aggregator_id}/{signed.order.number}"


async def rest_question(context: Context, question: InstalledQuestion) -> None:
    """Let a question that is over leave memory: nobody asks for the key lists of others any more.

    Raises:
        StoreError: the store failed; the question stays.
    """
    await context.store.rest_question(question.question_id, question.asked.schedule.end, _KEYS)
    del context.questions[question.question_id]


async def note_order(context: Context, question: InstalledQuestion, signed: SignedOrder) -> None:
    """Keep an order durably, then in memory."""
    await context.store.note_question(question.question_id, order_name(signed), encode_signed_order(signed))
    question.orders = _in_order([*question.orders, signed])


def start_note(signed: SignedOrder | None) -> dict[str, bytes]:
    """Return the note of a start, which is stored with its question at once; nothing where there is none."""
    return {} if signed is None else {order_name(signed): encode_signed_order(signed)}


def stored_question(data: bytes, notes: Mapping[str, bytes]) -> SignedQuestion:
    """Return a question as it is stored, with the start that stands among its notes.

    Raises:
        DecodeError: what was signed or an order cannot be read.
        QuestionError: the start among its notes is not one of this question.
    """
    signed = decode_signed_question(data)
    return replace(signed, question=started_question(signed.question, [one.order for one in orders_of(notes)]))


async def note_given(context: Context, question: InstalledQuestion, other: AggregatorId, what: str) -> None:
    """Remember that another aggregator has something."""
    name = f"{_GIVEN}{other}/{what}"
    await context.store.note_question(question.question_id, name, b"")
    question.given.add(name)


def was_given(question: InstalledQuestion, other: AggregatorId, what: str) -> bool:
    """Return whether another aggregator has something."""
    return f"{_GIVEN}{other}/{what}" in question.given


def is_spread(question: InstalledQuestion) -> bool:
    """Return whether every other aggregator has the question."""
    return all(was_given(question, other, QUESTION) for other in question.others)


def forget_given(question: InstalledQuestion, other: AggregatorId) -> None:
    """Let everything be given again to an aggregator that came back without the question."""
    question.given = {name for name in question.given if not name.startswith(f"{_GIVEN}{other}/")}


async def note_key_list(context: Context, question: InstalledQuestion, signed: SignedKeyList) -> None:
    """Keep another aggregator's list of sealing keys, if it is newer than the one known."""
    if keep_key_list(context, question.asked, signed):
        name = _KEYS + signed.key_list.aggregator_id
        await context.store.note_question(question.question_id, name, encode_signed_key_list(signed))


async def note_refusal(context: Context, question: InstalledQuestion, other: AggregatorId) -> None:
    """Remember that another aggregator does not take the question."""
    await context.store.note_question(question.question_id, _REFUSED, other.encode())
    question.refused_by = other


def orders_of(notes: Mapping[str, bytes]) -> tuple[SignedOrder, ...]:
    """Return the orders among the notes of a question, by aggregator and number."""
    return _in_order(decode_signed_order(note) for name, note in notes.items() if name.startswith(_ORDER))


def refused_by(notes: Mapping[str, bytes]) -> str:
    """Return which other aggregator does not take the question, by its notes; "" if none is known to refuse it."""
    return notes.get(_REFUSED, b"").decode()


def take_up_notes(context: Context, question: InstalledQuestion, notes: Mapping[str, bytes]) -> None:
    """Take the notes of a question into memory, when the process starts."""
    question.orders = orders_of(notes)
    question.given = {name for name in notes if name.startswith(_GIVEN)}
    question.refused_by = refused_by(notes)
    for name, note in notes.items():
        if name.startswith(_KEYS):
            keep_key_list(context, question.asked, decode_signed_key_list(note))


def _in_order(orders: Iterable[SignedOrder]) -> tuple[SignedOrder, ...]:
    return tuple(sorted(orders, key=lambda one: (one.order.aggregator_id, one.order.number)))

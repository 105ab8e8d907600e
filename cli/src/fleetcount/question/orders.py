"""`fleetcount question pause`, `resume` and `stop`: orders of an operator to its own aggregator.

An order file is NAME.0001.order, and so on.

Reads the aggregator's store and question directory, writes into the latter; it must not open a connection. The
aggregator decides about every order again: what is checked here is checked so that the operator hears of it at once.
"""

import time
from collections.abc import Iterator, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from pathlib import Path
from typing import Final

import click
from fleetcount_aggregator.config import AggregatorConfig
from fleetcount_aggregator.host.keys import load_signing_key
from fleetcount_aggregator.process.app import limits_of
from fleetcount_aggregator.windows.budget import question_charge, spent_from
from fleetcount_aggregator.windows.status import QuestionLine, read_status
from fleetcount_aggregator.windows.windows import opening_lead_s
from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.errors import FleetcountError, QuestionError, UsageError
from fleetcount_protocol.limits import MAX_ORDER_BYTES, MAX_ORDERS_PER_QUESTION
from fleetcount_protocol.question.fields import Coin, Schedule
from fleetcount_protocol.question.orders import (
    OrderAction,
    QuestionOrder,
    check_follows,
    decode_signed_order,
    encode_signed_order,
    sign_order,
    skipped_windows,
    started_question,
    stopped_at,
    verify_order,
)
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.window.domain import signals_text

from fleetcount.command.base import RefusedByPolicyError, StrictCommand
from fleetcount.command.numbers import spans_text
from fleetcount.command.options import PATH, parse_count, read_bytes, write_file
from fleetcount.keys.operator import CONFIG, Operator, operator_of
from fleetcount.question.files import check_name, read_question, refusal_of

_FILE_BYTES: Final = MAX_ORDER_BYTES + 128
_MARGIN_S: Final = 5
"""Seconds added to the lead, so that the default window can still be skipped when the aggregator, which looks into its
question directory every second, has read the order.
"""


def _order_command(action: str, text: str) -> click.Command:
    """Return the sub-command of one kind of order."""

    @click.command(action, cls=StrictCommand, help=text)
    @CONFIG
    @click.option(
        "--from",
        "start",
        metavar="WINDOW|TIME",
        help="A window's number, or a time in UTC (2026-12-01T08:00Z). Default: the next that can still be skipped.",
    )
    @click.argument("path", metavar="NAME.question", type=PATH)
    def order(config_path: Path, start: str | None, path: Path, yes: bool = False) -> None:
        check_name(path)
        asked, operator, kind = read_question(path).question, operator_of(config_path), OrderAction[action.upper()]
        given = give_order(asked, operator, kind, start, time.time(), path.stem)
        if kind is OrderAction.STOP:
            for line in stop_lines(given, operator):
                click.echo(line)
            if not yes and not click.confirm("Stop it?"):
                raise RefusedByPolicyError("not stopped; nothing was written")
        given.write()
        window, number = given.order.from_window, given.order.number
        opens = utc_text(given.question.schedule.opens(window))
        click.echo(f"{action} from window {window} on, which opens {opens}: order {number}, {given.target}")

    return order


pause = _order_command(
    "pause",
    """Sign an order that skips windows from one on, and put it into the leader's question directory.

    Run by the leader's operator. Windows keep their numbers and times: one that is skipped is neither asked later nor
    given back. Devices keep their reservations, because a pause may end. The aggregator decides about each window one
    minute before it opens, or one period before where that is shorter.
    """,
)

resume = _order_command(
    "resume",
    """Sign an order that asks windows again from one on, and put it into the leader's question directory.

    Run by the leader's operator, after a pause.
    """,
)

stop = _order_command(
    "stop",
    """Sign an order that ends this operator's part from a window on, and put it into its aggregator's question
    directory.

    Run by any operator: without its part no window can be opened. Nothing follows a stop. Says first what stays charged
    and what comes back, at aggregators and devices, and asks; a question that is stopped before its first window costs
    nothing. Devices get back what they have reserved for windows that are no longer asked, where nothing of the same
    toss was sent.
    """,
)
click.option("--yes", is_flag=True, help="Do not ask before the question is stopped.")(stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOrder:
    """An order that its operator may give, and the file in the question directory it goes to.

    `question` is the question after its start order. `asked` is how many windows it has without this order: those
    before an earlier stop. `counted_at` is the order of its charge, as of `QuestionLine`.
    """

    order: QuestionOrder
    question: Question
    asked: int
    counted_at: int | None
    target: Path
    signed: bytes

    def write(self) -> None:
        """Put the order where the aggregator takes it.

        Raises:
            UsageError, MachineError: the file is there already, or cannot be written.
        """
        write_file(self.target, self.signed, overwrite=False)


def give_order(
    question: Question, operator: Operator, action: OrderAction, start: str | None, now: float, name: str
) -> GivenOrder:
    """Return a signed order of this operator that its aggregator may take; nothing is written yet.

    `start` is a window's index, or a time in UTC, which means the first window that opens then or later; None is the
    first window that the aggregator has not decided about. `now` is in Unix seconds. `name` is how the
    question's file is called, without suffix.

    Raises:
        UsageError: no index and no time, or a window that is decided about or that the question has not.
        RefusedByPolicyError: the question is not installed at this aggregator, the order is not its operator's to give,
            or nothing may follow the orders given before.
        StoreError: the aggregator's store cannot be read.
    """
    config, own = operator.config, operator.aggregator_id
    position = question.first_window.position_of(own)
    if position and action is not OrderAction.STOP:
        leader = question.aggregators[0].aggregator_id
        raise RefusedByPolicyError(
            f"{action.name.lower()} is for the leader, {leader!r}; {own!r} may stop its own part"
        )
    installed = installed_question(question, config)
    directory = config.aggregator.question_directory
    question = started_question(question, (one.order for one in installed.orders))
    taken = [one.order for one in installed.orders if one.order.aggregator_id == own]
    dropped = _dropped(directory, question, operator)
    given = [*taken, *(order for path, order in dropped if not path.with_suffix(".refused").exists())]
    order = QuestionOrder(
        question_id=question.question_id,
        number=max((one.number for one in [*taken, *(order for _, order in dropped)]), default=0) + 1,
        action=action,
        aggregator_id=own,
        from_window=_window(start, question.schedule, installed.following, now),
    )
    known = {one.order for one in installed.orders} | set(given)
    _check_given(order, set(given))
    _check_changes(question, order, known)
    stopped, windows = stopped_at(known), question.schedule.windows
    return GivenOrder(
        order=order,
        question=question,
        asked=windows if stopped is None else stopped,
        counted_at=installed.counted_at,
        target=directory / f"{name}.{order.number:04}.order",
        signed=encode_signed_order(sign_order(order, load_signing_key(config.keys.signing_key_file))),
    )


def stop_lines(given: GivenOrder, operator: Operator) -> Iterator[str]:
    """Yield what a stop ends, and what stays charged and what comes back: a line of all aggregators, one of devices."""
    question, window = given.question, given.order.from_window
    opens, limits = utc_text(question.schedule.opens(window)), limits_of(operator.config)
    yield f"this ends question {question.name!r} for good, at all aggregators, from window {window} on, opening {opens}"
    charges = [question_charge(question, until, given.counted_at) for until in (given.asked, window)]
    whole, kept = (spent_from(question.schedule.opens(0), [one], limits).get(one.signals[0], 0) for one in charges)
    back = f"what it reserved for {spans_text(range(window, given.asked))} comes back"
    if window == 0:  # It can be named only before it is decided about, so before it opens.
        stays, answered = "all of it comes back", "nothing was answered"
    else:
        stays, answered = f"{kept} stays, for {spans_text(range(window))}", "what it answered stays charged"
        if question.coin is not Coin.WINDOW:
            stays += " and all that share a toss with them"
            back += " where nothing of the same toss was sent"
            answered = "a toss of which anything was sent stays charged whole"
    names = ", ".join(one.aggregator_id for one in question.aggregators)
    charged = f"epsilon {whole} on {signals_text(question.parts)} was charged for {spans_text(range(given.asked))}"
    yield f"each aggregator ({names}): {charged}; {stays}"
    yield f"each device: {back}; {answered}"


def installed_question(question: Question, config: AggregatorConfig) -> QuestionLine:
    """Return what an operator's own aggregator knows of a question.

    Raises:
        RefusedByPolicyError: it is not installed there; with the reason if it was refused.
    """
    place, short = config.store_place, question.question_id.hex()[:12]
    found = read_status(place).questions if place.url is not None or place.file.is_file() else ()
    for one in found:
        if one.question_id == question.question_id:
            return one
    if refusal := refusal_of(config.aggregator.question_directory, question):
        raise RefusedByPolicyError(refusal)
    raise RefusedByPolicyError(
        f"question {short} is not installed at this aggregator; it is once it runs, all helpers can be reached and"
        " their clocks agree (`fleetcount doctor`)"
    )


def _dropped(directory: Path, question: Question, operator: Operator) -> list[tuple[Path, QuestionOrder]]:
    """Return the orders signed by this operator about a question that lie in the question directory, taken or not."""
    found: list[tuple[Path, QuestionOrder]] = []
    for path in sorted(directory.glob("*.order")):
        try:
            signed = decode_signed_order(read_bytes(path, largest=_FILE_BYTES))
            verify_order(signed, question, operator.trusted)
        except FleetcountError:
            continue  # Of another question, or the aggregator refuses it and says why beside it: it takes no number.
        if signed.order.aggregator_id == operator.aggregator_id:
            found.append((path, signed.order))
    return found


def _check_given(order: QuestionOrder, given: Set[QuestionOrder]) -> None:
    if len(given) >= MAX_ORDERS_PER_QUESTION:
        raise RefusedByPolicyError(f"the question has {len(given)} orders, allowed: {MAX_ORDERS_PER_QUESTION}")
    try:
        check_follows(order, given)
    except QuestionError as error:
        raise RefusedByPolicyError(str(error)) from None


def _check_changes(question: Question, order: QuestionOrder, known: Set[QuestionOrder]) -> None:
    """Refuse an order that changes nothing (a pause of skipped windows, a resume of asked ones): orders are few.

    A stop of windows that are paused changes that they may come back.
    """
    before = skipped_windows(question, known)
    if skipped_windows(question, known | {order}) != before:
        return
    if order.action is OrderAction.STOP and stopped_at(known | {order}) != stopped_at(known):
        return
    start, stop = order.from_window, stopped_at(known)
    skipped = " and ".join(f"{max(start, one.start)} to {one.stop - 1}" for one in before if one.stop > start)
    for_good = "" if stop is None else f", those from {stop} on for good"
    raise RefusedByPolicyError(
        f"{order.action.name.lower()} from window {start} on changes nothing: "
        + (f"windows {skipped} are skipped{for_good}" if skipped else "none from there on is skipped")
    )


def _window(start: str | None, schedule: Schedule, following: int | None, now: float) -> int:
    """Return the window that `start` means, one that is not decided about.

    Raises:
        UsageError: as `give_order`.
    """
    last, lead = schedule.windows - 1, opening_lead_s(schedule)
    first = last + 1 if following is None else max(following, _opening_from(schedule, now + lead))
    if first > last:
        raise UsageError(
            f"every window of the question is decided about; the last opens {utc_text(schedule.opens(last))}"
        )
    if start is None:
        return min(last, max(first, _opening_from(schedule, now + lead + _MARGIN_S)))
    given = _given_window(start, schedule)
    if not first <= given <= last:
        raise UsageError(
            f"--from is {_told(start, given)}, allowed: {first} to {last} ({utc_text(schedule.opens(first))} to "
            f"{utc_text(schedule.opens(last))}); windows are decided about {lead} s before they open"
        )
    return given


def _told(start: str, window: int) -> str:
    return f"window {window}" if start.isdigit() else f"{start[:40]!r}, window {window}"


def _given_window(start: str, schedule: Schedule) -> int:
    try:
        if start.isascii() and start.isdigit():
            return parse_count(start, 0, schedule.windows - 1)
        moment = datetime.fromisoformat(start)
        if moment.utcoffset() != timedelta(0):
            raise ValueError("not UTC")
    except ValueError:
        raise UsageError(
            f"--from is {start[:40]!r}, allowed: a window's number, 0 to {schedule.windows - 1}, or a time in UTC like "
            "2026-12-01T08:00Z"
        ) from None
    return _opening_from(schedule, moment.timestamp())


def _opening_from(schedule: Schedule, moment: float) -> int:
    """Return the first window that opens at a moment or later; beyond the last if there is none."""
    return max(0, ceil((moment - schedule.opens(0)) / schedule.every_s))

"""The status of an aggregator for its operator, read from its store, whether the aggregator runs or not.

It must not write. It shows states, reasons and counts of refusals, never a number of reports.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from fleetcount_protocol.errors import DecodeError, QuestionError, RejectReason
from fleetcount_protocol.ids import QuestionId, WindowId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.orders import SignedOrder, skipped_windows, stopped_at
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.window.window import decode_window

from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.host.reasons import Wait, expected_wait
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.memory.questions import counted_at, orders_of, refused_by, stored_question
from fleetcount_aggregator.storage import ended, question_rows
from fleetcount_aggregator.storage import rows as sql
from fleetcount_aggregator.storage.database import RowSeal, SealedDatabase
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.opening import reading
from fleetcount_aggregator.storage.row_types import Charged, Cost, LedgerRow, QuestionRow, WindowRow
from fleetcount_aggregator.storage.schema import check_readable, check_store_state
from fleetcount_aggregator.windows.budget import PeriodCharge, question_charge, spent_from

_DAMAGED: Final = "(one whose bytes are damaged)"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLine:
    """One window; `number` is its place in the order of installation."""

    number: int
    window_id: WindowId
    name: str
    index: int | None
    state: WindowState
    abort_reason: str
    wait: Wait | None
    """The next event if nothing is wrong; only the running process knows of problems."""
    rejections: Mapping[RejectReason, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionLine:
    """One question: how many of its windows are released, when the next opens, and which are missing, by reason.

    `following` is the first window that is not decided, None after the last; `upcoming` the first of these that no
    order skips, None without one; `opens` its time, Unix seconds. `skipped` are those that orders skip; `orders` are
    the accepted ones of all operators; `refused_by` names an aggregator that refuses the question, "" if none does;
    `counted_at` is the Renyi order of its charge, None for the usual one.
    """

    question_id: QuestionId
    name: str
    windows: int
    following: int | None
    upcoming: int | None
    opens: int | None
    skipped: Sequence[range]
    released: int
    missing: Mapping[str, Sequence[int]]
    orders: Sequence[SignedOrder]
    refused_by: str
    counted_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorStatus:
    """All questions; the last windows, oldest first; the last debits."""

    questions: Sequence[QuestionLine]
    windows: Sequence[WindowLine]
    ledger: Sequence[LedgerRow]


def read_status(place: StorePlace, most: int = 100) -> AggregatorStatus:
    """Return the status in a store; of windows and debits the last ones, at most `most` of each.

    Raises:
        StoreError: there is no store, or it cannot be read.
    """
    with _opened(place) as database:
        windows = [_window_line(database, *row) for row in ended.read_latest(database, most, None)]
        questions = [_question_line(database, row) for row in question_rows.read_questions(database)]
        return AggregatorStatus(questions=questions, windows=windows[::-1], ledger=sql.read_ledger(database, most))


def read_store_state(place: StorePlace) -> str:
    """Return why a store must not be served, "" if it may be: it was moved away, or a move to it has not ended.

    Raises:
        StoreError: as `read_status`.
    """
    with _opened(place) as database:
        store_state = str(database.execute("SELECT store_state FROM instance").fetchone()[0])
    try:
        check_store_state(place.name, store_state)
    except StoreError as error:
        return str(error)
    return ""


def read_windows(
    place: StorePlace, count: int, before: int | None = None, *, unfinished: bool = False
) -> Sequence[WindowLine]:
    """Return a page of windows, newest first: at most `count`, numbered below `before` if given; or of unfinished ones.

    Raises:
        StoreError: as `read_status`.
    """
    with _opened(place) as database:
        rows = ended.read_latest(database, count, before, unfinished=unfinished)
        return [_window_line(database, *row) for row in rows]


def read_spent(place: StorePlace, limits: Limits, now: float) -> Mapping[str, Decimal]:
    """Return the loss of every signal in the fullest period of `[limits] budget_period_s` that is not over.

    By the rule for new questions, which also counts later windows. Damaged rows are left out. It takes seconds where
    many windows are charged.

    Raises:
        StoreError: as `read_status`.
    """
    since = int(now) - limits.budget_period_s
    with _opened(place) as database:
        asked = [_charge_of(database, row) for row in question_rows.read_questions(database, ended_after=since)]
    return spent_from(int(now), [charge for charge in asked if charge is not None], limits)


def _charge_of(database: SealedDatabase, row: QuestionRow) -> PeriodCharge | None:
    """Return the charge of a question, None if it costs nothing or cannot be read."""
    try:
        notes = question_rows.read_notes(database, row.question_id)
        question = stored_question(row.signed, notes).question
    except (DecodeError, QuestionError):
        return None
    stopped = stopped_at(one.order for one in orders_of(notes))
    asked = Charged(row.question_id, question.schedule.windows, bool(refused_by(notes)) or stopped == 0)
    if ended.read_cost(database, asked) is Cost.NOTHING:
        return None
    return question_charge(question, stopped, counted_at(notes))


@contextmanager
def _opened(place: StorePlace) -> Generator[SealedDatabase]:
    with reading(place) as plain:
        check_readable(place, plain)
        # Tags are not checked without the store's key: `fleetcount aggregator check` does.
        yield SealedDatabase(plain, RowSeal())


def _window_line(database: SealedDatabase, number: int, row: WindowRow) -> WindowLine:
    try:
        window = decode_window(row.canonical)
        name, index = window.name, window.question.index
        wait = expected_wait(window, row.state, leads=None, give_up_s=None)
    except DecodeError:
        name, index, wait = _DAMAGED, None, None
    return WindowLine(
        number=number,
        window_id=row.window_id,
        name=name,
        index=index,
        state=row.state,
        abort_reason=row.abort_reason,
        wait=wait,
        rejections=sql.read_rejections(database, row.window_id),
    )


def _question_line(database: SealedDatabase, row: QuestionRow) -> QuestionLine:
    with suppress(DecodeError, QuestionError):
        notes = question_rows.read_notes(database, row.question_id)
        return _line_of(database, stored_question(row.signed, notes).question, row, notes)
    return QuestionLine(
        question_id=row.question_id,
        name=_DAMAGED,
        windows=0,
        following=None,
        upcoming=None,
        opens=None,
        skipped=(),
        released=0,
        missing={},
        orders=(),
        refused_by="",
    )


def _line_of(
    database: SealedDatabase, question: Question, row: QuestionRow, notes: Mapping[str, bytes]
) -> QuestionLine:
    missing: dict[str, list[int]] = {}
    following, released = 0, 0
    for decided in question_rows.read_decided(database, row.question_id, above=-1):
        window = None if decided.window_id is None or decided.missing else sql.read_window(database, decided.window_id)
        reason = decided.missing if window is None else window.abort_reason
        if reason:
            missing.setdefault(reason, []).append(decided.index)
        released += window is not None and window.state is WindowState.RELEASED
        following = decided.index + 1
    orders, windows = orders_of(notes), question.schedule.windows
    skipped = [
        range(max(following, one.start), one.stop)
        for one in skipped_windows(question, (one.order for one in orders))
        if one.stop > following
    ]
    upcoming = skipped[0].stop if skipped and following in skipped[0] else following
    return QuestionLine(
        question_id=row.question_id,
        name=question.name,
        windows=windows,
        following=following if following < windows else None,
        upcoming=upcoming if upcoming < windows else None,
        opens=question.schedule.opens(upcoming) if upcoming < windows else None,
        skipped=skipped,
        released=released,
        missing=missing,
        orders=orders,
        refused_by=refused_by(notes),
        counted_at=counted_at(notes),
    )

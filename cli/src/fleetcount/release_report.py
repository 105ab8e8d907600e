"""A release for people: its table and its privacy statement, and the checked record from an aggregator's answer.

It must not print a number without its interval and the statement, draw a picture or open a connection.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from fleetcount_protocol.errors import SignatureError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.messages import ReleaseAnswer, TaskState
from fleetcount_protocol.release import (
    ReleaseRecord,
    decimal_text,
    decode_record,
    sides_words,
    verify_record_signatures,
)
from fleetcount_protocol.task.signing import TrustedAggregator
from fleetcount_protocol.task.task import Task

from fleetcount.exits import RefusedByPolicyError, one_line

__all__ = ["checked_record", "statement_lines", "table_lines"]

MOST_ROWS: Final = 200


def checked_record(
    answer: ReleaseAnswer, task: Task, trusted: Mapping[AggregatorId, TrustedAggregator]
) -> ReleaseRecord:
    """Return the record of an answer after checking every signature and that it answers this very task.

    Raises:
        RefusedByPolicyError: the task is not released (yet), or was aborted; with its state and reason.
        SignatureError: a signature does not verify, or the record is of another task.
    """
    if answer.state is TaskState.ABORTED:
        raise RefusedByPolicyError(f"task {task.name!r} was aborted: {answer.abort_reason}")
    if answer.state is not TaskState.RELEASED:
        raise RefusedByPolicyError(f"task {task.name!r} is {answer.state.value}, not released yet")
    record = decode_record(answer.record)
    if record.task_id != task.task_id:
        raise SignatureError(f"the record answers task {record.task_id}, not {task.task_id}")
    verify_record_signatures(record, answer.signatures, trusted)
    return record


def table_lines(record: ReleaseRecord, truths: Sequence[int] | None = None) -> list[str]:
    """Return the table: label, estimate, interval, side and truth where there are any; at most 200 rows.

    A longer table shows the largest estimates and says how many rows are left out. Under that of a one-sided release
    stands how sure its sides are.
    """
    words = sides_words(record)
    level = f"{float(record.level * 100):g} % interval"
    head = ("cell", "estimate", level, *(("side",) if words else ()), *(("truth",) if truths else ()))
    rows = [_table_row(record, place, truths) for place in range(len(record.cells))]
    left_out = 0
    if len(rows) > MOST_ROWS:
        largest = sorted(range(len(rows)), key=lambda i: record.cells[i].estimate, reverse=True)[:MOST_ROWS]
        left_out = len(rows) - MOST_ROWS
        rows = [rows[i] for i in sorted(largest)]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    widths[0] = min(widths[0], 48)
    lines = [_row(row, widths) for row in [head, *rows]]
    if left_out:
        lines.append(f"... and {left_out} smaller ones in the files")
    return [*lines, words] if words else lines


def _table_row(record: ReleaseRecord, place: int, truths: Sequence[int] | None) -> tuple[str, ...]:
    cell = record.cells[place]
    side = record.side(cell)
    known = (cell.label, decimal_text(cell.estimate, 1), f"{cell.low} to {cell.high}")
    return *known, *(() if side is None else (side.value,)), *((str(truths[place]),) if truths else ())


def _row(row: tuple[str, ...], widths: Sequence[int]) -> str:
    label = one_line(row[0])
    label = label if len(label) <= widths[0] else label[: widths[0] - 1] + "…"
    numbers = (f"{part:>{width}}" for part, width in zip(row[1:], widths[1:], strict=True))
    return f"{label:<{widths[0]}}  {'  '.join(numbers)}".rstrip()


def statement_lines(record: ReleaseRecord) -> list[str]:
    """Return the privacy statement, one line an adversary, and what is said about the number of participants."""
    lines = [f"  {view.audience}: {view.sentence}" for view in record.statement]
    noise = {law.law for law in record.noise}
    lines.append(
        f"  participants: at least {record.participants_at_least}; each of the {len(record.noise)} aggregators "
        f"added its own noise ({', '.join(sorted(noise))})"
    )
    return ["Privacy statement, one line an adversary:", *lines]

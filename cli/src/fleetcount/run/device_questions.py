"""`fleetcount device question` and `device log`: what a device is asked again and again, and its owner's say in it.

Prints what was asked, reserved, answered and refused; never a truth, a coin or a key.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from fleetcount_client.assembly import book_of
from fleetcount_client.charges import Charge
from fleetcount_client.config import DeviceSettings
from fleetcount_client.question_rows import QuestionRow, QuestionState
from fleetcount_client.spool import Spool
from fleetcount_client.subscriptions import KnownQuestion, Subscriptions
from fleetcount_protocol.errors import UsageError

from fleetcount.command.exits import RefusedByPolicyError, one_line
from fleetcount.command.lazy import StrictCommand
from fleetcount.command.results import JSON, show
from fleetcount.run.device_ledger import CONFIG, decimal_text, open_spool, time_text

_SHORTEST_ID: Final = 8
_QUESTION = click.argument("which", metavar="QUESTION")


@click.command("list", cls=StrictCommand)
@CONFIG
@JSON
def list_questions(config: Path, as_json: bool) -> None:
    """List every question with its state, its windows and what it costs the device."""
    book, spool, settings = _open(config)
    rows = book.rows()
    lines: list[str] = []
    for row in rows:
        lines.append(one_line(f"{row.question_id.hex()[:12]}  {row.state.name.lower():<8} {row.name}  {row.reason}"))
        lines += [one_line(f"    {line}") for line in _about(book.known(row), row, spool)]
    lines.append(f"{len(rows)} questions; new ones: {settings.join.value}; trust = {settings.policy.trust.value!r}")
    show([_row_json(row, spool) for row in rows], [*lines, _private_line(settings)], as_json=as_json)


def _row_json(row: QuestionRow, spool: Spool) -> dict[str, Any]:
    held = _reserved(spool, row.question_id)
    sent = sum(charge.sent for charge in held)
    known = {
        "question_id": row.question_id.hex(),
        "name": row.name,
        "state": row.state.name.lower(),
        "reason": row.reason,
    }
    return known | {"sent": sent, "reserved": len(held) - sent}


@click.command("join", cls=StrictCommand)
@CONFIG
@_QUESTION
def join(config: Path, which: str) -> None:
    """Reserve what every window left of a question costs, all at once, and take part in it from now on.

    Exit code 3, with nothing reserved, when the policy or the budget does not allow it.
    """
    book, spool, _ = _open(config)
    row = _find(book, which)
    refusal = book.join(row.question_id)
    if refusal is not None:
        raise RefusedByPolicyError(f"{row.name}: {refusal.rule}: {refusal.message}")
    held = len(_reserved(spool, row.question_id))
    click.echo(one_line(f"joined {row.question_id.hex()[:12]}  {row.name}: {held} charges, each with its own time"))


@click.command("leave", cls=StrictCommand)
@CONFIG
@_QUESTION
def leave(config: Path, which: str) -> None:
    """Leave a question and free what was reserved for windows that nothing was ever sent for."""
    book, spool, _ = _open(config)
    row = _find(book, which)
    freed = book.leave(row.question_id)
    kept = len(_reserved(spool, row.question_id))
    click.echo(one_line(f"left {row.question_id.hex()[:12]}  {row.name}: {freed} charges freed, {kept} stay (sent)"))


@click.command("reserved", cls=StrictCommand)
@CONFIG
@JSON
def reserved(config: Path, as_json: bool) -> None:
    """List every unit that is reserved and not yet answered, with its time and the answers it stands for."""
    _, spool, _ = _open(config)
    held = [charge for charge in spool.charges() if charge.question_id is not None and not charge.sent]
    rows = [{"from": one.asked_at, "until": one.asked_until, "name": one.name} for one in held]
    lines = [one_line(f"{time_text(one.asked_at)} to {time_text(one.asked_until)}  {one.name}") for one in held]
    show(rows, [*lines, f"{len(held)} reserved"], as_json=as_json)


@click.command("log", cls=StrictCommand)
@CONFIG
@JSON
def log(config: Path, as_json: bool) -> None:
    """Tell in words what this device was asked, what it reserved, answered and refused, the oldest first."""
    book, spool, settings = _open(config)
    told = sorted([*_answers(spool), *_question_lines(book, spool), *_refusals(spool)])
    lines = [one_line(f"{time_text(moment)}  {text}") for moment, text in told]
    lines.append(f"{len(told)} entries; a truth is never among them. {_private_line(settings)}")
    show([{"at": moment, "text": text} for moment, text in told], lines, as_json=as_json)


def _answers(spool: Spool) -> Iterator[tuple[float, str]]:
    for answer in spool.answers():
        said = {"delivered": "answered", "given_up": "sent, but not receipted in time", "rejected": "sent, but refused"}
        how = said.get(answer.phase.name.lower(), "being answered")
        why = f" ({answer.reason})" if answer.reason else ""
        yield answer.asked_at, f"{how}: {answer.name!r} about {answer.signal}{why}"


def _question_lines(book: Subscriptions, spool: Spool) -> Iterator[tuple[float, str]]:
    said = {
        QuestionState.OFFERED: "asked to join {name!r}; waits for your word (fleetcount device question join)",
        QuestionState.JOINED: "joined {name!r}: {reserved} charges reserved or sent",
        QuestionState.LEFT: "left {name!r}: {reserved} charges stay, as something was sent for them",
        QuestionState.REFUSED: "refused to join {name!r}: {reason}",
        QuestionState.ENDED: "{name!r} has ended: {reserved} charges stay, as something was sent for them",
    }
    for row in book.rows():
        held = len(_reserved(spool, row.question_id))
        yield row.changed_at, said[row.state].format(name=row.name, reserved=held, reason=row.reason)


def _refusals(spool: Spool) -> Iterator[tuple[float, str]]:
    for refusal in spool.refusals():
        yield refusal.refused_at, f"refused: {refusal.name!r} ({refusal.rule}: {refusal.message})"


def _about(known: KnownQuestion, row: QuestionRow, spool: Spool) -> Iterator[str]:
    schedule, one = known.asked.schedule, known.asked
    yield (
        f"{schedule.windows} windows from {time_text(schedule.opens(0))} to {time_text(schedule.end)} about"
        f" {one.signal}, one every {schedule.every_s} s; a coin holds for a {one.coin.name.lower()}"
    )
    held = _reserved(spool, row.question_id)
    if held:
        sent, answers = sum(charge.sent for charge in held), sum(charge.answers for charge in held)
        yield (
            f"{sent} charges sent, {len(held) - sent} reserved; if no operator were honest, all together would see"
            f" {decimal_text(answers)} of its answers on average"
        )


def _reserved(spool: Spool, question_id: bytes) -> list[Charge]:
    return [charge for charge in spool.charges() if charge.question_id == question_id]


def _private_line(settings: DeviceSettings) -> str:
    if settings.private is None:
        return "No place or value is private."
    names = ", ".join(sorted(settings.private.signals))
    return (
        f"In your private places and at your private values of {names} the answer is 'none'; no other party can tell."
    )


def _find(book: Subscriptions, which: str) -> QuestionRow:
    """Return the question of a name or of the beginning of an id.

    Raises:
        UsageError: none, or more than one.
    """
    found = [
        row
        for row in book.rows()
        if row.name == which or (len(which) >= _SHORTEST_ID and row.question_id.hex().startswith(which.lower()))
    ]
    if len(found) != 1:
        raise UsageError(f"{len(found)} questions are called {which!r}; 'fleetcount device question list' shows ids")
    return found[0]


def _open(config: Path) -> tuple[Subscriptions, Spool, DeviceSettings]:
    settings, spool = open_spool(config)
    return book_of(settings, spool), spool, settings

"""`fleetcount device run` and what its owner asks of it: what it was asked, answered and spent, and how it stands.

It must not print a truth, a coin or a key.
"""

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import asdict
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import click
from cryptography.x509 import Certificate
from fleetcount_client.assembly import book_of, identity_of
from fleetcount_client.charges import Charge, LedgerAge, judge_age, ready_at
from fleetcount_client.config import DeviceSettings, load_settings
from fleetcount_client.contact import Outcome, OutcomeKind
from fleetcount_client.device import Device
from fleetcount_client.ledger import spent_within
from fleetcount_client.question_rows import QuestionRow, QuestionState
from fleetcount_client.renewal import check_next, next_file, not_valid
from fleetcount_client.spool import Spool, SpoolFile
from fleetcount_client.spool_rows import NotedRefusal
from fleetcount_client.subscriptions import KnownQuestion, Subscriptions
from fleetcount_client.transport import Unreachable
from fleetcount_mechanisms.accounting.vectors import LossVector, decimal_of
from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.errors import MachineError, RejectReason, UsageError
from fleetcount_protocol.window.domain import signals_text

from fleetcount.command.base import (
    JSON,
    CannotReachError,
    ExitCode,
    RefusedByPolicyError,
    StrictCommand,
    one_line,
    show,
)
from fleetcount.command.options import config_option

CONFIG = config_option("The device's file.")
_NOT_TAKEN: Final = ": an aggregator does not take this certificate: it is denied there, or ends before the window does"
_LONGEST_END_S: Final = 5.0
"""How long after SIGTERM the process is still there, at most."""


@click.command("ledger", cls=StrictCommand)
@CONFIG
@JSON
def ledger(config: Path, as_json: bool) -> None:
    """List every answered window and reserved unit with its cost, the totals of the period, and what was refused."""
    settings, spool = open_spool(config)
    charges = spool.charges()
    policy, now = settings.policy, int(time.time())
    spent = spent_within(policy, charges, now - policy.budget_period_s, now + 1)
    ahead = sum(not charge.sent for charge in charges)
    lines = [one_line(_charge_line(charge)) for charge in charges]
    lines.append(
        f"answered {len(charges) - ahead}, reserved {ahead}; in the last {policy.budget_period_s} s: {spent.charges}"
        f" charges, within epsilon {decimal_text(spent.epsilon)} of {decimal_text(policy.total_epsilon)}"
        f" at delta {policy.total_delta}"
    )
    lines.append(
        f"all operators together, if none is honest: they see {decimal_text(spent.answers)} of these answers on average"
        f" and any of them with a chance of at most {decimal_text(min(spent.chance, 1))};"
        f" trust = {policy.trust.value!r}"
    )
    if spent.one_sided:
        lines.append(f"{spent.one_sided} of them were one-sided: the sum holds for a value replaced by none only")
    if spent.without_epsilon:
        lines.append(f"{spent.without_epsilon} of them had no finite loss; their cost is the exposure alone")
    for refusal in spool.refusals():
        text = f"refused {refusal.question_id.hex()[:12]}  {refusal.name}  {refusal.rule}: {refusal.message}"
        lines.append(one_line(f"{utc_text(refusal.refused_at)}  {text}"))
    found = {
        "charges": [_charge_json(charge) for charge in charges],
        "answered": len(charges) - ahead,
        "reserved": ahead,
        "epsilon": decimal_text(spent.epsilon),
        "budget": decimal_text(policy.total_epsilon),
        "delta": str(policy.total_delta),
        "period_s": policy.budget_period_s,
        "charges_in_period": spent.charges,
        "one_sided": spent.one_sided,
        "without_epsilon": spent.without_epsilon,
        "answers_seen": decimal_text(spent.answers),
        "chance_seen": decimal_text(min(spent.chance, 1)),
        "trust": policy.trust.value,
        "refused": [_refusal_json(refusal) for refusal in spool.refusals()],
    }
    show(found, lines, as_json=as_json)


def _charge_json(charge: Charge) -> dict[str, Any]:
    return {
        "asked_at": charge.asked_at,
        "charge_id": charge.charge_id.hex(),
        "sent": charge.sent,
        "epsilon": None if charge.epsilon is None else str(charge.epsilon),
        "renyi": None if charge.loss is None else {str(order): str(at) for order, at in _renyi_of(charge.loss)},
        "relation": charge.relation.value,
        "exposure": str(charge.exposure),
        "signal": charge.signal,
        "name": charge.name,
    }


def _refusal_json(refusal: NotedRefusal) -> dict[str, Any]:
    return asdict(refusal) | {"question_id": refusal.question_id.hex()}


@click.command("spool", cls=StrictCommand)
@CONFIG
@JSON
def spool(config: Path, as_json: bool) -> None:
    """List every answer with its phase and how many messages still wait for a receipt; shows no content."""
    _, store = open_spool(config)
    reports = store.reports()
    rows: list[dict[str, Any]] = [
        {
            "window_id": report.window_id.hex(),
            "phase": report.phase.name.lower(),
            "waiting": sum(len(store.outbox(report.window_id, number)) for number in (0, 1, 2)),
            "reason": report.reason,
        }
        for report in reports
    ]
    lines = [f"{one['window_id'][:12]}  {one['phase']:<10} {one['waiting']} waiting  {one['reason']}" for one in rows]
    lines.append(f"{len(reports)} answers, {sum(not report.phase.final for report in reports)} unfinished")
    show(rows, map(one_line, lines), as_json=as_json)


def open_spool(config: Path) -> tuple[DeviceSettings, Spool]:
    """Return the settings and the spool of a device that has run; raises UsageError for one that has not."""
    settings = load_settings(config)
    if not settings.state_file.is_file():
        raise UsageError(f"state file {settings.state_file} does not exist: this device has not run yet")
    spool = SpoolFile(settings.state_file).device()
    # Not left to the interpreter's end, which may miss a cycle, and then the write-ahead log stays.
    click.get_current_context().call_on_close(spool.file.close)
    return settings, spool


def _charge_line(charge: Charge) -> str:
    cost = "no finite loss"
    if charge.epsilon is not None:
        cost = f"epsilon {charge.epsilon}"
    elif charge.loss is not None:
        cost = "Renyi " + ", ".join(f"{decimal_text(at)} at order {order}" for order, at in _renyi_of(charge.loss))
    what = "answered" if charge.sent else "reserved"
    return (
        f"{utc_text(charge.asked_at)}  {charge.charge_id.hex()[:12]}  {what}  {cost:<24} {charge.relation.value:<9}"
        f" exposure {charge.exposure!s:<8} {charge.signal}  {charge.name}"
    )


def _renyi_of(loss: LossVector) -> Iterator[tuple[int, Decimal]]:
    return zip(loss.orders, map(decimal_of, loss.at), strict=True)


def decimal_text(value: object) -> str:
    """Return a loss, a chance or a limit with at most five places, rounded up: none may read smaller than it is."""
    fraction = Fraction(str(value))
    decimal = Decimal(fraction.numerator) / Decimal(fraction.denominator)
    return f"{decimal.quantize(Decimal('0.00001'), ROUND_CEILING).normalize():f}"


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
    lines = [one_line(f"{utc_text(one.asked_at)} to {utc_text(one.asked_until)}  {one.name}") for one in held]
    show(rows, [*lines, f"{len(held)} reserved"], as_json=as_json)


@click.command("log", cls=StrictCommand)
@CONFIG
@JSON
def log(config: Path, as_json: bool) -> None:
    """Tell in words what this device was asked, what it reserved, answered and refused, the oldest first."""
    book, spool, settings = _open(config)
    told = sorted([*_answers(spool), *_question_lines(book, spool), *_refusals(spool)])
    lines = [one_line(f"{utc_text(moment)}  {text}") for moment, text in told]
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
        f"{schedule.windows} windows from {utc_text(schedule.opens(0))} to {utc_text(schedule.end)} about"
        f" {signals_text(one.parts)}, one every {schedule.every_s} s; a coin holds for a {one.coin.name.lower()}"
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


@click.command("run", cls=StrictCommand)
@CONFIG
@click.option("--once", is_flag=True, help="Answer what is on offer now, to the end of its windows, and exit.")
def run(config: Path, once: bool) -> None:
    """Answer questions as the owner's policy allows, until SIGTERM or SIGINT.

    With --once it says on stderr which window it waits for and until when; the exit code is 0 when every question on
    offer was answered or seen too late, or none was on offer; 3 when a policy or an aggregator refused one; 4 when an
    aggregator stayed out of reach. Without it, one line a window goes to stderr when it has ended.
    """
    unit = Device.from_config(config)
    if not once:
        _log_to_stderr()
    try:
        outcomes = asyncio.run(_run(unit, once=once))
    except Unreachable as error:
        raise CannotReachError(str(error)) from error
    except asyncio.CancelledError:
        click.get_current_context().exit(ExitCode.OK)  # SIGTERM: what is begun is stored and goes on next time.
    _conclude(outcomes)


async def _run(unit: Device, *, once: bool) -> tuple[Outcome, ...]:
    with _ended_by_sigterm():
        async with unit:
            if once:
                return await unit.answer(begins=_say_until_when)
            await unit.serve()
    return ()


def _say_until_when(questions: tuple[KnownQuestion, ...]) -> None:
    """Say on stderr of each question which window is next, or open, and when the last one closes."""
    now = time.time()
    for known in questions:
        index, schedule = known.next_window(-1, now), known.asked.schedule
        if index is None:
            told = "no window opens any more"
        else:
            opens = schedule.opens(index)
            told = f"window {index} of {schedule.windows} {'opened' if opens <= now else 'opens'} at {utc_text(opens)}"
        text = f"takes part in {known.asked.name!r}: {told}; waits until the last closes at {utc_text(schedule.end)}"
        click.echo(one_line(text), err=True)


@contextlib.contextmanager
def _ended_by_sigterm() -> Generator[None]:
    """Cancel the present task at SIGTERM, and end the process when that has not ended it within seconds."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def stop(*_: object) -> None:
        if task is not None:
            loop.call_soon_threadsafe(task.cancel)
        # A loop that a source holds runs nothing; what is begun is stored, as before a power cut.
        ending = threading.Timer(_LONGEST_END_S, os._exit, [ExitCode.OK])
        ending.daemon = True
        ending.start()

    # Not a handler of the loop, which waits for its turn: this one also interrupts a call that waits.
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("fleetcount_client")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def reason_of(outcome: Outcome) -> str:
    """Return why a window ended so; of an aggregator that takes no certificate of this device, what that may be."""
    return outcome.reason + (_NOT_TAKEN if outcome.reason == RejectReason.BAD_CERTIFICATE.label else "")


def _conclude(outcomes: Iterable[Outcome]) -> None:
    """Print one line a window and exit as the worst of them says."""
    outcomes = tuple(outcomes)
    for outcome in outcomes:
        click.echo(
            one_line(f"{outcome.kind.value:<10} {outcome.window_id.hex()[:12]}  {outcome.name}  {reason_of(outcome)}")
        )
        if outcome.fault:
            click.echo(one_line(f"{'':<10} answered as none of the values: {outcome.fault}"))
    if not outcomes:
        click.echo("no question on offer")
    kinds = [outcome.kind for outcome in outcomes]
    named = [f"{one.name}: {reason_of(one)}" for one in outcomes if one.kind is not OutcomeKind.DELIVERED]
    if OutcomeKind.FAILED in kinds:
        raise MachineError(named[0])
    if OutcomeKind.REFUSED in kinds or OutcomeKind.REJECTED in kinds:
        raise RefusedByPolicyError(named[0])
    if OutcomeKind.GIVEN_UP in kinds:
        raise CannotReachError(named[0])


@click.command("status", cls=StrictCommand)
@CONFIG
@JSON
def status(config: Path, as_json: bool) -> None:
    """Say until when the certificate is valid, when the next one is due, why one that came is not taken, and from when
    on the device answers.
    """
    settings, now = load_settings(config), time.time()
    identity = identity_of(settings)
    ends = identity.certificate.not_valid_after_utc.timestamp()
    lapsed = not_valid(identity.certificate, now)
    waiting, due = next_file(settings.certificate_file), ends - settings.renewal.before_s
    if waiting.exists():
        try:
            check_next(identity, waiting, now)
            renewal = f"{waiting.name} is there and will be taken"
        except UsageError as error:
            renewal = f"not taken: {error}"
    else:
        how = "by its command" if settings.renewal.command else f"no command is set: put it at {waiting.name}"
        renewal = f"due {'since' if now >= due else 'from'} {utc_text(due)}, {how}"
    answers = f"nothing: {lapsed}" if lapsed else wait_of(settings, identity.certificate, now)
    found = {"ends": int(ends), "due": int(due), "valid": not lapsed, "renewal": renewal, "waits": answers}
    lines = [
        f"certificate until {utc_text(ends)}, {max(0, int(ends - now) // 86_400)} days left",
        one_line(f"renewal {renewal}"),
        one_line(f"answers {answers or 'what is on offer, as the policy says'}"),
    ]
    show(found, lines, as_json=as_json)


def wait_of(settings: DeviceSettings, certificate: Certificate, now: float) -> str:
    """Return from when on a device answers, why not before, and what would change it; "" if it answers now.

    A ledger that has not begun is judged as if it began now; nothing is stored.
    """
    known = None
    if settings.state_file.is_file():
        with contextlib.closing(SpoolFile(settings.state_file)) as file:
            known = file.device().known_age()
    first_valid = int(certificate.not_valid_before_utc.timestamp())
    age = known or LedgerAge(created_at=now, first_valid=first_valid)
    refusal = judge_age(settings.policy, age, now)
    if refusal is None:
        return ""
    ends = certificate.not_valid_after_utc.timestamp()
    too_short = f"; its certificate ends before, {utc_text(ends)}: renew it in time"
    return refusal.message + (too_short if ends <= ready_at(settings.policy, age) else "")

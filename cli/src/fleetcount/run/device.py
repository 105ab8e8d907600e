"""`fleetcount device`: run one device from its configuration; let its owner read the ledger and the spool.

Prints what was answered, spent and refused; never a truth, a coin or a key.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fleetcount.command.exits import CannotReachError, ExitCode, RefusedByPolicyError, one_line
from fleetcount.command.lazy import LazyGroup, table
from fleetcount.command.results import JSON, show

if TYPE_CHECKING:  # `fleetcount --help` and the two reading commands start without cryptography.
    from fleetcount_client.charges import Charge
    from fleetcount_client.config import DeviceSettings
    from fleetcount_client.device import Device
    from fleetcount_client.outcome import Outcome
    from fleetcount_client.spool import Spool
    from fleetcount_client.spool_rows import NotedRefusal

CONFIG = click.option(
    "--config", "config", required=True, metavar="FILE.toml", type=click.Path(path_type=Path), help="The device's file."
)
_LAST_TIME: Final = 253_402_300_799


@click.group(
    cls=LazyGroup,
    short_help="Run one device; read its ledger and spool.",
    lazy=table(
        [
            ("log", "fleetcount.run.device_questions", "log", "What was asked, reserved, answered and refused."),
            (
                "question",
                "fleetcount.run.device_questions",
                "question",
                "Questions of many windows: join, leave.",
            ),
        ]
    ),
)
def device() -> None:
    """Run one device, or read what it answered and spent.

    Exit codes: 0 done, 2 usage or configuration, 3 refused by policy or protocol, 4 cannot reach an aggregator,
    5 this machine (disk, store), 130 interrupted.
    """


@device.command("run", short_help="Answer questions until stopped.")
@CONFIG
@click.option("--once", is_flag=True, help="Answer what is on offer now, to the end of its windows, and exit.")
def run(config: Path, once: bool) -> None:
    """Answer questions as the owner's policy allows, until SIGTERM or SIGINT.

    With --once the exit code is 0 when every question on offer was answered or seen too late, or none was on offer; 3
    when a policy or an aggregator refused one; 4 when an aggregator stayed out of reach. Without it, one line a window
    goes to stderr when it has ended.
    """
    from fleetcount_client.device import Device  # Loads cryptography: only when a device runs.
    from fleetcount_client.transport import Unreachable

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


async def _run(unit: "Device", *, once: bool) -> "tuple[Outcome, ...]":
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    if task is not None:
        with contextlib.suppress(NotImplementedError):  # No signal handlers on some platforms' loops.
            loop.add_signal_handler(signal.SIGTERM, task.cancel)
    async with unit:
        if once:
            return await unit.answer()
        await unit.serve()
    return ()


def _log_to_stderr() -> None:
    import logging

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("fleetcount_client")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _conclude(outcomes: "Iterable[Outcome]") -> None:
    """Print one line a window and exit as the worst of them says."""
    from fleetcount_client.outcome import OutcomeKind

    outcomes = tuple(outcomes)
    for outcome in outcomes:
        click.echo(
            one_line(f"{outcome.kind.value:<10} {outcome.window_id.hex()[:12]}  {outcome.name}  {outcome.reason}")
        )
    if not outcomes:
        click.echo("no question on offer")
    kinds = [outcome.kind for outcome in outcomes]
    named = [f"{outcome.name}: {outcome.reason}" for outcome in outcomes if outcome.kind is not OutcomeKind.DELIVERED]
    if OutcomeKind.FAILED in kinds:
        from fleetcount_protocol.errors import MachineError

        raise MachineError(named[0])
    if OutcomeKind.REFUSED in kinds or OutcomeKind.REJECTED in kinds:
        raise RefusedByPolicyError(named[0])
    if OutcomeKind.GIVEN_UP in kinds:
        raise CannotReachError(named[0])


@device.command("ledger", short_help="What was answered and what it cost.")
@CONFIG
@JSON
def ledger(config: Path, as_json: bool) -> None:
    """List every answered window and reserved unit with its cost, the totals of the period, and what was refused."""
    from fleetcount_client.ledger import spent_within

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
        lines.append(one_line(f"{time_text(refusal.refused_at)}  {text}"))
    found = {
        "charges": [_charge_json(charge) for charge in charges],
        "answered": len(charges) - ahead,
        "reserved": ahead,
        "epsilon": decimal_text(spent.epsilon),
        "budget": decimal_text(policy.total_epsilon),
        "delta": str(policy.total_delta),
        "period_s": policy.budget_period_s,
        "refused": [_refusal_json(refusal) for refusal in spool.refusals()],
    }
    show(found, lines, as_json=as_json)


def _charge_json(charge: "Charge") -> dict[str, Any]:
    return {
        "asked_at": charge.asked_at,
        "charge_id": charge.charge_id.hex(),
        "sent": charge.sent,
        "epsilon": None if charge.epsilon is None else str(charge.epsilon),
        "relation": charge.relation.value,
        "exposure": str(charge.exposure),
        "signal": charge.signal,
        "name": charge.name,
    }


def _refusal_json(refusal: "NotedRefusal") -> dict[str, Any]:
    return {
        "refused_at": refusal.refused_at,
        "question_id": refusal.question_id.hex(),
        "name": refusal.name,
        "rule": refusal.rule,
        "message": refusal.message,
    }


@device.command("status", short_help="The certificate, its end, and the next one.")
@CONFIG
@JSON
def status(config: Path, as_json: bool) -> None:
    """Say until when the certificate is valid, when the next one is due, and why one that came is not taken."""
    from fleetcount_client.assembly import identity_of
    from fleetcount_client.config import load_settings
    from fleetcount_client.renewal import check_next, next_file
    from fleetcount_protocol.errors import UsageError

    settings, now = load_settings(config), time.time()
    identity = identity_of(settings)
    ends = identity.certificate.not_valid_after_utc.timestamp()
    state = "has ended" if now > ends else f"{int((ends - now) // 86_400)} days left"
    waiting, due = next_file(settings.certificate_file), ends - settings.renewal.before_s
    if waiting.exists():
        try:
            check_next(identity, waiting, now)
            renewal = f"{waiting.name} is there and will be taken"
        except UsageError as error:
            renewal = f"not taken: {error}"
    else:
        how = "by its command" if settings.renewal.command else f"nobody is asked: put it at {waiting.name}"
        renewal = f"due {'since' if now >= due else 'from'} {time_text(due)}, {how}"
    found = {"ends": int(ends), "due": int(due), "valid": now <= ends, "renewal": renewal}
    lines = [f"certificate  until {time_text(ends)}, {state}", one_line(f"renewal      {renewal}")]
    show(found, lines, as_json=as_json)


@device.command("spool", short_help="What is on its way.")
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


def open_spool(config: Path) -> "tuple[DeviceSettings, Spool]":
    """Return the settings and the spool of a device that has run; raises UsageError for one that has not."""
    from fleetcount_client.config import load_settings
    from fleetcount_client.spool import SpoolFile
    from fleetcount_protocol.errors import UsageError

    settings = load_settings(config)
    if not settings.state_file.is_file():
        raise UsageError(f"state file {settings.state_file} does not exist: this device has not run yet")
    return settings, SpoolFile(settings.state_file).device()


def _charge_line(charge: "Charge") -> str:
    from fleetcount_mechanisms.accounting.vectors import decimal_of

    cost = "no finite loss"
    if charge.epsilon is not None:
        cost = f"epsilon {charge.epsilon}"
    elif charge.loss is not None:
        shown = zip(charge.loss.orders, map(decimal_of, charge.loss.at), strict=True)
        cost = "Renyi " + ", ".join(f"{decimal_text(at)} at order {order}" for order, at in shown)
    what = "answered" if charge.sent else "reserved"
    return (
        f"{time_text(charge.asked_at)}  {charge.charge_id.hex()[:12]}  {what}  {cost:<24} {charge.relation.value:<9}"
        f" exposure {charge.exposure!s:<8} {charge.signal}  {charge.name}"
    )


def time_text(seconds: float) -> str:
    """Return a Unix time as people read it, UTC."""
    return datetime.fromtimestamp(min(max(seconds, 0), _LAST_TIME), UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def decimal_text(value: object) -> str:
    """Return an exact number with at most five places."""
    from decimal import Decimal
    from fractions import Fraction

    fraction = Fraction(str(value))
    decimal = Decimal(fraction.numerator) / Decimal(fraction.denominator)
    return f"{decimal.quantize(Decimal('0.00001')).normalize():f}"

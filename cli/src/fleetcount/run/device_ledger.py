"""`fleetcount device ledger` and `spool`: let a device's owner read what was answered, spent and refused.

Prints no truth, no coin and no key. Loads no cryptography.
"""

import time
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import click
from fleetcount_client.charges import Charge
from fleetcount_client.config import DeviceSettings, load_settings
from fleetcount_client.ledger import spent_within
from fleetcount_client.spool import Spool, SpoolFile
from fleetcount_client.spool_rows import NotedRefusal
from fleetcount_mechanisms.accounting.vectors import decimal_of
from fleetcount_protocol.errors import UsageError

from fleetcount.command.exits import one_line
from fleetcount.command.lazy import StrictCommand
from fleetcount.command.results import JSON, show

CONFIG = click.option(
    "--config", "config", required=True, metavar="FILE.toml", type=click.Path(path_type=Path), help="The device's file."
)
_LAST_TIME: Final = 253_402_300_799


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


def _charge_json(charge: Charge) -> dict[str, Any]:
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


def _refusal_json(refusal: NotedRefusal) -> dict[str, Any]:
    return {
        "refused_at": refusal.refused_at,
        "question_id": refusal.question_id.hex(),
        "name": refusal.name,
        "rule": refusal.rule,
        "message": refusal.message,
    }


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
    return settings, SpoolFile(settings.state_file).device()


def _charge_line(charge: Charge) -> str:
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
    fraction = Fraction(str(value))
    decimal = Decimal(fraction.numerator) / Decimal(fraction.denominator)
    return f"{decimal.quantize(Decimal('0.00001')).normalize():f}"

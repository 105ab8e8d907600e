"""`fleetcount device run` and `status`: run one device from its configuration; say how its certificate stands.

Prints what was answered and refused; never a truth, a coin or a key.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import click
from fleetcount_client.assembly import identity_of
from fleetcount_client.config import load_settings
from fleetcount_client.device import Device
from fleetcount_client.outcome import Outcome, OutcomeKind
from fleetcount_client.renewal import check_next, next_file
from fleetcount_client.transport import Unreachable
from fleetcount_protocol.errors import MachineError, UsageError

from fleetcount.command.exits import CannotReachError, ExitCode, RefusedByPolicyError, one_line
from fleetcount.command.lazy import StrictCommand
from fleetcount.command.results import JSON, show
from fleetcount.run.device_ledger import CONFIG, time_text


@click.command("run", cls=StrictCommand)
@CONFIG
@click.option("--once", is_flag=True, help="Answer what is on offer now, to the end of its windows, and exit.")
def run(config: Path, once: bool) -> None:
    """Answer questions as the owner's policy allows, until SIGTERM or SIGINT.

    With --once the exit code is 0 when every question on offer was answered or seen too late, or none was on offer; 3
    when a policy or an aggregator refused one; 4 when an aggregator stayed out of reach. Without it, one line a window
    goes to stderr when it has ended.
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
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("fleetcount_client")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _conclude(outcomes: Iterable[Outcome]) -> None:
    """Print one line a window and exit as the worst of them says."""
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
        raise MachineError(named[0])
    if OutcomeKind.REFUSED in kinds or OutcomeKind.REJECTED in kinds:
        raise RefusedByPolicyError(named[0])
    if OutcomeKind.GIVEN_UP in kinds:
        raise CannotReachError(named[0])


@click.command("status", cls=StrictCommand)
@CONFIG
@JSON
def status(config: Path, as_json: bool) -> None:
    """Say until when the certificate is valid, when the next one is due, and why one that came is not taken."""
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
        how = "by its command" if settings.renewal.command else f"no command is set: put it at {waiting.name}"
        renewal = f"due {'since' if now >= due else 'from'} {time_text(due)}, {how}"
    found = {"ends": int(ends), "due": int(due), "valid": now <= ends, "renewal": renewal}
    lines = [f"certificate  until {time_text(ends)}, {state}", one_line(f"renewal      {renewal}")]
    show(found, lines, as_json=as_json)

"""`fleetcount aggregator`: run one aggregator, and look at what it holds.

Loads the aggregator's packages only when a command runs.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleetcount.lazy import LazyGroup

if TYPE_CHECKING:
    from fleetcount_aggregator.tasks.status import SeriesLine

__all__ = ["aggregator"]

_CONFIG = click.option(
    "--config",
    required=True,
    metavar="FILE.toml",
    type=click.Path(path_type=Path),
    help="The aggregator's file.",
)


@click.group(cls=LazyGroup, short_help="Run one aggregator.")
def aggregator() -> None:
    """Run one aggregator, or look at its tasks.

    Exit codes: 0 done, 2 usage or configuration, 3 refused, 4 cannot reach a party, 5 this machine (disk, store, port),
    130 interrupted.
    """


@aggregator.command("serve", short_help="Serve devices and peers until SIGTERM.")
@_CONFIG
def serve(config: Path) -> None:
    """Serve devices and the other aggregators until SIGTERM or Ctrl-C.

    Prints one JSON line ("event": "ready") on standard output once it listens, with the ports it is bound to; logs go
    to standard error, a JSON object a line. SIGTERM finishes what is under way and exits with 0.
    """
    from fleetcount_transport import hardening

    hardening.keep_out_of_dumps()
    from fleetcount_aggregator.app import run
    from fleetcount_aggregator.config import load_config
    from fleetcount_transport.logs import configure

    settings = load_config(config, os.environ)
    configure(settings.log.level)
    run(settings)


@aggregator.command("status", short_help="The tasks of an aggregator and where they stand.")
@_CONFIG
def status(config: Path) -> None:
    """List every series with its windows, every task with its state, refusals by reason, and the budget spent.

    Reads the store of this machine, whether the aggregator runs or not.
    """
    from fleetcount_aggregator.config import load_config
    from fleetcount_aggregator.tasks.status import read_status

    settings = load_config(config, os.environ)
    found = read_status(settings.aggregator.state_directory)
    for series in found.series:
        for line in _series_lines(series):
            click.echo(line)
    for task in found.tasks:
        why = f" ({task.abort_reason})" if task.abort_reason else ""
        window = "" if task.window is None else f"  window {task.window}"
        click.echo(f"{task.task_id.hex()[:12]}  {task.state.value}{why}  {task.name}{window}")
        for reason, count in sorted(task.rejections.items(), key=lambda item: item[0].label):
            click.echo(f"    refused: {reason.label} {count}")
    if not (found.tasks or found.series):
        click.echo("no tasks")
    for row in found.ledger:
        click.echo(f"ledger  {row.task_id.hex()[:12]}  {row.signal}  epsilon {row.epsilon}")


def _series_lines(series: "SeriesLine") -> Iterator[str]:
    """Return what an operator reads of one series: how far it is, what comes next, and what is missing why."""
    from fleetcount.task_files import utc

    following = "no window to come" if series.opens is None else f"window {series.following} at {utc(series.opens)}"
    head = f"series {series.series_id.hex()[:12]}  {series.released} of {series.windows} released"
    yield f"{head}, {following}  {series.name}"
    for reason, windows in sorted(series.missing.items()):
        yield f"    missing: {reason} {len(windows)}, the last is window {windows[-1]}"

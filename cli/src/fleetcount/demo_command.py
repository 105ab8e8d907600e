"""`fleetcount demo`: a whole fleet, its aggregators and its broker on this machine, from keys to picture.

Reads options, shows progress, prints the result; the work is in demo_question, demo_run and demo_outputs.
"""

import asyncio
import contextlib
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from fleetcount_protocol.errors import UsageError

from fleetcount.exits import one_line
from fleetcount.files import check_output_directory, staged_directory
from fleetcount.lazy import StrictCommand
from fleetcount.numbers import EPSILON, SAMPLING_RATE, SEED, Count

if TYPE_CHECKING:  # Protocol, simulator and figures are loaded when the options are known to be good.
    from fleetcount.demo_question import DemoOptions, Question
    from fleetcount.demo_run import DemoResult

__all__ = ["demo"]

_FILE = click.Path(path_type=Path)
_BROKERS = {"mosquitto": "mosquitto", "embedded": "amqtt; with mosquitto installed the demo is faster"}


@click.command(cls=StrictCommand, short_help="Count a fleet on this machine, from keys to picture.")
@click.option("--vehicles", type=Count(2, 100_000), help="How many (default 2000, or all rows of --truths).")
@click.option("--aggregators", type=Count(2, 5), default=2, show_default=True, help="How many, 2 to 5.")
@click.option(
    "--transport",
    type=click.Choice(["grpc", "mqtt", "both"]),
    default="both",
    show_default=True,
    help="gRPC with mutual TLS, MQTT, or half the fleet over each.",
)
@click.option(
    "--mode",
    type=click.Choice(["sampling", "mangat"]),
    default="sampling",
    show_default=True,
    help="Two-round Sampling Privacy, or Mangat's response to a yes/no question: faster than 50 km/h?",
)
@click.option(
    "--epsilon", type=EPSILON, default="1", show_default=True, help="Loss of the published counts, 0.001 to 10."
)
@click.option("--sampling-rate", type=SAMPLING_RATE, help="Between 0 and 1/2 (default 0.25; 0.45 for yes/no).")
@click.option("--truths", type=_FILE, help="CSV with the columns vehicle,value instead of Bologna.")
@click.option("--yes", help="With --truths and --mode mangat: the value that means yes.")
@click.option("--output", type=_FILE, default="out", show_default=True, help="Where the results go.")
@click.option("--seed", type=SEED, default="1", show_default=True, help="Chooses moment and vehicles, never coins.")
@click.option("--insecure-coins", is_flag=True, help="Devices' coins from the seed too: repeatable, protects nobody.")
@click.option("--keep", is_flag=True, help="Keep keys, stores and logs of the run, and say where.")
def demo(**options: Any) -> None:
    """Count a fleet on this machine: aggregators, an MQTT broker and 2,000 vehicles as processes of their own.

    The vehicles' positions come from one morning in Bologna; each answers "in which cell of a 250 m grid are you now?"
    by two-round Sampling Privacy, in secret shares, over real connections with its own certificate. Prints every
    cell's estimate, 95 % interval and truth (known only because it is a demo), and what each adversary could learn.

    Writes release.json (signed), comparison.csv, map.svg and map.png. Exit code 0; 130 when interrupted.
    """
    from fleetcount.demo_question import DemoOptions, question_of

    wanted = DemoOptions(**options)
    check_output_directory(wanted.output)
    question = question_of(wanted)
    click.echo(one_line(f"{question.scenario.question} asked of {question.vehicles} vehicles"))
    with _state_directory(keep=wanted.keep) as directory:
        result = asyncio.run(_run(question, wanted, directory))
        _finish(question, wanted, result)


@contextlib.contextmanager
def _state_directory(*, keep: bool) -> Generator[Path]:
    """Give a private directory; it is removed at the end, after errors too, unless it is to be kept."""
    try:
        directory = Path(tempfile.mkdtemp(prefix="fleetcount-demo-"))
    except OSError as error:
        raise UsageError(f"no temporary directory can be made: {error.strerror}") from error
    try:
        yield directory
    finally:
        if keep:
            click.echo(f"kept: {directory}", err=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)


async def _run(question: "Question", options: "DemoOptions", directory: Path) -> "DemoResult":
    from fleetcount.demo_run import run_demo
    from fleetcount.progress import progress_for

    task = asyncio.current_task()
    if task is not None:
        # SIGTERM ends the children in order, as Ctrl-C does.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        with progress_for() as progress:
            return await run_demo(question, options, directory, progress)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _finish(question: "Question", options: "DemoOptions", result: "DemoResult") -> None:
    from fleetcount.demo_outputs import covered, write_outputs
    from fleetcount.release_report import statement_lines, table_lines

    truths = question.scenario.truths()
    with staged_directory(options.output) as stage:
        write_outputs(stage, question.scenario.question, result.record, result.signatures, truths)
    for line in [*table_lines(result.record, truths), "", *statement_lines(result.record)]:
        click.echo(line)
    inside, level = covered(result.record, truths), f"{float(result.record.level * 100):g} %"
    click.echo(f"\n{inside} of {len(truths)} truths lie in their {level} interval")
    click.echo(f"{result.delivered} of {question.vehicles} vehicles hold every aggregator's receipt")
    if result.broker:
        click.echo(f"what went by MQTT went through {_BROKERS[result.broker]}")
    for reason, count in result.reasons.items():
        click.echo(one_line(f"  {count} vehicles: {reason}"))
    names = "release.json, comparison.csv, map.svg, map.png"
    click.echo(f"wrote {names} in {options.output}")

"""`fleetcount demo`: a whole fleet, its aggregators and its broker on this machine, from keys to picture.

Reads options, shows progress, prints the result; the work is done by the runner of fleets that studies use too.
"""

import asyncio
import contextlib
import importlib
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from fleetcount_protocol.errors import MachineError, UsageError

from fleetcount.exits import RefusedByPolicyError, one_line
from fleetcount.files import check_output_directory, staged_directory
from fleetcount.lazy import OneOf, StrictCommand
from fleetcount.numbers import EPSILON, SAMPLING_RATE, SEED, Count
from fleetcount.results import EXPLAIN, JSON, show

if TYPE_CHECKING:
    from fleetcount_protocol.release import ReleaseRecord
    from fleetcount_simulator.network.parties import Parties
    from fleetcount_simulator.network.run import Ask, Asked
    from fleetcount_site.watch.telling import Teller

    # Protocol, simulator and figures are loaded when the options are known to be good.
    from fleetcount.demo_question import DemoOptions, DemoQuestion
    from fleetcount.progress import Progress

__all__ = ["asked_of", "demo", "how_lines", "say_expected", "started"]

OPERATORS: Final = ("City of Bologna", "University of Bologna", "Automobile Club", "Consumer Union", "Road Authority")
ResultT = TypeVar("ResultT")
_FILE = click.Path(path_type=Path)
_LAST: Final = ("answers", "round two")
_SUMO_FIRST: Final = "SUMO drives the cars first, some ten seconds for 2,000"
_FIGURES: Final = "fleetcount_analysis.figures"
_BROKERS = {"mosquitto": "mosquitto", "embedded": "amqtt; with mosquitto installed the demo is faster"}


@click.command(cls=StrictCommand, short_help="Count a fleet on this machine, from keys to picture.")
@click.option("--vehicles", type=Count(2, 100_000), help="How many (default 2000, or all rows of --truths).")
@click.option("--aggregators", type=Count(2, 5), default=2, show_default=True, help="How many, 2 to 5.")
@click.option(
    "--transport",
    type=OneOf(["grpc", "mqtt", "both"]),
    default="both",
    show_default=True,
    help="gRPC with mutual TLS, MQTT, or half the fleet over each.",
)
@click.option(
    "--connections",
    type=OneOf(["shared", "own"]),
    help="One for all vehicles of a process, or one a vehicle, slower (default: shared; in a drill-down own).",
)
@click.option(
    "--mode",
    type=OneOf(["sampling", "mangat", "direct"]),
    default="sampling",
    show_default=True,
    help="Two-round Sampling Privacy, Mangat's response to a yes/no question (faster than 50 km/h?), or no coins.",
)
@click.option(
    "--epsilon", type=EPSILON, help="Loss of the published counts, 0.001 to 10 (default 1; 4 for a whole drill-down)."
)
@click.option(
    "--sampling-rate", type=SAMPLING_RATE, help="Between 0 and 1/2 (default 0.25; 0.45 for yes/no and drill-downs)."
)
@click.option(
    "--windows",
    type=Count(1, 13),
    default=1,
    show_default=True,
    help="Ask so often, as one signed question; the morning moves on five minutes a window.",
)
@click.option("--drill-down", is_flag=True, help="Ask from coarse to fine for the busy ones of 2^32 places of 128 m.")
@click.option("--sumo", is_flag=True, help="Cars that SUMO drives now in a made town (extra: traffic), not Bologna.")
@click.option("--truths", type=_FILE, help="CSV with the columns vehicle,value instead of Bologna.")
@click.option("--yes", help="With --truths and --mode mangat: the value that means yes.")
@click.option("--output", type=_FILE, default="out", show_default=True, help="Where the results go.")
@click.option("--seed", type=SEED, default="1", show_default=True, help="Chooses moment and vehicles, never coins.")
@click.option("--insecure-coins", is_flag=True, help="Devices' coins from the seed too: repeatable, protects nobody.")
@click.option("--keep", is_flag=True, help="Keep keys, stores and logs of the run, and say where.")
@click.option("--watch", is_flag=True, help="Show the run on a page for your browser, on this machine alone.")
@click.option("--port", type=Count(0, 65_535), help="Port of the page of --watch (default 0: a free one).")
@EXPLAIN
@JSON
def demo(**options: Any) -> None:
    """Count a fleet on this machine: aggregators, an MQTT broker and 2,000 vehicles as processes of their own.

    The vehicles' positions come from one morning in Bologna; each answers "in which cell of a 250 m grid are you now?"
    by two-round Sampling Privacy, in secret shares, over real connections, with its own certificate. Prints every
    cell's estimate, 95 % interval and truth (known only because it is a demo), and what each adversary could learn.

    Writes release.json (signed), comparison.csv, map.svg and map.png. Exit code 0; 130 when interrupted.

    Vehicles of a process share one connection, as behind a gateway: keys, certificates, sessions and receipts are each
    vehicle's own. With --connections own each connects for itself, which takes about twice as long.

    With --sumo: SUMO drives the cars, each a vehicle of the demo; its truth is its cell when the window is asked. A
    window later they have driven on for a minute. As in: fleetcount demo --sumo --vehicles 500

    With --windows: a record, a table and a map for each, all in one table and a moving picture; --output is then a
    directory that `fleetcount question export --records` reads.

    With --drill-down: four questions, each about the parts of what the signed record before shows busy, from squares of
    524 km to places of 128 m. Prints the places found beside the truth, what was missed, and what is known of all other
    places; --output is a directory that `fleetcount question places --records` reads.

    With --watch: prints the address of a page that shows what the law expects at once, then the run as it goes, what
    each party sees of a report, and the release with its signatures checked in your browser. It stays until Ctrl-C.
    """
    from fleetcount.demo_question import DemoOptions, check_together, question_of

    wanted = DemoOptions(**options)
    check_together(wanted)
    check_output_directory(wanted.output, fresh=wanted.windows > 1 or wanted.drill_down)
    if wanted.sumo:
        click.echo(_SUMO_FIRST, err=True)
    if wanted.watch:
        _watch(wanted)
        return
    question = question_of(wanted)
    click.echo(one_line(f"{question.scenario.question} asked of {question.vehicles} vehicles"), err=wanted.as_json)
    with _state_directory(keep=wanted.keep) as directory:
        if question.later:
            from fleetcount.demo_walk import finish_walk
            from fleetcount.demo_windows import asked_question, finish_question

            finish = finish_walk if wanted.drill_down else finish_question
            finish(question, wanted, asyncio.run(_run(question, wanted, directory, asked_question)))
        else:
            _finish(question, wanted, asyncio.run(_run(question, wanted, directory, _asked)))


def _watch(options: "DemoOptions") -> None:
    """Run the demo with its page, which is there before anything else is loaded."""
    from fleetcount.demo_watch import tell_question, tell_result, watched

    with watched(options) as teller:
        from fleetcount.demo_question import question_of  # Reads the morning: after the page.

        if options.sumo:
            teller.now("starting", f"{_SUMO_FIRST}.")
        question = question_of(options)
        click.echo(one_line(f"{question.scenario.question} asked of {question.vehicles} vehicles"))
        tell_question(teller, question, options)
        with _state_directory(keep=options.keep) as directory:
            asking = partial(_asked, teller=teller)
            result = asyncio.run(_run(question, options, directory, asking))
            tell_result(teller, result)
            _finish(question, options, result)


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


async def _run(
    question: "DemoQuestion",
    options: "DemoOptions",
    directory: Path,
    ask: "Callable[[DemoQuestion, DemoOptions, Path, Progress], Awaitable[ResultT]]",
) -> ResultT:
    from fleetcount.progress import progress_for

    task = asyncio.current_task()
    if task is not None:
        # SIGTERM ends the children in order, as Ctrl-C does.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        with progress_for() as progress:
            return await ask(question, options, directory, progress)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _asked(
    question: "DemoQuestion",
    options: "DemoOptions",
    directory: Path,
    progress: "Progress",
    teller: "Teller | None" = None,
) -> "Asked":
    """Start aggregators, broker and vehicles below `directory` and ask; everything has ended when this returns."""
    from fleetcount_simulator.network.run import ask

    asked = asked_of(question, options, progress)
    if teller is not None:
        from fleetcount.demo_watch import following

        asked = following(asked, teller)
    async with started(options, directory) as parties:
        return await ask(parties, asked, directory)


def started(options: "DemoOptions", directory: Path) -> "contextlib.AbstractAsyncContextManager[Parties]":
    """Return the aggregators and, where vehicles use MQTT, the broker, as processes below `directory`."""
    from fleetcount_simulator.network.parties import running

    broker = "" if options.transport == "grpc" else "auto"
    return running(directory, options.aggregators, deployment="demo", broker=broker, operators=OPERATORS)


def asked_of(question: "DemoQuestion", options: "DemoOptions", progress: "Progress") -> "Ask":
    """Return what is asked of the vehicles in the question's first scenario."""
    from fleetcount_simulator.network.device_faults import FleetFaults
    from fleetcount_simulator.network.run import Ask

    return Ask(
        name=question.scenario.window_name,
        question=question.network,
        transports=("grpc", "mqtt") if options.transport == "both" else (options.transport,),
        connections=options.ways,
        readings=question.scenario.readings,
        device_faults=FleetFaults.none(question.vehicles),
        coin_seed=options.seed if options.insecure_coins else None,
        progress=partial(_step, progress),
        expected=partial(say_expected, progress),
    )


def say_expected(progress: "Progress", asking_s: int, checking_s: int) -> None:
    """Say how long vehicles will be asked, and their reports be checked at the most, where that is worth saying."""
    from fleetcount.progress import WORTH_SAYING_S, duration_text

    if asking_s + checking_s > WORTH_SAYING_S:
        checking = f", checking their reports up to {duration_text(checking_s)}" if checking_s > WORTH_SAYING_S else ""
        progress.say(f"asking takes {duration_text(asking_s)}{checking}, as measured on this machine")


def _step(progress: "Progress", stage: str, done: int, total: int) -> None:
    """Show a step; after the last answer, load what draws the picture: the machine only waits for the window's end."""
    progress.step(stage, done, total)
    if stage in _LAST and done == total and _FIGURES not in sys.modules:
        threading.Thread(target=_load_figures, daemon=True).start()


def _load_figures() -> None:
    with contextlib.suppress(ModuleNotFoundError):  # Who draws says what is missing.
        importlib.import_module(_FIGURES)


def _finish(question: "DemoQuestion", options: "DemoOptions", result: "Asked") -> None:
    from fleetcount.demo_outputs import covered, write_outputs
    from fleetcount.release_report import release_json, statement_lines, table_lines

    record, signatures = _released(result)
    truths = question.scenario.truths()
    with staged_directory(options.output) as stage:
        names = write_outputs(stage, question.scenario.question, record, signatures, truths)
    inside, level = covered(record, truths), f"{float(record.level * 100):g} %"
    lines = [
        *table_lines(record, truths),
        "",
        *statement_lines(record, explain=options.explain),
        "",
        f"{inside} of {len(truths)} truths lie in their {level} interval",
        f"{int(result.account.counted.sum())} of {question.vehicles} vehicles hold every aggregator's receipt",
        *how_lines(options, result.broker, result.reasons),
        f"wrote {', '.join(names)} in {options.output}",
    ]
    found = {"question": question.scenario.question, "written": [str(options.output / name) for name in names]}
    show(found | release_json(record, truths), lines, as_json=options.as_json)


def how_lines(options: "DemoOptions", broker: str, reasons: Mapping[str, int]) -> list[str]:
    """Return how vehicles were connected, what carried MQTT, and what kept vehicles from answering."""
    carried = [f"what went by MQTT went through {_BROKERS[broker]}"] if broker else []
    if options.ways == "shared":
        carried.append("the vehicles of a process shared its connection; --connections own gives each vehicle its own")
    return carried + [f"  {count} vehicles: {reason}" for reason, count in reasons.items()]


def _released(result: "Asked") -> "tuple[ReleaseRecord, tuple[bytes, ...]]":
    if result.record is not None and result.answer is not None:
        return result.record, result.answer.signatures
    if result.answer is not None:
        raise RefusedByPolicyError(f"question {result.window.name!r} was aborted: {result.answer.abort_reason}")
    raise MachineError("no aggregator released the counts in time after the last window")

"""`fleetcount demo`: a whole fleet, its aggregators and its broker on this machine, from keys to picture.

One path for one window, many and a drill-down: a scenario is handed to the runner of fleets that studies use too, and
a printer of its kind says what came of it.
"""

import asyncio
import contextlib
import importlib
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from fleetcount_protocol.errors import MachineError, UsageError
from fleetcount_protocol.release.walk import WalkEnd, next_step
from fleetcount_simulator.network.parties import running
from fleetcount_simulator.network.plan import faultless_plan
from fleetcount_simulator.network.run import Ask, QuestionAsked, WindowAsked, ask_question
from fleetcount_simulator.populations.sumo_fleet import find_sumo
from fleetcount_site.watch.events import EventWriter

from fleetcount.command.base import EXPLAIN, JSON, OneOf, RefusedByPolicyError, StrictCommand, one_line, show
from fleetcount.command.numbers import EPSILON, SAMPLING_RATE
from fleetcount.command.options import PATH, SEED, Count, check_output_directory
from fleetcount.command.outputs import staged_directory
from fleetcount.command.progress import WORTH_SAYING_S, Progress, duration_text, progress_for
from fleetcount.read.report import release_json
from fleetcount.show.demo_question import DemoOptions, DemoQuestion, check_together, question_of
from fleetcount.show.demo_results import tell_window, tell_windows, why_none
from fleetcount.show.demo_walk import tell_walk, walk_end
from fleetcount.show.demo_watch import tell_question, tell_result, watched

OPERATORS: Final = ("City of Bologna", "University of Bologna", "Automobile Club", "Consumer Union", "Road Authority")
_LAST: Final = ("answers", "round two")
_SUMO_FIRST: Final = "SUMO drives the cars first, some ten seconds for 2,000"
_AHEAD: Final = ("scipy.special", "fleetcount_analysis.figures")
_BROKERS = {"mosquitto": "mosquitto", "embedded": "amqtt; with mosquitto installed the demo is faster"}


@click.command(cls=StrictCommand)
@click.option("--vehicles", type=Count(2, 100_000), help="How many (default 2000, or all rows of --truths).")
@click.option("--aggregators", type=Count(2, 5), default=2, show_default=True, help="How many, 2 to 5.")
@click.option(
    "--transport",
    type=OneOf(["grpc", "mqtt", "both", "relay"]),
    default="both",
    show_default=True,
    help="gRPC with mutual TLS, MQTT, half the fleet over each, or gRPC through a relay.",
)
@click.option(
    "--connections",
    type=OneOf(["shared", "own"]),
    help="One for all vehicles of a process, or one per vehicle, slower (default: shared; in a drill-down own).",
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
@click.option("--truths", type=PATH, help="CSV with the columns vehicle,value instead of Bologna.")
@click.option("--yes", help="With --truths and --mode mangat: the value that means yes.")
@click.option("--output", type=PATH, default="out", show_default=True, help="Where the results go.")
@click.option("--seed", type=SEED, default="1", show_default=True, help="Chooses moment and vehicles, never coins.")
@click.option(
    "--insecure-coins", is_flag=True, help="Devices' coins from the seed too: repeatable, protects no device."
)
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

    Writes release.json (signed), trusted.toml (the keys that verify it), comparison.csv, map.svg and map.png. Exit code
    0; 3 or 5 if a window was not released, with the reason; 130 when interrupted.

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
    wanted = DemoOptions(**options)
    check_together(wanted)
    check_output_directory(wanted.output, fresh=wanted.windows > 1 or wanted.drill_down)
    with watched(wanted) if wanted.watch else contextlib.nullcontext() as teller:
        if wanted.sumo:
            find_sumo()  # Says what to install where SUMO is not there, before it is announced.
            click.echo(_SUMO_FIRST, err=True)
            if teller is not None:
                teller.now("starting", f"{_SUMO_FIRST}.")
        question = question_of(wanted)
        scenario = question.scenario
        click.echo(one_line(f"{scenario.question} asked of {scenario.vehicles} vehicles"), err=wanted.as_json)
        if teller is not None:
            tell_question(teller, question, wanted)
        with _state_directory(keep=wanted.keep) as directory:
            result = asyncio.run(_asked(question, wanted, directory, teller))
            if teller is not None:
                tell_result(teller, result.windows[0])
            finish(question, wanted, result)


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


async def _asked(
    question: DemoQuestion, options: DemoOptions, directory: Path, teller: EventWriter | None
) -> QuestionAsked:
    """Start aggregators, broker and vehicles below `directory` and ask; everything has ended when this returns."""
    task = asyncio.current_task()
    if task is not None:
        # SIGTERM ends the children in order, as Ctrl-C does.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    scenario, broker = question.scenario, "auto" if options.transport in {"mqtt", "both"} else ""
    plan = faultless_plan(scenario.domain, scenario.readings, question.walk)
    try:
        with progress_for() as progress:
            ask = Ask(
                name=scenario.name,
                question=question.network,
                transports=("grpc", "mqtt") if options.transport == "both" else (options.transport,),
                connections=options.ways,
                coin_seed=options.seed if options.insecure_coins else None,
                progress=partial(_step, progress, teller),
                expected=partial(say_expected, progress),
                listener=None if teller is None else teller.happened,
            )
            async with running(
                directory,
                options.aggregators,
                deployment="demo",
                broker=broker,
                relay=options.transport == "relay",
                operators=OPERATORS,
            ) as parties:
                return await ask_question(parties, ask, plan, directory)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def say_expected(progress: Progress, asking_s: int, checking_s: int) -> None:
    """Say how long vehicles will be asked, and their reports be checked at the most, where that is worth saying."""
    if asking_s + checking_s > WORTH_SAYING_S:
        checking = f", checking their reports up to {duration_text(checking_s)}" if checking_s > WORTH_SAYING_S else ""
        progress.say(f"asking takes {duration_text(asking_s)}{checking}, as measured on this machine")


def _step(progress: Progress, teller: EventWriter | None, stage: str, done: int, total: int) -> None:
    """Show a step; after the last answer, load what sums and draws: the machine only waits for the window's end."""
    progress.step(stage, done, total)
    if teller is not None:
        teller.step(stage, done, total)
    if stage in _LAST and done == total and not sys.modules.keys() >= {*_AHEAD}:
        threading.Thread(target=_load_ahead, daemon=True).start()


def _load_ahead() -> None:
    with contextlib.suppress(ModuleNotFoundError):  # Who draws says what is missing.
        for name in _AHEAD:
            importlib.import_module(name)


def finish(question: DemoQuestion, options: DemoOptions, result: QuestionAsked) -> None:
    """Write every file and say what was found, in the words of the question's kind.

    Raises:
        RefusedByPolicyError, MachineError: a window was not released; what was released has been written and told.
        CheckFailedError: the records do not hang together.
    """
    _check_released(result)
    tell = tell_walk if options.drill_down else tell_windows if options.windows > 1 else tell_window
    with staged_directory(options.output) as stage:
        told = tell(stage, question, options, result)
    if options.as_json:  # Goes with one window.
        written = {"written": [str(options.output / name) for name in told.written]}
        show(release_json(result.records[0], question.scenario.truths()) | written, (), as_json=True)
        return
    first, wrote = result.windows[0], f"wrote {', '.join(told.written)} in {options.output}"
    show(None, [*told.lines, *_how_lines(options, first.broker, first.reasons), wrote, *told.then], as_json=False)
    check_whole(result)


def _check_released(result: QuestionAsked) -> None:
    """Refuse a question of which no window was released; says why."""
    if not result.records:
        raise _not_released(result.windows[0], f"question {result.signed.question.name!r} was not released")


def check_whole(result: QuestionAsked) -> None:
    """Refuse a question of which a window, or a step that could be asked, was not released; says which and why."""
    asked, released = len(result.windows), len(result.records)
    for index, one in enumerate(result.windows):
        if one.record is None:
            raise _not_released(one, f"{released} of {asked} windows were released, not window {index}")
    last, question = result.windows[-1].record, result.signed.question
    if last is None or question.drill_down is None or asked == question.schedule.windows:
        return
    if next_step(question, last) is WalkEnd.RECORD_LATE:
        raise MachineError(f"the walk ended after step {asked} of {question.schedule.windows}: {walk_end(result)}")


def _not_released(one: WindowAsked, what: str) -> RefusedByPolicyError | MachineError:
    """Return the error of a window without a record: nobody had one in time, or the aggregators ended it."""
    return (MachineError if one.answer is None else RefusedByPolicyError)(f"{what}: {why_none(one)}")


def _how_lines(options: DemoOptions, broker: str, reasons: Mapping[str, int]) -> list[str]:
    """Return how vehicles were connected, what carried MQTT, and what kept vehicles from answering."""
    carried = [f"what went by MQTT went through {_BROKERS[broker]}"] if broker else []
    if options.ways == "shared":
        carried.append("the vehicles of a process shared its connection; --connections own gives each vehicle its own")
    return carried + [f"  {count} vehicles: {reason}" for reason, count in reasons.items()]

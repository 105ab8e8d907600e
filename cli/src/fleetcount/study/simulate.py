"""`fleetcount simulate`: run a scenario file, or print a ready one.

Reads options, shows progress and a short table; the study itself is `fleetcount_simulator.study.experiment`.
"""

import contextlib
import signal
import sys
from collections.abc import Generator, Sequence
from dataclasses import asdict
from decimal import ROUND_CEILING, Decimal
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource
from fleetcount_analysis.interval_words import number_text, numbers_text, rounded
from fleetcount_protocol.errors import UsageError
from fleetcount_simulator.examples import example_about, example_names, example_text

from fleetcount.command.base import JSON, OneOf, StrictCommand, aligned, one_line, show
from fleetcount.command.options import PATH, SEED, Count, check_output_directory
from fleetcount.command.progress import progress_for

if TYPE_CHECKING:  # The examples can be printed without the extra `simulator`: the rest is imported where it is used.
    from fleetcount_simulator.model import EngineName
    from fleetcount_simulator.scenario.plan import Scenario
    from fleetcount_simulator.study.experiment import CaseSummary
    from fleetcount_simulator.study.numbers import NumberSummary
    from fleetcount_simulator.study.scale import Runner

_ENGINES: Final = ("exact-law", "per-device", "network")
_SHOWN_CASES: Final = 25
_NUMBER_COLUMNS: Final = ("case", "number", "of the fleet", "first release", "its interval", "error", "holding it")
_COLUMNS: Final = ("case", "released", "error", "bias", "coverage", "of fleet", "width", "epsilon", "in all")


@click.command(cls=StrictCommand)
@click.argument("scenario", required=False, type=PATH, metavar="[SCENARIO.toml]")
@click.option(
    "--engine",
    type=OneOf(_ENGINES),
    help="exact-law draws the sums (any fleet in milliseconds), per-device every coin, network runs real programs. "
    "[default: the scenario's, or exact-law]",
)
@click.option("--runs", type=Count(1, 1_000_000), help="Runs of every case instead of the scenario's.")
@click.option("--workers", type=Count(1, 256), default=1, show_default=True, help="Processes on this machine.")
@click.option("--dask", metavar="ADDRESS", help="A Dask scheduler, tcp://host:port, instead of --workers.")
@click.option("--output", metavar="DIR", type=PATH, help="Where results go.  [default: NAME-study]")
@click.option("--seed", type=SEED, help="Instead of the scenario's.")
@click.option("--csv", is_flag=True, help="Write every table as CSV too, beside Parquet.")
@click.option("--example", metavar="NAME", help="Print a ready scenario and stop.")
@click.option("--examples", is_flag=True, help="List the ready scenarios and stop.")
@JSON
def simulate(  # noqa: PLR0913 one parameter an option, passed by name
    *,
    scenario: Path | None,
    engine: "EngineName | None",
    runs: int | None,
    workers: int,
    dask: str | None,
    output: Path | None,
    seed: int | None,
    csv: bool,
    example: str | None,
    examples: bool,
    as_json: bool,
) -> None:
    """Run a scenario: who is asked what, how they answer, what goes wrong, who attacks; and how good the result is.

    Start from an example:

    \b
      fleetcount simulate --examples
      fleetcount simulate --example coverage > coverage.toml
      fleetcount simulate coverage.toml

    A list where the file needs one value makes a sweep: epsilon = ["1/2", 1, 2] runs three cases, two lists all their
    combinations. docs/simulating.md explains every key.

    With show = "mean" or "quantiles" of a direct number the table says what the first release shows, with its interval,
    beside that of the fleet.

    The output directory holds run.json (scenario, seed, version), the tables cases, releases, numbers, cells,
    attackers and statement (Parquet; DuckDB and pandas read them) and report.html. The same scenario, seed and version
    give the same tables, however many workers there are. An interrupted study goes on when the same command is given
    again.

    Exit code 0; 2 for a wrong option or scenario file, with file, line and key; 130 interrupted, finished parts kept.
    """
    if examples or example is not None:
        _check_alone(click.get_current_context(), "examples" if example is None else "example")
        _print_example(example, as_json=as_json)
        return
    if scenario is None:
        raise click.UsageError("give a scenario file, or --examples to see ready ones", ctx=click.get_current_context())
    runner = _runner(workers, dask)
    from fleetcount_simulator.scenario.file import read_scenario
    from fleetcount_simulator.study.registries import STANDARD

    study = read_scenario(scenario, STANDARD.population, seed)
    chosen: EngineName = engine or study.engine
    if chosen == "network" and (workers > 1 or dask is not None):
        raise UsageError("the network engine uses this whole machine by itself: leave --workers and --dask out")
    target = output or Path(f"{study.name}-study")
    check_output_directory(target)
    summaries = _run(study, chosen, runs or study.runs, target, runner, csv=csv)
    found = {"results": str(target), "cases": [_case_json(one) for one in summaries] if as_json else []}
    show(found, [*summary_lines(summaries), one_line(f"results: {target}")], as_json=as_json)


def _check_alone(context: click.Context, option: str) -> None:
    """Refuse what is given beside an option that prints examples and stops."""
    others = (name for name in context.params if name not in (option, "as_json"))
    beside = next((one for one in others if context.get_parameter_source(one) is not ParameterSource.DEFAULT), None)
    if beside is not None:
        said = "a scenario file" if beside == "scenario" else f"--{beside}"
        raise UsageError(f"--{option} prints and stops: {said} is given, allowed without it")


def _case_json(one: "CaseSummary") -> dict[str, Any]:
    """Return a case for programs; what is not known (nothing was released) is None."""
    names = ("rmse", "bias_fleet", "coverage", "coverage_fleet", "mean_width")
    numbers = {name: _known(getattr(one, name)) for name in names}
    epsilons = [
        None if loss is None else f"{loss:f}" for loss in (one.statement[0].epsilon, one.statement[0].total_epsilon)
    ]
    losses = dict(zip(("epsilon", "total_epsilon"), epsilons, strict=True))
    shown = [{name: _known(value) for name, value in asdict(each).items()} for each in one.numbers]
    return {"case": one.name, "released": one.releases, "asked": one.asked, **numbers, **losses, "numbers": shown}


def _known(value: object) -> object:
    return None if isinstance(value, float) and isnan(value) else value


def _print_example(name: str | None, *, as_json: bool) -> None:
    if name is not None:
        text = example_text(name)
        if as_json:
            raise UsageError("--json goes without --example NAME, which prints a scenario file")
        click.echo(text, nl=False)
        return
    abouts = {one: example_about(one) for one in example_names()}
    wide = max(map(len, abouts))
    found = [{"name": one, "about": about} for one, about in abouts.items()]
    show(found, (f"{one:<{wide}}  {about}" for one, about in abouts.items()), as_json=as_json)


def _runner(workers: int, dask: str | None) -> "Runner":
    """Return the runner of the study: this process, a pool or a Dask cluster."""
    from fleetcount_simulator.study.scale import DaskCluster, ThisProcess, WorkerPool

    if dask is not None:
        if workers > 1:
            raise UsageError("--workers and --dask are both given; choose one")
        return DaskCluster(dask)
    return WorkerPool(workers) if workers > 1 else ThisProcess()


def _run(
    study: "Scenario", engine: "EngineName", runs: int, target: Path, runner: "Runner", *, csv: bool
) -> "list[CaseSummary]":
    from fleetcount_simulator.study.experiment import StudySettings, run_study
    from fleetcount_simulator.study.registries import STANDARD

    settings = StudySettings(engine=engine, runs=runs, output=target, csv=csv, command=tuple(sys.argv[1:]))
    with _interruptible(target), progress_for() as progress:
        summaries = run_study(study, settings, STANDARD, runner, progress.step)
        progress.step("drawing the report", 0, 1)
        from fleetcount_site.report import write_report

        write_report(target)
        progress.step("drawing the report", 1, 1)
    return summaries


@contextlib.contextmanager
def _interruptible(target: Path) -> Generator[None]:
    """Let SIGTERM end the workers in order, as Ctrl-C does; say what an interrupted study leaves behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        if target.is_dir():
            click.echo(one_line(f"what is finished is kept in {target}: the same command goes on from there"), err=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def summary_lines(summaries: "Sequence[CaseSummary]") -> list[str]:
    """Return the table of the cases, and what its columns mean."""
    rows = [_COLUMNS, *(_row(one) for one in summaries[:_SHOWN_CASES])]
    lines = aligned(rows)
    if len(summaries) > _SHOWN_CASES:
        lines.append(f"... and {len(summaries) - _SHOWN_CASES} more cases in the tables")
    return [
        *lines,
        "",
        "error, bias, width: devices in a cell (root mean square, mean against the whole fleet, mean of the intervals)",
        "coverage: how often an interval holds the truth of the devices counted; of fleet: of the whole fleet",
        "epsilon: what a release tells everybody about one device at most; in all: over all releases it answers",
        *_withheld(summaries),
        *_number_lines(summaries),
    ]


def _withheld(summaries: "Sequence[CaseSummary]") -> list[str]:
    """Return why there are fewer releases than were asked for; nothing where all are there."""
    if all(case.releases == case.asked for case in summaries):
        return []
    return [
        "released: none where fewer reports were agreed on than aggregators.min_batch_size (10 without the key), or"
        " aggregators were out"
    ]


def _number_lines(summaries: "Sequence[CaseSummary]") -> list[str]:
    """Return the numbers that releases show beside those of the fleet; nothing where none does."""
    shown = [(one_line(case.name), one) for case in summaries for one in case.numbers]
    if not shown:
        return []
    rows = [_NUMBER_COLUMNS, *(_number_row(name, one) for name, one in shown[:_SHOWN_CASES])]
    lines = aligned(rows, left=len(_NUMBER_COLUMNS))
    if len(shown) > _SHOWN_CASES:
        lines.append(f"... and {len(shown) - _SHOWN_CASES} more numbers in the table numbers")
    return ["", *lines]


def _number_row(name: str, one: "NumberSummary") -> tuple[str, ...]:
    return (
        name,
        one.what,
        f"{number_text(one.fleet, one.high - one.low)} {one.unit}".rstrip(),
        "-" if isnan(one.estimate) else number_text(one.estimate, one.high - one.low),
        numbers_text(one.low, one.high),
        "-" if isnan(one.error) else f"{one.error:,.2g}",
        f"{one.holding} of {one.intervals}",
    )


def _row(one: "CaseSummary") -> tuple[str, ...]:
    public = one.statement[0]
    return (
        one_line(one.name),
        f"{one.releases}/{one.asked}",
        _number(one.rmse),
        _number(one.bias_fleet),
        _percent(one.coverage),
        _percent(one.coverage_fleet),
        _number(one.mean_width),
        _loss(public.epsilon, public.delta),
        _loss(public.total_epsilon, public.total_delta),
    )


def _loss(epsilon: Decimal | None, delta: Decimal) -> str:
    if epsilon is None:
        return "none"
    # As in every statement a loss is rounded up.
    shown = f"{rounded(float(epsilon), 3, ROUND_CEILING)}"
    return f"{shown}, delta {number_text(float(delta), rounding=ROUND_CEILING)}" if delta else shown


def _number(value: float) -> str:
    if value != value:  # noqa: PLR0124 not a number: nothing was released
        return "-"
    # Adding 0 turns a negative zero into zero.
    return f"{round(value, 1) + 0.0:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def _percent(share: float) -> str:
    return "-" if share != share else f"{100 * share:.1f} %"  # noqa: PLR0124 as above

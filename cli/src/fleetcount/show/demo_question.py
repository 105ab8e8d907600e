"""What the demo asks, from its options: the scenario, the mechanism and the release.

Pure but for reading the data; it must not start a process.
"""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from fleetcount_analysis.answers.drill_down import least_threshold
from fleetcount_mechanisms.accounting.solving import noise_for_promise
from fleetcount_mechanisms.answers import AnswerLaw, Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.noise import TwoSidedNoise
from fleetcount_mechanisms.planned_noise import noise_for
from fleetcount_mechanisms.planning import default_sampling_rate
from fleetcount_mechanisms.responses import Mangat
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.question.fields import Coin, DrillDown, Schedule
from fleetcount_protocol.window.fields import Mode, Release, ReleaseKind
from fleetcount_simulator.demo_scenarios import (
    Scenario,
    bologna_place,
    bologna_position,
    bologna_speed,
    category,
    find_bologna,
    yes_or_no,
)
from fleetcount_simulator.network.question import NetworkQuestion
from fleetcount_simulator.populations.bologna import read_traces
from fleetcount_simulator.populations.sumo_fleet import MOST_CARS, drive_fleet, sumo_position, sumo_speed
from fleetcount_simulator.truths import MAX_VEHICLES, parse_truths

from fleetcount.command.options import read_text
from fleetcount.study.plan_windows import FALSE_PLACES

DEFAULT_VEHICLES: Final = 2000
LEVEL: Final = Fraction(95, 100)
BOLOGNA_SAMPLING_RATE: Final = Fraction(1, 4)
"""At the same published epsilon a larger rate is more accurate in all but nearly empty cells (docs/privacy.md);
it is also what colluding aggregators would see."""
DEFAULT_EPSILON: Final = Fraction(1)
WALK_EPSILON: Final = Fraction(4)
"""Of a whole walk: the busiest place of the morning has some fifty of 2,000 vehicles, at epsilon 1 a walk finds 150."""
WALK_SAMPLING_RATE: Final = Fraction(9, 20)
"""A walk looks for places of few dozen vehicles, which a smaller sample hides."""
WALK_DELTA: Final = Fraction(1, 10**9)
LEVELS: Final = (8, 16, 24, 32)
MOST_SURVIVORS: Final = 4
"""A city of two kilometres lies in few squares of two kilometres; each has 256 places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The command's options, each in its range; what must not come together is refused by `question_of`."""

    vehicles: int | None
    aggregators: int
    transport: str
    mode: str
    epsilon: Fraction | None
    sampling_rate: Fraction | None
    truths: Path | None
    yes: str | None
    output: Path
    seed: int
    insecure_coins: bool
    keep: bool
    connections: str | None = None
    windows: int = 1
    drill_down: bool = False
    sumo: bool = False
    watch: bool = False
    port: int | None = None
    explain: bool = False
    as_json: bool = False

    @property
    def ways(self) -> str:
        """How vehicles are connected: those of a process share a connection, in a drill-down each has its own."""
        return self.connections or ("own" if self.drill_down else "shared")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoQuestion:
    """A scenario and the way it is asked and published; with `walk` its windows are the steps of a drill-down."""

    scenario: Scenario
    network: NetworkQuestion
    walk: DrillDown | None = None


def question_of(options: DemoOptions) -> DemoQuestion:
    """Return the question of these options.

    Raises:
        UsageError: options that contradict each other, or a truth file that cannot be used.
    """
    check_together(options)
    scenario = _scenario(options)
    mode, answer = _answer_of(options, scenario.domain.values)
    if options.drill_down:
        noise, walk = _walk_of(options, scenario.vehicles)
    else:
        noise, walk = noise_for(answer, options.epsilon or DEFAULT_EPSILON).epsilon, None
    network = NetworkQuestion(
        domain=scenario.domain,
        signal=scenario.signal,
        mode=mode,
        mechanism=None if mode is Mode.DIRECT else answer,
        release=Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=noise, level=LEVEL),
        min_batch_size=max(2, scenario.vehicles // 2),
    )
    return DemoQuestion(scenario=scenario, network=network, walk=walk)


def _answer_of(options: DemoOptions, values: int) -> tuple[Mode, AnswerLaw]:
    if options.mode == "mangat":
        return Mode.RESPONSE, Mangat.from_epsilon(options.epsilon or DEFAULT_EPSILON)
    if options.mode == "direct":
        return Mode.DIRECT, Truth(values)
    usual = WALK_SAMPLING_RATE if options.drill_down else BOLOGNA_SAMPLING_RATE
    rate = options.sampling_rate or (usual if values > 9 else default_sampling_rate(values))
    return Mode.SAMPLING, SamplingDie.uniform(rate, values)


def _walk_of(options: DemoOptions, vehicles: int) -> tuple[Fraction | None, DrillDown]:
    """Return noise for one promise of all steps, and a walk whose threshold empty cells rarely pass."""
    steps = len(LEVELS)
    _, answer = _answer_of(options, MOST_SURVIVORS << LEVELS[-1] - LEVELS[-2])
    schedule = Schedule(first=0, every_s=1, windows=steps, round_one_s=1, round_two_s=0, expiry_s=1)
    shape, epsilon = schedule.shape(Coin.WINDOW, steps), options.epsilon or WALK_EPSILON
    noise = noise_for_promise(answer, shape, epsilon, WALK_DELTA, TwoSidedNoise)
    design = Design(answer=answer, noise=noise, values=answer.values, aggregators=options.aggregators)
    threshold = least_threshold(design, answer.values, FALSE_PLACES)
    if threshold > vehicles:
        raise UsageError(
            f"--epsilon is {float(epsilon):g}, whose noise needs a threshold of {threshold:,}, above all"
            f" {vehicles:,} vehicles; take a larger epsilon or more --vehicles"
        )
    return noise.epsilon, DrillDown(levels=LEVELS, threshold=threshold, most_survivors=MOST_SURVIVORS)


def check_together(options: DemoOptions) -> None:
    """Refuse options that contradict each other, before anything is read or started.

    Raises:
        UsageError: names both.
    """
    if options.mode != "sampling" and options.sampling_rate is not None:
        raise UsageError(f"--sampling-rate goes with --mode sampling; {options.mode} has none")
    if options.yes is not None and (options.truths is None or options.mode != "mangat"):
        raise UsageError("--yes goes with --mode mangat and --truths")
    if options.drill_down:
        _check_walk(options)
    if options.sumo:
        _check_sumo(options)
    _check_watch(options)
    if options.as_json and (options.windows > 1 or options.drill_down or options.watch):
        other = "--watch" if options.watch else "--drill-down" if options.drill_down else f"--windows {options.windows}"
        raise UsageError(f"--json goes with one window in the terminal; {other} is given")
    if options.truths is not None and options.windows > 1:
        raise UsageError(f"--windows is {options.windows}, allowed with --truths: 1, as a table does not move")
    if options.truths is not None and options.mode == "mangat" and options.yes is None:
        raise UsageError("--mode mangat asks a yes/no question: --truths needs --yes VALUE with it")


def _check_watch(options: DemoOptions) -> None:
    if options.port is not None and not options.watch:
        raise UsageError(f"--port is {options.port}, which goes with --watch: nothing else has a page")
    if options.watch and options.windows > 1:
        raise UsageError(f"--windows is {options.windows}, allowed with --watch: 1, the page shows one release")
    if options.watch and options.drill_down:
        raise UsageError("--drill-down goes without --watch: the page shows one release")


def _check_walk(options: DemoOptions) -> None:
    if options.windows > 1:
        raise UsageError(f"--windows is {options.windows}, allowed with --drill-down: 1, its steps are its windows")
    if options.truths is not None:
        raise UsageError("--truths goes without --drill-down: a table of categories has no places")
    if options.mode == "mangat":
        raise UsageError("--mode is 'mangat', allowed with --drill-down: sampling, direct")
    if options.connections == "shared":
        raise UsageError("--connections is 'shared', allowed with --drill-down: own, as each vehicle asks for records")


def _check_sumo(options: DemoOptions) -> None:
    for name, given in (("truths", options.truths is not None), ("drill-down", options.drill_down)):
        if given:
            raise UsageError(f"--sumo goes without --{name}: it drives cars of its own in a small town")

    if (options.vehicles or 0) > MOST_CARS:
        raise UsageError(f"--vehicles is {options.vehicles}, allowed with --sumo: 2 to {MOST_CARS}")


def _scenario(options: DemoOptions) -> Scenario:
    vehicles, seed, windows = options.vehicles or DEFAULT_VEHICLES, options.seed, options.windows
    if options.sumo:
        return (sumo_speed if options.mode == "mangat" else sumo_position)(drive_fleet(vehicles, seed, windows))
    if options.truths is not None:
        # The longest line has two names of 200 bytes, each of which quoting may double.
        text = read_text(options.truths, largest=MAX_VEHICLES * 1000)
        truths = parse_truths(text, options.truths.name)
        vehicles = options.vehicles or len(truths.values)
        return (
            category(truths, vehicles, seed) if options.yes is None else yes_or_no(truths, options.yes, vehicles, seed)
        )
    traces = read_traces(find_bologna())
    if options.drill_down:
        return bologna_place(traces, vehicles, seed, LEVELS[0], len(LEVELS))
    return (bologna_speed if options.mode == "mangat" else bologna_position)(traces, vehicles, seed, windows)

"""What the demo asks, from its options: the scenario, the mechanism and the release.

Pure but for reading the data; it must not start a process.
"""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from fleetcount_mechanisms.losses import noise_for
from fleetcount_mechanisms.planning import default_sampling_rate
from fleetcount_mechanisms.responses import Mangat
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.task.task import Mode, Release, ReleaseKind
from fleetcount_simulator.demo_scenarios import (
    Scenario,
    bologna_position,
    bologna_speed,
    category,
    find_bologna,
    read_traces,
    yes_or_no,
)
from fleetcount_simulator.network.question import NetworkQuestion
from fleetcount_simulator.truths import MAX_VEHICLES, Truths, parse_truths

from fleetcount.files import read_text

__all__ = ["DEFAULT_VEHICLES", "LEVEL", "DemoOptions", "Question", "question_of"]

DEFAULT_VEHICLES: Final = 2000
LEVEL: Final = Fraction(95, 100)
BOLOGNA_SAMPLING_RATE: Final = Fraction(1, 4)
"""At the same published epsilon a larger rate is more accurate in all but nearly empty cells (docs/privacy.md);
it is also what colluding aggregators would see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The command's options, each in its range; what must not come together is refused by `question_of`."""

    vehicles: int | None
    aggregators: int
    transport: str
    mode: str
    epsilon: Fraction
    sampling_rate: Fraction | None
    truths: Path | None
    yes: str | None
    output: Path
    seed: int
    insecure_coins: bool
    keep: bool
    windows: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A scenario with the way it is asked and published; `later` are those of the windows after the first."""

    scenario: Scenario
    later: tuple[Scenario, ...] = ()
    mode: Mode
    mechanism: SamplingDie | Mangat
    release: Release

    @property
    def vehicles(self) -> int:
        """How many are asked."""
        return len(self.scenario.readings)

    @property
    def network(self) -> NetworkQuestion:
        """The question as the runner asks it."""
        return NetworkQuestion(
            domain=self.scenario.domain,
            signal=self.scenario.signal,
            mode=self.mode,
            mechanism=self.mechanism,
            release=self.release,
            min_batch_size=max(2, self.vehicles // 2),
        )


def question_of(options: DemoOptions) -> Question:
    """Return the question of these options.

    Raises:
        UsageError: options that contradict each other, or a truth file that cannot be used.
    """
    _check_together(options)
    scenario, *later = (_scenario(options, window) for window in range(options.windows))
    values = scenario.domain.values
    mechanism: SamplingDie | Mangat
    if options.mode == "mangat":
        mode, mechanism = Mode.RESPONSE, Mangat.from_epsilon(options.epsilon)
    else:
        rate = options.sampling_rate or (BOLOGNA_SAMPLING_RATE if values > 9 else default_sampling_rate(values))
        mode, mechanism = Mode.SAMPLING, SamplingDie.uniform(rate, values)
    noise = noise_for(mechanism, options.epsilon).epsilon
    release = Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=noise, level=LEVEL)
    return Question(scenario=scenario, later=tuple(later), mode=mode, mechanism=mechanism, release=release)


def _check_together(options: DemoOptions) -> None:
    if options.mode == "mangat" and options.sampling_rate is not None:
        raise UsageError("--sampling-rate goes with --mode sampling; mangat has none")
    if options.yes is not None and (options.truths is None or options.mode != "mangat"):
        raise UsageError("--yes goes with --mode mangat and --truths")
    if options.truths is not None and options.windows > 1:
        raise UsageError(f"--windows is {options.windows}, allowed with --truths: 1, as a table does not move")
    if options.truths is not None and options.mode == "mangat" and options.yes is None:
        raise UsageError("--mode mangat asks a yes/no question: --truths needs --yes VALUE with it")


def _scenario(options: DemoOptions, window: int) -> Scenario:
    if options.truths is None:
        traces = read_traces(find_bologna())
        make = bologna_speed if options.mode == "mangat" else bologna_position
        return make(traces, options.vehicles or DEFAULT_VEHICLES, options.seed, window, options.windows)
    truths = _truths(options.truths)
    vehicles = options.vehicles or len(truths.values)
    if options.yes is not None:
        return yes_or_no(truths, options.yes, vehicles, options.seed)
    return category(truths, vehicles, options.seed)


def _truths(path: Path) -> Truths:
    # The longest line has two names of 200 bytes, each of which quoting may double.
    return parse_truths(read_text(path, largest=MAX_VEHICLES * 1000), path.name)

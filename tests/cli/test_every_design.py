"""One question has one design: scenario, plan, window and record show the same statement, noise, estimates, intervals.

And a mechanism is added by its law, the row of its family and a number: everything else takes it as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleetcount_aggregator.release.record import build_record
from fleetcount_analysis.reading import exact_estimates, read
from fleetcount_client.answering import one_round_parts, truth_of
from fleetcount_client.signals import Reading
from fleetcount_mechanisms import answers
from fleetcount_mechanisms.answers import AnswerForm, AnswerKind, Relation, Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import GaussianNoise, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.randomness import RandomSource, SeededRandom, UniformBelow
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_mechanisms.statement import epsilon_of, relation_of, views_of
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.release.record import decode_record, encode_record, noise_laws
from fleetcount_protocol.window.domain import Categories, SquareGrid
from fleetcount_protocol.window.fields import MECHANISM_NUMBERS, MODE_FORMS, Mode, Release, ReleaseKind
from fleetcount_protocol.window.window import Window, decode_window, opened_outputs
from fleetcount_simulator.engines.exact_law import ExactLaw
from fleetcount_simulator.model import Case, CaseOutcome, Mechanism
from fleetcount_simulator.study.readings import read_releases
from fleetcount_simulator.study.statements import statement_of

from tests.simulator.scenario_doubles import EvenPopulation
from tests.support.cases import case
from tests.support.designs import design_name, every_design
from tests.support.protocol_samples import aggregator, at_zooms, sampling_window
from tests.support.released import ONCE

DEVICE = Digest(bytes(32))

LEVEL = Fraction(95, 100)
EVERY = every_design()
SPELLED = [one for one in EVERY if getattr(one.answer, "face_probabilities", None) is None]
"""A scenario and a plan have the uniform die alone."""


def on_the_wire(design: Design) -> bool:
    if not design.noised and design.rounds == 1:
        return False
    return isinstance(design.answer, Truth) or type(design.answer) in MECHANISM_NUMBERS


def case_of(design: Design, devices: int = 400) -> Case:
    parameters = {name: getattr(design.answer, name) for name in design.kind.parameters}
    rate = parameters.pop("sampling_rate", None)
    mechanism = Mechanism(
        name="m",
        kind=design.name,
        sampling_rate=rate,
        parameters=tuple(parameters.items()),
        noise_epsilon=design.noise.epsilon,
        noise_variance=design.noise.parameters.get("variance"),
        direction=getattr(design.noise, "direction", None),
        flips=getattr(design.answer, "flips", ()),
    )
    people = EvenPopulation(devices, design.values)
    return Case(index=0, point={}, population=people, mechanism=mechanism, aggregators=design.aggregators, level=LEVEL)


def window_of(design: Design) -> Window:
    mode = next(mode for mode, forms in MODE_FORMS.items() if design.form in forms)
    kinds = {
        NoNoise: ReleaseKind.EXACT,
        TwoSidedNoise: ReleaseKind.GEOMETRIC,
        OneSidedNoise: ReleaseKind.ONE_SIDED,
        GaussianNoise: ReleaseKind.GAUSSIAN,
    }
    kind = kinds[type(design.noise)]
    thresholds = (5,) * design.values if kind is ReleaseKind.ONE_SIDED else ()
    return sampling_window(
        domain=Categories(names=tuple(f"value {value}" for value in range(1, design.values + 1))),
        mode=mode,
        mechanism=None if isinstance(design.answer, Truth) else design.answer,
        aggregators=tuple(aggregator(position) for position in range(design.aggregators)),
        release=Release(
            kind=kind,
            noise_epsilon=design.noise.epsilon,
            noise_variance=design.noise.parameters.get("variance"),
            level=LEVEL,
            thresholds=thresholds,
            direction=getattr(design.noise, "direction", "up"),
        ),
        **({} if mode is Mode.SAMPLING else {"round_two_closes": 1_800_000_600}),
    )


def opened(design: Design) -> list[int]:
    """Some numbers a release may open: 400 devices, a cell far below zero among the others."""
    return [230, 90, -4, 84][: design.output_count] if design.values > 1 else [310, 90][-design.output_count :]


def test_a_scenario_shows_what_the_design_shows() -> None:
    for design in SPELLED:
        with case(design_name(design)):
            _scenario_shows(design)


def _scenario_shows(design: Design) -> None:
    asked, outputs = case_of(design), opened(design)
    outcome = CaseOutcome(
        outputs=np.array([outputs, outputs]),
        released=np.ones(2, dtype=np.bool_),
        counted=np.tile(asked.population.histogram(0), (2, 1)),
    )

    reading, expected = read_releases(asked, outcome), read(design, outputs, LEVEL)

    assert asked.design == design
    assert [(one.epsilon, one.delta, one.text) for one in statement_of(asked)] == [
        (view.epsilon, view.delta, view.sentence) for view in views_of(design)
    ]
    for run in (0, 1):
        for name in ("estimates", "standard_errors", "low", "high"):
            assert getattr(reading, name)[run].tolist() == getattr(expected, name).tolist()


def test_a_window_and_its_record_show_what_the_design_shows() -> None:
    for design in filter(on_the_wire, EVERY):
        with case(design_name(design)):
            _window_and_record_show(design)


def _window_and_record_show(design: Design) -> None:
    window, outputs = window_of(design), opened(design)

    record = decode_record(
        encode_record(build_record(decode_window(window.canonical), outputs, window.round_two_closes, ONCE))
    )

    reading, exact = read(design, outputs, LEVEL), exact_estimates(design, outputs)
    assert window.design == record.window.design == design
    assert record.statement == views_of(design)
    assert [(law.law, law.parameters) for law in noise_laws(window)] == [
        (design.noise.name, design.noise.parameters)
    ] * design.aggregators
    assert [cell.estimate for cell in record.cells] == exact
    assert [float(one) for one in exact] == pytest.approx(reading.estimates.tolist(), abs=1e-6)
    assert [(cell.low, cell.high) for cell in record.cells] == list(zip(reading.low, reading.high, strict=True))


def test_a_plan_shows_the_statement_and_the_noise_of_the_design(fleetcount: Callable) -> None:
    for design in SPELLED:
        if on_the_wire(design) and design.noised:
            with case(design_name(design)):
                _plan_shows(fleetcount, design)


def _plan_shows(fleetcount: Callable, design: Design) -> None:
    local = ["--epsilon-local", "1.5"] if design.device_randomizes else []
    rate = ["--sampling-rate", "1/4"] if design.rounds == 2 else []
    # The loss is rounded up: the noise for it is at least as weak, and at most by a step of its grid.
    law = ["--noise", "gaussian"] if isinstance(design.noise, GaussianNoise) else []
    args = ["--epsilon", str(epsilon_of(design)), "--aggregators", design.aggregators, *local, *rate, *law]
    args += [] if design.levels.total else ["--no-total"]
    flips = [one.name.lower() for one in getattr(design.answer, "flips", ())]
    args += ["--flips", ",".join(flips)] if flips else []
    args += ["--direction", design.noise.direction] if isinstance(design.noise, OneSidedNoise) else []

    ran = fleetcount(
        "plan", "--devices", "400", "--values", design.values, "--mechanism", design.name, *args, "--explain"
    )

    assert ran.code == 0, ran.err
    ((name, value),) = design.noise.parameters.items()
    shown = float(ran.out.split(f"{name} ")[1 if law else 2].split()[0])
    assert shown == pytest.approx(float(value), abs=0.011 if law else 1.1e-3 if local else 3e-5)
    if abs(shown - float(value)) < 1e-9:
        for view in views_of(design):
            assert f"{view.audience}: {view.sentence}" in ran.out


ZOOMS = Levels(16, (4, 4), (1, 2))
GRID = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(100), columns=4, rows=4)
ZOOMED = [
    Design(answer=answer, noise=noise, values=16, aggregators=2, levels=ZOOMS)
    for answer, noise in (
        (Truth(16), TwoSidedNoise(Fraction(1, 4))),
        (Truth(16), GaussianNoise(Fraction(133, 2))),
        (Truth(16), OneSidedNoise(Fraction(1, 2))),
        (SamplingDie.uniform(Fraction(1, 4), 16), TwoSidedNoise(Fraction(7, 10))),
    )
]


@pytest.mark.parametrize("design", ZOOMED, ids=design_name)
def test_several_zooms_are_the_same_in_scenario_window_record_and_plan(fleetcount: Callable, design: Design) -> None:
    plain = replace(design, levels=Levels(design.values), coarser=())
    window, asked = window_of(plain), case_of(plain)
    thresholds = window.release.thresholds and (5,) * design.cell_count
    window = replace(window, domain=GRID, release=at_zooms(replace(window.release, thresholds=thresholds), 2))
    asked.population.question = replace(asked.population.question, domain=GRID)  # type: ignore[misc]  # a test's own double.
    asked = replace(asked, mechanism=replace(asked.mechanism, zooms=2))
    outputs = list(range(design.output_count))

    record = decode_record(
        encode_record(build_record(decode_window(window.canonical), outputs, window.round_two_closes, ONCE))
    )

    reading = read(design, outputs, LEVEL)
    assert window.design == record.window.design == asked.design == design
    assert record.statement == views_of(design)
    assert [(one.epsilon, one.text) for one in statement_of(asked)] == [
        (view.epsilon, view.sentence) for view in views_of(design)
    ]
    assert [cell.raw for cell in record.cells] == outputs
    assert [cell.estimate for cell in record.cells] == exact_estimates(design, outputs)
    assert [(cell.low, cell.high) for cell in record.cells] == list(zip(reading.low, reading.high, strict=True))
    law = ["--noise", "gaussian"] if isinstance(design.noise, GaussianNoise) else []
    rate = ["--sampling-rate", "1/4"] if design.rounds == 2 else []
    args = ["--epsilon", str(epsilon_of(design)), "--values", 16, "--zooms", 2, "--mechanism", design.name, *law, *rate]
    ran = fleetcount("plan", "--devices", "400", *args)
    assert ran.code == 0, ran.err
    ((name, value),) = design.noise.parameters.items()
    shown = float(ran.out.split(f"{name} ")[1 if law else 2].split()[0])
    assert shown == pytest.approx(float(value), abs=0.011 if law else 3e-5)


# A mechanism that nobody knew.


@dataclass(frozen=True, slots=True)
class Spread:
    """With probability `keep` the truth, otherwise any of the outputs 0..V, the truth among them."""

    keep: Fraction
    values: int

    @property
    def epsilon(self) -> float:
        """ln(P/Q), rounded up far enough for a test."""
        return float(np.nextafter(np.log(float(self.probability(1, 1) / self.probability(1, 0))), np.inf))

    def probability(self, output: int, truth: int) -> Fraction:
        """Return P[output | truth]."""
        return (1 - self.keep) / (self.values + 1) + (self.keep if output == truth else 0)

    def randomize(self, truth: int, source: RandomSource) -> int:
        """Return the answer of a device."""
        spread = UniformBelow(bound=self.values + 1).draw(source)
        return truth if UniformBelow(bound=self.keep.denominator).draw(source) < self.keep.numerator else spread


def _spread(values: int, given: Any) -> Spread:
    return Spread(given["keep"], values)


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A law, the row of its family, a number."""
    kind = AnswerKind(law=Spread, name="spread", form=AnswerForm.POSITION, make=_spread, parameters=("keep",))
    monkeypatch.setitem(answers._KINDS, Spread, kind)  # as `register_answer`, undone after the test
    monkeypatch.setitem(MECHANISM_NUMBERS, Spread, 200)


@pytest.mark.usefixtures("spread")
def test_a_mechanism_nobody_knew_is_asked_answered_released_simulated_and_planned(
    fleetcount: Callable, tmp_path: Path
) -> None:
    law = Spread(Fraction(1, 2), 3)
    design = Design(answer=law, noise=TwoSidedNoise(Fraction(7, 10)), values=3, aggregators=2)

    window = decode_window(window_of(design).canonical)
    source = SeededRandom(3)
    parts = one_round_parts(window, truth_of(window, Reading(value="value 2"), source), source, device=DEVICE)
    record = build_record(window, [120, 80, 150, 50], window.round_two_closes, ONCE)
    asked = case_of(design)
    outcome = ExactLaw().run(asked, 0, range(200), np.random.SeedSequence(4, spawn_key=(0, 0)))
    ran = fleetcount("simulate", study(tmp_path), "--output", tmp_path / "out")

    assert window.mechanism == law
    assert len(parts.parts) == 2
    assert opened_outputs(window) == slice(None)
    miss = law.probability(1, 0)
    assert [cell.estimate for cell in record.cells] == [(count - miss * 400) / law.keep for count in (80, 150, 50)]
    assert record.statement == views_of(design)
    assert (relation_of(design), design.exposure) == (Relation.ANY_VALUE, Fraction(1, 2))
    assert read_releases(asked, outcome).estimates.mean(axis=0) == pytest.approx([100] * 3, abs=8)
    assert [one.text for one in statement_of(asked)] == [view.sentence for view in views_of(design)]
    assert ran.code == 0, ran.err


def study(folder: Path) -> Path:
    path = folder / "spread.toml"
    path.write_text(
        """
name = "spread"
seed = 1
runs = 3

[population]
kind = "city"
devices = 1000
values = 3

[question]
cells = "none"

[[mechanism]]
kind = "spread"
keep = "1/2"
noise_epsilon = "7/10"
""",
        encoding="utf-8",
    )
    return path

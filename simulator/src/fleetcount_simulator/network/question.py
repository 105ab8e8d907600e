"""From a study's case to a question for real devices: domain, mechanism, release, readings; and outputs of a record.

Pure: starts nothing, draws nothing. It refuses a question that the wire does not have, before a process starts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from fleetcount_mechanisms.answers import AnswerForm, AnswerLaw
from fleetcount_mechanisms.design import Design, Outputs
from fleetcount_mechanisms.noise import GaussianNoise, OneSidedNoise
from fleetcount_protocol.limits import MAX_AGGREGATORS
from fleetcount_protocol.release.record import ReleaseRecord
from fleetcount_protocol.window.domain import (
    MAX_VALUES,
    PLACE_BITS,
    Bins,
    Categories,
    Cross,
    H3Cells,
    Numbers,
    Prefixes,
    SingleDomain,
    SquareGrid,
    ValueDomain,
)
from fleetcount_protocol.window.fields import MECHANISM_NUMBERS, MODE_FORMS, Mode, Release, ReleaseKind, coarser_levels
from fleetcount_protocol.window.signal import Signal
from fleetcount_protocol.window.window import Window

from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Case, Mechanism

MOST_DEVICES: Final = 200_000
"""A real client costs about two milliseconds and twenty kilobytes: use another engine for more devices."""
_FEWEST_DEVICES: Final = 2
_ACTIVE_ATTACKERS: Final = frozenset({"liars", "cheats"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkQuestion:
    """The fields of a question that do not depend on time or keys."""

    domain: ValueDomain
    signal: str
    mode: Mode
    mechanism: AnswerLaw | None
    release: Release
    min_batch_size: int

    @property
    def two_rounds(self) -> bool:
        """Whether devices answer in two rounds."""
        return self.mode is Mode.SAMPLING


def question_of(case: Case) -> NetworkQuestion:
    """Return the question of a case.

    Raises:
        ScenarioError: real devices cannot be asked it; the message names the key and what is allowed.
    """
    _check_case(case)
    question = case.population.question
    values, mechanism = question.values, case.mechanism
    # The wire needs names and sizes only: values without a domain of their own are numbered.
    domain = question.domain or Categories(names=tuple(f"value {value}" for value in range(1, values + 1)))
    return NetworkQuestion(
        domain=domain,
        signal=_signal_of(domain),
        mode=next(mode for mode, forms in MODE_FORMS.items() if case.design.form in forms),
        mechanism=_law(mechanism, case.design),
        release=_release(mechanism, case.design, case.level),
        min_batch_size=case.min_batch_size,
    )


def _check_case(case: Case) -> None:
    values, devices = case.population.question.values, case.population.devices
    if not 1 <= values <= MAX_VALUES:
        raise ScenarioError(f"the question has {values} values; the network engine takes 1 to {MAX_VALUES}")
    domain = case.population.question.domain
    if domain is not None and domain.values != values:
        raise ScenarioError(f"the question's domain has {domain.values} values, its labels are {values}")
    if not _FEWEST_DEVICES <= devices <= MOST_DEVICES:
        raise ScenarioError(f"the population has {devices} devices; the network engine takes 2 to {MOST_DEVICES}")
    if not 2 <= case.aggregators <= MAX_AGGREGATORS:
        raise ScenarioError(f"aggregators.count is {case.aggregators}; allowed is 2 to {MAX_AGGREGATORS}")
    if case.min_batch_size < 2:
        raise ScenarioError(f"aggregators.min_batch_size is {case.min_batch_size}; allowed is 2 or more")
    if case.faults.naive:
        raise ScenarioError(
            "faults.naive counts half pairs, which real aggregators never do: use --engine exact-law or per-device"
        )
    for attacker in case.attackers:
        if attacker.kind in _ACTIVE_ATTACKERS:
            raise ScenarioError(
                f"attacker {attacker.name!r} of kind {attacker.kind!r} changes what devices send; the network engine"
                " runs honest devices only: use --engine exact-law or per-device"
            )


def _signal_of(domain: ValueDomain) -> str:
    match domain:
        case Cross():
            return domain.parts[0].signal
        case SquareGrid() | H3Cells() | Prefixes():
            return "Vehicle.CurrentLocation"
        case Bins() | Numbers():
            return "Vehicle.Speed"
        case Categories():
            return "Vehicle.Category"


def _law(mechanism: Mechanism, design: Design) -> AnswerLaw | None:
    if design.form is AnswerForm.TRUTH:
        return None
    if type(design.answer) in MECHANISM_NUMBERS:
        return design.answer
    raise ScenarioError(
        f"mechanism {mechanism.name!r} of kind {mechanism.kind!r} is not on the wire: use --engine exact-law"
    )


def _release(mechanism: Mechanism, design: Design, level: Fraction) -> Release:
    noise = design.noise
    if isinstance(noise, OneSidedNoise):
        kind, thresholds = ReleaseKind.ONE_SIDED, (0,) * design.cell_count
    else:
        kind, thresholds = ReleaseKind.GEOMETRIC, ()
    if not design.noised:
        if design.rounds == 1:
            raise ScenarioError(
                f"mechanism {mechanism.name!r} has no noise_epsilon; without noise only kind 'sampling' is released"
            )
        kind = ReleaseKind.EXACT
    variance = noise.variance if isinstance(noise, GaussianNoise) else None
    kind = kind if variance is None else ReleaseKind.GAUSSIAN
    return Release(
        kind=kind,
        noise_epsilon=noise.epsilon,
        noise_variance=variance,
        level=level,
        thresholds=thresholds,
        direction=noise.direction if isinstance(noise, OneSidedNoise) else "up",
        coarser=coarser_levels(design.levels, design.coarser),
    )


def readings_of(domain: ValueDomain, value: int) -> tuple[Signal, ...]:
    """Return a reading of each of a device's signals that the domain maps to `value` together; None for 0.

    Raises:
        ScenarioError: as `reading_of`.
    """
    if not isinstance(domain, Cross):
        return (reading_of(domain, value),)
    values = domain.apart(value) if value else (0,) * len(domain.parts)
    return tuple(reading_of(part.domain, one) for part, one in zip(domain.parts, values, strict=True))


def reading_of(domain: SingleDomain, value: int) -> Signal:
    """Return a reading of a device's signal that the domain maps to `value`, 0..V; None for 0.

    Raises:
        ScenarioError: the value is so narrow that no float lies in it.
    """
    if value == 0:
        return None
    match domain:
        case Categories():
            return domain.names[value - 1]
        case H3Cells():
            return domain.label(value)
        case Prefixes():
            cell = domain.cells[value - 1]
            codes = domain.codes
            return cell << PLACE_BITS - domain.bits if codes is None else codes.first_of(cell, domain.bits)
        case Numbers():
            point = float(domain.points[value - 1])
            if domain.place_of(point) != value:
                raise ScenarioError(f"point {value} ({domain.label(value)}) has no decimal that a signal reads exactly")
            return point
        case Bins():
            low = domain.edges[value - 1]
            high = domain.edges[value] if value < len(domain.edges) else low + 2
            reading: Signal = float((low + high) / 2)
        case SquareGrid():
            column, row = (value - 1) % domain.columns, (value - 1) // domain.columns
            half = domain.size / 2
            reading = (
                float(domain.x0 + column * domain.size + half),
                float(domain.y0 + row * domain.size + half),
            )
    if domain.value_of(reading) != value:
        raise ScenarioError(f"value {value} ({domain.label(value)}) is too narrow for a signal to read")
    return reading


def outputs_of(record: ReleaseRecord) -> Sequence[int]:
    """Return the opened numbers in the order of `CaseOutcome.outputs`: V, or V + 1 for responses, value 0 first."""
    cells = [cell.raw for cell in record.cells]
    if record.baseline_raw is None or record.window.design.outputs is Outputs.PARTICIPATION:
        return cells
    return [record.baseline_raw, *cells]


def outputs_length(window: Window) -> int:
    """Return how many numbers `outputs_of` gives for a record of the window."""
    design = window.design
    return design.values if design.outputs is Outputs.PARTICIPATION else design.output_count

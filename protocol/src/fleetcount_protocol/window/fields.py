"""The fields of a window, unchecked, and the design of its question that follows from them.

Only a `Window` may be asked. This module must not apply rules (`window`), encode (`codec`) or use a key.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final, cast

from fleetcount_mechanisms.answers import AnswerForm, AnswerLaw, Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.levels import Levels, total_label
from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw, NoNoise, OneSidedNoise, Side, TwoSidedNoise
from fleetcount_mechanisms.responses import (
    AsymmetricVector,
    KaryResponse,
    Mangat,
    MangatVector,
    OptimizedUnaryEncoding,
    TwoCoin,
    Warner,
)
from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.ids import AggregatorId, Digest, QuestionId
from fleetcount_protocol.window.domain import Bins, Cross, Numbers, Part, SquareGrid, ValueDomain, most_of, parts_of

WEIGHTED_LABEL: Final = "weighted sum"
"""The name of the weighted sum of numbers."""


class Mode(enum.Enum):
    """How a device answers (docs/wire.md, "Modes")."""

    SAMPLING = 1
    """Two rounds of Sampling Privacy; circuit TwoRoundOneHot; aggregated is round two minus round one, cells 1..V."""
    RESPONSE = 2
    """One round, the device randomizes; circuit OneHot over 0..V, or one bit a cell for vector Mangat."""
    DIRECT = 3
    """One round, the truth in shares; circuit OneHot; only the aggregators' noise protects it. Devices must opt in."""


MODE_FORMS: Final = {
    Mode.SAMPLING: (AnswerForm.TWO_ROUNDS,),
    Mode.RESPONSE: (AnswerForm.POSITION, AnswerForm.BITS),
    Mode.DIRECT: (AnswerForm.TRUTH,),
}
"""The allowed forms of an answer in each mode."""

MECHANISM_NUMBERS: Final[dict[type, int]] = {
    SamplingDie: 1,
    TwoCoin: 2,
    Warner: 3,
    Mangat: 4,
    MangatVector: 5,
    KaryResponse: 6,
    AsymmetricVector: 7,
    OptimizedUnaryEncoding: 8,
}
"""The number on the wire of every answer law of a question; 0 is no mechanism, and no number is ever reused."""


class UploadStyle(enum.Enum):
    """When a device sends the parts of a two-round report."""

    TWO_INSTALMENTS = 1
    ONE_ENVELOPE = 2


class ReleaseKind(enum.Enum):
    """The kind of the published numbers: which noise the aggregators add."""

    GEOMETRIC = 1
    EXACT = 2
    ONE_SIDED = 3
    GAUSSIAN = 4

    @property
    def label(self) -> str:
        """The name in question files and readable records."""
        return self.name.lower().replace("_", "-")


class LevelKind(enum.Enum):
    """What the numbers of a level above the cells count, in the order in which such levels are opened."""

    ZOOM = 1
    MARGIN = 2
    WEIGHTED = 3
    TOTAL = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CoarserLevel:
    """A level above the cells: larger cells, the margin of a table's dimension, the weighted sum or the total.

    `number` is of a zoom how many times the side of a cell its squares have, or how many bins or points are together,
    of a margin the dimension from 1 on, else 0. `noise` is the parameter of each aggregator's noise on every number of
    the level: a variance where the release has one, else an epsilon.
    """

    kind: LevelKind
    number: int = 0
    noise: Fraction


def coarser_levels(levels: Levels, laws: Sequence[NoiseLaw]) -> tuple[CoarserLevel, ...]:
    """Return the levels above the cells as a release names them, from the noise of each."""
    named = [(LevelKind.ZOOM, side) for side in levels.sides[1:]]
    named += [(LevelKind.MARGIN, dimension) for dimension, _ in enumerate(levels.margins, start=1)]
    named += [(LevelKind.WEIGHTED, 0)] * levels.weighted + [(LevelKind.TOTAL, 0)] * levels.total
    return tuple(
        CoarserLevel(kind=kind, number=number, noise=next(iter(law.parameters.values())))
        for (kind, number), law in zip(named, laws, strict=True)
    )


def level_name(domain: ValueDomain, level: CoarserLevel) -> str:
    """Return a level's name in records: a zoom's number, as "2", "margin 1", "weighted sum", "total" or "told any"."""
    named = {
        LevelKind.MARGIN: f"margin {level.number}",
        LevelKind.WEIGHTED: WEIGHTED_LABEL,
        LevelKind.TOTAL: total_label(most_of(domain)),
    }
    return named.get(level.kind, str(level.number))


def level_words(domain: ValueDomain, level: CoarserLevel) -> str:
    """Return what a level above the cells counts, for people: larger cells, a margin, the weighted sum, the total."""
    match level.kind:
        case LevelKind.ZOOM if isinstance(domain, Bins | Numbers):
            return f"{level.number} {'bins' if isinstance(domain, Bins) else 'points'} together"
        case LevelKind.ZOOM:
            return f"squares of {level.number} times the side"
        case LevelKind.MARGIN:
            of = domain.parts[level.number - 1 : level.number] if isinstance(domain, Cross) else ()
            return f"the margin of {of[0].signal}" if of else level_name(domain, level)
        case LevelKind.TOTAL if most_of(domain) > 1:
            return f"the number that {level_name(domain, level)}"
        case LevelKind.WEIGHTED | LevelKind.TOTAL:
            return f"the {level_name(domain, level)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The release the window announces.

    `noise_epsilon` is the strength of every aggregator's own noise: e1 of the two-sided geometric noise
    (docs/privacy.md) or, for `ONE_SIDED`, the epsilon of AGeo; None for `EXACT`. `GAUSSIAN` has `noise_variance` in
    its place, the parameter s of N_Z(0, s), which is None for every other kind. `level` is the level of the published
    intervals, strictly between 0 and 1. `thresholds` has, for `ONE_SIDED` only, the largest safe count of each
    published cell, and `direction` says on which side of the counts its noise lies. `coarser` has the levels that are
    opened behind the cells 1..V: larger squares of a grid or more bins or points together, the smallest first, or the
    margins of a table, then the weighted sum, and last the total.
    """

    kind: ReleaseKind
    noise_epsilon: Fraction | None
    level: Fraction
    thresholds: tuple[int, ...] = ()
    noise_variance: Fraction | None = None
    coarser: tuple[CoarserLevel, ...] = ()
    direction: Side = "up"

    @property
    def sides(self) -> tuple[int, ...]:
        """How many times the side of a cell every zoom has, or how many bins or points, the cells first."""
        return (1, *(level.number for level in self.coarser if level.kind is LevelKind.ZOOM))

    @property
    def margins(self) -> tuple[int, ...]:
        """The dimensions of a table whose margins are opened, from 1 on."""
        return tuple(level.number for level in self.coarser if level.kind is LevelKind.MARGIN)

    @property
    def weighted(self) -> bool:
        """Whether the weighted sum of numbers is opened."""
        return any(level.kind is LevelKind.WEIGHTED for level in self.coarser)

    @property
    def total(self) -> bool:
        """Whether the total of all cells is opened."""
        return any(level.kind is LevelKind.TOTAL for level in self.coarser)

    @property
    def noise(self) -> NoiseLaw:
        """The law of the noise that every aggregator adds to the number of each cell.

        Raises:
            MechanismError: a kind with noise whose `noise_epsilon` or `noise_variance` is missing or outside its range.
        """
        gaussian = self.kind is ReleaseKind.GAUSSIAN
        return self._law(self.noise_variance if gaussian else self.noise_epsilon)

    @property
    def coarser_noise(self) -> tuple[NoiseLaw, ...]:
        """The law of every level above the cells; raises as `noise`."""
        return tuple(self._law(level.noise) for level in self.coarser)

    def _law(self, parameter: Fraction | None) -> NoiseLaw:
        if self.kind is ReleaseKind.EXACT:
            return NoNoise()
        given = cast("Fraction", parameter)  # The law refuses None by name.
        if self.kind is ReleaseKind.GAUSSIAN:
            return GaussianNoise(given)
        return OneSidedNoise(given, self.direction) if self.kind is ReleaseKind.ONE_SIDED else TwoSidedNoise(given)


def shape_of(domain: ValueDomain) -> tuple[int, ...] | None:
    """Return how many values each dimension of a table has, None for a domain that is none."""
    return domain.shape if isinstance(domain, Cross) else None


def levels_of(
    domain: ValueDomain,
    sides: tuple[int, ...] = (1,),
    *,
    margins: bool = False,
    weighted: bool = False,
    total: bool = False,
) -> Levels:
    """Return the levels at which the values of a domain are counted: larger cells or margins, a weighted sum, a total.

    `sides` are how many times the side of a cell the squares of a level have, or how many bins or points are together.

    Raises:
        QuestionError: a domain whose values lie in no larger ones, such as a grid of a single row; larger cells that do
            not fill it; margins of what is no table, or a weighted sum of what are no numbers; or a total of a single
            value.
    """
    grid, zoomed, shape = None, False, shape_of(domain)
    if isinstance(domain, SquareGrid):
        # Squares in a line have larger cells, but these are no squares.
        grid, zoomed = (domain.columns, domain.rows), domain.columns > 1 < domain.rows
    elif isinstance(domain, Bins | Numbers):
        grid, zoomed = (domain.values, 1), True
    if len(sides) > 1 and not zoomed:
        what = f"a grid of {grid[0]} by {grid[1]} squares" if grid else type(domain).__name__
        raise QuestionError(f"zooms are asked of {what}, allowed: 1; bins, numbers and grids of several rows have more")
    if margins and shape is None:
        raise QuestionError(f"margins are asked of {type(domain).__name__}, allowed: of a table of several signals")
    if weighted and not isinstance(domain, Numbers):
        raise QuestionError(f"a weighted sum is asked of {type(domain).__name__}, allowed: of Numbers")
    try:
        return Levels(domain.values, grid, sides, total, (shape or ()) if margins else (), weighted, most_of(domain))
    except MechanismError as error:
        raise QuestionError(str(error)) from None


def opened_levels(domain: ValueDomain, release: Release) -> Levels:
    """Return the levels that a release of a domain opens.

    Raises:
        QuestionError: as `levels_of`.
    """
    margins = bool(release.margins)
    return levels_of(domain, release.sides, margins=margins, weighted=release.weighted, total=release.total)


def _label_in(domain: ValueDomain, level: CoarserLevel, place: int) -> str:
    """Return the name of a number of a level above the cells, from 1 on."""
    if level.kind is LevelKind.MARGIN and isinstance(domain, Cross):
        return domain.margin_label(level.number - 1, place)
    if level.kind is LevelKind.ZOOM and isinstance(domain, SquareGrid | Bins | Numbers):
        named = domain.coarser(level.number).label(place)
        return f"{named}/{level.number}" if isinstance(domain, SquareGrid) else named
    return level_name(domain, level)


@dataclass(frozen=True, slots=True, kw_only=True)
class HpkeKey:
    """One public sealing key of an aggregator.

    `key_id` is 0..255; `public_key` 32 bytes (X25519) or 1,216 bytes (MLKEM768-X25519: ML-KEM-768, then X25519).
    """

    key_id: int
    public_key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregator:
    """One aggregator as the window names it: its operator, its endpoints for devices and its keys.

    `grpc_endpoint` is "host:port" or ""; `mqtt_broker` likewise; at least one of both is given. `signing_public_key` is
    Ed25519, 32 bytes. `hpke_keys` is empty in questions: a device fills in the keys that it seals to, from key lists.
    """

    aggregator_id: AggregatorId
    operator: str
    grpc_endpoint: str
    mqtt_broker: str
    hpke_keys: tuple[HpkeKey, ...]
    signing_public_key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRef:
    """The place of a window in its signed question; `index` counts from 0.

    With `noised_participants` the record has the number of participants plus the noise of every aggregator.
    """

    question_id: QuestionId
    index: int
    noised_participants: bool = False


@dataclass(frozen=True, kw_only=True)
class WindowFields:
    """The fields of one window of a counting question (docs/wire.md, "Window"), not checked against the rules.

    Times are whole Unix seconds on the grid of `time_precision_s`; round two opens when round one closes. In one-round
    modes and with `ONE_ENVELOPE`, aggregators accept reports from `round_one_opens` to `round_one_closes`; in one-round
    modes `round_two_closes` equals `round_one_closes`. Aggregator 0 is the leader and gets explicit shares. `question`
    is the window's place in its question. The operators sign the question, so the window has no signatures of its own,
    its aggregators name no sealing keys, and `verify_key_digest` is that of the seed of all windows' verify keys.
    """

    name: str
    deployment: str
    signal: str
    domain: ValueDomain
    mode: Mode
    mechanism: AnswerLaw | None
    aggregators: tuple[Aggregator, ...]
    round_one_opens: int
    round_one_closes: int
    round_two_closes: int
    expiry: int
    time_precision_s: int
    min_batch_size: int
    release: Release
    upload_style: UploadStyle
    verify_key_digest: Digest
    question: QuestionRef

    @property
    def values(self) -> int:
        """V, the number of values besides 0."""
        return self.domain.values

    @property
    def parts(self) -> tuple[Part, ...]:
        """What a device reads for an answer: each signal, and the domain of its readings."""
        return parts_of(self.signal, self.domain)

    @property
    def vector(self) -> bool:
        """Whether an answer is a set of values, as V bits."""
        return self.design.levels.most > 1 or self.design.kind.multi_hot

    @cached_property
    def design(self) -> Design:
        """The design of the question, from which statement, charge, outputs and reading follow.

        Raises:
            MechanismError, QuestionError: parts that do not fit together; never for a `Window`, which is checked.
        """
        return Design(
            answer=Truth(self.values, most_of(self.domain)) if self.mechanism is None else self.mechanism,
            noise=self.release.noise,
            values=self.values,
            aggregators=len(self.aggregators),
            levels=opened_levels(self.domain, self.release),
            coarser=self.release.coarser_noise,
        )

    def label(self, cell: int) -> str:
        """Return the name of a published number: a value 1..V; above V those of the levels, as '0,1/2' or 'total'.

        Raises:
            QuestionError: no such number.
        """
        place = cell
        for level, size in zip((None, *self.release.coarser), self.design.levels.sizes, strict=True):
            if 1 <= place <= size:
                return self.domain.label(place) if level is None else _label_in(self.domain, level, place)
            place -= size
        raise QuestionError(f"cell is {cell}, allowed: 1 to {self.design.cell_count}")

    @property
    def two_instalments(self) -> bool:
        """Whether a device sends the two rounds of a report separately."""
        return self.design.rounds == 2 and self.upload_style is UploadStyle.TWO_INSTALMENTS

    @property
    def leader(self) -> Aggregator:
        """The aggregator that proposes batches and gets explicit shares."""
        return self.aggregators[0]

    def position_of(self, aggregator_id: str) -> int:
        """Return the share number, 0..k-1, of an aggregator; 0 is the leader.

        Raises:
            QuestionError: the window does not list it.
        """
        for position, aggregator in enumerate(self.aggregators):
            if aggregator.aggregator_id == aggregator_id:
                return position
        raise QuestionError(f"window {self.name!r} does not list aggregator {aggregator_id!r}")

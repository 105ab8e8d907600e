"""The fields of a question, unchecked: what every window asks, the schedule, the unit of the coin, and the promise.

This module must not apply rules, encode, sign or derive a window.
"""

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, Self

from fleetcount_mechanisms.accounting.vectors import ScheduleShape
from fleetcount_mechanisms.answers import AnswerLaw
from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_protocol.errors import QuestionError, UsageError
from fleetcount_protocol.ids import Digest, QuestionId
from fleetcount_protocol.window.codes import Codes
from fleetcount_protocol.window.domain import Part, Prefixes, ValueDomain, parts_of, prefixes_among
from fleetcount_protocol.window.fields import Aggregator, Mode, QuestionRef, Release, UploadStyle, WindowFields

DAY_S: Final = 86_400
"""The unit of a coin of a day is one UTC day, which always has this many seconds of Unix time."""


class Coin(enum.Enum):
    """The unit of the sampling coin: the windows that share one toss. The baseline is drawn anew in every window."""

    WINDOW = 1
    DAY = 2
    QUESTION = 3


class Participants(enum.Enum):
    """What a release reveals about the number of participants, beyond the signed lower bound."""

    HIDDEN = 1
    NOISED = 2


class Admission(enum.Enum):
    """Which devices may answer. Number 2 is reserved; every number but 1 is refused."""

    CERTIFICATE = 1
    """Devices that open a session with a certificate of the deployment's authority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillDown:
    """Walks from coarse to fine: one window for each level asks about the children of the busy cells before.

    `levels` are the bits of a place or a code (`Prefixes`) at each step of a walk, ascending; the first is that of the
    question's domain. A cell survives a step if its estimate is at least `threshold`; at most `most_survivors` cells
    survive, those with the largest estimates.
    """

    levels: tuple[int, ...]
    threshold: int
    most_survivors: int

    def step_of(self, index: int) -> int:
        """Return the step of a window in its walk, from 0 on; a new walk begins every `len(levels)` windows."""
        return index % len(self.levels)

    def walk_of(self, index: int) -> int:
        """Return the number of the walk that a window belongs to, from 0 on."""
        return index // len(self.levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The signed limits of a start that the leader fixes when the question is submitted to it.

    The leader chooses the first time of the grid that is at least `delay_s` seconds after it accepted the question;
    every party checks that it lies from `earliest` to `latest`, Unix seconds UTC.
    """

    delay_s: int
    earliest: int
    latest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The times of the windows: window i opens at `first + i * every_s`, Unix seconds UTC.

    `windows` is their number; round one takes `round_one_s`, round two `round_two_s` after it (0 in one-round modes and
    for one envelope); a window expires `expiry_s` after its last round has closed.

    A fixed schedule has no `submission`. One that is counted from submission has `first` None until it is started
    (`orders.started_question`): before that it has no windows, and the methods that return a time raise
    `QuestionError`.
    """

    first: int | None
    every_s: int
    windows: int
    round_one_s: int
    round_two_s: int
    expiry_s: int
    submission: Submission | None = None

    @property
    def latest_start(self) -> int:
        """The latest time at which window 0 may open by the signed schedule, whether it has started or not."""
        return self.opens(0) if self.submission is None else self.submission.latest

    def at_latest(self) -> Self:
        """Return the schedule itself if it has a start, else with its latest start."""
        return self if self.first is not None else replace(self, first=self.latest_start)

    def opens(self, index: int) -> int:
        """Return when round one of a window opens, Unix seconds.

        Raises:
            QuestionError: the question is counted from submission and has not started.
        """
        if self.first is None:
            raise QuestionError("the question is counted from submission and has not started: it has no windows yet")
        return self.first + index * self.every_s

    def closes(self, index: int) -> int:
        """Return when the last round of a window closes, Unix seconds.

        Raises:
            QuestionError: as `opens`.
        """
        return self.opens(index) + self.round_one_s + self.round_two_s

    @property
    def end(self) -> int:
        """When the last window closes."""
        return self.closes(self.windows - 1)

    def unit_of(self, coin: Coin, index: int) -> int:
        """Return the number of the coin's unit to which a window belongs; windows of one unit share one toss.

        A day is the UTC day in which the window's round one opens, counted from 1970-01-01. In a schedule counted from
        submission it is the n-th 24 hours after the start, so that the promise does not depend on the start: no UTC day
        has more windows than the first 24 hours.
        """
        if coin is Coin.WINDOW:
            return index
        if coin is Coin.QUESTION:
            return 0
        return (index * self.every_s if self.submission is not None else self.opens(index)) // DAY_S

    def units(self, coin: Coin) -> dict[int, tuple[int, ...]]:
        """Return the indices of the windows of every unit, in order, by the unit's number."""
        found: dict[int, list[int]] = {}
        for index in range(self.windows):
            found.setdefault(self.unit_of(coin, index), []).append(index)
        return {unit: tuple(windows) for unit, windows in found.items()}

    def followed(self, coin: Coin, period_s: int) -> tuple[Counter[int], ...]:
        """Return the units by size that a period of so many seconds touches if such questions follow without a pause.

        One window counts at the second it opens; a unit of several from the first to the end of the last round one.
        For coins of a day one set for each unit that a period may begin with, without those that others contain.
        """
        if coin is not Coin.DAY:
            size = 1 if coin is Coin.WINDOW else self.windows
            every_s, lasts_s = size * self.every_s, self._counted_s(size)
            return (Counter({size: -(-(period_s + lasts_s - 1) // every_s)}),)
        units, length_s = self.units(coin).values(), self.windows * self.every_s
        spans = [
            (self.opens(windows[0]) + length_s * turn, self._counted_s(len(windows)), len(windows))
            for turn in range(period_s // length_s + 2)
            for windows in units
        ]
        found = list[Counter[int]]()
        for first, lasts_s, _ in spans[: len(units)]:
            last = first + lasts_s - 1
            touched = Counter(
                size for opens, seconds, size in spans if opens < last + period_s and opens + seconds > last
            )
            if not any(touched <= other for other in found):
                found = [other for other in found if not other <= touched] + [touched]
        return tuple(found)

    def _counted_s(self, windows: int) -> int:
        return 1 if windows == 1 else (windows - 1) * self.every_s + self.round_one_s + 1

    def shape(self, coin: Coin, levels: int = 1, one_in: int = 1) -> ScheduleShape:
        """Return how many windows each unit of the coin and each UTC day has; `levels` are those of a drill-down.

        Where a device is asked in one window of `one_in`, its answers alone, each of a day of its own.
        """
        if one_in > 1:
            answers = (1,) * -(-self.windows // one_in)
            return ScheduleShape(units=answers, days=answers)
        units, days = (self.units(one) for one in (coin, Coin.DAY))
        return ScheduleShape(
            units=tuple(len(windows) for windows in units.values()),
            days=tuple(len(windows) for windows in days.values()),
            levels=levels,
        )


@dataclass(frozen=True, kw_only=True)
class QuestionFields:
    """The fields of a question, not checked against the rules.

    Every window asks about `domain` with the same `mode`, `mechanism` and `release`, as defined in `WindowFields`.
    `coin` is `WINDOW` in one-round modes. `delta` is the delta at which every epsilon of the question is stated.
    `aggregators` name no sealing keys: devices use the key of each aggregator's signed key list that is valid during
    the window. `verify_seed_digest` is SHA-256 of the 32 bytes from which all verify keys are derived. With
    `drill_down`, `domain` is that of the first step of every walk. With `one_in` W above 1 each device answers in one
    window of W alone, the same in every W of them, which it draws for itself and tells nobody.
    """

    name: str
    deployment: str
    signal: str
    domain: ValueDomain
    mode: Mode
    mechanism: AnswerLaw | None
    schedule: Schedule
    coin: Coin
    participants: Participants
    delta: Fraction
    release: Release
    upload_style: UploadStyle
    time_precision_s: int
    min_batch_size: int
    aggregators: tuple[Aggregator, ...]
    verify_seed_digest: Digest
    drill_down: DrillDown | None = None
    one_in: int = 1
    admission: Admission = Admission.CERTIFICATE

    @property
    def parts(self) -> tuple[Part, ...]:
        """What a device reads for an answer: each signal, and the domain of its readings."""
        return parts_of(self.signal, self.domain)


# The fields of one window, from its question and its index, not checked; `derive` makes the window itself.

_SHARED: Final = (
    "name",
    "deployment",
    "signal",
    "domain",
    "mode",
    "mechanism",
    "release",
    "upload_style",
    "time_precision_s",
    "min_batch_size",
    "aggregators",
)


def window_times(schedule: Schedule, index: int) -> dict[str, int]:
    """Return the four times of a window, Unix seconds, by the names of its fields.

    Raises:
        QuestionError: as `Schedule.opens`.
    """
    opens, closes = schedule.opens(index), schedule.closes(index)
    return {
        "round_one_opens": opens,
        "round_one_closes": opens + schedule.round_one_s,
        "round_two_closes": closes,
        "expiry": closes + schedule.expiry_s,
    }


def window_ref(question: QuestionFields, question_id: QuestionId, index: int) -> QuestionRef:
    """Return a window's place in its question."""
    noised = question.participants is Participants.NOISED
    return QuestionRef(question_id=question_id, index=index, noised_participants=noised)


def window_fields(
    question: QuestionFields, question_id: QuestionId, index: int, domain: Prefixes | None = None
) -> WindowFields:
    """Return the fields of a window: those of the question, the window's times and its place in the question.

    Before the start the times are those of the latest start, for the rules and for the bytes that all windows share. A
    later step of a drill-down has its own `domain`; its uniform die has the same rate and a face for each of its cells.
    """
    shared: dict[str, Any] = {name: getattr(question, name) for name in _SHARED}
    if domain is not None:
        shared["domain"] = domain
        if isinstance(question.mechanism, SamplingDie):
            rate = question.mechanism.sampling_rate
            shared["mechanism"] = SamplingDie.uniform(rate, domain.values, allow_large_rate=True)
    shared |= window_times(question.schedule.at_latest(), index)
    return WindowFields(
        **shared,
        verify_key_digest=question.verify_seed_digest,
        question=window_ref(question, question_id, index),
    )


# The cells of the next step of a drill-down: the children of the cells that are busy in the record before.
#
# Run by every party on the signed public record of the step before, so that no further signature is needed. It must not
# use anything else of a release: a function of public numbers has no further loss.


def surviving_cells(domain: Prefixes, estimates: Sequence[Fraction], walk: DrillDown) -> tuple[int, ...]:
    """Return the cells whose estimate is at least the threshold, ascending; of too many those with the largest ones.

    `estimates` are those of the record, one for each cell of the `domain` of its window, in its order. Of equal
    estimates the smaller cell is kept. If no cell reached the threshold the result is empty: the walk has ended.

    Raises:
        UsageError: another number of estimates than of cells.
    """
    if len(estimates) != domain.values:
        raise UsageError(f"{len(estimates)} estimates for {domain.values} cells")
    busy = [
        (-estimate, cell) for cell, estimate in zip(domain.cells, estimates, strict=True) if estimate >= walk.threshold
    ]
    return tuple(sorted(cell for _, cell in sorted(busy)[: walk.most_survivors]))


def candidates(survivors: tuple[int, ...], walk: DrillDown, step: int, codes: Codes | None = None) -> Prefixes:
    """Return the domain of step 1, 2, ... of a walk: all children of the cells that survived the step before.

    Of a walk over `codes` those that some code begins with.

    Raises:
        UsageError: no survivor, more than the question allows, or cells that do not ascend or are not of the level
            before.
    """
    bits = walk.levels[step - 1]
    if not 1 <= len(survivors) <= walk.most_survivors:
        raise UsageError(f"{len(survivors)} cells survived, allowed for a next step: 1 to {walk.most_survivors}")
    if list(survivors) != sorted(set(survivors)) or not 0 <= survivors[0] <= survivors[-1] < 1 << bits:
        raise UsageError(f"surviving cells must ascend, each of {bits} bits")
    deeper = walk.levels[step] - bits
    cells = ((cell << deeper) + child for cell in survivors for child in range(1 << deeper))
    return prefixes_among(cells, walk.levels[step], codes)


def parents(domain: Prefixes, walk: DrillDown, step: int) -> tuple[int, ...]:
    """Return the cells whose children a step asks about, ascending; empty for the first step of a walk."""
    deeper = walk.levels[step] - walk.levels[step - 1] if step else 0
    return tuple(sorted({cell >> deeper for cell in domain.cells})) if step else ()

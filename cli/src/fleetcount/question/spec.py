"""A question's specification file, SPEC.toml, and the question it describes (docs/operating-questions.md).

Reads text; the present time is an argument. It must not draw a key or sign. `schedule` reads when its windows
are; each other section is a `@settings` class here.
"""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Final, cast

from fleetcount_client.policy import DEFAULT_PERIOD_S
from fleetcount_mechanisms.answers import AnswerLaw, Truth, answer_named, kind_of_law
from fleetcount_mechanisms.errors import MechanismError, did_you_mean
from fleetcount_mechanisms.planning import default_sampling_rate
from fleetcount_mechanisms.protection import flips_protecting
from fleetcount_mechanisms.responses import Flips
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.limits import (
    MAX_DRILL_DOWN_LEVELS,
    MAX_QUESTION_WINDOWS,
    MAX_REPORTS_PER_WINDOW,
    MIN_BATCH_SIZE,
)
from fleetcount_protocol.question.fields import Coin, DrillDown, Participants
from fleetcount_protocol.question.question import Question, check_one_in
from fleetcount_protocol.window.codes import CODE_ALPHABET, MAX_CODE_LENGTH, CodeForm, Codes
from fleetcount_protocol.window.domain import (
    MAX_VALUES,
    PLACE_BITS,
    Cross,
    SquareGrid,
    ValueDomain,
    all_prefixes,
    most_of,
)
from fleetcount_protocol.window.fields import (
    MECHANISM_NUMBERS,
    MODE_FORMS,
    Aggregator,
    Mode,
    UploadStyle,
)
from fleetcount_protocol.window.signal import decimal_text
from fleetcount_transport.domain_table import SIGNAL_TEXT, exact_numbers, read_domain
from fleetcount_transport.settings import (
    UnfitKeyError,
    read_rows,
    read_settings,
    setting,
    settings,
)
from fleetcount_transport.toml_table import Table, read_toml
from fleetcount_transport.toml_values import Range, shown

from fleetcount.keys.descriptors import read_descriptor
from fleetcount.question.release_table import read_promise, usual_points
from fleetcount.question.schedule import SCHEDULE_KEYS, read_schedule

# Refusals of a specification that come from the rules of a question or a law, told by file, line, key and value.
#
# The rules know fields, not files: their first words say which key of the file stands behind them.

_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    r"first|round_one_opens|delay_s|earliest start": ("schedule.opens",),
    r"latest start": ("schedule.submit_by",),
    r"every_s": ("schedule.every",),
    r"windows|the last window expires|[0-9]+ units have": ("schedule.windows", "schedule.until"),
    r"round_one_s|round_one_closes|round one": ("schedule.round_one", "schedule.window"),
    r"round_two_s|round_two_closes|round two|the rounds": ("schedule.window",),
    r"expiry_s|expiry": ("schedule.expires_after", "schedule.opens"),
    r"coin": ("schedule.coin",),
    r"one_in": ("schedule.one_in",),
    r"delta": ("release.delta",),
    r"release has": ("release.thresholds",),
    r"one-sided|release|level": ("release.kind",),
    r"number of levels|levels?": ("drill_down.levels",),
    r"threshold": ("drill_down.threshold", "release.thresholds"),
    r"most_survivors|a cell has": ("drill_down.most_survivors",),
    r"grid|cells?|H3 cells|[0-9a-f]{15} is not an H3": ("domain.columns", "domain.cells"),
    r"bins?|edges?": ("domain.edges",),
    r"low": ("domain.low",),
    r"high": ("domain.high",),
    r"categor(y|ies)|names": ("domain.names",),
    r"name": ("question.name",),
    r"a device has": ("domain.at_once",),
    r"alphabet": ("drill_down.alphabet",),
    r"length": ("drill_down.length",),
    r"signal": ("question.signal",),
    r"min_batch_size": ("question.min_batch_size",),
    r"a drill-down is": ("question.mode",),
    r"sampling rate": ("mechanism.sampling_rate",),
    r"face probabilities|probability of face": ("mechanism.face_probabilities",),
    r"aggregators?": ("aggregators",),
}
"""By the first words of a refusal: the keys, the first of which that is given is meant."""
_WINDOW: Final = re.compile(r"window [0-9]+ of the question: ")


@contextmanager
def told_by_key(root: Table) -> Generator[None]:
    """Give refusals of the block file, line, key and value; of those that stand for no one key the file alone.

    Raises:
        UsageError: in place of a QuestionError or MechanismError; what has its place already goes through.
    """
    try:
        yield
    except (QuestionError, MechanismError) as error:
        said = _WINDOW.sub("", str(error))
        key = next((_given(root, keys) for words, keys in _KEYS.items() if re.match(rf"({words})\b", said)), None)
        if key is None:
            raise root.source.refuse("", said) from None
        section, _, name = key.rpartition(".")
        table = root.section(section, None) if section else root
        what = f"is {shown(table.raw(name))}" if section else "do not fit"
        raise table.wrong(name, f"{what}: {said}") from None


def _given(root: Table, keys: tuple[str, ...]) -> str | None:
    for key in keys:
        section, _, name = key.rpartition(".")
        table = root.section(section, None) if section else root
        if table.has(name):
            return key
    return None


_SECTIONS: Final = ("question", "domain", "drill_down", "schedule", "mechanism", "release", "aggregators")
_UPLOAD_STYLES: Final = ("two_instalments", "one_envelope")
_FRAME_ENDS: Final = {
    4326: (Fraction(180), Fraction(90)),
    3857: (Fraction("20037508.342790"), Fraction("20037508.342790")),
}
"""How far x and y go, both ways, in reference systems that do not go on across 180 degrees of longitude."""
_MOST_BITS: Final = MAX_VALUES.bit_length() - 1
"""A step of one more bit would have 4,096 candidates; the limit is 4,095."""
_NONE: Final = "none"
_TEXT: Final = r"[^\0-\x1f]{1,200}"
_SHARE: Final = Range("(0, 1]")
_LOCAL_EPSILON: Final = Range("(0, 10]")


@settings
class QuestionTable:
    """[question]: what is asked, by which deployment, and how it is answered."""

    name: str = setting(Table.text, _TEXT, "1 to 200 characters")
    deployment: str = setting(Table.deployment)
    signal: str | None = setting(Table.text, SIGNAL_TEXT, "a VSS path", default=None)
    mode: str = setting(Table.choice, ("sampling", "response", "direct"), default="sampling")
    min_batch_size: int = setting(Table.integer, MIN_BATCH_SIZE, MAX_REPORTS_PER_WINDOW)
    time_precision_s: int = setting(Table.integer, 1, 86_400, default=1)
    upload_style: str = setting(Table.choice, _UPLOAD_STYLES, default="two_instalments")


_FORMS: Final = {form.label: form for form in CodeForm}


def _levels(table: Table, key: str) -> tuple[int, ...]:
    value = table.raw(key)
    levels = tuple(cast("list[object]", value)) if isinstance(value, list) else ()
    whole = tuple(one for one in levels if type(one) is int and 1 <= one <= PLACE_BITS)
    if len(whole) != len(levels) or not 2 <= len(whole) <= MAX_DRILL_DOWN_LEVELS:
        raise table.refuse(key, f"2 to {MAX_DRILL_DOWN_LEVELS} numbers of bits, each 1 to {PLACE_BITS}")
    steps = (whole[0], *(fine - coarse for coarse, fine in pairwise(whole)))
    if not all(1 <= one <= _MOST_BITS for one in steps):
        raise table.refuse(key, f"ascending, the first and each step at most {_MOST_BITS} bits: 2,048 candidates")
    return whole


@settings
class DrillDownTable:
    """[drill_down]: the steps of a walk; `most_survivors` is by default as many as a step can ask about.

    Of codes `form` says how they are spelled; a text has an `alphabet` and a `length`.
    """

    levels: tuple[int, ...] = setting(_levels)
    threshold: int = setting(Table.integer, 1, 2**32 - 1)
    most_survivors: int | None = setting(Table.integer, 1, MAX_VALUES, default=None)
    of: str = setting(Table.choice, ("places", "codes"), default="places")
    form: str | None = setting(Table.choice, tuple(_FORMS), default=None)
    alphabet: str | None = setting(Table.text, "[!-~]{2,64}", CODE_ALPHABET, default=None)
    length: int | None = setting(Table.integer, 1, MAX_CODE_LENGTH, default=None)

    def __post_init__(self) -> None:
        if (self.of == "codes") != (self.form is not None):
            allowed = '"dtc", "dtc-24" or "text"' if self.of == "codes" else 'only with of = "codes"'
            raise UnfitKeyError("form", allowed=allowed)
        for key in ("alphabet", "length"):
            if (self.form == "text") != (getattr(self, key) is not None):
                raise UnfitKeyError(key, allowed='given with form = "text", and with no other')
        if self.codes is not None and self.levels[-1] > self.codes.bits:
            raise UnfitKeyError("levels", allowed=f"numbers of bits up to the {self.codes.bits} of a code")
        if self.most_survivors is not None and self.most_survivors > self._most:
            raise UnfitKeyError("most_survivors", allowed=f"a whole number from 1 to {self._most}")

    @property
    def codes(self) -> Codes | None:
        """What is asked for, None for places."""
        if self.form is None:
            return None
        return Codes(form=_FORMS[self.form], alphabet=self.alphabet or "", length=self.length or 0)

    @property
    def _most(self) -> int:
        return MAX_VALUES >> max(fine - coarse for coarse, fine in pairwise(self.levels))

    def walk(self) -> DrillDown:
        """Return the walk."""
        return DrillDown(levels=self.levels, threshold=self.threshold, most_survivors=self.most_survivors or self._most)


@settings
class SamplingTable:
    """[mechanism] of mode `sampling`; the rate has a default by the number of values."""

    kind: str = setting(Table.choice, ("sampling",), default="sampling")
    sampling_rate: Fraction | None = setting(Table.number, _SHARE, default=None)
    face_probabilities: tuple[Fraction, ...] | None = setting(exact_numbers, "numbers as text", default=None)


@settings
class AggregatorTable:
    """[[aggregators]]: the file of an aggregator's descriptor."""

    descriptor: Path = setting(Table.existing_file)


def read_spec(
    path: Path,
    now: float,
    verify_seed_digest: Digest,
    epsilon: Fraction | None = None,
    *,
    followed: bool | None = None,
) -> Question:
    """Return the question of a specification file; "in 10 s" counts from `now`, Unix seconds.

    `epsilon`, when given, stands in place of the file's own: the loss of everything that is published. So does
    `followed`: whether the noise is strong enough for such questions one after the other.

    Raises:
        UsageError: anything unknown, missing or out of range, with file, key, value and what is allowed.
    """
    root = read_toml(path, _SECTIONS)
    with told_by_key(root):
        made = _question(root, now, verify_seed_digest, epsilon, followed)
        for part in made.parts:
            if isinstance(part.domain, SquareGrid):
                _check_on_earth(part.domain)
        return made


def _question(
    root: Table, now: float, verify_seed_digest: Digest, epsilon: Fraction | None, followed: bool | None
) -> Question:
    question = read_settings(root, "question", QuestionTable)
    mode, style = Mode[question.mode.upper()], UploadStyle[question.upload_style.upper()]
    step = question.time_precision_s
    table = root.section("schedule", SCHEDULE_KEYS)
    domain, walk = _domain_and_walk(root, table)
    if most_of(domain) > 1 and mode is not Mode.DIRECT:
        known = "1 outside direct mode; a vector response takes any number of them without it"
        raise root.section("domain", None).refuse("at_once", known)
    mechanism = _mechanism(root, mode, domain)
    levels = 1 if walk is None else len(walk.levels)
    two_rounds = mode is Mode.SAMPLING and style is UploadStyle.TWO_INSTALMENTS
    coin = Coin[table.choice("coin", tuple(one.name.lower() for one in Coin), "window").upper()]
    schedule = read_schedule(table, coin, now, step, levels, two_rounds=two_rounds)
    one_in = table.integer("one_in", 1, MAX_QUESTION_WINDOWS, 1)
    if one_in > 1:  # Before what follows from it: one that is not possible has no promise.
        check_one_in(one_in, mode, schedule.every_s)
    answer: AnswerLaw = Truth(domain.values, most_of(domain)) if mechanism is None else mechanism
    # Who is asked once in a period has one answer in it, whatever follows.
    periods, shape = (
        schedule.followed(coin, DEFAULT_PERIOD_S) if one_in == 1 else ({1: 1},),
        schedule.shape(coin, levels, one_in),
    )
    release, delta = read_promise(root, answer, domain, shape, periods, epsilon, followed)
    return Question(
        name=question.name,
        deployment=question.deployment,
        signal=_signal(root, question.signal, domain),
        domain=domain,
        mode=mode,
        mechanism=mechanism,
        schedule=schedule,
        coin=coin,
        one_in=one_in,
        participants=Participants[table.choice("participants", ("hidden", "noised"), "hidden").upper()],
        delta=delta,
        release=release,
        upload_style=style,
        time_precision_s=step,
        min_batch_size=question.min_batch_size,
        aggregators=_aggregators(root),
        verify_seed_digest=verify_seed_digest,
        drill_down=walk,
    )


# The question's values.


def _signal(root: Table, given: str | None, domain: ValueDomain) -> str:
    """Return the signal that is asked for, of a cross that of its first part."""
    if isinstance(domain, Cross):
        if given is not None:
            raise root.section("question", None).wrong("signal", "is given, and a cross has a signal for each part")
        return domain.parts[0].signal
    if given is None:
        raise root.section("question", None).refuse("signal", "a VSS path")
    return given


def _check_on_earth(grid: SquareGrid) -> None:
    """Refuse a grid that goes on where its frame ends: a vehicle there is told to be at the frame's other end."""
    if grid.frame is None or grid.frame.epsg not in _FRAME_ENDS:
        return
    frame, ends = grid.frame, _FRAME_ENDS[grid.frame.epsg]
    sides = ((grid.x0, frame.offset_x, grid.columns), (grid.y0, frame.offset_y, grid.rows))
    for what, most, (start, offset, count) in zip(("x", "y"), ends, sides, strict=True):
        low = start - Fraction(offset)
        high = low + grid.size * count
        if low < -most or high > most:
            end = decimal_text(most)
            raise QuestionError(
                f"grid from {what} {decimal_text(low)} to {decimal_text(high)} of EPSG {frame.epsg}, allowed: -{end} to"
                f" {end}; across 180 degrees of longitude the metres of a UTM zone go on (EPSG 326zz, 327zz)"
            )


def _domain_and_walk(root: Table, table: Table) -> tuple[ValueDomain, DrillDown | None]:
    """Return what the first window asks, and the walk of a drill-down, whose first step asks every prefix."""
    if table.choice("domain", ("fixed", "drill-down"), "fixed") == "fixed":
        if root.has("drill_down"):
            raise table.refuse("domain", "'drill-down' where [drill_down] is given")
        return read_domain(root.section("domain", None), points=usual_points(root)), None
    if root.has("domain"):
        raise root.wrong(
            "domain", "is given, and a drill-down has none: its steps ask about prefixes of places or codes"
        )
    asked = read_settings(root, "drill_down", DrillDownTable)
    return all_prefixes(asked.levels[0], asked.codes), asked.walk()


# How.


def _mechanism(root: Table, mode: Mode, domain: ValueDomain) -> AnswerLaw | None:
    """Return the answer law that [mechanism] describes, None in direct mode."""
    if mode is Mode.DIRECT:
        root.section("mechanism", ())
        return None
    if mode is Mode.SAMPLING:
        return _die(root, domain.values)
    kinds = {kind.name: kind for kind in map(kind_of_law, MECHANISM_NUMBERS) if kind.form in MODE_FORMS[mode]}
    kind = kinds[root.section("mechanism", None).choice("kind", tuple(kinds))]
    table = root.section("mechanism", ("kind", "epsilon_local", *kind.parameters, *["protects"] * kind.flips))
    if table.has("epsilon_local") == table.has(kind.own):
        raise table.refuse("epsilon_local", f"exactly one of epsilon_local (of one answer alone) and {kind.own}")
    return answer_named(
        kind.name,
        domain.values,
        flips=_flips(table, domain) if kind.flips else (),
        epsilon_local=table.number("epsilon_local", _LOCAL_EPSILON) if table.has("epsilon_local") else None,
        parameters={name: table.number(name, _SHARE) for name in kind.parameters if table.has(name)},
    )


def _flips(table: Table, domain: ValueDomain) -> tuple[Flips, ...]:
    """Return which way the bit of each value may be wrong, by the labels that `protects` sets against others."""
    asked, places = table.raw("protects"), {domain.label(value): value for value in range(1, domain.values + 1)}
    if _NONE in places:
        raise table.wrong("protects", f"is of values one of which is {_NONE!r}, allowed: other names")
    rows = cast("dict[str, object]", asked) if isinstance(asked, dict) else {}
    if not rows or not all(isinstance(others, list) and others for others in rows.values()):
        raise table.refuse("protects", 'values each with those that hide it: {infected = ["healthy", "none"]}')
    places[_NONE] = 0
    read: dict[int, list[int]] = {}
    for one, others in rows.items():
        for label in (one, *cast("list[object]", others)):
            if label not in places:
                hint = did_you_mean(label, places)
                raise table.wrong("protects", f"names {shown(label)}, which is no value of the domain{hint}")
        read[places[one]] = [places[str(other)] for other in cast("list[object]", others)]

    def named(value: int) -> str:
        return repr(domain.label(value)) if value else _NONE

    flips: tuple[Flips, ...] = table.naming(
        lambda: flips_protecting(domain.values, read, named), "protects", MechanismError
    )
    return flips


def _die(root: Table, values: int) -> SamplingDie:
    table = read_settings(root, "mechanism", SamplingTable)
    rate = default_sampling_rate(values) if table.sampling_rate is None else table.sampling_rate
    large = rate == Fraction(1, 2)
    faces = table.face_probabilities
    if faces is None:
        return SamplingDie.uniform(rate, values, allow_large_rate=large)
    return SamplingDie(sampling_rate=rate, values=values, face_probabilities=faces, allow_large_rate=large)


# The parties.


def _aggregators(root: Table) -> tuple[Aggregator, ...]:
    """Return the aggregators of the descriptor files that [[aggregators]] name, without their sealing keys.

    Devices take these from each aggregator's signed key list.
    """
    what = "tables, the first of which leads"
    rows = read_rows(root, "aggregators", AggregatorTable, least=2, most=5, what=what)
    return tuple(replace(read_descriptor(row.descriptor), hpke_keys=()) for row in rows)

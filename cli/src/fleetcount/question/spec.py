"""A question's specification file, SPEC.toml, and the question it describes (docs/operating-questions.md).

Reads text; the present time is an argument. It must not draw a key or sign. `schedule` reads when its windows
are, `promise` which noise is released.
"""

import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Final, cast

from fleetcount_mechanisms.accounting.solving import noise_for_promise
from fleetcount_mechanisms.accounting.vectors import ScheduleShape
from fleetcount_mechanisms.answers import AnswerLaw, Truth, Zooms, answer_named, kind_of_law
from fleetcount_mechanisms.errors import MechanismError
from fleetcount_mechanisms.gaussian_losses import STATED_DELTA
from fleetcount_mechanisms.losses import PlannedNoise, noise_for
from fleetcount_mechanisms.noise import GaussianNoise, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.planning import default_sampling_rate
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.limits import MAX_DRILL_DOWN_LEVELS, MAX_ZOOMS
from fleetcount_protocol.question.fields import Coin, DrillDown, Participants
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.window.domain import (
    EPSG_CODES,
    MAX_VALUES,
    OFFSET_FORM,
    OFFSET_PATTERN,
    PLACE_BITS,
    Bins,
    Categories,
    Frame,
    H3Cells,
    Prefixes,
    SquareGrid,
    ValueDomain,
    zooms_of,
)
from fleetcount_protocol.window.fields import (
    MECHANISM_NUMBERS,
    MODE_FORMS,
    Aggregator,
    Mode,
    Release,
    ReleaseKind,
    UploadStyle,
)
from fleetcount_transport.toml_table import Table, read_toml
from fleetcount_transport.toml_values import Range, exact_number, shown

from fleetcount.keys.descriptors import read_descriptor
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
    r"expiry_s|expiry": ("schedule.expires_after",),
    r"coin": ("schedule.coin",),
    r"delta": ("release.delta",),
    r"release has": ("release.thresholds",),
    r"one-sided|release|level": ("release.kind",),
    r"number of levels|levels?": ("drill_down.levels",),
    r"threshold": ("drill_down.threshold",),
    r"most_survivors|a cell has": ("drill_down.most_survivors",),
    r"grid|cells?": ("domain.columns", "domain.cells"),
    r"bins?|edges?": ("domain.edges",),
    r"categor(y|ies)|names?": ("domain.names",),
    r"signal": ("question.signal",),
    r"min_batch_size": ("question.min_batch_size",),
    r"a drill-down is": ("question.mode",),
    r"sampling rate": ("mechanism.sampling_rate",),
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


# What comes out of a question and what that may tell of a device: [release] of its specification file.
#
# Reads text and solves for the noise; it must not know when windows are, but for how many share a toss of the coin.

_STRENGTHS: Final = {
    ReleaseKind.GAUSSIAN: ("sd", "variance"),
    ReleaseKind.GEOMETRIC: ("noise_epsilon",),
    ReleaseKind.ONE_SIDED: ("noise_epsilon",),
    ReleaseKind.EXACT: (),
}
"""The keys, one of which gives each aggregator's noise of a window; without one it is solved for `epsilon`."""
_NOISE_KEYS: Final = ("epsilon", "noise_epsilon", "sd", "variance")
_RELEASE_KEYS: Final = ("kind", *_NOISE_KEYS, "delta", "level", "thresholds", "zooms")
_LAWS: Final[dict[ReleaseKind, type[PlannedNoise]]] = {
    ReleaseKind.GEOMETRIC: TwoSidedNoise,
    ReleaseKind.ONE_SIDED: OneSidedNoise,
    ReleaseKind.GAUSSIAN: GaussianNoise,
}
_DELTA: Final = Range("(0, 1/1000]")
_EPSILON: Final = Range("(0, 100]")
_NOISE_EPSILON: Final = Range("(0, 10]")
_VARIANCE: Final = Range("[1/4, 100000000]")
_SD: Final = Range("[1/2, 10000]")
_LEVEL: Final = Range("(0, 1)")


def read_promise(
    root: Table, answer: AnswerLaw, domain: ValueDomain, shape: ScheduleShape, epsilon: Fraction | None
) -> tuple[Release, Fraction]:
    """Return the release of every window, and the delta at which the whole question is stated.

    `epsilon`, when given, stands in place of the file's.

    Raises:
        UsageError: with key, value and what is allowed.
    """
    table = root.section("release", _RELEASE_KEYS)
    usual = ReleaseKind.GEOMETRIC if shape.windows == 1 else ReleaseKind.GAUSSIAN
    kinds = {kind.label: kind for kind in _STRENGTHS}
    kind = kinds[table.choice("kind", tuple(kinds), usual.label)]
    delta = table.number("delta", _DELTA, STATED_DELTA)
    zooms = _zooms(table, domain)
    given = _given_key(table, kind, epsilon)
    if given is None:
        noise: NoNoise | PlannedNoise = NoNoise()
    elif given == "epsilon":
        target = table.number("epsilon", _EPSILON) if epsilon is None else epsilon
        try:
            noise = _solved_noise(kind, answer, shape, target, delta, zooms)
        except MechanismError as error:
            if epsilon is not None:
                raise
            raise table.wrong("epsilon", f"is {table.raw('epsilon')!r}: {error}") from None
    elif given == "noise_epsilon":
        noise = (OneSidedNoise if kind is ReleaseKind.ONE_SIDED else TwoSidedNoise)(table.number(given, _NOISE_EPSILON))
    else:
        noise = GaussianNoise(table.number(given, _VARIANCE) if given == "variance" else table.number(given, _SD) ** 2)
    release = Release(
        kind=kind,
        noise_epsilon=noise.epsilon,
        noise_variance=noise.variance if isinstance(noise, GaussianNoise) else None,
        level=table.number("level", _LEVEL, Fraction(95, 100)),
        thresholds=_thresholds(table),
        zooms=1 if zooms is None else zooms.count,
    )
    return release, delta


def _given_key(table: Table, kind: ReleaseKind, epsilon: Fraction | None) -> str | None:
    """Return the key that gives the noise, "epsilon" too where the command line does; None of an exact release."""
    own, given = _STRENGTHS[kind], [key for key in _NOISE_KEYS if table.has(key)]
    if kind is ReleaseKind.EXACT:
        if given or epsilon is not None:
            raise table.refuse("kind", "'geometric' or 'gaussian' beside a noise's size: an exact release has no noise")
        return None
    wrong = [key for key in given if key not in ("epsilon", *own)]
    if wrong:
        said = f"is for another kind: {kind.label!r} is asked, whose noise is given by {' or '.join(own)}"
        raise table.wrong(wrong[0], said)
    if epsilon is not None:
        return "epsilon"
    if len(given) != 1:
        allowed = f"exactly one of epsilon (of the whole question, at delta) and {' or '.join(own)} (of a window)"
        raise table.refuse("epsilon", allowed)
    return given[0]


def _solved_noise(
    kind: ReleaseKind, answer: AnswerLaw, shape: ScheduleShape, epsilon: Fraction, delta: Fraction, zooms: Zooms | None
) -> PlannedNoise:
    if shape.windows == 1 and (kind is not ReleaseKind.GAUSSIAN or delta == STATED_DELTA):
        # A single release has a promise without delta, or at the delta that all single ones are stated at.
        return noise_for(answer, epsilon, _LAWS[kind], 1 if zooms is None else zooms.count)
    # The exact sum of geometric losses has no filter: a ledger adds up more, and geometric noise is for who knows that.
    in_ledgers = kind is ReleaseKind.GAUSSIAN
    return noise_for_promise(answer, shape, epsilon, delta, _LAWS[kind], in_ledgers=in_ledgers, zooms=zooms)


def _zooms(table: Table, domain: ValueDomain) -> Zooms | None:
    """Return the zooms at which a release counts the squares of a grid, None at one alone."""
    count = table.integer("zooms", 1, MAX_ZOOMS, 1)
    try:
        return zooms_of(domain, count)
    except QuestionError as error:
        raise table.wrong("zooms", f"is {count}: {error}") from None


def _thresholds(table: Table) -> tuple[int, ...]:
    """Return the thresholds of a one-sided release; an empty tuple for another kind."""
    value = table.raw("thresholds") if table.has("thresholds") else None
    if value is None:
        return ()
    if not isinstance(value, list) or not value or not all(type(one) is int for one in cast("list[object]", value)):
        raise table.refuse("thresholds", "a list of whole numbers, one per value")
    return tuple(cast("list[int]", value))


_SECTIONS: Final = ("question", "domain", "drill_down", "schedule", "mechanism", "release", "aggregators")
_QUESTION_KEYS: Final = ("name", "deployment", "signal", "mode", "min_batch_size", "time_precision_s", "upload_style")
_UPLOAD_STYLES: Final = ("two_instalments", "one_envelope")
_WALK_KEYS: Final = ("levels", "threshold", "most_survivors")
_MOST_BITS: Final = MAX_VALUES.bit_length() - 1
"""A step of one more bit would have 4,096 candidates; the limit is 4,095."""
_TEXT: Final = r"[^\0-\x1f]{1,200}"
_SHARE: Final = Range("(0, 1]")
_LOCAL_EPSILON: Final = Range("(0, 10]")
_SIZE: Final = Range("(0, 1000000000]")


def read_spec(path: Path, now: float, verify_seed_digest: Digest, epsilon: Fraction | None = None) -> Question:
    """Return the question of a specification file; "in 10 s" counts from `now`, Unix seconds.

    `epsilon`, when given, stands in place of the file's own: the loss of everything that is published.

    Raises:
        UsageError: anything unknown, missing or out of range, with file, key, value and what is allowed.
    """
    root = read_toml(path, _SECTIONS)
    with told_by_key(root):
        return _question(root, now, verify_seed_digest, epsilon)


def _question(root: Table, now: float, verify_seed_digest: Digest, epsilon: Fraction | None) -> Question:
    question = root.section("question", _QUESTION_KEYS)
    mode = Mode[question.choice("mode", ("sampling", "response", "direct"), "sampling").upper()]
    style = UploadStyle[question.choice("upload_style", _UPLOAD_STYLES, "two_instalments").upper()]
    step = question.integer("time_precision_s", 1, 86_400, 1)
    table = root.section("schedule", SCHEDULE_KEYS)
    domain, walk = _domain_and_walk(root, table)
    mechanism = _mechanism(root, mode, domain.values)
    levels = 1 if walk is None else len(walk.levels)
    two_rounds = mode is Mode.SAMPLING and style is UploadStyle.TWO_INSTALMENTS
    coin = Coin[table.choice("coin", tuple(one.name.lower() for one in Coin), "window").upper()]
    schedule = read_schedule(table, coin, now, step, levels, two_rounds=two_rounds)
    answer: AnswerLaw = Truth(domain.values) if mechanism is None else mechanism
    release, delta = read_promise(root, answer, domain, schedule.shape(coin), epsilon)
    return Question(
        name=question.text("name", _TEXT, "1 to 200 characters"),
        deployment=question.deployment("deployment"),
        signal=question.text("signal", _TEXT, "a VSS path"),
        domain=domain,
        mode=mode,
        mechanism=mechanism,
        schedule=schedule,
        coin=coin,
        participants=Participants[table.choice("participants", ("hidden", "noised"), "hidden").upper()],
        delta=delta,
        release=release,
        upload_style=style,
        time_precision_s=step,
        min_batch_size=question.integer("min_batch_size", 2, 2**32),
        aggregators=_aggregators(root),
        verify_seed_digest=verify_seed_digest,
        drill_down=walk,
    )


# The question's values.


def _domain_and_walk(root: Table, table: Table) -> tuple[ValueDomain, DrillDown | None]:
    """Return what the first window asks, and the walk of a drill-down, whose first step asks every prefix."""
    if table.choice("domain", ("fixed", "drill-down"), "fixed") == "fixed":
        if root.has("drill_down"):
            raise table.refuse("domain", "'drill-down' where [drill_down] is given")
        return _domain(root), None
    if root.has("domain"):
        raise root.wrong("domain", "is given, and a drill-down has none: its steps ask about prefixes of 32-bit places")
    walk = root.section("drill_down", _WALK_KEYS)
    levels = _levels(walk)
    children = 1 << max(fine - coarse for coarse, fine in pairwise(levels))
    most = walk.integer("most_survivors", 1, MAX_VALUES // children, MAX_VALUES // children)
    first = Prefixes(bits=levels[0], cells=tuple(range(1 << levels[0])))
    threshold = walk.integer("threshold", 1, 2**32 - 1)
    return first, DrillDown(levels=levels, threshold=threshold, most_survivors=most)


def _levels(walk: Table) -> tuple[int, ...]:
    value = walk.raw("levels")
    levels = tuple(cast("list[object]", value)) if isinstance(value, list) else ()
    whole = tuple(one for one in levels if type(one) is int and 1 <= one <= PLACE_BITS)
    if len(whole) != len(levels) or not 2 <= len(whole) <= MAX_DRILL_DOWN_LEVELS:
        raise walk.refuse("levels", f"2 to {MAX_DRILL_DOWN_LEVELS} numbers of bits, each 1 to {PLACE_BITS}")
    steps = (whole[0], *(fine - coarse for coarse, fine in pairwise(whole)))
    if not all(1 <= one <= _MOST_BITS for one in steps):
        raise walk.refuse("levels", f"ascending, the first and each step at most {_MOST_BITS} bits: 2,048 candidates")
    return whole


def _domain(root: Table) -> ValueDomain:
    """Return the domain that [domain] describes."""
    kind = root.section("domain", None)
    readers: dict[str, Callable[[Table], ValueDomain]] = {
        "bins": _bins,
        "categories": _categories,
        "grid": _grid,
        "h3": _h3,
    }
    keys = {
        "bins": ("kind", "edges", "open_above", "unit"),
        "categories": ("kind", "names"),
        "grid": ("kind", "x0", "y0", "size", "columns", "rows", "frame"),
        "h3": ("kind", "resolution", "cells"),
    }
    name = kind.choice("kind", tuple(readers))
    return readers[name](root.section("domain", keys[name]))


def _bins(table: Table) -> Bins:
    return Bins(
        edges=tuple(_exact(table, "edges", edge) for edge in _list(table, "edges", 'numbers as text: ["0", "50"]')),
        open_above=table.boolean("open_above", default=False),
        unit=table.text("unit", r"[^\0-\x1f]{0,200}", "at most 200 characters", ""),
    )


def _categories(table: Table) -> Categories:
    names = _list(table, "names", "texts")
    if not all(isinstance(name, str) for name in names):
        raise table.refuse("names", "texts")
    return Categories(names=tuple(cast("list[str]", names)))


def _grid(table: Table) -> SquareGrid:
    x0, y0 = (_exact(table, key, table.raw(key)) for key in ("x0", "y0"))
    return SquareGrid(
        x0=x0,
        y0=y0,
        size=table.number("size", _SIZE),
        columns=table.integer("columns", 1, 4095),
        rows=table.integer("rows", 1, 4095),
        frame=_frame(table.section("frame", ("epsg", "offset_x", "offset_y"))) if table.has("frame") else None,
    )


def _frame(table: Table) -> Frame:
    offset_x, offset_y = (table.text(key, OFFSET_PATTERN, OFFSET_FORM, "0") for key in ("offset_x", "offset_y"))
    return Frame(epsg=table.integer("epsg", *EPSG_CODES), offset_x=offset_x, offset_y=offset_y)


def _h3(table: Table) -> H3Cells:
    cells = _list(table, "cells", 'cell indexes in hexadecimal: ["8a1fb46622dffff"]')
    if not all(isinstance(cell, str) and re.fullmatch(r"[1-9a-f][0-9a-f]{0,15}", cell, re.ASCII) for cell in cells):
        raise table.refuse("cells", 'cell indexes in lower-case hexadecimal: ["8a1fb46622dffff"]')
    numbers = sorted(int(cell, 16) for cell in cast("list[str]", cells))
    return H3Cells(resolution=table.integer("resolution", 0, 15), cells=tuple(numbers))


def _list(table: Table, key: str, allowed: str) -> list[object]:
    value = table.raw(key)
    if not isinstance(value, list) or not value:
        raise table.refuse(key, f"a list of {allowed}")
    return cast("list[object]", value)


def _exact(table: Table, key: str, value: object) -> Fraction:
    number = exact_number(value)
    if number is not None:
        return number
    raise table.refuse(key, 'an exact number, whole or as text: "12.5" or "25/2"')


# How.


def _mechanism(root: Table, mode: Mode, values: int) -> AnswerLaw | None:
    """Return the answer law that [mechanism] describes, None in direct mode."""
    if mode is Mode.DIRECT:
        root.section("mechanism", ())
        return None
    if mode is Mode.SAMPLING:
        return _die(root, values)
    kinds = {kind.name: kind for kind in map(kind_of_law, MECHANISM_NUMBERS) if kind.form in MODE_FORMS[mode]}
    kind = kinds[root.section("mechanism", None).choice("kind", tuple(kinds))]
    table = root.section("mechanism", ("kind", "epsilon_local", *kind.parameters))
    if table.has("epsilon_local") == table.has(kind.own):
        raise table.refuse("epsilon_local", f"exactly one of epsilon_local (of one answer alone) and {kind.own}")
    return answer_named(
        kind.name,
        values,
        epsilon_local=table.number("epsilon_local", _LOCAL_EPSILON) if table.has("epsilon_local") else None,
        parameters={name: table.number(name, _SHARE) for name in kind.parameters if table.has(name)},
    )


def _die(root: Table, values: int) -> SamplingDie:
    table = root.section("mechanism", ("kind", "sampling_rate", "face_probabilities"))
    table.choice("kind", ("sampling",), "sampling")
    rate = table.number("sampling_rate", _SHARE, default_sampling_rate(values))
    large = rate == Fraction(1, 2)
    if not table.has("face_probabilities"):
        return SamplingDie.uniform(rate, values, allow_large_rate=large)
    faces = [_exact(table, "face_probabilities", one) for one in _list(table, "face_probabilities", "numbers as text")]
    return SamplingDie(sampling_rate=rate, values=values, face_probabilities=tuple(faces), allow_large_rate=large)


# The parties.


def _aggregators(root: Table) -> tuple[Aggregator, ...]:
    """Return the aggregators of the descriptor files that [[aggregators]] name, without their sealing keys.

    Devices take these from each aggregator's signed key list.
    """
    rows = root.sections("aggregators", ("descriptor",), least=2, most=5, what="tables, the first of which leads")
    return tuple(replace(read_descriptor(row.existing_file("descriptor")), hpke_keys=()) for row in rows)

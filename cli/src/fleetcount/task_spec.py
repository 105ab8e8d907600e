"""A task's specification file, SPEC.toml, and the task it describes (docs/operating.md, "Asking a question").

Reads text; the present time is an argument. It must not draw a key or sign.
"""

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Final, cast

from fleetcount_mechanisms.answers import AnswerLaw, Truth, answer_named, kind_of_law
from fleetcount_mechanisms.losses import PlannedNoise, noise_for
from fleetcount_mechanisms.noise import GaussianNoise, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.planning import default_sampling_rate
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_mechanisms.zooms import Zooms
from fleetcount_protocol.errors import TaskError
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.limits import MAX_ZOOMS
from fleetcount_protocol.task.domain import (
    EPSG_CODES,
    OFFSET_FORM,
    OFFSET_PATTERN,
    Bins,
    Categories,
    Frame,
    H3Cells,
    SquareGrid,
    ValueDomain,
    zooms_of,
)
from fleetcount_protocol.task.fields import MECHANISM_NUMBERS, MODE_FORMS
from fleetcount_protocol.task.task import Aggregator, Mode, Release, ReleaseKind, Task, UploadStyle
from fleetcount_transport.toml_table import Table, read_toml
from fleetcount_transport.toml_values import Range, exact_number

from fleetcount.descriptors import read_descriptor
from fleetcount.spec_refusals import told_by_key

__all__ = [
    "NOISE_LAWS",
    "TASK_KEYS",
    "UPLOAD_STYLES",
    "given_moment",
    "read_aggregators",
    "read_domain",
    "read_mechanism",
    "read_moment",
    "read_names",
    "read_spec",
    "read_thresholds",
    "read_zooms",
]

UPLOAD_STYLES: Final = ("two_instalments", "one_envelope")
_SECTIONS: Final = ("task", "domain", "windows", "mechanism", "release", "aggregators")
TASK_KEYS: Final = ("name", "deployment", "signal", "mode", "min_batch_size", "time_precision_s", "upload_style")
_WINDOW_KEYS: Final = ("round_one_opens", "round_one_closes", "round_two_closes", "expiry")
_NOISE_KEYS: Final = ("epsilon", "noise_epsilon", "noise_variance", "noise_sd")
_RELEASE_KEYS: Final = ("kind", *_NOISE_KEYS, "level", "thresholds", "zooms")
_DURATION: Final = re.compile(r"in ([0-9]{1,9}) ?(s|min|h|d)", re.ASCII)
_UNIT_S: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_TEXT: Final = r"[^\0-\x1f]{1,200}"
_SHARE: Final = Range("(0, 1]")
_EPSILON: Final = Range("(0, 10]")
_SIZE: Final = Range("(0, 1000000000]")
_VARIANCE: Final = Range("[1/4, 100000000]")
_SD: Final = Range("[1/2, 10000]")
_YEAR_9999_S: Final = 253_402_300_799


def read_spec(path: Path, now: float, verify_key_digest: Digest, epsilon: Fraction | None = None) -> Task:
    """Return the task of a specification file; `now` is what "in 10 s" counts from, Unix seconds.

    `epsilon`, when given, stands in place of the file's own: the loss of the published result.

    Raises:
        UsageError: anything unknown, missing or out of range, with file, key, value and what is allowed.
    """
    root = read_toml(path, _SECTIONS)
    with told_by_key(root):
        return _task(root, now, verify_key_digest, epsilon)


def _task(root: Table, now: float, verify_key_digest: Digest, epsilon: Fraction | None) -> Task:
    task = root.section("task", TASK_KEYS)
    mode = Mode[task.choice("mode", ("sampling", "response", "direct"), "sampling").upper()]
    domain = read_domain(root)
    mechanism = read_mechanism(root, mode, domain.values)
    opens, one, two, expiry = _windows(root, mode, now, task.integer("time_precision_s", 1, 86_400, 1))
    name, deployment, signal = read_names(task)
    return Task(
        name=name,
        deployment=deployment,
        signal=signal,
        domain=domain,
        mode=mode,
        mechanism=mechanism,
        aggregators=read_aggregators(root),
        round_one_opens=opens,
        round_one_closes=one,
        round_two_closes=two,
        expiry=expiry,
        time_precision_s=task.integer("time_precision_s", 1, 86_400, 1),
        min_batch_size=task.integer("min_batch_size", 2, 2**32),
        release=_release(root, Truth(domain.values) if mechanism is None else mechanism, domain, epsilon),
        upload_style=UploadStyle[task.choice("upload_style", UPLOAD_STYLES, "two_instalments").upper()],
        verify_key_digest=verify_key_digest,
    )


def read_names(task: Table) -> tuple[str, str, str]:
    """Return name, deployment and signal of [task]; raises as `read_spec`."""
    name = task.text("name", _TEXT, "1 to 200 characters")
    return name, task.deployment("deployment"), task.text("signal", _TEXT, "a VSS path")


# The question's values.


def read_domain(root: Table) -> ValueDomain:
    """Return what [domain] describes; raises as `read_spec`."""
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


# When.


def _windows(root: Table, mode: Mode, now: float, step: int) -> tuple[int, int, int, int]:
    table = root.section("windows", _WINDOW_KEYS)
    opens = read_moment(table, "round_one_opens", now, step)
    one = read_moment(table, "round_one_closes", now, step)
    if mode is Mode.SAMPLING or table.has("round_two_closes"):
        two = read_moment(table, "round_two_closes", now, step)
    else:
        two = one
    expiry = read_moment(table, "expiry", now, step) if table.has("expiry") else _on_grid(two + 86_400, step)
    return opens, one, two, expiry


def given_moment(table: Table, key: str) -> object:
    """Return the value of a key that is a moment; a time in quotes is the time."""
    value = table.raw(key)
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return value


def read_moment(table: Table, key: str, now: float, step: int) -> int:
    """Return an absolute time, or "in 10 s" from now, rounded up to the grid of the time precision; as `read_spec`."""
    value = given_moment(table, key)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return _on_grid(value.astimezone(UTC).timestamp(), step)
    if type(value) is int and 0 <= value <= _YEAR_9999_S:
        return _on_grid(value, step)
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise table.refuse(
            key, 'a time with its zone (2026-05-01T08:00:00Z), Unix seconds, or "in 10 s" (s, min, h, d)'
        )
    return _on_grid(now + int(match[1]) * _UNIT_S[match[2]], step)


def _on_grid(moment: float, step: int) -> int:
    return math.ceil(moment / step) * step


# How.


def read_mechanism(root: Table, mode: Mode, values: int, *, half_allowed: bool = False) -> AnswerLaw | None:
    """Return what [mechanism] describes, None in direct mode; `half_allowed` lets a sampling rate be 1/2.

    Raises as `read_spec`.
    """
    if mode is Mode.DIRECT:
        root.section("mechanism", ())
        return None
    if mode is Mode.SAMPLING:
        return _die(root, values, half_allowed=half_allowed)
    kinds = {kind.name: kind for kind in map(kind_of_law, MECHANISM_NUMBERS) if kind.form in MODE_FORMS[mode]}
    kind = kinds[root.section("mechanism", None).choice("kind", tuple(kinds))]
    table = root.section("mechanism", ("kind", "epsilon_local", *kind.parameters))
    if table.has("epsilon_local") == table.has(kind.own):
        raise table.refuse("epsilon_local", f"exactly one of epsilon_local (of one answer alone) and {kind.own}")
    return answer_named(
        kind.name,
        values,
        epsilon_local=table.number("epsilon_local", _EPSILON) if table.has("epsilon_local") else None,
        parameters={name: table.number(name, _SHARE) for name in kind.parameters if table.has(name)},
    )


def _die(root: Table, values: int, *, half_allowed: bool) -> SamplingDie:
    table = root.section("mechanism", ("kind", "sampling_rate", "face_probabilities"))
    table.choice("kind", ("sampling",), "sampling")
    rate = table.number("sampling_rate", _SHARE, default_sampling_rate(values))
    large = half_allowed and rate == Fraction(1, 2)
    if not table.has("face_probabilities"):
        return SamplingDie.uniform(rate, values, allow_large_rate=large)
    faces = [_exact(table, "face_probabilities", one) for one in _list(table, "face_probabilities", "numbers as text")]
    return SamplingDie(sampling_rate=rate, values=values, face_probabilities=tuple(faces), allow_large_rate=large)


# What comes out.


def _release(root: Table, answer: AnswerLaw, domain: ValueDomain, epsilon: Fraction | None) -> Release:
    table = root.section("release", _RELEASE_KEYS)
    zooms = read_zooms(table, domain)
    count = 1 if zooms is None else zooms.count
    kinds = {kind.label: kind for kind in ReleaseKind}
    kind = kinds[table.choice("kind", tuple(kinds), ReleaseKind.GEOMETRIC.label)]
    noise = NoNoise() if kind is ReleaseKind.EXACT else _noise(table, kind, answer, epsilon, count)
    if kind is ReleaseKind.EXACT and (epsilon is not None or any(table.has(key) for key in _NOISE_KEYS)):
        raise table.refuse("kind", "'geometric' or 'gaussian' beside a noise's size: an exact release has no noise")
    return Release(
        kind=kind,
        noise_epsilon=noise.epsilon,
        noise_variance=noise.variance if isinstance(noise, GaussianNoise) else None,
        level=table.number("level", _SHARE, Fraction(95, 100)),
        thresholds=read_thresholds(table),
        zooms=count,
    )


def read_zooms(table: Table, domain: ValueDomain) -> Zooms | None:
    """Return the zooms at which a release counts the squares of a grid, None at one alone; raises as `read_spec`."""
    count = table.integer("zooms", 1, MAX_ZOOMS, 1)
    try:
        return zooms_of(domain, count)
    except TaskError as error:
        raise table.wrong("zooms", f"is {count}: {error}") from None


def read_thresholds(table: Table) -> tuple[int, ...]:
    """Return the thresholds of a one-sided release, none of another; raises as `read_spec`."""
    thresholds = _list(table, "thresholds", "whole numbers") if table.has("thresholds") else []
    if not all(type(one) is int for one in thresholds):
        raise table.refuse("thresholds", "a list of whole numbers, one a value")
    return tuple(cast("list[int]", thresholds))


NOISE_LAWS: Final[dict[ReleaseKind, type[PlannedNoise]]] = {
    ReleaseKind.GEOMETRIC: TwoSidedNoise,
    ReleaseKind.ONE_SIDED: OneSidedNoise,
    ReleaseKind.GAUSSIAN: GaussianNoise,
}


def _noise(table: Table, kind: ReleaseKind, answer: AnswerLaw, epsilon: Fraction | None, zooms: int) -> PlannedNoise:
    """Return each aggregator's noise: as given, or planned so that all zooms together lose at most `epsilon`."""
    own = _NOISE_KEYS[2:] if kind is ReleaseKind.GAUSSIAN else _NOISE_KEYS[1:2]
    given = [key for key in _NOISE_KEYS if table.has(key)]
    foreign = [key for key in given if key not in ("epsilon", *own)]
    if foreign:
        raise table.wrong(foreign[0], f"is not a key of kind {kind.label!r}; its noise is given by {' or '.join(own)}")
    if epsilon is None and len(given) != 1:
        raise table.refuse(
            "epsilon", f"exactly one of epsilon (of the published result) and {', '.join(own)} (of each noise)"
        )
    if epsilon is not None or given == ["epsilon"]:
        target = epsilon if epsilon is not None else table.number("epsilon", _EPSILON)
        return noise_for(answer, target, NOISE_LAWS[kind], zooms)
    if kind is ReleaseKind.GAUSSIAN:
        sd = table.optional("noise_sd", _SD)
        return GaussianNoise(table.number("noise_variance", _VARIANCE) if sd is None else sd**2)
    number = table.number("noise_epsilon", _EPSILON)
    return OneSidedNoise(number) if kind is ReleaseKind.ONE_SIDED else TwoSidedNoise(number)


def read_aggregators(root: Table) -> tuple[Aggregator, ...]:
    """Return the aggregators of the descriptor files that [[aggregators]] name; raises as `read_spec`."""
    rows = root.sections("aggregators", ("descriptor",), least=2, most=5, what="tables, the first of which leads")
    return tuple(read_descriptor(row.existing_file("descriptor")) for row in rows)

"""How many cases become a few readable lines: which dimensions vary, which one is the x axis, which one makes panels.

It sorts and names cases; it must not compute a number or draw.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

from fleetcount_analysis.figures.words import number

from fleetcount_simulator.report.study import CaseResult, Study

MOST_LINES: Final = 7
MOST_SHADES: Final = 12
MOST_PANELS: Final = 9

_EPSILONS: Final = frozenset({"epsilon", "noise_epsilon", "epsilon_local"})
_WORDS: Final = {
    "population.devices": "devices in the fleet",
    "population.values": "values to choose from",
    "faults.drop_out": "share of devices that drop out between the rounds",
    "faults.loss": "share of reports that are lost",
    "faults.late": "share of reports that are late",
    "faults.duplicates": "share of reports sent twice",
    "faults.naive": "half pairs are counted",
    "aggregators.count": "aggregators",
    "question.size_m": "side of a square in metres",
}

Value = float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """Something that differs between cases: its key, its name for readers, and its value for a case."""

    key: str
    label: str
    of: Callable[[CaseResult], Value] = field(repr=False)
    values: tuple[Value, ...] = ()

    @property
    def numeric(self) -> bool:
        """Whether all its values are numbers."""
        return all(isinstance(value, (int, float)) for value in self.values)

    def named(self, value: Value) -> str:
        """Return a value with the name of the dimension: "epsilon 0.5"; a mechanism's name without it."""
        text = _plain(value)
        return text if self.key == "mechanism" else f"{_last(self.key)} {text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Cases of one line, in the order of x."""

    label: str
    cases: tuple[CaseResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Panels of lines along x; lines differ in `lines` (None: one line); `left_out` counts hidden panels."""

    x: Dimension
    lines: Dimension | None
    labels: tuple[str, ...]
    panels: tuple[tuple[str, tuple[Series, ...]], ...]
    left_out: int = 0


def varying(study: Study) -> list[Dimension]:
    """Return the dimensions in which the cases differ: the mechanism first, then the axes in the scenario's order."""
    found = [_dimension(study.cases, "mechanism", "mechanism", lambda case: case.mechanism)]
    for axis in study.axes:
        found.append(_dimension(study.cases, axis, _label(axis), _point(axis)))
    return [dimension for dimension in found if len(dimension.values) > 1]


def main_dimension(study: Study) -> Dimension | None:
    """Return the x axis for the error: the size of the fleet, else the numeric dimension with most values."""
    numbers = [dimension for dimension in varying(study) if dimension.numeric]
    for dimension in numbers:
        if dimension.key == "population.devices":
            return dimension
    others = [dimension for dimension in numbers if _last(dimension.key) not in _EPSILONS] or numbers
    return max(others, key=lambda dimension: len(dimension.values), default=None)


def epsilon_dimension(study: Study) -> Dimension | None:
    """Return the public epsilon of a release as a dimension, None where it does not vary."""
    found = _dimension(
        study.cases, "epsilon", "epsilon of a release (smaller protects more)", lambda case: case.epsilon
    )
    return found if len([value for value in found.values if value is not None]) > 1 else None


def arranged(study: Study, x: Dimension, most: int = MOST_PANELS) -> View:
    """Return all cases as lines along x: one dimension becomes the lines, the others at most `most` panels."""
    others = [dimension for dimension in varying(study) if dimension.key != x.key]
    if x.key == "epsilon":
        others = [dimension for dimension in others if _last(dimension.key) not in _EPSILONS]
    lines = _lines(others)
    rest = [dimension for dimension in others if lines is None or dimension.key != lines.key]
    cases = [case for case in study.cases if isinstance(x.of(case), (int, float))]
    panels = [
        (title, tuple(_series(members, x, lines)))
        for title, members in _grouped(cases, rest, lambda case: ", ".join(_named(case, rest)))
    ]
    labels = tuple(lines.named(value) for value in lines.values) if lines is not None else ()
    shown = tuple(panels[:most])
    return View(x=x, lines=lines, labels=labels, panels=shown, left_out=len(panels) - len(shown))


def row_names(study: Study, most: int) -> tuple[dict[int, str], str]:
    """Return a name for every case, and the names of its parts ("" where the name itself has them).

    Where a name has more than `most` characters, the names consist of the values that differ alone.
    """
    names = {case.index: case.name for case in study.cases}
    dimensions = varying(study)
    if not dimensions or all(len(name) <= most for name in names.values()):
        return names, ""
    plain = {
        case.index: " · ".join(_plain(value) for one in dimensions if (value := one.of(case)) is not None)
        for case in study.cases
    }
    return plain, dimensions[0].label if len(dimensions) == 1 else " · ".join(_last(one.key) for one in dimensions)


def _plain(value: Value) -> str:
    return number(value) if isinstance(value, (int, float)) else str(value)


def _lines(others: Sequence[Dimension]) -> Dimension | None:
    """Return the dimension that becomes lines: the mechanism, else the one with most values that colours can show."""
    for dimension in others:
        if dimension.key == "mechanism" and len(dimension.values) <= MOST_LINES:
            return dimension
    fitting = [
        dimension for dimension in others if len(dimension.values) <= (MOST_SHADES if dimension.numeric else MOST_LINES)
    ]
    return max(fitting, key=lambda dimension: len(dimension.values), default=None)


def _series(cases: Sequence[CaseResult], x: Dimension, lines: Dimension | None) -> list[Series]:
    def place(case: CaseResult) -> float:
        value = x.of(case)
        return value if isinstance(value, (int, float)) else 0.0

    dimensions = [] if lines is None else [lines]
    return [
        Series(label=label, cases=tuple(sorted(members, key=place)))
        for label, members in _grouped(
            cases, dimensions, lambda case: "" if lines is None else lines.named(lines.of(case))
        )
    ]


def _grouped(
    cases: Sequence[CaseResult], dimensions: Sequence[Dimension], title: Callable[[CaseResult], str]
) -> list[tuple[str, list[CaseResult]]]:
    """Return cases of equal values together, groups in the order of their first case."""
    groups: dict[tuple[Hashable, ...], list[CaseResult]] = {}
    for case in cases:
        groups.setdefault(tuple(dimension.of(case) for dimension in dimensions), []).append(case)
    return [(title(members[0]), members) for members in groups.values()]


def _named(case: CaseResult, dimensions: Sequence[Dimension]) -> list[str]:
    pairs = [(dimension, dimension.of(case)) for dimension in dimensions]
    return [dimension.named(value) for dimension, value in pairs if value is not None]


def _dimension(cases: Sequence[CaseResult], key: str, label: str, of: Callable[[CaseResult], Value]) -> Dimension:
    values = tuple(dict.fromkeys(of(case) for case in cases))
    numbers = [value for value in values if isinstance(value, (int, float))]
    ordered: tuple[Value, ...] = tuple(sorted(numbers)) if len(numbers) == len(values) else values
    return Dimension(key=key, label=label, of=of, values=ordered)


def _point(axis: str) -> Callable[[CaseResult], Value]:
    return lambda case: case.point.get(axis)


def _last(key: str) -> str:
    """Return the last part of a dotted key in words; the epsilons keep their names."""
    part = key.rpartition(".")[2]
    return part if part in _EPSILONS else part.replace("_", " ")


def _label(axis: str) -> str:
    if axis in _WORDS:
        return _WORDS[axis]
    section, _, rest = axis.partition(".")
    name, _, key = rest.rpartition(".")
    return f"{key.replace('_', ' ')} ({name or section})"

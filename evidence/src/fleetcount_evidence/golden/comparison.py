"""Recompute golden numbers through the public functions of the mechanisms and the analysis, group by group.

It must not contain an expected number: each row of the file has the arguments and the expected answers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, cast

from fleetcount_analysis.errors import AnalysisError

from fleetcount_evidence.golden.groups import Recompute, matrix_group, row_group
from fleetcount_evidence.golden.rows import Beyond, Fields, MalformedGoldenError, number_of, shown

TOLERANCE: Final = 1e-9
_REFUSAL: Final = 240
"""Most characters of a refusal's text in a report: it names the value and what is allowed."""
_EXACT_TOLERANCE: Final = Fraction(1, 10**9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One number that differs: its place in the file, the expected value and the computed value, as texts."""

    where: str
    expected: str
    computed: str

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected}, computed {self.computed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """The verdict on one group: the number of recomputed rows, and every difference."""

    group: str
    rows: int
    differences: tuple[Difference, ...]

    @property
    def passed(self) -> bool:
        """Whether every row was reproduced."""
        return not self.differences

    @property
    def line(self) -> str:
        """The group's line in a report."""
        if self.passed:
            return f"ok    {self.group}: {self.rows} row{'' if self.rows == 1 else 's'}"
        first, *others = self.differences
        more = f" (and {len(others)} more)" if others else ""
        return f"MISS  {self.group}: {first}{more}"


# Comparing.


def differences(expected: object, computed: object, where: str) -> list[Difference]:
    """Compare recursively: integers, truth values, texts and null exactly, decimals to a relative 1e-9.

    An expected text is compared with an exact Fraction by its value, exactly.
    """
    if isinstance(expected, Mapping) and isinstance(computed, Mapping):
        old, new = cast("Mapping[str, object]", expected), cast("Mapping[str, object]", computed)  # JSON objects.
        return [d for key in old for d in differences(old[key], new.get(key), f"{where}.{key}")]
    if isinstance(expected, list) and isinstance(computed, Sequence) and not isinstance(computed, str):
        old_list, new_list = cast("list[object]", expected), cast("Sequence[object]", computed)  # JSON lists.
        if len(old_list) != len(new_list):
            return [Difference(where=where, expected=f"{len(old_list)} entries", computed=str(len(new_list)))]
        pairs = enumerate(zip(old_list, new_list, strict=True))
        return [d for i, (old, new) in pairs for d in differences(old, new, f"{where}[{i}]")]
    if _equal(expected, computed):
        return []
    return [Difference(where=where, expected=shown(expected), computed=shown(computed))]


def _equal(expected: object, computed: object) -> bool:
    if expected is None or isinstance(expected, bool) or computed is None or isinstance(computed, bool):
        return expected is computed
    if isinstance(expected, str):
        if not isinstance(computed, int | Fraction):
            return expected == computed
        return number_of(expected, "the expected value") == computed
    if not isinstance(expected, int | Fraction) or not isinstance(computed, int | float | Fraction):
        return False
    return _close(expected, computed)


def _close(expected: int | Fraction, computed: float | Fraction) -> bool:
    if isinstance(computed, float):
        return abs(float(expected) - computed) <= TOLERANCE * abs(float(expected))
    if isinstance(expected, int):
        return expected == computed
    return abs(expected - computed) <= _EXACT_TOLERANCE * abs(expected)  # Floats that small are all zero.


# Groups.


def check_group(name: str, content: object) -> GroupResult:
    """Return the verdict on one group of a golden file, recomputed and compared.

    Decimals in `content` must have been parsed to exact Fractions, those that cannot be judged to `Beyond`: they, a
    group this version does not know, and arguments that a public function refuses are differences.

    Raises:
        MalformedGoldenError: the content does not have the form of the group.
    """
    recompute, matrix = row_group(name), matrix_group(name)
    if recompute is not None:
        rows = _rows(name, content)
        found = [d for row in rows for d in _check_row(row, recompute)]
        return GroupResult(group=name, rows=len(rows), differences=tuple(found))
    if matrix is None:
        unknown = Difference(where="the group", expected="a group this version knows", computed="nothing")
        return GroupResult(group=shown(name), rows=0, differences=(unknown,))
    found = _guarded(lambda: differences(content, matrix(content), name), name, content)
    return GroupResult(group=name, rows=1, differences=tuple(found))


def _rows(name: str, content: object) -> list[Fields]:
    if isinstance(content, Mapping) and content:
        return [Fields.of(content, name)]
    if not isinstance(content, list) or not content:
        raise MalformedGoldenError(f"{name} is {shown(content)}; it must be a row or a list of at least one row")
    items = cast("list[object]", content)  # A JSON list.
    return [Fields.of(item, f"{name} row {number}") for number, item in enumerate(items, 1)]


def _check_row(row: Fields, recompute: Recompute) -> list[Difference]:
    def compare() -> list[Difference]:
        computed = recompute(row)
        row.finish(compared=computed)
        return [
            one for name, value in computed.items() for one in differences(row.raw(name), value, f"{row.where}, {name}")
        ]

    return _guarded(compare, row.where, row.fields)


def _guarded(compare: Callable[[], list[Difference]], where: str, content: object) -> list[Difference]:
    """Return the differences: also a number that cannot be judged, and an argument that a function refuses."""
    try:
        beyond = Beyond.within(content)
        if beyond is not None:
            raise AnalysisError(beyond.message)
        return compare()
    except MalformedGoldenError:
        raise
    except (ValueError, ArithmeticError) as error:  # MechanismError and AnalysisError are ValueErrors.
        return [Difference(where=where, expected="an answer", computed=f"a refusal: {shown(str(error), _REFUSAL)}")]

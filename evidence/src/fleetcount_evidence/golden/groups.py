"""The golden groups: the public function that recomputes each, read from the table `groups.toml` beside this module.

It must not contain a formula: it calls the function that the table names with the fields of a row.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

from fleetcount_evidence.golden.rows import Fields, MalformedGoldenError, digits_of, number_of, shown

Recompute = Callable[[Fields], Mapping[str, object]]
"""Returns the computed answers of a row by field name."""
EVERY_FIELD: Final = "*"
_TABLE: Final = Path(__file__).with_name("groups.toml")
_CALL: Final = re.compile(r"(fleetcount_[\w.]+)\.(\w+)\((.*)\)")
_LITERAL: Final = re.compile(r"-?[0-9]+")
_CLOSE: Final = Fraction(1, 10**12)
_LARGEST_TOLERANCE: Final = Fraction(1, 10**5)
_LEDGER_STEP: Final = Fraction(1, 10**11)
"""Ledgers round up each charge to 1e-12."""


@dataclass(frozen=True, slots=True)
class Call:
    """A public function and its arguments: kind and field of a row, or a number itself."""

    function: Callable[..., object]
    arguments: tuple[tuple[str, str] | int, ...]

    @classmethod
    def of(cls, text: str) -> "Call":
        """Return the call that a text of the table describes, for example "module.function(exact p, 2)".

        Raises:
            ValueError: the text does not describe a call.
        """
        found = _CALL.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not a call like module.function(kind field, ...)")
        module, function, argument_texts = found.groups()
        arguments: list[tuple[str, str] | int] = []
        for argument in filter(None, argument_texts.split(", ")):
            kind, _, name = argument.partition(" ")
            arguments.append(int(argument) if _LITERAL.fullmatch(argument) else (kind, name))
        return cls(getattr(import_module(module), function), tuple(arguments))

    def on(self, fields: Fields) -> object:
        """Return the function's result for a row."""
        values = [one if isinstance(one, int) else getattr(fields, one[0])(one[1]) for one in self.arguments]
        return self.function(*values)


@cache
def table() -> Mapping[str, Mapping[str, Any]]:
    """Return the groups by form: rows, matrices, questions."""
    return tomllib.loads(_TABLE.read_text(encoding="utf-8"))


def row_group(name: str) -> Recompute | None:
    """Return the function that recomputes a row of a group, or None if the group is not a list of rows or not known."""
    if name in table()["questions"]:
        return _question(Call.of(table()["questions"][name]))
    for known, answers in table()["rows"].items():
        found = re.fullmatch(known if "(" in known else re.escape(known), name)
        if found:
            return _answers({tuple(names.split()): Call.of(text) for names, text in answers.items()}, found.groupdict())
    return None


def matrix_group(name: str) -> Callable[[object], object] | None:
    """Return the function that recomputes a group that is one matrix; None for another or an unknown group."""
    text = table()["matrices"].get(name)
    if text is None:
        return None
    call = Call.of(text)
    return lambda content: call.on(Fields(where=name, fields={EVERY_FIELD: content}))


def _answers(calls: Mapping[tuple[str, ...], Call], given: Mapping[str, str]) -> Recompute:
    """Return the function that makes all calls for a row; `given` are the fields that the group's name contains."""

    def recompute(row: Fields) -> Mapping[str, object]:
        fields = Fields(where=row.where, fields={**row.fields, **given}, used=row.used)
        computed: dict[str, object] = {}
        for names, call in calls.items():
            value = call.on(fields)
            if names == (EVERY_FIELD,):
                computed |= cast("Mapping[str, object]", value)  # Such a function gives answers by name.
            elif len(names) == 1:
                computed[names[0]] = value
            else:
                values = cast("Sequence[object]", value)  # A function of several answers gives them in order.
                computed |= dict(zip(names, values, strict=True))
        return computed

    return recompute


def _question(call: Call) -> Recompute:
    """Return the function that recomputes `expected` from `inputs`; it returns an equal text when 12 digits agree.

    A row may name another tolerance, "exact" or "relative 1e-6".
    """

    def recompute(row: Fields) -> Mapping[str, object]:
        row.raw("how")
        inputs = Fields.of(row.raw("inputs"), f"{row.where}, inputs")
        expected = row.raw("expected")
        wanted = number_of(expected, f"{row.where}.expected")
        found = Fraction(cast("Fraction | float", call.on(inputs)))  # A question's answer is one number.
        inputs.finish()
        slack = _LEDGER_STEP if "charges" in inputs.fields else Fraction(0)
        named = row.raw("tolerance") if "tolerance" in row.fields else None
        within = _CLOSE if named is None else _tolerance(named, row.where)
        close = abs(found - wanted) <= within * abs(wanted) + slack
        return {"expected": expected if close else digits_of(found)}

    return recompute


def _tolerance(named: object, where: str) -> Fraction:
    """Return the relative tolerance that a row names.

    Raises:
        MalformedGoldenError: it is neither "exact" nor "relative" with a number of at most 1e-5.
    """
    kind, _, size = str(named).partition(" ")
    found = Fraction(0) if named == "exact" else number_of(size, f"{where}.tolerance")
    if kind not in ("exact", "relative") or not 0 <= found <= _LARGEST_TOLERANCE:
        raise MalformedGoldenError(f"{where}: tolerance is {shown(named)}; it must be 'exact' or 'relative 1e-6'")
    return found

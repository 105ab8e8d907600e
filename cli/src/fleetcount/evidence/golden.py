"""`fleetcount golden`: recompute every group of a golden file through the public API and compare, one line a group.

Reads, calls and prints; the comparison and the table of groups belong to the evidence.
"""

import contextlib
import json
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Final, cast

import click
from fleetcount_protocol.errors import UsageError

from fleetcount.command.base import JSON, CheckFailedError, StrictCommand, show
from fleetcount.command.options import PATH, read_text

_MAX_DIGITS: Final = 60
_LARGEST_FLOAT_EXPONENT: Final = 308


@click.command(cls=StrictCommand, short_help="Recompute golden numbers through the public API.")
@click.argument("file", type=PATH, metavar="FILE.json")
@JSON
def golden(file: Path, as_json: bool) -> None:
    """Recompute every group of golden numbers and compare.

    Decimals must agree to a relative 1e-9, integers and fractions exactly. One line a group: ok, or MISS with the first
    difference; a group this version does not know is a miss, and so is a row with a number too small or too large to be
    judged. In the groups of questions, variance is the parameter s of the noise N_Z(0, s), and Var its own variance. An
    example of the form is tests/golden/golden.json.

    Exit code 0 when every group is reproduced, 1 on any miss, 2 when the file is not of this form.
    """
    from fleetcount_evidence.golden.comparison import check_group  # Loads NumPy and SciPy: only when asked.

    groups = parse_golden(read_text(file), file.name)
    results = {name: check_group(name, content) for name, content in groups.items()}
    rows = [{"group": name, "passed": one.passed, "text": one.line} for name, one in results.items()]
    show(rows, (one.line for one in results.values()), as_json=as_json)
    misses = sum(not one.passed for one in results.values())
    if misses:
        raise CheckFailedError(f"{misses} of {len(groups)} groups are not reproduced")


def parse_golden(text: str, name: str) -> dict[str, object]:
    """Return the groups of a golden file; decimals become exact Fractions of their text, or `Beyond`.

    Raises:
        UsageError: not JSON, not one object of groups, a name twice, NaN or Infinity.
    """
    try:
        parsed: object = json.loads(
            text,
            parse_float=_decimal,
            parse_int=_integer,
            parse_constant=_constant,
            object_pairs_hook=_object,
        )
    except json.JSONDecodeError as error:
        raise UsageError(f"{name} is not JSON: {error.msg} at line {error.lineno}") from error
    except RecursionError as error:
        raise UsageError(f"{name} is nested too deeply") from error
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error
    if not isinstance(parsed, dict) or not parsed:
        raise UsageError(f"{name} must hold one object with at least one group of golden numbers")
    return cast("dict[str, object]", parsed)  # A JSON object's names are strings.


def _decimal(text: str) -> object:
    from fleetcount_evidence.golden.rows import LARGEST_EXPONENT, Beyond

    with contextlib.suppress(InvalidOperation):  # An exponent beyond what even Decimal holds.
        value = Decimal(text)
        within = not value or -LARGEST_EXPONENT <= value.adjusted() <= _LARGEST_FLOAT_EXPONENT
        if len(text) <= _MAX_DIGITS and within:
            return Fraction(value)
    allowed = f"1e-{LARGEST_EXPONENT} to 1e{_LARGEST_FLOAT_EXPONENT}, or 0, in {_MAX_DIGITS} characters"
    return Beyond(f"number {text[:_MAX_DIGITS]}, allowed: {allowed}")


def _integer(text: str) -> object:
    from fleetcount_evidence.golden.rows import Beyond

    if len(text) > _MAX_DIGITS:
        return Beyond(f"integer {text[:_MAX_DIGITS]}..., allowed: {_MAX_DIGITS} digits")
    return int(text)


def _constant(text: str) -> object:
    raise ValueError(f"{text} is not a number")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    for position, name in enumerate(names):
        if name in names[:position]:
            raise ValueError(f"name {name[:80]!r} stands twice in one object")
    return dict(pairs)

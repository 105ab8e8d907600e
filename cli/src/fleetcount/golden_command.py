"""`fleetcount golden`: recompute every group of a golden file through the public API and compare, one line a group.

Reads, calls and prints; the comparison and the table of groups belong to the analysis.
"""

import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Final, cast

import click
from fleetcount_protocol.errors import UsageError

from fleetcount.exits import CheckFailedError
from fleetcount.files import read_text
from fleetcount.lazy import StrictCommand

__all__ = ["golden", "parse_golden"]

_MAX_DIGITS: Final = 60


@click.command(cls=StrictCommand, short_help="Recompute golden numbers through the public API.")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.json")
def golden(file: Path) -> None:
    """Recompute every group of golden numbers and compare.

    Decimals must agree to a relative 1e-9, integers and fractions exactly. One line a group: ok, or MISS with the first
    difference; a group this version does not know is a miss. An example of the form is tests/golden/golden.json.

    Exit code 0 when every group is reproduced, 1 on any miss, 2 when the file is not of this form.
    """
    from fleetcount_analysis.papers.golden import check_group  # Loads NumPy and SciPy: only when asked.

    groups = parse_golden(read_text(file), file.name)
    misses = 0
    for name, content in groups.items():
        result = check_group(name, content)
        click.echo(result.line)
        misses += not result.passed
    if misses:
        raise CheckFailedError(f"{misses} of {len(groups)} groups are not reproduced")


def parse_golden(text: str, name: str) -> dict[str, object]:
    """Return the groups of a golden file; decimals become exact Fractions of their text.

    Raises:
        UsageError: not JSON, not one object of groups, a name twice, NaN or Infinity, a number beyond float's range.
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


def _decimal(text: str) -> Fraction:
    value = Decimal(text)
    if len(text) > _MAX_DIGITS or not -400 <= value.adjusted() <= 308:
        raise ValueError(f"number {text[:_MAX_DIGITS]} is not within 1e-400 to 1e308 and {_MAX_DIGITS} characters")
    return Fraction(value)


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"integer {text[:_MAX_DIGITS]}... has more than {_MAX_DIGITS} digits")
    return int(text)


def _constant(text: str) -> object:
    raise ValueError(f"{text} is not a number")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    for position, name in enumerate(names):
        if name in names[:position]:
            raise ValueError(f"name {name[:80]!r} stands twice in one object")
    return dict(pairs)

"""What a command prints: lines for people, or one JSON document.

It must not decide what a result is.
"""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import click

from fleetcount.command.exits import one_line

JSON: Final = click.option(
    "--json", "as_json", is_flag=True, help="For programs: one JSON document on standard output."
)
EXPLAIN: Final = click.option("--explain", is_flag=True, help="Add the statement in full: every adversary.")


def show(result: object, lines: Iterable[str], *, as_json: bool) -> None:
    """Print a result as one JSON document, or its lines for people, each as one line of the terminal.

    `result` is not looked at where lines are wanted, and lines are not made where JSON is.
    """
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False, indent=1))
        return
    for line in lines:
        click.echo(_printable(line))


def utc(moment: float) -> str:
    """Return a time as people read it: ISO 8601, UTC."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _printable(line: str) -> str:
    """Return a line with its blanks, which align columns; one that does not print goes through `one_line`."""
    return line if line.isprintable() else one_line(line)

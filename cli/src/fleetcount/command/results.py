"""What a command prints: lines for people, or one JSON document; and a privacy statement in both forms.

It must not decide what a result is, or word a promise (`fleetcount_mechanisms.statement_words` does).
"""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from fleetcount.command.exits import one_line

if TYPE_CHECKING:  # Help of a command starts without the mechanisms.
    from fleetcount_mechanisms.design import Design
    from fleetcount_mechanisms.statement import AdversaryView

JSON: Final = click.option(
    "--json", "as_json", is_flag=True, help="For programs: one JSON document on standard output."
)
EXPLAIN: Final = click.option("--explain", is_flag=True, help="Add the statement in full: every adversary.")
_HINT: Final = "(--explain: every adversary in turn)"


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


def privacy_lines(design: "Design", views: "Sequence[AdversaryView]", *, explain: bool) -> list[str]:
    """Return a statement for people: plain sentences first, and with `explain` what every adversary could learn."""
    from fleetcount_mechanisms.statement_words import plain_sentences

    sentences = list(plain_sentences(design, views))
    if not explain:
        return ["Privacy:", *sentences, _HINT]
    table = [f"  {view.audience}: {view.sentence}" for view in views]
    return ["Privacy:", *sentences, "What each adversary could learn of one device:", *table]


def statement_json(design: "Design", views: "Sequence[AdversaryView]") -> dict[str, Any]:
    """Return a statement for programs: the plain sentences, and every view."""
    from fleetcount_mechanisms.statement_words import plain_sentences

    return {"sentences": list(plain_sentences(design, views)), "adversaries": views_json(views)}


def views_json(views: "Sequence[AdversaryView]") -> list[dict[str, Any]]:
    """Return the views of a statement for programs; epsilon is None where none is finite."""
    return [
        {
            "adversary": view.adversary,
            "audience": view.audience,
            "epsilon": None if view.epsilon is None else f"{view.epsilon:f}",
            "delta": f"{view.delta:f}",
            "neighbours": view.neighbours,
            "sentence": view.sentence,
        }
        for view in views
    ]

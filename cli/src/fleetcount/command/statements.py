"""A privacy statement as a command prints it: lines for people, and rows for programs.

It must not word a promise (`fleetcount_mechanisms.statement_words` does).
"""

from collections.abc import Sequence
from typing import Any, Final

from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.statement import AdversaryView
from fleetcount_mechanisms.statement_words import plain_sentences

_HINT: Final = "(--explain: every adversary in turn)"


def privacy_lines(design: Design, views: Sequence[AdversaryView], *, explain: bool) -> list[str]:
    """Return a statement for people: plain sentences first, and with `explain` what every adversary could learn."""
    sentences = list(plain_sentences(design, views))
    if not explain:
        return ["Privacy:", *sentences, _HINT]
    table = [f"  {view.audience}: {view.sentence}" for view in views]
    return ["Privacy:", *sentences, "What each adversary could learn of one device:", *table]


def statement_json(design: Design, views: Sequence[AdversaryView]) -> dict[str, Any]:
    """Return a statement for programs: the plain sentences, and every view."""
    return {"sentences": list(plain_sentences(design, views)), "adversaries": views_json(views)}


def views_json(views: Sequence[AdversaryView]) -> list[dict[str, Any]]:
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

"""Values that are names: categories, counted places, anything without a map.

It must not read data.
"""

import unicodedata
from collections.abc import Sequence
from typing import Final

from fleetcount_protocol.window.domain import MAX_VALUES, Categories
from fleetcount_transport.settings import read_table, setting, settings
from fleetcount_transport.toml_values import shown

from fleetcount_simulator.cells.model import check_count
from fleetcount_simulator.cells.settings import Settings
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import AnswerSpace

MAX_NAME_BYTES: Final = 200


def checked_name(text: str, place: str) -> str:
    """Return a name in Unicode NFC.

    Raises:
        ScenarioError: empty, longer than 200 bytes, a control character or a blank at an end; starting with `place`.
    """
    name = unicodedata.normalize("NFC", text)
    if not name or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise ScenarioError(f"{place}: the name {shown(text)} must have 1 to {MAX_NAME_BYTES} bytes")
    if name != name.strip() or any(unicodedata.category(character) in {"Cc", "Cs"} for character in name):
        raise ScenarioError(f"{place}: the name {shown(text)} holds a control character or a blank at an end")
    return name


def _names(table: Settings, key: str) -> tuple[str, ...]:
    names = tuple(checked_name(name, f"question.{key}") for name in table.texts(key))
    if len(set(names)) != len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise table.wrong(key, f"holds {shown(twice)} twice")
    return names


@settings
class Keys:
    """[question] of cells `categories`."""

    values: tuple[str, ...] | None = setting(
        _names,
        default=None,
        about="the names that may be answered, in their order; any other in the data is refused; default: those found",
        example='["car", "van", "lorry"]',
    )


def declared_names(question: Settings) -> tuple[str, ...] | None:
    """Return the names a `[question]` table declares, or None.

    Raises:
        ScenarioError: a name is not allowed, or occurs twice.
    """
    return read_table(question, Keys).values


def question_of(title: str, names: Sequence[str]) -> AnswerSpace:
    """Return the question whose value v is the v-th name."""
    check_count(len(names), "question.cells")
    domain = Categories(names=tuple(names)) if len(names) <= MAX_VALUES else None
    return AnswerSpace(title=title, labels=tuple(names), domain=domain)

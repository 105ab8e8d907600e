"""Values that are names: categories, counted places, anything without a map.

It must not read data.
"""

import unicodedata
from collections.abc import Sequence
from typing import Final

from fleetcount_protocol.layout import prints
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
    if name != name.strip() or not prints(name):
        # As in a question: "a" and "a" with a character that nobody sees would be two values.
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
        about="the names, in their order; any other in the data is refused; default: those found",
        example='["car", "van", "lorry"]',
    )
    at_once: int = setting(
        Settings.integer,
        1,
        MAX_VALUES,
        default=1,
        about="how many names a vehicle tells at most; above 1 a cell of the data holds several",
        example="3",
    )
    separator: str | None = setting(
        Settings.printable,
        1,
        default=None,
        about="with at_once: what is between the names of a cell; default a semicolon",
        example='"|"',
    )


def declared_names(question: Settings) -> tuple[str, ...] | None:
    """Return the names a `[question]` table declares, or None, where a vehicle has one name at most.

    Raises:
        ScenarioError: a name is not allowed, or occurs twice; several names at once.
    """
    keys = named_keys(question)
    if keys.at_once > 1:
        raise question.refuse("at_once", "1 of this population; of kind 'categories' more")
    return keys.values


def named_keys(question: Settings) -> Keys:
    """Return what a `[question]` table says of its names.

    Raises:
        ScenarioError: a name is not allowed, or occurs twice; a separator without several categories at once.
    """
    keys = read_table(question, Keys)
    if keys.separator is not None and keys.at_once == 1:
        raise question.wrong("separator", "is given, allowed with question.at_once of 2 or more")
    return keys


def question_of(title: str, names: Sequence[str], most: int = 1, sets: Sequence[tuple[int, ...]] = ()) -> AnswerSpace:
    """Return the question whose value v is the v-th name; vehicles that hold `sets` tell up to `most` values of one.

    Raises:
        ScenarioError: no name or too many, or more told at once than there are names.
    """
    check_count(len(names), "question.cells")
    if most > 1 and most > min(len(names), MAX_VALUES):
        raise ScenarioError(f"question.at_once is {most}; allowed is 1 to {len(names)}, the number of names")
    domain = Categories(names=tuple(names), most=most) if len(names) <= MAX_VALUES else None
    if most > 1 and domain is None:
        raise ScenarioError(f"question.at_once is {most} of {len(names)} names; allowed with at most {MAX_VALUES}")
    return AnswerSpace(title=title, labels=tuple(names), domain=domain, sets=tuple(sets))

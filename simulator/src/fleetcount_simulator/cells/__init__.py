"""Cells: how a position, a road edge or a speed becomes one of the values of a question.

`read` reads the `[question]` table, `declare` makes the cells for positions of one kind. Each kind is one module, which
is imported on first use. Nothing here draws a number.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from fleetcount_transport.settings import Key, read_table, refused_by
from fleetcount_transport.settings import keys_of as keys_of_settings
from fleetcount_transport.toml_values import nearest, shown

from fleetcount_simulator.cells.model import Cells, Frame
from fleetcount_simulator.cells.settings import Settings
from fleetcount_simulator.errors import ScenarioError

__all__ = ["COMMON_KEYS", "KINDS", "MOVING", "RECORDED", "CellSpec", "declare", "keys_of", "read"]

COMMON_KEYS: Final = (
    Key(name="title", about="the question as a person would ask it; has a default", example='"Where are you?"'),
    Key(name="cells", about="how answers become values: see the kinds", example='"square"'),
)
KINDS: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "square": ("square", "Keys", "declare", "In which square are you?"),
    "h3": ("hexagons", "Keys", "declare", "In which H3 cell are you?"),
    "edges": ("edges", "Keys", "declare", "On which road edge are you?"),
    "speed": ("presence", "SpeedKeys", "declare_speed", "How fast are you?"),
    "number": ("presence", "NumberKeys", "declare_number", "How fast are you?"),
    "categories": ("named", "Keys", "", "Which of these is yours?"),
    "none": ("presence", "NoKeys", "declare_none", "Are you on the road?"),
    "cross": ("crossed", "Keys", "", "Which of these are yours, all at once?"),
}
"""Per kind: its module, the class of its keys, its function, and the title when none is given."""
MOVING: Final = ("square", "h3", "edges", "speed", "none")
"""The kinds that vehicles with positions can be asked for."""
RECORDED: Final = (*MOVING, "number")
"""The kinds that recorded vehicles can be asked for: all their speeds are known before the first question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpec:
    """A `[question]` table whose kind and key names are known."""

    kind: str
    title: str
    settings: Settings


def keys_of(kind: str) -> tuple[Key, ...]:
    """Return the keys of a kind of cells, beyond `title` and `cells`."""
    return keys_of_settings(_class_of(kind))


def _class_of(kind: str) -> Any:
    module, keys, _, _ = KINDS[kind]
    return getattr(import_module(f"{__name__}.{module}"), keys)


def read(
    question: Mapping[str, Any], folder: Path, kinds: tuple[str, ...], *, default: str | None = None, title: str = ""
) -> CellSpec:
    """Return the question, which must be of one of `kinds`; `default` and `title` stand in for what is not given.

    Raises:
        ScenarioError: an unknown kind or one this population cannot answer, an unknown key; with the nearest known.
    """
    kind = question.get("cells", default)
    if kind is None:
        raise ScenarioError(f"question.cells is missing; it must be one of {', '.join(kinds)}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ScenarioError(f"question.cells is {shown(kind)}; {nearest(str(kind), kinds)}")
    if kind not in kinds:
        raise ScenarioError(f"question.cells is {kind!r}; this population can be asked for {', '.join(kinds)}")
    settings = Settings("question", question, (*COMMON_KEYS, *keys_of(kind)), folder)
    return CellSpec(kind=kind, title=settings.printable("title", 200, title or KINDS[kind][3]), settings=settings)


def declare(asked: CellSpec, frame: Frame) -> Cells:
    """Return the cells for positions of one kind.

    Raises:
        ScenarioError: a key outside its range, or data that cannot be asked this.
    """
    module, _, function, _ = KINDS[asked.kind]
    make = getattr(import_module(f"{__name__}.{module}"), function)
    with refused_by(asked.settings):
        made: Cells = make(read_table(asked.settings, _class_of(asked.kind)), frame, asked.title)
    return made

"""The page of one run: its rows in parts, each a table with a heading.

Pure: rows go in, Markdown comes out.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from rows import Taken
from table import markdown_table

PARTS: Final = {
    "demanded": "What was demanded",
    "growth": "How cost grows",
    "vectors": "Without AVX-512",
    "starts": "Starts",
    "memory": "Memory",
    "others": "Everything else",
}
"""The parts of the page in their order, with their headings."""


def part_of(one: Taken) -> str:
    """Return the one part a row stands in."""
    if one.row.demanded:
        return "demanded"
    if one.benchmark == "growth":
        return "growth"
    if "AVX2" in one.row.path:
        return "vectors"
    if one.benchmark == "start" or "later starts" in one.row.path:
        return "starts"
    return "memory" if one.row.unit == "MiB" else "others"


def page_of(taken: Sequence[Taken], about: str) -> str:
    """Return the page: `about` says where and when the rows were measured; a part without a row says so."""
    parts = [f"# Figures\n\n{about}\n"]
    for name, heading in PARTS.items():
        own = [one for one in taken if part_of(one) == name]
        parts.append(f"\n## {heading}\n\n{markdown_table(own) if own else 'Not measured in this run.'}\n")
    return "".join(parts)


_NUMBER: Final = re.compile(r"\d[\d,.]*")


def measured(names: Sequence[str], taken: Iterable[Taken]) -> dict[str, str]:
    """Return each name of a row, in its order, with the name of the row of a run that measured the same, or "".

    A row of the run whose name is not among `names` stands for those that differ from it in numbers only: it is the
    same at another size.
    """
    ran = dict.fromkeys(names_of(taken))
    other_sizes = {_NUMBER.sub("#", name): name for name in ran if name not in names}
    return {name: name if name in ran else other_sizes.get(_NUMBER.sub("#", name), "") for name in names}


def names_of(taken: Iterable[Taken]) -> list[str]:
    """Return the names of the rows that have a figure, each once."""
    return list(dict.fromkeys(one.row.path for one in taken if one.row.ours is not None))

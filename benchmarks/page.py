"""The generated parts of docs/performance.md: tables of one run between two comments each.

Pure: a page and rows go in, the page with its blocks filled comes out. Text outside the blocks is never touched.
"""

import re
from collections.abc import Sequence
from typing import Final

from rows import Taken
from table import NOT_RUN, markdown_table, plain

BLOCKS: Final = ("demanded", "growth", "vectors", "starts", "memory", "others")
"""The blocks with rows; one more, "machine", says where and when they were taken."""


def block_of(one: Taken) -> str:
    """Return the one block a row stands in."""
    if one.row.demanded:
        return "demanded"
    if one.benchmark == "growth":
        return "growth"
    if "AVX2" in one.row.path:
        return "vectors"
    if one.benchmark == "start" or "later starts" in one.row.path:
        return "starts"
    return "memory" if one.row.unit == "MiB" else "others"


_BLOCK: Final = re.compile(r"(<!-- figures: ([a-z]+) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)


def fill(page: str, taken: Sequence[Taken], about: str) -> str:
    """Return the page with every block anew; the block "machine" holds `about`.

    Raises ValueError unless the page has every block once and no unknown one.
    """
    found = [name for _, name, _, _ in _BLOCK.findall(page)]
    if sorted(found) != sorted([*BLOCKS, "machine"]):
        raise ValueError(f"the page has the blocks {sorted(found)}, not {sorted([*BLOCKS, 'machine'])}")

    def block(match: re.Match[str]) -> str:
        start, name, _, end = match.groups()
        if name == "machine":
            return f"{start}{about}\n{end}"
        return f"{start}{_table([one for one in taken if block_of(one) == name])}\n{end}"

    return _BLOCK.sub(block, page)


_NUMBER: Final = re.compile(r"\d[\d,.]*")


def measured(page: str, taken: Sequence[Taken]) -> dict[str, str]:
    """Return each row of the page, in its order, with the row of a run that measured the same, or nothing.

    A row of the run whose name the page does not have stands for those that differ from it in numbers only: it is the
    same at another size.
    """
    names = rows_of(page)
    ran = {plain(one.row.path): one.row.path for one in taken if one.row.ours is not None}
    other_sizes = {_NUMBER.sub("#", name): path for name, path in ran.items() if name not in names}
    return {name: ran.get(name) or other_sizes.get(_NUMBER.sub("#", name), "") for name in names}


def rows_of(page: str) -> list[str]:
    """Return the names of the rows in the page's blocks that have a figure, each once, as Markdown has them."""
    blocks = [text for _, name, text, _ in _BLOCK.findall(page) if name != "machine"]
    lines = [line for text in blocks for line in text.splitlines() if line.startswith("| ") and NOT_RUN not in line]
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines]
    return [name for name in dict.fromkeys(names) if name != "path"]


def _table(taken: Sequence[Taken]) -> str:
    return markdown_table(taken) if taken else "Not measured in this run."

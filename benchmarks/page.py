"""The generated parts of docs/performance.md: tables of one run between two comments each.

Pure: a page and rows go in, the page with its blocks filled comes out. Text outside the blocks is never touched.
"""

import re
from collections.abc import Sequence
from typing import Final

from rows import Taken
from table import markdown_table

__all__ = ["BLOCKS", "block_of", "fill", "rows_of"]

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


def rows_of(page: str) -> list[str]:
    """Return the names of all rows in the page's blocks, in its order."""
    blocks = [text for _, name, text, _ in _BLOCK.findall(page) if name != "machine"]
    lines = [line.split("|")[1].strip() for text in blocks for line in text.splitlines() if line.startswith("| ")]
    return [name for name in lines if name != "path"]


def _table(taken: Sequence[Taken]) -> str:
    return markdown_table(taken) if taken else "Not measured in this run."

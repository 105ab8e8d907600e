"""The texts in the cells of CSV files: names of places and categories that others chose.

It must not know what a column means.
"""

from typing import Final

_BEGINS_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")  # The wide forms too.
_TEXT: Final = "'"


def csv_text(text: str) -> str:
    """Return a text as a cell that no spreadsheet takes for a formula (CWE-1236).

    One that begins as a formula does, and is no number, gets an apostrophe before it: `=1+1` becomes `'=1+1`.
    """
    if not text.startswith(_BEGINS_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return _TEXT + text
    return text

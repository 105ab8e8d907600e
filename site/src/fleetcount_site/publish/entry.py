"""The published values of one question or one release, and the scripts that give its numbers to a page.

It reads no record and verifies nothing: the caller has done both. Every number has its interval.
"""

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from fleetcount_analysis.answers import QuestionTable
from fleetcount_analysis.answers.levels import joins_total
from fleetcount_analysis.answers.places import DEGREES, Places
from fleetcount_analysis.interval_words import level_text
from numpy.typing import NDArray

from fleetcount_site.publish.count_law import law_of

CHUNK_NUMBERS: Final = 1 << 15
"""Numbers in one script: some 100 kB compressed, a tenth of a second to read."""
_DIGITS: Final = 9
"""Digits behind the point of an estimate: pages round it once more, to one, and fewer would show in that."""
_PLACES: Final = {True: 6, False: 3}
"""Digits behind the point of degrees (a tenth of a metre) and of metres."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedKey:
    """A signing key that the publisher pins, valid from `not_before` to `not_after` (Unix seconds)."""

    key: bytes
    not_before: int
    not_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowEntry:
    """One released window: its index in the question, when it opened and was released (Unix seconds), its digest."""

    index: int
    opens: int
    released_at: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One question, or one release as a question of one window, with everything its pages show.

    Every number of `table`, and of `total` where the releases have one, is read alone, as in the signed records;
    `joined` has the same windows with all that was opened beside the cells, with which a page joins sums.

    `slug` is the name of its folder, `plain` the privacy statement in plain sentences, `statement` one line per
    adversary; `windows` are in the order of the table's rows. `every_s` is 0 for a single release. `keys` are the
    pinned keys by aggregator, None if the publisher pins none. `downloads` are files of the folder by their
    description. `streets` are lines in the coordinates of the places, `attribution` names their source; `note` is why
    the map has no degrees; `numbers` is the line about the numbers of all windows together, of a question for one.
    `several` says that a vehicle may tell several cells at once, whose counts add up to no number of vehicles.
    """

    slug: str
    title: str
    plain: tuple[str, ...]
    statement: tuple[str, ...]
    windows: tuple[WindowEntry, ...] = field(repr=False)
    table: QuestionTable = field(repr=False)
    places: Places | None = field(repr=False)
    first: int
    every_s: int
    keys: Mapping[str, Sequence[PinnedKey]] | None
    downloads: Mapping[str, str]
    joined: QuestionTable = field(repr=False)
    total: QuestionTable | None = field(default=None, repr=False)
    streets: Sequence[Sequence[tuple[float, float]]] = field(default=(), repr=False)
    attribution: str = ""
    note: str = ""
    numbers: str = ""
    several: bool = False

    @property
    def single(self) -> bool:
        """Whether it is a single release."""
        return self.every_s == 0

    @property
    def level(self) -> str:
        """The level of every interval, as in "95 %"."""
        return level_text(self.table.level)


def question_script(entry: Entry) -> str:
    """Return the script that a page loads before its numbers: cells, places, windows, law, scale, keys."""
    table = entry.table
    value: dict[str, Any] = {
        "title": entry.title,
        "level": entry.level,
        "law": law_of(entry.joined.design, table.level),
        "labels": list(table.labels),
        "windows": [[one.index, one.opens, one.released_at] for one in entry.windows],
        "units": table.units.tolist(),
        "totals": _totals(entry.total),
        "whole": "" if entry.total is None else entry.total.labels[0].capitalize(),
        "missing": _runs(table.missing),
        "first": entry.first,
        "every": entry.every_s,
        "chunks": [[start, count] for start, count in _chunks(table)],
        "line": _cells_of_a_line_script(table),
        "most": round(max(float(table.estimates.max()), 1.0), 3),
        "keys": _pinned(entry.keys),
    }
    if entry.places is not None:
        degrees = entry.places.coordinates == DEGREES
        digits = _PLACES[degrees]
        streets = [[(round(x, digits), round(y, digits)) for x, y in line] for line in entry.streets]
        value |= {"degrees": degrees, "rings": _rings(entry.places, digits)}
        value |= {"streets": streets, "attribution": entry.attribution}
    return _script("question", value)


def _totals(table: QuestionTable | None) -> list[tuple[int, float, int, int]]:
    """Return the opened total, its estimate and its interval for every window; nothing where none was opened."""
    if table is None:
        return []
    columns = (table.raw, np.round(table.estimates, _DIGITS), table.low, table.high)
    return list(zip(*(column[:, 0].tolist() for column in columns), strict=True))


def excess_script(table: QuestionTable) -> Iterator[tuple[str, str]]:
    """Yield (name, script) of what margins and total have more than their cells together; none of other releases.

    There is a row for each window, of the numbers of every margin and then the total.
    """
    if joins_total(table.design):
        yield "excess", _packed_script("excess", _excess(table).tolist())


def _excess(table: QuestionTable) -> NDArray[np.int64]:
    levels = table.design.levels
    cells = table.raw.reshape(-1, *levels.margins)
    axes = range(1, cells.ndim)
    sums = [cells.sum(axis=tuple(one for one in axes if one != kept)) for kept in axes]
    if levels.total:
        sums.append(table.raw.sum(axis=1, keepdims=True))
    return np.asarray(table.outputs[:, levels.values :] - np.concatenate(sums, axis=1), dtype=np.int64)


def number_scripts(table: QuestionTable) -> Iterator[tuple[str, str]]:
    """Yield (name, script) of the numbers by windows, some windows each, for a map. `rows` are windows, then cells."""
    for number, (start, count) in enumerate(_chunks(table)):
        yield _numbers(table, f"numbers-{number}", np.s_[start : start + count, :])


def line_scripts(table: QuestionTable) -> Iterator[tuple[str, str]]:
    """Yield (name, script) of the same numbers by cells, some cells each, for lines. `rows` are cells, then windows.

    A page that shows one cell loads one of them, not a year of maps.
    """
    size = _cells_of_a_line_script(table)
    for number, start in enumerate(range(0, table.raw.shape[1], size)):
        yield _numbers(table, f"line-{number}", np.s_[:, start : start + size], turned=True)


def _numbers(table: QuestionTable, name: str, part: tuple[slice, slice], *, turned: bool = False) -> tuple[str, str]:
    """Return (name, script): columns of the distinct counts, and rows of indices into them.

    There are few distinct counts: cells with the same opened number have the same estimate and interval.
    """
    columns = {"raw": table.raw[part], "low": table.low[part], "high": table.high[part]}
    columns |= {"estimate": np.round(table.estimates[part], _DIGITS)}
    together = np.stack([column.ravel().astype(np.float64) for column in columns.values()])
    values, places = np.unique(together, axis=1, return_inverse=True)
    rows = places.reshape(columns["raw"].shape)
    value: dict[str, Any] = {"rows": (rows.T if turned else rows).tolist()}
    for column, found in zip(columns, values, strict=True):
        value[column] = found.tolist() if column == "estimate" else [int(one) for one in found]
    return name, _packed_script(name, value)


def record_script(index: int, record: bytes, signatures: Sequence[bytes]) -> str:
    """Return the script with a window's canonical record and its signatures, in the window's order."""
    signed = [base64.b64encode(one).decode() for one in signatures]
    return _packed_script(f"record-{index}", [base64.b64encode(record).decode(), signed])


def _script(name: str, value: object) -> str:
    return f"fleetcount.give({json.dumps(name)}, {_json(value)});\n"


def _packed_script(name: str, value: object) -> str:
    """Return the script of many numbers: their JSON in zlib's format (RFC 1950), in base64, which pages unpack."""
    packed = base64.b64encode(zlib.compress(_json(value).encode())).decode()
    return f"fleetcount.give({json.dumps(name)}, {json.dumps(packed)});\n"


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _chunks(table: QuestionTable) -> list[tuple[int, int]]:
    windows, cells = table.raw.shape
    size = max(1, CHUNK_NUMBERS // cells)
    return [(start, min(size, windows - start)) for start in range(0, windows, size)]


def _cells_of_a_line_script(table: QuestionTable) -> int:
    return max(1, CHUNK_NUMBERS // len(table.raw))


def _runs(missing: Mapping[int, str]) -> list[tuple[int, int, str]]:
    runs: list[tuple[int, int, str]] = []
    for index, reason in sorted(missing.items()):
        first, count, known = runs[-1] if runs else (-1, 0, "")
        if runs and first + count == index and known == reason:
            runs[-1] = (first, count + 1, reason)
        else:
            runs.append((index, 1, reason))
    return runs


def _pinned(keys: Mapping[str, Sequence[PinnedKey]] | None) -> dict[str, list[tuple[str, int, int]]] | None:
    if keys is None:
        return None
    return {
        name: [(base64.b64encode(one.key).decode(), one.not_before, one.not_after) for one in held]
        for name, held in keys.items()
    }


def _rings(places: Places, digits: int) -> list[list[float]]:
    """Return the corners of every cell as x, y, x, y, ..., without the first again at the end."""
    outlines = (places.outline(value)[:-1] for value in range(1, places.values + 1))
    return [[round(part, digits) for corner in ring for part in corner] for ring in outlines]

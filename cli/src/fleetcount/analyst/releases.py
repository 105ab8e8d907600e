"""One release in Python: read, verified, and then a table, sums, a statement and pictures.

Before `verify` a release shows what was asked and by whom, and no number. It must not trust a key that the release
itself names.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, cast

from fleetcount_analysis.answers import (
    Answer,
    Average,
    QuestionTable,
    Region,
    WindowCounts,
    everybody,
    level_numbers,
    question_table,
    table_design,
    table_numbers,
    total,
)
from fleetcount_analysis.answers.places import DEGREES, Places
from fleetcount_analysis.interval_words import interval_text, level_text
from fleetcount_mechanisms.errors import did_you_mean
from fleetcount_protocol.errors import DecodeError, SignatureError, UsageError
from fleetcount_protocol.release.record import ReleaseRecord, verify_record_signatures
from fleetcount_protocol.release.record_json import record_from_json
from fleetcount_protocol.window.domain import Cross, SquareGrid
from fleetcount_protocol.window.window import Window

from fleetcount.analyst.crosstab import Crosstab
from fleetcount.analyst.keys import Keys
from fleetcount.analyst.planning import Exact, exactly, whole_number
from fleetcount.analyst.tables import Row, Statement, Tabular, axes_for, html_table, library, statement_of
from fleetcount.command.numbers import NUMBER, QUANTILE
from fleetcount.command.options import read_text
from fleetcount.read.averages import MeasuredQuantile, OpenedNumbers, opened_numbers, opened_of
from fleetcount.read.crosstabs import counts_of, part_labels
from fleetcount.read.report import readable_counts, table_heads
from fleetcount.read.table import place_note, places_of

if TYPE_CHECKING:
    import geopandas as gpd  # pyright: ignore[reportMissingModuleSource] # As Polars in tables.py.
    from matplotlib.axes import Axes

Label = str | int | tuple[int, int]
Labels = Iterable[Label] | Label
"""Cells by their labels, by their values 1..V, or, of a square grid, by pairs (x, y): column and row from 0."""
Windows = Iterable[SupportsIndex] | SupportsIndex
"""Windows by their numbers in the question."""
_SHOWN: Final = 20


class UnverifiedError(UsageError, AttributeError):
    """A number of a release was asked for before its signatures were verified."""


def read_release(path: str | PathLike[str]) -> "Release":
    """Return the release of a file that `fleetcount question release` has written, unverified.

    Raises:
        UsageError: the file cannot be read, or is no release.
    """
    place = Path(path)
    if place.is_dir():
        raise UsageError(
            f"{place} is a directory; read_release() reads one file, read_releases() a directory of records"
        )
    text = read_text(place)
    try:
        record, signatures = record_from_json(text)
    except DecodeError as error:
        raise UsageError(f"{place} is no release, as 'fleetcount question release' writes it: {error}") from error
    return Release(record, signatures, str(place))


class Release:
    """A release as its file says: the aggregators that it names, and no number before `verify`."""

    def __init__(self, record: ReleaseRecord, signatures: Sequence[bytes], source: str) -> None:
        self._record = record
        self._signatures = tuple(signatures)
        self._source = source

    @property
    def name(self) -> str:
        """The name of the window that the release says it answers."""
        return self._record.window.name

    @property
    def window_id(self) -> str:
        """The window's id in hexadecimal form."""
        return self._record.window_id.hex()

    @property
    def aggregators(self) -> tuple[str, ...]:
        """The aggregators that should have signed it, the leader first."""
        return tuple(str(one.aggregator_id) for one in self._record.window.aggregators)

    def verify(self, keys: Keys) -> "VerifiedRelease":
        """Return the release with its numbers, if every aggregator of its window has signed it with a trusted key.

        Raises:
            SignatureError: not signed by all, a signature that does not verify, or an aggregator without a known key.
        """
        keys.check(self._record.window.aggregators, self._source)
        pairs = zip(self.aggregators, self._signatures, strict=True)
        if unsigned := [name for name, signature in pairs if not signature]:
            raise SignatureError(f"{self._source} is not signed by {', '.join(unsigned)}; every aggregator must sign")
        verify_record_signatures(self._record, self._signatures, keys.trusted)
        return VerifiedRelease(record=self._record, source=self._source)

    def __repr__(self) -> str:
        return f"<Release {self.name!r} of {self._source}, not verified: .verify(fleetcount.read_keys(FILE))>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            known = {*dir(VerifiedRelease), *(one.name for one in fields(VerifiedRelease))}
            if not name.startswith("_") and name in known:
                raise UnverifiedError(
                    f"{name} is known only after verification: {self._source} may say anything until its signatures"
                    " are checked; use release.verify(fleetcount.read_keys(FILE))"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class VerifiedRelease(Tabular):
    """A release that every aggregator of its window has signed; columns cell, label, raw, estimate, low, high.

    `raw` is the opened number, `estimate` the unbiased estimate in devices, which may be negative, `low` and `high` the
    ends of its interval at `level`, each of its own number alone. A release of several levels has a column `zoom` too,
    the highest being the total where there is one, before it the weighted sum of numbers, in steps from their middle;
    one of a square grid `x` and `y` behind `label`.
    """

    record: ReleaseRecord = field(repr=False)
    source: str

    @property
    def window(self) -> Window:
        """The window: its question, its mechanism and its aggregators."""
        return self.record.window

    @property
    def name(self) -> str:
        """The name of the window."""
        return self.window.name

    @property
    def level(self) -> Fraction:
        """The level of every interval."""
        return self.record.level

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of all cells, in order."""
        return tuple(cell.label for cell in self.record.cells)

    @property
    def statement(self) -> Statement:
        """What could be learnt of one device; `str()` of it is one or two sentences."""
        return statement_of(self.window.design, self.record.statement)

    def columns_of(self) -> Mapping[str, Sequence[Any]]:
        """Return the columns in their order."""
        cells = self.record.cells
        zooms = {"zoom": self._zooms} if self.window.design.levels.count > 1 else {}
        return zooms | {
            "cell": [cell.value for cell in cells],
            "label": list(self.labels),
            **self._parts(),
            **self._squares(),
            "raw": [cell.raw for cell in cells],
            "estimate": [float(cell.estimate) for cell in cells],
            "low": [cell.low for cell in cells],
            "high": [cell.high for cell in cells],
        }

    def _parts(self) -> dict[str, list[str]]:
        """Return for each signal of several the name of its value in every row, "*" where these are added up."""
        domain, passed = self.window.domain, dict[int, int]()
        if not isinstance(domain, Cross):
            return {}
        rows: list[list[str]] = []
        for level in self._zooms:
            place = passed[level] = passed.get(level, -1) + 1
            rows.append(part_labels(domain, level, place))
        return {part.signal: [row[one] for row in rows] for one, part in enumerate(domain.parts)}

    def _squares(self) -> dict[str, list[int | None]]:
        """Where each cell of a square grid is in the grid of its zoom: columns x and rows y from the corner, from 0.

        A total has no place.
        """
        domain, passed = self.window.domain, dict[int, int]()
        if not isinstance(domain, SquareGrid):
            return {}
        squares: list[tuple[int, int] | tuple[None, None]] = []
        sides = self.window.release.sides
        for zoom in self._zooms:
            place = passed[zoom] = passed.get(zoom, -1) + 1
            squares.append(divmod(place, domain.columns // sides[zoom]) if zoom < len(sides) else (None, None))
        return {"x": [x for _, x in squares], "y": [y for y, _ in squares]}

    @cached_property
    def _zooms(self) -> list[int]:
        """The zoom of every cell."""
        design, values = self.window.design, range(len(self.record.cells))
        members = [set(level_numbers(design, values, zoom)) for zoom in range(design.levels.count)]
        return [next(zoom for zoom, inside in enumerate(members) if value in inside) for value in values]

    def to_geopandas(self, zoom: int = 0) -> "gpd.GeoDataFrame":
        """Return the cells of a zoom with their outlines in degrees (EPSG:4326).

        Raises:
            UsageError: cells that are no places, or squares without a frame that can be placed.
            MissingPackageError: geopandas is not installed.
        """
        places = self._places(zoom)
        if places.coordinates != DEGREES:
            raise UsageError(f"{self.name!r}: {place_note(self.window)}; .map() draws them there")
        frames, shapes = library("geopandas", "to_geopandas()"), library("shapely", "to_geopandas()")
        rows = [row for row, one in enumerate(self._zooms) if one == zoom]
        columns = {name: [column[row] for row in rows] for name, column in self.columns_of().items()}
        outlines = [shapes.Polygon(places.outline(value)) for value in range(1, places.values + 1)]
        frame: gpd.GeoDataFrame = frames.GeoDataFrame(columns, geometry=outlines, crs="EPSG:4326")
        return frame

    def sum(self, labels: Labels) -> Answer:
        """Return the sum of some cells with its exact interval: for cells that were chosen before looking.

        Its interval is narrower than the sum of the cells' intervals. Adding estimates is right, adding ends is not. Of
        several categories of one device at once it counts what was told, a device as often as it told: no number of
        devices, which `total` is.

        Raises:
            UsageError: a label that is not there, or labels of several zooms.
            RangeError: no label.
        """
        values = cells_named(self.labels, labels, grid=isinstance(self.window.domain, SquareGrid))
        zooms = {self._zooms[value - 1] for value in values}
        if len(zooms) > 1:
            raise UsageError(
                f"the labels are of zooms {sorted(zooms)}, which count the same devices; allowed: one zoom"
            )
        zoom = zooms.pop() if zooms else 0
        if zoom == self.window.design.levels.weighted_place:
            raise UsageError("the weighted sum counts no devices; mean() and total_of_numbers() are read from it")
        if 1 <= zoom <= len(self.window.design.levels.margins):
            # A sum of a margin's numbers is one of cells, which are joined with all that was opened.
            members = self.window.design.levels.margin_of(zoom - 1)
            chosen = {value - self.window.design.levels.starts()[zoom] - 1 for value in values}
            zoom, values = 0, [cell for cell, place in enumerate(members, start=1) if place in chosen]
        cells = level_numbers(self.window.design, range(1, len(self.labels) + 1), zoom)
        return total(self._table(zoom, cells), Region.of([cells.index(value) + 1 for value in values], 0))

    def total(self) -> Answer:
        """Return the number of devices with any of the values, joined with the released total where there is one.

        Of several categories of one device at once it is that total alone, the number of devices that told any.

        Raises:
            RangeError: as `sum`.
        """
        cells = level_numbers(self.window.design, range(1, len(self.labels) + 1), 0)
        return everybody(self._table(0, cells), 0)

    def crosstab(self) -> Crosstab:
        """Return the table of a question for several signals, with margins, shares and differences.

        Raises:
            UsageError: a question for one signal.
        """
        return Crosstab(counts=counts_of(self.record))

    def quantile(self, q: Exact) -> MeasuredQuantile:
        """Return the q-quantile of a question for a number, 1/2 being the median, over the devices with a value.

        All zooms are read together. Devices outside all bins are not in it.

        Raises:
            UsageError: q outside (0, 1), or values that are no numbers.
            RangeError: answers that devices randomize, one-sided noise or exact counts.
        """
        return self._numbers.quantile(exactly("q", q, QUANTILE))

    def mean(self) -> Average:
        """Return the mean of a question for a number, in its unit, over the devices with a value.

        Of bins it is known up to a bin: the interval reaches from the mean of their lower edges to that of the upper.

        Raises:
            UsageError: values that are no numbers, or a last bin without an end.
            RangeError: as `quantile`.
        """
        return self._numbers.mean()

    def total_of_numbers(self) -> Average:
        """Return the sum of the numbers of all devices with a value, in the unit of a question for a number.

        Raises:
            UsageError: values that are no points.
            RangeError: as `quantile`, or sampled answers.
        """
        return self._numbers.total_of_numbers()

    def share(self, labels: Labels) -> Average:
        """Return the share of some cells of the finest zoom in all devices with a value, between 0 and 1.

        For cells that were chosen before looking.

        Raises:
            UsageError: a label that is not there, or one of a coarser zoom.
            RangeError: as `quantile`.
        """
        count = self.window.design.values
        return self._numbers.share(
            cells_named(self.labels[:count], labels, grid=isinstance(self.window.domain, SquareGrid))
        )

    def share_above(self, number: Exact) -> Average:
        """Return the share of devices with at least a number, which is an edge of the bins, of those with a value.

        Raises:
            UsageError: values that are no bins, or a number that is no lower edge.
            RangeError: as `quantile`.
        """
        return self._numbers.share_above(exactly("number", number, NUMBER))

    @property
    def _numbers(self) -> OpenedNumbers:
        return opened_of(self.record)

    def _table(self, zoom: int, cells: Sequence[int]) -> QuestionTable:
        """Return the table of this window alone at a zoom that has these cells."""
        outputs = table_numbers(self.window.design, opened_numbers(self.record), zoom)
        counts, labels = (
            WindowCounts(index=0, opens=0, unit=0, outputs=outputs),
            [self.labels[one - 1] for one in cells],
        )
        return question_table(table_design(self.window.design, zoom), self.level, labels, (), [counts])

    def _places(self, zoom: int) -> Places:
        if isinstance(self.window.domain, Cross):
            raise UsageError(
                f"{self.name!r} asks for several signals, so that many cells lie at one place; see crosstab()"
            )
        zooms = len(self.window.release.sides)
        if (number := whole_number(zoom)) is None or not 0 <= number < zooms:
            raise UsageError(f"zoom is {str(zoom)[:40]}, allowed: 0 to {zooms - 1}")
        return places_of(self.window, number)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw every cell of the finest zoom with its interval, the 40 largest if there are more; return the axes.

        Raises:
            MissingPackageError: matplotlib is not installed.
        """
        count = self.window.design.values
        axes = axes_for(ax, 6.4, 0.9 + 0.24 * min(count, 40), "plot()")
        # Matplotlib is optional: `axes_for` has said so where it is missing.
        from fleetcount_analysis.figures.axes import draw_rows

        estimate, low, high = (self.columns_of()[name][:count] for name in ("estimate", "low", "high"))
        unit = f"devices, with {level_text(self.level)} intervals"
        draw_rows(axes, self.labels[:count], estimate=estimate, low=low, high=high, unit=unit)
        return axes

    def map(self, ax: "Axes | None" = None, zoom: int = 0) -> "Axes":
        """Draw the estimates of a zoom where they are; return the axes. `plot` shows their intervals.

        Raises:
            UsageError: cells that are no places, or a zoom that the release does not have.
            MissingPackageError: matplotlib is not installed.
        """
        places = self._places(zoom)
        axes = axes_for(ax, 6.4, 4.8, "map()")
        # Matplotlib is optional: `axes_for` has said so where it is missing.
        from fleetcount_analysis.figures.axes import draw_places

        rings = [places.outline(value) for value in range(1, places.values + 1)]
        pairs = zip(self._zooms, self.columns_of()["estimate"], strict=True)
        degrees = places.coordinates == DEGREES
        draw_places(axes, rings, estimate=[one for at, one in pairs if at == zoom], unit="devices", degrees=degrees)
        return axes

    def __repr__(self) -> str:
        return f"<VerifiedRelease {self.name!r} of {len(self.record.cells):,} cells, signed by all its aggregators>"

    def _repr_html_(self) -> str:
        levels, cells = self.window.design.levels, list(self.record.cells)
        if levels.weighted_place is not None:
            del cells[levels.starts()[levels.weighted_place]]  # It counts no devices.
        shown = sorted(sorted(cells, key=lambda one: -one.estimate)[:_SHOWN], key=lambda one: one.value)
        counts = readable_counts(self.record)
        rows: list[Row] = [
            (
                one.label,
                interval_text(one.estimate, one.low, one.high),
                counts[one.value - 1] if counts else "",
                round(float(one.estimate), 1),
            )
            for one in shown
        ]
        head = (*table_heads(self.record), "about", "raw estimate")
        return html_table(self.name, head, rows, self.statement.sentences, hidden=len(cells) - len(rows))


def cells_named(known: Sequence[str], labels: Labels, *, grid: bool) -> list[int]:
    """Return the values of cells that are named by label, by value or by the square of a grid, each once, in order.

    On a grid the pair (3, 3) is one square, never the cells 3 and 3; elsewhere a pair of numbers is two cells.

    Raises:
        UsageError: one that is not there; with the nearest label.
    """
    listed = [labels] if grid and _is_pair(labels) else _listed(labels)
    values = {label: value for value, label in enumerate(known, start=1)}
    found: set[int] = set()
    for one in listed:
        name = ",".join(map(str, cast("tuple[int, int]", one))) if grid and _is_pair(one) else one
        value = values.get(name) if isinstance(name, str) else whole_number(one)
        if value is None or not 1 <= value <= len(known):
            near = did_you_mean(name, known) or f"; there are {len(known)}, {known[0]!r} to {known[-1]!r}"
            raise UsageError(f"no cell has the label {str(name)[:80]!r}{near}")
        found.add(value)
    if not found:
        raise UsageError("0 cells are named, allowed: one or more")
    return sorted(found)


def windows_named(windows: Windows) -> list[int]:
    """Return windows that are named by their numbers in the question, one or several, each once, in order.

    Raises:
        UsageError: what is no whole number.
    """
    found: set[int] = set()
    for one in _listed(windows):
        if (window := whole_number(one)) is None:
            raise UsageError(f"window is {str(one)[:80]!r}, allowed: the whole number of a window in its question")
        found.add(window)
    return sorted(found)


def _listed(named: object) -> list[Any]:
    try:
        return [named] if isinstance(named, str) else list(cast("Iterable[Any]", named))
    except TypeError:  # As an array of no dimension says of itself, too.
        return [named]


def _is_pair(named: object) -> bool:
    return isinstance(named, tuple) and len(named) == 2 and all(isinstance(one, SupportsIndex) for one in named)

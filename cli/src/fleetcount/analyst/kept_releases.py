"""A question in Python: the kept records of its windows as one table, and answers that hold over time.

Every signature and the chain of the records are checked before a number is shown. It must not add intervals or invent
a missing window.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from math import nan
from operator import index
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

from fleetcount_analysis.answers import Answer, Average, Region, difference, total, window_totals
from fleetcount_analysis.interval_words import level_text
from fleetcount_mechanisms.accounting.question_statement import question_views
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.statement import AdversaryView
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.question.question import Question, verify_signed_question

from fleetcount.analyst.crosstab import Crosstab
from fleetcount.analyst.keys import Keys
from fleetcount.analyst.planning import Exact, exactly, whole_number
from fleetcount.analyst.releases import Label, Labels, VerifiedRelease, Windows, cells_named, windows_named
from fleetcount.analyst.tables import Statement, Tabular, axes_for, html_table
from fleetcount.command.numbers import NUMBER, QUANTILE
from fleetcount.question.files import asked_words, promise_words
from fleetcount.read.averages import MeasuredQuantile, OpenedNumbers
from fleetcount.read.crosstabs import CrossCounts
from fleetcount.read.records import QUESTION_FILE, kept_record, question_of_records
from fleetcount.read.table import KeptTable, opened_in, read_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def read_releases(directory: str | PathLike[str], keys: Keys | None = None, *, zoom: int = 0) -> "Releases":
    """Return the question whose records `fleetcount question release` has kept in a directory, everything checked.

    Without `keys` the signatures are checked against the keys that the question itself names: then all its aggregators
    agree, and who they are is known only to those who know the question. `zoom` chooses among the sizes of
    squares or bins, 0 being the finest.

    Raises:
        UsageError: no directory of records, one of several questions, a drill-down, or a zoom that is not there.
        SignatureError: a signature that does not verify, or an aggregator without a known key.
        CheckFailedError: a record that is not the next of the chain.
    """
    place = Path(directory)
    if place.is_file():
        raise UsageError(f"{place} is a file; read_releases() reads a directory of records, read_release() one file")
    if keys is not None and (place / QUESTION_FILE).is_file():
        signed = question_of_records(place)
        keys.check(signed.question.aggregators, str(place / QUESTION_FILE))
        verify_signed_question(signed, keys.trusted)
    if (number := whole_number(zoom)) is None:
        raise UsageError(f"zoom is {str(zoom)[:40]!r}, allowed: the whole number of a zoom")
    return Releases(kept=read_table(place, number), source=str(place), trusted=keys is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a question costs one device that answers every window, as every reader of the releases may see it.

    Epsilons are at `delta`, rounded up; None where no finite one exists. `so_far` is of the windows up to the last
    released one, whether they were released or not.
    """

    one_answer: Decimal | None
    one_day: Decimal | None
    whole_question: Decimal | None
    so_far: Decimal | None
    delta: Decimal
    windows: int
    released: int
    missing: int

    def __str__(self) -> str:
        if self.whole_question is None:
            return f"no finite epsilon; {self.released} of {self.windows} windows released"
        return (
            f"epsilon {self.so_far} so far, {self.whole_question} for all {self.windows} windows at delta"
            f" {self.delta:f}; {self.released} released, {self.missing} missing"
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Releases(Tabular):
    """The released windows of a question; columns window_index, opens (UTC), cell, label, raw, estimate, low, high.

    Of a square grid x and y too. Where the releases have a total, estimates and intervals of directly counted cells and
    sums are joined with it, and so narrower than those of the records; `total` is all cells together, of
    several categories of one vehicle at once the vehicles that told any.
    """

    kept: KeptTable = field(repr=False)
    source: str
    trusted: bool

    @property
    def asked(self) -> Question:
        """The question as it was signed: question, schedule and promise."""
        return self.kept.question

    @property
    def name(self) -> str:
        """The name of the question."""
        return self.asked.name

    @property
    def level(self) -> Fraction:
        """The level of every interval, each alone."""
        return self.kept.table.level

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of all cells, in order."""
        return self.kept.table.labels

    @property
    def windows(self) -> tuple[int, ...]:
        """The released windows, by their numbers in the question."""
        return tuple(self.kept.table.windows.tolist())

    @property
    def missing(self) -> Mapping[int, str]:
        """The windows that the records name as missing, and why."""
        return self.kept.table.missing

    @property
    def statement(self) -> Statement:
        """What could be learnt of one device from one window, a day, and the whole question."""
        asked = self.asked
        return Statement(sentences=promise_words(asked), views=question_views(asked.design, asked.shape, asked.delta))

    def columns_of(self) -> Mapping[str, Sequence[Any]]:
        """Return the columns, windows in turn and in each cell by cell."""
        table, opens = self.kept.table, self._opens()
        windows, cells = len(table.windows), len(table.labels)
        return {
            "window_index": [window for window in self.windows for _ in range(cells)],
            "opens": [moment for moment in opens for _ in range(cells)],
            "cell": list(range(1, cells + 1)) * windows,
            "label": list(table.labels) * windows,
            **{name: places.tolist() * windows for name, places in table.squares.items()},
            "raw": table.raw.ravel().tolist(),
            "estimate": table.estimates.ravel().tolist(),
            "low": table.low.ravel().tolist(),
            "high": table.high.ravel().tolist(),
        }

    def _opens(self) -> list[datetime]:
        return [datetime.fromtimestamp(moment, UTC) for moment in self.kept.table.opens.tolist()]

    @property
    def _grid(self) -> bool:
        return self.kept.table.width is not None

    @property
    def _totalled(self) -> bool:
        return self.kept.table.design.levels.total

    def __len__(self) -> int:
        """Return how many windows were released."""
        return len(self.windows)

    def __getitem__(self, position: int) -> VerifiedRelease:
        """Return a released window by its place among them: 0 is the first, -1 the last.

        Its record is read and checked again.

        Raises:
            IndexError: a place that is not there.
            UsageError, SignatureError, CheckFailedError: the record has changed since.
        """
        kept = self.windows[index(position)]
        return VerifiedRelease(record=kept_record(Path(self.source), self.asked, kept), source=self.source)

    def __iter__(self) -> Iterator[VerifiedRelease]:
        """Yield the released windows in turn."""
        return (self[position] for position in range(len(self)))

    def cell(self, label: Label) -> "CellHistory":
        """Return one cell over all released windows.

        Raises:
            UsageError: a label that is not there, with the nearest; or not one.
        """
        value, *others = cells_named(self.labels, label, grid=self._grid)
        if others:
            raise UsageError(f"{1 + len(others)} cells are named, allowed: one; sum() adds several")
        table = self.kept.table
        columns = {
            "window_index": list(self.windows),
            "opens": self._opens(),
            "raw": table.raw[:, value - 1].tolist(),
            "estimate": table.estimates[:, value - 1].tolist(),
            "low": table.low[:, value - 1].tolist(),
            "high": table.high[:, value - 1].tolist(),
        }
        return CellHistory(label=self.labels[value - 1], level=self.level, columns=columns)

    @property
    def _whole(self) -> str:
        levels = self._levels
        return f"the number of {levels.total_words}" if levels.most > 1 else "the sum of all cells"

    def total(self) -> "CellHistory":
        """Return all cells together over all released windows; raw is the opened total.

        Of several categories of one vehicle at once it is the number of vehicles that told any.

        Raises:
            UsageError: the releases have no total; `sum` adds the cells.
        """
        table = self.kept.table
        if not self._totalled:
            several = ", of which a vehicle told several" if table.design.levels.most > 1 else ""
            raise UsageError(f"question {self.name!r} opens no total; .sum() adds its cells up{several}")
        estimates, low, high = (column.tolist() for column in window_totals(table))
        columns = {
            "window_index": list(self.windows),
            "opens": self._opens(),
            "raw": table.outputs[:, -1].tolist(),
            "estimate": estimates,
            "low": low,
            "high": high,
        }
        return CellHistory(label=table.design.levels.total_words, level=self.level, columns=columns)

    def sum(self, labels: Labels | None = None, windows: Windows | None = None) -> Answer:
        """Return the sum of cells (all) over windows (all released ones), with its exact interval.

        Counts are added, not devices: a device counted in two windows counts twice, and one that told two categories at
        once in both: their sum is no number of devices, `total` is.

        Raises:
            UsageError: a label that is not there, or a window that is no whole number.
            RangeError: a window that was not released.
        """
        return total(self.kept.table, Region.of(self._cells(labels), self._over(windows)))

    def quantile(self, q: Exact, windows: Windows | None = None) -> MeasuredQuantile:
        """Return the q-quantile of a question for a number over windows (all released ones), read at all zooms.

        A device that is counted in two windows counts twice; one without a value is not in it.

        Raises:
            UsageError: q outside (0, 1), values that are no numbers, or sampled windows that share a toss.
            RangeError: a window that was not released; as `VerifiedRelease.quantile`.
        """
        return self._numbers(windows).quantile(exactly("q", q, QUANTILE))

    def total_of_numbers(self, windows: Windows | None = None) -> Average:
        """Return the sum of the numbers of a question for a number, in its unit, over windows.

        Raises:
            UsageError: as `VerifiedRelease.total_of_numbers`.
            RangeError: as `quantile`.
        """
        return self._numbers(windows).total_of_numbers()

    def mean(self, windows: Windows | None = None) -> Average:
        """Return the mean of a question for a number, in its unit, over windows; of bins it is known up to a bin.

        Raises:
            UsageError: values that are no numbers, a last bin without an end, or sampled windows that share a toss.
            RangeError: as `quantile`.
        """
        return self._numbers(windows).mean()

    def crosstab(self, windows: Windows | None = None) -> Crosstab:
        """Return the table of a question for several signals over windows, which are added up.

        Raises:
            UsageError: a question for one signal.
            RangeError: a window that was not released.
        """
        return Crosstab(counts=CrossCounts.of(self.name, self.asked.domain, self.kept.table, self._over(windows)))

    def share(self, labels: Labels, windows: Windows | None = None) -> Average:
        """Return the share of some cells in all devices with a value, over windows.

        Raises:
            UsageError: a label that is not there, a coarser zoom, or sampled windows that share a toss.
            RangeError: as `quantile`.
        """
        if self.kept.zoom:
            raise UsageError(f"zoom is {self.kept.zoom}; a share is of cells of zoom 0, which reads all zooms together")
        return self._numbers(windows).share(self._cells(labels))

    def share_above(self, number: Exact, windows: Windows | None = None) -> Average:
        """Return the share of devices with at least a number, an edge of the bins, over windows.

        Raises:
            UsageError: values that are no bins, a number that is no lower edge, or sampled windows that share a toss.
            RangeError: as `quantile`.
        """
        return self._numbers(windows).share_above(exactly("number", number, NUMBER))

    def _numbers(self, windows: Windows | None) -> OpenedNumbers:
        return opened_in(self.kept, self._over(windows))

    def _over(self, windows: Windows | None) -> list[int]:
        return windows_named(self.windows if windows is None else windows)

    def difference(self, earlier: SupportsIndex, later: SupportsIndex, labels: Labels | None = None) -> Answer:
        """Return how much more is counted in the window `later` than in `earlier`, in some cells or in all.

        Raises:
            UsageError: a label that is not there, or a window that is no whole number.
            RangeError: a window that was not released, or one window twice.
        """
        more, less = (Region.of(self._cells(labels), windows_named(one)) for one in (later, earlier))
        return difference(self.kept.table, more, less)

    def _cells(self, labels: Labels | None) -> list[int]:
        return (
            list(range(1, len(self.labels) + 1))
            if labels is None
            else cells_named(self.labels, labels, grid=self._grid)
        )

    def budget(self) -> Budget:
        """Return what the question costs a device that answers every window, in all and so far."""
        asked, last = self.asked, self.kept.last
        one, day, whole = _public(self.statement.views)
        begun = replace(asked.schedule, windows=last + 1).shape(asked.coin, one_in=asked.one_in)
        return Budget(
            one_answer=one.epsilon,
            one_day=day.epsilon,
            whole_question=whole.epsilon,
            so_far=_public(question_views(asked.design, begun, asked.delta))[2].epsilon,
            delta=whole.delta,
            windows=asked.schedule.windows,
            released=len(self.windows),
            missing=len(self.missing),
        )

    def _trust(self) -> str:
        return "by keys that you trust" if self.trusted else "by the keys that the question itself names"

    def __repr__(self) -> str:
        size = f"{len(self.windows)} windows of {len(self.labels):,} cells"
        return f"<Releases {self.name!r}: {size}, signed {self._trust()}>"

    @property
    def _levels(self) -> Levels:
        return self.kept.table.design.levels

    def _repr_html_(self) -> str:
        own = f"opened too: {self._whole} has noise of its own"
        facts: list[tuple[object, ...]] = [
            ("windows released", f"{len(self.windows):,} of {self.asked.schedule.windows:,}"),
            ("windows missing", f"{len(self.missing):,}"),
            ("cells", f"{len(self.labels):,}, intervals of {level_text(self.level)}"),
            *([(self._levels.total_label, own)] if self._totalled else []),
            *(("asked", words) for words in asked_words(self.asked)),
            ("signatures and chain", f"hold, {self._trust()}"),
            ("budget", str(self.budget())),
        ]
        return html_table(self.name, ("question", ""), facts, self.statement.sentences)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CellHistory(Tabular):
    """One cell over the released windows; columns window_index, opens (UTC), raw, estimate, low, high."""

    label: str
    level: Fraction
    columns: Mapping[str, Sequence[Any]] = field(repr=False)

    def columns_of(self) -> Mapping[str, Sequence[Any]]:
        """Return the columns, a row a released window."""
        return self.columns

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the estimates over time with the band of their intervals, a window without a release as a gap.

        Returns the axes.

        Raises:
            MissingPackageError: matplotlib is not installed.
        """
        axes = axes_for(ax, 6.8, 3.4, "plot()")
        # Matplotlib is optional: `axes_for` has said so where it is missing.
        from fleetcount_analysis.figures.axes import draw_band

        opens, estimate, low, high = zip(*self._rows_and_gaps(), strict=True)
        draw_band(
            axes,
            opens,
            estimate=estimate,
            low=low,
            high=high,
            label=self.label,
            x_label="window opens (UTC)",
            unit=f"devices, with {level_text(self.level)} intervals",
        )
        axes.set_title(f"cell {self.label}")
        return axes

    def _rows_and_gaps(self) -> Iterator[tuple[datetime, float, float, float]]:
        """Yield time, estimate and ends of every window, and between two that do not follow a row that is no number."""
        before = None
        names = ("window_index", "opens", "estimate", "low", "high")
        for window, opens, *numbers in zip(*(self.columns[name] for name in names), strict=True):
            if before is not None and window != before + 1:
                yield opens, nan, nan, nan
            before = window
            yield opens, *numbers

    def __repr__(self) -> str:
        return f"<CellHistory {self.label!r} of {len(self.columns['window_index'])} windows>"


def _public(views: Sequence[AdversaryView]) -> tuple[AdversaryView, AdversaryView, AdversaryView]:
    """Return what the public learns of one answer, one day and all of them, which of one window are the same."""
    found = [view for view in views if view.adversary == views[0].adversary]
    return found[0], found[len(found) // 2], found[-1]

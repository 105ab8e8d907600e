"""Columns as the libraries of analysts know them: pandas, Polars, Arrow; and as HTML in a notebook.

No such library is a dependency: each is imported by the method that needs it. It must not compute a column.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from fleetcount_analysis.interval_words import number_text
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.statement import AdversaryView
from fleetcount_mechanisms.statement_words import plain_sentences
from fleetcount_protocol.errors import UsageError

if TYPE_CHECKING:  # Optional libraries; `make check` has no Polars, which is larger than all that it needs.
    import pandas as pd
    import polars as pl  # pyright: ignore[reportMissingImports]
    from matplotlib.axes import Axes

Row = Sequence[object]
_SHOWN: Final = 20
"""Rows of a table in a notebook; the frames have all of them."""
_ROUNDINGS: Final = {
    "low": ROUND_FLOOR,
    "high": ROUND_CEILING,
    "epsilon": ROUND_CEILING,
    "total_epsilon": ROUND_CEILING,
}
"""How columns of ends and of losses are rounded, in which the nearest would be too good."""


class MissingPackageError(UsageError, ImportError):
    """A library that only analysts need is not installed; the message says what to install."""


def library(name: str, asked: str) -> Any:
    """Return a library, imported now for the method `asked`.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise
        raise MissingPackageError(f"{asked} needs the package {package!r}: pip install {package}") from error


def axes_for(ax: "Axes | None", width: float, height: float, asked: str) -> "Axes":
    """Return `ax`, or axes of a new figure of so many inches in the house style.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    if ax is not None:
        return ax
    pyplot = library("matplotlib.pyplot", asked)
    from fleetcount_analysis.figures.style import in_style  # Loads Matplotlib, which is optional.

    _, made = in_style(pyplot.subplots)(figsize=(width, height), layout="constrained")
    axes: Axes = made
    return axes


class Tabular:
    """Something with named columns of one length, in rows that belong together; a subclass says which."""

    __slots__ = ()

    def columns_of(self) -> Mapping[str, Sequence[Any]]:
        """Return the columns in their order."""
        raise NotImplementedError

    def to_pandas(self) -> "pd.DataFrame":
        """Return a pandas data frame.

        Raises:
            MissingPackageError: pandas is not installed.
        """
        frame: pd.DataFrame = library("pandas", "to_pandas()").DataFrame(dict(self.columns_of()))
        return frame

    def to_polars(self) -> "pl.DataFrame":  # pyright: ignore[reportUnknownParameterType]
        """Return a Polars data frame.

        Raises:
            MissingPackageError: Polars is not installed.
        """
        frame: pl.DataFrame = library("polars", "to_polars()").DataFrame(dict(self.columns_of()))
        return frame

    def to_arrow(self) -> Any:  # pyarrow has no annotations.
        """Return an Arrow table (`pyarrow.Table`).

        Raises:
            MissingPackageError: pyarrow is not installed.
        """
        return library("pyarrow", "to_arrow()").table(dict(self.columns_of()))


class Table(Tabular):
    """Columns that are known already, of a plan or a study."""

    __slots__ = ("_columns", "_title")

    def __init__(self, *, columns: Mapping[str, Sequence[Any]], title: str = "") -> None:
        self._columns = columns
        self._title = title

    def columns_of(self) -> Mapping[str, Sequence[Any]]:
        """Return the columns in their order."""
        return self._columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __repr__(self) -> str:
        return f"<Table {self._title!r} of {len(self)} rows: {', '.join(self._columns)}>"

    def _repr_html_(self) -> str:
        rows = list(zip(*(column[:_SHOWN] for column in self._columns.values()), strict=True))
        return html_table(self._title, tuple(self._columns), rows, hidden=len(self) - len(rows))


def html_table(
    title: str, head: Sequence[str], rows: Sequence[Row], sentences: Sequence[str] = (), *, hidden: int = 0
) -> str:
    """Return a table for a notebook: every text escaped, numbers to the right; `hidden` rows are named below it."""
    parts = [f"<p><b>{escape(title)}</b></p>"] if title else []
    parts.append(f"<table><thead><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr></thead><tbody>")
    parts += [f"<tr>{''.join(map(_cell, row, head))}</tr>" for row in rows]
    parts.append("</tbody></table>")
    if hidden > 0:
        parts.append(f"<p>and {hidden:,} more rows</p>")
    parts += [f"<p>{escape(sentence)}</p>" for sentence in sentences]
    return "".join(parts)


def _cell(value: object, column: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        rounding = _ROUNDINGS.get(column, "")
        text = f"{value:,}" if isinstance(value, int) else number_text(value, rounding=rounding)
        return f'<td style="text-align:right">{text}</td>'
    return f'<td style="text-align:left">{escape(str(value))}</td>'


# A privacy statement as an analyst sees it: plain sentences first, the table of adversaries when asked.
#
# It must not word a promise: `fleetcount_mechanisms.statement_words` does.


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What could be learnt of one device: `sentences` for people, `views` for each adversary in turn."""

    sentences: tuple[str, ...]
    views: tuple[AdversaryView, ...] = field(repr=False)

    @property
    def table(self) -> Table:
        """One row per adversary: its name, the change, epsilon (NaN: not finite), delta, and what it sees."""
        return Table(
            columns={
                "adversary": [view.audience for view in self.views],
                "change": [view.neighbours for view in self.views],
                "epsilon": [float("nan") if view.epsilon is None else float(view.epsilon) for view in self.views],
                "delta": [float(view.delta) for view in self.views],
                "sentence": [view.sentence for view in self.views],
            },
            title="statement",
        )

    def __str__(self) -> str:
        return " ".join(self.sentences)

    def _repr_html_(self) -> str:
        rows: list[Row] = [(view.audience, view.sentence) for view in self.views]
        return html_table("", ("adversary", "what it can learn of one device"), rows, self.sentences)


def statement_of(design: Design, views: Sequence[AdversaryView]) -> Statement:
    """Return the statement of views that a record of this design signs, or that the design promises."""
    return Statement(sentences=plain_sentences(design, views), views=tuple(views))

"""A privacy statement as an analyst sees it: plain sentences first, the table of adversaries when asked.

It must not word a promise: `fleetcount_mechanisms.statement_words` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.statement import AdversaryView
from fleetcount_mechanisms.statement_words import plain_sentences

from fleetcount.analyst.tables import Row, Table, html_table


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

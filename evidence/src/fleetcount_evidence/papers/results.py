"""The output of an experiment: tables, figures, claims, and its progress.

It must not compute: it writes its arguments into one directory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

import numpy as np
from fleetcount_analysis.csv_texts import csv_table
from fleetcount_analysis.figures import save_figure
from matplotlib.figure import Figure

from fleetcount_evidence.papers.catalogue import Claim, claims_json

Cell = str | int | float | Fraction | None
Step = Callable[[str, int, int], None]
PartT = TypeVar("PartT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The size of the experiments and their seed; the same settings give the same numbers, except for run times."""

    quick: bool = False
    seed: int = 1

    def generator(self, stream: int) -> np.random.Generator:
        """Return the generator of one experiment: for simulation only, never for a device's coins."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(stream,)))

    def either(self, quick: int, full: int) -> int:
        """Return the size for a quick run or for a full one."""
        return quick if self.quick else full


@dataclass(kw_only=True)
class Results:
    """Tables (CSV), figures (SVG and PNG) and claims of a run, written into `directory`."""

    directory: Path
    step: Step
    claims: list[Claim] = field(default_factory=list[Claim])

    def carried_out(self, paper: str, parts: Sequence[PartT]) -> Iterator[PartT]:
        """Yield the parts of a paper's experiments, one after the other, and say how many are done."""
        for done, part in enumerate(parts):
            self.step(paper, done, len(parts))
            yield part
        self.step(paper, len(parts), len(parts))

    def table(self, name: str, header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Write NAME.csv; numbers with 10 significant digits."""
        text = csv_table(header, (map(_text, row) for row in rows))
        (self.directory / f"{name}.csv").write_text(text, encoding="utf-8", newline="")

    def figure(self, name: str, figure: Figure) -> None:
        """Write NAME.svg and NAME.png."""
        save_figure(figure, self.directory / name)

    def write_claims(self, **settings: object) -> None:
        """Write claims.json."""
        (self.directory / "claims.json").write_text(claims_json(self.claims, **settings), encoding="utf-8")


def _text(cell: Cell) -> str:
    if isinstance(cell, float | Fraction):
        return f"{float(cell):.10g}"
    return "" if cell is None else str(cell)

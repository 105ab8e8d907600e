"""The numbered claims of the papers: what each says, what comes out here, and the verdict.

It must not hold a result: `ours` is computed by the experiment that states the claim. The catalogues (sampling.toml and
its sisters) hold what the papers say and why we differ; a verdict on a number is computed from the two numbers.
"""

import enum
import json
import math
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from fleetcount_analysis.errors import AnalysisError

__all__ = ["CATALOGUES", "Catalogue", "Claim", "ClaimError", "Reproduction", "claims_json"]

Value = str | float | int | bool | Sequence[float] | None
CATALOGUES: Final = ("sampling", "asymmetric", "geometric", "inferential")
_FOLDER: Final = Path(__file__).parent


class ClaimError(AnalysisError):
    """An experiment and its catalogue of claims do not fit together: a defect of this package."""


class Reproduction(enum.Enum):
    """What became of a claim."""

    REPRODUCED = "reproduced"
    CORRECTED = "corrected"
    NOT_REPRODUCIBLE = "not reproducible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim: where it stands, what the paper says, what was computed, and why the two differ if they do.

    Raises:
        ClaimError: a claim that is not reproduced without a reason.
    """

    identifier: str
    paper: str
    source: str
    statement: str
    paper_value: Value
    ours: Value
    verdict: Reproduction
    why: str = ""

    def __post_init__(self) -> None:
        if self.verdict is not Reproduction.REPRODUCED and not self.why:
            raise ClaimError(f"claim {self.identifier} is {self.verdict.value} and gives no reason")

    def as_json(self) -> dict[str, object]:
        """Return the claim as it stands in claims.json."""
        return {
            "claim": self.identifier,
            "experiment": self.paper,
            "source": self.source,
            "statement": self.statement,
            "paper": self.paper_value,
            "ours": _finite(self.ours),
            "verdict": self.verdict.value,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """What one paper claims, by identifier; the experiment states each claim once with what it computed."""

    paper: str
    title: str
    entries: Mapping[str, Mapping[str, Any]]
    stated: list[Claim] = field(default_factory=list[Claim])

    @staticmethod
    def load(paper: str) -> "Catalogue":
        """Return the catalogue of a paper, from its TOML file beside this module."""
        content = tomllib.loads((_FOLDER / f"{paper}.toml").read_text(encoding="utf-8"))
        return Catalogue(paper=paper, title=content["title"], entries=content["claims"])

    def number(self, identifier: str, ours: float | Fraction, *, paper: float | None = None, **numbers: object) -> None:
        """State a number: reproduced if it is within the entry's `within` of the paper's, else corrected.

        `paper` replaces the entry's number where the paper gives a formula; `numbers` fill the reason's placeholders.

        Raises:
            ClaimError: no such entry, or it was stated before.
        """
        entry = self._entry(identifier)
        expected = float(entry["paper"] if paper is None else paper)
        agrees = abs(float(ours) - expected) <= float(entry.get("within", 0)) + 1e-12 * abs(expected)
        verdict = Reproduction.REPRODUCED if agrees else Reproduction.CORRECTED
        self._state(identifier, entry, expected, float(ours), verdict, numbers)

    def fact(self, identifier: str, ours: Value, *, holds: bool, **numbers: object) -> None:
        """State a statement: reproduced if the computation says it holds, else corrected.

        Raises:
            ClaimError: as `number`.
        """
        entry = self._entry(identifier)
        verdict = Reproduction.REPRODUCED if holds else Reproduction.CORRECTED
        self._state(identifier, entry, entry["paper"], ours, verdict, numbers)

    def unavailable(self, identifier: str, ours: Value, **numbers: object) -> None:
        """State a claim that cannot be checked here; `ours` is what the stand-in gives.

        Raises:
            ClaimError: as `number`.
        """
        entry = self._entry(identifier)
        self._state(identifier, entry, entry["paper"], ours, Reproduction.NOT_REPRODUCIBLE, numbers)

    def postponed(self, identifier: str, ours: Value, why: str) -> None:
        """State a claim that this run did not try thoroughly enough to judge.

        Raises:
            ClaimError: as `number`.
        """
        entry = self._entry(identifier)
        self._state(identifier, {**entry, "why": why}, entry["paper"], ours, Reproduction.NOT_REPRODUCIBLE, {})

    def finished(self) -> list[Claim]:
        """Return all claims, in the catalogue's order.

        Raises:
            ClaimError: an entry was not stated.
        """
        found = {claim.identifier: claim for claim in self.stated}
        missing = [identifier for identifier in self.entries if identifier not in found]
        if missing:
            raise ClaimError(f"claims of {self.paper} not stated: {', '.join(missing)}")
        return [found[identifier] for identifier in self.entries]

    def _entry(self, identifier: str) -> Mapping[str, Any]:
        if identifier not in self.entries or any(claim.identifier == identifier for claim in self.stated):
            raise ClaimError(f"claim {identifier} is not in the catalogue of {self.paper}, or was stated before")
        return self.entries[identifier]

    def _state(
        self,
        identifier: str,
        entry: Mapping[str, Any],
        expected: Value,
        ours: Value,
        verdict: Reproduction,
        numbers: Mapping[str, object],
    ) -> None:
        claim = Claim(
            identifier=identifier,
            paper=self.paper,
            source=entry["source"],
            statement=entry["statement"],
            paper_value=expected,
            ours=ours,
            verdict=verdict,
            why=str(entry.get("why", "")).format_map(dict(numbers)),
        )
        self.stated.append(claim)


def claims_json(claims: Sequence[Claim], **settings: object) -> str:
    """Return claims.json: how many of each verdict, the run's settings, and every claim."""
    verdicts = Counter(claim.verdict.value for claim in claims)
    content = {
        "verdicts": {verdict.value: verdicts[verdict.value] for verdict in Reproduction},
        "settings": settings,
        "claims": [claim.as_json() for claim in claims],
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Value) -> Value:
    """JSON has no infinity: an unbounded number is a word."""
    if isinstance(value, float) and not math.isfinite(value):
        return "unbounded" if value > 0 else "none"
    return value

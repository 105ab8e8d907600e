"""The catalogues of the papers' numbered claims: the paper's statement, our result, and the verdict.

It must not contain a result: the experiment that states a claim computes `ours`. The catalogues (`claims.toml` beside
each experiment) contain the papers' statements, the data that each claim needs and ran on, and its tolerance; the
verdict follows from these.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fleetcount_evidence.papers.verdicts import (
    EXACT,
    ClaimError,
    Data,
    Difference,
    Numbers,
    Reproduction,
    Tolerance,
    Value,
    as_floats,
    as_plain,
    verdict_of,
)

CATALOGUES: Final = ("sampling", "asymmetric", "geometric", "inferential")
_FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim: its place in the paper, its statement, our result and its data, the verdict and its reason.

    Raises:
        ClaimError: a claim is corrected or not reproducible and has no reason, or contradicted and has no difference.
    """

    identifier: str
    paper: str
    source: str
    statement: str
    paper_value: Value
    ours: Value
    needs: Data
    ran_on: Data
    verdict: Reproduction
    tolerance: Tolerance | None = None
    difference: Difference | None = None
    why: str = ""

    def __post_init__(self) -> None:
        if self.verdict in {Reproduction.CORRECTED, Reproduction.NOT_REPRODUCIBLE} and not self.why:
            raise ClaimError(f"claim {self.identifier} is {self.verdict.value} and gives no reason")
        if self.verdict is Reproduction.CONTRADICTED and self.difference is None:
            raise ClaimError(f"claim {self.identifier} is {self.verdict.value} and does not say by how much")

    def as_json(self) -> dict[str, object]:
        """Return the claim's object in claims.json."""
        return {
            "claim": self.identifier,
            "experiment": self.paper,
            "source": self.source,
            "statement": self.statement,
            "needs": self.needs.value,
            "ran_on": self.ran_on.value,
            "paper": self.paper_value,
            "ours": as_plain(self.ours),
            "tolerance": None if self.tolerance is None else self.tolerance.as_json(),
            "verdict": self.verdict.value,
            "by": None if self.difference is None else self.difference.as_json(),
            "why": self.why,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """The claims of one paper, by identifier; the experiment states each claim once, with its result."""

    paper: str
    title: str
    entries: Mapping[str, Mapping[str, Any]]
    stated: list[Claim] = field(default_factory=list[Claim])

    @staticmethod
    def load(paper: str) -> "Catalogue":
        """Return the catalogue of a paper, from its TOML file beside the experiment."""
        content = tomllib.loads((_FOLDER / paper / "claims.toml").read_text(encoding="utf-8"))
        return Catalogue(paper=paper, title=content["title"], entries=content["claims"])

    def number(self, identifier: str, ours: Numbers, *, paper: float | None = None, **numbers: object) -> None:
        """State a claim about one number or several.

        The entry's tolerance decides; without a tolerance the numbers must be equal to the paper's. `paper` replaces
        the entry's number where the paper gives a formula; `numbers` fill the placeholders of the reason.

        Raises:
            ClaimError: there is no such entry, it was stated before, or its tolerance is malformed.
        """
        entry = self._entry(identifier)
        self._judge(identifier, ours, as_plain(as_floats(ours)), entry["paper"] if paper is None else paper, numbers)

    def measured(self, identifier: str, measured: Numbers, *, ours: Value, **numbers: object) -> None:
        """State a claim in words that a measured number decides; `ours` is the result to show.

        Raises:
            ClaimError: as `number`.
        """
        self._judge(identifier, measured, ours, self._entry(identifier)["paper"], numbers)

    def fact(self, identifier: str, ours: Value, *, holds: bool, **numbers: object) -> None:
        """State a claim in words; `holds` is the result of the computation.

        Raises:
            ClaimError: as `number`.
        """
        self._state(identifier, self._entry(identifier)["paper"], ours, holds, numbers)

    def undecided(self, identifier: str, ours: Value, **numbers: object) -> None:
        """State a claim that no computation here can decide; `why`, where given, replaces the entry's reason.

        Raises:
            ClaimError: as `number`.
        """
        self._state(identifier, self._entry(identifier)["paper"], ours, None, numbers)

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

    def _judge(
        self, identifier: str, measured: Numbers, ours: Value, paper: Value, numbers: Mapping[str, object]
    ) -> None:
        tolerance, found = Tolerance.of(identifier, self._entry(identifier)) or EXACT, as_floats(measured)
        targets = tolerance.targets(as_floats(paper) if tolerance.kind == "within" else (), len(found))
        agrees = tolerance.allows(found, targets)
        difference = None if agrees else Difference(measured=found, claimed=targets)
        self._state(identifier, paper, ours, agrees, numbers, tolerance, difference)

    def _state(
        self,
        identifier: str,
        expected: Value,
        ours: Value,
        agrees: bool | None,
        numbers: Mapping[str, object],
        tolerance: Tolerance | None = None,
        difference: Difference | None = None,
    ) -> None:
        entry = self.entries[identifier]
        needs, ran_on = Data(entry["needs"]), Data(entry["ran_on"])
        claim = Claim(
            identifier=identifier,
            paper=self.paper,
            source=entry["source"],
            statement=entry["statement"],
            paper_value=expected,
            ours=ours,
            needs=needs,
            ran_on=ran_on,
            verdict=verdict_of(needs, ran_on, agrees, arithmetic=entry.get("arithmetic", False)),
            tolerance=tolerance,
            difference=difference,
            why=str(numbers.get("why", entry.get("why", ""))).format_map(dict(numbers)),
        )
        self.stated.append(claim)


def claims_json(claims: Sequence[Claim], **settings: object) -> str:
    """Return the text of claims.json: the number of claims with each verdict, the run's settings, and every claim."""
    verdicts = Counter(claim.verdict for claim in claims)
    content = {
        "verdicts": {verdict.value: verdicts[verdict] for verdict in Reproduction},
        "settings": settings,
        "claims": [claim.as_json() for claim in claims],
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

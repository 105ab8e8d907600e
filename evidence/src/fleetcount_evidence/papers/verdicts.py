"""The verdict on a claim: from the data that it needs and ran on, and from its tolerance.

It must not depend on a single claim: it compares numbers with numbers.
"""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from fleetcount_analysis.errors import AnalysisError

Value = str | float | int | bool | Sequence[float] | None
Numbers = float | Fraction | Sequence[float | Fraction]
_ROUNDING: Final = 1e-12
"""Relative rounding error that is allowed in a float that must be equal to the paper's number."""


class ClaimError(AnalysisError):
    """An experiment and its catalogue of claims contradict each other: a defect of this package."""


class Reproduction(enum.Enum):
    """The verdict on a claim."""

    REPRODUCED = "reproduced"
    """Run on the claim's data, and within the tolerance."""
    HOLDS = "holds on a stand-in"
    """Within the tolerance, on other data than the paper's."""
    CONTRADICTED = "contradicted on a stand-in"
    """Outside the tolerance, on other data than the paper's; `Difference` gives the factor."""
    CORRECTED = "corrected"
    """Run on the claim's data, and outside the tolerance; the reason gives the right statement."""
    NOT_REPRODUCIBLE = "not reproducible"
    """No computation here could decide it."""
    ARITHMETIC = "check of arithmetic"
    """Both sides use the same formula, or the stand-in was made to fit: right, but no evidence for the paper."""


class Data(enum.Enum):
    """The data of a claim, or of our run of it; where the two differ, ours is a stand-in."""

    NONE = "no data"
    GOWALLA = "Gowalla, over a million check-ins"
    EXTRACT = "Gowalla, public extract"
    PATIENTS = "breast cancer, Ljubljana"
    PEOPLEFLOW = "Peopleflow, Tokyo"
    CITY = "made city"
    CENSUS = "CENSUS"
    ADULT = "Adult"
    UNKNOWN = "parameters not stated"
    ASSUMED = "parameters assumed"


def verdict_of(needs: Data, ran_on: Data, agrees: bool | None, *, arithmetic: bool = False) -> Reproduction:
    """Return the verdict on a claim from its data, the data of our run, and whether ours is within the tolerance.

    `agrees` is None where no computation could decide; `arithmetic` marks a claim whose agreement is no evidence.
    """
    if agrees is None:
        return Reproduction.NOT_REPRODUCIBLE
    if agrees and arithmetic:
        return Reproduction.ARITHMETIC
    if needs is ran_on:
        return Reproduction.REPRODUCED if agrees else Reproduction.CORRECTED
    return Reproduction.HOLDS if agrees else Reproduction.CONTRADICTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The criterion for ours: within a distance of the paper's numbers, or at least or at most a limit; and its reason.

    `limits` has one entry for all numbers, or one for each.
    """

    kind: str
    limits: tuple[float, ...]
    because: str

    @staticmethod
    def of(identifier: str, entry: Mapping[str, Any]) -> "Tolerance | None":
        """Return the tolerance of a catalogue's entry, or None for an entry without one.

        Raises:
            ClaimError: the entry has two limits, a limit without a reason, or a reason without a limit.
        """
        kinds = [kind for kind in ("within", "at_least", "at_most") if kind in entry]
        if len(kinds) > 1 or bool(kinds) is not bool(entry.get("because")):
            raise ClaimError(f"claim {identifier} has {len(kinds)} limits; allowed: 1 and its `because`, or neither")
        if not kinds:
            return None
        return Tolerance(kind=kinds[0], limits=as_floats(entry[kinds[0]]), because=entry["because"])

    def targets(self, paper: Sequence[float], count: int) -> tuple[float, ...]:
        """Return the number that each of `count` numbers is compared with: the paper's, or the limit itself."""
        wanted = paper if self.kind == "within" else self.limits
        return tuple(wanted) * (count if len(wanted) == 1 else 1)

    def allows(self, measured: Sequence[float], targets: Sequence[float]) -> bool:
        """Return whether every number is within the tolerance; not-a-number never is."""
        limits = self.limits * (len(measured) if len(self.limits) == 1 else 1)
        return all(self._allows(*each) for each in zip(measured, targets, limits, strict=True))

    def _allows(self, measured: float, target: float, limit: float) -> bool:
        if self.kind == "within":
            return abs(measured - target) <= limit + _ROUNDING * abs(target)
        return measured >= limit if self.kind == "at_least" else measured <= limit

    def as_json(self) -> dict[str, object]:
        """Return the tolerance's object in claims.json."""
        return {self.kind: as_plain(self.limits), "because": self.because}


EXACT: Final = Tolerance(kind="within", limits=(0.0,), because="exact")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference between our numbers and those they were compared with: both, and the factor between them."""

    measured: tuple[float, ...]
    claimed: tuple[float, ...]

    @property
    def factors(self) -> tuple[float, ...]:
        """Each measured number divided by the claimed one; infinite where the latter is 0."""
        return tuple(m / c if c else math.inf for m, c in zip(self.measured, self.claimed, strict=True))

    def as_json(self) -> dict[str, object]:
        """Return the difference's object in claims.json."""
        return {
            "measured": as_plain(self.measured),
            "claimed": as_plain(self.claimed),
            "factor": as_plain([float(f"{factor:.4g}") for factor in self.factors]),
        }


def as_floats(value: Any) -> tuple[float, ...]:
    """Return one number or several as floats."""
    return tuple(float(each) for each in value) if isinstance(value, Sequence) else (float(value),)


def as_plain(value: Value) -> Value:
    """Return a value for JSON, which has no infinity: "unbounded" for it, "none" for minus infinity or nan.

    A sequence of one entry becomes that entry.
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        plain: list[Any] = [as_plain(each) for each in value]
        return plain[0] if len(plain) == 1 else plain
    if isinstance(value, float) and not math.isfinite(value):
        return "unbounded" if value > 0 else "none"
    return value

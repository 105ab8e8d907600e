"""One-sided differential privacy and Blowfish as policies, to show why they are not enough for one-sided answers.

Comparison only ([ADP] sections II-A1 and III): no window releases anything under these definitions.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

from fleetcount_mechanisms.errors import MechanismError

RecordT = TypeVar("RecordT", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class OneSidedPolicy(Generic[RecordT]):
    """OSDP's relation: a sensitive record may become any record; a non-sensitive one is not protected at all.

    Source: [ADP] Def II.4, after Doudalis et al.
    """

    non_sensitive: frozenset[RecordT]

    def protects(self, record: RecordT, replacement: RecordT) -> bool:
        """Tell whether `record` is sensitive; any record may replace it."""
        del replacement
        return record not in self.non_sensitive


@dataclass(frozen=True, kw_only=True)
class BlowfishPolicy(Generic[RecordT]):
    """Blowfish's relation: the two records are joined by an edge of an undirected graph ([ADP] Def II.3, after Haney
    et al.)."""

    edges: frozenset[frozenset[RecordT]]

    def __post_init__(self) -> None:
        """Refuse an edge that does not join two different records."""
        if any(len(edge) != 2 for edge in self.edges):
            sizes = sorted({len(edge) for edge in self.edges})
            raise MechanismError(f"edges join {sizes} records; each must join exactly 2")

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[RecordT, RecordT]]) -> "BlowfishPolicy[RecordT]":
        """Build the graph from pairs of records, in either order."""
        return cls(edges=frozenset(frozenset(pair) for pair in pairs))

    def protects(self, record: RecordT, replacement: RecordT) -> bool:
        """Tell whether the two records are joined; the relation is symmetric by construction."""
        return frozenset((record, replacement)) in self.edges


def blowfish_widest_one_sided(domain: Sequence[RecordT], visited: Callable[[RecordT], bool]) -> BlowfishPolicy[RecordT]:
    """Return the largest policy graph that allows a one-sided answer to "how many visited": no edge crosses the visit.

    Source: [ADP] Prop III.2 (whose premise should read eps < ln(beta / alpha) / k).
    """
    return BlowfishPolicy.from_pairs((x, y) for x in domain for y in domain if x != y and visited(x) == visited(y))


def osdp_required_non_sensitive(domain: Sequence[RecordT], visited: Callable[[RecordT], bool]) -> frozenset[RecordT]:
    """Return the records OSDP has to call non-sensitive before "safe" can be one-sided: everyone who did not visit.

    Source: [ADP] Prop III.3, corrected. Eq 11 is printed for "c(x) = True"; the proof's step from a safe X to an
    unsafe X' replaces a NON-visitor, and the text after it (Risk of "not c and p" is infinite, N = {False}) says the
    same.
    """
    return frozenset(record for record in domain if not visited(record))


def osdp_revealing_law(
    policy: OneSidedPolicy[RecordT], keep: Fraction, domain: Sequence[RecordT]
) -> dict[RecordT, dict[RecordT | None, Fraction]]:
    """Return a law that satisfies OSDP and prints non-sensitive records whole: x with probability 1 - keep, else None.

    A sensitive record always gives None. `keep` is e^-eps in (0, 1]; the exact loss over OSDP's relation is 1/keep,
    yet the risk of every fact about a non-sensitive record is unbounded ([ADP] III-C2).
    """
    _require_ratio(keep)
    hidden: dict[RecordT | None, Fraction] = {None: Fraction(1)}
    return {
        record: {record: 1 - keep, None: keep} if record in policy.non_sensitive else dict(hidden) for record in domain
    }


def blowfish_revealing_law(
    domain: Sequence[RecordT], visited: Callable[[RecordT], bool]
) -> dict[RecordT, Mapping[bool, Fraction]]:
    """Return the law that prints the visit itself: no loss over `blowfish_widest_one_sided`, unbounded risk both ways.

    Source: [ADP] III-C1.
    """
    return {record: {visited(record): Fraction(1)} for record in domain}


def dp_epsilon_required(false_alarm: float, detection: float, steps: int) -> float:
    """Return the eps that eps-DP needs for a (q, alpha, beta)-one-sided answer: ln(beta / alpha) / k; infinite at
    alpha = 0.

    Source: [ADP] Eq 7. For alpha = 1e-4, beta = 1/2, k = 1 this is 8.517 (the paper prints 8.4).
    """
    _require_one_sided(false_alarm, detection, steps)
    return math.inf if false_alarm == 0 else max(0.0, math.log(detection / false_alarm) / steps)


def approximate_dp_delta_required(epsilon: float, false_alarm: float, detection: float, steps: int) -> float:
    """Return the delta that (eps, delta)-DP needs: (beta - alpha e^(k eps)) / sum over i < k of e^(i eps), at least 0.

    Source: [ADP] Eq 9. For k = 3, alpha = 0, beta = 1/2, eps = 1 this is 0.045 (the paper prints 0.12).
    """
    _require_one_sided(false_alarm, detection, steps)
    total = math.fsum(math.exp(epsilon * step) for step in range(steps))
    return max(0.0, (detection - false_alarm * math.exp(epsilon * steps)) / total)


def _require_one_sided(false_alarm: float, detection: float, steps: int) -> None:
    if not (0 <= false_alarm <= 1 and 0 < detection <= 1 and steps >= 1):
        raise MechanismError(
            f"alpha {false_alarm}, beta {detection}, steps {steps}: need alpha in [0, 1], beta in (0, 1] and steps >= 1"
        )


def _require_ratio(keep: Fraction) -> None:
    if not 0 < keep <= 1:
        raise MechanismError(f"e^-eps is {keep}; it must be in (0, 1]")

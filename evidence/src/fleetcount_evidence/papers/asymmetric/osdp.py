"""One-sided differential privacy and Blowfish as policies: they are not enough for one-sided answers.

For comparison only ([ADP] sections II-A1 and III): no window uses these definitions.
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
        """Return whether `record` is sensitive; any record may replace it."""
        del replacement
        return record not in self.non_sensitive


@dataclass(frozen=True, kw_only=True)
class BlowfishPolicy(Generic[RecordT]):
    """Blowfish's relation: an edge of an undirected graph joins the two records.

    Source: [ADP] Def II.3, after Haney et al.

    Raises:
        MechanismError: an edge does not join exactly two records.
    """

    edges: frozenset[frozenset[RecordT]]

    def __post_init__(self) -> None:
        """Refuse an edge that does not join two different records."""
        if any(len(edge) != 2 for edge in self.edges):
            sizes = sorted({len(edge) for edge in self.edges})
            raise MechanismError(f"edges join {sizes} records; each must join exactly 2")

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[RecordT, RecordT]]) -> "BlowfishPolicy[RecordT]":
        """Return the policy of a graph given as pairs of records, each in either order."""
        return cls(edges=frozenset(frozenset(pair) for pair in pairs))

    def protects(self, record: RecordT, replacement: RecordT) -> bool:
        """Return whether an edge joins the two records; the relation is symmetric."""
        return frozenset((record, replacement)) in self.edges


def blowfish_widest_one_sided(domain: Sequence[RecordT], visited: Callable[[RecordT], bool]) -> BlowfishPolicy[RecordT]:
    """Return the largest policy graph that allows a one-sided answer to "how many visited".

    An edge joins two records that both visited or both did not.

    Source: [ADP] Prop III.2 (whose premise should read eps < ln(beta / alpha) / k).
    """
    return BlowfishPolicy.from_pairs((x, y) for x in domain for y in domain if x != y and visited(x) == visited(y))


def osdp_required_non_sensitive(domain: Sequence[RecordT], visited: Callable[[RecordT], bool]) -> frozenset[RecordT]:
    """Return the records that OSDP must call non-sensitive for a one-sided answer "safe": all that did not visit.

    Source: [ADP] Prop III.3, corrected. The paper prints Eq 11 for "c(x) = True". But the proof's step from a safe X to
    an unsafe X' replaces a record that did NOT visit, and the text after it (the Risk of "not c and p" is infinite,
    N = {False}) agrees with that.
    """
    return frozenset(record for record in domain if not visited(record))


def osdp_revealing_law(
    policy: OneSidedPolicy[RecordT], keep: Fraction, domain: Sequence[RecordT]
) -> dict[RecordT, dict[RecordT | None, Fraction]]:
    """Return a law that satisfies OSDP and publishes a non-sensitive record x with probability 1 - keep, else None.

    A sensitive record always gives None. `keep` is e^-eps in (0, 1]. The exact loss over OSDP's relation is 1/keep,
    yet the risk of every predicate of a non-sensitive record is unbounded ([ADP] III-C2).

    Raises:
        MechanismError: keep is not in (0, 1].
    """
    if not 0 < keep <= 1:
        raise MechanismError(f"e^-eps is {keep}; it must be in (0, 1]")
    hidden: dict[RecordT | None, Fraction] = {None: Fraction(1)}
    return {
        record: {record: 1 - keep, None: keep} if record in policy.non_sensitive else dict(hidden) for record in domain
    }


def blowfish_revealing_law(
    domain: Sequence[RecordT], visited: Callable[[RecordT], bool]
) -> dict[RecordT, Mapping[bool, Fraction]]:
    """Return the law that publishes whether the record visited.

    Its loss over `blowfish_widest_one_sided` is 0; the risks of "visited" and of "did not visit" are unbounded.
    Source: [ADP] III-C1.
    """
    return {record: {visited(record): Fraction(1)} for record in domain}


def dp_epsilon_required(false_alarm: float, detection: float, steps: int) -> float:
    """Return the least eps with which eps-DP allows a (q, alpha, beta)-one-sided answer, at least 0.

    It is ln(beta / alpha) / k with alpha = `false_alarm`, beta = `detection`, k = `steps`; infinite at alpha = 0.
    Source: [ADP] Eq 7. For alpha = 1e-4, beta = 1/2, k = 1 this is 8.517 (the paper prints 8.4).

    Raises:
        MechanismError: alpha is not in [0, 1], beta not in (0, 1], or k below 1.
    """
    _require_one_sided(false_alarm, detection, steps)
    return math.inf if false_alarm == 0 else max(0.0, math.log(detection / false_alarm) / steps)


def approximate_dp_delta_required(epsilon: float, false_alarm: float, detection: float, steps: int) -> float:
    """Return the least delta with which (eps, delta)-DP allows such an answer, at least 0.

    It is (beta - alpha e^(k eps)) / sum over i < k of e^(i eps). Source: [ADP] Eq 9. For k = 3, alpha = 0, beta = 1/2,
    eps = 1 this is 0.045 (the paper prints 0.12).

    Raises:
        MechanismError: alpha is not in [0, 1], beta not in (0, 1], or k below 1.
    """
    _require_one_sided(false_alarm, detection, steps)
    total = math.fsum(math.exp(epsilon * step) for step in range(steps))
    return max(0.0, (detection - false_alarm * math.exp(epsilon * steps)) / total)


def _require_one_sided(false_alarm: float, detection: float, steps: int) -> None:
    if not (0 <= false_alarm <= 1 and 0 < detection <= 1 and steps >= 1):
        raise MechanismError(
            f"alpha {false_alarm}, beta {detection}, steps {steps}: need alpha in [0, 1], beta in (0, 1] and steps >= 1"
        )

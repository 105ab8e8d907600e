"""Policies of asymmetric differential privacy: the changes of one record that a release has to hide.

A policy is only a relation between records; this module draws no noise. It computes sensitivity, monotonicity and risk
by enumerating a small finite domain.
"""

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Generic, Protocol, TypeVar

from fleetcount_mechanisms.errors import MechanismError

# The generic value objects of this package have no slots: in Python 3.11 a frozen generic dataclass with slots raises
# TypeError when it is built through its subscripted name, as in AttributePolicy[Trip](...).
LARGEST_ENUMERATION = 1_000_000
LARGEST_PREDICATE_SEARCH = 16

RecordT = TypeVar("RecordT", bound=Hashable)
RecordT_contra = TypeVar("RecordT_contra", bound=Hashable, contravariant=True)
OutputT = TypeVar("OutputT", bound=Hashable)


class Policy(Protocol[RecordT_contra]):
    """A relation x ~> x' between records.

    Where it holds, a mechanism M must keep Pr[M(.. x ..) = z] <= e^eps Pr[M(.. x' ..) = z] for every output z.
    """

    def protects(self, record: RecordT_contra, replacement: RecordT_contra) -> bool:
        """Return whether record ~> replacement: a change of `record` to `replacement` must be hidden."""
        ...


@dataclass(frozen=True, slots=True)
class EverythingProtected:
    """The relation of ordinary, bounded differential privacy: any record may become any other ([ADP] Def II.1)."""

    def protects(self, record: Hashable, replacement: Hashable) -> bool:
        """Return True."""
        del record, replacement
        return True


@dataclass(frozen=True, kw_only=True)
class AttributePolicy(Generic[RecordT]):
    """One Boolean policy p, "what may leak": x ~> x' iff p(x) implies p(x').

    Source: [ADP] Def IV.1 with its misprint corrected. The paper prints "(p(x) -> p(x')) = False"; its proofs, its text
    (Prop IV.3) and its mechanisms all need "= True".
    """

    may_leak: Callable[[RecordT], bool]

    def protects(self, record: RecordT, replacement: RecordT) -> bool:
        """Return whether p(record) implies p(replacement)."""
        return not self.may_leak(record) or self.may_leak(replacement)


@dataclass(frozen=True, kw_only=True)
class VectorPolicy(Generic[RecordT]):
    """Several policies together: x ~> x' iff p_i(x) implies p_i(x') for every i.

    This is the policy to use for several places. With p_i = "did not visit i" the replacement x' visits a subset of the
    places of x, so every count is monotonically decreasing along the relation. A device that visited A looks like one
    that visited no place, but not like one that visited B; and the policy does not hide that a place was not visited.

    Raises:
        MechanismError: `may_leak` is empty; the policy would protect every change.
    """

    may_leak: tuple[Callable[[RecordT], bool], ...]

    def __post_init__(self) -> None:
        """Refuse an empty vector."""
        _require_some(self.may_leak, "a vector policy")

    def protects(self, record: RecordT, replacement: RecordT) -> bool:
        """Return whether p_i(record) implies p_i(replacement) for every i."""
        return all(not leaks(record) or leaks(replacement) for leaks in self.may_leak)


@dataclass(frozen=True, kw_only=True)
class OrPolicy(Generic[RecordT]):
    """Counter-example, for tests and documentation only: the Boolean policy p = p_1 or ... or p_d of [ADP] VI-A3.

    The "sum of policies" of [ADP] Theorem VIII.6, read as a Boolean sum, is this policy too. It fails twice. Counts are
    not monotone along its relation (a record of A only may change to one of B only), so one-sided noise does not
    satisfy it. And its relation is not the intersection of the parts' relations, which a composition satisfies.

    Raises:
        MechanismError: `may_leak` is empty.
    """

    may_leak: tuple[Callable[[RecordT], bool], ...]

    def __post_init__(self) -> None:
        """Refuse an empty disjunction."""
        _require_some(self.may_leak, "an OR policy")

    def protects(self, record: RecordT, replacement: RecordT) -> bool:
        """Return whether "p_i(record) for some i" implies "p_i(replacement) for some i"."""
        return not any(leaks(record) for leaks in self.may_leak) or any(leaks(replacement) for leaks in self.may_leak)


@dataclass(frozen=True, kw_only=True)
class Intersection(Generic[RecordT]):
    """The relation that a composition of mechanisms satisfies: it contains the changes that every part protects.

    Source: the correct form of [ADP] Theorem VIII.6; the eps of the parts add up over this relation.

    Raises:
        MechanismError: `parts` is empty.
    """

    parts: tuple[Policy[RecordT], ...]

    def __post_init__(self) -> None:
        """Refuse an empty intersection."""
        _require_some(self.parts, "an intersection of policies")

    def protects(self, record: RecordT, replacement: RecordT) -> bool:
        """Return whether every part protects the change."""
        return all(part.protects(record, replacement) for part in self.parts)


def place_policy(place: Hashable) -> AttributePolicy[frozenset[Hashable]]:
    """Return the policy of one place over records that are sets of visited places: "did not visit `place`" may leak."""
    return AttributePolicy(may_leak=_not_visited(place))


def vector_place_policy(places: Sequence[Hashable]) -> VectorPolicy[frozenset[Hashable]]:
    """Return the vector policy of several places: only "did not visit it" may leak, for each of them."""
    return VectorPolicy(may_leak=tuple(_not_visited(place) for place in places))


def _not_visited(place: Hashable) -> Callable[[frozenset[Hashable]], bool]:
    def not_visited(record: frozenset[Hashable]) -> bool:
        return place not in record

    return not_visited


def databases(domain: Sequence[RecordT], size: int) -> Iterator[tuple[RecordT, ...]]:
    """Yield every database of `size` records over a finite domain.

    Raises:
        MechanismError: there are more than a million databases, the size is below 1, or the domain is empty.
    """
    if size < 1 or not domain or len(domain) ** size > LARGEST_ENUMERATION:
        raise MechanismError(
            f"cannot enumerate {len(domain)} records ** size {size}: "
            f"size must be >= 1 and the databases at most {LARGEST_ENUMERATION}"
        )
    return itertools.product(domain, repeat=size)


def neighbours(
    policy: Policy[RecordT], domain: Sequence[RecordT], size: int
) -> Iterator[tuple[tuple[RecordT, ...], tuple[RecordT, ...]]]:
    """Yield every ordered pair X ~p X' of databases of `size` records over the domain."""
    for database in databases(domain, size):
        for other in _steps(policy, domain, database):
            yield database, other


def _steps(
    policy: Policy[RecordT], domain: Sequence[RecordT], database: tuple[RecordT, ...]
) -> Iterator[tuple[RecordT, ...]]:
    for position, record in enumerate(database):
        for replacement in domain:
            if replacement != record and policy.protects(record, replacement):
                yield (*database[:position], replacement, *database[position + 1 :])


class Monotonicity(Enum):
    """The direction in which one coordinate of a query changes along X ~p X' ([ADP] Def V.2)."""

    CONSTANT = "constant"
    DECREASING = "decreasing"
    INCREASING = "increasing"
    NEITHER = "neither"


def sensitivity(
    query: Callable[[tuple[RecordT, ...]], Sequence[int]], policy: Policy[RecordT], domain: Sequence[RecordT], size: int
) -> int:
    """Return the p-sensitivity max over X ~p X' of |f(X') - f(X)|_1, found by enumeration ([ADP] Def V.1)."""
    distances = (
        sum(abs(b - a) for a, b in zip(query(database), query(other), strict=True))
        for database, other in neighbours(policy, domain, size)
    )
    return max(distances, default=0)


def monotonicity(
    query: Callable[[tuple[RecordT, ...]], Sequence[int]], policy: Policy[RecordT], domain: Sequence[RecordT], size: int
) -> tuple[Monotonicity, ...]:
    """Return the direction of each coordinate of the query along X ~p X', found by enumeration ([ADP] Def V.2)."""
    width = len(query(next(databases(domain, size))))
    rises, falls = [False] * width, [False] * width
    for database, other in neighbours(policy, domain, size):
        for cell, (before, after) in enumerate(zip(query(database), query(other), strict=True)):
            rises[cell] = rises[cell] or after > before
            falls[cell] = falls[cell] or after < before
    return tuple(_movement(up, down) for up, down in zip(rises, falls, strict=True))


def _movement(rises: bool, falls: bool) -> Monotonicity:
    if rises and falls:
        return Monotonicity.NEITHER
    if rises:
        return Monotonicity.INCREASING
    return Monotonicity.DECREASING if falls else Monotonicity.CONSTANT


def find_boolean_policy(policy: Policy[RecordT], domain: Sequence[RecordT]) -> frozenset[RecordT] | None:
    """Return the records that satisfy a Boolean p whose relation equals the policy's, or None if there is no such p.

    All 2^|domain| predicates are tried, so this proves that an intersection of two policies, the "sum of policies" of
    [ADP] Theorem VIII.6, is in general not a Boolean policy.

    Raises:
        MechanismError: the domain has more than 16 records.
    """
    if len(domain) > LARGEST_PREDICATE_SEARCH:
        raise MechanismError(f"domain has {len(domain)} records, allowed: at most {LARGEST_PREDICATE_SEARCH}")
    pairs = [(x, y, policy.protects(x, y)) for x, y in itertools.permutations(domain, 2)]
    for members in itertools.chain.from_iterable(itertools.combinations(domain, r) for r in range(len(domain) + 1)):
        holds = frozenset(members)
        if all((x not in holds or y in holds) == protected for x, y, protected in pairs):
            return holds
    return None


def exact_loss_ratio(
    law: Callable[[tuple[RecordT, ...]], Mapping[OutputT, Fraction]],
    policy: Policy[RecordT],
    domain: Sequence[RecordT],
    size: int,
) -> Fraction | None:
    """Return e^eps, the largest Pr[M(X) = z] / Pr[M(X') = z] over all X ~p X' and z, exactly; None if unbounded.

    Source: [ADP] Def IV.2. An output that is possible under X and impossible under X' makes the ratio unbounded.
    """
    laws = {database: law(database) for database in databases(domain, size)}
    largest = Fraction(0)
    for database, other in neighbours(policy, domain, size):
        ratio = _largest_ratio(laws[database], laws[other])
        if ratio is None:
            return None
        largest = max(largest, ratio)
    return largest


def _largest_ratio(law: Mapping[OutputT, Fraction], other: Mapping[OutputT, Fraction]) -> Fraction | None:
    largest = Fraction(0)
    for output, probability in law.items():
        against = other.get(output, Fraction(0))
        if probability > 0 and against == 0:
            return None
        if probability > 0:
            largest = max(largest, probability / against)
    return largest


def worst_case_risk(
    law: Mapping[RecordT, Mapping[OutputT, Fraction]], secret: Callable[[RecordT], bool]
) -> Fraction | None:
    """Return the supremum of the risk over all priors, or None if it is unbounded.

    The risk is a ratio of odds, and so of two mixtures: the worst prior is on two records only, one for which `secret`
    holds and one for which it does not.
    """
    inside, outside = [x for x in law if secret(x)], [x for x in law if not secret(x)]
    largest = Fraction(0)
    for record, replacement in itertools.product(inside, outside):
        ratio = _largest_ratio(law[record], law[replacement])
        if ratio is None:
            return None
        largest = max(largest, ratio)
    return largest


def _require_some(parts: Sequence[object], what: str) -> None:
    if not parts:
        raise MechanismError(f"{what} has 0 parts; it needs at least 1")

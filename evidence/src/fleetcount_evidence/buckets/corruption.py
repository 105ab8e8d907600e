"""The gain of an adversary that excludes values from a bucket, and fake values as a defence ([INF, section 6]).

For buckets whose values are all distinct (l-diversity).
"""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from fleetcount_analysis.errors import RangeError, ShapeError
from fleetcount_mechanisms.randomness import RandomSource, uniform_below

from fleetcount_evidence.buckets.setting import UnsatisfiableError


def exclusion_certainty(real: int, fake: int, excluded: int) -> Fraction:
    """Return (s - r)/(s - r + f): the probability that a value of a bucket that is not excluded is a real one.

    `real` is s, the number of the bucket's records; `fake` is f, of its fake values; `excluded` is r, of the records
    whose values the adversary already knows (corruption) or can rule out (negative association), 0 <= r < s.

    Raises:
        RangeError: s < 1, f < 0, or r outside 0..s-1.
    """
    if real < 1:
        raise RangeError("records", real, "at least 1")
    if fake < 0:
        raise RangeError("fake values", fake, "at least 0")
    if not 0 <= excluded < real:
        raise RangeError("excluded records", excluded, f"0 to {real - 1}")
    return Fraction(real - excluded, real - excluded + fake)


def negative_associations(
    attribute: Sequence[str], sensitive: Sequence[str], smallest_support: int
) -> set[tuple[str, str]]:
    """Return the pairs (attribute value, sensitive value) that never occur together although both are frequent.

    Both must occur at least `smallest_support` times. An adversary that learns such a pair excludes the sensitive value
    for a person with the attribute value.

    Raises:
        ShapeError: the columns differ in length.
        RangeError: the support is below 1.
    """
    if len(attribute) != len(sensitive):
        raise ShapeError(f"the attribute has {len(attribute)} records and the sensitive column {len(sensitive)}")
    if smallest_support < 1:
        raise RangeError("smallest support", smallest_support, "at least 1")
    seen = set(zip(attribute, sensitive, strict=True))
    left = [value for value, count in Counter(attribute).items() if count >= smallest_support]
    right = [value for value, count in Counter(sensitive).items() if count >= smallest_support]
    return {(a, s) for a in left for s in right if (a, s) not in seen}


def choose_fakes(bucket: Sequence[str], domain: Sequence[str], number: int, source: RandomSource) -> list[str]:
    """Return `number` fake values for a bucket: from the domain, distinct, not in the bucket, drawn uniformly.

    Raises:
        UnsatisfiableError: the domain has too few values left.
    """
    taken = set(bucket)
    free = [value for value in dict.fromkeys(domain) if value not in taken]
    if len(free) < number:
        raise UnsatisfiableError(f"the bucket needs {number} fake values and only {len(free)} of the domain are usable")
    return [free.pop(uniform_below(source, len(free))) for _ in range(number)]

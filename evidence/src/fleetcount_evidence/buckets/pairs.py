"""The list of all ways to put |T| records into full buckets of two given sizes, indexed without storing it.

Thresholds play no part: a pair is feasible when its buckets contain exactly |T| records ([INF, section 5.1.1]).
"""

from dataclasses import dataclass
from math import gcd

from fleetcount_analysis.errors import RangeError


@dataclass(frozen=True, slots=True, kw_only=True)
class PairList:
    """All (b_1, b_2) with b_1 S_1 + b_2 S_2 = |T|, b_1 descending, so that the loss ascends ([INF, Lemma 5.21, 5.24]).

    Pair i is (`first_small` - i `step_small`, `first_large` + i `step_large`), 0 <= i < `length`.
    """

    small: int
    large: int
    first_small: int
    first_large: int
    step_small: int
    step_large: int

    @classmethod
    def of(cls, records: int, small: int, large: int) -> "PairList | None":
        """Return the list for sizes `small` < `large`, or None when it is empty.

        With g = gcd(S_1, S_2) dividing |T|, b_2 of the first pair is (|T|/g) (S_2/g)^-1 mod (S_1/g).

        Raises:
            RangeError: not 1 <= small < large, or no record.
        """
        if not 1 <= small < large:
            raise RangeError("sizes", (small, large), "1 <= small < large")
        if records < 1:
            raise RangeError("number of records", records, "at least 1")
        common = gcd(small, large)
        if records % common:
            return None
        modulus = small // common
        first_large = records // common * pow(large // common, -1, modulus) % modulus
        first_small, rest = divmod(records - first_large * large, small)
        if rest or first_small < 0:
            return None
        return cls(
            small=small,
            large=large,
            first_small=first_small,
            first_large=first_large,
            step_small=large // common,
            step_large=modulus,
        )

    @property
    def length(self) -> int:
        """The number of pairs ([INF, Equation 9])."""
        return self.first_small // self.step_small + 1

    @property
    def first_loss(self) -> int:
        """The loss of the first pair, the smallest of the list."""
        return self.first_small * (self.small - 1) ** 2 + self.first_large * (self.large - 1) ** 2

    @property
    def loss_step(self) -> int:
        """The growth of the loss from one pair to the next; always positive."""
        return self.step_large * (self.large - 1) ** 2 - self.step_small * (self.small - 1) ** 2

    def pair(self, index: int) -> tuple[int, int]:
        """Return (b_1, b_2) of pair `index`, 0 to length - 1."""
        return self.first_small - index * self.step_small, self.first_large + index * self.step_large

    def loss(self, index: int) -> int:
        """Return the loss of pair `index`."""
        return self.first_loss + index * self.loss_step

    def below(self, loss: int | None) -> int:
        """Return the number of pairs with a loss below `loss`, which come first; all for None.

        Source: [INF, Equation 11, Lemma 5.25].
        """
        if loss is None:
            return self.length
        return max(0, min(self.length, (loss - 1 - self.first_loss) // self.loss_step + 1))

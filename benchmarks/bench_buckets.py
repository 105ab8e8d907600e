"""TwoSizeBucketing with full pruning against loss pruning and none, 500,000 records, 50 values, one run."""

import time
from fractions import Fraction

from fleetcount_analysis.buckets import Pruning, SensitiveValues, linear_thresholds, two_size_bucketing

RECORDS, VALUES, THETA = 500_000, 50, 8


def zipf_counts(records: int, values: int) -> tuple[int, ...]:
    """Return counts proportional to 1/rank that sum to `records`."""
    weights = [Fraction(1, rank) for rank in range(1, values + 1)]
    counts = [int(records * weight / sum(weights)) for weight in weights]
    counts[0] += records - sum(counts)
    return tuple(counts)


def main() -> None:
    """Print seconds for each pruning and the ratio to full pruning."""
    counts = zipf_counts(RECORDS, VALUES)
    values = SensitiveValues(counts=counts, thresholds=linear_thresholds(counts, Fraction(THETA)))
    seconds: dict[Pruning, float] = {}
    for pruning in (Pruning.FULL, Pruning.LOSS, Pruning.NONE):
        start = time.perf_counter()
        result = two_size_bucketing(values, pruning=pruning)
        seconds[pruning] = time.perf_counter() - start
        ratio = seconds[pruning] / seconds[Pruning.FULL]
        print(
            f"two-size bucketing, {RECORDS} records, {VALUES} values, pruning {pruning.value:>4}: "
            f"{seconds[pruning]:.4f} s, {ratio:.0f} times full pruning (loss {result.loss})"
        )


if __name__ == "__main__":
    main()

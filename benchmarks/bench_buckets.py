"""TwoSizeBucketing with full pruning against loss pruning and none: many records, few values. Decides nothing."""

import time
from fractions import Fraction

from fleetcount_evidence.buckets.setting import SensitiveValues, linear_thresholds
from fleetcount_evidence.buckets.two_size import Pruning, two_size_bucketing
from rows import Row, quick, report, smoke

RECORDS = 5_000 if smoke() else 20_000 if quick() else 500_000
VALUES, THETA = 50, 8


def zipf_counts(records: int, values: int) -> tuple[int, ...]:
    """Return counts proportional to 1/rank that sum to `records`."""
    weights = [Fraction(1, rank) for rank in range(1, values + 1)]
    counts = [int(records * weight / sum(weights)) for weight in weights]
    counts[0] += records - sum(counts)
    return tuple(counts)


def seconds_and_loss(values: SensitiveValues, pruning: Pruning) -> tuple[float, object]:
    """Return the time of one run, and the loss of what it found."""
    start = time.perf_counter()
    result = two_size_bucketing(values, pruning=pruning)
    return time.perf_counter() - start, result.loss


def main() -> None:
    """Report the seconds of full pruning beside the others'; all must find the same loss."""
    counts = zipf_counts(RECORDS, VALUES)
    values = SensitiveValues(counts=counts, thresholds=linear_thresholds(counts, Fraction(THETA)))
    ours, best = seconds_and_loss(values, Pruning.FULL)
    for pruning in (Pruning.LOSS, Pruning.NONE):
        took, loss = seconds_and_loss(values, pruning)
        if loss != best:
            raise SystemExit(f"pruning {pruning.value} finds the loss {loss}, full pruning {best}")
        report(
            Row(
                path=f"two-size bucketing, {RECORDS:,} records, {VALUES} values",
                ours=ours,
                unit="s",
                peer=f"the same, pruning {pruning.value}",
                peer_value=took,
                ratio=took / ours,
                note="one run each",
            )
        )


if __name__ == "__main__":
    main()

"""The one rule by which the ends of a count give its side of a threshold."""

import pytest
from fleetcount_mechanisms.answers import Side, side_of


@pytest.mark.parametrize(
    ("low", "high", "side"),
    [(0, 3, Side.SAFE), (3, 4, Side.UNKNOWN), (-2, 9, Side.UNKNOWN), (4, 4, Side.DANGER), (4, 9, Side.DANGER)],
)
def test_safe_is_at_most_the_threshold_and_danger_above_it(low: int, high: int, side: Side) -> None:
    assert side_of(low, high, 3) is side

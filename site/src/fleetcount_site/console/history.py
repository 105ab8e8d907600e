"""What an aggregator's metrics have said since the console began: gauges now, and how far counters have moved.

Keeps only what is named here: a metric that should not be shown is not even remembered.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

KEPT_S: Final = 3600.0
"""How far back a counter is remembered, in seconds: the longest window of an alert."""
_STEP_S: Final = 15.0
_MOST_QUESTIONS: Final = 2_000

Labels = tuple[tuple[str, str], ...]
"""Label names with their values, in the order of names."""


class Sample(NamedTuple):
    """One value of a metric, and its labels."""

    labels: Labels
    value: float


def samples(page: bytes, names: frozenset[str]) -> Mapping[str, Sequence[Sample]]:
    """Return the samples of the named metrics on a page in Prometheus' text format.

    Raises:
        ValueError: the page is in no such format, or has more than 2,000 of them.
    """
    found: dict[str, list[Sample]] = {name: [] for name in names}
    kept = 0
    for family in text_string_to_metric_families(page.decode("utf-8")):
        for sample in family.samples:
            if sample.name in found and math.isfinite(sample.value):
                kept += 1
                if kept > _MOST_QUESTIONS:
                    raise ValueError(f"more than {_MOST_QUESTIONS} values")
                found[sample.name].append(Sample(tuple(sorted(sample.labels.items())), float(sample.value)))
    return found


class History:
    """The newest samples, and counters of the last hour in steps of 15 s at the most."""

    def __init__(self) -> None:
        self.now: Mapping[str, Sequence[Sample]] = {}
        self._steps: deque[tuple[float, Mapping[str, Mapping[Labels, float]]]] = deque()

    def add(self, moment: float, found: Mapping[str, Sequence[Sample]]) -> None:
        """Take what was seen at a moment, in seconds of a clock that never goes back."""
        self.now = found
        told = {name: dict(rows) for name, rows in found.items()}
        # The newest step moves until it is a step away from the one before it.
        if len(self._steps) > 1 and moment - self._steps[-2][0] < _STEP_S:
            self._steps.pop()
        self._steps.append((moment, told))
        while moment - self._steps[0][0] > KEPT_S:
            self._steps.popleft()

    def increase(self, name: str, over_s: float) -> Mapping[Labels, float]:
        """Return by how much every counter of a name has grown in the last seconds, 0 before anything was seen.

        One that was not there in an earlier sample was 0 then: counters with labels appear when they first count. One
        that has become smaller was begun anew.
        """
        if not self._steps:
            return {}
        since = self._steps[-1][0] - over_s
        rows = [told.get(name, {}) for moment, told in self._steps if moment >= since]
        grown = dict.fromkeys(rows[-1], 0.0)
        for before, after in pairwise(rows):
            for labels, value in after.items():
                old = before.get(labels, 0.0)
                grown[labels] = grown.get(labels, 0.0) + (value - old if value >= old else value)
        return grown

    def seen_s(self) -> float:
        """Return for how many seconds there are samples."""
        return self._steps[-1][0] - self._steps[0][0] if self._steps else 0.0

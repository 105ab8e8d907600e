"""What a server watches of itself and of what it depends on, for readiness and metrics.

Whoever asks something of another notes how it went. Nothing here asks anybody, and names are from closed lists: no
device, no session, no report.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from fleetcount_protocol.channel.certificates import load_authorities
from fleetcount_protocol.errors import UsageError
from prometheus_client.core import GaugeMetricFamily

_DAY_S: Final = 86_400


class Condition(NamedTuple):
    """How something is: what is wrong, "" if nothing is; since when; when that was last seen (monotonic seconds)."""

    problem: str
    since: float
    seen: float


class Conditions:
    """How everything is that one process depends on, by what it is and, where there are several, by name."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._found: dict[str, dict[str, Condition]] = {}

    def note(self, what: str, problem: str = "", *, name: str = "") -> None:
        """Note how something is now; `problem` is told to the operator, who may read no secret there."""
        now, before = self._monotonic(), self.of(what, name)
        same = before is not None and bool(before.problem) == bool(problem)
        since = before.since if before is not None and same else now
        self._found.setdefault(what, {})[name] = Condition(problem, since, now)

    def forget(self, what: str, *, name: str = "") -> None:
        """Forget how something is that this process has nothing to do with any more."""
        self._found.get(what, {}).pop(name, None)

    def of(self, what: str, name: str = "") -> Condition | None:
        """Return how something is, None if nobody has noticed."""
        return self.all_of(what).get(name)

    def all_of(self, what: str) -> Mapping[str, Condition]:
        """Return all conditions of one kind by name."""
        return self._found.get(what, {})

    def is_well(self, what: str, name: str = "") -> bool:
        """Return whether something was well when it was last asked."""
        found = self.of(what, name)
        return found is not None and not found.problem

    def is_fresh(self, what: str, name: str, within_s: float) -> bool:
        """Return whether something was well within the last seconds: then nobody need ask."""
        found = self.of(what, name)
        return found is not None and not found.problem and self._monotonic() - found.seen < within_s

    def complaint(self, what: str, name: str = "") -> str:
        """Return what is wrong and since when; "" if it is well."""
        found = self.of(what, name)
        if found is None:
            return "not known yet"
        return f"{found.problem} since {duration(self._monotonic() - found.since)}" if found.problem else ""


def duration(seconds: float) -> str:
    """Return a length of time in its largest whole unit, two of them at least: "40 s", "90 min", "3 days"."""
    for unit, size in (("days", _DAY_S), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


class _Ends(Mapping[str, float]):
    """When certificates end, read again where a file has changed; one that cannot be read keeps its end."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files
        self._known = {name: (path.stat().st_mtime_ns, _first_end(path)) for name, path in files.items()}

    def __getitem__(self, name: str) -> float:
        path, known = self._files[name], self._known[name]
        with suppress(OSError, UsageError):
            changed = path.stat().st_mtime_ns
            if changed != known[0]:
                known = self._known[name] = changed, _first_end(path)
        return known[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _first_end(path: Path) -> float:
    return min(one.not_valid_after_utc.timestamp() for one in load_authorities(path))


def certificate_ends(files: Mapping[str, Path]) -> Mapping[str, float]:
    """Return when the first certificate of each file ends now, Unix seconds, by the same names.

    Raises:
        UsageError, OSError: at the start, a file cannot be read or holds no certificate.
    """
    return _Ends(files)


def days_left(ends: Mapping[str, float], now: float) -> dict[str, float]:
    """Return how many days each certificate has left, below 0 for one that has ended."""
    return {name: (end - now) / _DAY_S for name, end in ends.items()}


def ended(ends: Mapping[str, float], now: float) -> str:
    """Return which certificates have ended, "" if none has."""
    found = [name for name, end in ends.items() if now >= end]
    return f"ended: {', '.join(found)}" if found else ""


def gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """Return a gauge with one label for a collector; with label "" one that has a single value, under the name ""."""
    if not label:
        return GaugeMetricFamily(name, text, value=float(values[""]))
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], float(value))
    return family

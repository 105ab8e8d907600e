"""The health of a server and of its dependencies, for readiness and metrics.

Code that calls a dependency notes the result here. Nothing here makes a call, and names are from closed lists: no
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

from fleetcount_transport.logs import log

_DAY_S: Final = 86_400


class Condition(NamedTuple):
    """The health of a dependency: its problem ("": healthy), since when, and when last observed (monotonic seconds)."""

    problem: str
    since: float
    seen: float


class Conditions:
    """The health of all dependencies of one process, by kind and, where there are several of a kind, by name."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._found: dict[str, dict[str, Condition]] = {}

    def note(self, what: str, problem: str = "", *, name: str = "") -> None:
        """Note the present health; the operator reads `problem`, which must not contain a secret."""
        now, before = self._monotonic(), self.of(what, name)
        same = before is not None and bool(before.problem) == bool(problem)
        since = before.since if before is not None and same else now
        self._found.setdefault(what, {})[name] = Condition(problem, since, now)

    def forget(self, what: str, *, name: str = "") -> None:
        """Forget a dependency that this process does not use any more."""
        self._found.get(what, {}).pop(name, None)

    def of(self, what: str, name: str = "") -> Condition | None:
        """Return the health of a dependency, None before it was first noted."""
        return self.all_of(what).get(name)

    def all_of(self, what: str) -> Mapping[str, Condition]:
        """Return all conditions of one kind by name."""
        return self._found.get(what, {})

    def is_well(self, what: str, name: str = "") -> bool:
        """Return whether a dependency was healthy when last observed."""
        found = self.of(what, name)
        return found is not None and not found.problem

    def is_fresh(self, what: str, name: str, within_s: float) -> bool:
        """Return whether a dependency was observed as healthy within the last `within_s` seconds, so needs no probe."""
        found = self.of(what, name)
        return found is not None and not found.problem and self._monotonic() - found.seen < within_s

    def complaint(self, what: str, name: str = "") -> str:
        """Return the problem and its duration in words; "" if healthy."""
        found = self.of(what, name)
        if found is None:
            return "not known yet"
        return f"{found.problem} since {duration(self._monotonic() - found.since)}" if found.problem else ""


def duration(seconds: float) -> str:
    """Return a duration in the largest unit of which it has two or more: "40 s", "90 min", "3 days"."""
    for unit, size in (("days", _DAY_S), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


class _Ends(Mapping[str, float]):
    """The ends of certificates, read again when a file changes; a file that cannot be read keeps its last end."""

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
    """Return the end of the first certificate to end in each file, Unix seconds, by the same names, always up to date.

    Whoever starts with one that has ended reads so in its log: nobody connects to it, or it to nobody.

    Raises:
        UsageError, OSError: at the start, a file cannot be read or holds no certificate.
    """
    ends, now = _Ends(files), time.time()
    for name, end in ends.items():
        if now >= end:
            log.error("certificate_ended", certificate=name, file=str(files[name]), ended=round(end))
    return ends


def days_left(ends: Mapping[str, float], now: float) -> dict[str, float]:
    """Return how many days each certificate has left, below 0 for one that has ended."""
    return {name: (end - now) / _DAY_S for name, end in ends.items()}


def ended(ends: Mapping[str, float], now: float) -> str:
    """Return the names of the certificates that have ended, in words; "" without any."""
    found = [name for name, end in ends.items() if now >= end]
    return f"ended: {', '.join(found)}" if found else ""


def gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """Return a gauge with one label for a collector; with label "" a gauge without labels, of the value named ""."""
    if not label:
        return GaugeMetricFamily(name, text, value=float(values[""]))
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], float(value))
    return family

"""The one form of a measurement: a row with ours, the peer or limit of the same run, their ratio and what it must be.

A benchmark calls `report` for every row; the text goes to the screen, the row itself as JSON into the file named by
FLEETCOUNT_BENCH_ROWS, where scripts/bench.py collects it. Times nothing and decides nothing.
"""

import json
import math
import os
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Literal

Unit = Literal["s", "ms", "us", "ns", "B", "MiB", "/s", "MB/s", "%", ""]

SIZES_VARIABLE: Final = "FLEETCOUNT_BENCH"
"""Environment variable: "quick", "smoke" or nothing."""
NOT_QUICK: Final = "not in a quick run: "
"""How the note of a row begins that a quick run leaves out; the reason follows."""
ROWS_VARIABLE: Final = "FLEETCOUNT_BENCH_ROWS"
"""Environment variable: the file that rows are appended to."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement.

    `ratio` is what `must` and `aim` speak of: at least them when `larger_is_better`, at most them otherwise. `peer` and
    `peer_value` name what was measured beside it (or the limit it is held against), in the unit of `ours`. `note` says
    what the reader must know (sizes, repetitions, why something could not run). No `ours`: it did not run. An aim
    without a must: what must be is that it ends.
    """

    path: str
    ours: float | None
    unit: Unit
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    must: float | None = None
    aim: float | None = None
    larger_is_better: bool = True
    note: str = ""

    @property
    def verdict(self) -> str:
        """Return "aim met", "must met", "aim missed", "missed", "not run", or "" where nothing was demanded."""
        if self.ours is None:
            return "not run"
        if self._reaches(self.aim) and (self.must is None or self._reaches(self.must)):
            return "aim met"
        if self.ratio is None or (self.must is None and self.aim is None):
            return ""
        if self.must is None:
            return "aim missed"
        return "must met" if self._reaches(self.must) else "missed"

    def _reaches(self, bound: float | None) -> bool:
        if self.ratio is None or bound is None:
            return False
        return self.ratio >= bound if self.larger_is_better else self.ratio <= bound

    @property
    def demanded(self) -> bool:
        """Whether something was demanded of the ratio."""
        return self.must is not None or self.aim is not None

    def demand(self, bound: float | None) -> str:
        """Return a bound on the ratio as text, with its direction; nothing for no bound."""
        return "" if bound is None else f"{'>=' if self.larger_is_better else '<='} {number(bound)}"


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A row as it was taken: by which benchmark, after how much CPU, at which load.

    `cpu_s`: seconds of CPU since the row before, of the benchmark's process and the children it has waited for.
    `load`: how many processes wanted a core, averaged over the minute before.
    """

    benchmark: str
    row: Row
    cpu_s: float
    load: float

    def to_json(self) -> dict[str, Any]:
        """Return one flat object: the row's fields, its verdict, and where and when it was taken."""
        when = {"benchmark": self.benchmark, "cpu_s": self.cpu_s, "load": self.load}
        return asdict(self.row) | {"verdict": self.row.verdict} | when

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Taken":
        """Return what `to_json` wrote; raises ValueError for an unknown or missing name."""
        names = {field.name for field in fields(Row)}
        known = names | {"verdict", "benchmark", "cpu_s", "load"}
        if set(values) != known:
            raise ValueError(f"a row has other names than it should: {sorted(set(values) ^ known)}")
        row = Row(**{name: values[name] for name in names})
        return cls(benchmark=values["benchmark"], row=row, cpu_s=values["cpu_s"], load=values["load"])


class _Meter:
    """CPU seconds since it was last read."""

    def __init__(self) -> None:
        self._before = 0.0

    def read(self) -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        now = sum(one.ru_utime + one.ru_stime for one in used)
        passed, self._before = now - self._before, now
        return passed


_METER: Final = _Meter()


def report(row: Row) -> None:
    """Print one row and hand it to scripts/bench.py, with the CPU seconds since the last one and the load.

    The note of a quick or smoke run says so. Raises ValueError for a figure that is no number, or a ratio that is
    neither ours to the peer's value nor the inverse: the benchmark has mixed something up.
    """
    _check(row)
    if quick():
        sizes = "smoke run" if smoke() else "quick run"
        row = replace(row, note=f"{row.note}; {sizes}" if row.note else sizes)
    print(line(row), flush=True)
    target = os.environ.get(ROWS_VARIABLE)
    if target:
        taken = Taken(benchmark="", row=row, cpu_s=round(_METER.read(), 2), load=round(os.getloadavg()[0], 2))
        with open(target, "a", encoding="utf-8") as file:  # noqa: PTH123 - one append a row, closed at once.
            file.write(json.dumps(taken.to_json()) + "\n")


def _check(row: Row) -> None:
    for value in (row.ours, row.peer_value, row.ratio, row.must, row.aim):
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{row.path}: {value} is no figure")
    if row.ratio is None or not row.ours or not row.peer_value:
        return
    either = (row.ours / row.peer_value, row.peer_value / row.ours)
    if not any(math.isclose(row.ratio, one, rel_tol=1e-6) for one in either):
        raise ValueError(f"{row.path}: the ratio {row.ratio} is not that of {row.ours} and {row.peer_value}")


def line(row: Row) -> str:
    """Return the row as one line of text."""
    ours = "not run" if row.ours is None else f"{number(row.ours)} {row.unit}".rstrip()
    peer = row.peer if row.peer_value is None else f"{row.peer}: {number(row.peer_value)}"
    ratio = "" if row.ratio is None else f"{number(row.ratio)}x"
    wanted = ", ".join(
        f"{name} {row.demand(bound)}" for name, bound in (("must", row.must), ("aim", row.aim)) if bound is not None
    )
    return "  ".join(
        part for part in (f"{row.path:<60}", f"{ours:>14}", peer, ratio, wanted, row.verdict, row.note) if part
    )


def number(value: float) -> str:
    """Return a figure with about four digits."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.3g}"


def quick() -> bool:
    """Whether this is a quick run: fewer repetitions and smaller sizes, said in the notes."""
    return os.environ.get(SIZES_VARIABLE, "") in {"quick", "smoke"}


def smoke() -> bool:
    """Whether this run only shows that the benchmark still runs: the smallest sizes, a second or two."""
    return os.environ.get(SIZES_VARIABLE, "") == "smoke"


def best_s(operation: Callable[[], object], seconds: float = 0.4) -> float:
    """Return the shortest of the runs that fit into `seconds` (a quarter of it in a quick run), in seconds.

    At least three, so that another program's turn on the core is not taken for ours; one in a smoke run.
    """
    return _best(operation, seconds, time.perf_counter)


def best_cpu_s(operation: Callable[[], object], seconds: float = 0.4) -> float:
    """Return the same in CPU seconds of this thread: for work that waits for nothing and starts no thread."""
    return _best(operation, seconds, time.thread_time)


def _best(operation: Callable[[], object], seconds: float, clock: Callable[[], float]) -> float:
    least_runs = 1 if smoke() else 3
    times: list[float] = []
    until = clock() + seconds / (40 if smoke() else 4 if quick() else 1)
    while len(times) < least_runs or clock() < until:
        start = clock()
        operation()
        times.append(clock() - start)
    return min(times)

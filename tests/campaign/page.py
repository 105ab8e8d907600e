"""docs/reliability.md, from the trials of one or more runs and nothing else."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final

from fleetcount_transport.durable_files import replace_file

from tests.campaign.trials import NOTHING, Trial

_HEAD: Final = """# Reliability

Written by `python -m tests.campaign`; do not edit. A trial is one window of nine devices at two aggregators in
processes of their own, with TLS and stores; a third of the devices reports directly, a third through a broker and a
third through a relay. Eight windows at a time follow each other closely, and a fault strikes at a random moment. Every
device has a cell for itself, fixed coins, and no noise: the record says how often it counts. A lost device shows in the
sampled half, a doubled one always.

* lost: a device holds every receipt and the released window does not count it, or the window ended for want of reports
  although enough devices hold every receipt; not those whose only copy a flipped bit hit, if the aggregator says how
  many
* doubled: a device counts more often than once, or after it was denied
* wrong: trials with any of these, aggregators that end a window differently or give different bytes, a sealing key that
  is gone, a process that ended and should not have, or a lane that broke
* second releases: windows of which an aggregator gave another record at the end of the run than at the window's end
* stuck: a window without an end two minutes after its windows and its fault

A window may end without a release, for a public reason; then no device is counted and none is lost. A window that had
ended before the fault stands in the row "nothing". A clock is off, by up to six seconds, or far off, an hour, a day or
400 days, ahead or behind, in a process whose `time.time` was replaced before it started. Over PostgreSQL the server
tells the same far time, or the process must refuse to start; later it starts with the right clock. strace lets every
fsync of a process return EIO; the kernel limits files, descriptors and memory to at most what a process has. A denied
device may be left out of a window that goes on, and counts in none that opens later. The p99 of fewer than a hundred
values is the longest.

`make nightly` has a thousand trials and a million lists of failures each time, and writes this page anew.
[Faults](faults.md) lists what else can go wrong.
"""


@dataclass(kw_only=True)
class Run:
    """The trials of one run, as a file of JSON keeps them."""

    seed: int
    lanes: int
    build: str = ""
    """The commit of the source."""
    day: str = ""
    """The day on which it began, UTC, as in 2026-11-28."""
    took_s: float = 0.0
    second: int = 0
    missing: list[str] = field(default_factory=list[str])
    trials: list[Trial] = field(default_factory=list[Trial])

    def write(self, path: Path) -> None:
        """Write it, whole or not at all."""
        replace_file(path, json.dumps(asdict(self), indent=1).encode() + b"\n")

    @classmethod
    def read(cls, path: Path) -> "Run":
        """Return what `write` wrote."""
        row: dict[str, Any] = json.loads(path.read_text())
        return cls(trials=[Trial(**one) for one in row.pop("trials")], **row)


def read_lists(path: Path) -> str:
    """Return a sentence of the result of `python -m tests.model --result`."""
    row: dict[str, Any] = json.loads(path.read_text())
    ends = ", ".join(f"{end} {count:,}" for end, count in sorted(row["ends"].items(), key=lambda one: -one[1]))
    failed = "none of them broke a promise" if row["failed"] == 0 else f"{row['failed']:,} of them broke a promise"
    return (
        f"Beside these trials, {row['lists']:,} lists of failures on virtual time{_at([row])} in"
        f" {row['seconds'] / 60:,.0f} minutes, nine to each course of"
        f" what devices send and the tenth with its own: {failed}. They ended: {ends}."
    )


def read_soak(path: Path) -> str:
    """Return a sentence of the result of `python -m tests.campaign.soak --result`."""
    row: dict[str, Any] = json.loads(path.read_text())
    held = "; ".join(
        f"{name}: {_held(first)}, then {_held(row['end'][name])}" for name, first in row["settled"].items()
    )
    failed = f" It failed: {'; '.join(row['failed'])}." if row["failed"] else ""
    return (
        f"Of a soak of {row['soak_s'] / 60:,.0f} minutes{_at([row])}, a window every"
        f" {row['every_s']:g} s, {row['released']:,} of"
        f" {row['windows']:,} windows were released. What an aggregator and its workers held once it had settled and in"
        f" the end: {held}.{failed}"
    )


def _held(one: dict[str, Any]) -> str:
    return (
        f"{one['own_mib']:.0f} MiB, {one['descriptors']} descriptors and {one['files']} files of"
        f" {one['state_bytes']:,} bytes after {one['ended']:,} windows"
    )


def _percentile(values: Sequence[float], share: float) -> str:
    if not values:
        return "–"
    return f"{sorted(values)[min(len(values) - 1, int(share * len(values)))]:.1f} s"


def _at(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return of which days and which states of the source results are, as part of a sentence."""
    days = [date.fromisoformat(one) for one in sorted({row.get("day") or "" for row in rows} - {""})]
    builds = sorted({row.get("build") or "" for row in rows} - {""})
    parts = {"on": [f"{one.day} {one:%B %Y}" for one in days], "at commit": builds}
    return "".join(f" {word} {' and '.join(found)}" for word, found in parts.items() if found)


def page(runs: Sequence[Run], *beside: str) -> str:
    """Return the page: the sums, a row for each fault, what was not tried, and what ran `beside` it."""
    return "\n".join([_HEAD, *_results(runs, *beside)]).rstrip() + "\n"


def with_part(text: str, title: str, runs: Sequence[Run]) -> str:
    """Return a page whose last part, under a heading, are these runs, in place of what it has under that heading."""
    before, heading = text.partition(f"\n## {title}\n")[0].rstrip(), f"## {title}"
    return "\n".join([before, "", heading, "", *_results(runs)]).rstrip() + "\n"


def _results(runs: Sequence[Run], *beside: str) -> list[str]:
    trials = [trial for run in runs for trial in run.trials]
    stores = sorted({trial.store for trial in trials})
    groups: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        groups[trial.fault].append(trial)
    ready = [one for trial in trials for one in trial.ready_s]
    ended = [trial.ended_s for trial in trials if not trial.stuck]
    struck = sum(trial.fault != NOTHING for trial in trials)
    killed = sum(trial.fault.startswith("kill") for trial in trials)
    took = f"{sum(run.took_s for run in runs) / 60:.1f} minutes" + (f" of {len(runs)} runs" if len(runs) > 1 else "")
    lines = [
        f"{len(trials)} trials in {took}{_at([asdict(run) for run in runs])}, {struck} of them under a fault and"
        f" {killed} under a kill:"
        f" {sum(one.lost for one in trials)} lost, {sum(one.doubled for one in trials)} doubled,"
        f" {sum(bool(one.wrong) for one in trials)} wrong, {sum(run.second for run in runs)} second releases,"
        f" {sum(one.stuck for one in trials)} stuck, of {sum(one.delivered for one in trials):,} reports receipted in"
        f" full. From a restart to serving again:"
        f" p50 {_percentile(ready, 0.5)}, p99 {_percentile(ready, 0.99)} ({len(ready)} restarts). From the last window"
        f" or fault to the end everywhere: p50 {_percentile(ended, 0.5)}, p99 {_percentile(ended, 0.99)}.",
        "",
        f"| what fails | trials: {', '.join(stores)} | ended | longest restart | longest end |",
        "|---|---|---|---|---|",
    ]
    lines += [_row(fault, stores, group) for fault, group in sorted(groups.items())]
    missing = [one for one in runs[-1].missing if one.partition(" (no lane")[0] not in groups]
    return [*lines, "", *(f"Not tried: {one}." for one in missing), *(line for one in beside for line in ("", one))]


def _row(fault: str, stores: Sequence[str], group: Sequence[Trial]) -> str:
    ready, ended = [one for trial in group for one in trial.ready_s], [one.ended_s for one in group if not one.stuck]
    ends = ", ".join(f"{end} {count}" for end, count in Counter(one.end for one in group).most_common())
    broken = {
        "reports said to be damaged": sum(one.damaged for one in group),
        "lost": sum(one.lost for one in group),
        "doubled": sum(one.doubled for one in group),
        "wrong": sum(bool(one.wrong) for one in group),
        "stuck": sum(one.stuck for one in group),
    }
    cells = (
        fault,
        ", ".join(str(sum(one.store == store for one in group)) for store in stores),
        "; ".join([ends, *(f"{count} {name}" for name, count in broken.items() if count)]),
        f"{max(ready):.1f} s" if ready else "–",
        f"{max(ended):.1f} s" if ended else "–",
    )
    return f"| {' | '.join(cells)} |"

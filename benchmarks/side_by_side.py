"""Runs something in processes side by side and waits for what each reports, but never without a limit.

Knows nothing of what runs; every way in which one fails to report is an error that names it.
"""

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import SpawnProcess
from queue import Empty
from typing import Any, Final, TypeAlias

ENDING_S: Final = 300.0
"""How long a process that is done may take to end."""

Results: TypeAlias = "multiprocessing.Queue[tuple[int, dict[str, Any]]]"


def in_both(
    what: Callable[..., None], seats: Mapping[str, object], limit_s: float, ending_s: float = ENDING_S
) -> dict[int, dict[str, Any]]:
    """Run something in a process for each seat, by name, side by side; return what they report, by number.

    `what` gets its seat, the queue it puts (number, report) into, once, and a barrier for all.

    Raises:
        SystemExit: a process has died, or not all have reported and ended within `limit_s`; the text says which.
    """
    context = multiprocessing.get_context("spawn")
    results: Results = context.Queue()
    ended = context.Barrier(len(seats))
    processes = [context.Process(target=what, args=(seat, results, ended), name=name) for name, seat in seats.items()]
    for process in processes:
        process.start()
    try:
        return _reports_of(processes, results, limit_s, ending_s)
    finally:
        for process in processes:
            if process.exitcode is None:
                process.kill()
            process.join(ending_s)


def _reports_of(
    processes: Sequence[SpawnProcess], results: Results, limit_s: float, ending_s: float
) -> dict[int, dict[str, Any]]:
    deadline = time.monotonic() + limit_s
    reports: dict[int, dict[str, Any]] = {}
    while len(reports) < len(processes):
        try:
            reports.update([results.get(timeout=1)])
        except Empty:
            missing = [one for at, one in enumerate(processes) if at not in reports]
            died = [one for one in missing if one.exitcode is not None]
            # What a process has put there before it ended may come a moment later.
            if died and results.empty():
                codes = [one.exitcode for one in died]
                raise SystemExit(f"{_names(died)} died without a report, exit codes {codes}") from None
            if time.monotonic() > deadline:
                raise SystemExit(f"{_names(missing)} did not report within {limit_s:.0f} s") from None
    for process in processes:
        process.join(ending_s)
        if process.exitcode is None:
            raise SystemExit(f"{_names([process])} reported and did not end")
    return reports


def _names(processes: Sequence[SpawnProcess]) -> str:
    return " and ".join(f"the process of {one.name}" for one in processes)

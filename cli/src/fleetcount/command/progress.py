"""How far a long command is: bars on a terminal, plain lines elsewhere, always on stderr.

It must not write to stdout, which belongs to the results.
"""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:  # Rich takes 60 ms to load; only a command that shows bars pays for it.
    from rich.progress import TaskID

_FEWEST: Final = 100
"""A remaining time is shown once 1 in so many is done: the first of thousands waits for processes to start."""
WORTH_SAYING_S: Final = 10.0
"""A wait of more seconds than this is announced before it begins."""
_WIDE: Final = 80
"""Columns of a terminal from which on there is room for bars."""
_DUE_S: Final = (0, 1, 3, 10, 30, 120, 600, 3_600)
"""When a line is due at the earliest, seconds after the begin; what is expected and the end have a line each."""


class Progress:
    """Phases by name: `step` says how many of how many are done; a phase appears when first named."""

    def step(self, phase: str, done: int, total: int) -> None:
        """Show `done` of `total` in a phase; done == total ends it."""
        raise NotImplementedError

    def say(self, text: str) -> None:
        """Show a line of its own, once a command: how long it is expected to take."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        raise NotImplementedError


class LineProgress(Progress):
    """At most ten lines, however long it takes and however many phases there are: a pipe is often a log.

    A line each time its moment has come, later each time; it says how far the phase is, how long it took or, from its
    own rate so far, about how long it still takes. The last line is the end's.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._started: dict[str, tuple[float, int]] = {}
        self._said = 0
        self._last: tuple[str, int] = "", -1

    def step(self, phase: str, done: int, total: int) -> None:
        """Print a line if it is time for one."""
        now = self._clock()
        started, before = self._started.setdefault(phase, (now, done))
        if self._said == len(_DUE_S) or now - self._began < _DUE_S[self._said] or self._last == (phase, done):
            return
        self._last, self._said = (phase, done), self._said + 1
        print(
            f"{phase}: {done} of {total}{_time_text(now - started, done - before, total - done)}",
            file=sys.stderr,
            flush=True,
        )

    def say(self, text: str) -> None:
        """Print the line."""
        print(text, file=sys.stderr, flush=True)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Say how long it took in all, if anything was said and it ended well."""
        if kind is None and self._said:
            print(f"done in {self._clock() - self._began:.1f} s", file=sys.stderr, flush=True)


def _time_text(passed_s: float, done: int, left: int) -> str:
    if passed_s <= 0 or done <= 0:
        return ""
    if left == 0:
        return f" in {passed_s:.1f} s"
    if _FEWEST * done < left:
        return ""
    remaining_s = passed_s / done * left
    return f", {duration_text(remaining_s)} left" if remaining_s > WORTH_SAYING_S else ""


def duration_text(seconds: float) -> str:
    """Return a length of time as an estimate is told: "about 40 s", "about 12 min", "about 3 h"."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"about {round(seconds / size)} {unit}"
    return f"about {max(1, round(seconds))} s"


class BarProgress(Progress):
    """One bar a phase, on the terminal."""

    def __init__(self) -> None:
        # Rich comes with the extra `simulator`, and is used on a terminal alone.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        console, count, elapsed = Console(stderr=True), MofNCompleteColumn(), TimeElapsedColumn()
        name = TextColumn("{task.description:<34}" if console.width >= _WIDE else "{task.description}")
        # A narrow terminal has the numbers: beside a bar they would be cut to dots.
        columns = (
            (name, BarColumn(), count, elapsed, TimeRemainingColumn())
            if console.width >= _WIDE
            else (count, elapsed, name)
        )
        self._bars = Bars(*columns, console=console)
        self._phases: dict[str, TaskID] = {}

    def step(self, phase: str, done: int, total: int) -> None:
        """Move a phase's bar."""
        if phase not in self._phases:
            self._phases[phase] = self._bars.add_task(phase, total=total)
        self._bars.update(self._phases[phase], completed=done)

    def say(self, text: str) -> None:
        """Print the line above the bars."""
        self._bars.console.print(text, highlight=False, markup=False)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Leave the bars as they stand."""
        self._bars.stop()


def progress_for() -> Progress:
    """Return bars when stderr is a terminal, lines otherwise."""
    return BarProgress() if sys.stderr is not None and sys.stderr.isatty() else LineProgress()

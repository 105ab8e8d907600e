"""How far a long command is: bars on a terminal, plain lines elsewhere, always on stderr.

It must not write to stdout, which belongs to the results.
"""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

if TYPE_CHECKING:  # Rich takes 60 ms to load; only a command that shows bars pays for it.
    from rich.progress import TaskID

__all__ = ["BarProgress", "LineProgress", "Progress", "progress_for"]

_QUIET_S: Final = 2.0


class Progress(Protocol):
    """Phases by name: `step` says how many of how many are done; a phase appears when first named."""

    def step(self, phase: str, done: int, total: int) -> None:
        """Show `done` of `total` in a phase; done == total ends it."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LineProgress:
    """A line when a phase starts, at most one each two seconds while it runs, and one when it ends."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[float, int]] = {}
        self._started: dict[str, float] = {}

    def step(self, phase: str, done: int, total: int) -> None:
        """Print a line if it is time for one."""
        now = time.monotonic()
        last, count = self._shown.get(phase, (0.0, -1))
        if count == done or (0 < done < total and now - last < _QUIET_S) or count >= total:
            return
        self._shown[phase] = (now, done)
        started = self._started.setdefault(phase, now)
        took = f" in {now - started:.1f} s" if done == total and now > started else ""
        print(f"{phase}: {done} of {total}{took}", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is left to do."""


class BarProgress:
    """One bar a phase, on the terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Bars(*columns, console=Console(stderr=True))
        self._phases: dict[str, TaskID] = {}

    def step(self, phase: str, done: int, total: int) -> None:
        """Move a phase's bar."""
        if phase not in self._phases:
            self._phases[phase] = self._bars.add_task(phase, total=total)
        self._bars.update(self._phases[phase], completed=done)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the bars as they stand."""
        self._bars.stop()


def progress_for() -> Progress:
    """Return bars when stderr is a terminal, lines otherwise."""
    return BarProgress() if sys.stderr is not None and sys.stderr.isatty() else LineProgress()

"""Run a command so that nothing it started outlives it, however the run ends.

    scripts/supervised.py COMMAND [ARGUMENT ...]

Two processes watch each other. The front stays in the terminal's session: it passes an interrupt, a termination or a
closed terminal on. The keeper has a session of its own and starts the command. Both are subreapers (Linux, prctl(2)):
every orphan below them becomes their child, whatever session or user it has, so what is left can be found and ended.

* The command ends: the keeper gives its descendants a while, then ends and names those that are left. After an
  interrupted or killed command they have no while.
* The keeper is told to end: the command is interrupted, has a while to end by itself, and is then killed.
* The front is killed: the keeper sees its pipe close and kills all descendants at once.
* The keeper is killed: its orphans become children of the front, which kills them.

On other systems an orphan cannot be followed; descendants whose parents live are ended there too.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

GRACE_S: Final = 20.0
"""What an interrupted command has to end by itself: its tests end their own processes."""
STRAGGLERS_S: Final = 5.0
"""What descendants have to end after the command: a helper process notices its parent's end a little later."""
TRACKERS_S: Final = 2.0
"""What a tracker of semaphores has to tidy up when those it serves were killed."""
_TRACKER: Final = "from multiprocessing.resource_tracker import main"
LEFT_BEHIND: Final = 3
"""Exit code of a command that succeeded and left processes behind."""
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(command: Sequence[str], *, environment: Mapping[str, str] | None = None, directory: Path | None = None) -> int:
    """Run a command and return its exit code, 128 and the signal's number where a signal ended it.

    Everything it started has ended when this returns. The code is `LEFT_BEHIND` where it was 0 and something had to be
    ended.
    """
    adopt_orphans()
    if "MAKELEVEL" in os.environ:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # A make that is killed tells nobody.
    ours, keepers = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        code = 1
        try:
            os.close(keepers)
            os.setsid()
            code = _keep(command, environment, directory, front_gone=ours)
        finally:
            os._exit(code)
    os.close(ours)
    told = {number: signal.signal(number, lambda got, _: _signal(keeper, got)) for number in _ENDING}
    try:
        code = _code(_wait(keeper))
        end_descendants()
        return code
    finally:
        os.close(keepers)
        for number, before in told.items():
            signal.signal(number, before)


def _keep(command: Sequence[str], environment: Mapping[str, str] | None, place: Path | None, *, front_gone: int) -> int:
    """Start the command, wait for it, and end all that it leaves; return what `run` returns."""
    adopt_orphans()
    asked: list[int] = []
    for number in _ENDING:
        signal.signal(number, lambda got, _: asked.append(got))
    child = subprocess.Popen(command, env=environment, cwd=place)
    until = 0.0
    while (code := child.poll()) is None:
        gone = bool(select.select([front_gone], [], [], 0.05)[0])
        if gone or (asked and until and time.monotonic() > until):
            break
        if asked and not until:
            child.send_signal(signal.SIGINT)
            until = time.monotonic() + GRACE_S
    if code is None:
        end_descendants()
        return 128 + (asked[0] if asked else signal.SIGHUP)
    left = [] if code < 0 or asked else _stragglers()
    for name in left:
        print(f"left behind and ended: {name}", file=sys.stderr, flush=True)
    end_descendants()
    code = 128 - code if code < 0 else code
    return LEFT_BEHIND if left and not code else code


def adopt_orphans() -> None:
    """Let every process below this one whose parent ends become a child of this one (Linux only)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(root: int | None = None) -> dict[int, str]:
    """Return the processes below one (this one, where none is named) by their id, with their names."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            head, _, rest = path.read_text(errors="replace").rpartition(")")
            state, parent = rest.split()[:2]
            if state not in "ZX":  # One that has ended and waits to be looked at holds nothing.
                parents[int(path.parent.name)], names[int(path.parent.name)] = int(parent), head.partition("(")[2]
    found: set[int] = set()
    around = {os.getpid() if root is None else root}
    while around:
        around = {child for child, parent in parents.items() if parent in around} - found
        found |= around
    return {child: names[child] for child in sorted(found)}


def end_descendants(root: int | None = None) -> None:
    """Kill every process below one (this one, where none is named), also those that begin meanwhile.

    Python's trackers end by themselves with the processes they serve, and remove their semaphores from /dev/shm.
    """
    until = time.monotonic() + TRACKERS_S
    while (root is not None or _has_children()) and (below := descendants(root)):
        for child in below:
            if time.monotonic() > until or _TRACKER not in _command_of(child):
                _signal(child, signal.SIGKILL)
        _reap()
        time.sleep(0.01)
    _reap()  # Of those that ended last: what they used counts as this process's.


def _stragglers() -> list[str]:
    """Return the processes that are still there when a command's descendants have had time to end."""
    until = time.monotonic() + STRAGGLERS_S
    while (left := descendants()) and time.monotonic() < until:
        _reap()
        time.sleep(0.05)
    return [f"{name} ({child}): {_command_of(child)}" for child, name in left.items()]


def _command_of(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    return ""


def _has_children() -> bool:
    """Return whether this process has a child, ended or not; without one nothing is below it."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    return False


def _reap() -> None:
    """Take note of children that have ended: a subreaper's orphans wait for it."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _wait(process: int) -> int:
    """Wait for a child, signals or not, and return its status."""
    while True:
        with contextlib.suppress(InterruptedError):
            return os.waitpid(process, 0)[1]


def _code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _signal(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: scripts/supervised.py COMMAND [ARGUMENT ...]")
    sys.exit(run(sys.argv[1:]))

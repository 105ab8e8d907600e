"""What processes take while they run: memory at its peak, CPU so far. Read from /proc, at times; reports nothing.

`Meter` looks closely at this process and its children, `Below` at all that descend from one.
"""

import os
import resource
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

_SAMPLE_S: Final = 0.1
_FILES_EVERY: Final = 50
"""Samples between two looks at the pages of files, of which there are as many from the first batch on."""


class Meter:
    """Samples what this process and its children take while it runs: memory at its peak, CPU so far.

    Pages that are a process's own are added up at one moment and the largest sum is kept. Pages of files (libraries, in
    all processes the same) count once: of each file, as many as the process has that maps most of it.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="meter", daemon=True)
        self.own: dict[int, int] = {}
        self.files = 0
        self._before = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def memory(self) -> dict[str, int]:
        """Return the peaks, bytes: of the pages of its own, here and in all children, and of files."""
        mine = self.own.get(os.getpid(), 0)
        return {"process": mine, "workers": sum(self.own.values()) - mine, "files": self.files}

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process and its children since the last call."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        total = time.process_time() + ended.ru_utime + ended.ru_stime + sum(map(_cpu_of, _children()))
        passed, self._before = total - self._before, total
        return passed

    def _sample(self) -> None:
        number = 0
        while not self._ended.wait(_SAMPLE_S):
            processes = [os.getpid(), *_children()]
            own = {process: size for process in processes if (size := _own_pages(process))}
            if sum(own.values()) > sum(self.own.values()):
                self.own = own
            if number % _FILES_EVERY == 0:
                self.files = max(self.files, _file_pages(processes))
            number += 1


def _children() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        # A thread may end between being listed and being read; its children are then another thread's.
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def _own_pages(process: int) -> int:
    """Return the bytes of the pages that are of no file; 0 for a process that has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return 1024 * sum(int(one.split()[1]) for one in lines if one.startswith(("RssAnon", "RssShmem")))
    return 0


def _file_pages(processes: Sequence[int]) -> int:
    """Return the bytes of the pages of files, each file counted once."""
    most: dict[str, int] = {}
    for process in processes:
        found: dict[str, int] = {}
        with suppress(OSError):
            name = ""
            for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
                fields = line.split()
                if not fields[0].endswith(":"):
                    name = fields[5] if len(fields) > 5 and fields[5].startswith("/") else ""
                elif name and fields[0] in {"Rss:", "Anonymous:"}:
                    sign = 1 if fields[0] == "Rss:" else -1
                    found[name] = found.get(name, 0) + sign * 1024 * int(fields[1])
        for file, size in found.items():
            most[file] = max(size, most.get(file, 0))
    return sum(most.values())


def _cpu_of(process: int, fields: slice = slice(11, 13)) -> float:
    with suppress(OSError):
        found = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, found[fields])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def pss_bytes(process: int) -> int:
    """Return a process's memory, shared pages divided among those that share them; 0 for one that has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0


def cpu_with_descendants(process: int) -> float:
    """Return the CPU seconds so far of a process and of all that descend from it, those that have ended too."""
    found = [process]
    for one in found:
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, children.read_text().split())
    return sum(_cpu_of(one, slice(11, 15)) for one in found)


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process as it was seen: its parent, its command line (arguments end with NUL), CPU seconds, resident bytes."""

    number: int
    parent: int
    command: str
    cpu_s: float
    resident: int


def processes_below(root: int) -> list[Process]:
    """Return the processes that descend from one, each after its parent."""
    found: dict[int, list[Process]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            rest = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
            one = Process(
                number=int(place.name),
                parent=int(rest[1]),
                command=(place / "cmdline").read_bytes().decode(errors="replace"),
                cpu_s=sum(map(int, rest[11:13])) / os.sysconf("SC_CLK_TCK"),
                resident=int(rest[21]) * os.sysconf("SC_PAGE_SIZE"),
            )
            found.setdefault(one.parent, []).append(one)
    ordered = list(found.get(root, ()))
    for one in ordered:
        ordered += found.get(one.number, ())
    return ordered


class Below:
    """Looks at all processes that descend from one, five times a second, while a block runs.

    `seen` has each as it was last seen: what it took after that, a fifth of a second at most, is missing. `memory` is
    the largest sum of resident bytes; pages that processes share count once for each, so the true figure is smaller.
    `told` is called after each look with what was seen.
    """

    def __init__(self, root: int, told: Callable[[list[Process]], None] = lambda _: None) -> None:
        self.seen: dict[int, Process] = {}
        self.memory = 0
        self._root, self._told = root, told
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="below", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def cpu_s(self) -> float:
        """The CPU seconds of all."""
        return sum(one.cpu_s for one in self.seen.values())

    def look(self) -> None:
        """Look once."""
        found = processes_below(self._root)
        for one in found:
            known = self.seen.get(one.number, one)
            # One that has ended and is not waited for yet has no command line any more.
            self.seen[one.number] = replace(one, command=one.command or known.command)
        self.memory = max(self.memory, sum(one.resident for one in found))
        self._told(found)

    def _sample(self) -> None:
        while not self._ended.wait(0.2):
            self.look()

"""How far this machine has seen a PostgreSQL server's write-ahead log: in memory, and in a file of the state directory.

The log of one server on one timeline only grows, and what was flushed stays. One that ends earlier than it was seen is
that of a server put back to a moment before, even where its own tables say nothing of it. Knows no table.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from fleetcount_transport.durable_files import replace_file

from fleetcount_aggregator.storage.errors import StoreError

_WRITE_S: Final = 10.0
"""How often the file is written while the log grows; a process that dies remembers that much less."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a server's log ended, in bytes, when it was looked at; `flushed` is 0 where it was not said."""

    system_id: str
    timeline: int
    flushed: int


class ServerMark:
    """The furthest end seen. `path`: its file; None: it is remembered in memory alone."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen = self._kept = _read(path)
        self._written_at = -float("inf")

    def refusal(self, found: LogEnd) -> str:
        """Return why a server is not the one that was seen, "" if it may be."""
        seen = self._seen
        if seen is None or _server(seen) != _server(found) or found.flushed >= seen.flushed:
            return ""
        return f"its write-ahead log ends at byte {found.flushed}, and this machine has seen it at {seen.flushed}"

    def note(self, found: LogEnd, *, instead: bool = False) -> None:
        """Remember where the log ends; `instead` of what was seen, whatever that was.

        Raises:
            StoreError: the file could not be written.
        """
        seen = self._seen
        if instead or seen is None or _server(seen) != _server(found) or found.flushed > seen.flushed:
            self._seen = found
        if instead or time.monotonic() >= self._written_at + _WRITE_S:
            self.write()

    def write(self) -> None:
        """Write the file, if there is something new; raises as `note`."""
        if self._path is None or self._seen is None or self._seen == self._kept:
            return
        try:
            replace_file(self._path, json.dumps(asdict(self._seen)).encode() + b"\n")
        except OSError as error:
            raise StoreError(f"{self._path} could not be written: {error.strerror}") from error
        self._kept, self._written_at = self._seen, time.monotonic()


def _server(end: LogEnd) -> tuple[str, int]:
    return end.system_id, end.timeline


def _read(path: Path | None) -> LogEnd | None:
    if path is None or not path.exists():
        return None
    try:
        found = LogEnd(**json.loads(path.read_bytes()))
        if [type(one) for one in (found.system_id, found.timeline, found.flushed)] == [str, int, int]:
            return found
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"{path} cannot be read: {type(error).__name__}; delete it to forget what it says") from error
    raise StoreError(f"{path} holds other values than it should; delete it to forget what it says")

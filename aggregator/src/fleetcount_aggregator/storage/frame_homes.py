"""Where a store has the frames of its windows, and what it keeps of windows that ended: beside a file, or in memory.

A home makes and finds `Frames`; it reads none. `report_logs` decides when. Another home is in postgres_frames.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from fleetcount_protocol.ids import WindowId
from fleetcount_transport.durable_files import sync_directory

from fleetcount_aggregator.storage.database import Database
from fleetcount_aggregator.storage.digest_file import DigestFile
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.file_frames import FileFrames, FileReader, load_file, unload_file
from fleetcount_aggregator.storage.frames import LogState, RawFrame

_ENDS: Final = (".log", ".digests", ".log.lost")


class FileHome:
    """Implements `FrameHome` beside a database file: one log and one digest file a window, uncut."""

    counts_bytes = True
    cuts = False

    def __init__(self, database: Path) -> None:
        self._directory = database.parent
        self._stem = database.stem
        self._states: Mapping[WindowId, LogState] = {}

    def know(self, states: Sequence[LogState]) -> None:
        """See `FrameHome.know`."""
        self._states = {state.window_id: state for state in states if not state.ended}

    def install(self, db: "Database", window_id: WindowId) -> None:
        """See `FrameHome.install`: the first instalment makes the file."""

    def close_window(self, db: "Database", window_id: WindowId) -> None:
        """See `FrameHome.close_window`: the one writer knows."""

    def seize(self, window_id: WindowId) -> Mapping[int, int]:
        """See `FrameHome.seize`: the lock of the directory is the only epoch."""
        return {0: 0}

    def given_up(self, states: Sequence[LogState]) -> list[WindowId]:
        """See `FrameHome.given_up`."""
        return [
            state.window_id
            for state in states
            if not state.ended
            and not state.set_sealed
            and not self._log_path(state.window_id).exists()
            and self._lost_path(state.window_id).exists()
        ]

    def shard_count(self, window_id: WindowId) -> int:
        """See `FrameHome.shard_count`: who has one file has one owner."""
        return 1

    def frames(self, window_id: WindowId, log_key: bytes, shard: int, epoch: int | None) -> FileFrames:
        """See `FrameHome.frames`."""
        state = self._states.get(window_id)
        closed, durable = (None, 0) if state is None else (state.closed_length, state.durable_length)
        return FileFrames(self._log_path(window_id), window_id, log_key, closed, durable)

    def reader(self, window_id: WindowId) -> FileReader:
        """See `FrameHome.reader`."""
        return FileReader(self._log_path(window_id))

    def ended(self, window_id: WindowId) -> DigestFile:
        """See `FrameHome.ended`."""
        return DigestFile(self._directory / f"{self._stem}.{window_id.hex()}.digests", window_id)

    def holds(self, window_id: WindowId) -> bool:
        """See `FrameHome.holds`."""
        return self._log_path(window_id).exists()

    def leaves(self, window_id: WindowId) -> bool:
        """See `FrameHome.leaves`."""
        return self.holds(window_id) or self._lost_path(window_id).exists()

    def drop(self, window_id: WindowId) -> None:
        """See `FrameHome.drop`."""
        self._lost_path(window_id).unlink(missing_ok=True)
        if self.holds(window_id):
            self._log_path(window_id).unlink()
            sync_directory(self._directory)

    def windows(self) -> set[WindowId]:
        """See `FrameHome.windows`."""
        names = [path.name.removeprefix(f"{self._stem}.") for path in self._directory.glob(f"{self._stem}.*")]
        found = [name.removesuffix(end) for name in names for end in _ENDS if name.endswith(end)]
        return {WindowId(bytes.fromhex(name)) for name in found}

    def unload(self, window_id: WindowId) -> Iterator[RawFrame]:
        """See `FrameHome.unload`."""
        lost = self._lost_path(window_id)
        if lost.exists():
            raise StoreError(f"{lost} was put aside: start the aggregator once, so that its window ends")
        return unload_file(self._log_path(window_id))

    def load(self, window_id: WindowId, shards: int, frames: Iterable[RawFrame], *, closed: bool) -> None:
        """See `FrameHome.load`."""
        if shards != 1:
            raise StoreError(f"window {window_id.hex()} is cut into {shards} shards; allowed beside a file is 1")
        load_file(self._log_path(window_id), frames)

    def close(self) -> None:
        """See `FrameHome.close`."""

    def _log_path(self, window_id: WindowId) -> Path:
        return self._directory / f"{self._stem}.{window_id.hex()}.log"

    def _lost_path(self, window_id: WindowId) -> Path:
        """Where the operator puts a log that is lost, to end its window."""
        return self._directory / f"{self._stem}.{window_id.hex()}.log.lost"

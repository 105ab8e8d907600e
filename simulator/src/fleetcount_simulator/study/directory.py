"""The output directory of a study: its identity, its finished shards, and atomic writes of files.

It stores and finds files; it must not compute a number. One process works in a directory at a time.
"""

import fcntl
import json
import re
import secrets
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from fleetcount_protocol.errors import MachineError

from fleetcount_simulator.errors import ScenarioError

IDENTITY: Final = ("scenario", "seed", "version", "engine", "numpy")
"""What must be the same for a study to be continued; a seed draws other numbers in another NumPy."""
RECORD: Final = "run.json"
_SHARDS: Final = "shards"
_LOCK: Final = ".lock"
_OURS: Final = frozenset({RECORD, _SHARDS, _LOCK})
_TEMPORARY: Final = re.compile(r"\..+\.[0-9a-f]{8}")
_UNFINISHED_RECORD: Final = re.compile(rf"\.{re.escape(RECORD)}\.[0-9a-f]{{8}}")


class StudyDirectory:
    """A directory that is this study's own; made by `open_study`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def shard(self, name: str) -> bytes | None:
        """Return the result of a finished shard, None when there is none."""
        try:
            return (self.path / _SHARDS / f"{name}.npz").read_bytes()
        except FileNotFoundError:
            return None

    def keep_shard(self, name: str, content: bytes) -> None:
        """Store the result of a shard, whole or not at all."""
        self.write(Path(_SHARDS) / f"{name}.npz", content)

    def write(self, name: Path | str, content: bytes) -> None:
        """Write a file whole or not at all, also if the process is killed; after a power cut it may be empty.

        Raises:
            MachineError: the file cannot be written.
        """
        with self.appearing(name) as temporary:
            temporary.write_bytes(content)

    @contextmanager
    def appearing(self, name: Path | str) -> Generator[Path]:
        """Yield a temporary path beside the file's own, and rename it when the block ends without an error.

        Raises:
            MachineError: the file cannot be written.
        """
        target = self.path / name
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            yield temporary
            temporary.replace(target)
        except OSError as error:
            raise MachineError(f"{target.name} cannot be written: {error.strerror or error}") from error
        finally:
            temporary.unlink(missing_ok=True)

    def remove_leftovers(self) -> None:
        """Remove the temporary files of a process that was killed while it wrote."""
        for place in (self.path, self.path / _SHARDS):
            for entry in place.iterdir():
                if _TEMPORARY.fullmatch(entry.name):
                    entry.unlink(missing_ok=True)

    def remove_unless_begun(self) -> None:
        """Remove the directory of a study that has no finished shard and no results."""
        if any((self.path / _SHARDS).iterdir()) or {entry.name for entry in self.path.iterdir()} - _OURS:
            return
        for name in (RECORD, _LOCK):
            (self.path / name).unlink(missing_ok=True)
        (self.path / _SHARDS).rmdir()
        self.path.rmdir()

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Write run.json."""
        self.write(RECORD, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())

    def record(self) -> dict[str, Any] | None:
        """Return run.json, None when there is none.

        Raises:
            ScenarioError: it is not what `write_record` writes.
        """
        try:
            content = json.loads((self.path / RECORD).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ScenarioError(f"output {self.path}: {RECORD} cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise ScenarioError(f"output {self.path}: {RECORD} is not the record of a study")
        return cast("dict[str, Any]", content)


@contextmanager
def open_study(path: Path, identity: Mapping[str, Any]) -> Generator[StudyDirectory]:
    """Yield the directory of a study, new or to be continued, locked against other processes.

    A new directory is removed when the study fails before a shard is finished.

    Raises:
        ScenarioError: it holds other files or another study, or is in use; the message names what differs.
        MachineError: the directory cannot be written.
    """
    directory = StudyDirectory(path)
    _check_owner(directory, identity)
    is_new = not path.exists()
    try:
        (path / _SHARDS).mkdir(parents=True, exist_ok=True)
        lock = (path / _LOCK).open("w")
    except OSError as error:
        raise MachineError(f"output {path} cannot be used: {error.strerror or error}") from error
    with lock:
        try:
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ScenarioError(f"output {path} is in use by a study that is running") from error
        _check_owner(directory, identity)
        directory.remove_leftovers()
        try:
            yield directory
        except BaseException:
            if is_new:
                directory.remove_unless_begun()
            raise


def _check_owner(directory: StudyDirectory, identity: Mapping[str, Any]) -> None:
    """Refuse a directory of other files or of another study; change nothing."""
    path = directory.path
    if not path.exists():
        return
    if not path.is_dir():
        raise ScenarioError(f"output {path} exists and is not a directory")
    record = directory.record()
    if record is None:
        # Who was killed while it wrote its first record left no record, and this.
        names = [entry.name for entry in path.iterdir()]
        if any(name not in _OURS and not _UNFINISHED_RECORD.fullmatch(name) for name in names):
            raise ScenarioError(f"output {path} is not empty and holds no study; choose a new directory")
        return
    for key in IDENTITY:
        if record.get(key) != identity[key]:
            values = "" if key == "scenario" else f" ({record.get(key)}, not {identity[key]})"
            raise ScenarioError(f"output {path} holds a study of another {key}{values}; choose a new directory")

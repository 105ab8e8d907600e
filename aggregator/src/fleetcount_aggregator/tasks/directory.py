"""The directory where a leader's operator drops tasks: NAME.task signed by all, with NAME.verify-key beside it.

Reads complete files and hands them on; a refused one gets a NAME.refused beside it that says why. It must not delete.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fleetcount_protocol.errors import PeerError, TaskError, UsageError
from fleetcount_protocol.limits import MAX_TASK_BYTES, VERIFY_KEY_BYTES
from fleetcount_protocol.task.signed_file import decode_signed_task
from fleetcount_protocol.task.task import SignedTask
from fleetcount_transport.key_files import read_secret
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.tasks.install import install

__all__ = ["TaskDirectory"]

_PATIENCE: Final = 10
"""Looks at a task without its verify key before it is refused: the two files are not dropped at one instant."""
_MAX_FILE_BYTES: Final = MAX_TASK_BYTES + 4096

_Stamp = tuple[int, int]


@dataclass(slots=True)
class _Seen:
    """One file as it was last looked at."""

    stamp: _Stamp
    looks: int = 0
    done: bool = False


class TaskDirectory:
    """Looks into the task directory."""

    def __init__(self, context: Context, directory: Path) -> None:
        self._context = context
        self._directory = directory
        self._seen: dict[Path, _Seen] = {}

    async def poll(self) -> None:
        """Take up every file that is new or has changed since the last look.

        Raises:
            StoreError: the store failed; the file is looked at again.
        """
        for path in sorted(self._directory.glob("*.task")):
            seen = self._look(path)
            if seen is None or seen.done:
                continue
            seen.looks += 1
            key_file = path.with_suffix(".verify-key")
            if not key_file.exists() and seen.looks < _PATIENCE:
                continue
            await self._take(path, key_file)
            seen.done = True

    def _look(self, path: Path) -> _Seen | None:
        try:
            status = path.stat()
        except OSError:
            return None
        stamp = (status.st_mtime_ns, status.st_size)
        seen = self._seen.get(path)
        if seen is None or seen.stamp != stamp:
            seen = self._seen[path] = _Seen(stamp)
        return seen

    async def _take(self, path: Path, key_file: Path) -> None:
        try:
            signed = _read_task(path)
            if signed.task.task_id in self._context.tasks:
                return
            if signed.task.leader.aggregator_id != self._context.aggregator_id:
                raise TaskError(
                    f"the leader is {signed.task.leader.aggregator_id!r}, this is {self._context.aggregator_id!r}:"
                    " drop the task there"
                )
            await install(self._context, signed, _read_key(key_file))
            path.with_suffix(".refused").unlink(missing_ok=True)
        except (UsageError, PeerError) as error:
            log.warning("task_refused", file=path.name, reason=str(error))
            _write_refusal(path, str(error))


def _read_task(path: Path) -> SignedTask:
    try:
        if not path.is_file():
            raise TaskError(f"{path.name} is not a file")
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TaskError(f"{path.name} cannot be read: {error.strerror}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise TaskError(f"{path.name} has more than {_MAX_FILE_BYTES} bytes")
    return decode_signed_task(data)


def _read_key(path: Path) -> bytes:
    key = read_secret(path)
    if len(key) != VERIFY_KEY_BYTES:
        raise TaskError(f"{path.name} has {len(key)} bytes, not {VERIFY_KEY_BYTES}")
    return key


def _write_refusal(path: Path, reason: str) -> None:
    try:
        path.with_suffix(".refused").write_text(reason + "\n")
    except OSError as error:
        log.warning("refusal_not_written", file=path.name, reason=error.strerror)

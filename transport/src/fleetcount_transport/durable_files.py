"""Atomic and durable writes of files, and erasure that overwrites them.

It must not know their content.
"""

import os
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes, *, mode: int = 0o600, erase: bool = False) -> None:
    """Replace or create a file, durably: after a crash there is the old file or the new one.

    With `erase` the old file's bytes are overwritten in place. Raises OSError.
    """
    new = unfinished(path)
    # Without O_TRUNC, so that the bytes that an earlier crash left are overwritten in place.
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    old = os.open(path, os.O_WRONLY | os.O_CLOEXEC) if erase and path.exists() else None
    try:
        new.rename(path)
        sync_directory(path.parent)
        if old is not None:
            _blank(old)
    finally:
        if old is not None:
            os.close(old)


def erase_file(path: Path) -> None:
    """Overwrite a file in place, durably, and then delete it, together with its unfinished copy; raises OSError.

    On storage that does not overwrite in place (flash, copy-on-write, snapshots) the old bytes may stay.
    """
    for file in (path, unfinished(path)):
        if not file.exists():
            continue
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            _blank(descriptor)
        finally:
            os.close(descriptor)
        file.unlink()
        sync_directory(file.parent)


def unfinished(path: Path) -> Path:
    """Return the temporary path of a file's next content, before the rename."""
    return path.with_name(f".{path.name}.new")


def _blank(descriptor: int) -> None:
    os.pwrite(descriptor, bytes(os.fstat(descriptor).st_size), 0)
    os.fsync(descriptor)

"""Files that are whole or not there at all, durable when a call returns, and gone for good when they are to be.

It must not know what lies in them.
"""

import os
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes, *, mode: int = 0o600, erase: bool = False) -> None:
    """Put content in the place of a file, or where none was: a crash leaves the old file or the new one.

    With `erase` the old file's bytes are overwritten where they lay. Raises OSError.
    """
    new = unfinished(path)
    # Not truncated at once: what a crash left of an earlier try is overwritten where it lies.
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
    """Overwrite a file in place, durably, and then delete it, with what a crash left of its writing; raises OSError.

    On disks that write elsewhere than where they are told (flash, copy-on-write, snapshots) the old bytes may stay.
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
    """Return where the next content of a file is written before it takes its name."""
    return path.with_name(f".{path.name}.new")


def _blank(descriptor: int) -> None:
    os.pwrite(descriptor, bytes(os.fstat(descriptor).st_size), 0)
    os.fsync(descriptor)

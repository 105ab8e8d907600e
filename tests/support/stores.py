"""The store of tests: the one there is, on a file that lies in memory where the machine has such a place."""

import contextlib
import gc
import os
import shutil
import sqlite3
import tempfile
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.store import Store

_IN_MEMORY: Final = Path("/dev/shm")
_BESIDE: Final = (".log", ".digests", ".data-key", ".key-check")
_MANY: Final = 48
_OPEN: Final = weakref.WeakSet[Store]()
_LEFT: Final = set[tuple[int, Path]]()
_ENDED: Final = deque[Sequence[Store]]()
"""The stores of ended tests, until `shut_ended`."""


class StoreFolder:
    """A new folder for one aggregator's store; it goes when nobody holds this object any more."""

    def __init__(self) -> None:
        if len(_OPEN) > _MANY:
            gc.collect()  # Of ended tests, which hold files and threads until they are collected.
        shut_ended()
        self.path = Path(tempfile.mkdtemp(prefix="fleetcount-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))
        _LEFT.add((os.getpid(), self.path))
        weakref.finalize(self, _remove, self.path)


def remove_left() -> None:
    """Remove the folders that this process has made, at its end: one that was forked runs no finalizer."""
    for process, path in list(_LEFT):
        if process == os.getpid():
            _remove(path)


def _remove(path: Path) -> None:
    _LEFT.discard((os.getpid(), path))
    shutil.rmtree(path, ignore_errors=True)


def copied(database: Path) -> StoreFolder:
    """Return a copy of a store, running or not, with its logs, digests and data keys, as a copy of the disk has it."""
    folder = StoreFolder()
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(folder.path / database.name)) as target:
        source.backup(target)
    for path in database.parent.glob(f"{database.stem}.*"):
        if path.name.endswith(_BESIDE):
            shutil.copy(path, folder.path)
    return folder


def rows_of(database: Path, query: str, *values: Any) -> list[Any]:
    """Return rows of a store, whether it is open or not."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query, values).fetchall()


def close_with(holder: object, opened: Sequence[Store]) -> None:
    """Close stores once nobody holds `holder` any more: tests leave aggregators as a machine that is switched off.

    The collector runs in any thread, also in one that another is just waiting for: it only notes them.
    """
    weakref.finalize(holder, _ENDED.append, opened)


def shut(store: Store) -> None:
    """Close a store without an event loop; one that is closed stays so."""
    if not store._closed:
        store._closed = True
        store._shut()


def watched(store: Store) -> Store:
    """Return a store that `StoreFolder` counts as open."""
    _OPEN.add(store)
    return store


def shut_ended() -> None:
    """Close the stores of ended tests, in this thread."""
    while _ENDED:
        for store in _ENDED.popleft():
            with contextlib.suppress(StoreError, OSError):  # Its folder may be gone already.
                shut(store)

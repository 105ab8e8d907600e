"""Where wrapped keys lie, by name: files beside a SQLite file, rows of PostgreSQL, memory.

It opens no key, and what it holds is wrapped.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from fleetcount_transport.durable_files import erase_file, replace_file, sync_directory

from fleetcount_aggregator.storage.store import StoreError


class KeyPlace(Protocol):
    """Small wrapped secrets by name. A write returns when it is durable; whatever fails raises StoreError."""

    def where(self, name: str) -> str:
        """How an error names a key."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return what lies there, or None."""
        ...

    def names(self) -> Sequence[str]:
        """Return the names of all that lie there."""
        ...

    def add(self, name: str, wrapped: bytes) -> bytes:
        """Put it where nothing lies; return what lies there then, durably, which another process may have put there."""
        ...

    def write(self, name: str, wrapped: bytes) -> None:
        """Put it in the place of what was there: a crash leaves the old one or the new one."""
        ...

    def erase(self, name: str) -> None:
        """Destroy it as far as the place allows; doing it again changes nothing."""
        ...


class MemoryKeys:
    """Implements `KeyPlace` for a store that outlives no process, which holds its keys itself: nothing lies here."""

    def where(self, name: str) -> str:
        """See `KeyPlace.where`."""
        return name

    def read(self, name: str) -> bytes | None:
        """See `KeyPlace.read`."""
        return None

    def names(self) -> Sequence[str]:
        """See `KeyPlace.names`."""
        return ()

    def add(self, name: str, wrapped: bytes) -> bytes:
        """See `KeyPlace.add`."""
        return wrapped

    def write(self, name: str, wrapped: bytes) -> None:
        """See `KeyPlace.write`."""

    def erase(self, name: str) -> None:
        """See `KeyPlace.erase`."""


class KeyFiles:
    """Implements `KeyPlace` by files beside a database's file, named after it; erasing overwrites in place."""

    def __init__(self, database: Path) -> None:
        self._database = database

    def _path(self, name: str) -> Path:
        return self._database.with_name(f"{self._database.stem}.{name}")

    def where(self, name: str) -> str:
        """See `KeyPlace.where`."""
        return str(self._path(name))

    def read(self, name: str) -> bytes | None:
        """See `KeyPlace.read`."""
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self.where(name)} cannot be read: {error.strerror}") from error

    def names(self) -> Sequence[str]:
        """See `KeyPlace.names`."""
        first = f"{self._database.stem}."
        return [
            path.name.removeprefix(first)
            for ending in ("data-key", "key-check")
            for path in self._database.parent.glob(f"{first}*{ending}")
        ]

    def add(self, name: str, wrapped: bytes) -> bytes:
        """See `KeyPlace.add`: the store's lock keeps other processes out."""
        lying = self.read(name)
        if lying is None:
            self.write(name, wrapped)
            return wrapped
        try:
            # An earlier try may have failed or been killed when all was done but this.
            sync_directory(self._database.parent)
        except OSError as error:
            raise StoreError(f"{self.where(name)} could not be written: {error.strerror}") from error
        return lying

    def write(self, name: str, wrapped: bytes) -> None:
        """See `KeyPlace.write`."""
        try:
            replace_file(self._path(name), wrapped, erase=True)
        except OSError as error:
            raise StoreError(f"{self.where(name)} could not be written: {error.strerror}") from error

    def erase(self, name: str) -> None:
        """See `KeyPlace.erase`."""
        try:
            erase_file(self._path(name))
        except OSError as error:
            raise StoreError(f"{self.where(name)} could not be destroyed: {error.strerror}") from error

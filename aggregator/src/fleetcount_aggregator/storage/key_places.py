"""Where wrapped keys lie, by name: files beside a SQLite file, rows of PostgreSQL, memory.

It opens no key, and what it holds is wrapped.
"""

from collections.abc import Sequence
from pathlib import Path

from fleetcount_transport.durable_files import erase_file, replace_file, sync_directory

from fleetcount_aggregator.storage.errors import StoreError


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

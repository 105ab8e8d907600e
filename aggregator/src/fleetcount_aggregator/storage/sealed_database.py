"""A database together with what its rows are sealed with: what every statement of a store runs on.

Adds nothing to an engine but that; begins and ends no transaction of its own.
"""

from collections.abc import Callable
from typing import TypeVar

from fleetcount_aggregator.storage.database import Database, Engine
from fleetcount_aggregator.storage.row_seal import RowSeal

T = TypeVar("T")


class SealedDatabase:
    """A `Database`, and `seal`, which makes and checks the tags of its rows."""

    __slots__ = ("execute", "executemany", "seal")

    def __init__(self, database: Database, seal: RowSeal) -> None:
        self.execute = database.execute
        self.executemany = database.executemany
        self.seal = seal


class SealedEngine:
    """An engine whose work gets a `SealedDatabase`; see `Engine` for each method."""

    def __init__(self, engine: Engine, seal: RowSeal) -> None:
        self.plain = engine
        self._seal = seal

    def write(self, work: Callable[[SealedDatabase], T]) -> T:
        """See `Engine.write`."""
        return self.plain.write(lambda db: work(SealedDatabase(db, self._seal)))

    def read(self, work: Callable[[SealedDatabase], T]) -> T:
        """See `Engine.read`."""
        return self.plain.read(lambda db: work(SealedDatabase(db, self._seal)))

    def peek(self, work: Callable[[SealedDatabase], T]) -> T:
        """See `Engine.peek`."""
        return self.plain.peek(lambda db: work(SealedDatabase(db, self._seal)))

"""The epochs that a store in SQL remembers: the newest of every aggregator, and this one's last start (`greetings`).

Each is signed by the aggregator it is of, and looked at before it is believed. It must not do that itself.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from fleetcount_aggregator.storage.row_seal import EPOCHS, SealedDatabase

EPOCH_TABLE: Final = "CREATE TABLE epochs (name TEXT PRIMARY KEY, epoch BLOB NOT NULL, seal BLOB)"
_NOTE: Final = (
    EPOCHS.insert + " ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, seal = excluded.seal"
    " WHERE excluded.epoch > epochs.epoch"
)


class SqlEpochs:
    """The epochs of a store in SQL; `_lead` and `_read` are those of `SqlStore`."""

    async def _lead(self, operation: Callable[[SealedDatabase], Any]) -> Any:
        raise NotImplementedError

    async def _read(self, operation: Callable[[SealedDatabase], Any]) -> Any:
        raise NotImplementedError

    async def note_epoch(self, name: str, epoch: bytes) -> None:
        """See `Store.note_epoch`."""
        await self._lead(lambda db: db.execute(_NOTE, EPOCHS.sealed(db, name, epoch)))

    async def epochs(self) -> Mapping[str, bytes]:
        """See `Store.epochs`."""
        rows = await self._read(lambda db: db.execute("SELECT name, epoch FROM epochs").fetchall())
        return {name: bytes(epoch) for name, epoch in rows}

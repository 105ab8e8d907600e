"""The changes of a store that several processes share: numbered rows, which each process reads by itself.

A transaction that changes something adds a row under the next number. It locks the row of the counter until it ends, so
that numbers are committed in order and a process that has read one has read all before it. The last rows are kept; a
process that was away longer reads the whole store.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fleetcount_protocol.ids import QuestionId, SessionId, WindowId

from fleetcount_aggregator.storage.async_link import AsyncLink
from fleetcount_aggregator.storage.database import Change, Changed, Database
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.schema import COORDINATOR_GONE, POSTGRES, check_known, coordinator_row

KEPT: Final = 4096
"""The number of transactions whose rows are kept."""
_SIZES: Final = {
    Changed.WINDOW: WindowId.SIZE,
    Changed.QUESTION: QuestionId.SIZE,
    Changed.SESSION: SessionId.SIZE,
}
_SINCE: Final = "SELECT number, kind, named FROM changes WHERE number > %s AND number <= %s"
_NEXT: Final = "UPDATE coordinator SET changes = changes + 1 WHERE one = 1 RETURNING changes"


def note_changes(db: Database, changes: Iterable[Change]) -> None:
    """Add the rows of these changes, within the transaction that makes them."""
    named: dict[Changed, dict[bytes, None]] = {}
    for kind, changed in changes:
        named.setdefault(kind, {})[changed] = None
    if not named:
        return
    number = coordinator_row(db.execute(_NEXT))[0]
    rows = [(number, kind.value, b"".join(ids)) for kind, ids in named.items()]
    db.executemany("INSERT INTO changes (number, kind, named) VALUES (?, ?, ?)", rows)
    db.execute("DELETE FROM changes WHERE number <= ?", (number - KEPT,))


class Changes:
    """The changes since the last look of this process."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link
        self._seen: int | None = None

    def forget(self) -> None:
        """Report everything as changed at the next look."""
        self._seen = None

    async def look(self) -> Mapping[Changed, Sequence[bytes]] | None:
        """Return by kind the ids of what has changed; None if the rows are not kept any more and anything may have.

        Raises:
            StoreError: the database does not answer; the next look returns the same changes.
            SchemaMovedError: the database has a schema that this process does not know; the process must end.
        """
        row = await self._link.row("SELECT changes, version FROM coordinator, schema_version")
        if row is None:
            raise StoreError(f"{COORDINATOR_GONE}: put back a backup")
        check_known(int(row[1]), POSTGRES.version)
        newest, seen = int(row[0]), self._seen
        if newest == seen:
            return {}
        if seen is None or newest < seen:  # A smaller number: the server was restored from a backup.
            self._seen = newest
            return None
        found = await self._link.rows(_SINCE, seen, newest)
        self._seen = newest
        if len({number for number, _, _ in found}) < newest - seen:
            return None  # The first of them are not kept any more.
        changed: dict[Changed, list[bytes]] = {}
        for _, kind, named in found:
            size = _SIZES.get(Changed(kind), 0)
            ids = [named[at : at + size] for at in range(0, len(named), size)] if size else []
            changed.setdefault(Changed(kind), []).extend(ids)
        return changed

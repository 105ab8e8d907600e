"""The archive of a store in SQL: ended windows at rest, retired and forgotten (`Archive`).

Mixed into the store, whose threads run the statements; owns nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleetcount_protocol.ids import QuestionId, WindowId
from fleetcount_protocol.messages import WindowState

from fleetcount_aggregator.storage import archive_rows, question_rows
from fleetcount_aggregator.storage.archive import Place, RestRow
from fleetcount_aggregator.storage.report_logs import ReportLogs
from fleetcount_aggregator.storage.row_seal import SealedDatabase
from fleetcount_aggregator.storage.row_types import LedgerRow, Rest
from fleetcount_aggregator.storage.rows import read_ledger_rows


class SqlArchive:
    """Implements `Archive` for whoever reads and writes rows of a database."""

    logs: ReportLogs

    async def _read(self, operation: Callable[[SealedDatabase], Any]) -> Any:
        raise NotImplementedError

    async def _lead(self, operation: Callable[[SealedDatabase], Any]) -> Any:
        raise NotImplementedError

    async def windows_in_work(self) -> Sequence[WindowId]:
        """See `Archive.windows_in_work`."""
        rows: Sequence[WindowId] = await self._read(archive_rows.read_in_work)
        return rows

    async def put_to_rest(self, rows: Sequence[RestRow]) -> None:
        """See `Archive.put_to_rest`."""
        await self._lead(lambda db: archive_rows.put_to_rest(db, rows))

    async def resting(self, rest: Rest, above: Place, until: int) -> Sequence[RestRow]:
        """See `Archive.resting`."""
        rows: Sequence[RestRow] = await self._read(lambda db: archive_rows.read_resting(db, rest, above, until))
        return rows

    async def retire(self, window_ids: Sequence[WindowId], kept: Mapping[WindowState, Sequence[str]]) -> None:
        """See `Archive.retire`."""
        await self._lead(lambda db: self._retire(db, window_ids, kept))

    def _retire(
        self, db: SealedDatabase, window_ids: Sequence[WindowId], kept: Mapping[WindowState, Sequence[str]]
    ) -> None:
        # Before the commit: a crash in between leaves windows at rest, which are retired again.
        for window_id in archive_rows.retire_windows(db, window_ids, kept):
            self.logs.forget(window_id)

    async def forget(self, window_ids: Sequence[WindowId]) -> Sequence[WindowId]:
        """See `Archive.forget`."""
        gone: Sequence[WindowId] = await self._lead(lambda db: archive_rows.forget_windows(db, window_ids))
        return gone

    async def debit(self, window_id: WindowId) -> LedgerRow | None:
        """See `Archive.debit`."""
        row: LedgerRow | None = await self._read(lambda db: archive_rows.read_debit(db, window_id))
        return row

    async def ledger_rows(self) -> int:
        """See `Archive.ledger_rows`."""
        count: int = await self._read(read_ledger_rows)
        return count

    async def rest_question(self, question_id: QuestionId, end: int, dropped: str) -> None:
        """See `Archive.rest_question`."""
        await self._lead(lambda db: question_rows.rest_question(db, question_id, end, dropped))

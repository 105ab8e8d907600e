"""Retention of ended windows: they are archived when no work is left, then retired, then forgotten.

An archived window is not loaded at a start, nor is a question that no period's budget counts any more. `keep_digests_s`
after a window expires it is retired: the digests of its reports are deleted, and the steps that only a repetition
needs. `keep_records_s` later, if the operator sets it, it is forgotten: its record and its debit are deleted. It uses
this aggregator's clock once that is confirmed, and never changes a window that has not ended.
"""

from dataclasses import replace
from typing import Final

from fleetcount_protocol.messages import WindowState
from fleetcount_transport.logs import log

from fleetcount_aggregator.durable_steps import KEPT, Step, taken
from fleetcount_aggregator.memory.installed import InstalledWindow
from fleetcount_aggregator.memory.questions import Questions
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.storage.ended import (
    AT_ONCE,
    FIRST_KEY,
    ArchivedWindow,
    SortKey,
    archive_windows,
    forget_windows,
    read_archived,
)
from fleetcount_aggregator.storage.errors import DamagedError
from fleetcount_aggregator.storage.row_types import Lifecycle
from fleetcount_aggregator.storage.rows import read_window

_LOOK_S: Final = 60
"""Seconds between two searches for windows to retire or forget, while there are none."""


class Retention:
    """Archives, retires and forgets the ended windows of one aggregator."""

    def __init__(self, windows: Windows, questions: Questions) -> None:
        self._windows = windows
        self._questions = questions
        self._host = windows.host
        self._store = windows.store
        self._retiring_at = self._forgetting_at = -1.0
        self._forgotten: SortKey = FIRST_KEY

    async def look(self) -> None:
        """Archive, retire and forget the windows that are due, at most `AT_ONCE` of each.

        Raises:
            StoreError: the store failed; the next call does the rest.
        """
        await self._archive()
        moment = self._host.moment()
        if not moment.is_confirmed:
            return  # What is deleted does not come back.
        now = moment.now
        if now >= self._retiring_at:
            self._retiring_at = now if await self._retire() else now + _LOOK_S
            await self._archive_questions()
        if now >= self._forgetting_at:
            self._forgetting_at = now if await self._forget() else now + _LOOK_S

    async def _archive(self) -> None:
        """Archive ended windows; one whose record a helper may lack stays loaded until the next start."""
        windows = list(self._windows.ended.values())[:AT_ONCE]
        if not windows:
            return
        rows = [row for window in windows if (row := await self._to_archive(window)) is not None]
        await self._store.write(archive_windows, rows)
        self._windows.note_archived(windows)

    async def _to_archive(self, window: InstalledWindow) -> ArchivedWindow | None:
        """Return a window to archive, after purging it; None for one that must wait, and for a damaged one."""
        window_id = window.window_id
        try:
            await self._store.read(read_window, window_id)  # A damaged row would otherwise fail the whole transaction.
            if await self._is_owed(window):
                return None
            if window_id not in self._windows.purged:
                await self._windows.purge(window_id)  # A purge that an error of the disk interrupted.
        except DamagedError as error:
            self._windows.quarantine(replace(error.damage, window_id=window_id), window.asked)
            return None
        return ArchivedWindow(window_id=window_id, expiry=window.asked.expiry, led=window.is_leader)

    async def _is_owed(self, window: InstalledWindow) -> bool:
        """Return whether a helper may still lack the record, which is delivered at the next start."""
        if not window.is_leader or await self._windows.state_of(window.window_id) is not WindowState.RELEASED:
            return False
        over = self._host.moment(window.others).is_past(window.asked.expiry + self._host.limits.keep_digests_s)
        return not over and await taken(self._store, window.window_id, Step.DELIVERED) is None

    async def _retire(self) -> bool:
        """Retire windows; return whether there may be more. One waits while the broker with its outcome is away."""
        rows = await self._store.read(
            read_archived, Lifecycle.ARCHIVED, FIRST_KEY, self._host.now() - self._host.limits.keep_digests_s
        )
        done = [row.window_id for row in rows if not row.led or await self._windows.outcomes.withdraw(row.window_id)]
        if done:
            await self._store.retire(done, KEPT)
            log.info("windows_retired", count=len(done))
        return len(done) == AT_ONCE

    async def _archive_questions(self) -> None:
        """Archive questions that are over: their windows have expired, and no period's budget counts them any more."""
        limits = self._host.limits
        held = {one.asked.question.question_id for one in self._windows.live.values()}
        for question in list(self._questions.values()):
            schedule = question.asked.schedule
            over = schedule.end + max(schedule.expiry_s + limits.keep_digests_s, limits.budget_period_s)
            if self._host.now() >= over and question.question_id not in held and question.following >= schedule.windows:
                await self._questions.archive(question)
                log.info("question_at_rest", question=str(question.question_id))

    async def _forget(self) -> bool:
        """Forget windows; return whether there may be more. Windows of a question that still runs are skipped."""
        keep_s = self._host.limits.keep_records_s
        if keep_s is None:
            return False
        until = self._host.now() - self._host.limits.keep_digests_s - keep_s
        rows = await self._store.read(read_archived, Lifecycle.RETIRED, self._forgotten, until)
        gone = await self._store.write(forget_windows, [row.window_id for row in rows]) if rows else ()
        for window_id in gone:
            self._windows.evict(window_id)
        if gone:
            log.info("windows_forgotten", count=len(gone))
        more = len(rows) == AT_ONCE
        self._forgotten = rows[-1].sort_key if more else FIRST_KEY
        return more

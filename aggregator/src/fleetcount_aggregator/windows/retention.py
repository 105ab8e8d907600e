"""How long what has ended is kept: windows go to rest when nothing is left to do for them, are retired, are forgotten.

An ended window at rest is not loaded at a start, nor is a question that counts in no period's budget any more.
`keep_digests_s` after a window expires the digests of its reports go, and what only its own repetition needed;
`keep_records_s` later, if the operator wants that, its record and its debit. Decides by this aggregator's clock; never
touches a window that has not ended.
"""

from dataclasses import replace
from typing import Final

from fleetcount_protocol.messages import WindowState
from fleetcount_transport.logs import log

from fleetcount_aggregator.journal import KEPT, Step, taken
from fleetcount_aggregator.memory.installed import InstalledWindow
from fleetcount_aggregator.memory.questions import Questions
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.storage.ended import AT_ONCE, FIRST_KEY, ArchivedWindow, SortKey
from fleetcount_aggregator.storage.errors import DamagedError
from fleetcount_aggregator.storage.row_types import Lifecycle

_LOOK_S: Final = 60
"""Seconds between two looks for windows whose time is over, while there are none."""


class Retention:
    """Looks after the ended windows of one aggregator."""

    def __init__(self, windows: Windows, questions: Questions) -> None:
        self._windows = windows
        self._questions = questions
        self._host = windows.host
        self._store = windows.store
        self._retiring_at = self._forgetting_at = -1.0
        self._forgotten: SortKey = FIRST_KEY

    async def look(self) -> None:
        """Put to rest, retire and forget what is due, `AT_ONCE` windows of each at most.

        Raises:
            StoreError: the store failed; what was not done is done at the next look.
        """
        await self._archive()
        now = self._host.clock.now()
        if now >= self._retiring_at:
            self._retiring_at = now if await self._retire() else now + _LOOK_S
            await self._archive_questions()
        if now >= self._forgetting_at:
            self._forgetting_at = now if await self._forget() else now + _LOOK_S

    async def _archive(self) -> None:
        """Put windows to rest that have ended; one with a record that a helper lacks waits for the next start."""
        windows = list(self._windows.ended.values())[:AT_ONCE]
        if not windows:
            return
        rows = [row for window in windows if (row := await self._to_archive(window)) is not None]
        await self._store.archive_windows(rows)
        self._windows.note_archived(windows)

    async def _to_archive(self, window: InstalledWindow) -> ArchivedWindow | None:
        """Return how a window rests, purged; None for one that waits, and for a damaged one, which waits for a
        repair.
        """
        window_id = window.window_id
        try:
            await self._store.window(window_id)  # Else its row would fail all that go to rest with it.
            if await self._is_owed(window):
                return None
            if window_id not in self._windows.purged:
                await self._windows.purge(window_id)  # What a failing disk has cut off.
        except DamagedError as error:
            self._windows.quarantine(replace(error.damage, window_id=window_id), window.asked)
            return None
        return ArchivedWindow(window_id=window_id, expiry=window.asked.expiry, led=window.is_leader)

    async def _is_owed(self, window: InstalledWindow) -> bool:
        """Whether a helper may still be waiting for the record, which is handed over at the next start."""
        if not window.is_leader or await self._windows.state_of(window.window_id) is not WindowState.RELEASED:
            return False
        over = self._host.now() >= window.asked.expiry + self._host.limits.keep_digests_s
        return not over and await taken(self._store, window.window_id, Step.DELIVERED) is None

    async def _retire(self) -> bool:
        """Retire windows; return whether there may be more. One waits whose outcome a broker keeps that is away."""
        rows = await self._store.archived_windows(
            Lifecycle.ARCHIVED, FIRST_KEY, self._host.now() - self._host.limits.keep_digests_s
        )
        done = [row.window_id for row in rows if not row.led or await self._windows.outcomes.withdraw(row.window_id)]
        if done:
            await self._store.retire(done, KEPT)
            log.info("windows_retired", count=len(done))
        return len(done) == AT_ONCE

    async def _archive_questions(self) -> None:
        """Put questions to rest that are over: their windows have expired, and no budget looks back so far."""
        limits = self._host.limits
        held = {one.asked.question.question_id for one in self._windows.live.values()}
        for question in list(self._questions.values()):
            schedule = question.asked.schedule
            over = schedule.end + max(schedule.expiry_s + limits.keep_digests_s, limits.budget_period_s)
            if self._host.now() >= over and question.question_id not in held and question.following >= schedule.windows:
                await self._questions.archive(question)
                log.info("question_at_rest", question=str(question.question_id))

    async def _forget(self) -> bool:
        """Forget windows; return whether there may be more. Windows of a question that goes on are passed over."""
        keep_s = self._host.limits.keep_records_s
        if keep_s is None:
            return False
        until = self._host.now() - self._host.limits.keep_digests_s - keep_s
        rows = await self._store.archived_windows(Lifecycle.RETIRED, self._forgotten, until)
        gone = await self._store.forget([row.window_id for row in rows]) if rows else ()
        for window_id in gone:
            self._windows.evict(window_id)
        if gone:
            log.info("windows_forgotten", count=len(gone))
        more = len(rows) == AT_ONCE
        self._forgotten = rows[-1].sort_key if more else FIRST_KEY
        return more

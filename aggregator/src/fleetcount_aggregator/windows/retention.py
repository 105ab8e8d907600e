"""How long what has ended is kept: windows go to rest when nothing is left to do for them, are retired, are forgotten.

An ended window at rest is not loaded at a start, nor is a question that counts in no period's budget any more.
`keep_digests_s` after a window expires the digests of its reports go, and what only its own repetition needed;
`keep_records_s` later, if the operator wants that, its record and its debit. Decides by this aggregator's clock; never
touches a window that has not ended.
"""

from dataclasses import replace
from typing import Final

from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.messages import WindowState
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.installed_window import InstalledWindow
from fleetcount_aggregator.journal import KEPT, Step, taken
from fleetcount_aggregator.storage.ended import AT_ONCE, FIRST_KEY, ArchivedWindow, SortKey
from fleetcount_aggregator.storage.errors import DamagedError
from fleetcount_aggregator.storage.row_types import Lifecycle
from fleetcount_aggregator.windows.question_notes import archive_question

_LOOK_S: Final = 60
"""Seconds between two looks for windows whose time is over, while there are none."""


class Retention:
    """Looks after the ended windows of one aggregator."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._retiring_at = self._forgetting_at = -1.0
        self._forgotten: SortKey = FIRST_KEY

    async def look(self) -> None:
        """Put to rest, retire and forget what is due, `AT_ONCE` windows of each at most.

        Raises:
            StoreError: the store failed; what was not done is done at the next look.
        """
        await self._archive()
        now = self._context.clock.now()
        if now >= self._retiring_at:
            self._retiring_at = now if await self._retire() else now + _LOOK_S
            await self._archive_questions()
        if now >= self._forgetting_at:
            self._forgetting_at = now if await self._forget() else now + _LOOK_S

    async def _archive(self) -> None:
        """Put windows to rest that have ended; one with a record that a helper lacks waits for the next start."""
        windows = list(self._context.ended.values())[:AT_ONCE]
        if not windows:
            return
        rows = [row for window in windows if (row := await self._to_archive(window)) is not None]
        await self._context.store.archive_windows(rows)
        for window in windows:
            self._context.ended.pop(window.window_id, None)
            self._context.purged.discard(window.window_id)

    async def _to_archive(self, window: InstalledWindow) -> ArchivedWindow | None:
        """Return how a window rests, purged; None for one that waits, and for a damaged one, which waits for a
        repair.
        """
        context, window_id = self._context, window.window_id
        try:
            await context.store.window(window_id)  # Else its row would fail all that go to rest with it.
            if await self._is_owed(window):
                return None
            if window_id not in context.purged:
                await context.purge(window_id)  # What a failing disk has cut off.
        except DamagedError as error:
            context.quarantine(replace(error.damage, window_id=window_id), window.asked)
            return None
        return ArchivedWindow(window_id=window_id, expiry=window.asked.expiry, led=window.is_leader)

    async def _is_owed(self, window: InstalledWindow) -> bool:
        """Whether a helper may still be waiting for the record, which is handed over at the next start."""
        if not window.is_leader or await self._context.state_of(window.window_id) is not WindowState.RELEASED:
            return False
        over = self._context.now() >= window.asked.expiry + self._context.limits.keep_digests_s
        return not over and await taken(self._context, window.window_id, Step.DELIVERED) is None

    async def _retire(self) -> bool:
        """Retire windows; return whether there may be more. One waits whose outcome a broker keeps that is away."""
        context = self._context
        rows = await context.store.archived_windows(
            Lifecycle.ARCHIVED, FIRST_KEY, context.now() - context.limits.keep_digests_s
        )
        done = [row.window_id for row in rows if not row.led or await context.withdraw(row.window_id)]
        if done:
            await context.store.retire(done, KEPT)
            log.info("windows_retired", count=len(done))
        return len(done) == AT_ONCE

    async def _archive_questions(self) -> None:
        """Put questions to rest that are over: their windows have expired, and no budget looks back so far."""
        context, limits = self._context, self._context.limits
        held = {one.asked.question.question_id for one in context.live.values()}
        for question in list(context.questions.values()):
            schedule = question.asked.schedule
            over = schedule.end + max(schedule.expiry_s + limits.keep_digests_s, limits.budget_period_s)
            if context.now() >= over and question.question_id not in held and question.following >= schedule.windows:
                await archive_question(context, question)
                log.info("question_at_rest", question=str(question.question_id))

    async def _forget(self) -> bool:
        """Forget windows; return whether there may be more. Windows of a question that goes on are passed over."""
        context, keep_s = self._context, self._context.limits.keep_records_s
        if keep_s is None:
            return False
        until = context.now() - context.limits.keep_digests_s - keep_s
        rows = await context.store.archived_windows(Lifecycle.RETIRED, self._forgotten, until)
        gone = await context.store.forget([row.window_id for row in rows]) if rows else ()
        for window_id in gone:
            self._drop(window_id)
        if gone:
            log.info("windows_forgotten", count=len(gone))
        more = len(rows) == AT_ONCE
        self._forgotten = rows[-1].sort_key if more else FIRST_KEY
        return more

    def _drop(self, window_id: WindowId) -> None:
        for known in (self._context.windows, self._context.states, self._context.resting):
            known.pop(window_id, None)

"""How a window in quarantine ends: by the record that the others have, or here, if none of them has one.

Serves the operator's `repair` and a store that was put back from a backup. No number is made up and nothing is drawn: a
record is adopted with all signatures, or the window is aborted. Every other window goes on meanwhile.
"""

import asyncio
import enum
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_protocol.messages import ReleaseAnswer, WindowState
from fleetcount_protocol.window.window import decode_window
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.states import AbortReason
from fleetcount_aggregator.installed_window import InstalledWindow
from fleetcount_aggregator.release.steps import ReleaseSteps
from fleetcount_aggregator.roles.outcomes import adopt_elsewhere, ask_outcomes
from fleetcount_aggregator.roles.restore_catchup import Adoption
from fleetcount_aggregator.storage.database import SealedDatabase
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.row_repair import canonical_of, end_window, mend_others, note_settled
from fleetcount_aggregator.storage.row_types import LedgerRow
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.windows.budget import debit_row

_PAUSE_S = 5.0
"""Between two tries to learn how the windows of a backup have ended."""


class Settled(enum.Enum):
    """What became of a window in quarantine."""

    ADOPTED = "adopted its record"
    ENDED = "ended it here"
    WAITS = "waits for the others to say how it ended"
    BEYOND_REPAIR = "cannot be repaired: what was signed of it is damaged; put back a backup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mended:
    """What was, or would be, done about one window, and which aggregators did not answer."""

    window_id: WindowId
    settled: Settled
    silent: tuple[AggregatorId, ...] = ()


class Repair:
    """Ends windows in quarantine. `store` is the context's own."""

    def __init__(self, context: Context, steps: ReleaseSteps, store: Store) -> None:
        self._context = context
        self._steps = steps
        self._store = store

    async def window(self, window_id: WindowId, reason: AbortReason, *, dry_run: bool = False) -> Mended:
        """Settle one window as far as the others have answered; run again for one that waits.

        Only when every other aggregator says that it has no record, or the window has expired, is it ended here: a
        record that turns up even later still proves itself, and is adopted.

        Raises:
            StoreError: this machine failed.
        """
        window = await self._read(window_id)
        if window is None:
            return Mended(window_id=window_id, settled=Settled.BEYOND_REPAIR)
        answers = await ask_outcomes(self._context, window)
        others = [
            one.aggregator_id for one in window.asked.aggregators if one.aggregator_id != self._context.aggregator_id
        ]
        silent = tuple(other for other in others if other not in answers)
        released = self._has_record(window, answers)
        expired = self._context.clock.now() >= window.asked.expiry
        if silent and not released and not expired:
            return Mended(window_id=window_id, settled=Settled.WAITS, silent=silent)
        settled = Settled.ADOPTED if released else Settled.ENDED
        if not dry_run:
            await self._end(window, reason)
            if released and not await adopt_elsewhere(self._context, self._steps, window, answers):
                settled = Settled.ENDED
        return Mended(window_id=window_id, settled=settled, silent=silent)

    async def _read(self, window_id: WindowId) -> InstalledWindow | None:
        canonical = await self._store.look(lambda db: canonical_of(db, window_id))
        if canonical is None:
            return None
        with suppress(DecodeError):
            window = decode_window(canonical)
            return InstalledWindow(
                asked=window, verify_key=b"", position=window.position_of(self._context.aggregator_id)
            )
        return None

    def _has_record(self, window: InstalledWindow, answers: Mapping[AggregatorId, ReleaseAnswer]) -> bool:
        """Whether one of the answers is a record of the window that all its aggregators have signed."""
        return any(
            self._steps.proves(window, answer.record, answer.signatures)
            for answer in answers.values()
            if answer.state is WindowState.RELEASED
        )

    async def _end(self, window: InstalledWindow, reason: AbortReason) -> None:
        """End the window in the store, take it out of quarantine, and delete what an ended window has no use for."""
        context, window_id = self._context, window.window_id
        debit = debit_row(window.asked, context.now())
        state = await self._store.mend(lambda db: end_window(db, window_id, reason.value, debit))
        context.quarantined.pop(window_id, None)
        context.take_up(window, state)
        await context.purge(window_id)
        log.warning("window_repaired", window=str(window_id), state=state.value, reason=reason.value)

    async def others(self, *, dry_run: bool = False) -> list[str]:
        """Mend what belongs to no window under way; return what was done, or with `dry_run` would be."""

        def debit_of(canonical: bytes) -> LedgerRow:
            return debit_row(decode_window(canonical), self._context.now())

        def work(db: SealedDatabase) -> list[str]:
            db.execute("SAVEPOINT before")
            done = mend_others(db, debit_of)
            if dry_run:
                db.execute("ROLLBACK TO SAVEPOINT before")
            return done

        return await self._store.mend(work)


async def settle_restored(context: Context, steps: ReleaseSteps) -> None:
    """Learn how the windows of a backup and those of after it have ended, before anything else is done about them.

    Returns when all have. They are in quarantine from the start, for their data keys are in no backup. Does nothing for
    a store that was not put back.
    """
    store = context.store
    if not await store.restored():
        return
    repair, adoption = Repair(context, steps, store), Adoption(context, store)
    while True:
        whole = await _look(adoption, repair)
        waiting = [one for one in tuple(context.quarantined) if not await _settles(repair, one)]
        if whole and not waiting:
            break
        log.warning(
            "restored_windows_wait", windows=len(waiting), why="their outcome is asked of the other aggregators"
        )
        await asyncio.sleep(_PAUSE_S)
    await store.mend(note_settled)
    context.adopting = False
    log.info("restored_store_settled")


async def _look(adoption: Adoption, repair: Repair) -> bool:
    """Return whether nothing is lacking any more that the others know of."""
    try:
        return await adoption.look(lambda window_id: _settles(repair, window_id))
    except StoreError as error:
        log.error("restored_store_waits", reason=str(error))
        return False


async def _settles(repair: Repair, window_id: WindowId) -> bool:
    try:
        return (await repair.window(window_id, AbortReason.RESTORED_BACKUP)).settled is not Settled.WAITS
    except StoreError as error:
        log.error("restored_window_waits", window=str(window_id), reason=str(error))
        return False

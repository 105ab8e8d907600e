"""How a window ends that this aggregator cannot end alone: by a record that the others show, or by an abort.

It asks the others for outcomes and adopts a record that proves itself; so it ends windows in quarantine, for the
operator's `repair`, and those that a store put back from a backup lacks. No number is made up and nothing is drawn, and
nothing of what is taken up goes on. It must not take a peer's word for a release.
"""

import asyncio
import enum
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from fleetcount_protocol.errors import DecodeError, PeerError, PeerProblem, QuestionError
from fleetcount_protocol.ids import AggregatorId, QuestionId, WindowId
from fleetcount_protocol.limits import MAX_QUESTIONS
from fleetcount_protocol.messages import FinishedRecord, InstallQuestion, ReleaseAnswer, WindowState
from fleetcount_protocol.question.question import check_verify_seed
from fleetcount_protocol.shared import SharedIds
from fleetcount_protocol.window.window import Window, decode_window
from fleetcount_transport.logs import log

from fleetcount_aggregator.agreement.report_set import abort_here
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.states import AbortReason
from fleetcount_aggregator.memory.installed import InstalledQuestion, InstalledWindow
from fleetcount_aggregator.memory.peers import Peers
from fleetcount_aggregator.memory.questions import Questions, decided_window
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.peers import PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.release.steps import ReleaseSteps
from fleetcount_aggregator.storage.database import SealedDatabase
from fleetcount_aggregator.storage.errors import Damage, StoreError
from fleetcount_aggregator.storage.row_repair import (
    canonical_of,
    end_window,
    is_restored,
    mend_others,
    note_settled,
    take_up_ended,
)
from fleetcount_aggregator.storage.row_types import LedgerRow, WindowRow
from fleetcount_aggregator.windows.budget import debit_row
from fleetcount_aggregator.windows.question_install import adopt_question
from fleetcount_aggregator.windows.question_orders import take_delivered_order
from fleetcount_aggregator.windows.windows import opening_lead_s, past_window

_OPEN: Final = (WindowState.ANNOUNCED, WindowState.COLLECTING)
_LACKED: Final = "is of after the backup"
_PAUSE_S: Final = 5.0
"""Between two tries to learn how the windows of a backup have ended."""


async def abort_windows(
    windows: Windows, question_id: QuestionId, reason: AbortReason, ends: Callable[[int], object] = lambda _: True
) -> None:
    """Abort here the windows of a question that still take reports and of which `ends` says so."""
    for window in list(windows.live.values()):
        place = window.asked.question
        if place.question_id != question_id or windows.states[window.window_id] not in _OPEN:
            continue
        if ends(place.index):
            await abort_here(windows, window.window_id, reason)


async def ask_outcomes(peers: Peers, window: InstalledWindow) -> Mapping[AggregatorId, ReleaseAnswer]:
    """Return what the others of a window say of its end; run by any of its aggregators. Who is silent is left out."""
    others = window.others
    asked = (peers.call(other, lambda peer: peer.outcome(window.window_id)) for other in others)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    found: dict[AggregatorId, ReleaseAnswer] = {}
    for other, answer in zip(others, answers, strict=True):
        if isinstance(answer, ReleaseAnswer):
            found[other] = answer
        elif not isinstance(answer, PeerUnreachableError | PeerRefusalError):
            raise answer
    return found


async def adopt(windows: Windows, steps: ReleaseSteps, window: InstalledWindow, finished: FinishedRecord) -> None:
    """Release a window here by a record that all its aggregators have signed, whoever shows it and whatever was known.

    Raises:
        PeerRefusalError: as `ReleaseSteps.finish`; nothing has changed.
    """
    await steps.finish(window, finished)
    windows.host.failpoints.hit("helper.after_deliver_store")
    if window.is_leader:
        windows.add(
            window, WindowState.RELEASED
        )  # It owes the others the record, also of a window that it had given up.
    await windows.purge(window.window_id)
    log.info("window_released", window=str(window.window_id), name=window.asked.name)


async def adopt_elsewhere(
    windows: Windows, steps: ReleaseSteps, window: InstalledWindow, answers: Mapping[AggregatorId, ReleaseAnswer]
) -> bool:
    """Adopt the window's record if one of the others has shown one that proves itself; return whether it did."""
    for other, answer in answers.items():
        if answer.state is not WindowState.RELEASED:
            continue
        finished = FinishedRecord(window_id=window.window_id, record=answer.record, signatures=answer.signatures)
        try:
            await adopt(windows, steps, window, finished)
        except PeerRefusalError as refusal:
            log.warning("record_not_adopted", window=str(window.window_id), peer=other, reason=str(refusal))
        else:
            log.info("record_adopted", window=str(window.window_id), peer=other)
            return True
    return False


# Windows in quarantine.


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
    """Ends windows in quarantine."""

    def __init__(self, context: Context, steps: ReleaseSteps) -> None:
        self._context = context
        self._steps = steps
        self._windows = context.windows
        self._store = context.store
        self._host = context.host

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
        answers = await ask_outcomes(self._context.peers, window)
        silent = tuple(other for other in window.others if other not in answers)
        released = self._has_record(window, answers)
        expired = self._host.moment(window.others).is_past(window.asked.expiry)
        if silent and not released and not expired:
            return Mended(window_id=window_id, settled=Settled.WAITS, silent=silent)
        settled = Settled.ADOPTED if released else Settled.ENDED
        if not dry_run:
            await self._end(window, reason)
            if released and not await adopt_elsewhere(self._windows, self._steps, window, answers):
                settled = Settled.ENDED
        return Mended(window_id=window_id, settled=settled, silent=silent)

    async def _read(self, window_id: WindowId) -> InstalledWindow | None:
        canonical = await self._store.read(lambda db: canonical_of(db, window_id))
        if canonical is None:
            return None
        with suppress(DecodeError):
            window = decode_window(canonical)
            return InstalledWindow(asked=window, verify_key=b"", position=window.position_of(self._host.aggregator_id))
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
        window_id = window.window_id
        debit = debit_row(window.asked, self._host.now())
        state = await self._store.write(lambda db: end_window(db, window_id, reason.value, debit))
        self._windows.end_quarantine(window, state)
        await self._windows.purge(window_id)
        log.warning("window_repaired", window=str(window_id), state=state.value, reason=reason.value)

    async def others(self, *, dry_run: bool = False) -> list[str]:
        """Mend what belongs to no window under way; return what was done, or with `dry_run` would be."""

        def debit_of(canonical: bytes) -> LedgerRow:
            return debit_row(decode_window(canonical), self._host.now())

        def work(db: SealedDatabase) -> list[str]:
            db.execute("SAVEPOINT before")
            done = mend_others(db, debit_of)
            if dry_run:
                db.execute("ROLLBACK TO SAVEPOINT before")
            return done

        return await self._store.write(work)


# A peer whose store was put back from a backup: it is shown what all have signed, and how a window ended it asks.


def shared_ids(questions: Questions, caller: AggregatorId, after: QuestionId | None) -> SharedIds:
    """Return which of the next question, by id above one, the caller is one of the aggregators of."""
    ids = sorted(one.question_id for one in questions.values() if caller in one.others)
    above = [one for one in ids if after is None or one > after]
    return SharedIds(question_ids=tuple(above[:MAX_QUESTIONS]), more=len(above) > MAX_QUESTIONS)


def shared_question(questions: Questions, caller: AggregatorId, question_id: QuestionId) -> InstallQuestion:
    """Return a question as all have signed it, with what all its aggregators hold: the seed and the orders.

    Raises:
        PeerRefusalError: UNKNOWN_WINDOW, there is none, or the caller is not one of its aggregators.
    """
    question = questions.get(question_id)
    if question is None or caller not in question.others:
        raise PeerRefusalError(PeerProblem.UNKNOWN_WINDOW)
    return InstallQuestion(signed=question.signed, seed=question.seed, orders=question.orders)


# A store of this aggregator that was put back: question, orders and windows that came after the backup.


class Adoption:
    """Asks every other aggregator once for what this store lacks; what it takes up is in quarantine until it ends."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._asked: set[AggregatorId] = set()

    async def look(self, settle: Callable[[WindowId], Awaitable[bool]]) -> bool:
        """Ask who has not shown everything yet; return whether nothing is lacking any more.

        `settle` ends a window, or says that it has to wait.

        Raises:
            StoreError: this machine failed; look again.
        """
        for peer in self._context.peers:
            if peer not in self._asked:
                try:
                    await self._take_from(peer)
                except (PeerUnreachableError, PeerRefusalError) as error:
                    log.warning("restored_store_waits", peer=peer, reason=str(error))
                else:
                    self._asked.add(peer)
        if len(self._asked) < len(self._context.peers):
            return False  # An order that is not known yet may skip a window.
        questions = list(self._context.questions.values())
        return all([await self._windows(one, settle) for one in questions])

    async def _take_from(self, peer: AggregatorId) -> None:
        after: QuestionId | None = None
        while True:
            shared = await self._shared(peer, after)
            for question_id in shared.question_ids:
                await self._take_question(peer, question_id)
            if not shared.more:
                return
            if after is not None and shared.question_ids[-1] <= after:
                raise PeerRefusalError(PeerProblem.MALFORMED)
            after = shared.question_ids[-1]

    async def _shared(self, peer: AggregatorId, after: QuestionId | None) -> SharedIds:
        return await self._context.peers.call(peer, lambda one: one.shared(after))

    def _row(self, window: Window) -> WindowRow:
        """Return a window as it is taken up: without a verify key, so that it can go on nowhere."""
        return WindowRow(
            window_id=window.window_id,
            canonical=window.canonical,
            verify_key=b"",
            state=WindowState.ANNOUNCED,
            abort_reason="",
            installed_at=self._context.host.now(),
        )

    def _quarantine_missing(self, window: Window) -> None:
        window_id = window.window_id
        lacked = Damage(table="windows", what=f"window {window_id.hex()} {_LACKED}", window_id=window_id)
        self._context.windows.quarantine_missing(lacked, window)
        log.info("window_taken_up_again", window=str(window_id), name=window.name)

    async def _take_question(self, peer: AggregatorId, question_id: QuestionId) -> None:
        """Take up a question that is not known here, and the orders about it that are not."""
        context = self._context
        shown = await context.peers.call(peer, lambda one: one.shared_question(question_id))
        try:
            if shown.signed.question.question_id != question_id:
                raise QuestionError("it is another question")
            check_verify_seed(shown.signed.question, shown.seed)
            await adopt_question(context.questions, shown.signed, shown.seed, shown.orders)
            for order in shown.orders:
                await take_delivered_order(context.questions, peer, order)
        except PeerError as error:
            log.warning("shared_question_refused", question=str(question_id), peer=peer, reason=str(error))

    async def _windows(self, question: InstalledQuestion, settle: Callable[[WindowId], Awaitable[bool]]) -> bool:
        """Take up the windows that opened since the backup, each after the one before it has ended."""
        context, schedule = self._context, question.asked.schedule
        lead = opening_lead_s(schedule)
        while question.following < schedule.windows and schedule.opens(question.following) - lead <= context.host.now():
            if question.following > 0:
                before = (await decided_window(context.store, question.question_id, question.following - 1)).window_id
                if before is not None and before in context.windows.quarantined and not await settle(before):
                    return False
            async with question.lock:
                decided = await past_window(context, question, question.following)
                if decided is None:
                    return False
                row, window = decided
                installed = None if window is None else self._row(window.asked)
                await context.store.write(partial(take_up_ended, window=installed, windows=[row]))
                if window is not None:
                    self._quarantine_missing(window.asked)
                question.following = row.index + 1
        return True


async def settle_restored(context: Context, steps: ReleaseSteps) -> None:
    """Learn how the windows of a backup and those of after it have ended, before anything else is done about them.

    Returns when all have. They are in quarantine from the start, for their data keys are in no backup. Does nothing for
    a store that was not put back.
    """
    store = context.store
    if not await store.read(is_restored):
        return
    repair, adoption = Repair(context, steps), Adoption(context)
    while True:
        # Which windows have passed since the backup, the clock says.
        whole = context.host.moment().is_confirmed and await _look(adoption, repair)
        waiting = [one for one in tuple(context.windows.quarantined) if not await _settles(repair, one)]
        if whole and not waiting:
            break
        log.warning(
            "restored_windows_wait", windows=len(waiting), why="their outcome is asked of the other aggregators"
        )
        await asyncio.sleep(_PAUSE_S)
    await store.write(note_settled)
    context.questions.adopting = False
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

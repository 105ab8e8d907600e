"""What a store that was put back from a backup lacks: question, orders and windows that came after it.

Every other aggregator shows what both take part in. What this aggregator's operator has signed is taken up again, and
ends: the record that all have signed is adopted, or the window is aborted, and each is charged. Nothing of it goes on,
so nothing can be drawn a second time. It must not decide how a window ends (`repair`).
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from fleetcount_protocol.errors import PeerError, PeerProblem, QuestionError
from fleetcount_protocol.ids import AggregatorId, QuestionId, WindowId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.derive import check_verify_seed
from fleetcount_protocol.shared import SharedIds
from fleetcount_protocol.window.window import Window
from fleetcount_transport.logs import log

from fleetcount_aggregator.context import Context, Quarantined
from fleetcount_aggregator.installed_question import InstalledQuestion
from fleetcount_aggregator.peers import PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.roles.calling import call_peer
from fleetcount_aggregator.storage.errors import Damage
from fleetcount_aggregator.storage.row_repair import take_up_ended
from fleetcount_aggregator.storage.row_types import WindowRow
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.windows.decided import decided_window
from fleetcount_aggregator.windows.question_install import adopt_question
from fleetcount_aggregator.windows.question_orders import take_delivered_order
from fleetcount_aggregator.windows.windows import opening_lead_s, past_window

_LACKED: Final = "is of after the backup"


class Adoption:
    """Asks every other aggregator once for what this store lacks; what it takes up is in quarantine until it ends."""

    def __init__(self, context: Context, store: Store) -> None:
        self._context = context
        self._store = store
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
        return await call_peer(self._context, peer, lambda one: one.shared(after))

    def _row(self, window: Window) -> WindowRow:
        """Return a window as it is taken up: without a verify key, so that it can go on nowhere."""
        return WindowRow(
            window_id=window.window_id,
            canonical=window.canonical,
            verify_key=b"",
            state=WindowState.ANNOUNCED,
            abort_reason="",
            installed_at=self._context.now(),
        )

    def _set_aside(self, window: Window) -> None:
        window_id = window.window_id
        lacked = Damage(table="windows", what=f"window {window_id.hex()} {_LACKED}", window_id=window_id)
        self._context.quarantined[window_id] = Quarantined(lacked, window)
        log.info("window_taken_up_again", window=str(window_id), name=window.name)

    async def _take_question(self, peer: AggregatorId, question_id: QuestionId) -> None:
        """Take up a question that is not known here, and the orders about it that are not."""
        context = self._context
        shown = await call_peer(context, peer, lambda one: one.shared_question(question_id))
        try:
            if shown.signed.question.question_id != question_id:
                raise QuestionError("it is another question")
            check_verify_seed(shown.signed.question, shown.seed)
            await adopt_question(context, shown.signed, shown.seed, shown.orders)
            for order in shown.orders:
                await take_delivered_order(context, peer, order)
        except PeerError as error:
            log.warning("shared_question_refused", question=str(question_id), peer=peer, reason=str(error))

    async def _windows(self, question: InstalledQuestion, settle: Callable[[WindowId], Awaitable[bool]]) -> bool:
        """Take up the windows that opened since the backup, each after the one before it has ended."""
        context, schedule = self._context, question.asked.schedule
        lead = opening_lead_s(schedule)
        while question.following < schedule.windows and schedule.opens(question.following) - lead <= context.now():
            if question.following > 0:
                before = (await decided_window(context, question.question_id, question.following - 1)).window_id
                if before is not None and before in context.quarantined and not await settle(before):
                    return False
            async with question.lock:
                decided = await past_window(context, question, question.following)
                if decided is None:
                    return False
                row, window = decided
                installed = None if window is None else self._row(window.asked)
                await self._store.mend(partial(take_up_ended, window=installed, windows=[row]))
                if window is not None:
                    self._set_aside(window.asked)
                question.following = row.index + 1
        return True

"""Keeps the windows, question and sessions in this process's memory in step with the database while another
coordinates.

It reads what changed, once a second, and writes nothing. Run by every process of an aggregator over PostgreSQL; the
coordinator itself keeps its memory in step with what it writes.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

from fleetcount_protocol.errors import DecodeError, FleetcountError
from fleetcount_protocol.ids import QuestionId, WindowId
from fleetcount_transport.logs import log

from fleetcount_aggregator.memory.questions import Questions
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.storage.changes import Changes
from fleetcount_aggregator.storage.database import Changed
from fleetcount_aggregator.storage.errors import DamagedError, SchemaMovedError

_LOOK_S: Final = 1.0


class Following:
    """Follows what `changes` names.

    `forget_destroyed`, run in a thread, has the store hold nothing of windows whose key was destroyed elsewhere.
    """

    def __init__(
        self,
        windows: Windows,
        questions: Questions,
        changes: Changes,
        *,
        leads: Callable[[], bool],
        forget_destroyed: Callable[[], None],
    ) -> None:
        self._in_memory = windows
        self._questions_in_memory = questions
        self._changes = changes
        self._leads = leads
        self._forget_destroyed = forget_destroyed
        self._following = asyncio.Lock()

    def missed(self) -> None:
        """Look at everything next: something may have changed unheard, keys that are to be forgotten among it."""
        self._in_memory.sessions.forget()
        self._changes.forget()

    async def rest(self) -> None:
        """Return once nothing is being taken up any more, so that who leads now is not put back by what it read."""
        async with self._following:
            return

    async def run(self) -> None:
        """Follow until cancelled; a store that fails is asked again.

        Raises:
            SchemaMovedError: the database was brought up to what this process does not know; it is to end.
        """
        while True:
            try:
                await self.look()
            except SchemaMovedError:
                raise
            except FleetcountError as error:
                log.warning("not_followed", reason=str(error))
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> None:
        """Take up what has changed so far, unless this process leads.

        Raises:
            FleetcountError: the store failed, or holds what cannot be read; then everything is looked at next.
        """
        async with self._following:
            changed = await self._changes.look()
            if self._leads():
                self._changes.forget()
                return
            try:
                await (self._take_up_all() if changed is None else self._take_up(changed))
            except BaseException:
                self.missed()
                raise

    async def _take_up_all(self) -> None:
        self._in_memory.sessions.forget()
        await asyncio.to_thread(self._forget_destroyed)
        store = self._in_memory.store
        questions = [row.question_id for row in await store.questions()]
        await self._follow(questions, {*self._in_memory.live, *await store.active_windows()})

    async def _take_up(self, changed: Mapping[Changed, Sequence[bytes]]) -> None:
        if sessions := changed.get(Changed.SESSION):
            self._in_memory.sessions.forget(sessions)
        if Changed.DATA_KEY in changed:
            await asyncio.to_thread(self._forget_destroyed)
        questions, windows = (dict.fromkeys(changed.get(kind, ())) for kind in (Changed.QUESTION, Changed.WINDOW))
        await self._follow(map(QuestionId, questions), map(WindowId, windows))

    async def _follow(self, questions: Iterable[QuestionId], windows: Iterable[WindowId]) -> None:
        for question_id in questions:
            await self._unless_damaged(self._questions_in_memory.follow(question_id))
        for window_id in windows:
            await self._unless_damaged(self._in_memory.follow(window_id))

    async def _unless_damaged(self, following: Coroutine[Any, Any, None]) -> None:
        """Follow one of them; what is damaged is left out here, and quarantined by the coordinator."""
        try:
            await following
        except (DamagedError, DecodeError) as error:
            log.error("damaged_not_followed", reason=str(error))

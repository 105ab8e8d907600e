"""Keeps the windows, questions and sessions in memory equal to the database while another process is coordinator.

Every process of an aggregator over PostgreSQL reads the changes once a second and writes nothing. The coordinator
changes its memory when it writes.
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
from fleetcount_aggregator.storage.ended import read_active
from fleetcount_aggregator.storage.errors import DamagedError, SchemaMovedError
from fleetcount_aggregator.storage.question_rows import read_questions

_LOOK_S: Final = 1.0


class Following:
    """Reads the rows that `changes` names into memory.

    `forget_destroyed`, run in a thread, removes data keys from memory that another process destroyed.
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
        """Read everything at the next look: changes, erased keys among them, may have been missed."""
        self._in_memory.sessions.forget()
        self._changes.forget()

    async def rest(self) -> None:
        """Wait until the read under way has ended: its rows are older than what an elected coordinator loads."""
        async with self._following:
            return

    async def run(self) -> None:
        """Look once a second until cancelled, also after a store failed.

        Raises:
            SchemaMovedError: the database has a schema that this process does not know; the process must end.
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
        """Read what has changed since the last look, unless this process is the coordinator.

        Raises:
            FleetcountError: the store failed, or a row cannot be read; the next look reads everything.
        """
        async with self._following:
            changed = await self._changes.look()
            if self._leads():
                self._changes.forget()
                return
            try:
                await (self._read_all() if changed is None else self._read(changed))
            except BaseException:
                self.missed()
                raise

    async def _read_all(self) -> None:
        self._in_memory.sessions.forget()
        await asyncio.to_thread(self._forget_destroyed)
        store = self._in_memory.store
        questions = [row.question_id for row in await store.read(read_questions)]
        await self._follow(questions, {*self._in_memory.live, *await store.read(read_active)})

    async def _read(self, changed: Mapping[Changed, Sequence[bytes]]) -> None:
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
        """Read one window or question; a damaged one is left out here and quarantined by the coordinator."""
        try:
            await following
        except (DamagedError, DecodeError) as error:
            log.error("damaged_not_followed", reason=str(error))

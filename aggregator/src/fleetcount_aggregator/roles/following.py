"""Keeps the windows, question and sessions in this process's memory in step with the database while another
coordinates.

It reads what changed and writes nothing. Run by every process of an aggregator over PostgreSQL; the coordinator itself
keeps its memory in step with what it writes.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fleetcount_protocol.errors import DecodeError, FleetcountError
from fleetcount_protocol.ids import QuestionId, WindowId
from fleetcount_transport.logs import log

from fleetcount_aggregator.memory.questions import Questions
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.storage.errors import DamagedError

_REST_S: Final = 0.5
"""How long it waits after the store has failed."""


class Following:
    """Follows what notices name; `missed` has it look at everything.

    `forget_destroyed`, run in a thread, has the store hold nothing of windows whose key was destroyed elsewhere.
    """

    def __init__(
        self,
        windows: Windows,
        questions: Questions,
        *,
        leads: Callable[[], bool],
        forget_destroyed: Callable[[], None],
    ) -> None:
        self._in_memory = windows
        self._questions_in_memory = questions
        self._leads = leads
        self._forget_destroyed = forget_destroyed
        self._keys_destroyed = False
        self._windows: set[WindowId] = set()
        self._questions: set[QuestionId] = set()
        self._everything = True
        self._heard = asyncio.Event()
        self._following = asyncio.Lock()

    def window_changed(self, named: str) -> None:
        """Take the notice of a window's row."""
        self._windows.add(WindowId(bytes.fromhex(named)))
        self._heard.set()

    def question_changed(self, named: str) -> None:
        """Take the notice of a question's rows."""
        self._questions.add(QuestionId(bytes.fromhex(named)))
        self._heard.set()

    def chain_changed(self, named: str) -> None:
        """Forget a session whose keys were erased in the store, unless this process erased them itself."""
        if not self._leads():
            self._in_memory.sessions.forget([bytes.fromhex(named)])

    def key_destroyed(self, named: str) -> None:
        """Take the notice that the data key of this name was destroyed."""
        del named
        self._keys_destroyed = True
        self._heard.set()

    def missed(self) -> None:
        """Look at everything: something may have changed unheard, keys that are to be forgotten among it."""
        self._in_memory.sessions.forget()
        self._everything = True
        self._heard.set()

    async def rest(self) -> None:
        """Return once nothing is being taken up any more, so that who leads now is not put back by what it read."""
        async with self._following:
            return

    async def run(self) -> None:
        """Follow until cancelled; a store that fails is asked again."""
        while True:
            await self._heard.wait()
            self._heard.clear()
            if self._leads():
                continue
            try:
                await self.follow()
            except FleetcountError as error:
                log.warning("not_followed", reason=str(error))
                await asyncio.sleep(_REST_S)
                self.missed()

    async def follow(self) -> None:
        """Take up what has changed so far.

        Raises:
            FleetcountError: the store failed, or holds what cannot be read.
        """
        async with self._following:
            store = self._in_memory.store
            everything, self._everything = self._everything, False
            questions, self._questions = self._questions, set()
            windows, self._windows = self._windows, set()
            destroyed, self._keys_destroyed = self._keys_destroyed, False
            if everything or destroyed:
                await asyncio.to_thread(self._forget_destroyed)
            if everything:
                questions |= {row.question_id for row in await store.questions()}
                windows |= {*self._in_memory.live, *await store.active_windows()}
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

"""Which windows are in memory and where each stands: those in work, and a few that have ended.

An aggregator has thousands of ended windows: they are read from the store again when they are asked for. It must not
check, install or drive a window.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import Final, NamedTuple

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import QuestionId, WindowId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.window.window import Window, decode_window
from fleetcount_transport.logs import log

from fleetcount_aggregator.host.due_queue import DueQueue
from fleetcount_aggregator.host.host import Host
from fleetcount_aggregator.host.reasons import Waits
from fleetcount_aggregator.host.states import FINAL_STATES, UNFINISHED, StateConflictError
from fleetcount_aggregator.memory.installed import InstalledWindow, learn_window, read_window
from fleetcount_aggregator.memory.sessions import SessionCache
from fleetcount_aggregator.storage.errors import Damage, DamagedError, StoreAwayError, StoreError
from fleetcount_aggregator.storage.row_types import StepRow, WindowChange
from fleetcount_aggregator.storage.store import Store

_MOST_ENDED: Final = 64
"""Ended windows kept in memory, the last to end or to be asked for: devices come late in crowds."""
_OUTCOMES: Final = 4096
"""Outcomes remembered for who publishes them, four times a second: more do not end meanwhile."""


class Quarantined(NamedTuple):
    """A window of which something is damaged, and what was signed, None if that is not whole either."""

    damage: Damage
    window: Window | None


class States(dict[WindowId, WindowState]):
    """The states of the windows in memory. A caller whose window has left memory meanwhile is to come again."""

    def __missing__(self, window_id: WindowId) -> WindowState:
        """Refuse.

        Raises:
            StoreError: always.
        """
        raise StoreError(f"window {window_id.hex()} has left memory meanwhile")


async def no_broker(window_id: WindowId) -> bool:
    """Stand for `Outcomes.withdraw` while the broker cannot be reached: what it keeps it keeps."""
    del window_id
    return False


async def _kept_nowhere(window_id: WindowId) -> bool:
    del window_id
    return True


class Outcomes:
    """The windows this aggregator leads that ended last, for the connection to the broker, which publishes them."""

    def __init__(self) -> None:
        self.count = 0
        """How many have ended since the start."""
        self._last: deque[tuple[WindowId, int]] = deque(maxlen=_OUTCOMES)
        self.withdraw: Callable[[WindowId], Awaitable[bool]] = _kept_nowhere
        """Has the broker keep nothing of a window any more; says whether it keeps nothing."""

    def note(self, window: InstalledWindow) -> None:
        """Remember that a window has ended."""
        if window.is_leader:
            self._last.append((window.window_id, window.asked.expiry))
            self.count += 1

    def since(self, count: int) -> Sequence[tuple[WindowId, int]]:
        """Return the windows that have ended since `count` had, in order, each with its expiry."""
        return list(self._last)[max(0, len(self._last) - (self.count - count)) :]


class Windows(Mapping[WindowId, InstalledWindow]):
    """The windows in memory by id, over the store that has them all.

    A window in work is `live`, and either `due` or waiting until it is; one that ends leaves to `ended` until it is
    archived, and stays readable while it is among the last `_MOST_ENDED`. One in quarantine is in none of them.
    """

    def __init__(self, host: Host, store: Store) -> None:
        self.host = host
        self.store = store
        self.sessions = SessionCache(store, host.source)
        self.waits = Waits(host.clock.now)
        self.outcomes = Outcomes()
        self.started = host.clock.now()
        """When it began to look after the windows: at the start of this process, or when that was elected."""
        self.steps_under_way: dict[tuple[WindowId, str], asyncio.Task[StepRow]] = {}
        """The steps that are being taken now (`journal`)."""
        self._known: dict[WindowId, InstalledWindow] = {}
        self._states = States()
        self._live: dict[WindowId, InstalledWindow] = {}
        self._due: dict[WindowId, InstalledWindow] = {}
        self._waiting: DueQueue[WindowId] = DueQueue()
        self._ended: dict[WindowId, InstalledWindow] = {}
        self._ended_cache: dict[WindowId, None] = {}
        self._purged: set[WindowId] = set()
        self._quarantined: dict[WindowId, Quarantined] = {}
        self._unknown_charges: list[Damage] = []
        self._erasing = asyncio.Lock()

    def __getitem__(self, window_id: WindowId) -> InstalledWindow:
        return self._known[window_id]

    def __iter__(self) -> Iterator[WindowId]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def states(self) -> Mapping[WindowId, WindowState]:
        """The state of every window in memory."""
        return self._states

    @property
    def live(self) -> Mapping[WindowId, InstalledWindow]:
        """The windows in work: those that have not ended, or of which the leader still owes the others the record."""
        return self._live

    @property
    def due(self) -> Mapping[WindowId, InstalledWindow]:
        """Those of `live` that are to be looked at: new, moved, or with something to do (`roles.scheduler`)."""
        return self._due

    @property
    def ended(self) -> Mapping[WindowId, InstalledWindow]:
        """Those that have left `live` and are not archived in the store yet (`windows.retention`)."""
        return self._ended

    @property
    def ended_cache(self) -> Set[WindowId]:
        """The ended windows that are still in memory, the first to leave first."""
        return self._ended_cache.keys()

    @property
    def purged(self) -> Set[WindowId]:
        """Those that have ended and been purged, and are not archived yet."""
        return self._purged

    @property
    def quarantined(self) -> Mapping[WindowId, Quarantined]:
        """The windows that take part in nothing, for something of them is damaged in the store; they stay there."""
        return self._quarantined

    # Time.

    def leeway_s(self, window: InstalledWindow) -> float:
        """How long after a window has closed its instalments are still taken: a twentieth of it at most."""
        return min(self.host.limits.leeway_s, window.shortest_round_s / 20)

    def is_over(self, window: InstalledWindow) -> bool:
        """Whether the window's last round has closed by this aggregator's clock, its leeway too."""
        return self.host.clock.now() >= window.closes + self.leeway_s(window)

    def wait_until(self, moment: float, window_id: WindowId) -> None:
        """Let a window be due again at a moment, or when it moves; until then it costs nothing."""
        self._due.pop(window_id, None)
        self._waiting.put(moment, window_id)

    def pass_time(self) -> None:
        """Let the windows in work whose moment has come be due."""
        for window_id in self._waiting.take(self.host.clock.now()):
            if window_id in self._live:
                self._due[window_id] = self._live[window_id]

    # States.

    async def state_of(self, window_id: WindowId) -> WindowState | None:
        """Return the state of a window, in memory or not; None if there is no such window."""
        if window_id in self._states:
            return self._states[window_id]
        row = await self.store.window(window_id)
        return None if row is None else row.state

    async def apply(self, change: WindowChange) -> StepRow | None:
        """Apply a change to the store, and remember the state the window is in after it; see `Store.apply`."""
        try:
            known = await self.store.apply(change)
        except StateConflictError as conflict:
            self._note_state(change.window_id, conflict.state)
            raise
        if known is None and change.new_state is not None:
            self._note_state(change.window_id, change.new_state)
        return known

    async def catch_up(self, window_id: WindowId) -> None:
        """Remember the state that a window is in by the store: a change was stored there, and its answer was lost."""
        before = self._states.get(window_id)
        row = await self.store.window(window_id)
        if row is not None and self._states.get(window_id) is before:  # What moved meanwhile is newer.
            self._note_state(window_id, row.state)

    def _note_state(self, window_id: WindowId, state: WindowState) -> None:
        if self._states.get(window_id) is state:
            return
        self._states[window_id] = state
        self.host.metrics.window_moved(state)
        if window_id in self._live:
            self._due[window_id] = self._live[window_id]
        window = self._known.get(window_id)
        if state in FINAL_STATES and window is not None:
            self.outcomes.note(window)

    # From the beginning of a window to its end.

    def take_up(self, window: InstalledWindow, state: WindowState) -> None:
        """Remember a window that the store has, and the state it is in there."""
        for known in (self._known, self._live, self._due):
            known[window.window_id] = window
        self._states[window.window_id] = state

    async def find(self, window_id: WindowId) -> InstalledWindow | None:
        """Return a window of this aggregator, read from the store if it has ended; None for any other id.

        Raises:
            DamagedError: it is in quarantine.
            StoreError: the store failed.
        """
        self.check_whole(window_id)
        known = self._known.get(window_id)
        if known is not None:
            return known
        row = await self.store.window(window_id)
        if row is None or row.state not in FINAL_STATES:
            return self._known.get(window_id)  # What is being installed is not here before it is taken up.
        window = read_window(self.store, self.host.aggregator_id, row)
        self._known[window_id] = window
        self._states[window_id] = row.state
        self._cache(window)
        return window

    def _cache(self, window: InstalledWindow) -> None:
        """Let an ended window leave memory, once `_MOST_ENDED` others have ended or been asked for after it."""
        self._ended_cache[window.window_id] = None
        while len(self._ended_cache) > _MOST_ENDED:
            self.evict(next(iter(self._ended_cache)))

    def evict(self, window_id: WindowId) -> None:
        """Let an ended window leave memory; the store may have forgotten it."""
        for known in (self._ended_cache, self._known, self._states):
            known.pop(window_id, None)

    async def purge(self, window_id: WindowId) -> None:
        """Forget what an ended window no longer needs, first of all the keys that open its reports (`Store.purge`)."""
        async with self._erasing:  # Of two windows at a time, one could put back what the other has erased.
            await self.store.erase_window_keys(self.sessions.chain_seal, self.sessions.live, window_id)
        await self.store.purge(window_id)
        self._purged.add(window_id)

    def end(self, window: InstalledWindow) -> None:
        """Let a window leave that has ended for good: nothing is left to do about it but to archive it."""
        for known in (self._live, self._due):
            del known[window.window_id]
        self.waits.forget(window.window_id)
        self._ended[window.window_id] = window
        self._cache(window)

    def note_archived(self, windows: Iterable[InstalledWindow]) -> None:
        """Drop windows from those that have ended: the store has archived them, or they wait for the next start."""
        for window in windows:
            self._ended.pop(window.window_id, None)
            self._purged.discard(window.window_id)

    # Damage.

    def quarantine(self, damage: Damage, window: Window | None = None) -> None:
        """Let a window take part in nothing until it is repaired; the others go on.

        Damage that belongs to no window is counted and logged. `window`: what was signed, if that is whole: what it was
        charged goes on to count.
        """
        self.host.metrics.damaged(damage.table)
        log.error("damaged", what=str(damage), window=None if damage.window_id is None else str(damage.window_id))
        if damage.hides_charge:
            self._unknown_charges.append(damage)
        if damage.window_id is None:
            return
        known = self._known.pop(damage.window_id, None)
        self._quarantined.setdefault(damage.window_id, Quarantined(damage, known.asked if known else window))
        for held in (self._live, self._due, self._ended_cache, self._ended):
            held.pop(damage.window_id, None)

    def set_aside(self, damage: Damage, window: Window) -> None:
        """Put a window in quarantine that this store lacks, though nothing of it is damaged (`roles.outcomes`)."""
        self._quarantined[window.window_id] = Quarantined(damage, window)

    def take_back(self, window: InstalledWindow, state: WindowState) -> None:
        """Take a window out of quarantine that the store has ended."""
        self._quarantined.pop(window.window_id, None)
        self.take_up(window, state)

    def check_whole(self, window_id: WindowId) -> None:
        """Return if nothing of a window is known to be damaged.

        Raises:
            DamagedError: it is in quarantine: peers and devices are told to come again.
        """
        if window_id in self._quarantined:
            raise DamagedError(self._quarantined[window_id].damage)

    def unknown_charges(self) -> Sequence[Damage]:
        """Return what is damaged so that nobody can tell what was charged for it: questions, windows and debits."""
        return [*self._unknown_charges, *(one.damage for one in self._quarantined.values() if one.window is None)]

    async def _quarantine(self, damage: Damage) -> None:
        """Put a window in quarantine with its fields, if its bytes are whole."""
        window: Window | None = None
        if damage.window_id is not None and (canonical := await self.store.canonical(damage.window_id)) is not None:
            with suppress(DecodeError):
                found = decode_window(canonical)
                window = found if found.window_id == damage.window_id else None
        self.quarantine(damage, window)

    # What the store has.

    async def load(self, questions: Container[QuestionId]) -> None:
        """Take up the windows in work, when the process starts or is elected; `questions` are those that are loaded.

        What is damaged is named, and its window in quarantine; the others are taken up. A record that a helper lacks,
        or an abort that is not known everywhere, is work. Finishes the purges a crash has cut off.

        Raises:
            FleetcountError: a stored window cannot be read (another at-rest key).
        """
        self.started = self.host.clock.now()  # Whom a leader has talked to before nothing in memory says.
        damaged = await self.store.damaged()
        # Who led meanwhile may have settled what an earlier term found; what is damaged still is found again below.
        for window_id in self._quarantined.keys() - {one.window_id for one in damaged}:
            del self._quarantined[window_id]
        for damage in damaged:
            await self._quarantine(damage)
        self._ended.clear()  # What a former term has left of them is in work still, or another's work is done.
        in_work = await self.store.active_windows()
        for window_id in in_work:
            if window_id not in self._quarantined:
                await self._load_one(window_id, questions)
        for window_id in self._live.keys() - set(in_work):
            await self._unload(window_id)
        # Who is elected has started long ago: what was cut off since then still has its key.
        keys = await asyncio.to_thread(self.store.data_keys.held)
        cut_off = [one for one in self._live if one in keys and self._states[one] in FINAL_STATES]
        for window_id in dict.fromkeys((*await self.store.unpurged(), *cut_off)):
            if window_id not in self._quarantined and await self.state_of(window_id) is not None:
                try:
                    await self.purge(window_id)
                except DamagedError as error:
                    await self._quarantine(error.damage)

    async def _unload(self, window_id: WindowId) -> None:
        """Evict what another process has archived before this one was elected, and no notice said so."""
        try:
            await self.follow(window_id)
        except DamagedError as error:
            await self._quarantine(error.damage)
        for held in (self._live, self._due):
            held.pop(window_id, None)  # It may be forgotten.

    async def follow(self, window_id: WindowId) -> None:
        """Take up what the store has of one window that another process of this aggregator installed or moved.

        Raises:
            FleetcountError: the store failed, or the window cannot be read.
        """
        row = await self.store.window(window_id)
        if row is None:
            return
        known = self._known.get(window_id)
        if row.state in UNFINISHED:
            self.take_up(known or await learn_window(self.store, self.host.aggregator_id, row), row.state)
            return
        for held in (self._live, self._due):
            held.pop(window_id, None)
        if known is not None and self._states[window_id] is not row.state:
            self._states[window_id] = row.state
            self.outcomes.note(known)
            self._cache(known)

    async def _load_one(self, window_id: WindowId, questions: Container[QuestionId]) -> None:
        try:
            row = await self.store.window(window_id)
            if row is None:
                return
            window = await learn_window(self.store, self.host.aggregator_id, row)
        except DamagedError as error:
            await self._quarantine(error.damage)
            return
        except StoreAwayError:
            raise
        except StoreError:
            key = Damage(
                table="windows", what=f"the verify key of window {window_id.hex()} does not open", window_id=window_id
            )
            await self._quarantine(key)
            return
        if window.asked.question.question_id not in questions and row.state in UNFINISHED:
            damage = Damage(
                table="questions",
                what=f"window {window_id.hex()} is a window of a question that is damaged",
                window_id=window_id,
            )
            self.quarantine(damage, window.asked)
            return
        self.take_up(window, row.state)

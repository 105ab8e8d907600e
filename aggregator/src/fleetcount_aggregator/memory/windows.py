"""The windows in memory and the state of each: all that have not ended, and a cache of those that have.

The thousands of ended windows of an aggregator are read from the store when somebody asks for them. This module must
not check, install or drive a window.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import QuestionId, WindowId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.window.window import Window, decode_window
from fleetcount_transport.logs import log

from fleetcount_aggregator.host.host import Host
from fleetcount_aggregator.host.moment import DueQueue
from fleetcount_aggregator.host.reasons import Waits
from fleetcount_aggregator.host.states import FINAL_STATES, UNFINISHED, StateConflictError
from fleetcount_aggregator.memory.installed import InstalledWindow, installed_of, learn_window
from fleetcount_aggregator.memory.sessions import SessionCache
from fleetcount_aggregator.storage.ended import read_active
from fleetcount_aggregator.storage.errors import Damage, DamagedError, StoreAwayError, StoreError
from fleetcount_aggregator.storage.row_types import StepRow, WindowChange
from fleetcount_aggregator.storage.rows import read_canonical, read_window
from fleetcount_aggregator.storage.store import Store

_MOST_ENDED: Final = 64
"""The size of the cache of ended windows: after a window's end many devices ask for it within minutes."""
_OUTCOMES: Final = 4096
"""Outcomes kept for the connection that publishes them four times a second; fewer windows end in between."""


class Quarantined(NamedTuple):
    """A window with a damaged row, and its signed fields, None if these are damaged too."""

    damage: Damage
    window: Window | None


class States(dict[WindowId, WindowState]):
    """The states of the windows in memory; the caller repeats a call for a window that was evicted during it."""

    def __missing__(self, window_id: WindowId) -> WindowState:
        """Refuse a window that is not in memory.

        Raises:
            StoreError: always.
        """
        raise StoreError(f"window {window_id.hex()} has left memory meanwhile")


async def broker_unreachable(window_id: WindowId) -> bool:
    """Serve as `Outcomes.withdraw` until a connection to the broker replaces it: nothing is deleted there."""
    del window_id
    return False


async def _nothing_retained(window_id: WindowId) -> bool:
    """Serve as `Outcomes.withdraw` where no broker is configured."""
    del window_id
    return True


class Outcomes:
    """The last windows to end that this aggregator leads; the connection to the broker publishes them."""

    def __init__(self) -> None:
        self.count = 0
        """The number of windows that have ended since the start."""
        self._last: deque[tuple[WindowId, int]] = deque(maxlen=_OUTCOMES)
        self.withdraw: Callable[[WindowId], Awaitable[bool]] = _nothing_retained
        """Deletes the retained messages of a window at the broker; returns whether none is left."""

    def note(self, window: InstalledWindow) -> None:
        """Remember that a window has ended."""
        if window.is_leader:
            self._last.append((window.window_id, window.asked.expiry))
            self.count += 1

    def since(self, count: int) -> Sequence[tuple[WindowId, int]]:
        """Return the windows that ended after the first `count`, in order, each with its expiry (Unix seconds)."""
        return list(self._last)[max(0, len(self._last) - (self.count - count)) :]


class Windows(Mapping[WindowId, InstalledWindow]):
    """The windows in memory by id; the store has all windows.

    A window that has not ended is `live`, and either `due` or in the queue with the time at which it will be. When it
    ends it moves from `live` to `ended` until the store has archived it, and into a cache of `_MOST_ENDED` windows. A
    window in quarantine is in none of these.
    """

    def __init__(self, host: Host, store: Store) -> None:
        self.host = host
        self.store = store
        self.sessions = SessionCache(store, host.source)
        self.waits = Waits(host.moments.now)
        self.outcomes = Outcomes()
        self.started = host.moment().now
        """When this process began to drive windows, in Unix seconds: at its start or its election as coordinator."""
        self.steps_under_way: dict[tuple[WindowId, str], asyncio.Task[StepRow]] = {}
        """The steps that run now (`durable_steps`)."""
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
        self._purging: WeakValueDictionary[WindowId, asyncio.Lock] = WeakValueDictionary()

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
        """The windows that have not ended, or whose record or abort another aggregator still lacks."""
        return self._live

    @property
    def due(self) -> Mapping[WindowId, InstalledWindow]:
        """The windows of `live` for the scheduler's next pass: new, in a new state, or with their time reached."""
        return self._due

    @property
    def ended(self) -> Mapping[WindowId, InstalledWindow]:
        """The ended windows that the store has not archived yet (`windows.retention`)."""
        return self._ended

    @property
    def purged(self) -> Set[WindowId]:
        """The windows of `ended` whose reports and keys are deleted (`purge`)."""
        return self._purged

    @property
    def quarantined(self) -> Mapping[WindowId, Quarantined]:
        """The windows with damage in the store: no step, report or request reaches them until they are repaired."""
        return self._quarantined

    # Time.

    def leeway_s(self, window: InstalledWindow) -> float:
        """Return for how many seconds after its close a window accepts instalments: at most 1/20 of a round."""
        return min(self.host.limits.leeway_s, window.shortest_round_s / 20)

    def is_over(self, window: InstalledWindow) -> bool:
        """Return whether the window's last round and its leeway have ended, by a clock that is confirmed: after that
        nothing more is taken, and what was taken is released or given up.
        """
        return self.host.moment(window.others).is_past(window.closes + self.leeway_s(window))

    def wait_until(self, moment: float, window_id: WindowId) -> None:
        """Make a window due again at `moment` (Unix seconds), or earlier when its state changes."""
        self._due.pop(window_id, None)
        self._waiting.put(moment, window_id)

    def update_due(self) -> None:
        """Add to `due` the live windows whose time has been reached."""
        for window_id in self._waiting.take(self.host.moment().now):
            if window_id in self._live:
                self._due[window_id] = self._live[window_id]

    # States.

    async def state_of(self, window_id: WindowId) -> WindowState | None:
        """Return the state of a window, in memory or not; None if there is no such window."""
        if window_id in self._states:
            return self._states[window_id]
        row = await self.store.read(read_window, window_id)
        return None if row is None else row.state

    async def apply(self, change: WindowChange) -> StepRow | None:
        """Apply a change to the store and note the window's new state; see `Store.apply`."""
        try:
            known = await self.store.apply(change)
        except StateConflictError as conflict:
            self._note_state(change.window_id, conflict.state)
            raise
        if known is None and change.new_state is not None:
            self._note_state(change.window_id, change.new_state)
        return known

    async def catch_up(self, window_id: WindowId) -> None:
        """Read a window's state from the store, after a change whose commit was not confirmed."""
        before = self._states.get(window_id)
        row = await self.store.read(read_window, window_id)
        if row is not None and self._states.get(window_id) is before:  # A change during the read is newer.
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

    def add(self, window: InstalledWindow, state: WindowState) -> None:
        """Add a window that the store has, with its state there, to `live` and `due`."""
        for known in (self._known, self._live, self._due):
            known[window.window_id] = window
        self._states[window.window_id] = state

    async def find(self, window_id: WindowId) -> InstalledWindow | None:
        """Return a window of this aggregator, read from the store if it has ended; None for any other id.

        Raises:
            DamagedError: it is in quarantine.
            StoreError: the store failed.
        """
        self.check_undamaged(window_id)
        known = self._known.get(window_id)
        if known is not None:
            return known
        row = await self.store.read(read_window, window_id)
        if row is None or row.state not in FINAL_STATES:
            return self._known.get(window_id)  # A window being installed is added after its commit.
        window = installed_of(self.store, self.host.aggregator_id, row)
        self._known[window_id] = window
        self._states[window_id] = row.state
        self._cache(window)
        return window

    def _cache(self, window: InstalledWindow) -> None:
        """Put an ended window into the cache, and evict the oldest beyond `_MOST_ENDED`."""
        self._ended_cache[window.window_id] = None
        while len(self._ended_cache) > _MOST_ENDED:
            self.evict(next(iter(self._ended_cache)))

    def evict(self, window_id: WindowId) -> None:
        """Remove an ended window from memory; the store may have deleted it."""
        for known in (self._ended_cache, self._known, self._states):
            known.pop(window_id, None)

    async def purge(self, window_id: WindowId) -> None:
        """Delete an ended window's reports, after the keys that decrypt them (`Store.purge`)."""
        # A release and retention look at the same window: who reads it while the other deletes finds a part of it.
        async with self._purging.setdefault(window_id, asyncio.Lock()):
            if window_id in self._purged:
                return
            async with self._erasing:  # Two at a time could each write back the key that the other erases.
                await self.store.erase_window_keys(self.sessions.chain_seal, self.sessions.live, window_id)
            await self.store.purge(window_id)
            self._purged.add(window_id)

    def end(self, window: InstalledWindow) -> None:
        """Move an ended window from `live` to `ended`: only archiving is left to do."""
        for known in (self._live, self._due):
            del known[window.window_id]
        self.waits.forget(window.window_id)
        self._ended[window.window_id] = window
        self._cache(window)

    def note_archived(self, windows: Iterable[InstalledWindow]) -> None:
        """Remove windows from `ended`: the store has archived them, or the next start does it."""
        for window in windows:
            self._ended.pop(window.window_id, None)
            self._purged.discard(window.window_id)

    # Damage.

    def quarantine(self, damage: Damage, window: Window | None = None) -> None:
        """Exclude a damaged window from all work until it is repaired.

        Damage that belongs to no window is counted and logged. `window` has the signed fields if they are undamaged:
        the budget then still counts its charge.
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

    def quarantine_missing(self, damage: Damage, window: Window) -> None:
        """Put a window in quarantine that is missing in this restored store (`roles.outcomes`)."""
        self._quarantined[window.window_id] = Quarantined(damage, window)

    def end_quarantine(self, window: InstalledWindow, state: WindowState) -> None:
        """Take a window out of quarantine after its repair in the store, which ended it."""
        self._quarantined.pop(window.window_id, None)
        self.add(window, state)

    def check_undamaged(self, window_id: WindowId) -> None:
        """Refuse a window in quarantine.

        Raises:
            DamagedError: it is in quarantine; peers and devices repeat their request later.
        """
        if window_id in self._quarantined:
            raise DamagedError(self._quarantined[window_id].damage)

    def unknown_charges(self) -> Sequence[Damage]:
        """Return the damage that hides a charge from the budget: of questions, windows and debits."""
        return [*self._unknown_charges, *(one.damage for one in self._quarantined.values() if one.window is None)]

    async def _quarantine(self, damage: Damage) -> None:
        """Put a window in quarantine, with its signed fields if they decode."""
        window: Window | None = None
        if (
            damage.window_id is not None
            and (canonical := await self.store.read(read_canonical, damage.window_id)) is not None
        ):
            with suppress(DecodeError):
                found = decode_window(canonical)
                window = found if found.window_id == damage.window_id else None
        self.quarantine(damage, window)

    # Loading from the store.

    async def load(self, questions: Container[QuestionId]) -> None:
        """Load the windows that have not ended, at the start of the process or its election as coordinator.

        `questions` are the loaded ones. Damaged windows go into quarantine. Purges that a crash interrupted are
        completed.

        Raises:
            FleetcountError: a stored window cannot be read (another at-rest key).
        """
        self.started = self.host.moment().now  # Calls of an earlier leader are not in memory.
        damaged = await self.store.damaged()
        # Another coordinator may have repaired what this process found before; the loop below finds what is left.
        for window_id in self._quarantined.keys() - {one.window_id for one in damaged}:
            del self._quarantined[window_id]
        for damage in damaged:
            await self._quarantine(damage)
        # What an earlier election left here is loaded again below, or another coordinator has archived it.
        self._ended.clear()
        in_work = await self.store.read(read_active)
        for window_id in in_work:
            if window_id not in self._quarantined:
                await self._load_one(window_id, questions)
        for window_id in self._live.keys() - set(in_work):
            await self._unload(window_id)
        # The store names purges interrupted before this process started; one interrupted since then still has its key.
        keys = await asyncio.to_thread(self.store.data_keys.held)
        cut_off = [one for one in self._live if one in keys and self._states[one] in FINAL_STATES]
        for window_id in dict.fromkeys((*self.store.unpurged, *cut_off)):
            if window_id not in self._quarantined and await self.state_of(window_id) is not None:
                try:
                    await self.purge(window_id)
                except DamagedError as error:
                    await self._quarantine(error.damage)

    async def _unload(self, window_id: WindowId) -> None:
        """Remove a window that another process archived before this one was elected."""
        try:
            await self.follow(window_id)
        except DamagedError as error:
            await self._quarantine(error.damage)
        for held in (self._live, self._due):
            held.pop(window_id, None)  # The store may have deleted it.

    async def follow(self, window_id: WindowId) -> None:
        """Read one window from the store that another process of this aggregator installed or changed.

        Raises:
            FleetcountError: the store failed, or the window cannot be read.
        """
        row = await self.store.read(read_window, window_id)
        if row is None:
            return
        known = self._known.get(window_id)
        if row.state in UNFINISHED:
            self.add(known or await learn_window(self.store, self.host.aggregator_id, row), row.state)
            return
        for held in (self._live, self._due):
            held.pop(window_id, None)
        if known is not None and self._states[window_id] is not row.state:
            self._states[window_id] = row.state
            self.outcomes.note(known)
            self._cache(known)

    async def _load_one(self, window_id: WindowId, questions: Container[QuestionId]) -> None:
        try:
            row = await self.store.read(read_window, window_id)
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
        self.add(window, row.state)

"""Everything one aggregator's rules take from outside: identity, store, clock, randomness, peers, workers, limits.

Every role gets this one value. It holds the windows in memory and keeps their states in step with the store; it must
not decide anything.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Final, NamedTuple, Protocol

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_mechanisms.accounting.vectors import LARGEST_BUDGET
from fleetcount_mechanisms.noise import NoiseLaw
from fleetcount_mechanisms.randomness import RandomSource, SystemRandom
from fleetcount_protocol.clock import Clock
from fleetcount_protocol.ids import AggregatorId, QuestionId, WindowId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.key_list import SignedKeyList
from fleetcount_protocol.window.signing import TrustedAggregator
from fleetcount_protocol.window.window import Window
from fleetcount_transport.admission.admission import Admission
from fleetcount_transport.denials import Denials
from fleetcount_transport.failpoints import Failpoints
from fleetcount_transport.logs import log

from fleetcount_aggregator.greetings import Greetings
from fleetcount_aggregator.host.due_queue import DueQueue
from fleetcount_aggregator.host.health_observations import HealthObservations
from fleetcount_aggregator.host.keys import KeyRing
from fleetcount_aggregator.host.metrics import Metrics
from fleetcount_aggregator.host.reasons import Waits
from fleetcount_aggregator.host.single_flight import SingleFlight
from fleetcount_aggregator.host.states import FINAL_STATES, StateConflictError
from fleetcount_aggregator.installed_question import InstalledQuestion
from fleetcount_aggregator.installed_window import InstalledWindow
from fleetcount_aggregator.peers import Peer
from fleetcount_aggregator.storage.data_keys import ChainSeal, DataKey
from fleetcount_aggregator.storage.errors import Damage, DamagedError, StoreError
from fleetcount_aggregator.storage.row_types import StepRow, WindowChange
from fleetcount_aggregator.storage.session_chains import PackedSession
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.verification.workers import Workers

_LARGEST_TOTAL: Final = Decimal(LARGEST_BUDGET)
UNFINISHED: Final = frozenset(WindowState) - FINAL_STATES
_OUTCOMES: Final = 4096
"""Outcomes remembered for who publishes them, four times a second: more do not end meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this aggregator is.

    `trusted` holds itself and every configured peer; `device_ca` is the authority that enrols devices.
    """

    aggregator_id: AggregatorId
    operator: str
    deployment: str
    signing_key: Ed25519PrivateKey = field(repr=False)
    trusted: Mapping[AggregatorId, TrustedAggregator]
    device_ca: tuple[x509.Certificate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What this aggregator's operator allows.

    `largest_epsilon` bounds the sum over windows that overlap on one signal: the public's loss for any value replaced
    by any other, and with `allow_one_sided` those for a value replaced by none. `total_epsilon` (None: ten times as
    much) at `total_delta` bounds what the questions on one signal lose together in any `budget_period_s` seconds.
    A record that gives a person a posterior above `largest_posterior` is not signed (`release.telling`).
    The digests of a window's reports are kept until `keep_digests_s` after it expires, its record and its debit until
    `keep_records_s` after that, None for ever.
    `give_up_s` is how long after its last window a window may take before its leader gives up; a helper waits twice as
    long for a silent leader. `leeway_s` is how late an instalment may come, if that is not more than a twentieth of its
    window; no window is installed with a peer whose clock is further away than `largest_skew_s`.
    """

    largest_epsilon: Decimal = Decimal(4)
    total_epsilon: Decimal | None = None
    total_delta: Fraction = Fraction(1, 10**9)
    budget_period_s: int = 30 * 86_400
    smallest_min_batch_size: int = 10
    allow_exact_release: bool = False
    allow_one_sided: bool = False
    largest_posterior: Fraction | None = None
    sessions_per_device: int = 16
    keep_digests_s: int = 86_400
    keep_records_s: int | None = None
    give_up_s: float = 900.0
    leeway_s: float = 0.0
    largest_skew_s: float = 30.0
    call_timeout_s: float = 30.0
    first_retry_s: float = 0.1
    longest_retry_s: float = 5.0

    @property
    def period_epsilon(self) -> Decimal:
        """The limit of a period."""
        return min(10 * self.largest_epsilon, _LARGEST_TOTAL) if self.total_epsilon is None else self.total_epsilon


class NoiseSource(Protocol):
    """Where noise comes from. Only tests have another source than `release.noise.SystemNoise`."""

    def draw(self, law: NoiseLaw, count: int) -> list[int]:
        """Return `count` independent integers of the law of the window's design."""
        ...


class Quarantined(NamedTuple):
    """A window of which something is damaged, and what was signed, None if that is not whole either."""

    damage: Damage
    window: Window | None


async def no_broker(window_id: WindowId) -> bool:
    """Stand for `Context.withdraw` while the broker cannot be reached: what it keeps it keeps."""
    del window_id
    return False


async def _kept_nowhere(window_id: WindowId) -> bool:
    del window_id
    return True


class States(dict[WindowId, WindowState]):
    """The states of the windows in memory. Who looked for a window that has left it meanwhile is to come again."""

    def __missing__(self, window_id: WindowId) -> WindowState:
        """Refuse.

        Raises:
            StoreError: always.
        """
        raise StoreError(f"window {window_id.hex()} has left memory meanwhile")


@dataclass(kw_only=True)
class Context:
    """One aggregator, as its rules see it."""

    identity: Identity
    store: Store
    keys: KeyRing
    clock: Clock
    workers: Workers
    limits: Limits
    noise: NoiseSource
    peers: Mapping[AggregatorId, Peer] = field(default_factory=dict[AggregatorId, Peer])
    source: RandomSource = field(default_factory=SystemRandom)
    failpoints: Failpoints = field(default_factory=Failpoints)
    metrics: Metrics = field(default_factory=Metrics)
    health: HealthObservations = field(default_factory=HealthObservations)
    denials: Denials = field(default_factory=Denials)
    admission: Admission = field(default_factory=Admission)
    """Of devices and whoever carries for them, by whatever way they come."""
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    windows: dict[WindowId, InstalledWindow] = field(default_factory=dict[WindowId, InstalledWindow])
    """The windows in memory: those in work, and a few that have ended (`windows.loading`)."""
    states: States = field(default_factory=States)
    """The state of every window in memory."""
    live: dict[WindowId, InstalledWindow] = field(default_factory=dict[WindowId, InstalledWindow])
    """The windows in work: those that have not ended, or of which the leader still owes the others the record."""
    awake: dict[WindowId, InstalledWindow] = field(default_factory=dict[WindowId, InstalledWindow])
    """Those of `live` that are to be looked at: new, moved, or with something to do (`roles.scheduler`)."""
    resting: dict[WindowId, None] = field(default_factory=dict[WindowId, None])
    """The ended windows that are still in `windows`, the first to leave first."""
    ended: dict[WindowId, InstalledWindow] = field(default_factory=dict[WindowId, InstalledWindow])
    """Those that have left `live` and are not at rest in the store yet (`windows.retention`)."""
    purged: set[WindowId] = field(default_factory=set[WindowId])
    """Those that have ended and been purged, and are not at rest yet."""
    outcomes: deque[tuple[WindowId, int]] = field(default_factory=lambda: deque[tuple[WindowId, int]](maxlen=_OUTCOMES))
    """The windows this aggregator leads that ended last, in order, with their expiry."""
    outcome_count: int = 0
    """How many have ended since the start."""
    withdraw: Callable[[WindowId], Awaitable[bool]] = _kept_nowhere
    """Has the broker keep nothing of a window any more; says whether it keeps nothing (`transport.mqtt_announcing`)."""
    quarantined: dict[WindowId, Quarantined] = field(default_factory=dict[WindowId, Quarantined])
    """The windows that take part in nothing, for something of them is damaged in the store; they stay there."""
    adopting: bool = False
    """Whether the store was put back from a backup, and what came after it is not known yet: nothing new is taken."""
    unknown_charges: list[Damage] = field(default_factory=list[Damage])
    """What is damaged so that nobody can tell what was charged for it: question, and debits of unknown windows."""
    questions: dict[QuestionId, InstalledQuestion] = field(default_factory=dict[QuestionId, InstalledQuestion])
    sessions: dict[bytes, PackedSession] = field(default_factory=dict[bytes, PackedSession], repr=False)
    """The sessions in memory, by id; the store has them all."""
    key_lists: dict[AggregatorId, SignedKeyList] = field(default_factory=dict[AggregatorId, SignedKeyList])
    """The newest list of sealing keys of each aggregator, this one's too."""
    unheard: dict[bytes, Callable[[], Awaitable[None]]] = field(
        default_factory=dict[bytes, Callable[[], Awaitable[None]]]
    )
    """What takes up a question that the store may have, though its answer was lost."""
    openings: DueQueue[QuestionId] = field(default_factory=DueQueue[QuestionId])
    """When the next window of each question is to be decided about."""
    heard: dict[WindowId, float] = field(default_factory=dict[WindowId, float])
    """When the leader of a window that this aggregator helps with last called about it or answered."""
    handovers: DueQueue[QuestionId] = field(default_factory=DueQueue[QuestionId])
    """When to hand the other aggregators what they lack of a question."""

    def __post_init__(self) -> None:
        self.started = self.clock.now()
        """When it began to look after the windows: at the start of this process, or when that was elected."""
        self.greetings = Greetings(
            self.identity.aggregator_id, self.identity.trusted, self.store, self.clock, self.limits.largest_skew_s
        )
        self.greetings.on_skew = self.health.skew_of
        self.install_lock = asyncio.Lock()
        self.erasing = asyncio.Lock()
        self.waits = Waits(self.clock.now)
        self.steps_under_way: SingleFlight[tuple[WindowId, str], StepRow] = SingleFlight()
        self.chain_seal = ChainSeal(self.store.data_keys.chain_keys, self.source)
        self._reading: list[tuple[Sequence[bytes], set[bytes]]] = []

    @property
    def aggregator_id(self) -> AggregatorId:
        """This aggregator's name."""
        return self.identity.aggregator_id

    def data_key(self, window_id: WindowId) -> DataKey:
        """The key under which everything secret of a window lies until it ends; raises StoreError after that."""
        return self.store.data_keys.of(window_id)

    async def learned_key(self, window_id: WindowId) -> DataKey:
        """Return the same, read in a thread where this process has not read it yet: its server may be away."""
        keys = self.store.data_keys
        return keys.of(window_id) if keys.knows(window_id) else await asyncio.to_thread(keys.of, window_id)

    def leeway_s(self, window: InstalledWindow) -> float:
        """How long after a window has closed its instalments are still taken: a twentieth of it at most."""
        return min(self.limits.leeway_s, window.shortest_round_s / 20)

    def is_over(self, window: InstalledWindow) -> bool:
        """Whether the window's last window has closed by this aggregator's clock, its leeway too."""
        return self.clock.now() >= window.closes + self.leeway_s(window)

    def now(self) -> int:
        """The present second."""
        return int(self.clock.now())

    def take_up(self, window: InstalledWindow, state: WindowState) -> None:
        """Remember a window that the store has, and the state it is in there."""
        for known in (self.windows, self.live, self.awake):
            known[window.window_id] = window
        self.states[window.window_id] = state

    async def hear(self) -> None:
        """Take up what was installed without an answer, before anything else is judged: it counts in the budget.

        Raises:
            FleetcountError: the store failed, or holds what cannot be read.
        """
        for name, take_up in list(self.unheard.items()):
            await take_up()
            if name in self.windows or name in self.questions:  # Else it may be stored yet.
                del self.unheard[name]

    async def state_of(self, window_id: WindowId) -> WindowState | None:
        """Return the state of a window, in memory or not; None if there is no such window."""
        if window_id in self.states:
            return self.states[window_id]
        row = await self.store.window(window_id)
        return None if row is None else row.state

    def quarantine(self, damage: Damage, window: Window | None = None) -> None:
        """Let a window take part in nothing until it is repaired; the others go on. Damage of no window is only told
        of.

        `window`: what was signed, if that is whole: what it was charged goes on to count.
        """
        self.metrics.damaged(damage.table)
        log.error("damaged", what=str(damage), window=None if damage.window_id is None else str(damage.window_id))
        if damage.hides_charge:
            self.unknown_charges.append(damage)
        if damage.window_id is None:
            return
        known = self.windows.pop(damage.window_id, None)
        self.quarantined.setdefault(damage.window_id, Quarantined(damage, known.asked if known else window))
        for held in (self.live, self.awake, self.resting, self.ended):
            held.pop(damage.window_id, None)

    def check_whole(self, window_id: WindowId) -> None:
        """Return if nothing of a window is known to be damaged.

        Raises:
            DamagedError: it is in quarantine: peers and devices are told to come again.
        """
        if window_id in self.quarantined:
            raise DamagedError(self.quarantined[window_id].damage)

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
        before = self.states.get(window_id)
        row = await self.store.window(window_id)
        if row is not None and self.states.get(window_id) is before:  # What moved meanwhile is newer.
            self._note_state(window_id, row.state)

    def _note_state(self, window_id: WindowId, state: WindowState) -> None:
        if self.states.get(window_id) is state:
            return
        self.states[window_id] = state
        self.metrics.window_moved(state)
        if window_id in self.live:
            self.awake[window_id] = self.live[window_id]
        window = self.windows.get(window_id)
        if state in FINAL_STATES and window is not None:
            self.note_outcome(window)

    async def purge(self, window_id: WindowId) -> None:
        """Forget what an ended window no longer needs, first of all the keys that open its reports (`Store.purge`)."""
        async with self.erasing:  # Of two windows at a time, one could put back what the other has erased.
            await self.store.erase_window_keys(self.chain_seal, self.sessions, window_id)
        await self.store.purge(window_id)
        self.purged.add(window_id)

    def forget_sessions(self, session_ids: Iterable[bytes] | None = None) -> None:
        """Forget sessions whose keys another process may have erased, None: all; those being read now as well."""
        named = None if session_ids is None else list(session_ids)
        for session_id in list(self.sessions) if named is None else named:
            self.sessions.pop(session_id, None)
        for asked, forgotten in self._reading:
            forgotten.update(asked if named is None else named)

    @contextmanager
    def reading_sessions(self, session_ids: Sequence[bytes]) -> Generator[Set[bytes]]:
        """While sessions are read from the store: the set of those that are to be forgotten meanwhile."""
        reading: tuple[Sequence[bytes], set[bytes]] = (session_ids, set())
        self._reading.append(reading)
        try:
            yield reading[1]
        finally:
            self._reading.remove(reading)

    def note_outcome(self, window: InstalledWindow) -> None:
        """Remember that a window has ended, for who publishes the outcomes of those this aggregator leads."""
        if window.is_leader:
            self.outcomes.append((window.window_id, window.asked.expiry))
            self.outcome_count += 1

"""Everything one aggregator's rules take from outside: identity, store, clock, randomness, peers, workers, limits.

Every role gets this one value. It holds the tasks in memory and keeps their states in step with the store; it must
not decide anything.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Final, Protocol

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_mechanisms.accounting.budget import LARGEST_BUDGET
from fleetcount_mechanisms.noise import NoiseLaw
from fleetcount_mechanisms.randomness import RandomSource, SystemRandom
from fleetcount_protocol.clock import Clock
from fleetcount_protocol.ids import AggregatorId, SeriesId, TaskId
from fleetcount_protocol.series.key_list import SignedKeyList
from fleetcount_protocol.task.signing import TrustedAggregator
from fleetcount_transport.denials import Denials
from fleetcount_transport.failpoints import Failpoints

from fleetcount_aggregator.host.agenda import Agenda
from fleetcount_aggregator.host.keys import KeyRing
from fleetcount_aggregator.host.metrics import Metrics
from fleetcount_aggregator.host.single_flight import SingleFlight
from fleetcount_aggregator.host.states import FINAL_STATES, State, StateConflictError
from fleetcount_aggregator.installed_series import InstalledSeries
from fleetcount_aggregator.installed_task import InstalledTask
from fleetcount_aggregator.peers import Peer
from fleetcount_aggregator.storage.at_rest import AtRest
from fleetcount_aggregator.storage.store import StepRow, Store, TaskChange
from fleetcount_aggregator.verification.workers import Workers

__all__ = ["UNFINISHED", "Context", "Identity", "Limits", "NoiseSource"]

_LARGEST_TOTAL: Final = Decimal(LARGEST_BUDGET)
UNFINISHED: Final = frozenset(State) - FINAL_STATES


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

    `largest_epsilon` bounds the sum over tasks that overlap on one signal: the public's loss for any value replaced by
    any other, and with `allow_one_sided` those for a value replaced by none. `total_epsilon` (None: ten times as much)
    at `total_delta` bounds what the tasks and series on one signal lose together in any `budget_period_s` seconds.
    A record that gives a person a posterior above `largest_posterior` is not signed (`release.telling`).
    `give_up_s` is how long after its last window a task may take before its leader gives up; a helper waits twice as
    long for a silent leader.
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
    give_up_s: float = 900.0
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
        """Return `count` independent integers of the law of the task's design."""
        ...


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
    denials: Denials = field(default_factory=Denials)
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    tasks: dict[TaskId, InstalledTask] = field(default_factory=dict[TaskId, InstalledTask])
    states: dict[TaskId, State] = field(default_factory=dict[TaskId, State])
    live: dict[TaskId, InstalledTask] = field(default_factory=dict[TaskId, InstalledTask])
    """The tasks that have not ended, or of which the leader still owes the others the record."""
    resting: dict[TaskId, None] = field(default_factory=dict[TaskId, None])
    """The ended windows that are still in `tasks`, the first to leave first; `states` has every task of the store."""
    outcomes: list[tuple[TaskId, int]] = field(default_factory=list[tuple[TaskId, int]])
    """The ended tasks this aggregator leads with their expiry, in the order in which they ended; it only grows."""
    series: dict[SeriesId, InstalledSeries] = field(default_factory=dict[SeriesId, InstalledSeries])
    missing: set[TaskId] = field(default_factory=set[TaskId])
    """The windows of series that have no task here and never will."""
    key_lists: dict[AggregatorId, SignedKeyList] = field(default_factory=dict[AggregatorId, SignedKeyList])
    """The newest list of sealing keys of each aggregator, this one's too."""
    openings: Agenda[SeriesId] = field(default_factory=Agenda[SeriesId])
    """When the next window of each series is to be decided about."""
    handovers: Agenda[SeriesId] = field(default_factory=Agenda[SeriesId])
    """When to hand the other aggregators what they lack of a series."""

    def __post_init__(self) -> None:
        self.install_lock = asyncio.Lock()
        self.steps_under_way: SingleFlight[tuple[TaskId, str], StepRow] = SingleFlight()
        self.at_rest = AtRest(self.identity.signing_key, self.source)

    @property
    def aggregator_id(self) -> AggregatorId:
        """This aggregator's name."""
        return self.identity.aggregator_id

    def now(self) -> int:
        """The present second."""
        return int(self.clock.now())

    def take_up(self, task: InstalledTask, state: State) -> None:
        """Remember a task that the store has, and the state it is in there."""
        self.tasks[task.task_id] = task
        self.states[task.task_id] = state
        if state is not State.ABORTED:
            self.live[task.task_id] = task

    async def apply(self, change: TaskChange) -> StepRow | None:
        """Apply a change to the store, and remember the state the task is in after it; see `Store.apply`."""
        try:
            known = await self.store.apply(change)
        except StateConflictError as conflict:
            self.states[change.task_id] = conflict.state
            raise
        if known is None and change.new_state is not None:
            self.states[change.task_id] = change.new_state
            self.metrics.task_moved(change.new_state)
            task = self.tasks.get(change.task_id)
            if change.new_state in FINAL_STATES and task is not None and task.is_leader:
                self.note_outcome(task.task_id, task.task.expiry)
        return known

    def note_outcome(self, task_id: TaskId, expiry: int) -> None:
        """Remember that a task this aggregator leads has ended, unless it has expired."""
        if self.now() < expiry:
            self.outcomes.append((task_id, expiry))

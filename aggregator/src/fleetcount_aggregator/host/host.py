"""The environment of one aggregator's rules, independent of windows and questions: identity, clock, keys, limits.

It has no state of a window and decides nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Final, Protocol

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_mechanisms.accounting.vectors import LARGEST_BUDGET
from fleetcount_mechanisms.noise import NoiseLaw
from fleetcount_mechanisms.randomness import RandomSource, SystemRandom
from fleetcount_protocol.clock import Clock
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.window.signing import TrustedAggregator
from fleetcount_transport.admission.admission import Admission
from fleetcount_transport.denials import Denials
from fleetcount_transport.failpoints import Failpoints

from fleetcount_aggregator.host.health_observations import HealthObservations
from fleetcount_aggregator.host.keys import KeyRing
from fleetcount_aggregator.host.metrics import Metrics
from fleetcount_aggregator.host.moment import Moment, Moments

_LARGEST_TOTAL: Final = Decimal(LARGEST_BUDGET)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnIdentity:
    """The identity of this aggregator.

    `trusted` has itself and every configured peer; `device_ca` are the authorities that enrol devices.
    """

    aggregator_id: AggregatorId
    operator: str
    deployment: str
    signing_key: Ed25519PrivateKey = field(repr=False)
    trusted: Mapping[AggregatorId, TrustedAggregator]
    device_ca: tuple[x509.Certificate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of this aggregator's operator.

    Times are in seconds.
    """

    largest_epsilon: Decimal = Decimal(4)
    """Of all windows that overlap on one signal together: the public's loss for any value replaced by any other, and
    with `allow_one_sided` the loss for a value replaced by none.
    """
    total_epsilon: Decimal | None = None
    """Of the questions on one signal in any `budget_period_s`, at `total_delta`; None: see `period_epsilon`."""
    total_delta: Fraction = Fraction(1, 10**9)
    budget_period_s: int = 30 * 86_400
    smallest_min_batch_size: int = 10
    """The least number of reports below which a question may ask that a window is not released."""
    allow_exact_release: bool = False
    """Whether this aggregator takes questions whose counts it adds no noise to."""
    allow_one_sided: bool = False
    largest_posterior: Fraction | None = None
    """A record that gives a person a larger posterior is not signed (`release.steps`)."""
    sessions_per_device: int = 16
    """The sessions that one device may have open."""
    keep_digests_s: int = 86_400
    """How long the digests of a window's reports are kept after it expires."""
    keep_records_s: int | None = None
    """How long its record and its debit are kept after that; None: for ever."""
    give_up_s: float = 900.0
    """How long after a window's close its leader aborts it; a helper waits twice as long for a silent leader."""
    leeway_s: float = 0.0
    """How late an instalment may arrive, but at most a twentieth of its window."""
    largest_skew_s: float = 30.0
    """No question is installed with a peer whose clock differs by more."""
    call_timeout_s: float = 30.0
    """Of one call to another aggregator, which is repeated after `first_retry_s`, up to `longest_retry_s`."""
    first_retry_s: float = 0.1
    longest_retry_s: float = 5.0

    @property
    def period_epsilon(self) -> Decimal:
        """The limit of epsilon in a period: by default ten times `largest_epsilon`, at most `LARGEST_BUDGET`."""
        return min(10 * self.largest_epsilon, _LARGEST_TOTAL) if self.total_epsilon is None else self.total_epsilon


class NoiseSource(Protocol):
    """The source of noise. Only tests use another one than `release.noise.SystemNoise`."""

    def draw(self, law: NoiseLaw, count: int) -> list[int]:
        """Return `count` integers drawn independently of each other by `law`."""
        ...


@dataclass(kw_only=True)
class Host:
    """The environment that all rules of one aggregator share. `pause` waits a number of seconds."""

    identity: OwnIdentity
    keys: KeyRing
    clock: Clock
    limits: Limits
    noise: NoiseSource
    source: RandomSource = field(default_factory=SystemRandom)
    failpoints: Failpoints = field(default_factory=Failpoints)
    metrics: Metrics = field(default_factory=Metrics)
    health: HealthObservations = field(default_factory=HealthObservations)
    denials: Denials = field(default_factory=Denials)
    admission: Admission = field(default_factory=Admission)
    """The admission of devices and relays, over gRPC and MQTT."""
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    moments: Moments = field(init=False)
    """What time it is, and what confirms it; `moment` and `now` ask it, and nothing asks the clock itself."""

    def __post_init__(self) -> None:
        def now() -> float:
            return self.clock.now()  # The clock is looked up at each call: tests replace it.

        self.moments = Moments(now, self.limits.largest_skew_s)

    @property
    def aggregator_id(self) -> AggregatorId:
        """This aggregator's name."""
        return self.identity.aggregator_id

    def moment(self, others: Iterable[AggregatorId] | None = None) -> Moment:
        """Return the moment for a matter between this aggregator and `others`; None: all its peers (`Moments.of`)."""
        return self.moments.of(others)

    def now(self) -> int:
        """The present second by this clock, whether peers confirm it or not (`Moments`)."""
        return int(self.moments.now())

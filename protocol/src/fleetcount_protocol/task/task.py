"""The task: one counting question, immutable, the same bytes for every party.

Defines what a task is and when it is askable; never how a report is made (answering) or checked (verification).
"""

import enum
import hashlib
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from fleetcount_mechanisms.responses import KaryResponse, Mangat, MangatVector, TwoCoin, Warner
from fleetcount_mechanisms.sampling import SamplingDie

from fleetcount_protocol.errors import TaskError
from fleetcount_protocol.ids import AggregatorId, Digest, TaskId
from fleetcount_protocol.task.domain import ValueDomain

__all__ = [
    "Aggregator",
    "HpkeKey",
    "Mode",
    "Release",
    "ReleaseKind",
    "Response",
    "SignedTask",
    "Task",
    "UploadStyle",
]

Response = TwoCoin | Warner | Mangat | MangatVector | KaryResponse


class Mode(enum.Enum):
    """How a device answers (docs/wire.md, "Modes")."""

    SAMPLING = 1
    """Two rounds of Sampling Privacy; circuit TwoRoundOneHot; aggregated is round two minus round one, cells 1..V."""
    RESPONSE = 2
    """One round, the device randomizes; circuit OneHot over 0..V, or one bit a cell for vector Mangat."""
    DIRECT = 3
    """One round, the truth in shares; circuit OneHot; privacy is the aggregators' noise alone. Devices must opt in."""


class UploadStyle(enum.Enum):
    """When the parts of a two-round report travel."""

    TWO_INSTALMENTS = 1
    ONE_ENVELOPE = 2


class ReleaseKind(enum.Enum):
    """What the aggregators publish."""

    GEOMETRIC = 1
    EXACT = 2
    ONE_SIDED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The release the task announces.

    `noise_epsilon` is the strength of every aggregator's own noise: e1 of the two-sided geometric noise
    (docs/privacy.md) or, for `ONE_SIDED`, the epsilon of AGeo; None for `EXACT`. `level` is the level of the published
    intervals, strictly between 0 and 1. `thresholds` is empty but for `ONE_SIDED`: there it holds, for each cell 1..V,
    the largest count that is called safe.
    """

    kind: ReleaseKind
    noise_epsilon: Fraction | None
    level: Fraction
    thresholds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HpkeKey:
    """One public sealing key of an aggregator.

    `key_id` is 0..255; `public_key` 32 bytes (X25519) or 1,216 bytes (MLKEM768-X25519: ML-KEM-768, then X25519).
    """

    key_id: int
    public_key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregator:
    """One aggregator as the task names it: who runs it, where devices reach it, which keys it answers for.

    `grpc_endpoint` is "host:port" or "" when it has none; `mqtt_broker` likewise; at least one of both.
    `signing_public_key` is Ed25519, 32 bytes.
    """

    aggregator_id: AggregatorId
    operator: str
    grpc_endpoint: str
    mqtt_broker: str
    hpke_keys: tuple[HpkeKey, ...]
    signing_public_key: bytes


@dataclass(frozen=True, kw_only=True)
class Task:
    """A counting question (docs/wire.md, "Task").

    Times are whole Unix seconds on the grid of `time_precision_s`; round two opens when round one closes. In one-round
    modes and with `ONE_ENVELOPE`, reports are taken from `round_one_opens` to `round_one_closes` and
    `round_two_closes == round_one_closes` in one-round modes. Aggregator 0 is the leader and holds explicit shares.

    Raises:
        TaskError: a field outside its range, named with its value and the range.
    """

    name: str
    deployment: str
    signal: str
    domain: ValueDomain
    mode: Mode
    mechanism: SamplingDie | Response | None
    aggregators: tuple[Aggregator, ...]
    round_one_opens: int
    round_one_closes: int
    round_two_closes: int
    expiry: int
    time_precision_s: int
    min_batch_size: int
    release: Release
    upload_style: UploadStyle
    verify_key_digest: Digest

    def __post_init__(self) -> None:
        from fleetcount_protocol.task.rules import check_task

        check_task(self)

    @property
    def values(self) -> int:
        """V, the number of values besides 0."""
        return self.domain.values

    @property
    def leader(self) -> Aggregator:
        """The aggregator that proposes batches and holds explicit shares."""
        return self.aggregators[0]

    @cached_property
    def canonical(self) -> bytes:
        """The hand-written canonical bytes that are hashed and signed (docs/wire.md, "Task")."""
        from fleetcount_protocol.task.codec import encode_task

        return encode_task(self)

    @cached_property
    def task_id(self) -> TaskId:
        """SHA-256 of the canonical bytes."""
        return TaskId(hashlib.sha256(self.canonical).digest())

    def position_of(self, aggregator_id: str) -> int:
        """Return the share number, 0..k-1, of an aggregator; 0 is the leader.

        Raises:
            TaskError: the task does not list it.
        """
        for position, aggregator in enumerate(self.aggregators):
            if aggregator.aggregator_id == aggregator_id:
                return position
        raise TaskError(f"task {self.name!r} does not list aggregator {aggregator_id!r}")


@dataclass(frozen=True, kw_only=True)
class SignedTask:
    """A task with the Ed25519 signature of every listed aggregator, in its order; b"" where one is still missing."""

    task: Task
    signatures: tuple[bytes, ...]

    @property
    def complete(self) -> bool:
        """Whether every place holds a signature (not whether it verifies)."""
        return len(self.signatures) == len(self.task.aggregators) and all(self.signatures)

"""What one aggregator may ask of another, and the closed list of what it may refuse.

Defines the `Peer` protocol; gRPC is one way to reach a peer (grpc_peers), a function call another (memory_peers).
"""

from collections.abc import Awaitable
from typing import Protocol, TypeVar

from fleetcount_protocol.errors import MachineError, PeerError, PeerProblem
from fleetcount_protocol.ids import SeriesId, TaskId
from fleetcount_protocol.messages import (
    AbortTask,
    BatchDecision,
    BatchProposal,
    BatchReply,
    Commitment,
    CommitQuery,
    FinishBatch,
    FinishedRecord,
    InstallSeries,
    NoisedShare,
    OpenQuery,
    RecordProposal,
    RecordSignature,
    ReleaseAnswer,
    SealSet,
    SeriesAnswer,
    SetAgreed,
    SetDiffers,
    TaskStatus,
)
from fleetcount_protocol.series.orders import SignedOrder
from fleetcount_protocol.shared import SharedIds

from fleetcount_aggregator.host.states import State, StateConflictError

__all__ = ["Peer", "PeerProblem", "PeerRefusalError", "PeerUnreachableError", "guarded"]

Result = TypeVar("Result")


class PeerRefusalError(PeerError):
    """A peer refused, with a problem from the closed list."""

    def __init__(self, problem: PeerProblem) -> None:
        super().__init__(problem.value)
        self.problem = problem


class PeerUnreachableError(MachineError):
    """The peer did not answer; whether it acted is unknown, so the same request is sent again."""


_CONFLICTS = {State.ABORTED: PeerProblem.ABORTED, State.RELEASED: PeerProblem.RELEASED}


async def guarded(step: Awaitable[Result]) -> Result:
    """Return what the step returns; a task in the wrong state becomes the refusal a peer may see."""
    try:
        return await step
    except StateConflictError as conflict:
        raise PeerRefusalError(_CONFLICTS.get(conflict.state, PeerProblem.NOT_YET)) from conflict


class Peer(Protocol):
    """One other aggregator. Every request may be repeated and is answered with the same bytes.

    Every method raises PeerRefusalError or PeerUnreachableError.
    """

    async def install_series(self, request: InstallSeries) -> SeriesAnswer:
        """Hand over a series signed by all; the answer holds the peer's key list of now."""
        ...

    async def deliver_order(self, signed: SignedOrder) -> SeriesAnswer:
        """Hand over an order about a series; the answer is as that of `install_series`."""
        ...

    async def propose_batch(self, request: BatchProposal) -> BatchReply:
        """Ask for the peer's verifier shares of a batch."""
        ...

    async def finish_batch(self, request: FinishBatch) -> BatchDecision:
        """Hand over the verifier messages; return what the peer accepts."""
        ...

    async def seal_set(self, request: SealSet) -> SetAgreed | SetDiffers:
        """Hand over the accepted set; agreed once the peer has stored its digest, else the leaves to be named."""
        ...

    async def commit(self, request: CommitQuery) -> Commitment:
        """Ask for the commitment to the peer's noised share."""
        ...

    async def open_share(self, request: OpenQuery) -> NoisedShare:
        """Present every commitment and ask for the noised share."""
        ...

    async def sign_record(self, request: RecordProposal) -> RecordSignature:
        """Hand over everything the record was made from and ask for the peer's signature."""
        ...

    async def deliver_record(self, request: FinishedRecord) -> State:
        """Hand over the finished record; return the task's state there."""
        ...

    async def abort(self, request: AbortTask) -> State:
        """Abort the task there; return its state, which is released if it was too late."""
        ...

    async def status(self, task_id: TaskId) -> TaskStatus:
        """Return where the task stands there."""
        ...

    async def shared(self, after: SeriesId | None) -> SharedIds:
        """Return which series, by id above one, there are there that the caller takes part in."""
        ...

    async def shared_series(self, series_id: SeriesId) -> InstallSeries:
        """Return one of those series with its seed and its orders."""
        ...

    async def outcome(self, task_id: TaskId) -> ReleaseAnswer:
        """Return how the task ended there; only the signatures under a record prove it, an abort is the peer's word."""
        ...

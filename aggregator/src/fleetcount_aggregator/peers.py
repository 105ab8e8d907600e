"""What one aggregator may ask of another, and the closed list of what it may refuse.

Defines the `Peer` protocol; gRPC is one way to reach a peer (grpc_peers); in tests it is a function call.
"""

from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from typing import Protocol

from fleetcount_protocol.errors import MachineError, PeerError, PeerProblem
from fleetcount_protocol.ids import QuestionId, WindowId
from fleetcount_protocol.messages import (
    AbortWindow,
    BatchDecision,
    BatchProposal,
    BatchReply,
    Commitment,
    CommitQuery,
    FinishBatch,
    FinishedRecord,
    InstallQuestion,
    NoisedShare,
    OpenQuery,
    QuestionAnswer,
    RecordProposal,
    RecordSignature,
    ReleaseAnswer,
    SealSet,
    SetAgreed,
    SetDiffers,
    WindowState,
    WindowStatus,
)
from fleetcount_protocol.question.orders import SignedOrder
from fleetcount_protocol.shared import SharedIds

from fleetcount_aggregator.host.states import StateConflictError


class PeerRefusalError(PeerError):
    """A peer refused, with a problem from the closed list."""

    def __init__(self, problem: PeerProblem) -> None:
        super().__init__(problem.value)
        self.problem = problem


class PeerUnreachableError(MachineError):
    """The peer did not answer; whether it acted is unknown, so the same request is sent again."""


_CONFLICTS = {WindowState.ABORTED: PeerProblem.ABORTED, WindowState.RELEASED: PeerProblem.RELEASED}


@contextmanager
def refusing_conflicts() -> Generator[None]:
    """Turn a step that the window's state does not allow into the refusal a peer may see.

    Raises:
        PeerRefusalError: ABORTED or RELEASED, the window has ended; else NOT_YET.
    """
    try:
        yield
    except StateConflictError as conflict:
        raise PeerRefusalError(_CONFLICTS.get(conflict.state, PeerProblem.NOT_YET)) from conflict


class Peer(Protocol):
    """One other aggregator. Every request may be repeated and is answered with the same bytes.

    Every method raises PeerRefusalError or PeerUnreachableError.
    """

    def install_question(self, request: InstallQuestion, /) -> Awaitable[QuestionAnswer]:
        """Hand over a question signed by all; the answer holds the peer's key list of now."""
        ...

    def deliver_order(self, signed: SignedOrder, /) -> Awaitable[QuestionAnswer]:
        """Hand over an order about a question; the answer is as that of `install_question`."""
        ...

    def propose_batch(self, request: BatchProposal, /) -> Awaitable[BatchReply]:
        """Ask for the peer's verifier shares of a batch."""
        ...

    def finish_batch(self, request: FinishBatch, /) -> Awaitable[BatchDecision]:
        """Hand over the verifier messages; return what the peer accepts."""
        ...

    def seal_set(self, request: SealSet, /) -> Awaitable[SetAgreed | SetDiffers]:
        """Hand over the accepted set; agreed once the peer has stored its digest, else the leaves to be named."""
        ...

    def commit(self, request: CommitQuery, /) -> Awaitable[Commitment]:
        """Ask for the commitment to the peer's noised share."""
        ...

    def open_share(self, request: OpenQuery, /) -> Awaitable[NoisedShare]:
        """Present every commitment and ask for the noised share."""
        ...

    def sign_record(self, request: RecordProposal, /) -> Awaitable[RecordSignature]:
        """Hand over everything the record was made from and ask for the peer's signature."""
        ...

    def deliver_record(self, request: FinishedRecord, /) -> Awaitable[WindowState]:
        """Hand over the finished record; return the window's state there."""
        ...

    def abort(self, request: AbortWindow, /) -> Awaitable[WindowState]:
        """Abort the window there; return its state, which is released if it was too late."""
        ...

    def status(self, window_id: WindowId, /) -> Awaitable[WindowStatus]:
        """Return where the window stands there."""
        ...

    def shared(self, after: QuestionId | None, /) -> Awaitable[SharedIds]:
        """Return which question, by id above one, there are there that the caller takes part in."""
        ...

    def shared_question(self, question_id: QuestionId, /) -> Awaitable[InstallQuestion]:
        """Return one of those questions with its seed and its orders."""
        ...

    def outcome(self, window_id: WindowId, /) -> Awaitable[ReleaseAnswer]:
        """Return how the window ended there; only the signatures under a record prove it, an abort is the peer's
        word.
        """
        ...

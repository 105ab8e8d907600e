"""How a device reaches aggregators: the interface every transport has.

A transport carries messages and answers; it decides nothing, stores nothing and never retries.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from fleetcount_protocol.errors import MachineError
from fleetcount_protocol.task.task import Aggregator, Task

if TYPE_CHECKING:  # A device starts without the messages.
    from fleetcount_protocol.messages import (
        Instalment,
        Receipt,
        Refusal,
        ReleaseAnswer,
        SeriesOffer,
        SessionAccepted,
        SessionRefused,
        SessionRequest,
    )

__all__ = ["Transport", "Unreachable"]


class Unreachable(MachineError):  # noqa: N818 - named for the event, as the protocol's errors are
    """The other side did not answer. It may have acted nevertheless, so the same bytes are sent again.

    `retry_after_s` is what it said about when that is worth it, 0 if it said nothing.
    """

    def __init__(self, problem: str, retry_after_s: float = 0.0) -> None:
        super().__init__(problem)
        self.retry_after_s = retry_after_s


class Transport(Protocol):
    """Carries one device's messages. Every method may be repeated and raises `Unreachable` when nothing came back.

    A PeerError means that what came back is not what the protocol allows.
    """

    async def list_series(self) -> "tuple[SeriesOffer, ...]":
        """Return the series on offer with their key lists and orders, unverified; one a series and aggregator."""
        ...

    async def open_sessions(
        self, aggregator: Aggregator, requests: "Sequence[SessionRequest]"
    ) -> "tuple[SessionAccepted | SessionRefused, ...]":
        """Ask one aggregator to open sessions; return one answer a request, in order."""
        ...

    async def upload(
        self, task: Task, position: int, instalments: "Sequence[Instalment]"
    ) -> "tuple[Receipt | Refusal, ...]":
        """Hand instalments to the task's aggregator at `position`; return one answer an instalment, in order."""
        ...

    async def release(self, task: Task) -> "ReleaseAnswer":
        """Return the state of a task and its record, unverified, once it is released: public, and the same for all."""
        ...

    async def close(self) -> None:
        """Give up connections; the next use opens them again."""
        ...

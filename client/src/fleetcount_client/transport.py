"""How a device reaches aggregators: the interface every transport has.

A transport carries messages and answers; it decides nothing, stores nothing and never retries.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from fleetcount_protocol.errors import MachineError
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_protocol.window.window import Window

if TYPE_CHECKING:  # A device starts without the messages.
    from fleetcount_protocol.messages import (
        Instalment,
        QuestionOffer,
        Receipt,
        Refusal,
        ReleaseAnswer,
        SessionAccepted,
        SessionRefused,
        SessionRequest,
    )


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

    async def list_questions(self) -> "tuple[QuestionOffer, ...]":
        """Return the questions on offer with their key lists and orders, unverified; one a question and aggregator."""
        ...

    async def open_sessions(
        self, aggregator: Aggregator, requests: "Sequence[SessionRequest]"
    ) -> "tuple[SessionAccepted | SessionRefused, ...]":
        """Ask one aggregator to open sessions; return one answer a request, in order."""
        ...

    async def upload(
        self, window: Window, position: int, instalments: "Sequence[Instalment]"
    ) -> "tuple[Receipt | Refusal, ...]":
        """Hand instalments to the window's aggregator at `position`; return one answer an instalment, in order."""
        ...

    async def release(self, window: Window) -> "ReleaseAnswer":
        """Return the state of a window and its record, unverified, once it is released: public, and the same for
        all.
        """
        ...

    async def close(self) -> None:
        """Give up connections; the next use opens them again."""
        ...


LISTS: Final = "lists of questions"
"""The name under which an answer of whoever lists questions is noted: the broker, or any aggregator."""
_ResultT = TypeVar("_ResultT")


class PassingTransport:
    """A transport that hands every message to an inner one, call by call through `_passed`."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    async def list_questions(self) -> "tuple[QuestionOffer, ...]":
        """Return the questions on offer."""
        return await self._passed(LISTS, self._inner.list_questions)

    async def open_sessions(
        self, aggregator: Aggregator, requests: "Sequence[SessionRequest]"
    ) -> "tuple[SessionAccepted | SessionRefused, ...]":
        """Ask one aggregator to open sessions."""
        return await self._passed(aggregator.aggregator_id, lambda: self._inner.open_sessions(aggregator, requests))

    async def upload(
        self, window: Window, position: int, instalments: "Sequence[Instalment]"
    ) -> "tuple[Receipt | Refusal, ...]":
        """Hand instalments to one aggregator."""
        party = window.aggregators[position].aggregator_id
        return await self._passed(party, lambda: self._inner.upload(window, position, instalments))

    async def release(self, window: Window) -> "ReleaseAnswer":
        """Return the state of a window."""
        return await self._passed(LISTS, lambda: self._inner.release(window))

    async def close(self) -> None:
        """Give up connections."""
        await self._inner.close()

    async def _passed(self, party: str, call: Callable[[], Awaitable[_ResultT]]) -> _ResultT:
        """Make a call to a party, `LISTS` where it is any aggregator; what a subclass does around calls is here."""
        del party
        return await call()

"""The transport to aggregators in the same process, for tests and simulations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from fleetcount_protocol.ids import AggregatorId, WindowId
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
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_protocol.window.window import Window

from fleetcount_client.transport import Unreachable


class Intake(Protocol):
    """One aggregator's side of a memory transport."""

    def open_session(self, request: SessionRequest) -> SessionAccepted | SessionRefused:
        """Open a session, or say why not."""
        ...

    def take(self, window: Window, instalment: Instalment) -> Receipt | Refusal:
        """Store an instalment and receipt it, or say why not."""
        ...


class MemoryTransport:
    """Carries messages to intakes in this process."""

    def __init__(
        self,
        intakes: Mapping[AggregatorId, Intake],
        offers: Callable[[], Sequence[QuestionOffer]] = tuple,
        releases: Mapping[WindowId, ReleaseAnswer] | None = None,
    ) -> None:
        self._intakes = intakes
        self._offers = offers
        self._releases = {} if releases is None else releases

    async def list_questions(self) -> tuple[QuestionOffer, ...]:
        """Return the questions on offer now."""
        return tuple(self._offers())

    async def open_sessions(
        self, aggregator: Aggregator, requests: Sequence[SessionRequest]
    ) -> tuple[SessionAccepted | SessionRefused, ...]:
        """Ask the intake of that id. Raises Unreachable when there is none."""
        intake = self._intake(aggregator)
        return tuple(intake.open_session(request) for request in requests)

    async def upload(
        self, window: Window, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        """Hand instalments to the intake at `position`. Raises Unreachable when there is none."""
        intake = self._intake(window.aggregators[position])
        return tuple(intake.take(window, instalment) for instalment in instalments)

    async def release(self, window: Window) -> ReleaseAnswer:
        """Return the release it was given for a window. Raises Unreachable when there is none."""
        answer = self._releases.get(window.window_id)
        if answer is None:
            raise Unreachable(f"no release of window {window.window_id} in this process")
        return answer

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    def _intake(self, aggregator: Aggregator) -> Intake:
        intake = self._intakes.get(aggregator.aggregator_id)
        if intake is None:
            raise Unreachable(f"no aggregator {aggregator.aggregator_id} in this process")
        return intake

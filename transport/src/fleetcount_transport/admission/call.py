"""One admitted call of a gRPC server, and what it needs of the admission that let it in."""

import asyncio
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from fleetcount_transport.admission.admission import Admission
from fleetcount_transport.admission.identity import Identity

_Context = Any
"""grpc.aio.ServicerContext; its stubs leave the type arguments open."""


class Door(Protocol):
    """The admission of a listener's calls."""

    admission: Admission

    def hang_up(self, context: _Context) -> None:
        """Close the connection of a call whose caller does not read its answer."""
        ...

    def recognize(self, call: "Call") -> None:
        """Give handshakes from the address of a known identity priority."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """One admitted call."""

    who: Identity
    context: _Context
    door: Door

    @property
    def idle_s(self) -> float:
        """Seconds to wait for the caller, to send or to read."""
        return self.door.admission.limits.idle_s

    def hold(self, size: int) -> AbstractContextManager[None]:
        """Count the bytes of a message while it is under way; raises `BusyError`."""
        return self.door.admission.hold(self.who, size)

    async def write(self, answer: bytes) -> None:
        """Send an answer; close the connection of a caller that does not read it within `idle_s`."""
        clock = asyncio.get_running_loop().call_later(self.idle_s, self.door.hang_up, self.context)
        try:
            await self.context.write(answer)
        finally:
            clock.cancel()

"""Pure work that a caller waits for: in a worker process if one is free soon, otherwise at once on the event loop.

A worker may be busy with a verification for many seconds, and a device does not wait so long. Decides nothing else.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from fleetcount_protocol.errors import MachineError

from fleetcount_aggregator.verification.workers import Workers

Result = TypeVar("Result")
OUTSTANDING: Final = 4
"""Calls in the workers at once; what comes beyond is done here, so that both sides work."""
PATIENCE_S: Final = 2.0
"""How long a call may wait for a worker."""
_BUSY_FOR: Final = 5
"""So many times as long nobody waits again after one has waited in vain: calls that follow each other would add up."""


class SpareWorkers:
    """Runs functions that are pure, so that one which a worker has begun may be done here as well."""

    def __init__(self, workers: Workers, *, patience_s: float = PATIENCE_S) -> None:
        self._workers = workers
        self._patience_s = patience_s
        self._outstanding = 0
        self._busy_until = 0.0

    async def run(self, function: Callable[..., Result], /, *arguments: object) -> Result:
        """Return `function(*arguments)`; the function, arguments and result must survive pickling."""
        clock = asyncio.get_running_loop().time
        if self._outstanding >= OUTSTANDING or clock() < self._busy_until:
            return function(*arguments)
        self._outstanding += 1
        try:
            async with asyncio.timeout(self._patience_s):
                return await self._workers.run(function, *arguments)
        except (TimeoutError, MachineError):
            self._busy_until = clock() + _BUSY_FOR * self._patience_s
            return function(*arguments)
        finally:
            self._outstanding -= 1

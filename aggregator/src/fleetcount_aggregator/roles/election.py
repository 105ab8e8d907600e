"""The election of the coordinator among the processes of one aggregator: this process tries again until it is elected.

The process that holds the lock of its writing session is elected; each of its transactions checks its epoch
(`storage.postgres_engine`). A coordinator that another one replaced stops at once. This module must not know what a
coordinator does (`process.replicas`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from fleetcount_protocol.errors import FleetcountError
from fleetcount_transport.logs import log

from fleetcount_aggregator.storage.errors import StoreError

_LOOK_S: Final = 0.2
"""Seconds between two attempts, and between two checks that this process is still the coordinator."""
_LONGEST_PAUSE_S: Final = 60.0
"""The longest pause before the next attempt, in seconds, after work that failed at once at each election."""
_FAILS_WITHIN_S: Final = 8.0
"""Work that ends within so many seconds has failed at once."""


class ElectingEngine(Protocol):
    """The engine of a store that several processes share."""

    @property
    def epoch(self) -> int | None:
        """The number of this process's term as coordinator, None while it is not the coordinator."""
        ...

    def take_lead(self) -> bool:
        """Become the coordinator under the next epoch unless another process is; return whether this one is."""
        ...

    def release_lead(self) -> None:
        """End this process's term."""
        ...


class Election:
    """Runs `coordinate` whenever this process is elected, and cancels it when another process is."""

    def __init__(self, engine: ElectingEngine, coordinate: Callable[[], Awaitable[None]]) -> None:
        self._engine = engine
        self._coordinate = coordinate

    async def run(self) -> None:
        """Try until cancelled; after work that failed at once pause ever longer, so that another may be elected."""
        failed = 0
        clock = asyncio.get_running_loop().time
        try:
            while True:
                begun = clock()
                try:
                    if await asyncio.to_thread(self._engine.take_lead):
                        await self._serve()
                        failed = failed + 1 if clock() - begun < _FAILS_WITHIN_S else 0
                except StoreError as error:
                    log.warning("election_failed", reason=str(error))
                await asyncio.sleep(min(_LOOK_S * 2 ** min(failed, 16), _LONGEST_PAUSE_S))
        finally:
            self._engine.release_lead()

    async def _serve(self) -> None:
        """Run the coordinator's work until it fails or another process is elected."""
        epoch = self._engine.epoch
        log.info("coordinator", epoch=epoch)
        work = asyncio.ensure_future(self._coordinate())
        ended = asyncio.create_task(self._until_overtaken(epoch), name="coordinator-watch")
        try:
            await asyncio.wait({work, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            ended.cancel()
            [failed, _] = await asyncio.gather(work, ended, return_exceptions=True)
        log.warning("coordinator_ended", epoch=epoch, reason=_why(failed))
        await asyncio.to_thread(self._engine.release_lead)

    async def _until_overtaken(self, epoch: int | None) -> None:
        while self._engine.epoch == epoch:  # noqa: ASYNC110 - the thread that writes finds out
            await asyncio.sleep(_LOOK_S)


def _why(failed: BaseException | None) -> str:
    """Return why the coordinator's work ended; of other errors only the type, since their text may contain a secret."""
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    if failed is None or isinstance(failed, asyncio.CancelledError):
        return "another process leads"
    return str(failed) if isinstance(failed, FleetcountError) else type(failed).__name__

"""Whether this process coordinates: it stands again and again, and does the work while it leads.

The lock of the session that writes elects, and the epoch of each transaction decides (`storage.postgres_engine`); a
coordinator that was overtaken ends as one at once. It must not know what a coordinator does (`process.replicas`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from fleetcount_protocol.errors import FleetcountError
from fleetcount_transport.logs import log

from fleetcount_aggregator.storage.errors import StoreError

_LOOK_S: Final = 0.2
"""Between two looks whether another process leads, or this one leads still."""
_LONGEST_PAUSE_S: Final = 60.0
"""Before who fails at once whenever it is elected stands again."""
_FAILS_WITHIN_S: Final = 8.0


class Leads(Protocol):
    """The engine of a store that several processes share."""

    @property
    def epoch(self) -> int | None:
        """The number under which this process leads, None while it does not."""
        ...

    def stand(self) -> bool:
        """Lead under the next epoch unless another process leads; return whether this one does."""
        ...

    def resign(self) -> None:
        """Lead no more."""
        ...


class Standing:
    """Has this process coordinate whenever it is elected: `coordinate` runs from then until it is cancelled."""

    def __init__(self, engine: Leads, coordinate: Callable[[], Awaitable[None]]) -> None:
        self._engine = engine
        self._coordinate = coordinate

    async def run(self) -> None:
        """Stand until cancelled; after work that failed at once ever later, so that another may be elected."""
        failed = 0
        clock = asyncio.get_running_loop().time
        try:
            while True:
                begun = clock()
                try:
                    if await asyncio.to_thread(self._engine.stand):
                        await self._serve()
                        failed = failed + 1 if clock() - begun < _FAILS_WITHIN_S else 0
                except StoreError as error:
                    log.warning("election_failed", reason=str(error))
                await asyncio.sleep(min(_LOOK_S * 2 ** min(failed, 16), _LONGEST_PAUSE_S))
        finally:
            self._engine.resign()

    async def _serve(self) -> None:
        """Be the coordinator until another one is, or the work fails."""
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
        await asyncio.to_thread(self._engine.resign)

    async def _until_overtaken(self, epoch: int | None) -> None:
        while self._engine.epoch == epoch:  # noqa: ASYNC110 - the thread that writes finds out
            await asyncio.sleep(_LOOK_S)


def _why(failed: BaseException | None) -> str:
    """Return why the coordinator's work ended, without the words of an error that may hold what nobody may read."""
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    if failed is None or isinstance(failed, asyncio.CancelledError):
        return "another process leads"
    return str(failed) if isinstance(failed, FleetcountError) else type(failed).__name__

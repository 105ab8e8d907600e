"""This process among those of its aggregator: a member as long as it is heard of, the coordinator while elected.

What a member holds is given up at half its time, by a monotonic clock, and a coordinator that has given up or was
overtaken ends as one at once and stands for election again. It must not know what a coordinator does (`app`), and what
it says of itself counts for nothing: the epoch in the database does (`storage.leases`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from fleetcount_protocol.errors import FleetcountError
from fleetcount_transport.logs import log

from fleetcount_aggregator.storage.leases import LeaseLostError, Member, SchemaMovedError
from fleetcount_aggregator.storage.store import StoreError

_RENEWALS: Final = 8
"""Renewals in the time of one lease: half of them may fail before anything is given up."""
_LOOKS: Final = 40
"""Looks in the time of one lease whether the coordinator is still one, and whether there is none."""


_LONGEST_PAUSE_S: Final = 60.0
"""Before who fails at once whenever it is elected stands again."""


class Fenced(Protocol):
    """What writes under an epoch: the store."""

    epoch: int | None


class Membership:
    """Keeps this process a member, and the coordinator whenever it is elected.

    `coordinate` is the coordinator's work, run from its election until it is cancelled. `lost` is called whenever
    what the member held is not surely its own any more. With `stands` False it is never elected.
    """

    def __init__(
        self,
        member: Member,
        fenced: Fenced,
        coordinate: Callable[[], Awaitable[None]],
        lost: Sequence[Callable[[], None]] = (),
        *,
        stands: bool = True,
    ) -> None:
        self._member = member
        self._fenced = fenced
        self._coordinate = coordinate
        self._lost = tuple(lost)
        self._stands = stands

    @property
    def is_coordinator(self) -> bool:
        """Whether this process is the coordinator, as far as it knows."""
        return self._fenced.epoch is not None

    async def run(self) -> None:
        """Stay a member until cancelled, and leave then.

        Raises:
            SchemaMovedError: the database was brought up to what this process does not know; it is to end.
        """
        await self._member.join()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep(), name="member")
                if self._stands:
                    group.create_task(self._elect(), name="election")
        finally:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(1):
                    await self._member.leave()

    async def _keep(self) -> None:
        """Renew; after half a lease without it, and after one that ran out, give up everything and join anew."""
        member, is_out = self._member, False
        while True:
            await asyncio.sleep(member.length_s / _RENEWALS)
            try:
                async with asyncio.timeout(member.length_s / 4):
                    await (member.join() if is_out else member.renew())
                is_out = False
            except SchemaMovedError:
                for one in self._lost:
                    one()
                raise
            except LeaseLostError as error:
                log.warning("lease_lost", reason=str(error))
            except (StoreError, TimeoutError) as error:
                log.warning("lease_not_renewed", reason=str(error) or type(error).__name__)
            if not is_out and not member.holds:
                is_out = True
                for one in self._lost:
                    one()

    async def _elect(self) -> None:
        """Stand again and again; after work that failed within a lease ever later, so that another may be elected."""
        member, failed = self._member, 0
        clock = asyncio.get_running_loop().time
        while True:
            begun = clock()
            try:
                epoch = await member.stand() if member.holds else None
                if epoch is not None:
                    await self._serve(epoch)
                    failed = failed + 1 if clock() - begun < member.length_s else 0
            except StoreError as error:
                log.warning("election_failed", reason=str(error))
            await asyncio.sleep(min(member.length_s / _LOOKS * 2 ** min(failed, 16), _LONGEST_PAUSE_S))

    async def _serve(self, epoch: int) -> None:
        """Be the coordinator under an epoch until it holds no more, or the work fails."""
        self._fenced.epoch = epoch
        log.info("coordinator", epoch=epoch)
        work = asyncio.ensure_future(self._coordinate())
        ended = asyncio.create_task(self._until_overtaken(epoch), name="coordinator-watch")
        try:
            await asyncio.wait({work, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._fenced.epoch = None
            work.cancel()
            ended.cancel()
            [failed, _] = await asyncio.gather(work, ended, return_exceptions=True)
        log.warning("coordinator_ended", epoch=epoch, reason=_why(failed))
        await self._member.resign()

    async def _until_overtaken(self, epoch: int) -> None:
        while self._member.epoch == epoch and self._member.holds:  # noqa: ASYNC110 - time alone may end it
            await asyncio.sleep(self._member.length_s / _LOOKS)


def _why(failed: BaseException | None) -> str:
    """Return why the coordinator's work ended, without the words of an error that may hold what nobody may read."""
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    if failed is None or isinstance(failed, asyncio.CancelledError):
        return "overtaken, or not heard of for half a lease"
    return str(failed) if isinstance(failed, FleetcountError) else type(failed).__name__

"""Keeps this process a member of its aggregator: what a member holds is given up at half its time, by its own clock.

What it says of itself counts for nothing: the numbers in the database do (`storage.leases`).
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from fleetcount_transport.logs import log

from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.leases import LeaseLostError, Member, SchemaMovedError

_RENEWALS: Final = 8
"""Renewals in the time of one lease: half of them may fail before anything is given up."""


class Membership:
    """`lost` is called whenever what the member held is not surely its own any more."""

    def __init__(self, member: Member, lost: Sequence[Callable[[], None]] = ()) -> None:
        self._member = member
        self._lost = tuple(lost)

    async def run(self) -> None:
        """Stay a member until cancelled, and leave then.

        Raises:
            SchemaMovedError: the database was brought up to what this process does not know; it is to end.
        """
        await self._member.join()
        try:
            await self._keep()
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

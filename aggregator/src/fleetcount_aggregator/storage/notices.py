"""Notices of PostgreSQL (LISTEN, NOTIFY): one connection a process, one callback a channel.

A notice says that something is worth looking at and is never needed: who hears nothing looks again by itself, and who
was cut off is told that something may have been missed. Run by every process of an aggregator over PostgreSQL.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import psycopg
from fleetcount_protocol.errors import MachineError
from fleetcount_transport.logs import log
from psycopg import sql

from fleetcount_aggregator.storage.async_link import Connect

_REST_S: Final = 0.5
_CHECK_S: Final = 5.0
"""After so long without a notice the connection is asked whether it is there still."""


class Notices:
    """Hears notices until cancelled; connects again whenever the connection is lost.

    `hearers`: by channel, called with what each notice says. `missed` is called after each connection and each loss of
    one: what was said meanwhile is lost.
    """

    def __init__(
        self,
        connect: Connect,
        hearers: Mapping[str, Callable[[str], None]],
        missed: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._hearers = dict(hearers)
        self._missed = missed

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                connection = await self._connect()
                async with connection:
                    await self._hear(connection)
            except (psycopg.Error, MachineError, OSError) as error:  # The second: nobody lets us in at present.
                log.warning("notices_lost", error=type(error).__name__)
            self._missed()
            await asyncio.sleep(_REST_S)

    async def _hear(self, connection: "psycopg.AsyncConnection[Any]") -> None:
        for channel in self._hearers:
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        self._missed()
        while True:
            async for notice in connection.notifies(timeout=_CHECK_S):
                self._hearers[notice.channel](notice.payload)
            await connection.execute("SELECT 1")

"""Which MQTT slots a process holds: locks of one session in PostgreSQL, free as soon as that session ends.

The server ends the session of a process that is not heard of. It must not know what is done in a slot.
"""

import asyncio
from contextlib import suppress
from typing import Any, Final, NamedTuple

import psycopg
from fleetcount_protocol.errors import MachineError
from fleetcount_protocol.wire.topics import BUCKETS

from fleetcount_aggregator.storage import postgres
from fleetcount_aggregator.storage.async_link import Connect
from fleetcount_aggregator.storage.database import Database
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.postgres import ENDED_IF_HUNG, GRANTED, LOCK_KEY, hung_after

_SLOTS: Final = 0x4643_0000
"""The lock of slot 0; those of the others follow it."""
_HOLDER: Final = 0x4642_FFFF
"""Shared by every process that may hold slots."""
_TAKE: Final = f"SELECT pg_try_advisory_lock({LOCK_KEY})".encode()
_FREE: Final = f"SELECT pg_advisory_unlock({LOCK_KEY})".encode()
_FREE_ALL: Final = b"SELECT pg_advisory_unlock_all()"
_JOIN: Final = f"SELECT pg_try_advisory_lock_shared({LOCK_KEY})".encode()
_HELD: Final = f"SELECT objid::bigint, count(*) {GRANTED} AND objid::bigint BETWEEN %s AND %s GROUP BY objid".encode()
_HOLDERS: Final = (
    "SELECT lock - ?, coalesce(host(client_addr), 'the machine of the server')"  # noqa: S608 - constant
    f" FROM (SELECT objid::bigint AS lock, pid {GRANTED}) held JOIN pg_stat_activity USING (pid)"
    " WHERE lock BETWEEN ? AND ?"
)


class Shares(NamedTuple):
    """The slots that some process holds, and how many processes there are."""

    held: frozenset[int]
    processes: int


class SlotLocks:
    """The session of one process; every method raises StoreError, and then it holds no slot any more."""

    def __init__(self, connect: Connect, slots: int) -> None:
        self._connect = connect
        self._slots = slots
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def look(self) -> Shares:
        """Be heard of, and return what is held by anybody."""
        rows = await self._rows(_HELD, _HOLDER, _SLOTS + self._slots - 1)
        counts = {int(lock): int(count) for lock, count in rows}
        processes = counts.pop(_HOLDER, 0)
        return Shares(frozenset(lock - _SLOTS for lock in counts), processes)

    async def take(self, slot: int) -> bool:
        """Take a slot, unless another process holds it."""
        return bool((await self._rows(_TAKE, _SLOTS + slot))[0][0])

    async def free(self, slot: int) -> None:
        """Let another process take a slot that this one holds."""
        await self._rows(_FREE, _SLOTS + slot)

    async def close(self) -> None:
        """Hold nothing any more; what was held is others' when this returns."""
        if self._connection is not None:
            with suppress(StoreError):
                await self._rows(_FREE_ALL)
            await self._drop()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _rows(self, statement: bytes, *values: int) -> list[tuple[Any, ...]]:
        try:
            # A server that does not answer lets others take what is held here after that time.
            async with asyncio.timeout(postgres.HANGS_S / 2):
                connection = self._connection or await self._joined()
                return await (await connection.execute(statement, values)).fetchall()
        except (psycopg.Error, MachineError, OSError) as error:  # TimeoutError is an OSError.
            with suppress(psycopg.Error):
                await self._drop()
            raise StoreError(f"the session that holds MQTT slots has ended: {type(error).__name__}") from error

    async def _joined(self) -> "psycopg.AsyncConnection[Any]":
        connection = self._connection = await self._connect()
        await connection.execute(ENDED_IF_HUNG, hung_after())
        await connection.execute(_JOIN, (_HOLDER,))
        return connection


def slot_holders(database: Database) -> dict[int, str]:
    """Return the slots that are held, each with the address from which its holder has come to the server."""
    rows = database.execute(_HOLDERS, (_SLOTS, _SLOTS, _SLOTS + BUCKETS - 1)).fetchall()
    return {int(slot): str(address) for slot, address in rows}

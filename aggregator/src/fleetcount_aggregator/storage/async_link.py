"""One connection to PostgreSQL on the event loop, opened again when it is lost; each statement commits by itself.

What is asked here is small and done again by whoever asked: a statement that fails may have happened or not. The
store's own writes go another way (`write_queue`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from fleetcount_aggregator.storage.errors import StoreError

Connect = Callable[[], Awaitable["psycopg.AsyncConnection[Any]"]]
"""Opens a connection that commits each statement, its settings checked."""


class AsyncLink:
    """A connection, made with the first statement and again after one that failed."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._opening = asyncio.Lock()

    async def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows.

        Raises:
            StoreError: the database cannot be reached or refused it; whether it happened is not known.
        """
        try:
            connection = await self._opened()
            cursor = await connection.execute(statement.encode(), values or None, binary=True)
            return await cursor.fetchall() if cursor.description else []
        except psycopg.OperationalError as error:
            await self.close()
            raise StoreError(f"the database does not answer: {type(error).__name__}") from error
        except psycopg.Error as error:
            raise StoreError(f"the database refused a statement: {type(error).__name__}") from error

    async def row(self, statement: str, *values: Any) -> tuple[Any, ...] | None:
        """Run one statement and return its first row, None without one; raises as `rows` does."""
        found = await self.rows(statement, *values)
        return found[0] if found else None

    async def _opened(self) -> "psycopg.AsyncConnection[Any]":
        async with self._opening:
            if self._connection is None or self._connection.closed or self._connection.broken:
                self._connection = await self._connect()
            return self._connection

    async def close(self) -> None:
        """Let go of the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

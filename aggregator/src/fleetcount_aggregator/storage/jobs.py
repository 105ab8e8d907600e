"""Work that any process of an aggregator may do: one row a job in PostgreSQL, done in the transaction that locks it.

A worker reserves a job by locking its row until its transaction ends: when the worker dies, the server frees the row as
soon as the session has ended, and the result is stored by the commit or not at all. Rows are sealed bytes: this
module knows neither what is asked nor what comes out.
"""

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import psycopg
from fleetcount_protocol.errors import MachineError

from fleetcount_aggregator.storage.async_link import AsyncLink, Connect
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.postgres import ENDED_IF_HUNG, hung_after

_ASK: Final = "INSERT INTO jobs (window_id, request) VALUES (%s, %s) RETURNING job"
_COLLECT: Final = "DELETE FROM jobs WHERE job = ANY(%s) AND result IS NOT NULL RETURNING job, result"
# Those that a worker is at are left: nobody waits for them, and who is elected waits for no worker.
_TIDY: Final = "DELETE FROM jobs WHERE job IN (SELECT job FROM jobs FOR UPDATE SKIP LOCKED)"
_DROP: Final = "DELETE FROM jobs WHERE job = (SELECT job FROM jobs WHERE job = %s FOR UPDATE SKIP LOCKED) RETURNING job"
_WAITING: Final = b"SELECT 1 FROM jobs WHERE result IS NULL LIMIT 1"
_TAKE: Final = (
    b"SELECT job, window_id, request FROM jobs WHERE result IS NULL ORDER BY job LIMIT 1 FOR UPDATE SKIP LOCKED"
)
_FINISH: Final = b"UPDATE jobs SET result = %b WHERE job = %s"
_FORGET: Final = b"DELETE FROM jobs WHERE job = %s"


class Job(NamedTuple):
    """A job: `request` is sealed under the window's data key."""

    job: int
    window_id: bytes
    request: bytes


class Jobs:
    """The jobs of an aggregator as its coordinator sees them; raises StoreError as `AsyncLink.rows` does."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link

    async def put(self, window_id: bytes, request: bytes) -> int:
        """Ask for a job; return its number."""
        [(number,)] = await self._link.rows(_ASK, window_id, request)
        return int(number)

    async def collect(self, jobs: Collection[int]) -> dict[int, bytes]:
        """Return what came out of those of some jobs that are done, by number, and forget them."""
        rows = await self._link.rows(_COLLECT, list(jobs))
        return {int(job): bytes(result) for job, result in rows}

    async def drop(self, job: int) -> bool:
        """Forget a job that nobody waits for any more; return False if a worker is at it, for which nobody waits."""
        return bool(await self._link.rows(_DROP, job))

    async def tidy(self) -> None:
        """Forget the jobs of a former coordinator."""
        await self._link.rows(_TIDY)


class JobSession:
    """A session that does one job at a time; every method raises StoreError, and then the session is closed."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def waiting(self) -> bool:
        """Return whether there is a job without a result, though it may be in work."""
        async with self._opened() as connection:
            return await (await connection.execute(_WAITING)).fetchone() is not None

    async def take(self) -> Job | None:
        """Take the oldest job that nobody is at, in a transaction that is open from now on; None if there is none."""
        async with self._opened() as connection:
            await connection.execute(b"BEGIN")
            row = await (await connection.execute(_TAKE, binary=True)).fetchone()
            if row is None:
                await connection.execute(b"ROLLBACK")
                return None
            return Job(*row)

    async def keep(self) -> None:
        """Be heard of while a job is in work."""
        async with self._opened() as connection:
            await connection.execute(b"SELECT 1")

    async def finish(self, job: Job, result: bytes | None) -> None:
        """Store what came out, sealed, and end the transaction; None: nobody can read what would come out."""
        async with self._opened() as connection:
            if result is None:
                await connection.execute(_FORGET, (job.job,))
            else:
                await connection.execute(_FINISH, (result, job.job))
            await connection.execute(b"COMMIT")

    async def close(self) -> None:
        """End the session, and with it the transaction: the job is anybody's at once."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator["psycopg.AsyncConnection[Any]"]:
        try:
            if self._connection is None:
                self._connection = await self._connect()
                await self._connection.execute(ENDED_IF_HUNG, hung_after())
            yield self._connection
        except (psycopg.Error, MachineError, OSError) as error:
            await self.close()
            raise StoreError(f"the session of a worker has ended: {type(error).__name__}") from error

"""Work that any process of an aggregator may do: one row a job in PostgreSQL, leased with a token, done under it alone.

A job whose worker is no living member any more is anybody's again, under the next token; what the former one computed
is stored nowhere. Rows are sealed bytes: this module knows neither what is asked nor what comes out.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from fleetcount_aggregator.storage.async_link import AsyncLink
from fleetcount_aggregator.storage.leases import Member


class Job(NamedTuple):
    """A leased job: `request` is sealed under the window's data key."""

    job: int
    token: int
    window_id: bytes
    request: bytes


class Jobs:
    """The jobs of an aggregator, as one of its members sees them; raises StoreError as `AsyncLink.rows` does."""

    def __init__(self, link: AsyncLink, member: Member) -> None:
        self._link = link
        self._member = member

    @property
    def asker(self) -> str:
        """The name that this member asks under now; jobs under a former lease are dropped."""
        return self._member.name

    async def put(self, window_id: bytes, request: bytes) -> int:
        """Ask for a job; return its number."""
        rows = await self._link.rows(
            "WITH made AS (INSERT INTO jobs (asker, window_id, request) VALUES (%s, %s, %s) RETURNING job)"
            " SELECT job, pg_notify('fleetcount_job', '') FROM made",
            self._member.name,
            window_id,
            request,
        )
        return int(rows[0][0])

    async def lease(self, doing: Collection[int] = ()) -> Job | None:
        """Lease the oldest job whose lease holder has expired and whose asker has not; None if there is none.

        `doing` are the jobs that this member does: another that the database says is its own had its answer lost.
        """
        rows = await self._link.rows(
            "UPDATE jobs SET token = token + 1, owner = %s WHERE job ="
            " (SELECT job FROM jobs WHERE result IS NULL AND (owner NOT IN (SELECT member FROM living)"
            " OR owner = %s AND job <> ALL (%s::bigint[]))"
            " AND asker IN (SELECT member FROM living)"
            " ORDER BY job LIMIT 1 FOR UPDATE SKIP LOCKED) AND %s IN (SELECT member FROM living)"
            " RETURNING job, token, window_id, request",
            self._member.name,
            self._member.name,
            list(doing),
            self._member.name,
        )
        return Job(*rows[0]) if rows else None

    async def finish(self, job: Job, result: bytes) -> bool:
        """Store what came out, sealed; return whether it was stored: not under a token that holds no more."""
        rows = await self._link.rows(
            "WITH done AS (UPDATE jobs SET result = %s WHERE job = %s AND token = %s AND result IS NULL"
            " RETURNING asker) SELECT pg_notify('fleetcount_done', asker) FROM done",
            result,
            job.job,
            job.token,
        )
        return bool(rows)

    async def give_back(self, job: Job) -> None:
        """Let somebody else do a job that this member does not finish."""
        await self._link.rows(
            "WITH freed AS (UPDATE jobs SET owner = '' WHERE job = %s AND token = %s AND result IS NULL"
            " RETURNING job) SELECT pg_notify('fleetcount_job', '') FROM freed",
            job.job,
            job.token,
        )

    async def collect(self) -> dict[int, bytes]:
        """Return what came out of this member's jobs by number, and forget those jobs."""
        rows = await self._link.rows(
            "DELETE FROM jobs WHERE asker = %s AND result IS NOT NULL RETURNING job, result", self._member.name
        )
        return {int(job): bytes(result) for job, result in rows}

    async def asked(self) -> set[int]:
        """Return the numbers of this member's jobs."""
        rows = await self._link.rows("SELECT job FROM jobs WHERE asker = %s", self._member.name)
        return {int(job) for (job,) in rows}

    async def drop(self, jobs: Sequence[int]) -> None:
        """Forget jobs of this member that it does not wait for any more."""
        await self._link.rows("DELETE FROM jobs WHERE asker = %s AND job = ANY(%s)", self._member.name, list(jobs))

    async def tidy(self) -> None:
        """Forget the jobs of askers that live no more."""
        await self._link.rows("DELETE FROM jobs WHERE asker NOT IN (SELECT member FROM living)")

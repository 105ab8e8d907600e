"""The role of a worker: takes verification jobs, does them in its own processes, stores what came out.

It reads reports and windows from the store and holds nothing between two jobs. It must not combine shares or decide
about a report. Run by every process with the role, beside whatever else it does.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from fleetcount_protocol.errors import FleetcountError, MachineError
from fleetcount_protocol.ids import WindowId
from fleetcount_transport.logs import log

from fleetcount_aggregator.memory.installed import InstalledWindow, learn_window, learned_key
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.storage.async_link import Connect
from fleetcount_aggregator.storage.errors import StoreAwayError, StoreError
from fleetcount_aggregator.storage.frames import FrameReader
from fleetcount_aggregator.storage.jobs import Job, JobSession
from fleetcount_aggregator.storage.log_slice import LogSlice
from fleetcount_aggregator.storage.rows import read_window
from fleetcount_aggregator.verification.job_codec import decode_job, encode_failure, encode_result
from fleetcount_aggregator.verification.remote_workers import open_job, seal_result
from fleetcount_aggregator.verification.share_arithmetic import verify_reports
from fleetcount_aggregator.verification.workers import Workers

HEARTBEAT_S: Final = 1.0
"""How often the server hears of a job that is in work."""
_SHORTEST_S: Final = 0.01
"""The first pause before a session without work looks again; each is twice the one before, up to one of these two."""
_NO_JOB_S: Final = 0.25
_LOCKED_S: Final = 0.05
"""While other workers are at all jobs, of which one is anybody's as soon as its worker dies."""
_REST_S: Final = 1.0
"""How long a session rests after its machine or the database failed."""


class WorkerRole:
    """Does jobs, one a process and one waiting, each in a session of its own; `reader` reads a window's frames."""

    def __init__(
        self, windows: Windows, connect: Connect, local: Workers, reader: Callable[[WindowId], FrameReader]
    ) -> None:
        self._windows = windows
        self._connect = connect
        self._local = local
        self._reader = reader

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._local.count + 1):
                group.create_task(self._serve(), name=f"worker-{number}")

    async def _serve(self) -> None:
        session, pause_s = JobSession(self._connect), _SHORTEST_S
        try:
            while True:
                try:
                    longest_s = await self._one(session)
                    await asyncio.sleep(min(pause_s, longest_s))
                    pause_s = min(2 * pause_s, longest_s) if longest_s else _SHORTEST_S
                except MachineError as error:
                    log.warning("job_not_done", reason=str(error))
                    await asyncio.sleep(_REST_S)
        finally:
            await session.close()

    async def _one(self, session: JobSession) -> float:
        """Do one job, if there is one; it is anybody's again at once where this fails or is stopped.

        Returns the longest pause in seconds before the next look, 0 after a job.
        """
        if not await session.waiting():
            return _NO_JOB_S
        await self._local.ready()  # Compiling takes a minute, in which others could do the job.
        job = await session.take()
        if job is None:
            return _LOCKED_S
        working = asyncio.ensure_future(self._sealed(job))
        try:
            while not (await asyncio.wait((working,), timeout=HEARTBEAT_S))[0]:
                await session.keep()
            await session.finish(job, working.result())
        except BaseException:
            working.cancel()
            await session.close()
            raise
        return 0.0

    async def _sealed(self, job: Job) -> bytes | None:
        """Return what comes out of a job, sealed; None where its window has ended, with the key of both."""
        window_id = WindowId(job.window_id)
        try:
            key = await learned_key(self._windows.store, window_id)
        except StoreAwayError:
            raise
        except StoreError:
            return None
        return seal_result(key, window_id, job.request, await self._result(window_id, job))

    async def _result(self, window_id: WindowId, job: Job) -> bytes:
        try:
            window = await self._window(window_id)
            key = await learned_key(self._windows.store, window_id)
            asked = decode_job(open_job(key, window_id, job.request))
            source = LogSlice(
                reader=self._reader(window_id),
                window_id=window_id,
                log_key=key.log_key,
                ids=asked.ids,
                frames=asked.frames,
                places=asked.places,
            )
            setting = replace(window.setting, prefer=asked.prefer)
            return encode_result(await self._local.run(verify_reports, setting, source))
        except FleetcountError as error:
            return encode_failure(str(error))

    async def _window(self, window_id: WindowId) -> InstalledWindow:
        """Return a window, from the store if this process has not heard of it yet."""
        known = self._windows.get(window_id)
        if known is not None:
            return known
        row = await self._windows.store.read(read_window, window_id)
        if row is None:
            raise StoreError("the window of a verification job is not here")
        return await learn_window(self._windows.store, self._windows.host.aggregator_id, row)

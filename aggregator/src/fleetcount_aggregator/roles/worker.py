"""The role of a worker: leases verification jobs, does them in its own processes, stores what came out under its token.

It reads reports and windows from the store and holds nothing between two jobs. It must not combine shares or decide
about a report. Run by every process with the role, beside whatever else it does.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from fleetcount_protocol.errors import FleetcountError, MachineError
from fleetcount_protocol.ids import WindowId
from fleetcount_transport.logs import log

from fleetcount_aggregator.memory.installed import InstalledWindow, learn_window, learned_key
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.frames import FrameReader
from fleetcount_aggregator.storage.jobs import Job, Jobs
from fleetcount_aggregator.storage.leases import Member
from fleetcount_aggregator.storage.log_slice import LogSlice
from fleetcount_aggregator.verification.job_codec import decode_job, encode_failure, encode_result
from fleetcount_aggregator.verification.leased_workers import open_job, seal_result
from fleetcount_aggregator.verification.workers import Workers, verify_reports

_LOOK_S: Final = 1.0
"""How often a worker looks for jobs although nobody said that there are any."""
_REST_S: Final = 1.0
"""How long a lane rests after its machine or the database failed."""


class WorkerRole:
    """Does jobs, one a process and one waiting; `look` says that there may be some. `reader` reads a window's
    frames.
    """

    def __init__(
        self, windows: Windows, member: Member, jobs: Jobs, local: Workers, reader: Callable[[WindowId], FrameReader]
    ) -> None:
        self._windows = windows
        self._member = member
        self._jobs = jobs
        self._local = local
        self._reader = reader
        self._looking = asyncio.Event()
        self._leasing = asyncio.Lock()
        self._doing: set[int] = set()

    def look(self) -> None:
        """Look for jobs now."""
        self._looking.set()

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._local.count + 1):
                group.create_task(self._lane(), name=f"worker-{number}")

    async def _lane(self) -> None:
        while True:
            try:
                job = await self._lease()
                if job is not None:
                    await self._do(job)
                    continue
            except MachineError as error:
                log.warning("job_not_leased", reason=str(error))
                await asyncio.sleep(_REST_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._looking.wait()
            self._looking.clear()

    async def _lease(self) -> Job | None:
        async with self._leasing:
            job = await self._jobs.lease(self._doing) if self._member.holds else None
            if job is not None:
                self._doing.add(job.job)
            return job

    async def _do(self, job: Job) -> None:
        """Do one job; one that this process is stopped at is anybody's again at once."""
        try:
            await self._done(job)
        except MachineError as error:
            log.warning("job_not_done", reason=str(error))
            await asyncio.sleep(_REST_S)  # Until then it is in no other lane's way.
        finally:
            self._doing.discard(job.job)  # If what came out was not stored, it is leased again.

    async def _done(self, job: Job) -> None:
        window_id = WindowId(job.window_id)
        try:
            result = await self._result(window_id, job)
        except asyncio.CancelledError:
            with suppress(MachineError):
                await self._jobs.give_back(job)
            raise
        sealed = seal_result(await learned_key(self._windows.store, window_id), window_id, job.request, result)
        if not await self._jobs.finish(job, sealed):
            log.warning("job_taken_over", job=job.job)

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
        row = await self._windows.store.window(window_id)
        if row is None:
            raise StoreError("the window of a verification job is not here")
        return await learn_window(self._windows.store, self._windows.host.aggregator_id, row)

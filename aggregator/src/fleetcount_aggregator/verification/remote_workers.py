"""Workers on other machines: verification becomes jobs that they take; everything else is done in this process's own.

The asker seals a job under its window's data key and waits for the result, which opens under the same key and for that
job alone. Stores and decides nothing about a report.
"""

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar, cast

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import WindowId
from fleetcount_transport.logs import log

from fleetcount_aggregator.storage.data_keys import DataKey, DataKeys
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.jobs import Jobs
from fleetcount_aggregator.storage.log_slice import LogSlice
from fleetcount_aggregator.verification.job_codec import VerifyJob, decode_result, encode_job
from fleetcount_aggregator.verification.share_arithmetic import ProofSetting, VerifiedReports, verify_reports
from fleetcount_aggregator.verification.workers import Workers

Result = TypeVar("Result")
ASKED_AT_ONCE: Final = 16
"""Batches that wait for workers elsewhere at once: how many there are is not known here, and waiting costs nothing."""
_PAUSES_S: Final = (0.01, 0.1)
"""Shortest and longest pause between two looks for results, while some are waited for."""
_JOB: Final = b"verify job"
_RESULT: Final = b"verify result"


def seal_job(key: DataKey, window_id: WindowId, job: VerifyJob) -> bytes:
    """Return a job as it lies in the database."""
    return key.seal(encode_job(job), _JOB, window_id)


def open_job(key: DataKey, window_id: WindowId, sealed: bytes) -> bytes:
    """Return the bytes of a job; raises StoreError if it is damaged or another window's."""
    return key.open(sealed, _JOB, window_id)


def seal_result(key: DataKey, window_id: WindowId, request: bytes, result: bytes) -> bytes:
    """Return what came out of the sealed job `request` as it lies in the database."""
    return key.seal(result, _RESULT, window_id, hashlib.sha256(request).digest())


def open_result(key: DataKey, window_id: WindowId, request: bytes, sealed: bytes) -> bytes:
    """Return what came out of a job; raises StoreError if it is damaged or another job's."""
    return key.open(sealed, _RESULT, window_id, hashlib.sha256(request).digest())


class RemoteWorkers:
    """Implements `Workers`. `run` of `verify_reports` over reports in the database is a job; `local` does the rest.

    `keep_collecting` runs beside it.
    """

    def __init__(self, jobs: Jobs, data_keys: DataKeys, local: Workers) -> None:
        self._jobs = jobs
        self._data_keys = data_keys
        self._local = local
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._asked = asyncio.Event()

    @property
    def count(self) -> int:
        """See `Workers.count`."""
        return ASKED_AT_ONCE

    async def ready(self) -> None:
        """See `Workers.ready`."""
        await self._local.ready()

    async def run(self, function: Callable[..., Result], /, *arguments: object) -> Result:
        """See `Workers.run`.

        Raises:
            StoreError: the database failed, or a worker could not do it.
        """
        if function is verify_reports:
            setting, source = arguments
            if isinstance(setting, ProofSetting) and isinstance(source, LogSlice):
                return cast("Result", await self._verify(setting, source))
        return await self._local.run(function, *arguments)

    async def _verify(self, setting: ProofSetting, source: LogSlice) -> VerifiedReports:
        window_id, key = source.window_id, self._data_keys.of(source.window_id)
        job = VerifyJob(prefer=setting.prefer, ids=source.ids, frames=source.frames, places=source.places)
        request = seal_job(key, window_id, job)
        sealed = await self._ask(window_id, request)
        try:
            verified = decode_result(open_result(key, window_id, request, sealed), len(source.frames))
        except DecodeError as error:
            raise StoreError(f"the result of a verification job cannot be read: {error}") from error
        if isinstance(verified, str):
            raise StoreError(f"a worker could not verify a batch: {verified}")
        return verified

    async def _ask(self, window_id: WindowId, request: bytes) -> bytes:
        number = await self._jobs.put(window_id, request)
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        self._asked.set()
        try:
            return await waiting
        except asyncio.CancelledError:
            with suppress(StoreError):
                if await self._jobs.drop(number):
                    self._waiting.pop(number, None)  # Else what comes out is collected, for nobody.
            raise

    async def keep_collecting(self) -> None:
        """Hand results to those who wait for them, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            pause_s, longest_s = _PAUSES_S
            while self._waiting:
                await asyncio.sleep(pause_s)
                pause_s = _PAUSES_S[0] if await self._collect() else min(1.5 * pause_s, longest_s)

    async def _collect(self) -> bool:
        """Hand out what is done; where the database fails, what waits fails too, since its result may have been lost
        on its way, or the job with the server.
        """
        try:
            results = await self._jobs.collect(self._waiting)
        except StoreError as error:
            log.warning("results_not_collected", reason=str(error))
            while self._waiting:
                _, waiting = self._waiting.popitem()
                if not waiting.done():
                    waiting.set_exception(StoreError("the result of a verification job was lost on its way"))
            return False
        for number, result in results.items():
            if number in self._waiting and not (waiting := self._waiting.pop(number)).done():
                waiting.set_result(result)
        return bool(results)

    def forget(self) -> None:
        """Wait for nothing any more: another process asks now."""
        self._waiting.clear()

    async def close(self) -> None:
        """See `Workers.close`."""
        await self._local.close()

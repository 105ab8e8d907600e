"""Workers on other machines: verification becomes jobs that they lease; everything else is done in this process's own.

The asker seals a job under its window's data key and waits for the result, which opens under the same key and for that
job alone. Stores and decides nothing about a report.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar, cast

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import WindowId
from fleetcount_transport.logs import log

from fleetcount_aggregator.storage.data_keys import DataKey, DataKeys
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.jobs import Jobs
from fleetcount_aggregator.storage.log_slice import LogSlice
from fleetcount_aggregator.verification.job_codec import VerifyJob, decode_result, encode_job
from fleetcount_aggregator.verification.workers import ProofSetting, VerifiedReports, Workers, verify_reports

Result = TypeVar("Result")
LEASED_AT_ONCE: Final = 16
"""Batches that wait for workers elsewhere at once: how many there are is not known here, and waiting costs nothing."""
_LOOK_S: Final = 1.0
"""How often results are looked for although nobody said that there are any."""
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


class _Asked(NamedTuple):
    """A job that is waited for, and the name it was asked for under."""

    asker: str
    result: asyncio.Future[bytes]


class LeasedWorkers:
    """Implements `Workers`. `run` of `verify_reports` over reports in the database is a job; `local` does the rest.

    `keep_collecting` runs beside it; `look` says that results may be there.
    """

    def __init__(self, jobs: Jobs, data_keys: DataKeys, local: Workers) -> None:
        self._jobs = jobs
        self._data_keys = data_keys
        self._local = local
        self._waiting: dict[int, _Asked] = {}
        self._asking = 0
        self._early: dict[int, bytes] = {}
        """Results of jobs whose number the one who asked has not learnt yet."""
        self._looking = asyncio.Event()

    @property
    def count(self) -> int:
        """See `Workers.count`."""
        return LEASED_AT_ONCE

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
        self._asking += 1
        asker = self._jobs.asker
        try:
            number = await self._jobs.put(window_id, request)
        finally:
            self._asking -= 1
        if number in self._early:
            return self._early.pop(number)
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = _Asked(asker, waiting)
        try:
            return await waiting
        finally:
            del self._waiting[number]
            if waiting.cancelled():
                with suppress(StoreError):
                    await self._jobs.drop([number])

    def look(self) -> None:
        """Look for results now."""
        self._looking.set()

    async def keep_collecting(self) -> None:
        """Hand results to those who wait for them, until cancelled; a database that fails is asked again."""
        is_sure = True
        while True:
            if self._waiting or self._asking:
                # What was put while this process was to join anew lies under its former name.
                self._abandon(one for one in self._waiting.values() if one.asker != self._jobs.asker)
                try:
                    if not is_sure:
                        await self._fail_lost()
                    is_sure = False
                    self._hand_out(await self._jobs.collect())
                    is_sure = True
                except StoreError as error:
                    log.warning("results_not_collected", reason=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._looking.wait()
            self._looking.clear()

    async def _fail_lost(self) -> None:
        """Fail what waits for a job that is gone: an answer that was lost had its result in it."""
        waiting = dict(self._waiting)
        asked = await self._jobs.asked()
        for number, one in waiting.items():
            if number not in asked and not one.result.done():
                one.result.set_exception(StoreError("the result of a verification job was lost on its way"))

    def _hand_out(self, results: dict[int, bytes]) -> None:
        if not self._asking:
            self._early.clear()
        for number, result in results.items():
            waiting = self._waiting.get(number)
            if waiting is None and self._asking:
                self._early[number] = result
            elif waiting is not None and not waiting.result.done():
                waiting.result.set_result(result)

    def abandon(self) -> None:
        """Fail what waits: this process asked under a name that is no member's any more, and asks again."""
        self._abandon(self._waiting.values())

    def _abandon(self, gone: Iterable[_Asked]) -> None:
        for one in gone:
            if not one.result.done():
                one.result.set_exception(
                    StoreError("this process was not heard of, and its verification jobs are gone")
                )

    async def close(self) -> None:
        """See `Workers.close`."""
        await self._local.close()

"""Forwarding to one aggregator: instalments of many devices in large batches over one long stream.

It carries bytes that it cannot read and keeps nothing: when the stream is lost, every waiting call fails, and the
device sends again.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import grpc
import grpc.aio
from fleetcount_mechanisms.randomness import RandomSource, SystemRandom
from fleetcount_protocol.errors import MachineError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.limits import MAX_BATCH_BYTES, MAX_INSTALMENTS_PER_BATCH, MAX_QUESTION_LIST_BYTES
from fleetcount_protocol.wire.call_metadata import CARRIED_HEADER
from fleetcount_protocol.wire.device_columns import InstalmentColumns, InstalmentReplyColumns, Upload
from fleetcount_protocol.wire.device_stream import AGGREGATOR_MESSAGE, DEVICE_MESSAGE, DeviceMessage
from fleetcount_transport.channels import open_channel
from fleetcount_transport.logs import log
from fleetcount_transport.lost_reasons import call_reason

from fleetcount_relay.metrics import RelayMetrics

_SERVICE: Final = "/fleetcount_protocol.v1.DeviceService/"
_HEALTH: Final = "/grpc.health.v1.Health/Check"
_SILENT: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
_HEADROOM_BYTES: Final = 65_536
_HEAD_BYTES: Final = 64
"""An upper bound of the bytes of the aggregator's id in a message."""


class UpstreamError(MachineError):
    """The aggregator did not answer, or not as the protocol allows; the same bytes may be sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardingLimits:
    """`linger_s`: how long a batch waits to fill up; `unanswered`: batches without an answer at most.

    `idle_s`: how long an idle stream stays open; shorter than at aggregators (`[grpc] idle_s`), so that the relay
    closes first. Times are in seconds.
    """

    linger_s: float = 0.02
    call_timeout_s: float = 30.0
    unanswered: int = 4
    idle_s: float = 20.0
    first_retry_s: float = 0.1
    longest_retry_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """One aggregator: its id, which its certificate must have, and the channel to it."""

    aggregator_id: AggregatorId
    channel: grpc.aio.Channel


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A run of one device's instalments, and the future of their answers."""

    run: InstalmentColumns
    answer: "asyncio.Future[InstalmentReplyColumns]"


def open_upstream(aggregator_id: AggregatorId, endpoint: str, credentials: grpc.ChannelCredentials) -> grpc.aio.Channel:
    """Return a channel to an aggregator, whose certificate must carry its id."""
    limits = (
        ("grpc.max_receive_message_length", MAX_QUESTION_LIST_BYTES + _HEADROOM_BYTES),
        ("grpc.max_send_message_length", MAX_BATCH_BYTES + _HEADROOM_BYTES),
    )
    return open_channel(endpoint, credentials, name=aggregator_id, options=limits)


class Forwarder:
    """Forwards to one aggregator. `run` must be running; any number of tasks may call `send` and `ask`."""

    def __init__(
        self,
        upstream: Upstream,
        metrics: RelayMetrics,
        limits: ForwardingLimits,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        source: RandomSource | None = None,
    ) -> None:
        self._upstream = upstream
        self._metrics = metrics
        self._limits = limits
        self._pause = pause
        self._source = source or SystemRandom()
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._lost_in_a_row = 0
        self._resting = False

    @property
    def aggregator_id(self) -> AggregatorId:
        """The aggregator at the other end."""
        return self._upstream.aggregator_id

    async def send(self, runs: Sequence[InstalmentColumns]) -> list[InstalmentReplyColumns]:
        """Return the aggregator's answers to the runs of an upload, in order and unchanged.

        Raises:
            UpstreamError: it cannot be reached, or the stream was lost before it answered.
        """
        if self._resting:
            raise UpstreamError(f"{self._upstream.aggregator_id} is out of reach")
        loop = asyncio.get_running_loop()
        waiting = [_Waiting(run, loop.create_future()) for run in runs]
        self._waiting += waiting
        self._arrived.set()
        return await asyncio.gather(*(one.answer for one in waiting))

    async def ask(self, method: str, query: bytes, carried: str = "") -> bytes:
        """Return the answer to a single call; `carried` is a pseudonym by which the aggregator limits each device.

        Raises:
            grpc.aio.AioRpcError: the aggregator refused it, or cannot be reached.
        """
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._upstream.channel.unary_unary(_SERVICE + method)
        metadata = ((CARRIED_HEADER, carried),) if carried else ()
        return await call(query, timeout=self._limits.call_timeout_s, metadata=metadata)

    async def probe(self) -> str:
        """Return "" if the aggregator answers, with whatever status, else the reason why it cannot be reached."""
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._upstream.channel.unary_unary(_HEALTH)
        try:
            await call(b"", timeout=self._limits.call_timeout_s)
        except grpc.aio.AioRpcError as error:
            return call_reason(error) if error.code() in _SILENT else ""
        return ""

    async def run(self) -> None:
        """Keep a stream while there is something to send; back off after a lost one, longer after each in a row."""
        while True:
            await self._arrived.wait()
            unanswered: deque[list[_Waiting]] = deque()
            try:
                await self._stream(unanswered)
            except asyncio.CancelledError:
                self._give_up(unanswered)
                raise
            except Exception as error:
                # The top of the loop: any error ends this stream alone, and the next one starts afresh.
                name = type(error).__name__.lower()
                reason = call_reason(error) if isinstance(error, grpc.aio.AioRpcError) else name
                log.info("upstream_lost", aggregator=self._upstream.aggregator_id, reason=reason)
            else:
                continue  # The stream was idle; the next one carries what arrived while it ended.
            self._give_up(unanswered)
            self._metrics.stream_lost(self._upstream.aggregator_id)
            await self._rest()

    def _give_up(self, unanswered: deque[list[_Waiting]]) -> None:
        """Fail every waiting call, sent or not: nobody knows which of the sent ones the aggregator has stored."""
        left = [one for group in unanswered for one in group] + list(self._waiting)
        self._waiting.clear()
        self._arrived.clear()
        for one in left:
            if not one.answer.done():
                one.answer.set_exception(UpstreamError(f"{self._upstream.aggregator_id} is out of reach"))

    async def _rest(self) -> None:
        """Back off for between half and all of a delay that doubles; `send` fails at once meanwhile."""
        self._lost_in_a_row += 1
        delay = min(self._limits.longest_retry_s, self._limits.first_retry_s * 2.0 ** min(self._lost_in_a_row - 1, 16))
        self._resting = True
        try:
            await self._pause(delay * (0.5 + self._source.random_bytes(1)[0] / 512))
        finally:
            self._resting = False

    # One stream.

    async def _stream(self, unanswered: deque[list[_Waiting]]) -> None:
        """Send and receive until the stream was idle for `idle_s`; any other end raises."""
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._upstream.channel.stream_stream(
            _SERVICE + "Answer"
        )
        call = method()
        free = asyncio.Semaphore(self._limits.unanswered)
        sent = asyncio.Semaphore(0)
        parts = [
            asyncio.create_task(self._write(call, unanswered, free, sent)),
            asyncio.create_task(self._read(call, unanswered, free, sent)),
            asyncio.create_task(_end_of(call)),
        ]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            # Reader and `_end_of` end only with an error; the first error is the one to report.
            first = next(iter(done))
            if first.cancelled():
                raise UpstreamError(f"{self._upstream.aggregator_id} cancelled the stream")
            first.result()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            call.cancel()

    async def _write(
        self,
        call: "grpc.aio.StreamStreamCall[bytes, bytes]",
        unanswered: deque[list[_Waiting]],
        free: asyncio.Semaphore,
        sent: asyncio.Semaphore,
    ) -> None:
        while await self._has_something(unanswered):
            await free.acquire()
            group = await self._gather()
            unanswered.append(group)
            runs = tuple(InstalmentColumns.joined([one.run for one in alike]) for alike in _by_shape(group))
            upload = Upload(aggregator_id=self.aggregator_id, runs=runs)
            await call.write(DEVICE_MESSAGE.encode(DeviceMessage(upload=upload)))
            sent.release()

    async def _read(
        self,
        call: "grpc.aio.StreamStreamCall[bytes, bytes]",
        unanswered: deque[list[_Waiting]],
        free: asyncio.Semaphore,
        sent: asyncio.Semaphore,
    ) -> None:
        while True:
            await sent.acquire()
            async with asyncio.timeout(self._limits.call_timeout_s):
                data = await call.read()
            if not isinstance(data, bytes):
                raise UpstreamError(f"{self._upstream.aggregator_id} ended the stream")
            answered, asked = AGGREGATOR_MESSAGE.decode(data).upload, _by_shape(unanswered[0])
            answers = () if answered is None else answered.runs
            counts = [[len(one.run) for one in alike] for alike in asked]
            if list(map(len, answers)) != list(map(sum, counts)):
                raise UpstreamError(f"{sum(map(len, answers))} answers to {sum(map(sum, counts))} instalments")
            unanswered.popleft()
            for alike, answer, sizes in zip(asked, answers, counts, strict=True):
                for one, part in zip(alike, answer.split(sizes), strict=True):
                    if not one.answer.done():
                        one.answer.set_result(part)
            self._lost_in_a_row = 0
            self._metrics.answered(self._upstream.aggregator_id)
            free.release()

    async def _has_something(self, unanswered: deque[list[_Waiting]]) -> bool:
        """Wait for something to send; False if for `idle_s` there was nothing, and no answer is outstanding."""
        while True:
            try:
                async with asyncio.timeout(self._limits.idle_s):
                    await self._arrived.wait()
            except TimeoutError:
                if not unanswered:
                    return False
            else:
                return True

    async def _gather(self) -> list[_Waiting]:
        """Return the next batch: the waiting runs after `linger_s`, up to the limits of a message."""
        while True:
            await self._arrived.wait()
            if sum(len(one.run) for one in self._waiting) < MAX_INSTALMENTS_PER_BATCH:
                await self._pause(self._limits.linger_s)
            group: list[_Waiting] = []
            size, count = _HEAD_BYTES, 0
            while self._waiting:
                run = self._waiting[0].run
                size, count = size + run.most_bytes, count + len(run)
                if group and (size > MAX_BATCH_BYTES or count > MAX_INSTALMENTS_PER_BATCH):
                    break
                one = self._waiting.popleft()
                if not one.answer.done():
                    group.append(one)
            if not self._waiting:
                self._arrived.clear()
            if group:
                return sorted(group, key=lambda one: one.run.shape)


def _by_shape(group: Sequence[_Waiting]) -> list[list[_Waiting]]:
    """Return a sorted group in groups of one shape, each of which is sent as one run."""
    return [list(alike) for _, alike in groupby(group, key=lambda one: one.run.shape)]


async def _end_of(call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
    """Raise when the stream ends, also while nothing is being sent or read; never return."""
    code = await call.code()
    raise UpstreamError(f"the stream ended with {code.name}")

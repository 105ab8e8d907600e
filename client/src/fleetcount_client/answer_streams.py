"""The streams to one aggregator: messages and their answers, and a stream that stays open for the next messages.

It must not read a message, and sends none a second time that the other side may have taken.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from fleetcount_protocol.wire.call_metadata import RETRY_TRAILER

from fleetcount_client.transport import Unreachable

if TYPE_CHECKING:
    _Stream = grpc.aio.StreamStreamCall[bytes, bytes]

_METHOD: Final = "/fleetcount_protocol.v1.DeviceService/Answer"
_UNANSWERED: Final = 4
"""Messages on their way without an answer; an aggregator reads as many of a stream at once."""
_KEPT: Final = 2
"""Streams that stay open for the next messages; an aggregator keeps twice as many of a connection."""
_TRIES: Final = 3
"""Streams that are tried for messages of which none was taken: two may have been kept and end just now."""
_MILLISECONDS: Final = re.compile("[0-9]{1,9}")


class _NotTaken(Exception):  # noqa: N818 - named for the event, as `Unreachable` is
    """The stream had ended before it took a message: it was idle for too long, or its caller is refused."""


class AnswerStreams:
    """The streams of one `channel`. An exchange has a stream for itself; when it is over, the stream is kept.

    The aggregator ends one that is idle, and the next exchange begins another. `timeout_s` limits an exchange.
    """

    def __init__(self, channel: grpc.aio.Channel, timeout_s: float) -> None:
        self.channel = channel
        self._timeout_s = timeout_s
        self._kept: list[_Stream] = []

    async def exchange(self, messages: Sequence[bytes]) -> list[bytes]:
        """Send messages; return one answer each, in order.

        Raises:
            Unreachable: the stream ended before, or no answer came in time.
            grpc.aio.AioRpcError: the call failed.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                for _ in range(_TRIES):
                    try:
                        return await self._exchange_on(self._next(), messages)
                    except _NotTaken:
                        continue
        except TimeoutError:
            raise Unreachable("deadline_exceeded (timed out)") from None
        raise Unreachable("the stream ended before it took a message")

    def _next(self) -> "_Stream":
        """Return a stream that was kept and is still open, or else a new one."""
        while self._kept:
            if not (stream := self._kept.pop()).done():
                return stream
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self.channel.stream_stream(_METHOD)
        return method()

    async def _exchange_on(self, stream: "_Stream", messages: Sequence[bytes]) -> list[bytes]:
        free = asyncio.Semaphore(_UNANSWERED)

        async def write() -> None:
            for message in messages:
                await free.acquire()
                await _send(stream, message)

        answers: list[bytes] = []
        writer: asyncio.Task[None] | None = None
        is_whole = False
        try:
            if len(messages) == 1:
                await _send(stream, messages[0])
            else:
                writer = asyncio.create_task(write())
            while len(answers) < len(messages):
                answers.append(await _received(stream, is_first=not answers, writer=writer))
                free.release()
            is_whole = True
            return answers
        finally:
            if writer is not None:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)
            if is_whole and len(self._kept) < _KEPT:
                self._kept.append(stream)
            else:
                stream.cancel()


async def _send(stream: "_Stream", message: bytes) -> None:
    """Send a message, unless the stream has ended: then its status, which the next read raises, says why.

    Raises:
        _NotTaken: it had ended, and the library has lost the status.
    """
    try:
        await stream.write(message)
    except asyncio.InvalidStateError:
        return
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.INTERNAL:
            raise _NotTaken from None  # The library's own word: the end was there, and its status not yet.
        raise


async def _received(stream: "_Stream", *, is_first: bool, writer: "asyncio.Task[None] | None") -> bytes:
    """Return the next answer.

    Raises:
        _NotTaken: it is the first, and the stream ended without it, as a server ends one that was idle.
        Unreachable: the stream ended. grpc.aio.AioRpcError: the call failed.
    """
    try:
        answer = await stream.read()
    except grpc.aio.AioRpcError:
        if is_first and writer is not None and writer.done() and isinstance(writer.exception(), _NotTaken):
            raise _NotTaken from None
        raise
    if isinstance(answer, bytes):
        return answer
    if is_first:
        raise _NotTaken
    raise Unreachable("the stream ended without all answers")


def hint_s(trailing: Any) -> float:
    """Return the seconds after which a server says that it is worth coming back; 0 if it says nothing of the kind."""
    said = str(dict(trailing or ()).get(RETRY_TRAILER, ""))
    return int(said) / 1000 if _MILLISECONDS.fullmatch(said) else 0.0

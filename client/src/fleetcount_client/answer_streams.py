"""The streams to one aggregator: messages and their answers, and a stream that stays open for the next messages.

It must not read a message, and sends none a second time that the other side may have taken.
"""

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
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
_MILLISECONDS: Final = re.compile("[0-9]{1,9}")


class _NotTaken(Exception):  # noqa: N818 - named for the event, as `Unreachable` is
    """The stream had ended before it took a message, and its status does not say why."""


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

        A stream that was kept may end as it is used again, and another takes its place. That a new one ends is the
        aggregator's word and final, also where a message met the end and gRPC has lost the status that says why.

        Raises:
            Unreachable: the stream ended before, or no answer came in time.
            grpc.aio.AioRpcError: the call failed.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                while kept := self._open_one():
                    with suppress(_NotTaken):
                        return await self._exchange_on(kept, messages)
                method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self.channel.stream_stream(_METHOD)
                return await self._exchange_on(method(), messages)
        except TimeoutError:
            raise Unreachable("deadline_exceeded (timed out)") from None
        except _NotTaken:
            raise Unreachable("the stream ended before it took a message") from None

    def _open_one(self) -> "_Stream | None":
        """Return a stream that was kept and is still open; None without one."""
        while self._kept:
            if not (stream := self._kept.pop()).done():
                return stream
        return None

    async def _exchange_on(self, stream: "_Stream", messages: Sequence[bytes]) -> list[bytes]:
        free = asyncio.Semaphore(_UNANSWERED)
        is_sent = True

        async def write() -> None:
            nonlocal is_sent
            for message in messages:
                await free.acquire()
                is_sent = is_sent and await _send(stream, message)

        answers: list[bytes] = []
        writer: asyncio.Task[None] | None = None
        is_whole = False
        try:
            if len(messages) == 1:
                await write()
            else:
                writer = asyncio.create_task(write())
            while len(answers) < len(messages):
                try:
                    answers.append(await _received(stream, is_first=not answers))
                except grpc.aio.AioRpcError as error:
                    if answers or is_sent or error.code() is not grpc.StatusCode.INTERNAL:
                        raise
                    raise _NotTaken from None  # The library's own word for a message that met the end.
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


async def _send(stream: "_Stream", message: bytes) -> bool:
    """Send a message and return True; False where the stream had ended, why the next read says."""
    try:
        await stream.write(message)
    except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
        return False
    return True


async def _received(stream: "_Stream", *, is_first: bool) -> bytes:
    """Return the next answer.

    Raises:
        _NotTaken: it is the first, and the stream ended without it, as a server ends one that was idle.
        Unreachable: the stream ended. grpc.aio.AioRpcError: the call failed.
    """
    answer = await stream.read()
    if isinstance(answer, bytes):
        return answer
    if is_first:
        raise _NotTaken
    raise Unreachable("the stream ended without all answers")


def hint_s(trailing: Any) -> float:
    """Return the seconds after which a server says that it is worth coming back; 0 if it says nothing of the kind."""
    said = str(dict(trailing or ()).get(RETRY_TRAILER, ""))
    return int(said) / 1000 if _MILLISECONDS.fullmatch(said) else 0.0

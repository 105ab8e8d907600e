"""Asking aggregators for the releases of a question and its orders, at the port where devices and readers ask.

Opens connections and returns decoded answers; must not check a record (`report` does).
"""

from collections.abc import Iterable
from typing import Any, Final, Self

import grpc
import grpc.aio
from fleetcount_protocol.errors import DecodeError, PeerProblem
from fleetcount_protocol.ids import AggregatorId, QuestionId, WindowId
from fleetcount_protocol.limits import MAX_RECORD_BYTES
from fleetcount_protocol.messages import QuestionQuery, ReleaseAnswer, ReleaseQuery
from fleetcount_protocol.question.orders import QuestionOrder, verify_orders
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_protocol.wire.device import RELEASE_ANSWER, RELEASE_QUERY
from fleetcount_protocol.wire.question import QUESTION_LIST, QUESTION_LIST_QUERY
from fleetcount_transport.channels import open_channel
from fleetcount_transport.lost_reasons import call_reason
from fleetcount_transport.toml_table import read_toml

from fleetcount.command.base import CannotReachError
from fleetcount.read.readers import Reader

TIMEOUT_S: Final = 15.0
"""Seconds for each call."""
_GET_RELEASE: Final = "/fleetcount_protocol.v1.DeviceService/GetRelease"
_LIST_QUESTION: Final = "/fleetcount_protocol.v1.DeviceService/ListQuestions"


class WindowReader:
    """Asks the aggregators of a question for the releases of its windows, over one connection to each.

    Use it as an asynchronous context.
    """

    def __init__(self, reader: Reader, aggregators: Iterable[Aggregator]) -> None:
        """Connect to nothing yet; aggregators without a gRPC endpoint are not asked."""
        self._reader = reader
        self._aggregators = [one for one in aggregators if one.grpc_endpoint]
        self._channels: list[Any] = []

    async def __aenter__(self) -> Self:
        """Open the channels.

        Raises:
            UsageError: a file of the reader's identity cannot be used, or no TLS and an endpoint elsewhere.
        """
        try:
            for one in self._aggregators:
                credentials = self._reader.credentials(one.aggregator_id)
                self._channels.append(_channel(one.aggregator_id, one.grpc_endpoint, credentials))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close them."""
        for channel in self._channels:
            await channel.close()

    async def ask(self, window_id: WindowId) -> ReleaseAnswer | None:
        """Return the first answer with a record, else the first; None if no aggregator that answers has the window.

        Raises:
            CannotReachError: no aggregator answered so that it can be read; the message gives the reason of the last.
        """
        best, reached, why = None, False, "no aggregator has a gRPC endpoint"
        for aggregator, channel in zip(self._aggregators, self._channels, strict=True):
            try:
                query = RELEASE_QUERY.encode(ReleaseQuery(aggregator_id=aggregator.aggregator_id, window_id=window_id))
                answer = RELEASE_ANSWER.decode(await channel.unary_unary(_GET_RELEASE)(query, timeout=TIMEOUT_S))
            except (grpc.aio.AioRpcError, DecodeError) as error:
                reached = reached or _lacks_window(error)
                why = self._why(aggregator, error)
                continue
            if answer.record:
                return answer
            best, reached = best or answer, True
        if not reached:
            raise CannotReachError(f"{why}{_refused_hint(self._reader)}")
        return best

    async def orders(self, question: Question) -> tuple[QuestionOrder, ...]:
        """Return every order about a question that an answering aggregator knows, each signed as it must be.

        They come in no particular order, and none of a question that no aggregator knows.

        Raises:
            CannotReachError: as of `ask`.
            QuestionError, SignatureError: an order that its aggregator did not sign, or may not give.
        """
        before = max(0, int.from_bytes(question.question_id) - 1)  # A list begins above what was listed last.
        after = QuestionId(before.to_bytes(QuestionId.SIZE))
        found: set[QuestionOrder] = set()
        reached, why = False, "no aggregator has a gRPC endpoint"
        for aggregator, channel in zip(self._aggregators, self._channels, strict=True):
            try:
                asked = QUESTION_LIST_QUERY.encode(
                    QuestionQuery(
                        aggregator_id=aggregator.aggregator_id, deployment=question.deployment, after=after, over=True
                    )
                )
                listed = QUESTION_LIST.decode(await channel.unary_unary(_LIST_QUESTION)(asked, timeout=TIMEOUT_S))
            except (grpc.aio.AioRpcError, DecodeError) as error:
                why = self._why(aggregator, error)
                continue
            reached = True
            for offer in listed.offers:
                if offer.signed.question.question_id == question.question_id:
                    question = verify_orders(offer.orders, question, self._reader.trusted)
                    found |= {one.order for one in offer.orders}
        if not reached:
            raise CannotReachError(f"{why}{_refused_hint(self._reader)}")
        return tuple(found)

    def _why(self, aggregator: Aggregator, error: grpc.aio.AioRpcError | DecodeError) -> str:
        """Return why an aggregator counts as one that did not answer."""
        if isinstance(error, DecodeError):
            return f"{aggregator.grpc_endpoint}: its answer cannot be read: {error}"
        return f"{aggregator.grpc_endpoint}: {call_reason(error, self._reader.certificate())}"


def _lacks_window(error: grpc.aio.AioRpcError | DecodeError) -> bool:
    """Whether an aggregator answered that it does not know a window; one of another name answers with the same code."""
    if isinstance(error, DecodeError) or error.code() is not grpc.StatusCode.NOT_FOUND:
        return False
    return error.details() != PeerProblem.UNKNOWN_AGGREGATOR.value


async def why_refused(reader: Reader, aggregator: AggregatorId, endpoint: str) -> str:
    """Return "" when an aggregator answers this reader, else why it does not.

    It is asked for a window that does not exist: that it does not know the window is the right answer.

    Raises:
        UsageError: a file of the reader's identity cannot be used, or no TLS and an endpoint elsewhere.
    """
    channel = _channel(aggregator, endpoint, reader.credentials(aggregator))
    query = RELEASE_QUERY.encode(ReleaseQuery(aggregator_id=aggregator, window_id=WindowId(bytes(WindowId.SIZE))))
    try:
        await channel.unary_unary(_GET_RELEASE)(query, timeout=TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        return "" if _lacks_window(error) else call_reason(error, reader.certificate())
    finally:
        await channel.close()
    return ""


def _refused_hint(reader: Reader) -> str:
    if read_toml(reader.config).has("aggregator"):
        return "; aggregators answer readers certified by the device authority: try the analyst's or a device's file"
    return ""


def _channel(name: str, endpoint: str, credentials: grpc.ChannelCredentials | None) -> Any:
    """Return a channel to a server that must be certified as this aggregator.

    Raises:
        UsageError: no credentials, and the endpoint is not on this machine.
    """
    limit = ("grpc.max_receive_message_length", MAX_RECORD_BYTES + 65_536)
    return open_channel(endpoint, credentials, name=name, options=(limit,))

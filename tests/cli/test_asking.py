"""A reader asks each aggregator in turn; one whose answer cannot be read counts as one that does not answer."""

from collections.abc import Callable
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from fleetcount.command.base import CannotReachError
from fleetcount.read import asking
from fleetcount.read.asking import WindowReader, why_refused
from fleetcount.read.readers import Reader
from fleetcount_protocol.errors import PeerProblem, UsageError
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.messages import QuestionList, ReleaseAnswer, WindowState
from fleetcount_protocol.wire.device import RELEASE_ANSWER
from fleetcount_protocol.wire.question import QUESTION_LIST
from grpc.aio import Metadata

from tests.support.question_samples import sampling_question

WINDOW = WindowId(b"w" * 32)
QUESTION = sampling_question()
WITH_RECORD = RELEASE_ANSWER.encode(
    ReleaseAnswer(state=WindowState.RELEASED, record=b"record", signatures=(b"s" * 64,))
)


class Far:
    """A channel to an aggregator that gives one answer to everything, or one error."""

    def __init__(self, answer: bytes | grpc.aio.AioRpcError) -> None:
        self.answer = answer
        self.closed = False

    def unary_unary(self, method: str) -> Callable[..., Any]:
        async def call(_request: bytes, timeout: float) -> bytes:
            if isinstance(self.answer, bytes):
                return self.answer
            raise self.answer

        return call

    async def close(self) -> None:
        self.closed = True


class SomeReader:
    """A reader without files."""

    config = "reader.toml"
    trusted: Any = None

    def credentials(self, name: str) -> None:
        return None

    def certificate(self) -> None:
        return None


def reader_of(monkeypatch: pytest.MonkeyPatch, *answers: bytes | Exception) -> tuple[WindowReader, list[Far]]:
    opened: list[Far] = []
    given = iter(answers)

    def channel(*_: object) -> Far:
        answer = next(given)
        if isinstance(answer, UsageError):
            raise answer
        assert isinstance(answer, bytes | grpc.aio.AioRpcError)
        opened.append(Far(answer))
        return opened[-1]

    monkeypatch.setattr(asking, "_channel", channel)
    monkeypatch.setattr(asking, "_refused_hint", lambda reader: "")
    return WindowReader(cast("Reader", SomeReader()), QUESTION.aggregators[: len(answers)]), opened


async def test_an_answer_that_cannot_be_read_keeps_no_other_aggregator_from_being_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, _ = reader_of(monkeypatch, b"\xff nonsense", WITH_RECORD)
    async with reader:
        answer = await reader.ask(WINDOW)
    assert answer is not None
    assert answer.record == b"record"

    reader, _ = reader_of(monkeypatch, b"\xff nonsense", QUESTION_LIST.encode(QuestionList(offers=())))
    async with reader:
        assert await reader.orders(QUESTION) == ()


async def test_where_no_answer_can_be_read_the_last_one_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, _ = reader_of(monkeypatch, b"\xff nonsense", b"\xff nonsense")
    async with reader:
        for asked in (reader.ask(WINDOW), reader.orders(QUESTION)):
            with pytest.raises(CannotReachError, match="its answer cannot be read: ") as refused:
                await asked
            assert QUESTION.aggregators[1].grpc_endpoint in str(refused.value)


async def test_channels_are_closed_when_a_later_one_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, opened = reader_of(monkeypatch, b"", UsageError("no TLS and an endpoint elsewhere"))

    with pytest.raises(UsageError, match="no TLS"):
        await reader.__aenter__()

    assert [one.closed for one in opened] == [True]


def not_found(problem: PeerProblem) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, Metadata(), Metadata(), details=problem.value)


async def test_a_server_of_another_aggregator_is_none_that_lacks_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TLS nothing else says that an endpoint is another aggregator's."""
    reader, _ = reader_of(monkeypatch, not_found(PeerProblem.UNKNOWN_WINDOW))
    async with reader:
        assert await reader.ask(WINDOW) is None

    wrong = not_found(PeerProblem.UNKNOWN_AGGREGATOR)
    reader, _ = reader_of(monkeypatch, wrong)
    async with reader:
        with pytest.raises(CannotReachError):
            await reader.ask(WINDOW)
    monkeypatch.setattr(asking, "_channel", lambda *_: Far(wrong))
    aggregator = QUESTION.aggregators[0]
    said = await why_refused(cast("Reader", SomeReader()), aggregator.aggregator_id, aggregator.grpc_endpoint)
    assert said

"""Calls with any bytes at the ports of a live deployment, and a look at whether it stays healthy under them."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.messages import QuestionQuery
from fleetcount_protocol.wire.question import QUESTION_LIST_QUERY
from fleetcount_simulator.network.deployments import NAMES

from tests.support.deployment import Deployed
from tests.support.processes import pace

DEVICE = "/fleetcount_protocol.v1.DeviceService/"
PEER = "/fleetcount_protocol.v1.PeerService/"


async def status_of(
    channel: grpc.aio.Channel, method: str, data: bytes, *, stream: bool = False, timeout_s: float = 5.0, **call: Any
) -> grpc.StatusCode:
    """Return how a call with these very bytes ends; the limit, seconds on an idle machine, follows this one."""
    timeout_s *= pace()
    try:
        if stream:
            # The same bytes on the wire as a stream of one; but a stream that is refused before the client has ended it
            # may close with an error of the library, not with the answer.
            async for _ in channel.unary_stream(method)(data, timeout=timeout_s, **call):
                pass
        else:
            await channel.unary_unary(method)(data, timeout=timeout_s, **call)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@asynccontextmanager
async def healthy(pair: Deployed) -> AsyncIterator[Callable[[], float]]:
    """Check that all aggregators are the same processes before and after, answer, and have not grown.

    Gives the largest growth of one's memory so far, in MiB.
    """
    before = [child.pid for child in pair.children]
    memory = [resident_kib(pid) for pid in before]
    yield lambda: max(resident_kib(pid) - kib for pid, kib in zip(before, memory, strict=True)) / 1024
    after = [child.pid for child in pair.children if child.running]
    assert after == before
    for position in range(pair.count):
        async with pair.channel(position) as channel:
            listed = await status_of(
                channel,
                DEVICE + "ListQuestions",
                QUESTION_LIST_QUERY.encode(
                    QuestionQuery(aggregator_id=AggregatorId(NAMES[position]), deployment=pair.written.name)
                ),
            )
            assert listed is grpc.StatusCode.OK
    grown = [resident_kib(pid) - kib for pid, kib in zip(after, memory, strict=True)]
    assert max(grown) < 64 * 1024, grown
    assert pair.troubles() == []


def resident_kib(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1])
    return 0

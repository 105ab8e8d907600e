"""A running aggregator that the kernel gives no more descriptors, and then some again (F52)."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import grpc
import pytest
from fleetcount_client.transport import Unreachable
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.messages import QuestionQuery, SessionAccepted
from fleetcount_protocol.wire.question import QUESTION_LIST_QUERY

from tests.attack.test_devices import asking
from tests.support.deployment import Deployed
from tests.support.fleet import Fleet, identity_of, offer_of, transport_of
from tests.support.oracle import check_release
from tests.support.processes import pace
from tests.support.raw_calls import DEVICE, healthy, status_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

OF_ITS_START = 8
"""Descriptors that a server opens first and keeps: its streams, logs and loops."""
SHED = 'fleetcount_shed_total{reason="connections"}'


@contextmanager
def no_descriptors(pid: int) -> Iterator[None]:
    """Let a process open nothing as long as the block lasts; what is open stays so.

    The limit is so low that only descriptors of its start are below it: one of a connection that ends meanwhile would
    be free again.
    """
    taken = {int(one.name) for one in Path(f"/proc/{pid}/fd").iterdir()}
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    free = next(number for number in count() if number not in taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(free, OF_ITS_START), before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


async def opens(deployment: Deployed, device: DeviceIdentity, within_s: float) -> None:
    """Let a device connect to the leader and open a session."""
    transport = transport_of(deployment, device, "grpc", timeout_s=within_s * pace())
    try:
        [answer] = await transport.open_sessions(deployment.written.aggregators[0], [asking(deployment, device)])
    finally:
        await transport.close()
    assert isinstance(answer, SessionAccepted), answer


async def test_without_descriptors_who_is_connected_is_served_and_who_comes_waits_until_there_are_some(
    target: Deployed, tmp_path: Path
) -> None:
    question = QUESTION_LIST_QUERY.encode(
        QuestionQuery(aggregator_id=AggregatorId("alpha"), deployment=target.written.name)
    )
    shed = target.metric(0, SHED)
    comes = identity_of(target)
    async with healthy(target):
        async with target.channel(0) as connected:
            assert await status_of(connected, DEVICE + "ListQuestions", question) is grpc.StatusCode.OK
            with no_descriptors(target.children[0].pid):
                with pytest.raises(Unreachable):
                    await opens(target, comes, 2.0)
                for _ in range(20):
                    assert await status_of(connected, DEVICE + "ListQuestions", question) is grpc.StatusCode.OK
        await opens(target, comes, 30.0)

        window = target.ask(8)
        fleet = Fleet(target, tmp_path, window.mechanism, ["grpc"])
        await fleet.answer(await offer_of(target, window))
        assert await check_release(target, window, fleet) == fleet.devices
    assert target.metric(0, SHED) > shed

"""A broker out to fill the memory of a device or an aggregator that connects to it, each in a process of its own."""

import asyncio
import json
import re
import sys
from contextlib import AsyncExitStack

import pytest
from fleetcount_transport.mqtt_connection import MqttConnection
from fleetcount_transport.mqtt_packets import Publication, ViolationError

from tests.support.listening import listening
from tests.transport.hostile_broker import ATTACKS, MIB, TOLD, HostileBroker


@pytest.mark.nightly
@pytest.mark.timeout(120)
@pytest.mark.parametrize("party", ["device", "aggregator"])
async def test_a_hostile_broker_fills_no_memory(party: str) -> None:
    brokers = {attack: HostileBroker(attack) for attack in ATTACKS}
    async with AsyncExitStack() as stack:
        ports = [str(await stack.enter_async_context(listening(one.serve))) for one in brokers.values()]
        command = (sys.executable, "-m", "tests.transport.hostile_broker", party, *ports)
        victim = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        said, _ = await victim.communicate()
    found = dict(zip(ATTACKS, map(json.loads, said.splitlines()), strict=True))
    for attack, one in found.items():
        print(
            f"{party}, {attack}: {one['grown'] / MIB:.1f} MiB, {brokers[attack].connections} connections, {one['told']}"
        )

    assert [attack for attack, one in found.items() if one["grown"] > 16 * MIB] == []
    for attack, why in TOLD.items():
        assert all(re.search(why, one) for one in found[attack]["told"]), found[attack]["told"]
        assert 2 <= brokers[attack].connections < 10, "comes again, and waits longer each time"


async def test_a_broker_that_reads_no_acknowledgement_is_left() -> None:
    connection = MqttConnection("127.0.0.1:1", identifier="c", arrived=lambda _: True)
    message = Publication("t", b"", packet_id=1)

    for _ in range(65):
        connection.acknowledge([message] * 1_000)
    assert not connection._disconnected.done()
    connection.acknowledge([message] * 1_000)

    assert isinstance(connection._disconnected.exception(), ViolationError)

"""One aggregator has two connections to a real broker, each in a process; one is killed, and no report is lost or
counted twice.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

import aiomqtt
from fleetcount_aggregator.host.broker_connection import BrokerConnection
from fleetcount_aggregator.transport.mqtt_subscribing import Subscribing
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.channel.user_names import key_name
from fleetcount_protocol.ids import UserName
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.window.window import Window
from fleetcount_protocol.wire.topics import BUCKETS, report_topic, session_topic, user_bucket
from fleetcount_transport.mqtt_connection import MqttConnection
from fleetcount_transport.mqtt_packets import Publication

from tests.support.aggregators import Network
from tests.support.broker import LiveBroker, find_mosquitto, mosquitto_broker
from tests.support.deployment import LiveDeployment
from tests.support.fleet import Fleet, identity_of, offer_of
from tests.support.oracle import expected_difference, raw_cells
from tests.support.processes import wait_until
from tests.support.replicas import Replicas, balanced

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

SLOTS = 2
PROCESSES = ("alpha-1", "alpha-2")


@asynccontextmanager
async def at_two_slots(root: Path, url: str, broker: LiveBroker) -> AsyncIterator[tuple[LiveDeployment, Replicas]]:
    """Aggregator alpha as two processes with all roles and a slot each, beta as one process with the only one."""
    deployment = LiveDeployment(root, 2, broker=broker.started)
    replicas = Replicas(deployment, url, slots=SLOTS)
    for name in PROCESSES:
        replicas.add(name, "intake,worker,coordinator")
    async with balanced(deployment.written.plans[0].device_port) as balancer:
        try:
            await asyncio.to_thread(deployment.start, 1)
            said = await asyncio.to_thread(replicas.start, PROCESSES)
            balancer.targets = [("127.0.0.1", said[name]["device_port"]) for name in PROCESSES]
            await asyncio.to_thread(deployment.children[1].ready)
            yield deployment, replicas
        finally:
            await asyncio.to_thread(deployment.children[1].terminate)
            await asyncio.to_thread(replicas.stop_all)
            await asyncio.to_thread(deployment.children[1].ended)


def holder_of(replicas: Replicas, slot: int) -> str:
    """Return who has a slot, once each process has one of its own; "" before."""
    found = {name: replicas.connected_slots(name) for name in PROCESSES}
    if sorted(map(sorted, found.values())) != [[0], [1]]:
        return ""
    return next(name for name, slots in found.items() if slots == {slot})


def of_bucket(deployment: LiveDeployment, number: int) -> DeviceIdentity:
    """Return a device of one slot or the other, in turn."""
    while True:
        identity = identity_of(deployment)
        if user_bucket(key_name(identity.certificate)) % SLOTS == number % SLOTS:
            return identity


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    """A running mosquitto; without the program the test is skipped, and the summary says so."""
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not on this machine (Debian: apt install mosquitto): slots NOT tested")
    made = mosquitto_broker(tmp_path)
    yield made
    made.stop()


def in_bucket(bucket: int) -> UserName:
    """Return the first user of a bucket."""
    return next(user for user in map(UserName, map(str, count())) if user_bucket(user) == bucket)


async def test_a_slot_s_lasting_session_reads_no_more_than_its_own_by_another_number_of_slots(
    broker: LiveBroker,
) -> None:
    network = Network(2)
    await network.start_all()
    window = await network.ask()
    context = network.core(0).context
    place = context.host.identity.deployment, context.host.aggregator_id
    users = [in_bucket(bucket) for bucket in range(BUCKETS)]

    async def published_to(share: BrokerConnection) -> set[str]:
        """Return what arrives of a message on every topic of these users; what came before may come once more."""
        mark, last, heard = secrets.token_bytes(8), asyncio.Event(), set[str]()

        def arrived(message: Publication) -> bool:
            if message.payload == mark:
                heard.add(message.topic)
            if message.payload == b"last " + mark:
                last.set()
            return True

        connection = MqttConnection(broker.started.address, identifier="slot-0", arrived=arrived, clean_session=False)
        async with asyncio.timeout(60), connection as client, aiomqtt.Client("127.0.0.1", broker.port) as device:
            subscribing = Subscribing(context.windows, client, share)
            await subscribing.begin()
            await subscribing.follow()
            topics = [session_topic(*place, user) for user in users]
            topics += [report_topic(*place, user, window.window_id) for user in users]
            for topic in topics:
                await device.publish(topic, mark, qos=1)
            await device.publish(topics[0], b"last " + mark, qos=1)
            await last.wait()
            return heard

    def of(slots: set[int]) -> set[str]:
        return {session_topic(*place, users[one]) for one in slots} | {
            report_topic(*place, users[one], window.window_id) for one in slots
        }

    assert await published_to(BrokerConnection()) == of(set(range(BUCKETS)))
    assert await published_to(BrokerConnection(0, 2)) == of(set(range(0, BUCKETS, 2)))
    assert await published_to(BrokerConnection(0, 3)) == of(set(range(0, BUCKETS, 3)))
    assert await published_to(BrokerConnection()) == of(set(range(BUCKETS)))
    await network.stop_all()


async def test_a_process_that_is_killed_has_its_slot_taken_over_and_every_device_gets_its_receipts(
    broker: LiveBroker, postgres_url: str, tmp_path: Path
) -> None:
    async with at_two_slots(tmp_path / "slots", postgres_url, broker) as (deployment, replicas):
        victim = await asyncio.to_thread(wait_until, lambda: holder_of(replicas, 0), "a slot for each process")
        survivor = next(name for name in PROCESSES if name != victim)
        window = await asyncio.to_thread(deployment.ask, 16, lead_s=2.0, windows_s=(8.0, 8.0))
        die = window.mechanism
        assert isinstance(die, SamplingDie)
        fleet = Fleet(
            deployment,
            tmp_path,
            die,
            ["mqtt"],
            timeout_s=2.0,
            identities=lambda number: of_bucket(deployment, number),
        )
        offer = await offer_of(deployment, window, "mqtt")

        await asyncio.gather(fleet.answer(offer), _murder(replicas, window, victim))

        assert fleet.failures == []
        statuses = await deployment.ended(window)
        assert [status.state for status in statuses] == [WindowState.RELEASED] * 2, statuses
        # Each cell is one device's: a report that is lost or counted twice shows in the sum.
        answer = await deployment.release(window, 1)
        assert raw_cells(answer.record) == expected_difference(16, [live.rounds for live in fleet.devices])
        assert replicas.processes[victim].ends == [-9]
        assert await asyncio.to_thread(replicas.connected_slots, survivor) == {0, 1}
        assert replicas.troubles(survivor) == []


async def _murder(replicas: Replicas, window: Window, victim: str) -> None:
    """Kill a process in round one, when some devices have sent their reports and others have not."""
    moment = window.round_one_opens + (window.round_one_closes - window.round_one_opens) / 8
    await asyncio.sleep(max(0.0, moment - time.time()))
    await asyncio.to_thread(replicas.processes[victim].kill)

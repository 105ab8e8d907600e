"""A real broker that loses what it has acknowledged: devices send again until the aggregators' own receipts."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiomqtt
import pytest
from fleetcount_simulator.errors import ProcessError

from tests.support.broker import LiveBroker, find_mosquitto, mosquitto_broker, mosquitto_version
from tests.support.deployment import LiveDeployment
from tests.support.fleet import Fleet, offer_of
from tests.support.oracle import check_release
from tests.support.processes import pace

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

KILLS = 6
QUEUED = 10
FULL_BYTES = 16_384
"""Of the broker's file: messages that it has acknowledged and that nobody else has."""


@pytest.fixture
def mosquitto(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LiveBroker]:
    """A running mosquitto; without the program the test is skipped, and the summary says so."""
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not on this machine (Debian: apt install mosquitto): faults of a broker NOT tested")
    broker = mosquitto_broker(tmp_path, *getattr(request, "param", ()))
    yield broker
    broker.stop()


async def everybody_is_counted(
    mosquitto: LiveBroker, directory: Path, fault: Callable[[LiveDeployment, Fleet], Awaitable[None]]
) -> None:
    """Let forty devices answer through a broker that something befalls at the opening of each round."""
    deployment = LiveDeployment(directory / "d", 2, name="mosquitto", broker=mosquitto.started)
    try:
        await asyncio.to_thread(deployment.start_all)
        window = deployment.ask(40, windows_s=(8.0, 9.0))
        fleet = Fleet(deployment, directory, window.mechanism, ["mqtt"], timeout_s=1.5)
        offer = await offer_of(deployment, window, "mqtt")

        async with asyncio.TaskGroup() as group:
            for opens in (window.round_one_opens, window.round_one_closes):
                group.create_task(_befalling(opens, fault(deployment, fleet)))
            await fleet.answer(offer)
        counted = await check_release(deployment, window, fleet)

        assert attempts_of(fleet) > 4 * len(fleet.devices), "nothing was sent twice"
        # The end of each window is quiet, longer than anybody waits before connecting again.
        assert fleet.failures == []
        assert counted == fleet.devices
        assert deployment.troubles() == []
    finally:
        await asyncio.to_thread(deployment.stop_all)


async def _befalling(opens: float, fault: Awaitable[None]) -> None:
    await asyncio.sleep(max(0.0, opens - 0.2 - time.time()))
    await fault


def attempts_of(fleet: Fleet) -> int:
    """Return how often a device has begun to send a part."""
    return sum(live.transport.attempts for live in fleet.devices)


async def test_a_broker_killed_again_and_again_under_load_loses_and_doubles_no_report(
    mosquitto: LiveBroker, tmp_path: Path
) -> None:
    async def killed_under_load(_: LiveDeployment, fleet: Fleet) -> None:
        """Kill the broker three times while reports are on their way, until one that was sent in vain is sent again."""
        gate = asyncio.Event()
        for live in fleet.devices:
            live.transport.gate = gate

        async def more(count: int) -> None:
            before = attempts_of(fleet)
            await until(lambda: attempts_of(fleet) >= before + count, 0.005)

        for _number in range(KILLS // 2):
            gate.clear()  # Those that are on their way when the broker dies have not been delivered.
            await more(4)
            await asyncio.to_thread(mosquitto.child.kill)
            gate.set()
            await more(1)
            await asyncio.to_thread(mosquitto.child.start)

    await everybody_is_counted(mosquitto, tmp_path, killed_under_load)

    assert mosquitto.child.ends == [-9] * KILLS


@pytest.mark.nightly
@pytest.mark.parametrize("mosquitto", [(f"max_queued_messages {QUEUED}", "sys_interval 1")], indirect=True)
async def test_what_a_broker_drops_since_its_queue_is_full_is_sent_again(mosquitto: LiveBroker, tmp_path: Path) -> None:
    """F15: its acknowledgements say nothing about what it drops."""
    dropped: list[int] = []

    async def full(deployment: LiveDeployment, _: Fleet) -> None:
        """Stop an aggregator until the broker has dropped what the queue for it had no room for."""
        async with asleep(deployment), aiomqtt.Client("127.0.0.1", mosquitto.port) as client:
            await client.subscribe("$SYS/broker/publish/messages/dropped")
            counts: list[int] = []
            async with asyncio.timeout(30 * pace()):
                async for message in client.messages:
                    counts.append(int(message.payload))
                    if counts[-1] > counts[0]:
                        break
            dropped.append(counts[-1] - counts[0])

    await everybody_is_counted(mosquitto, tmp_path, full)

    assert len(dropped) == 2


@pytest.mark.nightly
async def test_what_a_broker_had_in_a_file_that_was_damaged_is_sent_again(
    mosquitto: LiveBroker, tmp_path: Path
) -> None:
    """F14: its first start on such a file fails; docs/operating-trouble.md says what then.

    Mosquitto 2.0 leaves the file, which has to be moved away. Mosquitto 2.1 writes its empty state over it as it ends,
    and starts the next time.
    """
    file, refused = tmp_path / "mosquitto" / "mosquitto.db", list[str]()

    def full() -> bool:
        os.kill(mosquitto.child.pid, signal.SIGUSR1)  # It saves at once.
        return file.exists() and file.stat().st_size > FULL_BYTES

    async def damaged(deployment: LiveDeployment, _: Fleet) -> None:
        async with asleep(deployment):
            await until(full)
            await asyncio.to_thread(mosquitto.child.kill)
            os.truncate(file, file.stat().st_size - 100)
            with pytest.raises(ProcessError) as error:
                await asyncio.to_thread(mosquitto.child.start)
            refused.append(str(error.value))
            if mosquitto_version() < (2, 1):
                file.rename(file.with_suffix(".damaged"))
            await asyncio.to_thread(mosquitto.child.start)

    await everybody_is_counted(mosquitto, tmp_path, damaged)

    assert len(refused) == 2
    assert all("Couldn't open database" in one for one in refused), refused


@asynccontextmanager
async def asleep(deployment: LiveDeployment) -> AsyncIterator[None]:
    """Stop an aggregator as long as the block lasts: meanwhile the broker keeps what comes for it."""
    pid = deployment.children[1].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def until(condition: Callable[[], bool], look_s: float = 0.1) -> None:
    """Wait for something that comes of itself."""
    async with asyncio.timeout(60 * pace()):
        while not condition():
            await asyncio.sleep(look_s)

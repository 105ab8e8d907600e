"""Which broker a run gets, and that it carries messages and ends with the run."""

import asyncio
import signal
from pathlib import Path

import aiomqtt
import pytest
from fleetcount_simulator.errors import ProcessError
from fleetcount_simulator.network.brokers import find_mosquitto, restart_broker, start_broker
from fleetcount_simulator.network.children import Child, Children

pytestmark = pytest.mark.processes

MESSAGES = 100


async def carried(address: str) -> list[bytes]:
    """Return what comes out of a broker of many messages that go in at once."""
    host, _, port = address.partition(":")
    async with aiomqtt.Client(host, int(port), identifier="one") as client:
        await client.subscribe("a/+", qos=1)
        async with asyncio.timeout(60):
            await asyncio.gather(*(client.publish("a/b", b"%d" % number, qos=1) for number in range(MESSAGES)))
            return [bytes((await anext(client.messages)).payload) for _ in range(MESSAGES)]


@pytest.mark.parametrize("kind", ["mosquitto", "embedded"])
async def test_a_broker_of_each_kind_carries_messages_and_ends_with_the_run(tmp_path: Path, kind: str) -> None:
    if kind == "mosquitto" and find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    started: list[Child] = []
    async with Children(tmp_path) as children:
        broker = await start_broker(children, tmp_path, kind)
        started += children._children

        assert sorted(await carried(broker.address)) == sorted(b"%d" % number for number in range(MESSAGES))

    assert broker.kind == kind
    assert (broker.inflight is None) == (kind == "embedded")
    assert [child.process.returncode is None for child in started] == [False]


@pytest.mark.parametrize("kind", ["mosquitto", "embedded"])
async def test_a_broker_that_was_killed_starts_again_on_its_port(tmp_path: Path, kind: str) -> None:
    if kind == "mosquitto" and find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    async with Children(tmp_path) as children:
        first = await start_broker(children, tmp_path, kind)
        first.child.send(signal.SIGKILL)
        assert await first.child.process.wait() == -signal.SIGKILL
        first.child.send(signal.SIGKILL)  # Nobody is there: nothing happens.

        again = await restart_broker(children, first)

        assert (again.address, again.inflight) == (first.address, first.inflight)
        assert len(await carried(again.address)) == MESSAGES


async def test_a_machine_without_mosquitto_gets_the_embedded_broker_and_is_told_when_it_asks_for_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETCOUNT_MOSQUITTO", "no-such-program")
    async with Children(tmp_path) as children:
        assert (await start_broker(children, tmp_path)).kind == "embedded"
        with pytest.raises(ProcessError, match="FLEETCOUNT_MOSQUITTO can name it"):
            await start_broker(children, tmp_path, "mosquitto")


async def test_a_broker_that_ends_at_once_is_no_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "broker"
    program.write_text("#!/bin/sh\necho 'cannot bind' >&2\nexit 3\n")
    program.chmod(0o700)
    monkeypatch.setenv("FLEETCOUNT_MOSQUITTO", str(program))
    async with Children(tmp_path) as children:
        with pytest.raises(ProcessError, match="does not answer: cannot bind"):
            await start_broker(children, tmp_path)

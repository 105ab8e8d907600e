"""A broker that is out to fill the memory of who connects, and its victims, each in a process of its own.

`python -m tests.transport.hostile_broker device|aggregator PORT...` connects to one after the other as that party does,
and prints for each by how much the process grew, and why it hung up.
"""

import asyncio
import contextlib
import json
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetcount_aggregator.config import MqttTable
from fleetcount_aggregator.transport.mqtt_intake import MqttIntake
from fleetcount_client.mqtt_transport import MqttTransport
from fleetcount_client.transport import Unreachable
from fleetcount_protocol.ids import AggregatorId, UserName, WindowId
from fleetcount_protocol.limits import MAX_RECORD_BYTES
from fleetcount_protocol.messages import QuestionOffer, ReleaseAnswer, WindowState
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.wire import topics
from fleetcount_protocol.wire.device import RELEASE_ANSWER
from fleetcount_protocol.wire.question import QUESTION_OFFER
from structlog.testing import capture_logs

from tests.support.aggregators import Network
from tests.support.flooding import remaining
from tests.support.question_samples import one_round_question, sign_everywhere

MIB = 1 << 20
ACCEPTED = bytes.fromhex("20020000")
ALPHA, CAR, WINDOW = AggregatorId("alpha"), UserName("d-1"), WindowId(bytes(32))
_TRY_S = 1.0
_STATUS = Path("/proc/self/status")


def packet(first: int, body: bytes) -> bytes:
    """Return an MQTT packet."""
    return bytes((first,)) + remaining(len(body)) + body


def message(topic: str, payload: bytes, packet_id: int, first: int = 0x32) -> bytes:
    """Return a PUBLISH."""
    return packet(first, len(topic).to_bytes(2) + topic.encode() + packet_id.to_bytes(2) + payload)


def huge() -> Iterator[bytes]:
    """One message of 250 MB."""
    yield b"\x32" + remaining(250_000_000) + b"\0\1t\0\1"
    yield from (bytes(MIB) for _ in range(238))


def twice_acknowledged() -> Iterator[bytes]:
    """Messages of QoS 2, which a receiver has to keep until they are released."""
    for number in range(1, 300):
        yield message("t", bytes(MIB), number, 0x34)


def queued() -> Iterator[bytes]:
    """As many messages as there are packet ids and more, each of another user's and as long as it may be."""
    for number in range(2_000):
        user = UserName(f"d-{number}")
        yield message(topics.session_topic("test", ALPHA, user), bytes(8_000), number + 1)
        yield message(topics.report_topic("test", ALPHA, user, WINDOW), bytes(200_000), number + 1)


def kept() -> Iterator[bytes]:
    """Retained question and releases without end, of the largest that can be read."""
    names = tuple(f"{place:0200}" for place in range(4_095))
    base = one_round_question(Mode.DIRECT, domain=Categories(names=names))
    for number in range(100):
        question = replace(base, name=f"question {number}")
        payload = QUESTION_OFFER.encode(QuestionOffer(signed=sign_everywhere(question), key_lists=(), orders=()))
        yield message(topics.question_topic("test", ALPHA, question.question_id), payload, number + 1, 0x33)
        release = ReleaseAnswer(state=WindowState.RELEASED, record=bytes(MAX_RECORD_BYTES), signatures=(bytes(64),))
        payload = RELEASE_ANSWER.encode(release)
        window_id = WindowId(number.to_bytes(32))
        yield message(topics.release_topic("test", ALPHA, window_id), payload, number + 1, 0x33)


def small() -> Iterator[bytes]:
    """The smallest messages there are, and never reading an acknowledgement."""
    yield from (b"\x32\x05\0\1t\0\1" * 10_000 for _ in range(200))


def acknowledgements() -> Iterator[bytes]:
    """Acknowledgements of everything that was never sent."""
    ids = [one.to_bytes(2) for one in range(1, 5_000)]
    for _ in range(200):
        yield b"".join(b"\x40\2" + one + b"\x90\3" + one + b"\0\xb0\2" + one + b"\xd0\0" for one in ids)


def greetings() -> Iterator[bytes]:
    """Greetings without end."""
    yield from (ACCEPTED * 100_000 for _ in range(100))


ATTACKS: dict[str, Callable[[], Iterator[bytes]]] = {
    one.__name__: one for one in (huge, twice_acknowledged, queued, kept, small, acknowledgements, greetings)
}

TOLD = {
    "huge": r"a packet of kind 0x32 with 250000000 bytes, allowed: 3 to 2101243",
    "twice_acknowledged": "QoS above 1",
    "greetings": "no greeting belongs",
}
"""What ends the connection; the other attacks are endured."""


class HostileBroker:
    """Greets who connects, waits for its first packet behind that, and attacks; reads nothing any more."""

    def __init__(self, attack: str) -> None:
        self._attack = ATTACKS[attack]
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            await reader.read(1_000)
            writer.write(ACCEPTED)
            await reader.read(1_000)
            for data in self._attack():
                writer.write(data)
                async with asyncio.timeout(_TRY_S):
                    await writer.drain()
            await asyncio.sleep(_TRY_S)
        writer.transport.abort()


class Memory:
    """The most this process has in memory from now on."""

    def __init__(self) -> None:
        if _STATUS.exists():
            Path("/proc/self/clear_refs").write_text("5")  # Forget the most of before (Linux, proc_pid_clear_refs(5)).
        self._before = self._most()

    def grown(self) -> int:
        """Return by how many bytes it has grown at most."""
        return self._most() - self._before

    @staticmethod
    def _most() -> int:
        if not _STATUS.exists():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        [row] = [row for row in _STATUS.read_text().splitlines() if row.startswith("VmHWM:")]
        return int(row.split()[1]) * 1024


async def device(port: int, leaves: bool) -> list[str]:
    """Ask for questions as a device does, again; return what came of it."""
    del leaves
    transport = MqttTransport(deployment="test", broker=f"127.0.0.1:{port}", user=lambda: CAR, call_timeout_s=_TRY_S)
    told: list[str] = []
    for _ in range(2):
        try:
            told.append(f"{len(await transport.list_questions())} offered")
        except Unreachable as error:
            told.append(str(error))
    await transport.close()
    return told


async def aggregator(port: int, leaves: bool) -> list[str]:
    """Take messages as an aggregator does whose disk never answers, so that everything waits; return why it left.

    One that leaves is waited for until it has left twice, the others are given some seconds to take too much.
    """
    core = (await _network()).core(0)
    intake = MqttIntake(core.context, core.service, MqttTable(broker=f"127.0.0.1:{port}", inflight=1_000))
    with capture_logs() as logs:
        running = asyncio.create_task(intake.run())
        await asyncio.sleep(2 * _TRY_S)
        while leaves and len(_reasons(logs)) < 2:
            await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return _reasons(logs)


def _reasons(logs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [why for one in logs if one["event"] == "mqtt_disconnected" for why in one["reasons"]]


async def _network() -> Network:
    network = Network(2)
    await network.start_all()

    async def never(*_: object) -> tuple[()]:
        await asyncio.Event().wait()
        return ()

    service = network.core(0).service
    service.open_sessions = service.upload = never  # type: ignore[method-assign]
    return network


async def _main(party: str, ports: Sequence[str]) -> None:
    for attack, port in zip(ATTACKS, ports, strict=True):
        memory = Memory()
        told = await {"device": device, "aggregator": aggregator}[party](int(port), attack in TOLD)
        print(json.dumps({"grown": memory.grown(), "told": told}), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2:]))

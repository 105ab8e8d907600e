"""What an aggregator spends on one hostile call of each kind, as a share of what an honest answer costs it.

Counted is the CPU of the aggregator's own processes, less what they spend in the same time on nothing: what the hostile
programs take of the machine, and others beside them, is no part of it. An honest answer is that of a new device: a
session and two sealed parts with their receipts, over a connection in each round. A hostile call has a connection of
its own, which then is part of its cost, or comes over one that is there. Of how long honest devices wait meanwhile
bench_attack_load.py tells.
"""

import asyncio
import math
import os
import ssl
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import aiomqtt
from bench_attack_load import MEMORY, Device, identities, on_the_hour, pem_of, question, settled
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.certificates import CertificateAuthority, Purpose
from fleetcount_protocol.channel.session import DeviceIdentity, new_session
from fleetcount_protocol.ids import UserName, WindowId
from fleetcount_protocol.messages import ReleaseQuery
from fleetcount_protocol.wire.device import RELEASE_QUERY
from fleetcount_protocol.wire.device_stream import DEVICE_MESSAGE, DeviceMessage
from fleetcount_protocol.wire.topics import session_topic
from fleetcount_simulator.network.children import Children
from fleetcount_simulator.network.parties import START_S, Parties
from hostile import SERVICE, tls_of
from http2_calls import HostileConnection
from meter import cpu_with_descendants
from rows import Row, quick, report, smoke

CALLS: Final = 4 if smoke() else 40 if quick() else 150
BATCHES: Final = 1 if quick() else 3
"""Each kind is called in so many batches, all kinds in turn; the batch counts that took least."""
AT_ONCE: Final = 4
CALL_S: Final = 30.0
ROUND_ONE_S: Final = 5 if smoke() else 20 if quick() else 400
IDLE_S: Final = 0.5 if smoke() else 5.0
SETTLES_S: Final = 0.1 if smoke() else 1.0
"""After the last call the aggregator may still end what it began."""
MUST: Final = 0.15
OVERSIZE: Final = b"\0" + (64 << 20).to_bytes(4) + bytes(16_000)
"""The beginning of a message of 64 MiB."""
GARBAGE_BYTES: Final = 1024
PIECES: Final = 16
"""Bytes of a message that come alone."""
ENVIRONMENT: Final = {"FLEETCOUNT_LOG__LEVEL": "warning", "FLEETCOUNT_METRICS__LISTEN": "127.0.0.1:0"}
Call = Callable[[int], Awaitable[str]]


@dataclass(frozen=True)
class Kind:
    """One kind of hostile call: `call` makes the one of a number and returns what became of it."""

    name: str
    call: Call
    why: str = ""
    """Why it may cost more than the rest."""


class Attacker:
    """Who knows where an aggregator listens, and has what certificates he says."""

    def __init__(self, parties: Parties, pages: int) -> None:
        self.parties = parties
        plan = parties.deployment.plans[0]
        self.device, self.peer = f"{plan.host}:{plan.device_port}", f"{plan.host}:{plan.peer_port}"
        self.pages = f"127.0.0.1:{pages}"
        self._kept: dict[str, HostileConnection] = {}
        self._client: aiomqtt.Client | None = None
        self._opening = asyncio.Lock()

    async def close(self) -> None:
        """End what is still open."""
        for one in self._kept.values():
            one.close()
        if self._client is not None:
            await self._client.__aexit__(None, None, None)

    # Connections.

    async def raw(self, place: str, said: bytes, stays_s: float, number: int) -> str:
        """Connect, say some bytes that are no whole request, wait for the end or so long, and go."""
        host, _, port = place.rpartition(":")
        try:
            reader, writer = await asyncio.open_connection(host, int(port), local_addr=(_address(number), 0))
        except OSError:
            return "not connected"
        with suppress(OSError, TimeoutError):
            writer.write(said)
            await writer.drain()
            async with asyncio.timeout(stays_s):
                await reader.read(-1)
        writer.transport.abort()
        return "ended"

    async def shaken(self, place: str, tls: ssl.SSLContext, number: int) -> str:
        """Shake hands as far as it goes, and make no call."""
        host, _, port = place.rpartition(":")
        try:
            async with asyncio.timeout(CALL_S):
                reader, writer = await asyncio.open_connection(
                    host, int(port), ssl=tls, server_hostname="", local_addr=(_address(number), 0)
                )
                try:
                    said = await reader.read(1)  # The server's settings, or its refusal of the certificate.
                finally:
                    writer.transport.abort()
        except (OSError, TimeoutError):
            return "refused"
        return "accepted" if said else "refused"

    async def over_its_own(self, tls: ssl.SSLContext, number: int, path: str, message: bytes) -> str:
        """Make a call over a connection of its own."""
        try:
            async with asyncio.timeout(CALL_S):
                connection = await HostileConnection.open(self.device, tls, _address(number))
        except (OSError, TimeoutError):
            return "not connected"
        try:
            return await connection.call(path, message, CALL_S)
        finally:
            connection.close()

    async def kept(self, who: str, tls: ssl.SSLContext) -> HostileConnection:
        """Return the connection that somebody keeps, made anew when it has ended."""
        async with self._opening:
            found = self._kept.get(who)
            if found is None or not found.is_open:
                found = self._kept[who] = await HostileConnection.open(self.device, tls, _address(len(self._kept)))
            return found

    async def call(self, who: str, tls: ssl.SSLContext, path: str, message: bytes) -> str:
        """Make a call over the connection that somebody keeps."""
        return await (await self.kept(who, tls)).call(path, message, CALL_S)

    async def part(self, who: str, tls: ssl.SSLContext, path: str, parts: list[bytes], patience_s: float) -> str:
        """Begin a call whose message comes in parts and never ends, and take it back."""
        return await (await self.kept(who, tls)).begin(path, parts, patience_s)

    async def publish(self, topic: str, payload: bytes) -> str:
        """Publish at the broker."""
        async with self._opening:
            if self._client is None:
                host, _, port = self.parties.deployment.mqtt_broker.rpartition(":")
                self._client = await aiomqtt.Client(host, int(port)).__aenter__()
        await self._client.publish(topic, payload, qos=0)
        return "published"


def _address(number: int) -> str:
    """Return one of the attacker's addresses."""
    return f"127.1.{(number + 1) >> 8 & 255}.{(number + 1) & 255}"


AS_HONEST: Final = (
    "who has a device's certificate shakes hands as a device does, twice for an honest answer; until then nothing tells"
    " them apart"
)
"""Why a connection of its own may cost more than the limit."""


def kinds(attacker: Attacker, known: DeviceIdentity, request: bytes) -> list[Kind]:
    """Return every kind of hostile call, those that come before a certificate first.

    `request` opened a session of the `known` device.
    """
    return [*handshakes(attacker), *calls(attacker, known, request), *pages(attacker)]


def raw(attacker: Attacker, name: str, place: str, said: bytes, stays_s: float = 0.0) -> Kind:
    """Return the kind that says some bytes over TCP."""
    return Kind(name, partial(attacker.raw, place, said, stays_s))


def new_device(attacker: Attacker) -> ssl.SSLContext:
    """Return the TLS of a device that nobody has seen."""
    return tls_of(*pem_of(attacker.parties.deployment.authorities.devices.issue_device()))


def handshakes(attacker: Attacker) -> list[Kind]:
    """Return what ends before a call."""
    foreign = CertificateAuthority.create("foreign devices")

    def shaken(name: str, place: str, tls: ssl.SSLContext, why: str = "") -> Kind:
        return Kind(name, partial(attacker.shaken, place, tls), why)

    return [
        raw(attacker, "TCP alone", attacker.device, b""),
        raw(attacker, "bytes that are no TLS", attacker.device, b"GET / HTTP/1.1\r\n\r\n", CALL_S),
        raw(attacker, "half a TLS hello", attacker.device, b"\x16\x03\x01\x02\x00\x01" + os.urandom(64)),
        shaken("a handshake without a certificate", attacker.device, tls_of()),
        shaken("a handshake under another authority", attacker.device, tls_of(*pem_of(foreign.issue_device()))),
        shaken("a device's handshake at the peers' port", attacker.peer, new_device(attacker)),
        shaken("a device's handshake and no call", attacker.device, new_device(attacker), AS_HONEST),
    ]


def pages(attacker: Attacker) -> list[Kind]:
    """Return what is said to the port of metrics and health."""
    return [
        raw(attacker, "half a request of a page", attacker.pages, b"GET /metrics HTTP/1.1\r\n"),
        raw(attacker, "a page that is not there", attacker.pages, b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n", CALL_S),
        raw(attacker, "the page of metrics", attacker.pages, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", CALL_S),
    ]


def calls(attacker: Attacker, known: DeviceIdentity, request: bytes) -> list[Kind]:
    """Return the calls of a caller with a certificate, and messages by MQTT."""
    deployment = attacker.parties.deployment
    authorities, aggregator = deployment.authorities, deployment.aggregators[0]
    reader = authorities.devices.issue_new(Purpose.READER, "reader-1", ["127.0.0.1"])
    bad, [publisher] = (
        identities(attacker.parties, "device", BATCHES * CALLS + 1),
        identities(attacker.parties, "mqtt", 1),
    )
    answer, release = SERVICE + "Answer", SERVICE + "GetRelease"
    garbage, half = os.urandom(GARBAGE_BYTES), b"\0\0\0\4\0"
    nowhere = RELEASE_QUERY.encode(
        ReleaseQuery(aggregator_id=aggregator.aggregator_id, window_id=WindowId(os.urandom(32)))
    )

    async def signed_badly(number: int, who: int) -> str:
        key, certificate, message = bad[who]
        return await attacker.over_its_own(tls_of(key, certificate), number, answer, bytes.fromhex(message))

    async def published(who: int) -> str:
        topic = session_topic(deployment.name, aggregator.aggregator_id, UserName(f"publisher-{who}"))
        return await attacker.publish(topic, bytes.fromhex(publisher[2]))

    def call(name: str, tls: ssl.SSLContext, path: str, message: bytes) -> Kind:
        return Kind(name, lambda _: attacker.call(name, tls, path, message))

    def part(name: str, path: str, parts: list[bytes], patience_s: float = 0.0) -> Kind:
        tls = new_device(attacker)
        return Kind(name, lambda _: attacker.part(name, tls, path, parts, patience_s))

    return [
        Kind("a handshake and a bad signature, of a new device", lambda n: signed_badly(n, n), AS_HONEST),
        Kind("the same of a device that is refused for its faults", lambda n: signed_badly(n, -1), AS_HONEST),
        call("an unknown path", new_device(attacker), SERVICE + "Nothing", b""),
        call("a reader's upload", tls_of(*pem_of(reader)), answer, garbage),
        part("64 MiB announced", answer, [OVERSIZE], CALL_S),
        call("garbage for an answer", new_device(attacker), answer, garbage),
        call("a window that nobody asked", new_device(attacker), release, nowhere),
        call("a session request again", tls_of(*pem_of(known)), answer, request),
        part("half a request, taken back", answer, [half]),
        part(f"half a request in {PIECES} pieces, taken back", answer, [half, *[b"x"] * PIECES]),
        Kind("a bad signature by MQTT, each of a user of its own", published),
        Kind("the same of a user that is refused for its faults", lambda _: published(0)),
    ]


class Spent:
    """What an aggregator spends on calls."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._idle = 0.0

    def _cpu_s(self) -> float:
        return cpu_with_descendants(self._pid)

    async def wait(self) -> None:
        """Measure what it spends on nothing."""
        before = self._cpu_s()
        await asyncio.sleep(IDLE_S)
        self._idle = (self._cpu_s() - before) / IDLE_S

    async def on(self, call: Call, numbers: range) -> tuple[float, Counter[str]]:
        """Return the CPU seconds of one of these calls, and what became of them."""
        ended, left = Counter[str](), iter(numbers)

        async def one_by_one() -> None:
            for number in left:
                ended[await call(number)] += 1

        before, begun = self._cpu_s(), time.perf_counter()
        await asyncio.gather(*(one_by_one() for _ in range(AT_ONCE)))
        await asyncio.sleep(SETTLES_S)
        spent_s = self._cpu_s() - before - self._idle * (time.perf_counter() - begun)
        return max(0.0, spent_s) / len(numbers), ended


@dataclass
class Cost:
    """CPU seconds of one call in the batch that took least, and what became of the calls of all."""

    least_s: float = math.inf
    ended: Counter[str] = field(default_factory=Counter[str])

    async def add(self, spent: Spent, call: Call, batch: int) -> None:
        """Measure one batch more."""
        cost_s, ended = await spent.on(call, range(batch * CALLS, (batch + 1) * CALLS))
        self.least_s = min(self.least_s, cost_s)
        self.ended += ended


async def measured(root: Path) -> None:
    """Report all rows."""
    (root / "logs").mkdir()
    async with Children(root / "logs") as children:
        parties = Parties(children, root, environment=ENVIRONMENT)
        try:
            await parties.start_broker("auto")
            parties.write("load", 2)
            aggregators = [await parties.start(position) for position in range(2)]
            said = [await one.ready(START_S) for one in aggregators]
            await _rows(parties, Spent(aggregators[0].process.pid), said[0]["metrics_port"])
        finally:
            await parties.close()


async def _rows(parties: Parties, spent: Spent, pages: int) -> None:
    window, attacker = question(parties, ROUND_ONE_S), Attacker(parties, pages)
    await settled(parties, window, "grpc")
    await spent.wait()
    devices = [Device(parties, window, "grpc") for _ in range(BATCHES * CALLS)]

    async def first(number: int) -> str:
        return "came in" if await devices[number].hand_in() else "kept out"

    async def rest(number: int) -> str:
        return "came in" if await devices[number].hand_in_rest() else "kept out"

    known, request = await _session(attacker)
    hostile = kinds(attacker, known, request)
    firsts, rests, costs = Cost(), Cost(), [Cost() for _ in hostile]
    for batch in range(BATCHES):
        await firsts.add(spent, first, batch)
        for kind, cost in zip(hostile, costs, strict=True):
            await cost.add(spent, kind.call, batch)
    await attacker.close()
    await asyncio.sleep(max(0.0, window.round_one_closes - time.time()))
    for batch in range(BATCHES):
        await rests.add(spent, rest, batch)
    honest_s = firsts.least_s + rests.least_s
    _told("an honest answer", honest_s, honest_s, firsts.ended + rests.ended)
    _told("of an honest answer session and first part", firsts.least_s, honest_s, firsts.ended)
    for kind, cost in zip(hostile, costs, strict=True):
        _told(kind.name, cost.least_s, honest_s, cost.ended, kind.why)


async def _session(attacker: Attacker) -> tuple[DeviceIdentity, bytes]:
    """Open a session as a device does; return the device and its request."""
    deployment = attacker.parties.deployment
    device, aggregator = DeviceIdentity.generate(deployment.authorities.devices), deployment.aggregators[0]
    request, _ = new_session(
        aggregator, aggregator.hpke_keys[0], device, on_the_hour(time.time() + 3_600), SystemRandom()
    )
    message = DEVICE_MESSAGE.encode(DeviceMessage(requests=(request,)))
    said = await attacker.call("opens", tls_of(*pem_of(device)), SERVICE + "Answer", message)
    if said != "answered":
        raise AssertionError(f"an honest device's session request is {said}")
    return device, message


def _told(name: str, cost_s: float, honest_s: float, ended: Counter[str], why: str = "") -> None:
    said = ", ".join(f"{count:,} {what}" for what, count in sorted(ended.items()))
    is_hostile = "honest" not in name
    report(
        Row(
            path=f"hostile call: {name}",
            ours=1e6 * cost_s,
            unit="us",
            peer="an honest answer",
            peer_value=1e6 * honest_s,
            ratio=cost_s / honest_s,
            must=MUST if is_hostile and not why else None,
            larger_is_better=False,
            note=f"CPU of the aggregator a call; {AT_ONCE} at once; of {sum(ended.values()):,} calls {said}"
            + (f"; {why}" if why else ""),
        )
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as directory:
        asyncio.run(measured(Path(directory)))

"""A hostile load for bench_attack_load.py, in a process of its own: so many calls a second from so many identities.

    hostile.py SPEC.json     says "ready" once it can begin, begins at once, and on a line on standard input says what
                             became of its calls

Follows no protocol and waits for nothing: a call is made when its time has come, whatever became of those before.
"""

import asyncio
import itertools
import json
import os
import ssl
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiomqtt
from http2_calls import HostileConnection

SERVICE: Final = "/fleetcount_protocol.v1.DeviceService/"
PEERS: Final = "/fleetcount_protocol.v1.PeerService/"
CALL_S: Final = 5.0
_WITH_TLS: Final = frozenset({"device", "certificate"})
_NICE: Final = 19
"""What the load itself takes it takes last: an attacker's processors are not the aggregator's."""
UNDER_WAY: Final = 4_000
"""Calls under way at once: beyond, the machine is measured and not the aggregator."""
Call = Callable[[], Coroutine[Any, Any, str]]


class Hostile:
    """One role's calls: `spec` has the endpoints, and for each identity a key, a certificate and a bad request."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._messages = [bytes.fromhex(one[2]) for one in spec["identities"]]
        self._tls = [tls_of(*one[:2]) for one in spec["identities"]] if spec["role"] in _WITH_TLS else []
        self._connections: dict[tuple[int, str], asyncio.Task[HostileConnection]] = {}
        self._clients: dict[int, aiomqtt.Client] = {}
        self._idle: deque[asyncio.StreamWriter] = deque()
        self.ended: Counter[str] = Counter()

    def calls(self) -> Iterator[Call]:
        """Yield one call after the other, each at the next place and from the next identity."""
        kinds = {
            "device": self._sessions,
            "certificate": self._certificate,
            "stranger": self._stranger,
            "mqtt": self._mqtt,
        }
        make, places = kinds[self._spec["role"]], self._spec["places"]
        for who in itertools.cycle(range(len(self._spec["identities"]))):
            for where in places:
                yield partial(make, who, where)

    async def _connected(self, who: int, where: dict[str, str], port: str) -> HostileConnection | None:
        """Return an identity's connection to a port, made anew if it has ended; calls that come meanwhile share it."""
        place = who, where[port]
        found = self._connections.get(place)
        if found is None or (found.done() and (found.cancelled() or found.exception() or not found.result().is_open)):
            found = asyncio.create_task(HostileConnection.open(where[port], self._tls[who], self._address(who)))
            self._connections[place] = found
        try:
            async with asyncio.timeout(CALL_S):
                return await asyncio.shield(found)
        except (OSError, TimeoutError):
            return None

    def _address(self, who: int) -> str:
        """Return from where an identity comes: each from an address of its own, or all from that of the devices."""
        own = self._spec["own_addresses"]
        return f"127.1.{(who + 1) >> 8}.{(who + 1) & 255}" if own else "127.0.0.1"

    async def _call(self, who: int, where: dict[str, str], port: str, method: str, message: bytes | None) -> str:
        connection = await self._connected(who, where, port)
        if connection is None:
            return "not connected"
        return await connection.call(method, message, CALL_S)

    async def _sessions(self, who: int, where: dict[str, str]) -> str:
        """Ask for sessions under bad signatures."""
        return await self._call(who, where, "device", SERVICE + "Answer", self._messages[who])

    async def _certificate(self, who: int, where: dict[str, str]) -> str:
        """Read what a reader may read, or call as a peer and send nothing."""
        if who % 2:
            return await self._call(who, where, "peer", PEERS + "Commit", b"")
        return await self._call(who, where, "device", SERVICE + "Answer", None)

    async def _stranger(self, who: int, where: dict[str, str]) -> str:
        """Connect, say the beginning of a handshake or nothing, and stay as long as there is room for more."""
        host, _, port = where[("device", "peer")[who % 2]].rpartition(":")
        try:
            async with asyncio.timeout(CALL_S):
                _, writer = await asyncio.open_connection(host, int(port), local_addr=(self._address(who), 0))
        except (OSError, TimeoutError):
            return "not connected"
        with suppress(OSError):
            writer.write((b"", b"\x16\x03\x01\x02\x00\x01", os.urandom(64))[who % 3])
        self._idle.append(writer)
        while len(self._idle) > len(self._spec["identities"]):
            self._idle.popleft().close()
        return "connected"

    async def _mqtt(self, who: int, where: dict[str, str]) -> str:
        """Publish a session request under a bad signature."""
        if who not in self._clients:
            host, _, port = self._spec["broker"].rpartition(":")
            client = aiomqtt.Client(host, int(port), timeout=CALL_S)
            try:
                await client.__aenter__()
            except aiomqtt.MqttError:
                return "not connected"
            self._clients[who] = client
        try:
            await self._clients[who].publish(where["topics"][who], self._messages[who], qos=0)
        except aiomqtt.MqttError:
            self._clients.pop(who, None)
            return "not published"
        return "published"

    async def run(self) -> None:
        """Make calls at their times until cancelled."""
        loop, under_way = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        began = loop.time()

        async def one(call: Call) -> None:
            self.ended[await call()] += 1

        for number, call in enumerate(self.calls()):
            await asyncio.sleep(max(0.0, began + number / self._spec["rate"] - loop.time()))
            if len(under_way) >= UNDER_WAY:
                self.ended["not made: too many under way"] += 1
                continue
            task = asyncio.create_task(one(call))
            under_way.add(task)
            task.add_done_callback(under_way.discard)


def tls_of(*pem: str) -> ssl.SSLContext:
    """Return the TLS of one identity, a key and a certificate as PEM or none; it does not ask whom it attacks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if pem:
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("\n".join(pem))
            file.flush()
            context.load_cert_chain(file.name)
    return context


async def main(spec: dict[str, Any]) -> None:
    """Run a load until somebody writes a line."""
    os.nice(_NICE)
    hostile = Hostile(spec)
    print("ready", flush=True)
    running = asyncio.create_task(hostile.run())
    await asyncio.to_thread(sys.stdin.readline)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    print(json.dumps(hostile.ended), flush=True)
    os._exit(0)  # Thousands of channels and connections need no farewell.


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))

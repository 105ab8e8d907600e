#!/bin/sh
# amqtt 0.12.1 drops what comes for a client that is away, though it acknowledges it and later says that the session is there.
#
# Seen on Python 3.11, MQTT 3.1.1: a car with a name, a password and a lasting session (clean session 0) has subscribed with
# quality of service 1 and is away for two of three publications of quality 1. A broker that takes clients without a name
# as well (AnonymousAuthPlugin, allow_anonymous) answers each by PUBACK; the car comes back, reads "session present" and gets
# the third alone. With allow_anonymous off the same car gets all three, the two marked as retained, as nobody published them.
# mosquitto 2.0.11 with allow_anonymous delivers the two, unmarked. Where the plugin lets anonymous clients in it takes every
# client for one, and for those nothing is queued. So what a test against this broker says of lost reports holds for no
# other, and "session present" is no receipt. Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q amqtt==0.12.1 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" - << 'PYTHON'
import asyncio
import logging
import sys

from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter
from amqtt.broker import Broker

logging.disable(logging.CRITICAL)
PLUGIN, TOPIC = "amqtt.plugins.authentication.AnonymousAuthPlugin", b"fleet/question"
THIRD = (0x32, b"question 3")


def text(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") + value


class Client:
    """A client of MQTT 3.1.1 whose packets are shorter than 128 bytes."""

    @classmethod
    async def connect(cls, port: int, name: bytes, clean: bool) -> "Client":
        self = cls()
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        await self.send(0x10, text(b"MQTT") + bytes([4, 0xC0 | clean << 1, 0, 60]) + 3 * text(name))
        self.session_present = (await self.receive())[1][0]
        return self

    async def send(self, head: int, body: bytes) -> None:
        self.writer.write(bytes([head, len(body)]) + body)
        await self.writer.drain()

    async def receive(self) -> tuple[int, bytes]:
        head, size = await self.reader.readexactly(2)
        return head, await self.reader.readexactly(size)

    async def publish(self, number: int) -> None:
        """Publish with quality of service 1, and wait for PUBACK."""
        await self.send(0x32, text(TOPIC) + bytes([0, number]) + b"question %d" % number)
        assert await self.receive() == (0x40, bytes([0, number]))

    async def leave(self) -> None:
        await self.send(0xE0, b"")
        await self.reader.read()
        self.writer.close()


async def away(anonymous: bool) -> tuple[int, list[tuple[int, bytes]]]:
    """Return whether the session is there when the car is back, and what it gets, as (first byte, payload).

    The third question is put when the car is back; once it is there, those before it would be."""
    broker = Broker({"listeners": {"default": {"type": "external"}}, "plugins": {PLUGIN: {"allow_anonymous": anonymous}}})
    await broker.start()

    async def arrived(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await broker.external_connected(StreamReaderAdapter(reader), StreamWriterAdapter(writer), "default")

    server = await asyncio.start_server(arrived, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    car = await Client.connect(port, b"car7", clean=False)
    await car.send(0x82, b"\0\1" + text(TOPIC) + b"\1")
    await car.receive()
    await car.leave()
    asker = await Client.connect(port, b"asker", clean=True)
    await asker.publish(1)
    await asker.publish(2)
    car = await Client.connect(port, b"car7", clean=False)
    await asker.publish(3)
    got = []
    while not got or got[-1][1] != b"question 3":
        head, body = await car.receive()
        number, payload = body[2 + len(TOPIC) :][:2], body[4 + len(TOPIC) :]
        await car.send(0x40, number)
        got.append((head, payload))
    await car.leave()
    await asker.leave()
    server.close()
    await broker.shutdown()
    return car.session_present, got


async def main() -> int:
    async with asyncio.timeout(60):
        seen = {anonymous: await away(anonymous) for anonymous in (True, False)}
    for anonymous, (present, got) in seen.items():
        print(f"allow_anonymous {anonymous}: all acknowledged; session present {present}; delivered {got}")
    return 0 if seen == {True: (1, [THIRD]), False: (1, [(0x33, b"question 1"), (0x33, b"question 2"), THIRD])} else 1


sys.exit(asyncio.run(main()))
PYTHON

#!/bin/sh
# aiomqtt 2.5.1 acknowledges a message of quality of service 1 as it arrives, not as the program reads it.
#
# Seen on Python 3.11 with paho-mqtt 2.2.0: a broker of a few lines delivers three messages to a client that has
# subscribed and reads none of them. All three PUBACK come at once, while the messages still wait in the client's queue in
# memory (len(client.messages) is 3). So a program that ends before it has read and stored them has lost what its broker
# counts as delivered: "at least once" ends at the queue, and a receipt has to be a message of one's own. Exits 0 while
# this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q aiomqtt==2.5.1 paho-mqtt==2.2.0 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" - << 'PYTHON'
import asyncio
import sys

import aiomqtt

TOPIC, PAYLOAD, MESSAGES = b"fleet/report", b"one", 3
acknowledged: asyncio.Queue[int] = asyncio.Queue()


async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """MQTT 3.1.1, as much of it as one subscriber needs; its packets are shorter than 128 bytes."""
    while head := await reader.read(1):
        body = await reader.readexactly((await reader.readexactly(1))[0])
        kind = head[0] >> 4
        if kind == 1:  # CONNECT is answered by CONNACK.
            writer.write(bytes([0x20, 2, 0, 0]))
        elif kind == 8:  # SUBSCRIBE by SUBACK, and the messages follow.
            writer.write(bytes([0x90, 3]) + body[:2] + b"\x01")
            for number in range(1, MESSAGES + 1):
                rest = len(TOPIC).to_bytes(2, "big") + TOPIC + number.to_bytes(2, "big") + PAYLOAD
                writer.write(bytes([0x32, len(rest)]) + rest)
        elif kind == 4:  # PUBACK
            acknowledged.put_nowait(int.from_bytes(body, "big"))


async def main() -> int:
    server = await asyncio.start_server(broker, "127.0.0.1", 0)
    async with aiomqtt.Client("127.0.0.1", server.sockets[0].getsockname()[1]) as client:
        await client.subscribe(TOPIC.decode(), qos=1)
        try:
            async with asyncio.timeout(20):
                numbers = [await acknowledged.get() for _ in range(MESSAGES)]
        except TimeoutError:
            numbers = []
        waiting = len(client.messages)
    print(f"acknowledged: {numbers}; read by the program: 0; still in the client's queue: {waiting}")
    return 0 if (numbers, waiting) == ([1, 2, 3], MESSAGES) else 1


sys.exit(asyncio.run(main()))
PYTHON

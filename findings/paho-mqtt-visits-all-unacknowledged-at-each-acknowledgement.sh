#!/bin/sh
# paho-mqtt 2.2.0 visits every message that still waits whenever one is acknowledged, if its window is not full.
#
# Seen on Python 3.11: max_inflight_messages_set(N) allows N publications of quality of service 1 to be under way at once. At
# each PUBACK the client looks through all that it holds for one that waits for its turn; while fewer than N are held there is
# none, and it looks at all of them. So 1,000 messages that are acknowledged one after the other cost 499,500 visits where N is
# 65,535, and none where N is 0, which its documentation calls no limit. A program that raises N so that its groups need not
# wait pays with the square of a group. Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q paho-mqtt==2.2.0 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" - << 'PYTHON'
import socket
import sys
import threading
from collections import OrderedDict

from paho.mqtt import client as mqtt

MESSAGES = 1_000


class Visited(OrderedDict):
    """The client's table of messages that are not acknowledged, which counts how many of them are looked at."""

    visits = 0

    def values(self):
        for message in super().values():
            self.visits += 1
            yield message


def serve(listener: socket.socket) -> None:
    """Be a broker of MQTT 3.1.1 to one client, and acknowledge its messages, each below 128 bytes, once all are there."""
    connection, _ = listener.accept()
    numbers: list[bytes] = []
    with connection, connection.makefile("rb") as stream:
        while head := stream.read(1):
            body = stream.read(stream.read(1)[0])
            if head[0] >> 4 == 1:
                connection.sendall(b"\x20\x02\x00\x00")
            elif head[0] >> 4 == 3:
                after = 2 + int.from_bytes(body[:2], "big")
                numbers.append(body[after : after + 2])
                if len(numbers) == MESSAGES:
                    connection.sendall(b"".join(b"\x40\x02" + number for number in numbers))


def visits(window: int) -> tuple[int, int]:
    """Return how many messages were looked at, and how many are still held, after all were acknowledged."""
    connected = threading.Event()
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.max_inflight_messages_set(window)
    client.on_connect = lambda *_: connected.set()
    client._out_messages = table = Visited()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        client.connect("127.0.0.1", listener.getsockname()[1])
        client.loop_start()
        connected.wait(20)
        table.visits = 0
        sent = [client.publish("fleet/receipt", b"stored", qos=1) for _ in range(MESSAGES)]
        for one in sent:
            one.wait_for_publish(timeout=20)
        client.disconnect()
        client.loop_stop()
    return table.visits, len(table)


found = {window: visits(window) for window in (65_535, 0)}
for window, (looked, held) in found.items():
    print(f"window {window}: {MESSAGES} messages acknowledged, {looked} visits, {held} still held")
sys.exit(0 if found == {65_535: (MESSAGES * (MESSAGES - 1) // 2, 0), 0: (0, 0)} else 1)
PYTHON

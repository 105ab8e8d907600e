#!/bin/sh
# paho-mqtt 2.2.0 says "not connected" of a publication of quality of service 1, keeps it, and sends it after all.
#
# Seen on Python 3.11: publish(..., qos=1) of a client without a connection returns MQTT_ERR_NO_CONN (4) and its
# wait_for_publish() raises RuntimeError, as they do at quality 0, where the message is indeed gone. At quality 1 it is kept:
# as the client connects it goes out before anything else. A program that publishes again what was refused, here once, has two
# packets of two identifiers with the broker, neither marked as a duplicate, so no broker can join them. So a car that
# repeats its report while it has no network is counted more than once unless the report has an identity of its own. Exits 0
# while this is so, 1 when it has changed, 2 when it could not be tried.
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

from paho.mqtt import client as mqtt

received: list[tuple[int, bool, bytes]] = []


def serve(listener: socket.socket) -> None:
    """Be a broker of MQTT 3.1.1 to one client, whose packets are shorter than 128 bytes."""
    connection, _ = listener.accept()
    with connection, connection.makefile("rwb", buffering=0) as stream:
        while head := stream.read(1):
            body = stream.read(stream.read(1)[0])
            if head[0] >> 4 == 1:
                stream.write(b"\x20\x02\x00\x00")
            elif head[0] >> 4 == 3:
                after = 2 + int.from_bytes(body[:2], "big")
                number, payload = body[after : after + 2], body[after + 2 :]
                received.append((int.from_bytes(number, "big"), bool(head[0] & 8), payload))
                stream.write(b"\x40\x02" + number)


def refused(quality: int) -> tuple[int, str]:
    """Return what a publication without a connection returns, and what waiting for it raises."""
    info = client.publish("fleet/report", b"car 7, quality %d" % quality, qos=quality)
    try:
        info.wait_for_publish(timeout=1)
        return int(info.rc), "nothing"
    except RuntimeError as error:
        return int(info.rc), str(error)


connected = threading.Event()
client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
client.on_connect = lambda *_: connected.set()
said = {quality: refused(quality) for quality in (0, 1)}
with socket.create_server(("127.0.0.1", 0)) as listener:
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    client.connect("127.0.0.1", listener.getsockname()[1])
    client.loop_start()
    connected.wait(20)
    client.publish("fleet/report", b"car 7, quality 1", qos=1).wait_for_publish(timeout=20)
    client.disconnect()
    client.loop_stop()
for quality, (code, text) in said.items():
    print(f"quality {quality} without a connection: code {code}; waiting for it raises: {text}")
print(f"the broker has, as (identifier, duplicate, payload): {received}")
codes = [code for code, _ in said.values()]
words = all("not currently connected" in text for _, text in said.values())
twice = [(duplicate, payload) for _, duplicate, payload in received] == [(False, b"car 7, quality 1")] * 2
sys.exit(0 if codes == [4, 4] and words and twice and received[0][0] != received[1][0] else 1)
PYTHON

"""A client that publishes without end, in a process of its own: the flood of one enrolled device at a real broker.

`python -m tests.support.flooding PORT ROOT NAME TOPIC FILE COUNT RATE` publishes the messages of a file, each behind
its length in four bytes, again and again, COUNT in all, RATE a second, and prints how many seconds it took until the
broker had them all.
"""

import itertools
import socket
import ssl
import sys
import threading
import time
from pathlib import Path

_GROUP = 200


def remaining(length: int) -> bytes:
    """Return a packet's length as it is written (MQTT 3.1.1, section 2.2.3)."""
    encoded = bytearray()
    while True:
        length, digit = length >> 7, length & 0x7F
        encoded.append(digit | (0x80 if length else 0))
        if not length:
            return bytes(encoded)


def publications(topic: str, payloads: list[bytes]) -> list[bytes]:
    """Return a PUBLISH with QoS 1 of each payload."""
    head = len(topic).to_bytes(2) + topic.encode()
    bodies = [head + (number % 65_535 + 1).to_bytes(2) + one for number, one in enumerate(payloads)]
    return [b"\x32" + remaining(len(body)) + body for body in bodies]


def connected(port: int, root: Path, name: str) -> ssl.SSLSocket:
    """Return a connection to the broker with a party's certificate, greeted."""
    context = ssl.create_default_context(cafile=str(root / "PKI" / "aggregators.crt"))
    context.load_cert_chain(root / f"{name}.crt", root / f"{name}.key")
    sock = context.wrap_socket(socket.create_connection(("localhost", port)), server_hostname="localhost")
    body = b"\0\4MQTT\4\2\0\0" + b"\0\1x"
    sock.sendall(b"\x10" + remaining(len(body)) + body)
    assert sock.recv(4) == bytes.fromhex("20020000")
    return sock


def pour(sock: ssl.SSLSocket, packets: list[bytes], count: int, rate: float) -> float:
    """Send so many packets, at most `rate` a second; return the seconds until the broker has acknowledged all."""
    began = time.monotonic()
    heard = 4 * count

    def listen() -> None:
        nonlocal heard
        while heard > 0 and (data := sock.recv(1 << 16)):
            heard -= len(data)

    listener = threading.Thread(target=listen)
    listener.start()
    endless = itertools.cycle(packets)
    for first in range(0, count, _GROUP):
        time.sleep(max(0.0, began + first / rate - time.monotonic()))
        sock.sendall(b"".join(itertools.islice(endless, min(_GROUP, count - first))))
    listener.join()
    return time.monotonic() - began


def _main() -> None:
    port, root, name, topic, file, count, rate = sys.argv[1:]
    data, payloads = Path(file).read_bytes(), list[bytes]()
    while data:
        size = 4 + int.from_bytes(data[:4])
        payloads.append(data[4:size])
        data = data[size:]
    sock = connected(int(port), Path(root), name)
    print("ready", flush=True)
    print(pour(sock, publications(topic, payloads), int(count), float(rate)), flush=True)
    sock.close()


if __name__ == "__main__":
    _main()

"""The embedded MQTT 3.1.1 broker, a process of its own: `python -m fleetcount_simulator.network.broker [--port N]`.

Listens on loopback only, takes anyone, keeps nothing on disk: it stands for a broker that nobody needs to trust. It
forgets everything when it ends; no promise of delivery rests on it, only the aggregators' receipts do. A client that
speaks of QoS 2 is hung up on.
"""

import argparse
import asyncio
import gc
import json
import os
import signal
import ssl
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, cast

from fleetcount_protocol.errors import DecodeError

from fleetcount_simulator.network.mqtt_packets import (
    CONNACK_BAD_NAME,
    CONNACK_BAD_VERSION,
    CONNACK_OK,
    PINGRESP,
    Kind,
    Publish,
    acknowledgement,
    connack,
    publish_acknowledgement,
    read_connect,
    read_name,
    read_publish,
    read_subscribe,
    read_unsubscribe,
    split_packets,
    subscribe_acknowledgement,
)
from fleetcount_simulator.network.mqtt_sessions import Exchange, Session

__all__ = ["listen", "main", "serve"]

HOST: Final = "127.0.0.1"
_CONNECT_S: Final = 10.0
_PATIENCE: Final = 1.5
"""A client that is silent for so many of its keep-alive intervals is gone (section 3.1.2.10)."""
_BACKLOG: Final = 1_024


class _Connection(asyncio.Protocol):
    """One client's connection: packets in, packets out, one write for what one turn of the event loop gathers."""

    def __init__(self, exchange: Exchange, everybody: "set[_Connection]") -> None:
        self._exchange = exchange
        self._everybody = everybody
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._session: Session | None = None
        self._will: Publish | None = None
        self._unread = b""
        self._unsent: list[bytes] = []
        self._heard_at = self._loop.time()
        self._patience_s = _CONNECT_S
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first packet."""
        self._transport = cast("asyncio.Transport", transport)  # A stream server makes no other.
        self._everybody.add(self)
        self._watch = self._loop.call_later(_CONNECT_S, self._look)

    def data_received(self, data: bytes) -> None:
        """Do what every whole packet asks for; hang up on the first that cannot be understood."""
        self._heard_at = self._loop.time()
        try:
            packets, self._unread = split_packets(self._unread + data if self._unread else data)
            for first, body in packets:
                if self._transport is None:
                    return
                self._take(first, body)
        except DecodeError:
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Publish the will of who went without a word."""
        self._transport = None
        self._everybody.discard(self)
        if self._watch is not None:
            self._watch.cancel()
        if self._session is not None:
            self._exchange.leave(self._session, self)
        if self._will is not None:
            self._exchange.publish(self._will)

    def send(self, packet: bytes) -> None:
        """Write a packet in this turn of the event loop."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(packet)

    def drop(self) -> None:
        """Close the connection without a word."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._transport is not None:
            self._transport.write(b"".join(unsent))

    def _look(self) -> None:
        """Hang up on who has been silent for too long; look again when that could be."""
        left_s = self._heard_at + self._patience_s - self._loop.time()
        if left_s <= 0:
            self.drop()
        else:
            self._watch = self._loop.call_later(left_s, self._look)

    def _take(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if self._session is None:
            if kind != Kind.CONNECT:
                raise DecodeError(f"the first packet is of type {kind}, not a CONNECT")
            self._connect(first, body)
        elif kind == Kind.PUBLISH:
            message = read_publish(first, body)
            if message.qos:
                self.send(publish_acknowledgement(message.packet_id))
            self._exchange.publish(message)
        elif kind == Kind.PUBACK:
            self._session.acknowledged(read_name(first, body))
        elif kind == Kind.SUBSCRIBE:
            wanted = read_subscribe(first, body)
            self.send(subscribe_acknowledgement(wanted.packet_id, tuple(qos for _, qos in wanted.filters)))
            self._exchange.subscribe(self._session, wanted.filters)
        elif kind == Kind.UNSUBSCRIBE:
            packet_id, filters = read_unsubscribe(first, body)
            self._exchange.unsubscribe(self._session, filters)
            self.send(acknowledgement(Kind.UNSUBACK, packet_id))
        elif kind == Kind.PINGREQ:
            self.send(PINGRESP)
        elif kind == Kind.DISCONNECT:
            self._will = None
            self.drop()
        else:
            raise DecodeError(f"a client sends a packet of type {kind}")

    def _connect(self, first: int, body: bytes) -> None:
        wanted = read_connect(first, body)
        if not wanted.level:
            self._refuse(CONNACK_BAD_VERSION)
        elif not wanted.client_id and not wanted.clean:
            self._refuse(CONNACK_BAD_NAME)
        else:
            # Who gives no name gets one that nobody else can have.
            name = wanted.client_id or f"\0{id(self)}"
            self._session, present = self._exchange.enter(name, clean=wanted.clean)
            self._will = wanted.will
            if self._watch is not None:
                self._watch.cancel()
            if wanted.keepalive_s:
                self._patience_s = wanted.keepalive_s * _PATIENCE
                self._watch = self._loop.call_later(self._patience_s, self._look)
            self.send(connack(CONNACK_OK, session_present=present))
            self._session.resume(self)

    def _refuse(self, code: int) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.write(connack(code))
            transport.close()


@asynccontextmanager
async def listen(port: int, tls: ssl.SSLContext | None = None) -> AsyncGenerator[int]:
    """Run a broker in this event loop on 127.0.0.1 and give its port; 0 lets the system choose."""
    exchange, everybody = Exchange(), set[_Connection]()
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(exchange, everybody), HOST, port, ssl=tls, backlog=_BACKLOG
    )
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for connection in list(everybody):
            connection.drop()


async def serve(port: int, *, with_parent: bool = False) -> None:
    """Run the broker until SIGTERM or SIGINT; print {"ready": true, "port": N} once it listens.

    `with_parent` also ends it when its stdin closes: whoever started it is gone.
    """
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if with_parent:
        loop.add_reader(0, lambda: None if os.read(0, 4096) else stopped.set())
    async with listen(port) as chosen:
        print(json.dumps({"ready": True, "port": chosen}), flush=True)
        await stopped.wait()


def main() -> int:
    """Parse the options and serve."""
    parser = argparse.ArgumentParser(description="The demo's MQTT broker, on loopback.")
    parser.add_argument("--port", type=int, default=0, help="0: the system chooses")
    parser.add_argument("--with-parent", action="store_true", help="end when stdin closes")
    options = parser.parse_args()
    gc.freeze()
    asyncio.run(serve(options.port, with_parent=options.with_parent))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The embedded MQTT 3.1.1 broker, a process of its own: `python -m fleetcount_simulator.network.broker [--port N]`.

Listens on loopback only, accepts every client and stores nothing: no party needs to trust it. It loses
messages of clients that are away: delivery does not rely on the broker, but on the aggregators' receipts.
"""

import argparse
import asyncio
import gc
import json
import logging
import signal
import sys
from collections.abc import Iterator
from typing import Any

from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter
from amqtt.broker import Broker
from amqtt.contexts import BrokerConfig, ListenerConfig, ListenerType

_LISTENER = "default"
_PLUGINS: dict[str, Any] = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}


class _StableDict(dict[Any, Any]):
    """A dictionary that may change during an iteration over it.

    amqtt awaits inside loops over its subscriptions; a client that subscribes meanwhile would end the loop with an
    error, and the message or the connection would be lost.
    """

    def __iter__(self) -> Iterator[Any]:
        return iter(list(super().keys()))

    def items(self) -> Any:
        """Return a snapshot in place of the live view."""
        return list(super().items())


class _EmbeddedBroker(Broker):  # type: ignore[misc] # amqtt is read without types (pyproject.toml), so its class is Any
    def __init__(self) -> None:
        # "external": this program opens the socket, so that the system chooses the port and only loopback is bound.
        listener = ListenerConfig(type=ListenerType.EXTERNAL)
        super().__init__(BrokerConfig(listeners={_LISTENER: listener}, plugins=_PLUGINS))
        self._subscriptions = _StableDict()
        self._retained_messages = _StableDict()


async def serve(port: int) -> None:
    """Run the broker on 127.0.0.1 until SIGTERM or SIGINT; print {"ready": true, "port": N} once it listens."""
    broker = _EmbeddedBroker()
    await broker.start()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await broker.external_connected(StreamReaderAdapter(reader), StreamWriterAdapter(writer), _LISTENER)

    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = await asyncio.start_server(connected, "127.0.0.1", port)
    try:
        print(json.dumps({"ready": True, "port": server.sockets[0].getsockname()[1]}), flush=True)
        await stopped.wait()
    finally:
        server.close()


def main() -> int:
    """Parse the one option and serve."""
    parser = argparse.ArgumentParser(description="The demo's MQTT broker, on loopback.")
    parser.add_argument("--port", type=int, default=0, help="0: the system chooses")
    port: int = parser.parse_args().port
    # The broker logs every packet, which costs time; its clients log the messages that they miss.
    logging.disable(logging.CRITICAL)
    gc.freeze()
    asyncio.run(serve(port))
    return 0


if __name__ == "__main__":
    sys.exit(main())

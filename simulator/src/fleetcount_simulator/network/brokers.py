"""The MQTT broker of a run, a process on loopback: mosquitto where the machine has it, else the embedded one.

It only starts the broker. No party trusts it: the choice changes the duration of a run, and no promise.
"""

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fleetcount_simulator.errors import ProcessError
from fleetcount_simulator.network.children import Child, Children, last_line
from fleetcount_simulator.network.deployments import HOST
from fleetcount_simulator.network.ports import free_ports

EMBEDDED: Final = "embedded"
MOSQUITTO: Final = "mosquitto"
BROKERS: Final = ("auto", EMBEDDED, MOSQUITTO)
_START_S: Final = 90.0
_PLACES: Final = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")
_INFLIGHT: Final = 1_000
"""Unacknowledged messages of mosquitto to one aggregator: an aggregator commits as many together."""
_SETTINGS: Final = (
    "persistence false",
    # The queue has no limit: for a message that the broker drops, a device waits a whole time-out.
    "max_queued_messages 0",
    f"max_inflight_messages {_INFLIGHT}",
    "set_tcp_nodelay true",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedBroker:
    """A broker that accepts connections: its kind, its "host:port", and its unacknowledged messages to one client.

    `inflight` is None for the default of a broker; `command` starts it again on its port.
    """

    kind: str
    address: str
    inflight: int | None
    child: Child
    command: tuple[str, ...]


def find_mosquitto() -> str | None:
    """Return the mosquitto program, or None; FLEETCOUNT_MOSQUITTO may name it."""
    named = os.environ.get("FLEETCOUNT_MOSQUITTO")
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), *_PLACES])
    return shutil.which(named) if named else shutil.which(MOSQUITTO, path=places)


async def start_broker(
    children: Children, root: Path, kind: str = "auto", settings: Sequence[str] | None = None
) -> StartedBroker:
    """Start a broker on a free port: mosquitto, the embedded one, or ("auto") mosquitto where the machine has it.

    Its configuration is written to `root`, a private directory. `settings` replace the lines of mosquitto's
    configuration beyond listener and access.

    Raises:
        ProcessError: it does not start, or there is no mosquitto.
    """
    program = find_mosquitto() if kind != EMBEDDED else None
    if program is not None:
        return await _start_mosquitto(children, root, program, settings)
    if kind == MOSQUITTO:
        raise ProcessError("mosquitto is not installed; FLEETCOUNT_MOSQUITTO can name it")
    command = (sys.executable, "-m", "fleetcount_simulator.network.broker")
    child = await children.start("broker", command)
    port = int((await child.ready(_START_S))["port"])
    again = (*command, "--port", str(port))
    return StartedBroker(kind=EMBEDDED, address=f"{HOST}:{port}", inflight=None, child=child, command=again)


async def restart_broker(children: Children, broker: StartedBroker) -> StartedBroker:
    """Start a broker that has ended again, on its port and with its configuration.

    Raises:
        ProcessError: it does not start.
    """
    child = await children.start("broker", broker.command)
    await _until_it_answers(child, int(broker.address.rpartition(":")[2]))
    return replace(broker, child=child)


async def _start_mosquitto(
    children: Children, root: Path, program: str, settings: Sequence[str] | None
) -> StartedBroker:
    (port,) = free_ports(HOST, 1)
    config = root / "mosquitto.conf"
    rows = (f"listener {port} {HOST}", "allow_anonymous true", *(_SETTINGS if settings is None else settings))
    config.write_text("\n".join(rows) + "\n")
    command = (program, "-c", str(config))
    child = await children.start("broker", command)
    await _until_it_answers(child, port)
    inflight = _INFLIGHT if settings is None else None
    return StartedBroker(kind=MOSQUITTO, address=f"{HOST}:{port}", inflight=inflight, child=child, command=command)


async def _until_it_answers(child: Child, port: int) -> None:
    """Wait until a broker accepts connections. Raises ProcessError when it ends, or does not within `_START_S`."""
    deadline = time.monotonic() + _START_S
    while child.process.returncode is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(HOST, port)
            writer.close()
            await writer.wait_closed()
            return
        await asyncio.sleep(0.02)
    raise ProcessError(f"the broker does not answer: {last_line(child.log)}")

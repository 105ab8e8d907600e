"""MQTT brokers of a test, started by the runner: the embedded one, and mosquitto where the machine has it."""

import os
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import cast

from fleetcount_simulator.network.brokers import (
    EMBEDDED,
    MOSQUITTO,
    StartedBroker,
    find_mosquitto,
    restart_broker,
    start_broker,
)
from fleetcount_simulator.network.children import Child, Children

from tests.support.processes import ChildProcess, SeenProcess

__all__ = ["LiveBroker", "RunningBroker", "embedded_broker", "find_mosquitto", "mosquitto_broker", "mosquitto_version"]


class LiveBroker:
    """A broker that runs and takes connections; it keeps its port over its lives."""

    def __init__(self, kind: str, directory: Path, settings: Sequence[str] | None = None) -> None:
        self._children = Children(directory)
        self._first = (directory, kind, settings)
        self._started: StartedBroker | None = None
        self.child = ChildProcess("broker", self._begin, directory)
        self.child.start()

    async def _begin(self, _: str) -> Child:
        before = self._started
        self._started = await (
            restart_broker(self._children, before) if before else start_broker(self._children, *self._first)
        )
        return self._started.child

    @property
    def started(self) -> StartedBroker:
        """What the runner says of it."""
        assert self._started is not None
        return self._started

    @property
    def port(self) -> int:
        """Where it listens."""
        return _port(self.started)

    def stop(self) -> None:
        """End it."""
        self.child.terminate()
        self.child.ended()


class RunningBroker:
    """The embedded broker, which somebody else started and ends."""

    def __init__(self, address: str, pid: int, log: Path) -> None:
        self.child = SeenProcess("broker", log, pid, {})
        # Whoever connects looks at no process.
        self.started = StartedBroker(
            kind=EMBEDDED, address=address, inflight=None, child=cast("Child", self.child), command=()
        )

    @property
    def port(self) -> int:
        """Where it listens."""
        return _port(self.started)


def _port(started: StartedBroker) -> int:
    return int(started.address.rpartition(":")[2])


def embedded_broker(directory: Path) -> LiveBroker:
    """Start the demo's broker."""
    return LiveBroker(EMBEDDED, directory)


def mosquitto_broker(directory: Path, *settings: str) -> LiveBroker:
    """Start mosquitto with the persistence a package sets up: on, and saved every half hour, to mosquitto/mosquitto.db.

    `settings` are further lines of its configuration.
    """
    print("mosquitto", ".".join(map(str, mosquitto_version())))  # A failure says which: 2.0 and 2.1 differ.
    store = directory / "mosquitto"
    store.mkdir()
    rows = ["persistence true", f"persistence_location {store}/", "log_dest stderr", *settings]
    if os.geteuid() == 0:
        rows.append("user root")  # It would give up the rights to its own directory below the test's private one.
    return LiveBroker(MOSQUITTO, directory, rows)


@cache
def mosquitto_version() -> tuple[int, ...]:
    """Return the version of the mosquitto that tests find, as (2, 0, 11); () without one."""
    program = find_mosquitto()
    if program is None:
        return ()
    # Its help ends with 1 in some versions; the first line is "mosquitto version 2.0.11".
    said = subprocess.run([program, "-h"], capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r"mosquitto version (\d+(?:\.\d+)*)", said.stdout + said.stderr)
    return () if found is None else tuple(map(int, found[1].split(".")))

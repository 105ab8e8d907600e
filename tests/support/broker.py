"""MQTT brokers of a test as processes of their own: the embedded one, and mosquitto where the machine has it."""

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from fleetcount_simulator.network.brokers import find_mosquitto

from tests.support.processes import ChildProcess, free_port, wait_until

__all__ = ["EmbeddedBroker", "Mosquitto", "find_mosquitto"]


class _Broker:
    """A broker that keeps its port over its lives."""

    def __init__(self, child: ChildProcess, port: int) -> None:
        self.child = child
        self.port = port

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        self.child.start()
        wait_until(self._answers, f"{self.child.name} takes connections", 30)

    def _answers(self) -> bool:
        if not self.child.running:
            raise AssertionError(f"{self.child.name} ended with {self.child.ends[-1:]}: {self.child.last_lines()}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def kill(self) -> None:
        """kill -9."""
        self.child.kill()

    def stop(self) -> None:
        """End it."""
        if self.child.running:
            self.child.terminate()
            self.child.ended()


class EmbeddedBroker(_Broker):
    """The demo's broker."""

    def __init__(self, directory: Path) -> None:
        port = free_port()
        command = [sys.executable, "-m", "fleetcount_simulator.network.broker", "--port", str(port)]
        super().__init__(ChildProcess("broker", command, directory), port)


class Mosquitto(_Broker):
    """Our own instance of mosquitto with the persistence a package sets up: on, and saved every half hour."""

    def __init__(self, program: str, directory: Path) -> None:
        port = free_port()
        store = directory / "mosquitto"
        store.mkdir()
        config = directory / "mosquitto.conf"
        rows = [f"listener {port} 127.0.0.1", "allow_anonymous true", "persistence true"]
        rows += [f"persistence_location {store}/", "log_dest stderr"]
        if os.geteuid() == 0:
            rows += ["user root"]  # It would give up the rights to its own directory below the test's private one.
        config.write_text("\n".join(rows) + "\n")
        super().__init__(ChildProcess("mosquitto", [program, "-c", str(config)], directory), port)

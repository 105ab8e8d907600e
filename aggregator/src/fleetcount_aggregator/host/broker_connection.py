"""The number of one of an aggregator's connections to the MQTT broker, and how many there are."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerConnection:
    """One of `slots` connections, which share the devices of an aggregator; `slot` is 0 to `slots` - 1."""

    slot: int = 0
    slots: int = 1

    @property
    def name(self) -> str:
        """The name of the connection in health observations; "" for the only one."""
        return str(self.slot) if self.slots > 1 else ""

    @property
    def announces(self) -> bool:
        """Whether this connection publishes windows, outcomes and offers as retained messages: one of them does."""
        return self.slot == 0

"""Which of an aggregator's connections to the MQTT broker one is, and of how many."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerConnection:
    """One of so many connections that share the devices of an aggregator among them."""

    slot: int = 0
    slots: int = 1

    @property
    def name(self) -> str:
        """How the condition of the connection is called; "" for the only one."""
        return str(self.slot) if self.slots > 1 else ""

    @property
    def announces(self) -> bool:
        """Whether it keeps windows, outcomes and offers at the broker: one of them does."""
        return self.slot == 0

"""How a device tells a relay which aggregator a call is for: one line of a call's metadata, outside every message.

The relay carries the messages of device.proto unread; docs/wire.md, "Relay".
"""

from typing import Final

__all__ = ["AGGREGATOR_HEADER"]

AGGREGATOR_HEADER: Final = "fleetcount-aggregator"
"""Its value is the aggregator's id. Aggregators ignore it."""

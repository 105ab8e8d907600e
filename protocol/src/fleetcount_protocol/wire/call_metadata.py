"""What travels beside the messages of a gRPC call, in its metadata, outside everything that is signed or sealed.

docs/wire.md, "Relay", "Protobuf messages" and "Greetings".
"""

from typing import Final

CARRIED_HEADER: Final = "fleetcount-carried"
"""From a relay to an aggregator: a name for the device whose call this is, which means nothing elsewhere."""
GREETING_HEADER: Final = "fleetcount-greeting-bin"
"""Between aggregators, with every call and, in the trailing metadata, with every answer (`channel.greetings`)."""
RETRY_TRAILER: Final = "fleetcount-retry-after-ms"
"""Beside a status that says "busy": in how many milliseconds it is worth coming back."""

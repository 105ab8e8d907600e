"""The names of gRPC metadata beside the messages of a call, which is neither signed nor sealed.

See docs/wire.md, "Relay", "Protobuf messages" and "Greetings".
"""

from typing import Final

CARRIED_HEADER: Final = "fleetcount-carried"
"""From a relay to an aggregator: the relay's own name for the device that made the call."""
GREETING_HEADER: Final = "fleetcount-greeting-bin"
"""Between aggregators, with every call and, in the trailing metadata, with every answer (`channel.greetings`)."""
RETRY_TRAILER: Final = "fleetcount-retry-after-ms"
"""With a status "busy": the milliseconds after which the caller should retry."""

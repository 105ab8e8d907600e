"""Has the broker keep nothing of a window, for a coordinator whose intake another process has: a connection each time.

It takes no message and keeps none at the broker (mqtt_announcing).
"""

from typing import Final

import aiomqtt
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.wire.topics import release_topic
from fleetcount_transport.key_files import tls_context
from fleetcount_transport.mqtt_connection import MqttConnection
from fleetcount_transport.mqtt_packets import Publication

from fleetcount_aggregator.config import MqttTable
from fleetcount_aggregator.host.host import Host

_ACKNOWLEDGED_S: Final = 10.0
_CLIENT: Final = "-retire"


class Withdrawing:
    """See `Outcomes.withdraw`. Raises UsageError, when it is made, for a file of [mqtt] that is missing or wrong."""

    def __init__(self, host: Host, table: MqttTable) -> None:
        self._place = host.identity.deployment, host.aggregator_id
        self._broker = table.broker
        self._tls = tls_context(table.ca_file, table.certificate_file, table.key_file)

    async def __call__(self, window_id: WindowId) -> bool:
        """Take the outcome away; return whether the broker keeps none."""
        deployment, aggregator_id = self._place
        connection = MqttConnection(
            self._broker,
            arrived=_nothing,
            identifier=f"fc-{deployment}-{aggregator_id}"[: 64 - len(_CLIENT)] + _CLIENT,
            # A broker that takes the name in the certificate for the client id gives it slot 0 for a moment:
            # what waits there has to wait on.
            clean_session=False,
            timeout=_ACKNOWLEDGED_S,
            tls_context=self._tls,
        )
        try:
            async with connection as client:
                await client.publish_all([(release_topic(*self._place, window_id), b"")], retain=True)
        except aiomqtt.MqttError:
            return False
        return True


def _nothing(_: Publication) -> bool:
    return False  # It is slot 0's, and not acknowledged here.

"""What a slot of an aggregator reads at the broker: session requests and the reports of open windows, of its users
alone.

A shell: build topics, subscribe. It takes no message (mqtt_intake) and publishes none (mqtt_announcing).
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.wire.topics import BUCKETS, report_filters, session_filters
from fleetcount_transport.mqtt_connection import MqttConnection

from fleetcount_aggregator.host.broker_connection import BrokerConnection
from fleetcount_aggregator.memory.windows import Windows

FOLLOW_S: Final = 0.25
"""How often subscriptions are brought in step with the windows."""
_OPEN: Final = frozenset({WindowState.ANNOUNCED, WindowState.COLLECTING})
_AT_ONCE: Final = 512
"""Topics of one packet: some tenth of the longest that a broker takes."""

_EVERY: Final = (BrokerConnection(), *(BrokerConnection(slot, BUCKETS) for slot in range(BUCKETS)))
"""Shares that together have every filter there is, whatever the number of slots was once."""


class Subscribing:
    """The subscriptions of one connection, whose session at the broker outlives it, with those of another time."""

    def __init__(self, windows: Windows, client: MqttConnection, share: BrokerConnection) -> None:
        self._windows = windows
        self._client = client
        self._share = share
        self._place = windows.host.identity.deployment, windows.host.aggregator_id
        self._reading: set[WindowId] = set()

    async def begin(self) -> None:
        """Subscribe to session requests."""
        await self._keep(self._sessions(self._share), (one for share in _EVERY for one in self._sessions(share)))

    async def follow(self) -> None:
        """Subscribe to the report topics of open windows, and leave those of closed ones."""
        opened = {window_id for window_id in self._windows.live if self._windows.states[window_id] in _OPEN}
        new = opened - self._reading
        await self._keep(
            [one for window_id in new for one in self._reports(window_id, self._share)],
            (one for window_id in new for share in _EVERY for one in self._reports(window_id, share)),
        )
        closed = self._reading - opened
        await self._leave(one for window_id in closed for one in self._reports(window_id, self._share))
        self._reading = opened

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            await self.follow()
            await asyncio.sleep(FOLLOW_S)

    def _sessions(self, share: BrokerConnection) -> list[str]:
        return session_filters(*self._place, share.slot, share.slots)

    def _reports(self, window_id: WindowId, share: BrokerConnection) -> list[str]:
        return report_filters(*self._place, window_id, share.slot, share.slots)

    async def _keep(self, own: list[str], every: Iterable[str]) -> None:
        """Subscribe to filters; a session that was there already leaves all others, which are other slots' by now."""
        for topics in _pieces(own):
            await self._client.subscribe([(topic, 1) for topic in topics])
        if self._client.is_resumed:
            await self._leave(set(every).difference(own))

    async def _leave(self, topics: Iterable[str]) -> None:
        for piece in _pieces(sorted(topics)):
            await self._client.unsubscribe(piece)


def _pieces(topics: list[str]) -> Iterable[list[str]]:
    return (topics[start : start + _AT_ONCE] for start in range(0, len(topics), _AT_ONCE))

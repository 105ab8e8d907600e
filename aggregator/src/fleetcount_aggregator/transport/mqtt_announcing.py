"""What an aggregator keeps at the broker: releases and offers of questions as retained messages.

A shell: ask, encode, publish. It takes no message of a device (mqtt_intake).
"""

import asyncio
from collections.abc import Iterable, Mapping

import aiomqtt
from fleetcount_protocol.ids import QuestionId, WindowId
from fleetcount_protocol.limits import MAX_UNIX_TIME
from fleetcount_protocol.wire.device import RELEASE_ANSWER
from fleetcount_protocol.wire.question import QUESTION_OFFER
from fleetcount_protocol.wire.topics import question_topic, release_topic
from fleetcount_transport.mqtt_connection import MqttConnection

from fleetcount_aggregator.host.states import FINAL_STATES
from fleetcount_aggregator.intake.device_service import DeviceService
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.storage.ended import AT_ONCE, SortKey, read_archived
from fleetcount_aggregator.storage.row_types import Lifecycle
from fleetcount_aggregator.transport.mqtt_subscribing import FOLLOW_S, Subscribing


class Announcing:
    """What one connection of one aggregator keeps at the broker; each method runs until it is cancelled.

    A window is announced after `subscribing` has begun to read its reports.
    """

    def __init__(
        self,
        windows: Windows,
        service: DeviceService,
        client: MqttConnection,
        subscribing: Subscribing,
    ) -> None:
        self._windows = windows
        self._service = service
        self._client = client
        self._subscribing = subscribing
        self._place = windows.host.identity.deployment, windows.host.aggregator_id

    async def announce(self) -> None:
        """Keep subscriptions and retained messages in step with the windows."""
        outcomes = self._windows.outcomes
        before, outcomes.withdraw = outcomes.withdraw, self._withdraw
        try:
            await self._announce()
        finally:
            outcomes.withdraw = before

    async def _announce(self) -> None:
        ended = [
            one
            for one in self._windows.live.values()
            if one.is_leader and self._windows.states[one.window_id] in FINAL_STATES
        ]
        published = self._windows.outcomes.count
        await self._publish([(one.window_id, one.asked.expiry) for one in ended])
        older: SortKey | None = (self._windows.host.now(), b"")
        while True:
            await self._subscribing.follow()
            published = await self._publish_fresh(published)
            older = None if older is None else await self._publish_older(older)
            await asyncio.sleep(FOLLOW_S)

    async def offer(self) -> None:
        """Keep the offer of every question that devices may join as a retained message, and take those over away."""
        known: dict[QuestionId, bytes] = {}
        before: Mapping[QuestionId, bytes] | None = None
        while True:
            offered = self._service.offered()
            if offered is not before:
                await self._offer(offered, known)
                before = offered
            await asyncio.sleep(FOLLOW_S)

    async def _offer(self, offered: Mapping[QuestionId, bytes], known: dict[QuestionId, bytes]) -> None:
        """Have the broker keep what is on offer instead of what it is known to keep, by their digests."""
        for question_id, digest in offered.items():
            if known.get(question_id) != digest and (offer := self._service.offer(question_id)) is not None:
                await self._keep(question_topic(*self._place, question_id), QUESTION_OFFER.encode(offer))
                known[question_id] = digest
        for question_id in known.keys() - offered.keys():
            await self._keep(question_topic(*self._place, question_id), b"")
            del known[question_id]

    async def _keep(self, topic: str, payload: bytes) -> None:
        """Have the broker keep a message, or, empty, keep it no more."""
        await self._client.publish_all([(topic, payload)], retain=True)

    async def _publish(self, outcomes: Iterable[tuple[WindowId, int]]) -> None:
        """Keep the outcomes of windows that have not expired as retained messages."""
        for window_id, expiry in outcomes:
            if self._windows.host.moment().now < expiry:
                payload = RELEASE_ANSWER.encode(await self._service.release(window_id))
                await self._keep(release_topic(*self._place, window_id), payload)

    async def _publish_fresh(self, published: int) -> int:
        """Keep the outcomes of what this aggregator leads and has ended since so many had; return how many have."""
        outcomes = self._windows.outcomes
        count, fresh = outcomes.count, outcomes.since(published)
        await self._publish(fresh)
        return count

    async def _publish_older(self, place: SortKey) -> SortKey | None:
        """Keep the outcomes of windows at rest, some a round, above a place: the broker may be a new one, or empty.

        Return the place reached, None after the last.
        """
        rows = await self._windows.store.read(read_archived, Lifecycle.ARCHIVED, place, MAX_UNIX_TIME)
        await self._publish((row.window_id, row.expiry) for row in rows if row.led)
        return rows[-1].sort_key if len(rows) == AT_ONCE else None

    async def _withdraw(self, window_id: WindowId) -> bool:
        """See `Outcomes.withdraw`."""
        try:
            await self._keep(release_topic(*self._place, window_id), b"")
        except aiomqtt.MqttError:
            return False
        return True

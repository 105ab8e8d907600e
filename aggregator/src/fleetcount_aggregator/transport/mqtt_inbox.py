"""What has arrived by MQTT and waits: by the user whose topic it came on, in turn, and no more than there is room for.

A broker hands everybody's messages over in one line. Here each user has a line of its own and a share of the room; what
is beyond it is shed. It must not read a payload or answer anybody.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import AggregatorId, UserName
from fleetcount_protocol.limits import MAX_INSTALMENT_BYTES, MAX_SESSION_BYTES
from fleetcount_protocol.wire.topics import TopicKind, parse_topic
from fleetcount_transport.admission.admission import Admission, AdmissionTable, BusyError
from fleetcount_transport.admission.identity import Identity
from fleetcount_transport.admission.turns import RoundRobin
from fleetcount_transport.mqtt_packets import Publication

from fleetcount_aggregator.host.metrics import Metrics

_ROOM: Final = AdmissionTable(calls=4096, calls_each=256, bytes_in_memory=12 << 20, bytes_each=3 << 20)
"""Messages and bytes that may wait, or be under way to the disk."""
_LARGEST: Final = {TopicKind.SESSION: MAX_SESSION_BYTES, TopicKind.REPORT: MAX_INSTALMENT_BYTES}
"""What devices publish, and how much at most."""
_ENTRY_BYTES: Final = 512
"""What a message takes beside its payload."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message of a user, with what its topic is about and its share of the room, held until it is `done`."""

    user: UserName
    subject: bytes
    message: Publication
    share: AbstractContextManager[None]

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return len(self.message.payload) + _ENTRY_BYTES


class Inbox:
    """Everything that waits at one connection; `slow_down` hears when it is nearly full (True), and when no more.

    Users who send without end fill less than that (`Admission`): then many wait who have sent little, and the broker
    has to keep what it has.
    """

    def __init__(
        self,
        deployment: str,
        aggregator_id: AggregatorId,
        admission: Admission,
        metrics: Metrics,
        slow_down: Callable[[bool], None],
    ) -> None:
        self._own = deployment, aggregator_id
        self._admission = admission
        self._metrics = metrics
        self._slow_down = slow_down
        self._room = Admission(_ROOM, metrics.shed)
        self._lines: dict[TopicKind, RoundRobin[Arrival]] = {kind: RoundRobin() for kind in _LARGEST}
        self._filled = {kind: asyncio.Event() for kind in _LARGEST}
        self._messages = self._bytes = 0
        self._full = asyncio.Event()

    def put(self, message: Publication) -> bool:
        """Take a message; return whether it is dealt with: it is none of a device, or its user has its share already.

        What is decided here costs microseconds, and nothing of it looks at the payload.
        """
        try:
            kind, user, subject = self._judge(message)
        except DecodeError:
            self._metrics.poison_message()
            return True
        who = Identity(user.encode())
        try:
            self._admission.check(who)
            share = self._room.admit(who, len(message.payload) + _ENTRY_BYTES)
            share.__enter__()  # Until `done`, which may be long after this call.
        except BusyError:
            return True
        arrival = Arrival(user, subject, message, share)
        self._lines[kind].put(arrival, user)
        self._filled[kind].set()
        self._count(1, arrival.size)
        return False

    def _judge(self, message: Publication) -> tuple[TopicKind, UserName, bytes]:
        """Return what a message is, whose, and what it is about. Raises DecodeError for what no device publishes."""
        topic = parse_topic(message.topic)
        if topic.user is None or topic.kind not in _LARGEST or (topic.deployment, topic.aggregator_id) != self._own:
            raise DecodeError("a message on a topic that is not for this aggregator")
        if message.retain or len(message.payload) > _LARGEST[topic.kind]:
            raise DecodeError("devices publish no retained messages, and nothing longer than their kind")
        return topic.kind, topic.user, topic.subject

    async def take(self, kind: TopicKind, most: int) -> list[Arrival]:
        """Return at most `most` messages of a kind, each user's turn after the other's; waits for the first."""
        line, filled = self._lines[kind], self._filled[kind]
        while not line:
            filled.clear()
            await filled.wait()
        return [line.take() for _ in range(min(most, len(line)))]

    async def unless_full(self, kept: asyncio.Task[None]) -> None:
        """Wait until the broker has acknowledged something, but not while it is held up: it cannot be heard then."""
        if not kept.done():
            full = asyncio.ensure_future(self._full.wait())
            await asyncio.wait({kept, full}, return_when=asyncio.FIRST_COMPLETED)
            full.cancel()

    def done(self, arrivals: Iterable[Arrival]) -> None:
        """Give up the room of messages that were taken."""
        for one in arrivals:
            one.share.__exit__(None, None, None)
            self._count(-1, -one.size)

    def _count(self, messages: int, size: int) -> None:
        self._messages += messages
        self._bytes += size
        filled = max(self._messages / _ROOM.calls, self._bytes / _ROOM.bytes_in_memory)
        was_full = self._full.is_set()
        if (filled > (3 / 4 if was_full else 7 / 8)) == was_full:
            return
        (self._full.clear if was_full else self._full.set)()
        self._slow_down(not was_full)

"""Who gets which message: the sessions, subscriptions and retained messages of an MQTT 3.1.1 broker, in memory.

Pure state; what it sends goes to a `Link`. A message of QoS 1 stays with a session until its client acknowledges it.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

from fleetcount_simulator.network.mqtt_packets import Publish, encode_publish

__all__ = ["INFLIGHT", "Exchange", "Link", "Session"]

INFLIGHT: Final = 1_000
"""Messages of QoS 1 on their way to one client without its acknowledgement; the rest waits."""
MAX_WAITING: Final = 1 << 20
"""Messages that wait for one client; what comes on top is lost, as with every broker."""
_LAST_ID: Final = 0xFFFF
_Message = tuple[bytes, bytes, bool]
"""Topic, payload, and whether it was a retained one when it was subscribed to."""


class Link(Protocol):
    """A client's connection."""

    def send(self, packet: bytes) -> None:
        """Write a packet."""
        ...

    def drop(self) -> None:
        """Close the connection without a word."""
        ...


class Session:
    """One client: its subscriptions, and what it has not acknowledged. `link` is None while it is away."""

    def __init__(self, client_id: str, *, clean: bool) -> None:
        self.client_id = client_id
        self.clean = clean
        self.link: Link | None = None
        self.filters: set[str] = set()
        self._waiting: deque[_Message] = deque()
        self._under_way: dict[int, _Message] = {}
        self._last_id = 0

    def deliver(self, topic: bytes, payload: bytes, *, qos: int, retain: bool = False) -> None:
        """Send a message, now or when there is room; with QoS 0 now or never."""
        if not qos:
            if self.link is not None:
                self.link.send(encode_publish(topic, payload, qos=0, retain=retain, packet_id=0, again=False))
        elif self.link is not None and len(self._under_way) < INFLIGHT and not self._waiting:
            self._send_new((topic, payload, retain))
        elif len(self._waiting) < MAX_WAITING:
            self._waiting.append((topic, payload, retain))

    def acknowledged(self, packet_id: int) -> None:
        """Forget a message; send what waits in its place."""
        self._under_way.pop(packet_id, None)
        self._fill()

    def resume(self, link: Link) -> None:
        """Begin to use a new connection: what was under way goes out again, then what waits."""
        self.link = link
        for packet_id, (topic, payload, retain) in self._under_way.items():
            link.send(encode_publish(topic, payload, qos=1, retain=retain, packet_id=packet_id, again=True))
        self._fill()

    def _fill(self) -> None:
        while self._waiting and self.link is not None and len(self._under_way) < INFLIGHT:
            self._send_new(self._waiting.popleft())

    def _send_new(self, message: _Message) -> None:
        packet_id = self._last_id % _LAST_ID + 1
        while packet_id in self._under_way:
            packet_id = packet_id % _LAST_ID + 1
        self._last_id = packet_id
        self._under_way[packet_id] = message
        topic, payload, retain = message
        if self.link is not None:
            self.link.send(encode_publish(topic, payload, qos=1, retain=retain, packet_id=packet_id, again=False))


class Exchange:
    """All sessions of a broker, and what is retained."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._exact: dict[str, dict[Session, int]] = {}
        self._wild: dict[str, dict[Session, int]] = {}
        self._retained: dict[str, bytes] = {}

    def enter(self, client_id: str, *, clean: bool) -> tuple[Session, bool]:
        """Return a client's session, and whether it had one; an older connection of the same name is closed."""
        known = self._sessions.get(client_id)
        if known is not None and known.link is not None:
            link, known.link = known.link, None
            link.drop()
        if known is not None and (clean or known.clean):
            self._forget(known)
            known = None
        if known is not None:
            return known, True
        session = self._sessions[client_id] = Session(client_id, clean=clean)
        return session, False

    def leave(self, session: Session, link: Link) -> None:
        """Note that a connection has ended; a clean session ends with it."""
        if session.link is not link:
            return
        session.link = None
        if session.clean:
            self._forget(session)

    def subscribe(self, session: Session, filters: Iterable[tuple[str, int]]) -> None:
        """Subscribe to topic filters, and send what is retained under them."""
        for name, qos in filters:
            self._table(name).setdefault(name, {})[session] = qos
            session.filters.add(name)
            for topic in self._retained_under(name):
                session.deliver(topic.encode(), self._retained[topic], qos=qos, retain=True)

    def unsubscribe(self, session: Session, filters: Iterable[str]) -> None:
        """Forget subscriptions; those that are none are passed over."""
        for name in filters:
            session.filters.discard(name)
            members = self._table(name).get(name, {})
            members.pop(session, None)
            if not members:
                self._table(name).pop(name, None)

    def publish(self, message: Publish) -> None:
        """Hand a message to every session that subscribes to its topic, once each; keep it if it is to be retained."""
        if message.retain and message.payload:
            self._retained[message.topic] = message.payload
        elif message.retain:
            self._retained.pop(message.topic, None)
        topic = message.topic.encode()
        for session, qos in self._members(message.topic).items():
            session.deliver(topic, message.payload, qos=min(qos, message.qos))

    def _members(self, topic: str) -> dict[Session, int]:
        members = dict(self._exact.get(topic, {}))
        if self._wild:
            levels = topic.split("/")
            for name, some in self._wild.items():
                if _matches(name.split("/"), levels):
                    for session, qos in some.items():
                        members[session] = max(qos, members.get(session, 0))
        return members

    def _retained_under(self, name: str) -> list[str]:
        if self._table(name) is self._exact:
            return [name] if name in self._retained else []
        levels = name.split("/")
        return [topic for topic in self._retained if _matches(levels, topic.split("/"))]

    def _table(self, name: str) -> dict[str, dict[Session, int]]:
        return self._wild if "+" in name or "#" in name else self._exact

    def _forget(self, session: Session) -> None:
        self.unsubscribe(session, tuple(session.filters))
        if self._sessions.get(session.client_id) is session:
            del self._sessions[session.client_id]


def _matches(wanted: list[str], topic: list[str]) -> bool:
    """Return whether a topic lies under a filter, both in levels (section 4.7)."""
    if topic[0].startswith("$") and wanted[0] in {"+", "#"}:
        return False
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        if len(topic) < len(wanted):
            return False
    elif len(topic) != len(wanted):
        return False
    return all(level in {"+", name} for level, name in zip(wanted, topic, strict=False))

"""The MQTT topics of a deployment (docs/wire.md, "MQTT"): built and parsed here only.

Every topic is `fleetcount/v1/deployment/aggregator/kind/…`, so that a broker's access rules can give each aggregator
its own topics. Topics from and to a device have its user name at the broker as a level, so that the rules can give each
device its own too. Before the name of a sender is its bucket, by which several connections of one aggregator divide
the devices; a device does not need their number.
"""

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.ids import AggregatorId, QuestionId, SessionId, UserName, WindowId

ROOT: Final = "fleetcount/v1"
MAX_TOPIC_BYTES: Final = 256
BUCKETS: Final = 16
"""The number of buckets of users; a topic on which a user publishes has its bucket as a level."""
_DEPLOYMENT: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)
_ANY: Final = "+"


class TopicKind(StrEnum):
    """The kind of a topic, as it is spelled in it."""

    RELEASE = "release"
    QUESTION = "question"
    SESSION = "session"
    REPORT = "report"
    SESSION_REPLY = "session-reply"
    RECEIPT = "receipt"


_PERSONAL: Final = {TopicKind.SESSION, TopicKind.REPORT, TopicKind.SESSION_REPLY, TopicKind.RECEIPT}
"""Kinds whose topics have a user name."""
_SENT: Final = {TopicKind.SESSION, TopicKind.REPORT}
"""Kinds on which users publish, whose topics have the user's bucket too."""
_SUBJECT_BYTES: Final = {
    TopicKind.RELEASE: WindowId.SIZE,
    TopicKind.QUESTION: QuestionId.SIZE,
    TopicKind.SESSION: 0,
    TopicKind.REPORT: WindowId.SIZE,
    TopicKind.SESSION_REPLY: SessionId.SIZE,
    TopicKind.RECEIPT: SessionId.SIZE,
}
"""The bytes of the id in the last level, of a window, question or session in lower-case hexadecimal; 0: no such level.
"""
_HEXADECIMAL: Final = re.compile(r"(?:[0-9a-f]{2})+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Topic:
    """A parsed topic: `user` is None for kinds without a user, `subject` the id of the last level, b"" without one."""

    kind: TopicKind
    deployment: str
    aggregator_id: AggregatorId
    user: UserName | None
    subject: bytes


@lru_cache(maxsize=1024)  # A sender of many messages publishes them on one topic.
def parse_topic(topic: str) -> Topic:
    """Return the parts of a topic.

    Raises:
        DecodeError: it is not a topic of this protocol.
    """
    if len(topic) > MAX_TOPIC_BYTES or not topic.startswith(f"{ROOT}/"):
        raise _no_topic(topic)
    deployment, *rest = topic[len(ROOT) + 1 :].split("/")
    if len(rest) < 2 or _DEPLOYMENT.fullmatch(deployment) is None:
        raise _no_topic(topic)
    name, kind_name, *levels = rest
    try:
        kind = TopicKind(kind_name)
        bucket = levels.pop(0) if kind in _SENT else None
        user = UserName(levels.pop(0)) if kind in _PERSONAL else None
        aggregator_id = AggregatorId(name)
    except (ValueError, IndexError, DecodeError):
        raise _no_topic(topic) from None
    size = _SUBJECT_BYTES[kind]
    if [len(level) for level in levels] != ([2 * size] if size else []) or not all(map(_HEXADECIMAL.fullmatch, levels)):
        raise _no_topic(topic)
    if bucket is not None and user is not None and bucket != _digit(user_bucket(user)):
        raise DecodeError(f"bucket {bucket[:8]!a} of a topic is not its user's")
    return Topic(kind, deployment, aggregator_id, user, bytes.fromhex("".join(levels)))


def _no_topic(topic: str) -> DecodeError:
    return DecodeError(f"{topic[:80]!a} is not a topic of this protocol")


# Topics on which aggregators publish retained messages.


def release_topic(deployment: str, leader: AggregatorId, window_id: WindowId) -> str:
    """Return the topic on which a leader publishes the state or the signed record of a window, retained."""
    return _topic(deployment, leader, TopicKind.RELEASE, window_id.hex())


def question_topic(deployment: str, aggregator_id: AggregatorId, question_id: QuestionId) -> str:
    """Return the topic on which an aggregator publishes its offer of a question, retained."""
    return _topic(deployment, aggregator_id, TopicKind.QUESTION, question_id.hex())


def question_filter(deployment: str) -> str:
    """Return the filter for the questions of all aggregators of a deployment."""
    return _topic(deployment, _ANY, TopicKind.QUESTION, _ANY)


# Topics on which devices publish.


def user_bucket(user: UserName) -> int:
    """Return the bucket of a user, 0 to 15: the first four bits of the SHA-256 of its name."""
    return hashlib.sha256(user.encode()).digest()[0] >> 4


def session_topic(deployment: str, aggregator_id: AggregatorId, user: UserName) -> str:
    """Return the topic on which a device publishes session requests for one aggregator."""
    return _topic(deployment, aggregator_id, TopicKind.SESSION, _digit(user_bucket(user)), user)


def session_filters(deployment: str, aggregator_id: AggregatorId, slot: int = 0, slots: int = 1) -> list[str]:
    """Return the filters for session requests of one connection of an aggregator: of the users of its slot."""
    return [
        _topic(deployment, aggregator_id, TopicKind.SESSION, bucket, _ANY) for bucket in _bucket_levels(slot, slots)
    ]


def report_topic(deployment: str, aggregator_id: AggregatorId, user: UserName, window_id: WindowId) -> str:
    """Return the topic on which a device publishes instalments of a window for one aggregator."""
    return _topic(deployment, aggregator_id, TopicKind.REPORT, _digit(user_bucket(user)), user, window_id.hex())


def report_filters(
    deployment: str, aggregator_id: AggregatorId, window_id: WindowId, slot: int = 0, slots: int = 1
) -> list[str]:
    """Return the filters for instalments of a window of one connection of an aggregator: of the users of its slot."""
    return [
        _topic(deployment, aggregator_id, TopicKind.REPORT, bucket, _ANY, window_id.hex())
        for bucket in _bucket_levels(slot, slots)
    ]


def _bucket_levels(slot: int, slots: int) -> list[str]:
    """Return the bucket levels of one slot's filters: each bucket belongs to exactly one of the slots."""
    if not 0 <= slot < slots <= BUCKETS:
        raise UsageError(f"slot {slot} of {slots}; allowed are 1 to {BUCKETS} slots, counted from 0")
    return [_ANY] if slots == 1 else [_digit(bucket) for bucket in range(slot, BUCKETS, slots)]


def _digit(bucket: int) -> str:
    return f"{bucket:x}"


# Topics on which aggregators answer devices.


def session_reply_topic(deployment: str, aggregator_id: AggregatorId, user: UserName, session_id: SessionId) -> str:
    """Return the topic on which an aggregator answers a session request of a user."""
    return _topic(deployment, aggregator_id, TopicKind.SESSION_REPLY, user, session_id.hex())


def session_reply_filter(deployment: str, user: UserName | None) -> str:
    """Return the filter for session answers to a user from all aggregators; None: to all users, as `receipt_filter`."""
    return _topic(deployment, _ANY, TopicKind.SESSION_REPLY, user or _ANY, _ANY)


def receipt_topic(deployment: str, aggregator_id: AggregatorId, user: UserName, session_id: SessionId) -> str:
    """Return the topic on which an aggregator answers a session's instalments with receipts and refusals."""
    return _topic(deployment, aggregator_id, TopicKind.RECEIPT, user, session_id.hex())


def receipt_filter(deployment: str, user: UserName | None) -> str:
    """Return the filter for receipts to a user from all aggregators; None: to all, for a party that serves many."""
    return _topic(deployment, _ANY, TopicKind.RECEIPT, user or _ANY, _ANY)


def _topic(deployment: str, aggregator_id: str, kind: TopicKind, *levels: str) -> str:
    if not _DEPLOYMENT.fullmatch(deployment):
        raise UsageError(f"deployment is {deployment[:40]!a}, allowed: 1 to 32 of a-z, 0-9, '-'")
    return "/".join((ROOT, deployment, aggregator_id, kind, *levels))

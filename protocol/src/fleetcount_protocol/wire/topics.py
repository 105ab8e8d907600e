"""The MQTT topics of a deployment (docs/wire.md, "MQTT"): built and parsed here only.

Every topic is `fleetcount/v1/deployment/aggregator/kind/…`: whose aggregator's it is, so that a broker's access rules
give each aggregator its own. What a device sends and what is answered to it lie below the user name that the broker
knows the device by, so that they give each device its own too. Above the name of who sends stands its bucket, so that
several connections of one aggregator share the devices among them; a device need not know how many there are.
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
"""Of users; the topics that they send on name theirs."""
_DEPLOYMENT: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)
_ANY: Final = "+"


class TopicKind(StrEnum):
    """What a topic is for, as it is spelled in it."""

    RELEASE = "release"
    QUESTION = "question"
    SESSION = "session"
    REPORT = "report"
    SESSION_REPLY = "session-reply"
    RECEIPT = "receipt"


_PERSONAL: Final = {TopicKind.SESSION, TopicKind.REPORT, TopicKind.SESSION_REPLY, TopicKind.RECEIPT}
"""Below a user name."""
_SENT: Final = {TopicKind.SESSION, TopicKind.REPORT}
"""Below the bucket of a user too."""
_SUBJECT_BYTES: Final = {
    TopicKind.RELEASE: WindowId.SIZE,
    TopicKind.QUESTION: QuestionId.SIZE,
    TopicKind.SESSION: 0,
    TopicKind.REPORT: WindowId.SIZE,
    TopicKind.SESSION_REPLY: SessionId.SIZE,
    TopicKind.RECEIPT: SessionId.SIZE,
}
"""The last level: the window, question or session that it is about, in lower-case hexadecimal; 0: there is none."""
_HEXADECIMAL: Final = re.compile(r"(?:[0-9a-f]{2})+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic understood: `user` is None where it is nobody's own, `subject` the id it is about, b"" for none."""

    kind: TopicKind
    deployment: str
    aggregator_id: AggregatorId
    user: UserName | None
    subject: bytes


@lru_cache(maxsize=1024)  # Who sends without end does so on one topic.
def parse_topic(topic: str) -> Topic:
    """Return what a topic says.

    Raises:
        DecodeError: it is no topic of this protocol.
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


# What aggregators keep, retained.


def release_topic(deployment: str, leader: AggregatorId, window_id: WindowId) -> str:
    """Where a leader keeps the state or the signed record of a window."""
    return _topic(deployment, leader, TopicKind.RELEASE, window_id.hex())


def question_topic(deployment: str, aggregator_id: AggregatorId, question_id: QuestionId) -> str:
    """Where an aggregator keeps its offer of a question."""
    return _topic(deployment, aggregator_id, TopicKind.QUESTION, question_id.hex())


def question_filter(deployment: str) -> str:
    """What a device subscribes to for all questions of its deployment."""
    return _topic(deployment, _ANY, TopicKind.QUESTION, _ANY)


# What devices send.


def user_bucket(user: UserName) -> int:
    """Return in which of the buckets a user is: the first four bits of the SHA-256 of its name."""
    return hashlib.sha256(user.encode()).digest()[0] >> 4


def session_topic(deployment: str, aggregator_id: AggregatorId, user: UserName) -> str:
    """Where a device publishes session requests for one aggregator."""
    return _topic(deployment, aggregator_id, TopicKind.SESSION, _digit(user_bucket(user)), user)


def session_filters(deployment: str, aggregator_id: AggregatorId, slot: int = 0, slots: int = 1) -> list[str]:
    """Return what one of an aggregator's connections subscribes to for session requests of the users it serves."""
    return [
        _topic(deployment, aggregator_id, TopicKind.SESSION, bucket, _ANY) for bucket in _bucket_levels(slot, slots)
    ]


def report_topic(deployment: str, aggregator_id: AggregatorId, user: UserName, window_id: WindowId) -> str:
    """Where a device publishes instalments for one aggregator of a window."""
    return _topic(deployment, aggregator_id, TopicKind.REPORT, _digit(user_bucket(user)), user, window_id.hex())


def report_filters(
    deployment: str, aggregator_id: AggregatorId, window_id: WindowId, slot: int = 0, slots: int = 1
) -> list[str]:
    """Return what one of an aggregator's connections subscribes to for instalments of a window of the users it
    serves.
    """
    return [
        _topic(deployment, aggregator_id, TopicKind.REPORT, bucket, _ANY, window_id.hex())
        for bucket in _bucket_levels(slot, slots)
    ]


def _bucket_levels(slot: int, slots: int) -> list[str]:
    """Return the level of filters for the buckets of one slot: every so many of them, each in one slot alone."""
    if not 0 <= slot < slots <= BUCKETS:
        raise UsageError(f"slot {slot} of {slots}; allowed are 1 to {BUCKETS} slots, counted from 0")
    return [_ANY] if slots == 1 else [_digit(bucket) for bucket in range(slot, BUCKETS, slots)]


def _digit(bucket: int) -> str:
    return f"{bucket:x}"


# What devices are answered.


def session_reply_topic(deployment: str, aggregator_id: AggregatorId, user: UserName, session_id: SessionId) -> str:
    """Where an aggregator answers a session request of a user."""
    return _topic(deployment, aggregator_id, TopicKind.SESSION_REPLY, user, session_id.hex())


def session_reply_filter(deployment: str, user: UserName | None) -> str:
    """What a user subscribes to for answers of every aggregator; None: a party that answers for many users."""
    return _topic(deployment, _ANY, TopicKind.SESSION_REPLY, user or _ANY, _ANY)


def receipt_topic(deployment: str, aggregator_id: AggregatorId, user: UserName, session_id: SessionId) -> str:
    """Where an aggregator answers a session's instalments, sent by a user, with receipts and refusals."""
    return _topic(deployment, aggregator_id, TopicKind.RECEIPT, user, session_id.hex())


def receipt_filter(deployment: str, user: UserName | None) -> str:
    """What a user subscribes to for receipts of every aggregator; None: a party that answers for many users."""
    return _topic(deployment, _ANY, TopicKind.RECEIPT, user or _ANY, _ANY)


def _topic(deployment: str, aggregator_id: str, kind: TopicKind, *levels: str) -> str:
    if not _DEPLOYMENT.fullmatch(deployment):
        raise UsageError(f"deployment is {deployment[:40]!a}, allowed: 1 to 32 of a-z, 0-9, '-'")
    return "/".join((ROOT, deployment, aggregator_id, kind, *levels))

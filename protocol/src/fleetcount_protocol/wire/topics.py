"""The MQTT topics of a deployment (docs/wire.md, "MQTT"): built and parsed here only.

A topic never holds a device's name; the session id in it is random and short-lived.
"""

import re
from typing import Final

from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.ids import AggregatorId, SeriesId, SessionId, TaskId
from fleetcount_protocol.limits import MAX_AGGREGATORS

__all__ = [
    "parse_receipt_topic",
    "parse_report_topic",
    "parse_series_topic",
    "parse_session_reply_topic",
    "parse_session_topic",
    "parse_task_topic",
    "receipt_topic",
    "release_topic",
    "report_topic",
    "series_filter",
    "series_topic",
    "session_reply_topic",
    "session_topic",
    "task_filter",
    "task_topic",
]

ROOT: Final = "fleetcount/v1"
MAX_TOPIC_BYTES: Final = 256
_DEPLOYMENT: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SESSION: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


def task_topic(deployment: str, task_id: TaskId) -> str:
    """Where an aggregator keeps the signed task, retained."""
    return f"{_base(deployment)}/{task_id.hex()}/task"


def task_filter(deployment: str) -> str:
    """What a device subscribes to for all tasks of its deployment."""
    return f"{_base(deployment)}/+/task"


def series_topic(deployment: str, series_id: SeriesId, position: int) -> str:
    """Where the aggregator at `position` of a series keeps its offer, retained."""
    return f"{_base(deployment)}/{series_id.hex()}/agg/{_checked(position)}/series"


def series_filter(deployment: str) -> str:
    """What a device subscribes to for all series of its deployment."""
    return f"{_base(deployment)}/+/agg/+/series"


def release_topic(deployment: str, task_id: TaskId) -> str:
    """Where an aggregator keeps the state or the signed record of a task, retained."""
    return f"{_base(deployment)}/{task_id.hex()}/release"


def report_topic(deployment: str, task_id: TaskId, position: int) -> str:
    """Where devices publish instalments for the aggregator at `position` of the task, and only it subscribes."""
    return f"{_base(deployment)}/{task_id.hex()}/agg/{_checked(position)}/report"


def receipt_topic(deployment: str, session_id: SessionId) -> str:
    """Where an aggregator answers a session's instalments with receipts and refusals."""
    return f"{_base(deployment)}/receipt/{session_id.hex()}"


def session_topic(deployment: str, aggregator_id: AggregatorId) -> str:
    """Where devices publish session requests for one aggregator, and only it subscribes."""
    return f"{_base(deployment)}/session/{aggregator_id}"


def session_reply_topic(deployment: str, session_id: SessionId) -> str:
    """Where an aggregator answers a session request."""
    return f"{_base(deployment)}/session-reply/{session_id.hex()}"


def parse_task_topic(topic: str) -> tuple[str, TaskId]:
    """Return deployment and task id of a task topic.

    Raises:
        DecodeError: it is not such a topic.
    """
    deployment, task, kind = _parts(topic, 3)
    _expect(topic, kind == "task")
    return deployment, TaskId(_digest(topic, task))


def parse_report_topic(topic: str) -> tuple[str, TaskId, int]:
    """Return deployment, task id and position of a report topic.

    Raises:
        DecodeError: it is not such a topic.
    """
    deployment, task, position = _placed(topic, "report")
    return deployment, TaskId(task), position


def parse_series_topic(topic: str) -> tuple[str, SeriesId, int]:
    """Return deployment, series id and the aggregator's position of a series topic.

    Raises:
        DecodeError: it is not such a topic.
    """
    deployment, series, position = _placed(topic, "series")
    return deployment, SeriesId(series), position


def parse_receipt_topic(topic: str) -> tuple[str, SessionId]:
    """Return deployment and session id of a receipt topic.

    Raises:
        DecodeError: it is not such a topic.
    """
    return _session_of(topic, "receipt")


def parse_session_reply_topic(topic: str) -> tuple[str, SessionId]:
    """Return deployment and session id of a session reply topic.

    Raises:
        DecodeError: it is not such a topic.
    """
    return _session_of(topic, "session-reply")


def parse_session_topic(topic: str) -> tuple[str, AggregatorId]:
    """Return deployment and aggregator id of a session topic.

    Raises:
        DecodeError: it is not such a topic.
    """
    deployment, kind, name = _parts(topic, 3)
    _expect(topic, kind == "session")
    return deployment, AggregatorId(name)


def _base(deployment: str) -> str:
    if not _DEPLOYMENT.fullmatch(deployment):
        raise UsageError(f"deployment is {deployment[:40]!a}, allowed: 1 to 32 of a-z, 0-9, '-'")
    return f"{ROOT}/{deployment}"


def _expect(topic: str, holds: bool) -> None:
    if not holds:
        raise DecodeError(f"{topic[:80]!a} is not a topic of this protocol")


def _parts(topic: str, count: int) -> list[str]:
    _expect(topic, len(topic) <= MAX_TOPIC_BYTES and topic.startswith(f"{ROOT}/"))
    parts = topic.removeprefix(f"{ROOT}/").split("/")
    _expect(topic, len(parts) == count and _DEPLOYMENT.fullmatch(parts[0]) is not None)
    return parts


def _digest(topic: str, text: str) -> bytes:
    _expect(topic, _DIGEST.fullmatch(text) is not None)
    return bytes.fromhex(text)


def _checked(position: int) -> int:
    if not 0 <= position < MAX_AGGREGATORS:
        raise UsageError(f"aggregator position is {position}, not 0 to {MAX_AGGREGATORS - 1}")
    return position


def _placed(topic: str, wanted: str) -> tuple[str, bytes, int]:
    deployment, digest, agg, position, kind = _parts(topic, 5)
    _expect(topic, (agg, kind) == ("agg", wanted) and position in {str(one) for one in range(MAX_AGGREGATORS)})
    return deployment, _digest(topic, digest), int(position)


def _session_of(topic: str, wanted: str) -> tuple[str, SessionId]:
    deployment, kind, session = _parts(topic, 3)
    _expect(topic, kind == wanted and _SESSION.fullmatch(session) is not None)
    return deployment, SessionId(bytes.fromhex(session))

"""The task: one window of a counting question, immutable, the same bytes for every party.

Making a `Task` checks every rule, so each one that exists may be asked. Reports are made and checked elsewhere.
"""

import hashlib
from dataclasses import dataclass, fields
from functools import cached_property

from fleetcount_mechanisms.errors import MechanismError

from fleetcount_protocol.errors import DecodeError, TaskError
from fleetcount_protocol.ids import TaskId
from fleetcount_protocol.task.codec import decode_fields, encode_fields
from fleetcount_protocol.task.fields import (
    Aggregator,
    HpkeKey,
    Mode,
    Release,
    ReleaseKind,
    SeriesRef,
    TaskFields,
    UploadStyle,
)
from fleetcount_protocol.task.rules import check_task

__all__ = [
    "Aggregator",
    "HpkeKey",
    "Mode",
    "Release",
    "ReleaseKind",
    "SeriesRef",
    "Task",
    "UploadStyle",
    "decode_task",
]


@dataclass(frozen=True, kw_only=True)
class Task(TaskFields):
    """A window that may be asked; its fields are those of `TaskFields`.

    Raises:
        TaskError: a field outside its range, named with its value and the range.
    """

    def __post_init__(self) -> None:
        check_task(self)

    @cached_property
    def canonical(self) -> bytes:
        """The hand-written canonical bytes that are hashed (docs/wire.md, "Task")."""
        return encode_fields(self)

    @cached_property
    def task_id(self) -> TaskId:
        """SHA-256 of the canonical bytes."""
        return TaskId(hashlib.sha256(self.canonical).digest())


def decode_task(data: bytes) -> Task:
    """Return the task whose canonical bytes these are.

    Raises:
        DecodeError: they are not the canonical bytes of a task, or the task breaks a rule.
    """
    try:
        read = decode_fields(data)
        task = Task(**{one.name: getattr(read, one.name) for one in fields(TaskFields)})
    except (TaskError, MechanismError) as error:
        raise DecodeError(f"task that may not be asked: {error}") from error
    if task.canonical != data:
        raise DecodeError("task is not in its canonical form")
    return task

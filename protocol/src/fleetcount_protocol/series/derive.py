"""What follows from a series for one window, the same at every party: its task and its verify key.

It must not decide whether a window is asked: orders and clocks do (`orders`).
"""

import hashlib
import hmac
from dataclasses import fields
from typing import Final

from fleetcount_protocol.errors import TaskError, UsageError
from fleetcount_protocol.ids import TaskId
from fleetcount_protocol.limits import VERIFY_KEY_BYTES
from fleetcount_protocol.series.drill_down import candidates
from fleetcount_protocol.series.series import Series
from fleetcount_protocol.series.windows import window_fields, window_ref, window_times
from fleetcount_protocol.task.codec import encode_times, window_label
from fleetcount_protocol.task.fields import TaskFields
from fleetcount_protocol.task.task import Task

__all__ = ["check_verify_seed", "window_task", "window_verify_key"]

WINDOW_KEY_LABEL: Final = b"fleetcount v1 window key"


def window_task(series: Series, index: int, survivors: tuple[int, ...] = ()) -> Task:
    """Return the task of a window, 0 to `windows` - 1: the same bytes at every party.

    Run by every party when the window comes near. It shares domain, design and all bytes but the times with the other
    windows of the series object, so that it costs a copy of the bytes. A later step of a drill-down takes the cells
    that survived the step before it (`surviving_cells` of the window before) and is made and checked anew.

    Raises:
        UsageError: the series has no such window, none at all before its start, or survivors that cannot be those of
            the step before.
    """
    if type(index) is not int or not 0 <= index < series.schedule.windows:
        raise UsageError(f"window is {str(index)[:40]}, allowed: 0 to {series.schedule.windows - 1}")
    times = window_times(series.schedule, index)
    walk = series.drill_down
    if walk is not None and walk.step_of(index):
        domain = candidates(survivors, walk, walk.step_of(index))
        return _task(window_fields(series, series.series_id, index, domain))
    if survivors:
        raise UsageError(f"window {index} follows no step of a drill-down, allowed: no survivors")
    ref = window_ref(series, series.series_id, index)
    first = series.first_window
    # Not checked again: `check_series` has applied the rules of a task to the first and the last window.
    task = object.__new__(Task)
    shared = {one.name: getattr(first, one.name) for one in fields(first)}
    task.__dict__.update(shared, **times, series=ref, design=first.design)
    before, behind = series.shared_bytes
    task.__dict__["canonical"] = window_label(ref) + before + encode_times(task) + behind
    return task


def _task(of: TaskFields) -> Task:
    return Task(**{one.name: getattr(of, one.name) for one in fields(TaskFields)})


def window_verify_key(seed: bytes, task_id: TaskId) -> bytes:
    """Return the 32-byte verify key of a window: HKDF-Expand (RFC 5869, section 2.3) of the seed, its first block.

    Run by aggregators. The seed is 32 uniform bytes, so that the extract step has nothing to add.

    Raises:
        UsageError: a seed of another size (the message withholds it).
    """
    if len(seed) != VERIFY_KEY_BYTES:
        raise UsageError(f"the seed of verify keys has {len(seed)} bytes, allowed: {VERIFY_KEY_BYTES}")
    return hmac.digest(seed, WINDOW_KEY_LABEL + task_id + b"\x01", "sha256")


def check_verify_seed(series: Series, seed: bytes) -> None:
    """Refuse a seed of verify keys that is not the one the series was signed with.

    Raises:
        TaskError: another size or another digest (the message withholds it).
    """
    if len(seed) != VERIFY_KEY_BYTES or hashlib.sha256(seed).digest() != series.verify_seed_digest:
        raise TaskError("the seed of verify keys is not the one the series commits to")

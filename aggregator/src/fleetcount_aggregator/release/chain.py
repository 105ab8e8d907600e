"""The chain of a series' records: each names the digest of the one before it and every window missing between.

The leader proposes the link from its own store; a helper signs only what its own store does not contradict. It must not
build or sign records (`release.steps`).
"""

import hashlib

from fleetcount_protocol.ids import Digest, TaskId
from fleetcount_protocol.release import ChainLink, MissingWindow

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.states import State
from fleetcount_aggregator.installed_series import InstalledSeries
from fleetcount_aggregator.installed_task import InstalledTask
from fleetcount_aggregator.journal import Step, taken
from fleetcount_aggregator.peers import PeerProblem, PeerRefusalError

__all__ = ["chain_link", "check_link"]


async def chain_link(context: Context, task: InstalledTask) -> ChainLink | None:
    """Return the link of a window's record, None for a task of its own; run by the leader.

    Every earlier window has ended here, so the link is the same whenever it is made again.
    """
    window = task.task.series
    if window is None:
        return None
    series = context.series[window.series_id]
    missing: list[MissingWindow] = []
    for index in reversed(range(window.index)):
        if (released := _released(context, series, index)) is not None:
            previous = await _signed_digest(context, released)
            return ChainLink(previous=previous, previous_index=index, missing=tuple(reversed(missing)))
        missing.append(MissingWindow(index=index, reason=await _reason(context, series, index)))
    return ChainLink(previous=None, previous_index=None, missing=tuple(reversed(missing)))


async def _reason(context: Context, series: InstalledSeries, index: int) -> str:
    if index in series.missing:
        return series.missing[index]
    task_id = series.windows[index]
    row = None if task_id is None else await context.store.task(task_id)
    return State.ABORTED.value if row is None or not row.abort_reason else row.abort_reason


def _released(context: Context, series: InstalledSeries, index: int) -> TaskId | None:
    """Return the task of a window if it is released here."""
    task_id = series.windows[index]
    return task_id if task_id is not None and context.states.get(task_id) is State.RELEASED else None


async def _signed_digest(context: Context, task_id: TaskId) -> Digest | None:
    """Return the digest of the record this aggregator signed for a window, None if it signed none."""
    signed = await taken(context, task_id, Step.SIGN)
    return None if signed is None else Digest(hashlib.sha256(signed.request).digest())


async def check_link(context: Context, task: InstalledTask, link: ChainLink | None) -> None:
    """Refuse a link that this aggregator's own store contradicts.

    The record before must be the one signed here, which may not have been delivered yet; those said to be missing must
    not be released here. That it accounts for every window, the record itself has checked.

    Raises:
        PeerRefusalError: DISAGREES.
    """
    window = task.task.series
    if window is None or link is None:
        if (window, link) != (None, None):
            raise PeerRefusalError(PeerProblem.DISAGREES)
        return
    series = context.series[window.series_id]
    if any(_released(context, series, one.index) is not None for one in link.missing):
        raise PeerRefusalError(PeerProblem.DISAGREES)
    if link.previous_index is not None:
        task_id = series.windows[link.previous_index]
        own = None if task_id is None else await _signed_digest(context, task_id)
        if own is None or own != link.previous:
            raise PeerRefusalError(PeerProblem.DISAGREES)

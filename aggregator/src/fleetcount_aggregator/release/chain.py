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
        if context.states.get(series.windows[index]) is State.RELEASED:
            previous = await _signed_digest(context, series.windows[index])
            return ChainLink(previous=previous, previous_index=index, missing=tuple(reversed(missing)))
        missing.append(MissingWindow(index=index, reason=await _reason(context, series, index)))
    return ChainLink(previous=None, previous_index=None, missing=tuple(reversed(missing)))


async def _reason(context: Context, series: InstalledSeries, index: int) -> str:
    if index in series.missing:
        return series.missing[index]
    row = await context.store.task(series.windows[index])
    return State.ABORTED.value if row is None or not row.abort_reason else row.abort_reason


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
    windows = context.series[window.series_id].windows
    if any(context.states.get(windows[one.index]) is State.RELEASED for one in link.missing):
        raise PeerRefusalError(PeerProblem.DISAGREES)
    if link.previous_index is not None:
        own = await _signed_digest(context, windows[link.previous_index])
        if own is None or own != link.previous:
            raise PeerRefusalError(PeerProblem.DISAGREES)

"""The chain of a question's records: each names the digest of the record before it and every missing window between.

The leader proposes the link from its own store; a helper signs it only if its own store does not contradict it. It must
not build or sign records (`release.steps`).
"""

import hashlib
from contextlib import aclosing

from fleetcount_protocol.errors import PeerProblem
from fleetcount_protocol.ids import Digest, WindowId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.release.chain import ChainLink, MissingWindow

from fleetcount_aggregator.durable_steps import record_here
from fleetcount_aggregator.memory.installed import InstalledWindow
from fleetcount_aggregator.memory.questions import decided_before
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.storage.row_types import DecidedWindow
from fleetcount_aggregator.storage.rows import read_window
from fleetcount_aggregator.storage.store import Store


async def chain_link(windows: Windows, window: InstalledWindow) -> ChainLink:
    """Return the link of a window's record; the leader calls it.

    Every earlier window has ended here, so a repeated call returns the same link.
    """
    place = window.asked.question
    missing: list[MissingWindow] = []
    async with aclosing(decided_before(windows.store, place.question_id, place.index)) as before:
        async for decided in before:
            if (released := await _released(windows, decided)) is not None:
                previous = await _record_digest(windows.store, released)
                return ChainLink(previous=previous, previous_index=decided.index, missing=tuple(reversed(missing)))
            missing.append(MissingWindow(index=decided.index, reason=await _reason(windows.store, decided)))
    return ChainLink(previous=None, previous_index=None, missing=tuple(reversed(missing)))


async def _reason(store: Store, decided: DecidedWindow) -> str:
    if decided.missing:
        return decided.missing
    row = None if decided.window_id is None else await store.read(read_window, decided.window_id)
    return WindowState.ABORTED.value if row is None or not row.abort_reason else row.abort_reason


async def _released(windows: Windows, decided: DecidedWindow) -> WindowId | None:
    """Return the window's id if it is released here, else None."""
    window_id = None if decided.missing else decided.window_id
    return window_id if window_id is not None and await windows.state_of(window_id) is WindowState.RELEASED else None


async def _record_digest(store: Store, window_id: WindowId) -> Digest | None:
    """Return the digest of the record of a window that is released or signed here, None if there is none."""
    record = await record_here(store, window_id)
    return None if record is None else Digest(hashlib.sha256(record).digest())


async def check_link(windows: Windows, window: InstalledWindow, link: ChainLink) -> None:
    """Refuse a link that this aggregator's own store contradicts.

    The record before must be the one released here, or the one signed here and not delivered yet; a window that the
    link names as missing must not be released here. Decoding the record has checked that it accounts for every window.

    Raises:
        PeerRefusalError: DISAGREES.
    """
    place = window.asked.question
    async with aclosing(decided_before(windows.store, place.question_id, place.index)) as before:
        async for decided in before:
            if decided.index == link.previous_index:
                own = None if decided.window_id is None else await _record_digest(windows.store, decided.window_id)
                if own is None or own != link.previous:
                    raise PeerRefusalError(PeerProblem.DISAGREES)
                return
            if await _released(windows, decided) is not None:
                raise PeerRefusalError(PeerProblem.DISAGREES)

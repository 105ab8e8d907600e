"""Sealing the set: each aggregator checks the one set of a window, stores its digest, and refuses every other.

The same at leader and helper. It works on columns of all reports, so that a million need no Python loop. It must not
add up reports (`release`).
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
from fleetcount_protocol.errors import PeerProblem, RejectReason
from fleetcount_protocol.ids import Digest, ReportId, WindowId
from fleetcount_protocol.messages import SealSet, WindowState
from fleetcount_protocol.release.commitments import leaf_digests, set_root
from numpy.typing import NDArray

from fleetcount_aggregator.durable_steps import Entry, Step, move, once, taken
from fleetcount_aggregator.host.states import AbortReason
from fleetcount_aggregator.memory.installed import InstalledWindow
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.storage.report_ids import ReportIds, ascending, leaves_of, sorted_leaf_digests
from fleetcount_aggregator.storage.row_types import ReportVerdict
from fleetcount_aggregator.storage.rows import read_included
from fleetcount_aggregator.storage.store import Store, every_batch


@dataclass(frozen=True, slots=True)
class BatchVerdicts:
    """Every complete report by position: its verdict, `_NONE` without one, and its public share's digest (n x 32)."""

    ids: ReportIds
    verdicts: NDArray[np.uint8]
    share_digests: NDArray[np.uint8] = field(repr=False)


_NONE: Final = 255


class _NamesMissing(Exception):  # noqa: N818 - no error: the leader must still name the reports of some leaves.
    def __init__(self, leaves: NDArray[np.bool_]) -> None:
        super().__init__()
        self.leaves = np.packbits(leaves).tobytes()


@dataclass(frozen=True, slots=True)
class OwnSet:
    """A set of reports of this aggregator: positions and ids (n x 16 bytes), ascending by id, and the leaf digests."""

    window_id: WindowId
    positions: NDArray[np.int64]
    ids: bytes = field(repr=False)
    leaves: bytes = field(repr=False)

    @classmethod
    def of(cls, window_id: WindowId, batch: BatchVerdicts, wanted: NDArray[np.bool_]) -> Self:
        """Return the set of the wanted reports, by position."""
        order = batch.ids.order
        positions = order[wanted[order]]
        ids = batch.ids.at(positions)
        return cls(window_id, positions, ids, sorted_leaf_digests(window_id, ids, batch.share_digests, positions))

    @classmethod
    def agreed(cls, window_id: WindowId, batch: BatchVerdicts, request: SealSet) -> Self:
        """Return the leader's set if all its reports are accepted here.

        Ids are needed only where both differ: a leaf with the leader's digest is taken whole, and one that is empty at
        the leader is left out. In every other leaf the leader names the reports.

        Raises:
            _NamesMissing: it has not named them yet.
            PeerRefusalError: DISAGREES, it names a report that is not accepted here or in another leaf, or the digests
                differ.
        """
        accepted = batch.verdicts == ReportVerdict.ACCEPTED
        own = cls.of(window_id, batch, accepted)
        theirs, empty = map(_by_leaf, (request.leaf_digests, leaf_digests(window_id, ())))
        unequal: NDArray[np.bool_] = (_by_leaf(own.leaves) != theirs).any(axis=1)
        asked = unequal & (theirs != empty).any(axis=1)
        if not unequal.any() and not request.accepted:
            return own
        if asked.any() and not request.accepted:
            raise _NamesMissing(asked)
        named = batch.ids.find(request.accepted)
        here = (named >= 0).all() and accepted[named].all()
        if not here or not ascending(request.accepted) or not asked[leaves_of(request.accepted)].all():
            raise PeerRefusalError(PeerProblem.DISAGREES)
        wanted = np.zeros(len(accepted), dtype=np.bool_)
        wanted[own.positions[~unequal[leaves_of(own.ids)]]] = True
        wanted[named] = True
        narrowed = cls.of(window_id, batch, wanted)
        if narrowed.leaves != request.leaf_digests:
            raise PeerRefusalError(PeerProblem.DISAGREES)
        return narrowed

    @property
    def digest(self) -> Digest:
        """The digest of the set."""
        return set_root(self.window_id, self.leaves)

    def named(self, leaves: bytes) -> bytes:
        """Return the ids in some leaves (a bit each), joined and ascending."""
        within = np.unpackbits(np.frombuffer(leaves, dtype=np.uint8)) != 0
        rows = np.frombuffer(self.ids, dtype=np.uint8).reshape(-1, ReportId.SIZE)
        found: NDArray[np.uint8] = rows[within[leaves_of(self.ids)]]
        return found.tobytes()


def _by_leaf(digests: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(digests, dtype=np.uint8).reshape(-1, Digest.SIZE)


async def _batch_verdicts(store: Store, window_id: WindowId) -> BatchVerdicts:
    ids = (await store.complete_reports(window_id)).ids
    verdicts = np.full(len(ids), _NONE, dtype=np.uint8)
    digests = np.zeros((len(ids), Digest.SIZE), dtype=np.uint8)
    async for row in every_batch(store, window_id):
        verdicts[row.positions] = np.frombuffer(row.verdicts, dtype=np.uint8)
        digests[row.positions] = np.frombuffer(row.share_digests, dtype=np.uint8).reshape(-1, Digest.SIZE)
    return BatchVerdicts(ids, verdicts, digests)


async def of_denied(windows: Windows, window_id: WindowId, ids: ReportIds) -> NDArray[np.bool_]:
    """Return, by position, which reports are from devices on the present deny list."""
    denied = np.zeros(len(ids), dtype=np.bool_)
    if keys := windows.host.denials.keys:
        found = ids.find(await windows.store.reports_of(window_id, b"".join(keys)))
        denied[found[found >= 0]] = True
    return denied


async def close_intake(windows: Windows, window_id: WindowId) -> None:
    """Close intake for good, or do nothing if it is closed; incomplete reports are then half pairs."""
    await move(windows, window_id, WindowState.AGREEING)


async def abort_here(windows: Windows, window_id: WindowId, reason: AbortReason | str) -> WindowState:
    """Abort a window at this aggregator, with a public reason, unless it has ended; return its state after that."""
    text = reason.value if isinstance(reason, AbortReason) else reason
    state = await move(windows, window_id, WindowState.ABORTED, reason=text)
    if state is WindowState.ABORTED:
        await windows.purge(window_id)
    return state


async def sealed_digest(store: Store, window_id: WindowId) -> Digest | None:
    """Return the digest of the window's one set, or None before it is sealed."""
    step = await taken(store, window_id, Step.SET)
    return Digest(step.answer) if step else None


async def seal_own(windows: Windows, window: InstalledWindow) -> OwnSet:
    """Seal the set of the reports accepted here, and return it; the leader calls it, and sends the set to the helpers.

    Reports of devices that were denied meanwhile are left out. A sealed set does not change.

    Raises:
        PeerRefusalError, StateConflictError: as `seal_named`.
    """
    batch = await _batch_verdicts(windows.store, window.window_id)
    sealed = await windows.store.read(read_included, window.window_id)
    if sealed is None:
        wanted = (batch.verdicts == ReportVerdict.ACCEPTED) & ~await of_denied(windows, window.window_id, batch.ids)
    else:
        wanted = np.frombuffer(sealed, dtype=np.uint8) != 0
    own = await asyncio.to_thread(OwnSet.of, window.window_id, batch, wanted)
    await once(windows, window.window_id, Step.SET, own.digest, lambda: _included(windows, window, batch, own))
    return own


async def seal_named(windows: Windows, window: InstalledWindow, request: SealSet) -> bytes:
    """Store the set that the leader names and move on to releasing; repeating it with the same set changes nothing.

    Every report must be accepted here, the digests of the leaves must follow from this aggregator's own public shares,
    and there must be at least `min_batch_size` reports, counted here, after the last removal. Return b"" once the set
    is sealed; otherwise the leaves (one bit each) whose ids the leader has to name, because its reports there may be
    fewer.

    Raises:
        PeerRefusalError: CONFLICT for a second set, DISAGREES for one that differs from ours, TOO_FEW (then the window
            is aborted here).
        StateConflictError: no set is sealed and the window is not agreeing.
    """

    async def work() -> Entry:
        batch = await _batch_verdicts(windows.store, window.window_id)
        agreed = await asyncio.to_thread(OwnSet.agreed, window.window_id, batch, request)
        return await _included(windows, window, batch, agreed)

    try:
        await once(windows, window.window_id, Step.SET, set_root(window.window_id, request.leaf_digests), work)
    except _NamesMissing as missing:
        return missing.leaves
    return b""


async def _included(windows: Windows, window: InstalledWindow, batch: BatchVerdicts, own: OwnSet) -> Entry:
    if len(own.positions) < window.asked.min_batch_size:
        await abort_here(windows, window.window_id, AbortReason.TOO_FEW_REPORTS)
        raise PeerRefusalError(PeerProblem.TOO_FEW)
    included = np.zeros(len(batch.ids), dtype=np.uint8)
    included[own.positions] = 1
    left_out = (included == 0) & ~np.isin(batch.verdicts, (ReportVerdict.DROPPED, ReportVerdict.REFUSED))
    denied = await of_denied(windows, window.window_id, batch.ids)
    rejections = Counter({RejectReason.BAD_CERTIFICATE: int((left_out & denied).sum())})
    rejections[RejectReason.MISSING_AT_PEER] = int((left_out & ~denied).sum())
    return Entry(answer=own.digest, included=included.tobytes(), rejections=+rejections)

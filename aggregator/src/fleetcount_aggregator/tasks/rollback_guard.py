"""The rollback guard: a peer that shows a shorter ledger than before was restored from a backup, and gets no help.

Remembers how long a ledger each peer has shown, its high-water mark; this aggregator's own ledger is the store's.
"""

from fleetcount_protocol.ids import AggregatorId, TaskId
from fleetcount_protocol.messages import TaskStatus

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.peers import Peer, PeerProblem, PeerRefusalError, PeerUnreachableError

__all__ = ["check_rollback", "note_ledger_rows"]


async def note_ledger_rows(context: Context, peer_id: AggregatorId, status: TaskStatus) -> None:
    """Compare a peer's ledger with what it has shown before, and remember the longer.

    Raises:
        PeerRefusalError: BEHIND, the ledger has become shorter.
    """
    known = (await context.store.high_water()).get(peer_id, 0)
    if status.ledger_rows < known:
        raise PeerRefusalError(PeerProblem.BEHIND)
    if status.ledger_rows > known:
        await context.store.raise_high_water(peer_id, status.ledger_rows)


async def check_rollback(context: Context, peer_id: AggregatorId, task_id: TaskId) -> None:
    """Ask a peer for its ledger before helping it to a release.

    Raises:
        PeerRefusalError: BEHIND; or BUSY if it has shown a ledger before and cannot be asked now.
    """
    peer: Peer | None = context.peers.get(peer_id)
    known = (await context.store.high_water()).get(peer_id, 0)
    try:
        if peer is None:
            raise PeerUnreachableError(f"no peer {peer_id}")
        status = await peer.status(task_id)
    except (PeerUnreachableError, PeerRefusalError) as error:
        if known:
            raise PeerRefusalError(PeerProblem.BUSY) from error
        return
    await note_ledger_rows(context, peer_id, status)

"""The rollback guard: a peer that shows a shorter ledger than before was restored from a backup, and gets no help.

Remembers how long a ledger each peer has shown, its high-water mark; this aggregator's own ledger is the store's.
"""

from typing import NamedTuple

from fleetcount_protocol.errors import PeerProblem
from fleetcount_protocol.ids import AggregatorId, WindowId

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.peers import Peer, PeerRefusalError, PeerUnreachableError


class ShownLedger(NamedTuple):
    """How many rows a peer's ledger has, and how many it had shown before it was asked."""

    rows: int
    known: int


async def shown_ledger(context: Context, peer_id: AggregatorId, window_id: WindowId, peer: Peer) -> ShownLedger:
    """Ask a peer for its ledger. The mark is of before the question: of two answers the later one may come first."""
    known = (await context.store.high_water()).get(peer_id, 0)
    return ShownLedger((await peer.status(window_id)).ledger_rows, known)


async def note_ledger_rows(context: Context, peer_id: AggregatorId, shown: ShownLedger) -> None:
    """Compare a peer's ledger with what it had shown before, and remember the longer.

    Raises:
        PeerRefusalError: BEHIND, the ledger has become shorter.
    """
    if shown.rows < shown.known:
        raise PeerRefusalError(PeerProblem.BEHIND)
    if shown.rows > shown.known:
        await context.store.raise_high_water(peer_id, shown.rows)


async def check_rollback(context: Context, peer_id: AggregatorId, window_id: WindowId) -> None:
    """Ask a peer for its ledger before helping it to a release.

    Raises:
        PeerRefusalError: BEHIND; or BUSY if it has shown a ledger before and cannot be asked now.
    """
    peer: Peer | None = context.peers.get(peer_id)
    try:
        if peer is None:
            raise PeerUnreachableError(f"no peer {peer_id}")
        shown = await shown_ledger(context, peer_id, window_id, peer)
    except (PeerUnreachableError, PeerRefusalError) as error:
        if (await context.store.high_water()).get(peer_id, 0):
            raise PeerRefusalError(PeerProblem.BUSY) from error
        return
    await note_ledger_rows(context, peer_id, shown)

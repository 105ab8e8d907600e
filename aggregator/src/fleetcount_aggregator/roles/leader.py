"""How the leader of a window drives it from the end of intake to a release or a public abort.

Every step is stored before the next one and safe to repeat, so that a crash at any point resumes to the same set.
It must not hold a rule of the agreement (`agreement`) or of the release (`release`).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.messages import (
    Commitment,
    CommitQuery,
    FinishedRecord,
    NoisedShare,
    OpenQuery,
    RecordProposal,
    SealSet,
    SetAgreed,
    SetDiffers,
    WindowState,
)
from fleetcount_transport.logs import log

from fleetcount_aggregator.agreement.leader_batches import BatchRounds
from fleetcount_aggregator.agreement.report_set import OwnSet, abort_here, close_intake, seal_own, sealed_digest
from fleetcount_aggregator.agreement.verification import Verification
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.durable_steps import Entry, Step, once, released_here, taken
from fleetcount_aggregator.host.states import AbortReason, StateConflictError
from fleetcount_aggregator.memory.installed import InstalledWindow
from fleetcount_aggregator.memory.peers import FATAL, Helpers, WindowEnds
from fleetcount_aggregator.peers import Peer, PeerRefusalError
from fleetcount_aggregator.release.steps import ReleaseSteps
from fleetcount_aggregator.roles.settling import Settling


class Leader:
    """Drives the windows this aggregator leads."""

    def __init__(self, context: Context, verification: Verification, steps: ReleaseSteps, settling: Settling) -> None:
        self._windows = context.windows
        self._host = context.host
        self._store = context.store
        self._peers = context.peers
        self._helpers = Helpers(context.peers, context.windows, context.questions)
        self._batches = BatchRounds(context.windows, context.workers, verification, self._helpers)
        self._steps = steps
        self._settling = settling

    async def drive(self, window: InstalledWindow) -> WindowState:
        """Bring a window whose rounds have closed to its end; return released or aborted.

        Raises:
            StoreError, MachineError: this machine failed; call again, nothing is lost.
        """
        try:
            if self._windows.states[window.window_id] is not WindowState.RELEASED:
                await self._release(window, await self._agree(window))
        except WindowEnds as ending:
            await self._end(window, ending.reason)
        except PeerRefusalError as refusal:
            # A step here contradicts the stored one, so a repeat cannot help: a helper's store has another history.
            await self._end(window, FATAL.get(refusal.problem, AbortReason.PEER_REFUSED))
        except StateConflictError:
            pass  # It has ended meanwhile.
        if self._windows.states[window.window_id] is WindowState.RELEASED:
            await self._deliver(window)
        return self._windows.states[window.window_id]

    async def _end(self, window: InstalledWindow, reason: AbortReason) -> None:
        """Abort, unless a helper has a record that all have signed: then this store is an older copy, and adopts it."""
        if not await self._settling.adopt_elsewhere(window):
            log.warning("window_aborted", window=str(window.window_id), reason=reason.value)
            await self._abort_everywhere(window, reason)

    # Agreement.

    async def _agree(self, window: InstalledWindow) -> Digest:
        """Find the one set and seal it everywhere; return its digest."""
        await close_intake(self._windows, window.window_id)
        self._host.failpoints.hit("leader.after_close")
        if await sealed_digest(self._store, window.window_id) is None:
            await self._batches.run(window)
        return await self._seal(window)

    async def _seal(self, window: InstalledWindow) -> Digest:
        """Seal the set here, then at every helper."""
        try:
            own = await seal_own(self._windows, window)
        except PeerRefusalError as refusal:
            raise WindowEnds(FATAL.get(refusal.problem, AbortReason.SET_DISAGREEMENT)) from refusal
        self._host.failpoints.hit("leader.after_seal")
        await self._helpers.ask_all(window, lambda peer: _seal_at(peer, own))
        self._host.failpoints.hit("leader.after_helpers_sealed")
        return own.digest

    # Release.

    async def _release(self, window: InstalledWindow, digest: Digest) -> None:
        """Commit, open, build the record, collect every signature, store the release."""
        await self._check_rollback(window)
        own = await self._steps.commit(window, digest)
        commitments: list[Commitment] = [
            own,
            *await self._helpers.ask_all(
                window, lambda peer: peer.commit(CommitQuery(window_id=window.window_id, set_digest=digest))
            ),
        ]
        self._host.failpoints.hit("leader.after_commitments")
        # With this release's debit: a helper that comes back from an older copy would draw its noise again.
        await self._check_rollback(window)
        query = OpenQuery(window_id=window.window_id, set_digest=digest, commitments=tuple(commitments))
        shares: list[NoisedShare] = [
            await self._steps.open(window, query),
            *await self._helpers.ask_all(window, lambda peer: peer.open_share(query)),
        ]
        self._host.failpoints.hit("leader.after_open")
        record = await self._record(window, shares)
        proposal = RecordProposal(window_id=window.window_id, shares=tuple(shares), record=record)
        # Signed here first: after a crash this very record is proposed again, not one that bears a later time.
        own_signature = await self._steps.sign(window, proposal)
        signed = await self._helpers.ask_all(window, lambda peer: peer.sign_record(proposal))
        signatures = (own_signature.signature, *(one.signature for one in signed))
        self._host.failpoints.hit("leader.before_release")
        await self._steps.finish(
            window, FinishedRecord(window_id=window.window_id, record=record, signatures=signatures)
        )
        self._host.failpoints.hit("leader.after_release")
        log.info("window_released", window=str(window.window_id), name=window.asked.name)

    async def _record(self, window: InstalledWindow, shares: Sequence[NoisedShare]) -> bytes:
        try:
            return await self._steps.build(window, tuple(shares))
        except (PeerRefusalError, UsageError, ValueError, ArithmeticError) as error:
            # The opened numbers will not change, so what cannot be computed now cannot be computed later.
            why = error.problem.value if isinstance(error, PeerRefusalError) else type(error).__name__
            log.error("record_not_built", window=str(window.window_id), reason=why)
            raise WindowEnds(AbortReason.OUT_OF_RANGE) from error

    async def _check_rollback(self, window: InstalledWindow) -> None:
        """Refuse to release with a helper whose ledger is shorter than it was."""
        for helper in window.asked.aggregators[1:]:
            ask = partial(self._peers.shown_ledger, helper.aggregator_id, window.window_id)
            shown = await self._helpers.ask_one(window, helper.aggregator_id, ask)
            try:
                await self._peers.note_ledger_rows(helper.aggregator_id, shown)
            except PeerRefusalError as refusal:
                raise WindowEnds(AbortReason.RESTORED_BACKUP) from refusal

    async def _deliver(self, window: InstalledWindow) -> None:
        """Forget the shares; hand the record to every helper, until the window expires and once more at each start."""
        await self._windows.purge(window.window_id)
        stored = await released_here(self._store, window.window_id)
        if stored is None or await taken(self._store, window.window_id, Step.DELIVERED) is not None:
            return
        deadline = max(window.asked.expiry, self._host.moment().now + self._host.limits.give_up_s)
        try:
            await self._helpers.ask_all(window, lambda peer: peer.deliver_record(stored), deadline=deadline)
            # Only after every helper has it: a crash before this line delivers again, which changes nothing there.
            await once(self._windows, window.window_id, Step.DELIVERED, b"", Entry())
            await self._note_ledgers(window)
        except WindowEnds as ending:
            log.warning("record_not_delivered", window=str(window.window_id), reason=ending.reason.value)

    async def _note_ledgers(self, window: InstalledWindow) -> None:
        for helper in window.asked.aggregators[1:]:
            ask = partial(self._peers.shown_ledger, helper.aggregator_id, window.window_id)
            shown = await self._helpers.ask_one(window, helper.aggregator_id, ask, deadline=window.asked.expiry)
            await self._peers.note_ledger_rows(helper.aggregator_id, shown)

    # Abort.

    async def _abort_everywhere(self, window: InstalledWindow, reason: AbortReason) -> None:
        """Abort here and tell every helper; those that cannot be reached now are told later (`settling`)."""
        if await abort_here(self._windows, window.window_id, reason) is WindowState.ABORTED:
            await self._settling.settle(window)


async def _seal_at(peer: Peer, own: OwnSet) -> SetAgreed:
    """Seal a set at one helper; where its leaves differ from these, name the reports that are in them here."""
    request = SealSet(window_id=own.window_id, leaf_digests=own.leaves)
    answer = await peer.seal_set(request)
    if isinstance(answer, SetDiffers):
        answer = await peer.seal_set(replace(request, accepted=own.named(answer.leaves)))
    if isinstance(answer, SetDiffers) or answer.set_digest != own.digest:
        raise WindowEnds(AbortReason.SET_DISAGREEMENT)
    return answer

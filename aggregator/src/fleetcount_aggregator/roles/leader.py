"""How the leader of a window drives it from the end of intake to a release or a public abort.

Every step is stored before the next one and safe to repeat, so that a crash at any point resumes to the same set.
It must not hold a rule of the agreement (`agreement`) or of the release (`release`).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from fleetcount_protocol.errors import PeerProblem, UsageError
from fleetcount_protocol.ids import AggregatorId, Digest
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
from fleetcount_aggregator.context import UNFINISHED, Context
from fleetcount_aggregator.host.reasons import WaitFor
from fleetcount_aggregator.host.states import AbortReason, StateConflictError
from fleetcount_aggregator.installed_window import InstalledWindow
from fleetcount_aggregator.journal import Entry, Step, once, taken
from fleetcount_aggregator.peers import Peer, PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.release.steps import ReleaseSteps
from fleetcount_aggregator.roles.calling import call_peer
from fleetcount_aggregator.roles.settling import Settling
from fleetcount_aggregator.windows.finished import released_here
from fleetcount_aggregator.windows.question_notes import forget_given
from fleetcount_aggregator.windows.rollback_guard import note_ledger_rows, shown_ledger

Result = TypeVar("Result")
_FATAL: Final = {
    PeerProblem.TOO_FEW: AbortReason.TOO_FEW_REPORTS,
    PeerProblem.ABORTED: AbortReason.PEER_ABORTED,
    PeerProblem.CONFLICT: AbortReason.SET_DISAGREEMENT,
    PeerProblem.DISAGREES: AbortReason.RECORD_DISAGREEMENT,
    PeerProblem.TOO_TELLING: AbortReason.TOO_TELLING,
    PeerProblem.BEHIND: AbortReason.RESTORED_BACKUP,
    PeerProblem.RELEASED: AbortReason.RESTORED_BACKUP,
}
"""What a peer's final refusal means for the window; every other one is "peer_refused"."""


class _Ending(Exception):  # noqa: N818 - an event inside this module, not a fault: the window ends without a release.
    def __init__(self, reason: AbortReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class Leader:
    """Drives the windows this aggregator leads."""

    def __init__(self, context: Context, verification: Verification, steps: ReleaseSteps, settling: Settling) -> None:
        self._context = context
        self._batches = BatchRounds(context, verification, partial(self._everyone, counted=False))
        self._steps = steps
        self._settling = settling

    async def drive(self, window: InstalledWindow) -> WindowState:
        """Bring a window whose rounds have closed to its end; return released or aborted.

        Raises:
            StoreError, MachineError: this machine failed; call again, nothing is lost.
        """
        try:
            if self._context.states[window.window_id] is not WindowState.RELEASED:
                await self._release(window, await self._agree(window))
        except _Ending as ending:
            await self._end(window, ending.reason)
        except PeerRefusalError as refusal:
            # A step here contradicts the stored one, so a repeat cannot help: a helper's store has another history.
            await self._end(window, _FATAL.get(refusal.problem, AbortReason.PEER_REFUSED))
        except StateConflictError:
            pass  # It has ended meanwhile.
        if self._context.states[window.window_id] is WindowState.RELEASED:
            await self._deliver(window)
        return self._context.states[window.window_id]

    async def _end(self, window: InstalledWindow, reason: AbortReason) -> None:
        """Abort, unless a helper has a record that all have signed: then this store is an older copy, and adopts it."""
        if not await self._settling.adopt_elsewhere(window):
            log.warning("window_aborted", window=str(window.window_id), reason=reason.value)
            await self._abort_everywhere(window, reason)

    # Agreement.

    async def _agree(self, window: InstalledWindow) -> Digest:
        """Find the one set and seal it everywhere; return its digest."""
        await close_intake(self._context, window.window_id)
        self._context.failpoints.hit("leader.after_close")
        if await sealed_digest(self._context, window.window_id) is None:
            await self._batches.run(window)
        return await self._seal(window)

    async def _seal(self, window: InstalledWindow) -> Digest:
        """Seal the set here, then at every helper."""
        try:
            own = await seal_own(self._context, window)
        except PeerRefusalError as refusal:
            raise _Ending(_FATAL.get(refusal.problem, AbortReason.SET_DISAGREEMENT)) from refusal
        self._context.failpoints.hit("leader.after_seal")
        await self._everyone(window, lambda peer: _seal_at(peer, own))
        self._context.failpoints.hit("leader.after_helpers_sealed")
        return own.digest

    # Release.

    async def _release(self, window: InstalledWindow, digest: Digest) -> None:
        """Commit, open, build the record, collect every signature, store the release."""
        await self._check_rollback(window)
        own = await self._steps.commit(window, digest)
        commitments: list[Commitment] = [
            own,
            *await self._everyone(
                window, lambda peer: peer.commit(CommitQuery(window_id=window.window_id, set_digest=digest))
            ),
        ]
        self._context.failpoints.hit("leader.after_commitments")
        # With this release's debit: a helper that comes back from an older copy would draw its noise again.
        await self._check_rollback(window)
        query = OpenQuery(window_id=window.window_id, set_digest=digest, commitments=tuple(commitments))
        shares: list[NoisedShare] = [
            await self._steps.open(window, query),
            *await self._everyone(window, lambda peer: peer.open_share(query)),
        ]
        self._context.failpoints.hit("leader.after_open")
        record = await self._record(window, shares)
        proposal = RecordProposal(window_id=window.window_id, shares=tuple(shares), record=record)
        # Signed here first: after a crash this very record is proposed again, not one that bears a later time.
        own_signature = await self._steps.sign(window, proposal)
        signed = await self._everyone(window, lambda peer: peer.sign_record(proposal))
        signatures = (own_signature.signature, *(one.signature for one in signed))
        self._context.failpoints.hit("leader.before_release")
        await self._steps.finish(
            window, FinishedRecord(window_id=window.window_id, record=record, signatures=signatures)
        )
        self._context.failpoints.hit("leader.after_release")
        log.info("window_released", window=str(window.window_id), name=window.asked.name)

    async def _record(self, window: InstalledWindow, shares: Sequence[NoisedShare]) -> bytes:
        try:
            return await self._steps.build(window, tuple(shares))
        except (PeerRefusalError, UsageError, ValueError, ArithmeticError) as error:
            # The opened numbers will not change, so what cannot be computed now cannot be computed later.
            why = error.problem.value if isinstance(error, PeerRefusalError) else type(error).__name__
            log.error("record_not_built", window=str(window.window_id), reason=why)
            raise _Ending(AbortReason.OUT_OF_RANGE) from error

    async def _check_rollback(self, window: InstalledWindow) -> None:
        """Refuse to release with a helper whose ledger is shorter than it was."""
        for helper in window.asked.aggregators[1:]:
            ask = partial(shown_ledger, self._context, helper.aggregator_id, window.window_id)
            shown = await self._persist(window, helper.aggregator_id, ask)
            try:
                await note_ledger_rows(self._context, helper.aggregator_id, shown)
            except PeerRefusalError as refusal:
                raise _Ending(AbortReason.RESTORED_BACKUP) from refusal

    async def _deliver(self, window: InstalledWindow) -> None:
        """Forget the shares; hand the record to every helper, until the window expires and once more at each start."""
        await self._context.purge(window.window_id)
        stored = await released_here(self._context, window.window_id)
        if stored is None or await taken(self._context, window.window_id, Step.DELIVERED) is not None:
            return
        deadline = max(window.asked.expiry, self._context.clock.now() + self._context.limits.give_up_s)
        try:
            await self._everyone(window, lambda peer: peer.deliver_record(stored), deadline=deadline)
            # Only after every helper has it: a crash before this line delivers again, which changes nothing there.
            await once(self._context, window.window_id, Step.DELIVERED, b"", Entry())
            await self._note_ledgers(window)
        except _Ending as ending:
            log.warning("record_not_delivered", window=str(window.window_id), reason=ending.reason.value)

    async def _note_ledgers(self, window: InstalledWindow) -> None:
        for helper in window.asked.aggregators[1:]:
            ask = partial(shown_ledger, self._context, helper.aggregator_id, window.window_id)
            shown = await self._persist(window, helper.aggregator_id, ask, deadline=window.asked.expiry)
            await note_ledger_rows(self._context, helper.aggregator_id, shown)

    # Abort.

    async def _abort_everywhere(self, window: InstalledWindow, reason: AbortReason) -> None:
        """Abort here and tell every helper; those that cannot be reached now are told later (`settling`)."""
        if await abort_here(self._context, window.window_id, reason) is WindowState.ABORTED:
            await self._settling.settle(window)

    # Asking helpers.

    async def _everyone(
        self,
        window: InstalledWindow,
        ask: Callable[[Peer], Awaitable[Result]],
        deadline: float | None = None,
        *,
        counted: bool = True,
    ) -> list[Result]:
        """Ask every helper at once, again and again, until all have answered; answers in the window's order.

        Batches are not `counted`: 512 reports are one, and how many take part is secret.
        """
        helpers = [one.aggregator_id for one in window.asked.aggregators[1:]]
        asked = [
            asyncio.ensure_future(self._persist(window, helper, ask, deadline, counted=counted)) for helper in helpers
        ]
        try:
            return list(await asyncio.gather(*asked))
        finally:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _persist(
        self,
        window: InstalledWindow,
        helper: AggregatorId,
        ask: Callable[[Peer], Awaitable[Result]],
        deadline: float | None = None,
        *,
        counted: bool = True,
    ) -> Result:
        """Ask one helper until it answers or the time is over; the pause doubles up to a cap, with jitter."""
        limits = self._context.limits
        end = window.closes + limits.give_up_s if deadline is None else deadline
        wait = limits.first_retry_s
        try:
            while True:
                try:
                    return await call_peer(self._context, helper, ask, counted=counted)
                except PeerUnreachableError:
                    problem = None
                except PeerRefusalError as refusal:
                    problem = refusal.problem
                why = "unreachable" if problem is None else problem.value
                self._context.waits.note(window.window_id, WaitFor.PEER, why, whom=helper, until=end)
                if problem is not None and not problem.passing:
                    raise _Ending(_FATAL.get(problem, AbortReason.PEER_REFUSED))
                if problem is PeerProblem.UNKNOWN_WINDOW:
                    self._hand_over(window, helper)
                if self._context.clock.now() >= end:
                    raise _Ending(AbortReason.PEER_UNREACHABLE)
                await self._context.pause(wait * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret.
                wait = min(2 * wait, limits.longest_retry_s)
        finally:
            self._context.waits.over(window.window_id, WaitFor.PEER, whom=helper)

    def _hand_over(self, window: InstalledWindow, helper: AggregatorId) -> None:
        """Give the question again to a helper that came back empty; whether it takes it shows later.

        A helper derives its windows by itself. A window that has ended is not handed over.
        """
        if self._context.states[window.window_id] in UNFINISHED:
            question_id = window.asked.question.question_id
            forget_given(self._context.questions[question_id], helper)
            self._context.handovers.put(0, question_id)


async def _seal_at(peer: Peer, own: OwnSet) -> SetAgreed:
    """Seal a set at one helper; where its leaves differ from these, name the reports that are in them here."""
    request = SealSet(window_id=own.window_id, leaf_digests=own.leaves)
    answer = await peer.seal_set(request)
    if isinstance(answer, SetDiffers):
        answer = await peer.seal_set(replace(request, accepted=own.named(answer.leaves)))
    if isinstance(answer, SetDiffers) or answer.set_digest != own.digest:
        raise _Ending(AbortReason.SET_DISAGREEMENT)
    return answer

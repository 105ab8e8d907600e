"""The batches of a helper: it verifies the proposed reports, answers, and later checks the leader's messages.

Every answer is stored before it is sent, and repeated verbatim. A report stays in its batch, so that no sum contains it
twice. It must not call a peer.
"""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import numpy as np
from fleetcount_protocol.errors import PeerProblem, RejectReason
from fleetcount_protocol.ids import AggregatorId, ReportId, WindowId
from fleetcount_protocol.messages import BatchDecision, BatchProposal, BatchReply, FinishBatch, WindowState
from fleetcount_protocol.vdaf.field import SEED_SIZE
from numpy.typing import NDArray

from fleetcount_aggregator.agreement.report_set import of_denied
from fleetcount_aggregator.agreement.rules import (
    answers,
    count_reasons,
    dropped_reason,
    finish_digest,
    holding,
    picked,
    proposal_digest,
    reply_bytes,
    reply_from_bytes,
)
from fleetcount_aggregator.agreement.verification import Verification, kept_seeds, matching, seal_kept
from fleetcount_aggregator.durable_steps import Entry, Step, once, taken
from fleetcount_aggregator.memory.installed import InstalledWindow
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.storage.log_slice import CompleteReports
from fleetcount_aggregator.storage.report_ids import ReportIds
from fleetcount_aggregator.storage.row_types import BatchRow, ReportVerdict
from fleetcount_aggregator.storage.rows import read_batch
from fleetcount_aggregator.storage.store import every_batch
from fleetcount_aggregator.verification.share_arithmetic import VerifiedReports

_FREE: Final = -1
_MOST_AT_ONCE: Final = 64
"""Batches verified or finished at once, over all windows, shared equally by the peers; beyond, a peer gets BUSY."""


class HelperBatches:
    """The batches of windows that other aggregators lead."""

    def __init__(self, windows: Windows, verification: Verification, peer_count: int) -> None:
        self._windows = windows
        self._store = windows.store
        self._failpoints = windows.host.failpoints
        self._peer_count = peer_count
        self._verification = verification
        self._owners: dict[WindowId, NDArray[np.int64]] = {}
        self._taking: Counter[AggregatorId] = Counter()

    async def propose(self, window: InstalledWindow, proposal: BatchProposal) -> BatchReply:
        """Answer a proposal; intake must be closed. A proposal without a report of this helper is answered, not stored.

        Raises:
            PeerRefusalError: CONFLICT, another proposal has this number or a report is in another batch; BUSY, the
                leader's share of places is in use.
            StateConflictError: the window is not agreeing.
        """
        if await self._is_nothing(window, Step.PROPOSE, proposal.batch, proposal.report_ids):
            missing = bytes([RejectReason.MISSING_AT_PEER.value]) * (len(proposal.report_ids) // ReportId.SIZE)
            return BatchReply(
                window_id=window.window_id,
                batch=proposal.batch,
                report_ids=proposal.report_ids,
                reasons=missing,
                verifier_shares=b"",
            )
        stored = await once(
            self._windows,
            window.window_id,
            Step.PROPOSE,
            proposal_digest(proposal),
            lambda: self._propose(window, proposal),
            batch=proposal.batch,
            within=self._admission(window, proposed=proposal.batch),
        )
        self._failpoints.hit("helper.after_propose_store")
        return reply_from_bytes(window.window_id, proposal.batch, stored)

    async def _is_nothing(self, window: InstalledWindow, step: Step, batch: int, report_ids: bytes) -> bool:
        """Return whether an unknown batch names no complete report of this helper, while the window is agreeing.

        Only a batch with such a report gets a row and a step: so there are no more of these than reports, however many
        batches a leader invents.
        """
        if self._windows.states[window.window_id] is not WindowState.AGREEING:
            return False
        if await taken(self._store, window.window_id, step, batch) is not None:
            return False
        if await self._store.read(read_batch, window.window_id, batch) is not None:
            return False
        reports = await self._store.complete_reports(window.window_id)
        return bool((reports.ids.find(report_ids) < 0).all())

    @contextmanager
    def _admission(self, window: InstalledWindow, proposed: int = _FREE) -> Generator[None, None, None]:
        """Use one of the leader's places during a step; free the reports of a proposal that was not stored.

        Raises:
            PeerRefusalError: BUSY, the leader's share of places is in use.
        """
        leader = window.leader_id
        if self._taking[leader] >= max(1, _MOST_AT_ONCE // max(1, self._peer_count)):
            raise PeerRefusalError(PeerProblem.BUSY)
        self._taking[leader] += 1
        try:
            yield
        except BaseException:
            owners = self._owners.get(window.window_id, np.empty(0, dtype=np.int64))
            owners[owners == proposed] = _FREE
            raise
        finally:
            self._taking[leader] -= 1

    async def _propose(self, window: InstalledWindow, proposal: BatchProposal) -> Entry:
        """Verify the proposed reports that are complete here; return the batch and the reply about it."""
        reports = await self._store.complete_reports(window.window_id)
        found = reports.ids.find(proposal.report_ids)
        present = found >= 0
        positions = found[present]
        await self._claim(window.window_id, len(reports.ids), positions, proposal.batch)
        verified = await self._verification.verify(window, reports, positions)
        denied = await of_denied(self._windows, window.window_id, ReportIds(reports.ids.at(positions)))
        entry = self._proposed(window, proposal, present, positions, verified, denied)
        self._failpoints.hit("helper.before_propose_store")
        return entry

    async def _claim(self, window_id: WindowId, count: int, positions: NDArray[np.int64], number: int) -> None:
        """Assign the reports to a batch.

        Raises:
            PeerRefusalError: CONFLICT, a report is in another batch.
        """
        owners = self._owners.get(window_id)
        if owners is None:
            owners = np.full(count, _FREE, dtype=np.int64)
            async for row in every_batch(self._store, window_id):
                owners[row.positions] = row.number
            owners = self._owners.setdefault(window_id, owners)
        if not np.isin(owners[positions], (_FREE, number)).all():
            raise PeerRefusalError(PeerProblem.CONFLICT)
        owners[positions] = number

    def _proposed(
        self,
        window: InstalledWindow,
        proposal: BatchProposal,
        present: NDArray[np.bool_],
        positions: NDArray[np.int64],
        verified: VerifiedReports,
        denied: NDArray[np.bool_],
    ) -> Entry:
        """Return the batch, the reply about it, and the counts of the reports refused here."""
        said, verdicts = answers(present, verified.reasons, verified.share_digests, proposal.share_digests, denied)
        reply = BatchReply(
            window_id=window.window_id,
            batch=proposal.batch,
            report_ids=proposal.report_ids,
            reasons=said,
            verifier_shares=picked(verified.verifier_shares, _with(verdicts, ReportVerdict.VERIFIED)),
        )
        row = BatchRow(
            number=proposal.batch,
            positions=positions,
            verdicts=verdicts,
            share_digests=verified.share_digests,
            kept=seal_kept(self._store, window, proposal.batch, verified.output_sum, verified.seeds),
        )
        return Entry(answer=reply_bytes(reply), batch=row, rejections=count_reasons(picked(said, present)))

    async def finish(self, window: InstalledWindow, request: FinishBatch) -> BatchDecision:
        """Check the leader's messages against this helper's own seeds; a report without a message is dropped.

        A batch that was proposed without a report of this helper is answered and not stored.

        Raises:
            PeerRefusalError: CONFLICT, this number was finished with other messages; NOT_YET, no proposal has this
                number; MALFORMED, messages for reports that are not in the batch; BUSY, as `propose`.
            StateConflictError: the window is not agreeing.
        """
        if not request.report_ids and await self._is_nothing(window, Step.FINISH, request.batch, b""):
            return BatchDecision(window_id=window.window_id, batch=request.batch, accepted=b"")
        accepted = await once(
            self._windows,
            window.window_id,
            Step.FINISH,
            finish_digest(request),
            lambda: self._finish(window, request),
            batch=request.batch,
            within=self._admission(window),
        )
        self._failpoints.hit("helper.after_finish_store")
        return BatchDecision(window_id=window.window_id, batch=request.batch, accepted=accepted)

    async def _finish(self, window: InstalledWindow, request: FinishBatch) -> Entry:
        """Decide about a batch; return it with the ids of the reports accepted here."""
        reports = await self._store.complete_reports(window.window_id)
        row = await self._store.read(read_batch, window.window_id, request.batch)
        if row is None:
            raise PeerRefusalError(PeerProblem.NOT_YET)
        denied = await of_denied(self._windows, window.window_id, ReportIds(reports.ids.at(row.positions)))
        verdicts = self._judge(window, reports, row, request, denied)
        accepted = _with(verdicts, ReportVerdict.ACCEPTED)
        pending = _with(row.verdicts, ReportVerdict.VERIFIED)
        named = ReportIds(request.report_ids).find(reports.ids.at(row.positions)) >= 0
        failed = pending & named & ~accepted
        rejections = Counter({RejectReason.INVALID_PROOF: int((failed & ~denied).sum())})
        rejections[RejectReason.BAD_CERTIFICATE] = int((failed & denied).sum())
        rejections[dropped_reason(len(window.asked.aggregators))] += int((pending & ~named).sum())
        self._failpoints.hit("helper.before_finish_store")
        finished = replace(row, verdicts=verdicts)
        return Entry(answer=reports.ids.at(row.positions[accepted]), batch=finished, rejections=+rejections)

    def _judge(
        self,
        window: InstalledWindow,
        reports: CompleteReports,
        row: BatchRow,
        request: FinishBatch,
        denied: NDArray[np.bool_],
    ) -> bytes:
        """Return the batch's verdicts after the leader's messages; reports of devices denied meanwhile are dropped."""
        places = ReportIds(reports.ids.at(row.positions)).find(request.report_ids)
        if len(request.messages) != SEED_SIZE * len(places):
            raise PeerRefusalError(PeerProblem.MALFORMED)
        verdicts = np.frombuffer(row.verdicts, dtype=np.uint8).copy()
        if (places < 0).any() or (verdicts[places] != ReportVerdict.VERIFIED).any():
            raise PeerRefusalError(PeerProblem.MALFORMED)
        seeds = np.frombuffer(kept_seeds(self._store, window, row), dtype=np.uint8).reshape(-1, SEED_SIZE)
        holds = holding(matching(seeds[places].tobytes(), request.messages))
        verdicts[verdicts == ReportVerdict.VERIFIED] = ReportVerdict.DROPPED
        verdicts[places[holds]] = ReportVerdict.ACCEPTED
        verdicts[(verdicts == ReportVerdict.ACCEPTED) & denied] = ReportVerdict.DROPPED
        return verdicts.tobytes()

    def forget(self, window_id: WindowId) -> None:
        """Free the memory of a window whose set is sealed."""
        self._owners.pop(window_id, None)


def _with(verdicts: bytes, verdict: ReportVerdict) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = np.frombuffer(verdicts, dtype=np.uint8) == verdict
    return mask

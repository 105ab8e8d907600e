"""The batches of a leader: the reports of a closed window are verified batch by batch, several batches at once.

Batches follow from the closed log alone, and a batch is stored once it is decided, so that after a crash the leader
continues with the same batches. Memory does not grow with the window. It must not decide about the set (`report_set`).
"""

import asyncio
from collections.abc import Iterator
from typing import Final

import numpy as np
from fleetcount_protocol.errors import PeerProblem, RejectReason
from fleetcount_protocol.messages import BatchProposal, FinishBatch
from numpy.typing import NDArray

from fleetcount_aggregator.agreement.rules import (
    batch_size,
    count_reasons,
    holding,
    picked,
    positions_of_batch,
    survivors,
)
from fleetcount_aggregator.agreement.verification import Verification, matching, seal_kept
from fleetcount_aggregator.durable_steps import Entry, Step, once
from fleetcount_aggregator.memory.installed import InstalledWindow
from fleetcount_aggregator.memory.peers import Helpers
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.storage.log_slice import CompleteReports
from fleetcount_aggregator.storage.report_ids import ReportIds
from fleetcount_aggregator.storage.row_types import BatchRow, ReportVerdict
from fleetcount_aggregator.storage.store import every_batch
from fleetcount_aggregator.verification.share_arithmetic import VerifiedReports, combine_shares
from fleetcount_aggregator.verification.workers import Workers

_IN_FLIGHT: Final = 8
"""Batches under way at once: this leader verifies one while the helpers verify others."""


class BatchRounds:
    """Runs the batches of windows that this aggregator leads."""

    def __init__(self, windows: Windows, workers: Workers, verification: Verification, helpers: Helpers) -> None:
        self._windows = windows
        self._store = windows.store
        self._failpoints = windows.host.failpoints
        self._workers = workers
        self._verification = verification
        self._helpers = helpers

    async def run(self, window: InstalledWindow) -> None:
        """Decide every batch of a window whose intake is closed.

        Raises:
            PeerRefusalError: MALFORMED, a helper's reply does not answer its proposal.
        """
        reports = await self._store.complete_reports(window.window_id)
        size = await self._size(window)
        decided = {row.number async for row in every_batch(self._store, window.window_id)}
        open_numbers = iter([one for one in range(-(-len(reports.ids) // size)) if one not in decided])
        lanes = [asyncio.ensure_future(self._lane(window, reports, size, open_numbers)) for _ in range(_IN_FLIGHT)]
        try:
            await asyncio.gather(*lanes)
        finally:
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)

    async def _size(self, window: InstalledWindow) -> int:
        """Return the size of this window's batches, fixed with the first one."""
        size = batch_size(window.prio3.verifier_share_size)
        return int(await once(self._windows, window.window_id, Step.BATCHES, b"", Entry(answer=str(size).encode())))

    async def _lane(self, window: InstalledWindow, reports: CompleteReports, size: int, numbers: Iterator[int]) -> None:
        """Run one batch after the other; the lanes share the numbers."""
        for number in numbers:
            await self._run_batch(window, reports, number, positions_of_batch(reports.ids, number, size))
            self._failpoints.hit("leader.after_batch")

    async def _run_batch(
        self, window: InstalledWindow, reports: CompleteReports, number: int, positions: NDArray[np.int64]
    ) -> None:
        """Do verification, proposal, combination, finish and the final decision of one batch."""
        verified = await self._verification.verify(window, reports, positions)
        reasons = np.frombuffer(verified.reasons, dtype=np.uint8).copy()
        proposed = reasons == 0
        if proposed.any():
            ids = reports.ids.at(positions[proposed])
            reasons[proposed] = await self._agree(window, reports, number, ids, _only(verified, proposed))
        await self._decide(window, number, positions, verified, reasons.tobytes())

    async def _agree(
        self, window: InstalledWindow, reports: CompleteReports, number: int, ids: bytes, own: VerifiedReports
    ) -> NDArray[np.uint8]:
        """Return the reason of each dropped report, 0 for one that every aggregator accepts: uint8, final."""
        proposal = BatchProposal(
            window_id=window.window_id,
            batch=number,
            report_ids=ids,
            share_digests=own.share_digests,
            verifier_shares=own.verifier_shares,
        )
        replies = await self._helpers.ask_all(window, lambda peer: peer.propose_batch(proposal), counted=False)
        self._failpoints.hit("leader.after_proposals")
        found = survivors(proposal, replies, window.prio3.verifier_share_size)
        if found is None:
            raise PeerRefusalError(PeerProblem.MALFORMED)
        reasons = np.frombuffer(found.reasons, dtype=np.uint8).copy()
        remaining = found.remaining
        shares = (picked(own.verifier_shares, remaining), *found.shares)
        messages, holds = await self._workers.run(combine_shares, self._verification.setting(window, reports), shares)
        self._failpoints.hit("leader.after_combine")
        held = holding(holds)
        accepted = await self._finish(
            window,
            FinishBatch(
                window_id=window.window_id,
                batch=number,
                report_ids=picked(picked(ids, remaining), held),
                messages=picked(messages, held),
            ),
            picked(picked(own.seeds, remaining), held),
        )
        fits = np.zeros(len(held), dtype=np.bool_)
        fits[held] = accepted
        reasons[remaining] = np.where(fits, 0, RejectReason.INVALID_PROOF.value)
        return reasons

    async def _finish(self, window: InstalledWindow, request: FinishBatch, seeds: bytes) -> NDArray[np.bool_]:
        """Return which finished reports all aggregators accept."""
        decisions = await self._helpers.ask_all(window, lambda peer: peer.finish_batch(request), counted=False)
        accepted = holding(matching(seeds, request.messages))
        for decision in decisions:
            accepted = accepted & (ReportIds(decision.accepted).find(request.report_ids) >= 0)
        self._failpoints.hit("leader.after_finish")
        return accepted

    async def _decide(
        self,
        window: InstalledWindow,
        number: int,
        positions: NDArray[np.int64],
        verified: VerifiedReports,
        reasons: bytes,
    ) -> None:
        """Store the verdicts of a batch, with the sum of its verified reports."""
        out = holding(reasons)
        unverified = holding(verified.reasons)
        verdicts = np.where(
            unverified, ReportVerdict.REFUSED, np.where(out, ReportVerdict.DROPPED, ReportVerdict.ACCEPTED)
        )
        row = BatchRow(
            number=number,
            positions=positions,
            verdicts=verdicts.astype(np.uint8).tobytes(),
            share_digests=verified.share_digests,
            kept=seal_kept(self._store, window, number, verified.output_sum),
        )
        entry = Entry(batch=row, rejections=count_reasons(reasons))
        await once(self._windows, window.window_id, Step.BATCH, b"", entry, batch=number)


def _only(verified: VerifiedReports, mask: NDArray[np.bool_]) -> VerifiedReports:
    """Return the columns of some reports; the sum stays that of all verified ones."""
    return VerifiedReports(
        reasons=picked(verified.reasons, mask),
        seeds=picked(verified.seeds, mask),
        verifier_shares=picked(verified.verifier_shares, mask),
        share_digests=picked(verified.share_digests, mask),
        output_sum=verified.output_sum,
        damaged=(),
    )

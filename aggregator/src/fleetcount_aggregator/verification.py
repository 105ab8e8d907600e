"""Verifies complete reports as they arrive, each once a task, in the workers; the result is stored sealed.

No report enters a sum unless it passed here and then its whole proof held (agreement). Never combines or decides alone.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.ids import ReportId, TaskId
from fleetcount_protocol.set_digest import public_share_digest
from fleetcount_protocol.verifier import RejectedProof, ReportToVerify, Verified

from fleetcount_aggregator.installed import InstalledTask
from fleetcount_aggregator.party import UNFINISHED, Party
from fleetcount_aggregator.store import CompleteReport, ReportStatus, StoreError, TaskChange, Verdict
from fleetcount_aggregator.workers import verify_reports

__all__ = ["Verification", "VerifiedReport", "open_verification", "part_place"]

BATCH: Final = 64
"""Reports handed to the workers at once."""
_LENGTH_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedReport:
    """The stored result of `verify_init`: what this aggregator keeps and what it shows the leader."""

    state: bytes = field(repr=False)
    verifier_share: bytes = field(repr=False)


def part_place(task_id: TaskId, report_id: ReportId, round_number: int) -> tuple[bytes, ...]:
    """Return the place in the store of a share part, for sealing at rest."""
    return (b"part", task_id, report_id, bytes((round_number,)))


def _verification_place(task_id: TaskId, report_id: ReportId) -> tuple[bytes, ...]:
    return (b"verified", task_id, report_id)


def open_verification(party: Party, task_id: TaskId, report_id: ReportId, sealed: bytes) -> VerifiedReport:
    """Return a stored verification result.

    Raises:
        StoreError: it is damaged.
    """
    blob = party.at_rest.open(sealed, *_verification_place(task_id, report_id))
    split = _LENGTH_BYTES + int.from_bytes(blob[:_LENGTH_BYTES])
    return VerifiedReport(state=blob[_LENGTH_BYTES:split], verifier_share=blob[split:])


class Verification:
    """Runs `verify_init` over a task's complete reports, a batch at a time, one batch of a task at once."""

    def __init__(self, party: Party) -> None:
        self._party = party
        self._locks: dict[TaskId, asyncio.Lock] = {}

    async def verify_all(self, task: InstalledTask) -> None:
        """Verify until no complete report is left."""
        while await self.verify_some(task):
            pass

    async def verify_some(self, task: InstalledTask) -> bool:
        """Verify up to one batch; return whether there was any."""
        async with self._locks.setdefault(task.task_id, asyncio.Lock()):
            reports = await self._party.store.complete_reports(task.task_id, BATCH)
            if not reports:
                return False
            opened = [self._open(task, report) for report in reports]
            answers = await self._party.workers.run(
                verify_reports, task.setting, [report for report in opened if report is not None]
            )
            remaining = iter(answers)
            verdicts = tuple(
                self._verdict(task, report, None if ready is None else next(remaining))
                for report, ready in zip(reports, opened, strict=True)
            )
            self._party.failpoints.hit("verification.before_store")
            await self._party.apply(TaskChange(task_id=task.task_id, required=UNFINISHED, verdicts=verdicts))
            return True

    def _open(self, task: InstalledTask, report: CompleteReport) -> ReportToVerify | None:
        """Return the joined input share, or None if what lies in the store is damaged: such a report is out."""
        try:
            parts = [self._open_part(task, report, index) for index in range(len(report.instalments))]
        except (StoreError, DecodeError):
            return None
        return ReportToVerify(
            nonce=report.report_id, public_share=report.instalments[-1].public_share, input_share=b"".join(parts)
        )

    def _open_part(self, task: InstalledTask, report: CompleteReport, index: int) -> bytes:
        stored = report.instalments[index]
        return self._party.at_rest.open(stored.ciphertext, *part_place(task.task_id, report.report_id, stored.round))

    def _verdict(self, task: InstalledTask, report: CompleteReport, answer: Verified | RejectedProof | None) -> Verdict:
        if not isinstance(answer, Verified):
            return Verdict(
                report_id=report.report_id,
                status=ReportStatus.REFUSED,
                reason=RejectReason.MALFORMED if answer is None else answer.reason,
            )
        blob = len(answer.state).to_bytes(_LENGTH_BYTES) + answer.state + answer.verifier_share
        return Verdict(
            report_id=report.report_id,
            status=ReportStatus.VERIFIED,
            public_share_digest=public_share_digest(report.instalments[-1].public_share),
            verification=self._party.at_rest.seal(blob, *_verification_place(task.task_id, report.report_id)),
        )

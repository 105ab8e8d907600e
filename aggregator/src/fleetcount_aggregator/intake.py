"""Takes instalments: checks them, opens their seal, stores them, and gives a receipt after the commit, never before.

The same bytes get the same receipt at any time. A refusal is a counted value with a reason; only a broken store is an
error.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from fleetcount_protocol.errors import RejectReason, SealError
from fleetcount_protocol.ids import TaskId
from fleetcount_protocol.messages import Instalment, Receipt, Refusal, SessionAccepted, SessionRefused, SessionRequest
from fleetcount_protocol.receipts import receipt_for
from fleetcount_protocol.session import open_instalment

from fleetcount_aggregator.installed import InstalledTask
from fleetcount_aggregator.intake_rules import LATE, OUTCOME_REASONS, check_instalment
from fleetcount_aggregator.party import Party
from fleetcount_aggregator.sessions import LiveSession, Sessions
from fleetcount_aggregator.store import InstalmentRow, Outcome, StoreBusyError
from fleetcount_aggregator.verification import part_place

__all__ = ["Intake"]


@dataclass(slots=True)
class _Arrival:
    """One instalment on its way: refused, stored already, or a row to store."""

    instalment: Instalment
    session: LiveSession | None = None
    reason: RejectReason | None = None
    row: InstalmentRow | None = None


class Intake:
    """The intake of one aggregator, the same for every transport."""

    def __init__(self, party: Party) -> None:
        self._party = party
        self._sessions = Sessions(party)

    async def open_sessions(self, requests: Sequence[SessionRequest]) -> list[SessionAccepted | SessionRefused]:
        """Open sessions; one answer a request, in order, after all are durable.

        Devices go side by side, so that they share commits; one device's requests in turn, so that its quota holds.
        """
        by_device: dict[bytes, list[int]] = {}
        for index, request in enumerate(requests):
            by_device.setdefault(request.certificate, []).append(index)

        async def of_one_device(indices: Sequence[int]) -> list[tuple[int, SessionAccepted | SessionRefused]]:
            return [(index, await self._sessions.open(requests[index])) for index in indices]

        answered = await asyncio.gather(*(of_one_device(indices) for indices in by_device.values()))
        return [reply for _, reply in sorted((pair for pairs in answered for pair in pairs), key=itemgetter(0))]

    async def upload(self, instalments: Sequence[Instalment]) -> list[Receipt | Refusal]:
        """Take a batch; one answer an instalment, in order, after the commit.

        Raises:
            StoreError: nothing of the batch was promised; the device sends it again.
        """
        arrivals = [await self._examine(instalment) for instalment in instalments]
        self._party.failpoints.hit("intake.before_commit")
        await self._store(arrivals)
        self._party.failpoints.hit("intake.after_commit")
        await self._count(arrivals)
        return [_answer(arrival) for arrival in arrivals]

    async def _examine(self, instalment: Instalment) -> _Arrival:
        """Decide about one instalment up to the store's own constraints."""
        arrival = _Arrival(instalment)
        task = self._party.tasks.get(instalment.task_id)
        if task is None:
            arrival.reason = RejectReason.UNKNOWN_TASK
            return arrival
        state = self._party.states[instalment.task_id]
        arrival.reason = check_instalment(task, state, instalment, self._party.clock.now())
        if arrival.reason in LATE and await self._is_stored(instalment):
            arrival.reason = None
        elif arrival.reason is not None:
            return arrival
        arrival.session = await self._sessions.find(instalment.session_id)
        if arrival.session is None:
            arrival.reason = RejectReason.UNKNOWN_SESSION
        else:
            self._unseal(task, arrival, arrival.session)
        return arrival

    async def _is_stored(self, instalment: Instalment) -> bool:
        digest = await self._party.store.instalment_digest(instalment.task_id, instalment.report_id, instalment.round)
        return digest == instalment.digest

    def _unseal(self, task: InstalledTask, arrival: _Arrival, session: LiveSession) -> None:
        """Open the device's seal, so that a bad one is refused at once, and seal the part again for the store."""
        instalment = arrival.instalment
        try:
            part = open_instalment(session.secret, task.position, instalment)
        except SealError:
            arrival.reason = RejectReason.BAD_SEAL
            return
        place = part_place(instalment.task_id, instalment.report_id, instalment.round)
        arrival.row = InstalmentRow(
            task_id=instalment.task_id,
            report_id=instalment.report_id,
            round=instalment.round,
            session_id=instalment.session_id,
            certificate=session.certificate,
            digest=instalment.digest,
            public_share=instalment.public_share,
            ciphertext=self._party.at_rest.seal(part, *place),
            expected=len(task.windows),
        )

    async def _store(self, arrivals: Sequence[_Arrival]) -> None:
        rows = [arrival.row for arrival in arrivals if arrival.row is not None]
        if not rows:
            return
        try:
            outcomes = iter(await self._party.store.add_instalments(rows))
        except StoreBusyError:
            for arrival in arrivals:
                if arrival.row is not None:
                    arrival.reason = RejectReason.BUSY
            return
        for arrival in arrivals:
            if arrival.row is not None:
                arrival.reason = _reason_of(next(outcomes))

    async def _count(self, arrivals: Sequence[_Arrival]) -> None:
        """Count refusals by task and reason; of unknown tasks only in the metrics, so that nobody fills the disk."""
        counts: dict[TaskId, Counter[RejectReason]] = {}
        for arrival in arrivals:
            if arrival.reason is None:
                continue
            self._party.metrics.refused(arrival.reason)
            if arrival.instalment.task_id in self._party.tasks:
                counts.setdefault(arrival.instalment.task_id, Counter())[arrival.reason] += 1
        for task_id, reasons in counts.items():
            await self._party.store.count_rejections(task_id, reasons)


def _reason_of(outcome: Outcome) -> RejectReason | None:
    return OUTCOME_REASONS.get(outcome)


def _answer(arrival: _Arrival) -> Receipt | Refusal:
    instalment = arrival.instalment
    if arrival.reason is None and arrival.session is not None:
        return receipt_for(arrival.session.secret, instalment, instalment.digest)
    return Refusal(
        task_id=instalment.task_id,
        report_id=instalment.report_id,
        round=instalment.round,
        session_id=instalment.session_id,
        reason=arrival.reason or RejectReason.BUSY,
    )

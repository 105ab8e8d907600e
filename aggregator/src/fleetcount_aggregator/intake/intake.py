"""Takes instalments: checks them, opens their seal, stores them, and gives a receipt after the commit, never before.

The same bytes get the same receipt at any time. A refusal is a counted value with a reason; only a broken store is an
error. Works on columns: what holds for one shape of instalments is decided once.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, compress, repeat
from typing import Final

from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import ReportId, WindowId, owns
from fleetcount_protocol.messages import Instalment, Receipt, Refusal, SessionAccepted, SessionRefused, SessionRequest
from fleetcount_protocol.wire.device_columns import InstalmentColumns, InstalmentReplyColumns
from fleetcount_protocol.wire.device_unsealing import (
    SessionKeys,
    UnsealedColumns,
    digest_columns,
    receipt_columns,
    unseal_columns,
)
from fleetcount_transport.admission.identity import Identity
from fleetcount_transport.logs import log

from fleetcount_aggregator.intake.intake_rules import LATE, OUTCOME_REASONS, RECEIPTED, check_shape
from fleetcount_aggregator.intake.sessions import Sessions
from fleetcount_aggregator.memory.installed import InstalledWindow
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.storage.errors import DamagedError, StoreAwayError, StoreBusyError, StoreError
from fleetcount_aggregator.storage.instalment_run import InstalmentRun, StoreOutcome
from fleetcount_aggregator.storage.rows import count_rejections
from fleetcount_aggregator.storage.session_chains import PackedSession
from fleetcount_aggregator.verification.spare_workers import SpareWorkers
from fleetcount_aggregator.verification.workers import Workers

WORTH_A_PROCESS: Final = 128
"""Instalments from which the way to a worker and back (0.2 ms of CPU here) costs less than a quarter of opening them
(6 to 8 us each)."""
_SESSION_PATIENCE_S: Final = 0.1
"""How long requests for sessions wait for a worker: to judge as many as go there at once takes some 5 ms here."""


@dataclass(slots=True)
class _Arrivals:
    """Instalments of one shape on their way: refused for a reason, or to be stored, with a receipt to give.

    All lists go by the instalments' places; a receipt leaves only where the reason is None in the end.
    """

    columns: InstalmentColumns
    reasons: list[RejectReason | None]
    digests: list[bytes] = field(default_factory=list[bytes])
    macs: list[bytes] = field(default_factory=list[bytes], repr=False)
    run: InstalmentRun | None = None
    """What is not refused, to be stored."""

    @classmethod
    def of(cls, columns: InstalmentColumns) -> "_Arrivals":
        count = len(columns)
        return cls(columns, [None] * count, [b""] * count, [b""] * count)

    @property
    def open_places(self) -> list[int]:
        """Where nothing was refused so far."""
        return [place for place, reason in enumerate(self.reasons) if reason is None]

    def take(self, places: Sequence[int], opened: UnsealedColumns) -> None:
        """Take what the instalments at these places held; a seal that did not open is refused."""
        if len(places) == len(self.columns):
            self.digests, self.macs = list(opened.digests), list(opened.macs)
        else:
            for place, digest, mac in zip(places, opened.digests, opened.macs, strict=True):
                self.digests[place], self.macs[place] = digest, mac
        if None in opened.parts:
            for place, part in zip(places, opened.parts, strict=True):
                self.reasons[place] = RejectReason.BAD_SEAL if part is None else None

    def take_outcomes(self, outcomes: bytes) -> None:
        """Take what became of the instalments of the run."""
        if not outcomes.translate(None, RECEIPTED):
            return
        for place, outcome in zip(self.open_places, outcomes, strict=True):
            self.reasons[place] = OUTCOME_REASONS.get(StoreOutcome(outcome))

    def refuse(self, reason: RejectReason) -> None:
        """Refuse every instalment that is not refused yet."""
        self.reasons = [reason if known is None else known for known in self.reasons]

    def answers(self) -> InstalmentReplyColumns:
        receipted = [reason is None for reason in self.reasons]
        return InstalmentReplyColumns.answering(
            self.columns,
            bytes(0 if reason is None else reason.value for reason in self.reasons),
            b"".join(compress(self.digests, receipted)),
            b"".join(compress(self.macs, receipted)),
        )


class Intake:
    """The intake of one aggregator, the same for every transport."""

    def __init__(self, windows: Windows, workers: Workers) -> None:
        self._windows = windows
        self._host = windows.host
        self._store = windows.store
        self._workers = SpareWorkers(workers)
        session_workers = SpareWorkers(workers, patience_s=_SESSION_PATIENCE_S)
        self._sessions = Sessions(windows.host, windows.store, windows.sessions, session_workers)

    async def open_sessions(
        self, requests: Sequence[SessionRequest], callers: Sequence[Identity] | None = None
    ) -> list[SessionAccepted | SessionRefused]:
        """Open sessions, each for its caller; one answer a request, in order, after all are durable."""
        return await self._sessions.open(requests, callers)

    async def upload(self, instalments: Sequence[Instalment]) -> list[Receipt | Refusal]:
        """Take instalments one by one; one answer each, in order (see `take`)."""
        answered = await self.take(InstalmentColumns.of(instalments))
        return [reply for columns in answered for reply in columns.replies()]

    async def take(self, batch: Sequence[InstalmentColumns]) -> list[InstalmentReplyColumns]:
        """Take a batch; one answer an instalment, in order, after the commit.

        Raises:
            StoreError: nothing of the batch was promised; the device sends it again.
        """
        arrivals = [await self._examine(columns) for columns in batch]
        self._host.failpoints.hit("intake.before_commit")
        await self._keep(arrivals)
        self._host.failpoints.hit("intake.after_commit")
        await self._count(arrivals)
        return [one.answers() for one in arrivals]

    def refuse_busy(self, batch: Sequence[InstalmentColumns]) -> list[InstalmentReplyColumns]:
        """Refuse a batch unread and without waiting for the disk, since there is no room for it."""
        self._host.metrics.refused(RejectReason.BUSY)
        return [InstalmentReplyColumns.refused(columns, RejectReason.BUSY) for columns in batch]

    async def _examine(self, columns: InstalmentColumns) -> _Arrivals:
        """Decide about instalments of one shape up to the store's own constraints."""
        arrivals = _Arrivals.of(columns)
        try:
            window = await self._windows.find(columns.window_id)
        except DamagedError:
            arrivals.refuse(RejectReason.BUSY)  # Its device keeps the report; the window may be repaired.
            return arrivals
        if window is None:
            arrivals.refuse(RejectReason.UNKNOWN_WINDOW)
            return arrivals
        state = self._windows.states[columns.window_id]
        moment = self._host.moment(window.others)
        reason = check_shape(window, state, columns, moment, self._windows.leeway_s(window))
        if self._host.denials.is_stale(self._host.now()):
            reason = RejectReason.BUSY  # Nobody is served until there is a list again.
        if reason in LATE:
            arrivals.reasons = await self._unless_stored(columns, reason)
        elif reason is not None:
            arrivals.refuse(reason)
        await self._unseal(window, arrivals, stored=reason in LATE)
        return arrivals

    async def _unless_stored(self, columns: InstalmentColumns, reason: RejectReason) -> list[RejectReason | None]:
        """Return the reason for each, None where these very bytes are stored, "busy" where that cannot be looked up.

        Raises:
            StoreAwayError: nothing can be looked up at all.
        """
        try:
            report_ids = list(map(ReportId, columns.report_ids))
            stored = await self._store.instalment_digests(columns.window_id, report_ids, columns.round)
        except StoreAwayError:
            raise
        except StoreError as error:
            # What is damaged stays so: as an error it would hold up all that came with it, and the
            # broker would deliver that again and again.
            self._note(error)
            return [RejectReason.BUSY] * len(columns)
        found = zip(stored, digest_columns(columns), strict=True)
        return [None if held == digest else reason for held, digest in found]

    def _note(self, error: StoreError) -> None:
        """Count and log what the store could not do for some devices, who hear "busy"."""
        if not isinstance(error, StoreBusyError):
            self._host.metrics.store_failed()
            log.error("store_failed", reason=str(error))

    async def _unseal(self, window: InstalledWindow, arrivals: _Arrivals, *, stored: bool) -> None:
        """Open the devices' seals, so that a bad one is refused at once; what is `stored` gets its receipt unopened."""
        places = arrivals.open_places
        columns = arrivals.columns.only(places)
        found = await self._sessions.find(columns.session_ids)
        keys = _keys_of(found, columns.key_numbers, stored=stored)
        if None in keys:
            for place, key in zip(places, keys, strict=True):
                arrivals.reasons[place] = RejectReason.UNKNOWN_SESSION if key is None else None
            places = arrivals.open_places
            found = [session for session, key in zip(found, keys, strict=True) if key is not None]
            columns = arrivals.columns.only(places)
        sessions = [session for session in found if session is not None]
        window_keys = [key for key in keys if key is not None]
        devices = (session.certificate_bytes for session in sessions)
        own = list(map(owns, repeat(columns.window_id), devices, columns.report_ids))
        if not all(own):
            for place, is_own in zip(places, own, strict=True):
                arrivals.reasons[place] = None if is_own else RejectReason.MALFORMED
            places = arrivals.open_places
            sessions, window_keys = list(compress(sessions, own)), list(compress(window_keys, own))
            columns = arrivals.columns.only(places)
        if not sessions:
            return
        receipt_keys = [session.receipt_key for session in sessions]
        if stored:
            arrivals.take(places, receipt_columns(receipt_keys, columns))
            return
        opened = await unseal_somewhere(
            self._workers, SessionKeys(window_keys=window_keys, receipt_keys=receipt_keys), window.position, columns
        )
        arrivals.take(places, opened)
        arrivals.run = _run_of(columns, sessions, opened, len(window.rounds))

    async def _keep(self, arrivals: Sequence[_Arrivals]) -> None:
        waiting = [(one, one.run) for one in arrivals if one.run is not None]
        if not waiting:
            return
        try:
            outcomes = await self._store.add_instalments([run for _, run in waiting])
        except StoreBusyError:
            for one in arrivals:
                one.refuse(RejectReason.BUSY)
            return
        except DamagedError as error:
            found = [one for one, run in waiting if run.window_id == error.damage.window_id]
            if not found:
                raise
            self._note(error)
            for one in found:
                one.refuse(RejectReason.BUSY)
                one.run = None
            await self._keep(arrivals)  # The others; what is stored of them already is the same a second time.
            return
        for (one, _), run_outcomes in zip(waiting, outcomes, strict=True):
            one.take_outcomes(run_outcomes)

    async def _count(self, arrivals: Sequence[_Arrivals]) -> None:
        """Count refusals by window and reason; those of unknown windows and "busy" ones in the metrics only.

        Otherwise anybody could fill the disk with unknown windows; after "busy" the same bytes come again.
        """
        counts: dict[WindowId, Counter[RejectReason]] = {}
        for one in arrivals:
            refused = Counter(reason for reason in one.reasons if reason is not None)
            for reason in refused:
                self._host.metrics.refused(reason)
            del refused[RejectReason.BUSY]
            if refused and one.columns.window_id in self._windows.states:
                counts.setdefault(one.columns.window_id, Counter()).update(refused)
        for window_id, reasons in counts.items():
            await self._windows.store.write_unfenced(count_rejections, window_id, reasons)


def _keys_of(sessions: Sequence[PackedSession | None], numbers: Sequence[bytes], *, stored: bool) -> list[bytes | None]:
    """Return the window key of every instalment, None where its session or number has none; nothing of what is
    stored.
    """
    if stored:
        return [None if session is None else b"" for session in sessions]
    rows = zip(sessions, numbers, strict=True)
    return [None if session is None else session.window_key(number) for session, number in rows]


def _run_of(
    columns: InstalmentColumns, sessions: Sequence[PackedSession], opened: UnsealedColumns, expected: int
) -> InstalmentRun | None:
    """Return the instalments that opened, in order, as they are stored; None if none did."""
    certificates, digests, parts = [session.certificate_bytes for session in sessions], opened.digests, opened.parts
    if None in parts:
        places = [place for place, part in enumerate(parts) if part is not None]
        if not places:
            return None
        columns = columns.only(places)
        certificates = [certificates[place] for place in places]
        digests, parts = [digests[place] for place in places], [parts[place] for place in places]
    return InstalmentRun(
        window_id=columns.window_id,
        round=columns.round,
        expected=expected,
        report_ids=b"".join(columns.report_ids),
        certificates=b"".join(certificates),
        digests=b"".join(digests),
        public_shares=b"".join(columns.public_shares),
        parts=b"".join(part for part in parts if part is not None),
        key_uses=b"".join(chain.from_iterable(zip(columns.session_ids, columns.key_numbers, strict=True))),
    )


async def unseal_somewhere(
    workers: SpareWorkers, keys: SessionKeys, position: int, columns: InstalmentColumns
) -> UnsealedColumns:
    """Return what `unseal_columns` returns: of a few at once on the event loop, of many by a worker process."""
    if len(columns) < WORTH_A_PROCESS:
        return unseal_columns(keys, position, columns)
    return await workers.run(unseal_columns, keys, position, columns)

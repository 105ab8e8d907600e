"""The release of a window at one aggregator: noise drawn once, commit before open, a signature only after
recomputation.

Noised share and ledger debit are stored in one transaction; every later request gets the stored bytes. The sum without
noise exists only inside `_draw`.
"""

import hashlib
from functools import partial
from typing import Final

from fleetcount_protocol.errors import DecodeError, PeerProblem, SignatureError, UsageError, VerificationFailed
from fleetcount_protocol.ids import Digest, WindowId
from fleetcount_protocol.limits import COMMITMENT_BLIND_BYTES
from fleetcount_protocol.messages import (
    Commitment,
    FinishedRecord,
    NoisedShare,
    OpenQuery,
    RecordProposal,
    RecordSignature,
    ReleaseAnswer,
    WindowState,
)
from fleetcount_protocol.release.chain import ChainLink
from fleetcount_protocol.release.commitments import (
    check_commitment,
    check_range,
    commit_to,
    noise_bound,
    open_noised_shares,
)
from fleetcount_protocol.release.record import ReleaseRecord, decode_record, sign_record, verify_record_signatures
from fleetcount_protocol.window.window import opened_count, opened_noise, opened_ranges
from fleetcount_transport.logs import log

from fleetcount_aggregator.agreement.report_set import close_intake, sealed_digest
from fleetcount_aggregator.agreement.rules import commitments_digest
from fleetcount_aggregator.durable_steps import Entry, Step, finished_bytes, once, record_here, released_here, taken
from fleetcount_aggregator.memory.installed import InstalledWindow
from fleetcount_aggregator.memory.questions import Questions, decided_window
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.release.chain import chain_link, check_link
from fleetcount_aggregator.release.noise import noised_share, set_sum
from fleetcount_aggregator.release.record import (
    ReleasedNumbers,
    WindowTerms,
    largest_posterior,
    record_bytes,
    release_time,
    same_record,
)
from fleetcount_aggregator.storage.question_rows import read_decided_of
from fleetcount_aggregator.storage.rows import read_included, read_window
from fleetcount_aggregator.verification.workers import Workers
from fleetcount_aggregator.windows.budget import debit_row

_CLOCK_LEEWAY_S: Final = 300
"""Seconds by which a record's time may be ahead of this aggregator's clock."""


class ReleaseSteps:
    """The release steps of a window, the same at leader and helper."""

    def __init__(self, windows: Windows, questions: Questions, workers: Workers) -> None:
        self._windows = windows
        self._questions = questions
        self._workers = workers
        self._host = windows.host
        self._store = windows.store

    # Commit.

    async def commit(self, window: InstalledWindow, digest: Digest) -> Commitment:
        """Return the commitment to this aggregator's noised share of the sealed set, which is drawn at the first call.

        Raises:
            PeerRefusalError: CONFLICT, the set is not the one sealed here; NOT_YET, no set is sealed here.
            StateConflictError: the window is not releasing.
        """
        await self._check_digest(window.window_id, digest)
        share = await self._noised_share(window, digest)
        self._host.failpoints.hit("release.after_draw_store")
        return commit_to(share)

    async def _check_digest(self, window_id: WindowId, digest: Digest) -> None:
        sealed = await sealed_digest(self._store, window_id)
        if sealed is None:
            raise PeerRefusalError(PeerProblem.NOT_YET)
        if sealed != digest:
            raise PeerRefusalError(PeerProblem.CONFLICT)

    async def _noised_share(self, window: InstalledWindow, digest: Digest) -> NoisedShare:
        # Subtracting many reports from the sum may last longer than a call, which the leader then repeats.
        sealed = await once(self._windows, window.window_id, Step.COMMIT, digest, lambda: self._draw(window))
        opened = self._store.data_keys.of(window.window_id).open(sealed, b"noised share", window.window_id)
        return NoisedShare(
            window_id=window.window_id,
            aggregator_id=self._host.aggregator_id,
            set_digest=digest,
            vector=opened[COMMITMENT_BLIND_BYTES:],
            blind=opened[:COMMITMENT_BLIND_BYTES],
        )

    async def _draw(self, window: InstalledWindow) -> Entry:
        """Add up this aggregator's output shares and its noise; the entry is stored before any party sees it."""
        total = await set_sum(self._store, self._workers, window)
        if opened_count(window.asked) > len(total):
            # The number of participants is one more sum: the leader's share is the whole number, a helper's is 0.
            total.append(await self._count(window) if window.is_leader else 0)
        noise = [one for law, count in opened_noise(window.asked) for one in self._host.noise.draw(law, count)]
        # Without the random blind, a commitment could be opened by trying the likely sums.
        blind = self._host.source.random_bytes(COMMITMENT_BLIND_BYTES)
        data_key = self._store.data_keys.of(window.window_id)
        sealed = data_key.seal(blind + noised_share(total, noise), b"noised share", window.window_id)
        self._host.failpoints.hit("release.after_draw")
        return Entry(answer=sealed, debit=debit_row(window.asked, self._host.now()))

    # Open.

    async def open(self, window: InstalledWindow, query: OpenQuery) -> NoisedShare:
        """Return the noised share against the commitments of all; only one list of commitments is ever accepted.

        Raises:
            PeerRefusalError: CONFLICT, another set or another list; DISAGREES, not one commitment per aggregator, or
                another one for this aggregator; NOT_YET, this aggregator has not committed yet.
        """
        await self._check_digest(window.window_id, query.set_digest)
        if await taken(self._store, window.window_id, Step.COMMIT) is None:
            raise PeerRefusalError(PeerProblem.NOT_YET)
        share = await self._noised_share(window, query.set_digest)
        ids = [one.aggregator_id for one in window.asked.aggregators]
        if [one.aggregator_id for one in query.commitments] != ids:
            raise PeerRefusalError(PeerProblem.DISAGREES)
        if any((one.window_id, one.set_digest) != (window.window_id, query.set_digest) for one in query.commitments):
            raise PeerRefusalError(PeerProblem.DISAGREES)
        if query.commitments[window.position] != commit_to(share):
            raise PeerRefusalError(PeerProblem.DISAGREES)
        # The list is durable before the share is sent: after a crash the share cannot be opened against another list.
        listed = Entry(answer=b"".join(one.commitment for one in query.commitments))
        await once(self._windows, window.window_id, Step.OPEN, commitments_digest(query.commitments), listed)
        return share

    # The record.

    async def build(self, window: InstalledWindow, shares: tuple[NoisedShare, ...]) -> bytes:
        """Return the record that follows from the opened shares; the leader calls it.

        Raises:
            PeerRefusalError: DISAGREES, a share does not match its commitment, or a number is out of range.
        """
        signed = await taken(self._store, window.window_id, Step.SIGN)
        if signed is not None:
            return signed.request
        outputs = await self._outputs(window, shares)
        released_at = release_time(window.asked, self._host.now())
        terms = self._terms(window, await chain_link(self._windows, window))
        return await self._workers.run(record_bytes, window.asked.canonical, outputs, released_at, terms)

    async def sign(self, window: InstalledWindow, proposal: RecordProposal) -> RecordSignature:
        """Recompute the record from the opened shares and sign it if both are equal; only one record per window.

        Raises:
            PeerRefusalError: DISAGREES, the record differs; CONFLICT, another record was signed; NOT_YET, this
                aggregator has not opened; POSTERIOR_TOO_LARGE, a posterior is above the operator's `largest_posterior`.
        """
        work = partial(self._sign, window, proposal)
        signature = await once(self._windows, window.window_id, Step.SIGN, proposal.record, work)
        return RecordSignature(window_id=window.window_id, aggregator_id=self._host.aggregator_id, signature=signature)

    async def _sign(self, window: InstalledWindow, proposal: RecordProposal) -> Entry:
        outputs = await self._outputs(window, proposal.shares)
        try:
            record = decode_record(proposal.record)
        except DecodeError:
            raise PeerRefusalError(PeerProblem.MALFORMED) from None
        latest = release_time(window.asked, self._host.now() + _CLOCK_LEEWAY_S)
        if record.window.canonical != window.asked.canonical or record.released_at > latest:
            raise PeerRefusalError(PeerProblem.DISAGREES)
        await check_link(self._windows, window, record.chain)
        terms = self._terms(window, record.chain)
        own = await self._workers.run(record_bytes, window.asked.canonical, outputs, record.released_at, terms)
        if not same_record(decode_record(own), record):
            raise PeerRefusalError(PeerProblem.DISAGREES)
        await self._check_posterior(window, record)
        return Entry(answer=sign_record(record, self._host.identity.signing_key))

    async def _check_posterior(self, window: InstalledWindow, record: ReleaseRecord) -> None:
        """Refuse a record that, alone or with the one before it, gives a posterior above `largest_posterior`.

        It reads noised numbers only, and neither stores nor logs them.

        Raises:
            PeerRefusalError: POSTERIOR_TOO_LARGE; also where the numbers are too large to compute a posterior.
        """
        limit = self._host.limits.largest_posterior
        if limit is None:
            return
        windows = [_numbers(record)]
        previous = await self._previous(record)
        if previous is not None:
            windows.insert(0, _numbers(previous))
        posterior = await self._workers.run(largest_posterior, window.asked.canonical, tuple(windows))
        if posterior > limit:
            log.warning("posterior_too_large", window=str(window.window_id))
            raise PeerRefusalError(PeerProblem.POSTERIOR_TOO_LARGE)

    async def _previous(self, record: ReleaseRecord) -> ReleaseRecord | None:
        """Return the record of the window before, None if it counts other cells as steps of a drill-down do."""
        window, link = record.window.question, record.chain
        if link.previous_index is None:
            return None
        before = await decided_window(self._store, window.question_id, link.previous_index)
        known = None if before.window_id is None else await record_here(self._store, before.window_id)
        previous = None if known is None else decode_record(known)
        return previous if previous is not None and previous.window.domain == record.window.domain else None

    def _terms(self, window: InstalledWindow, chain: ChainLink) -> WindowTerms:
        """Return the terms of a window's record."""
        question = self._questions[window.asked.question.question_id].asked
        return WindowTerms(chain=chain, shape=question.shape, delta=question.delta)

    async def _outputs(self, window: InstalledWindow, shares: tuple[NoisedShare, ...]) -> tuple[int, ...]:
        """Return the opened numbers, after checking every share against its commitment and every number's range."""
        commitments = await self._commitments(window)
        if [share.aggregator_id for share in shares] != [one.aggregator_id for one in commitments]:
            raise PeerRefusalError(PeerProblem.DISAGREES)
        try:
            for made, share in zip(commitments, shares, strict=True):
                check_commitment(made, share)
            outputs = open_noised_shares(shares, opened_count(window.asked))
            reports, start = await self._count(window), 0
            for law, count, each in opened_ranges(window.asked):
                bound = noise_bound(law, len(shares))
                check_range(outputs[start : start + count], bound=bound, reports=reports, each=each)
                start += count
        except (DecodeError, VerificationFailed, UsageError) as error:
            # VerificationFailed names the failed check; the text of another error may contain a number, which is
            # secret.
            why = str(error) if isinstance(error, VerificationFailed) else type(error).__name__
            log.error("shares_not_opened", window=str(window.window_id), reason=why)
            raise PeerRefusalError(PeerProblem.DISAGREES) from None
        return outputs

    async def _commitments(self, window: InstalledWindow) -> list[Commitment]:
        opened = await taken(self._store, window.window_id, Step.OPEN)
        digest = await sealed_digest(self._store, window.window_id)
        if opened is None or digest is None:
            raise PeerRefusalError(PeerProblem.NOT_YET)
        return [
            Commitment(
                window_id=window.window_id,
                aggregator_id=one.aggregator_id,
                set_digest=digest,
                commitment=Digest(opened.answer[32 * index : 32 * index + 32]),
            )
            for index, one in enumerate(window.asked.aggregators)
        ]

    async def _count(self, window: InstalledWindow) -> int:
        return (await self._store.read(read_included, window.window_id) or b"").count(1)

    # The end.

    async def finish(self, window: InstalledWindow, finished: FinishedRecord) -> None:
        """Store the record with all signatures: the window is released here. The same record again changes nothing.

        A record with all signatures is valid, whichever peer sends it. It is adopted also where this store, an older
        copy, does not have the steps before, or where the window was aborted; then the budget is debited now.

        Raises:
            PeerRefusalError: DISAGREES, another window's record, or a signature is missing or does not verify;
                CONFLICT, another record is stored.
        """
        if not self.proves(window, finished.record, finished.signatures):
            raise PeerRefusalError(PeerProblem.DISAGREES)
        await close_intake(self._windows, window.window_id)
        drawn = await taken(self._store, window.window_id, Step.COMMIT) is not None
        debit = None if drawn else debit_row(window.asked, self._host.now())
        entry = Entry(answer=finished_bytes(finished), debit=debit)
        await once(self._windows, window.window_id, Step.RELEASE, hashlib.sha256(finished.record).digest(), entry)

    def proves(self, window: InstalledWindow, record: bytes, signatures: tuple[bytes, ...]) -> bool:
        """Return whether the bytes are a record of this window with the valid signatures of all its aggregators."""
        try:
            read = decode_record(record)
            verify_record_signatures(read, signatures, self._host.identity.trusted)
        except (DecodeError, SignatureError):
            return False
        return read.window.canonical == window.asked.canonical

    async def outcome(self, window_id: WindowId) -> ReleaseAnswer | None:
        """Return a window's state, with its signed record once it is released; None for an unknown window.

        A missing window, which was never opened here, is reported as aborted, with the reason why it is missing.
        """
        row = await self._store.read(read_window, window_id)
        if row is None:
            window = await self._store.read(read_decided_of, window_id)
            missing = "" if window is None else window.missing
            return ReleaseAnswer(state=WindowState.ABORTED, abort_reason=missing) if missing else None
        finished = await released_here(self._store, window_id) if row.state is WindowState.RELEASED else None
        if finished is None:
            return ReleaseAnswer(state=row.state, abort_reason=row.abort_reason)
        return ReleaseAnswer(state=row.state, record=finished.record, signatures=finished.signatures)


def _numbers(record: ReleaseRecord) -> ReleasedNumbers:
    return tuple(cell.raw for cell in record.cells), None if record.participants is None else record.participants.raw

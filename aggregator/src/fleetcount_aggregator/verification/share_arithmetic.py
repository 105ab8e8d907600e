"""The arithmetic on shares that worker processes run: loading and verifying reports, combining, adding up.

Every function takes plain values and gives plain values. Reports are read from the store by the worker itself
(`ReportSource`). Nothing here stores, sends or logs, and nothing here may import what only the aggregator's main
process needs: each worker has its own copy in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

from fleetcount_kernel.proofs import BatchVerifier, ProofBatch, VerifierSetting, setting_of
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.release.commitments import public_share_digest
from fleetcount_protocol.vdaf.field import SEED_SIZE
from fleetcount_protocol.window.window import decode_window

from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.log_slice import ReportSource
from fleetcount_aggregator.verification.choice import Prefer, combine, new_batch_verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofSetting:
    """What the arithmetic of one window at one aggregator needs: its canonical bytes, verify key and share number.

    `prefer` is which implementation, as for `choice.new_batch_verifier`; all give the same bytes.
    """

    window: bytes
    verify_key: bytes = field(repr=False)
    position: int
    prefer: Prefer = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedReports:
    """What verification of n reports gives, in their order; see `proofs.VerifiedBatch`.

    `share_digests` n x 32: of the public shares, zeros for a report that is damaged in the store (its reason is
    MALFORMED); `damaged` are the numbers of those.
    """

    reasons: bytes
    seeds: bytes = field(repr=False)
    verifier_shares: bytes = field(repr=False)
    share_digests: bytes
    output_sum: bytes = field(repr=False)
    damaged: tuple[int, ...]


@lru_cache(maxsize=16)
def _verifier(setting: ProofSetting) -> tuple[VerifierSetting, BatchVerifier]:
    opened = setting_of(decode_window(setting.window), setting.verify_key, setting.position)
    return opened, new_batch_verifier(opened, prefer=setting.prefer)


def verify_reports(setting: ProofSetting, source: ReportSource) -> VerifiedReports:
    """Return this aggregator's verifier share of every report, or why it is out, and the sum of the verified ones."""
    loaded = source.load()
    opened, verifier = _verifier(setting)
    verified = verifier.verify(loaded.batch)
    filler = partial(_filled, damaged=loaded.damaged)
    return VerifiedReports(
        reasons=filler(verified.reasons, 1, bytes((RejectReason.MALFORMED.value,))),
        seeds=filler(verified.seeds, SEED_SIZE, bytes(SEED_SIZE)),
        verifier_shares=filler(
            verified.verifier_shares, opened.prio3.verifier_share_size, bytes(opened.prio3.verifier_share_size)
        ),
        share_digests=filler(_share_digests(loaded.batch), Digest.SIZE, bytes(Digest.SIZE)),
        output_sum=verified.output_sum,
        damaged=loaded.damaged,
    )


def _share_digests(batch: ProofBatch) -> bytes:
    if not batch.count:
        return b""
    size = len(batch.public_shares) // batch.count
    shares = (batch.public_shares[start : start + size] for start in range(0, len(batch.public_shares), size))
    return b"".join(map(public_share_digest, shares))


def _filled(column: bytes, size: int, filling: bytes, *, damaged: Sequence[int]) -> bytes:
    """Return a column with a filling in the places of the damaged reports, which verification did not see."""
    for number in damaged:
        column = column[: number * size] + filling + column[number * size :]
    return column


def combine_shares(setting: ProofSetting, shares: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return verifier messages and whether each proof holds, from all aggregators' shares; see `choice.combine`."""
    opened, _ = _verifier(setting)
    return combine(opened.prio3, opened.ctx, shares, prefer=setting.prefer)


def sum_reports(setting: ProofSetting, source: ReportSource) -> bytes:
    """Return the sum of the opened outputs of reports that were verified before.

    Raises:
        StoreError: one of them is damaged in the store by now.
    """
    loaded = source.load()
    if loaded.damaged:
        raise StoreError(f"{len(loaded.damaged)} reports that were verified do not open any more")
    return _verifier(setting)[1].sum_outputs(loaded.batch)

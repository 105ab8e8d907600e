"""Verification of reports in batches at one aggregator: the scalar verifier, the oracle of every faster one.

A bad report is a value with a reason from the closed list, never an exception; nothing here stores, sends or logs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fleetcount_protocol.errors import DecodeError, RejectReason, UsageError, VerificationFailed
from fleetcount_protocol.vdaf.prio3 import Prio3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportToVerify:
    """One complete report as one aggregator holds it: its nonce (the report id), public share and own input share."""

    nonce: bytes
    public_share: bytes
    input_share: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The first step succeeded: the state to keep (`VerifyState.decode`) and the verifier share to send."""

    state: bytes = field(repr=False)
    verifier_share: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedProof:
    """The report is rejected: MALFORMED if its bytes are not canonical, INVALID_PROOF if the draft aborts."""

    reason: RejectReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarVerifier:
    """The verifier in pure Python, which verifies one report after the other.

    `verify_key` is the window's 32 bytes, `ctx` its context, `aggregator` this party's position (0 is the leader).

    Raises:
        UsageError: a key of the wrong size or a position outside 0..shares-1.
    """

    prio3: Prio3
    verify_key: bytes = field(repr=False)
    ctx: bytes
    aggregator: int

    def __post_init__(self) -> None:
        self.prio3.input_share_size(self.aggregator)
        if len(self.verify_key) != self.prio3.verify_key_size:
            raise UsageError(f"the verify key has {len(self.verify_key)} bytes, not {self.prio3.verify_key_size}")

    def verify_batch(self, reports: Sequence[ReportToVerify]) -> list[Verified | RejectedProof]:
        """Return one answer a report, in their order."""
        return [self._verify(report) for report in reports]

    def _verify(self, report: ReportToVerify) -> Verified | RejectedProof:
        try:
            state, verifier_share = self.prio3.verify_init(
                self.verify_key, self.ctx, self.aggregator, report.nonce, report.public_share, report.input_share
            )
        except DecodeError:
            return RejectedProof(reason=RejectReason.MALFORMED)
        except VerificationFailed:
            return RejectedProof(reason=RejectReason.INVALID_PROOF)
        return Verified(state=state.encode(), verifier_share=verifier_share)

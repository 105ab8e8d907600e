"""Mutated reports have the same end in compiled code and in its scalar twin; `tests.support.fuzz_proofs` runs more."""

import pytest
from fleetcount_kernel import proofs
from fleetcount_kernel.proofs import ProofBatch, ScalarBatchVerifier, VerifiedBatch

from tests.support.fuzz_proofs import Difference, run
from tests.support.nightly import NIGHTLY

# The first test on a machine compiles.
pytestmark = pytest.mark.timeout(600)


def test_mutated_reports_have_the_same_end() -> None:
    reports = 60_000 if NIGHTLY else 1_500

    ends = run(reports, seed=20)

    assert ends.total() == reports
    assert {"accepted", "proof does not hold", "malformed"} <= set(ends)


@pytest.fixture
def forgetful_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted mistake: one implementation overlooks that a word is not canonical."""
    whole = ScalarBatchVerifier.verify

    def verify(self: ScalarBatchVerifier, batch: ProofBatch) -> VerifiedBatch:
        answer = whole(self, batch)
        return VerifiedBatch(
            reasons=answer.reasons.replace(b"\5", b"\0"),
            seeds=answer.seeds,
            verifier_shares=answer.verifier_shares,
            output_sum=answer.output_sum,
        )

    monkeypatch.setattr(proofs.ScalarBatchVerifier, "verify", verify)


@pytest.mark.usefixtures("forgetful_twin")
def test_a_difference_is_found() -> None:
    with pytest.raises(Difference, match="and not"):
        run(2_000, seed=1)

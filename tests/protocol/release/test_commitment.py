"""A noised share opens only as it was committed to; only numbers that honest parties can reach are published."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from fleetcount_mechanisms.noise import GaussianNoise, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_protocol.errors import DecodeError, UsageError, VerificationFailed
from fleetcount_protocol.ids import AggregatorId, Digest, WindowId
from fleetcount_protocol.release.commitments import (
    centred_lift,
    check_commitment,
    check_range,
    commit_to,
    commitment,
    noise_bound,
    open_noised_shares,
)
from fleetcount_protocol.vdaf.field import FIELD64
from hypothesis import given
from hypothesis import strategies as st

from tests.support.protocol_samples import seed_bytes
from tests.support.wire_messages import ALPHA, BETA, SET, WINDOW, share

P = FIELD64.modulus


@pytest.mark.parametrize(
    ("element", "number"),
    [(0, 0), (1, 1), (P - 1, -1), ((P - 1) // 2, (P - 1) // 2), ((P + 1) // 2, -(P - 1) // 2)],
)
def test_lift_is_centred(element: int, number: int) -> None:
    assert centred_lift(element) == number


@given(st.integers(-(P - 1) // 2, (P - 1) // 2))
def test_lift_returns(number: int) -> None:
    assert centred_lift(number % P) == number


@pytest.mark.parametrize("value", [-1, P, 2**64])
def test_lift_refuses_what_is_no_element(value: int) -> None:
    with pytest.raises(UsageError):
        centred_lift(value)


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=5), st.integers(0, P - 1))
def test_shares_open_to_the_numbers_they_share(numbers: list[int], mask: int) -> None:
    first = FIELD64.encode_vector([mask] * len(numbers))
    second = FIELD64.encode_vector([(number - mask) % P for number in numbers])
    shares = [replace(share(ALPHA), vector=first), replace(share(BETA), vector=second)]

    assert list(open_noised_shares(shares, len(numbers))) == numbers


@pytest.mark.parametrize("vector", [b"", bytes(8), bytes(24), P.to_bytes(8, "little") * 2, b"\xff" * 16])
def test_share_of_another_length_or_not_canonical_is_refused(vector: bytes) -> None:
    good = replace(share(BETA), vector=bytes(16))

    with pytest.raises(DecodeError):
        open_noised_shares([good, replace(good, vector=vector)], 2)


def test_commitment_is_met_by_its_own_share_only() -> None:
    made = commit_to(share(ALPHA))

    check_commitment(made, share(ALPHA))
    changes: list[dict[str, Any]] = [
        {"vector": share(ALPHA).vector[:-1] + b"\1"},
        {"vector": share(ALPHA).vector + bytes(8)},
        {"blind": seed_bytes("other")},
        {"window_id": WindowId(seed_bytes("other"))},
        {"set_digest": Digest(seed_bytes("other"))},
        {"aggregator_id": BETA},
    ]
    for change in changes:
        with pytest.raises(VerificationFailed, match="not the one committed to"):
            check_commitment(made, replace(share(ALPHA), **change))
    with pytest.raises(VerificationFailed):
        check_commitment(replace(made, commitment=Digest(bytes(32))), share(ALPHA))


def test_commitments_of_two_aggregators_cannot_be_copied() -> None:
    same = {"window_id": WINDOW, "set_digest": SET}

    one = commitment(b"vector", bytes(32), aggregator_id=ALPHA, **same)
    two = commitment(b"vector", bytes(32), aggregator_id=AggregatorId("alphb"), **same)

    assert one != two
    with pytest.raises(UsageError, match="31 bytes"):
        commitment(b"vector", bytes(31), aggregator_id=ALPHA, **same)


@pytest.mark.parametrize("epsilon", [Fraction(1, 100), Fraction(1), Fraction(17, 10), Fraction(10)])
def test_noise_bound_is_beyond_honest_noise(epsilon: Fraction) -> None:
    # P[|Z| > b] = 2 a^(b+1)/(1+a) <= 2 e^-64 at b = 64/epsilon, for each of the aggregators.
    one = noise_bound(TwoSidedNoise(epsilon), 1)
    assert one >= 64 / epsilon
    assert noise_bound(TwoSidedNoise(epsilon), 3) == noise_bound(OneSidedNoise(epsilon), 3) == 3 * one
    assert noise_bound(NoNoise(), 5) == 0


@pytest.mark.parametrize("aggregators", [1, 2, 5])
@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(9), Fraction(662)], ids=str)
def test_gaussian_noise_passes_its_bound_with_a_probability_below_1e_26(variance: Fraction, aggregators: int) -> None:
    """The law of the sum by convolution of positive numbers, which keep their digits far out."""
    z = np.arange(-1500, 1501)
    one = np.exp(-(z**2) / (2 * float(variance)))
    law = np.ones(1)
    for _ in range(aggregators):
        law = np.convolve(law, one / one.sum())
    bound, middle = noise_bound(GaussianNoise(variance), aggregators), len(law) // 2

    assert 1e-50 < 2 * law[middle + bound + 1 :].sum() < 1e-26


def test_numbers_outside_the_range_are_not_published() -> None:
    check_range([-5, 0, 105], bound=5, reports=100)
    for value in (-6, 106, (P - 1) // 2):
        with pytest.raises(VerificationFailed) as failure:
            check_range([0, value], bound=5, reports=100)
        assert "100" not in str(failure.value)


def test_a_commitment_changes_with_everything_it_binds() -> None:
    other = Digest(seed_bytes("other"))

    def made(**changes: Any) -> Digest:
        bound: dict[str, Any] = {"window_id": WINDOW, "aggregator_id": ALPHA, "set_digest": SET}
        parts = {"vector": bytes(16), "blind": bytes(32)} | bound | changes
        return commitment(parts.pop("vector"), parts.pop("blind"), **parts)

    digests = {
        made(),
        made(vector=bytes(24)),
        made(blind=b"\1" * 32),
        made(window_id=WindowId(other)),
        made(aggregator_id=BETA),
        made(set_digest=other),
    }
    assert len(digests) == 6

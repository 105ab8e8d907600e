"""Opening a release: commitments to noised shares, their sum, and which may be published (docs/wire.md, "Opening").

It must not see a share without noise: the aggregator adds the noise before it calls anything here.
"""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from typing import Final

from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw

from fleetcount_protocol.errors import UsageError, VerificationFailed
from fleetcount_protocol.ids import AggregatorId, Digest, WindowId
from fleetcount_protocol.layout import sized
from fleetcount_protocol.limits import COMMITMENT_BLIND_BYTES
from fleetcount_protocol.messages import Commitment, NoisedShare
from fleetcount_protocol.vdaf.field import FIELD64

COMMITMENT_LABEL: Final = b"fleetcount v1 commitment"
_TAIL_EXPONENT: Final = 64
"""Noise beyond 64/epsilon has probability below 2 e**-64 < 4e-28, so an honest release is never refused for it."""
_GAUSSIAN_TAIL_EXPONENT: Final = 61
"""2 e**-61 < 1e-26."""


def commitment(
    vector: bytes, blind: bytes, *, window_id: WindowId, aggregator_id: AggregatorId, set_digest: Digest
) -> Digest:
    """Return SHA-256 over label, window, aggregator, set digest, blind (32 random bytes) and the noised share's bytes.

    Raises:
        UsageError: a blind of another size.
    """
    if len(blind) != COMMITMENT_BLIND_BYTES:
        raise UsageError(f"blind has {len(blind)} bytes, allowed: {COMMITMENT_BLIND_BYTES}")
    digest = hashlib.sha256(COMMITMENT_LABEL + window_id + sized(aggregator_id.encode(), 1) + set_digest + blind)
    digest.update(sized(vector, 4))
    return Digest(digest.digest())


def commit_to(share: NoisedShare) -> Commitment:
    """Return an aggregator's commitment to its own noised share."""
    digest = commitment(
        share.vector,
        share.blind,
        window_id=share.window_id,
        aggregator_id=share.aggregator_id,
        set_digest=share.set_digest,
    )
    return Commitment(
        window_id=share.window_id,
        aggregator_id=share.aggregator_id,
        set_digest=share.set_digest,
        commitment=digest,
    )


def check_commitment(made: Commitment, share: NoisedShare) -> None:
    """Accept an opened share only if it is what its aggregator committed to.

    Raises:
        VerificationFailed: the window, aggregator, set or bytes differ from those committed to.
    """
    expected = commit_to(share)
    same = (made.window_id, made.aggregator_id, made.set_digest) == (
        expected.window_id,
        expected.aggregator_id,
        expected.set_digest,
    )
    if not same or not hmac.compare_digest(made.commitment, expected.commitment):
        raise VerificationFailed(f"the noised share of {share.aggregator_id} is not the one committed to")


def centred_lift(value: int) -> int:
    """Return the integer of least magnitude congruent to a Field64 element: from -(p-1)/2 to (p-1)/2.

    Raises:
        UsageError: not in 0..p-1.
    """
    if not 0 <= value < FIELD64.modulus:
        raise UsageError(f"{value} is no element of Field64")
    return value - FIELD64.modulus if value > FIELD64.modulus // 2 else value


def open_noised_shares(shares: Sequence[NoisedShare], length: int) -> tuple[int, ...]:
    """Return the public numbers: the centred lift of the sum of all aggregators' noised shares.

    Raises:
        DecodeError: a share that does not hold `length` canonical elements.
    """
    # Sums and noise lie far inside +-(p-1)/2, so the lift gives back the signed number that the field wrapped around.
    vectors = [FIELD64.decode_vector(share.vector, length) for share in shares]
    return tuple(centred_lift(element) for element in FIELD64.add_vectors(vectors, length))


def noise_bound(noise: NoiseLaw, aggregators: int) -> int:
    """Return B, which all noise on a cell together exceeds with probability below 1e-26; 0 without noise."""
    if isinstance(noise, GaussianNoise):
        from fleetcount_mechanisms.gaussian import noise_reach  # For such releases alone.

        return noise_reach(noise.variance, aggregators, _GAUSSIAN_TAIL_EXPONENT)
    if noise.epsilon is None:
        return 0
    # -(-a // b) rounds up, so that the bound is never below the exact quotient.
    return aggregators * -(-_TAIL_EXPONENT * noise.epsilon.denominator // noise.epsilon.numerator)


def check_range(values: Iterable[int], *, bound: int, reports: int) -> None:
    """Refuse to publish numbers that no honest aggregators could have opened: outside [-B, reports + B].

    The number of reports stays with the caller; it is in no message.

    Raises:
        VerificationFailed: a number is outside, so an aggregator added something else than shares and noise.
    """
    if any(not -bound <= value <= reports + bound for value in values):
        raise VerificationFailed("an opened number is outside what the reports and the noise allow")

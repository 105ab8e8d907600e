"""Opening a release: commitments to noised shares, their sum, the check before publication (docs/wire.md, "Opening").

It must not see a share without noise: the aggregator adds the noise before it calls this module.
"""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Final

from fleetcount_mechanisms.noise import GaussianNoise, NoiseLaw

from fleetcount_protocol.errors import UsageError, VerificationFailed
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, WindowId
from fleetcount_protocol.layout import sized, uint
from fleetcount_protocol.limits import COMMITMENT_BLIND_BYTES, MAX_REPORTS_PER_LEAF, MAX_REPORTS_PER_WINDOW, SET_LEAVES
from fleetcount_protocol.messages import Commitment, NoisedShare
from fleetcount_protocol.vdaf.field import FIELD64

# The digest by which the aggregators of a window agree on the exact set of reports (docs/wire.md, "Set digest").
#
# It is the root over 256 leaves: leaf n covers the reports whose ids begin with byte n. Two aggregators whose sets
# differ learn from the leaves where, and exchange the ids of these leaves only. Root and leaves must stay among the
# aggregators: from them, an observer of the sealed reports could compute which were accepted, and so how many.

_SET_LABEL: Final = b"fleetcount v2 report set"
_LEAF_LABEL: Final = b"fleetcount v2 set leaf"


def public_share_digest(public_share: bytes) -> Digest:
    """Return SHA-256 of a report's public share, which binds the shares of all aggregators to each other."""
    return Digest(hashlib.sha256(public_share).digest())


def leaf_head(window_id: WindowId, number: int, count: int) -> bytes:
    """Return the first bytes under the hash of leaf `number` (0 to 255): label, window, number, count of its reports.

    Raises:
        UsageError: more than `MAX_REPORTS_PER_LEAF` reports.
    """
    if count > MAX_REPORTS_PER_LEAF:
        raise UsageError(f"{count} reports in leaf {number}, allowed: at most {MAX_REPORTS_PER_LEAF}")
    return _LEAF_LABEL + window_id + uint(number, 1) + uint(count, 4)


def leaf_digests(window_id: WindowId, items: Iterable[tuple[ReportId, Digest]]) -> bytes:
    """Return the digests of all leaves, joined: SHA-256 over `leaf_head` and each (id, share digest) by ascending id.

    A hash of the sorted list, not an exclusive or of hashes, for which linear algebra finds other sets of 129 reports
    with the same digest within milliseconds. `items` are report ids with the digests of their public shares.

    Raises:
        UsageError: a report id that appears twice, or more reports than a leaf or a window may have.
    """
    ordered = sorted(items)
    if len(ordered) > MAX_REPORTS_PER_WINDOW:
        raise UsageError(f"{len(ordered)} reports, allowed: at most {MAX_REPORTS_PER_WINDOW}")
    if any(first[0] == second[0] for first, second in pairwise(ordered)):
        raise UsageError("a report id appears twice in a set")
    leaves = {number: list(found) for number, found in groupby(ordered, lambda item: item[0][0])}
    return b"".join(_leaf(window_id, number, leaves.get(number, [])) for number in range(SET_LEAVES))


def _leaf(window_id: WindowId, number: int, items: list[tuple[ReportId, Digest]]) -> bytes:
    records = (part for item in items for part in item)
    return hashlib.sha256(leaf_head(window_id, number, len(items)) + b"".join(records)).digest()


def set_root(window_id: WindowId, leaves: bytes) -> Digest:
    """Return the digest of a set, by the joined digests of its leaves: SHA-256 over label, window and leaves.

    Raises:
        UsageError: other than `SET_LEAVES` digests.
    """
    if len(leaves) != SET_LEAVES * Digest.SIZE:
        raise UsageError(f"the leaves of a set have {len(leaves)} bytes, allowed: {SET_LEAVES * Digest.SIZE}")
    return Digest(hashlib.sha256(_SET_LABEL + window_id + leaves).digest())


def set_digest(window_id: WindowId, items: Iterable[tuple[ReportId, Digest]]) -> Digest:
    """Return the digest of a set of reports of a window, in any order.

    Raises:
        UsageError: as `leaf_digests`.
    """
    return set_root(window_id, leaf_digests(window_id, items))


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
    """Accept an opened share only if its aggregator's commitment is to this share.

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
    # Sums and noise are far below (p-1)/2 in magnitude, so the lift is the signed number before reduction modulo p.
    vectors = [FIELD64.decode_vector(share.vector, length) for share in shares]
    return tuple(centred_lift(element) for element in FIELD64.add_vectors(vectors, length))


def noise_bound(noise: NoiseLaw, aggregators: int) -> int:
    """Return B, which the noise of all aggregators on a cell exceeds with probability below 1e-26; 0 without noise."""
    if isinstance(noise, GaussianNoise):
        from fleetcount_mechanisms.gaussian import noise_reach  # Imported here: only Gaussian releases need it.

        return noise_reach(noise.variance, aggregators, _GAUSSIAN_TAIL_EXPONENT)
    if noise.epsilon is None:
        return 0
    # -(-a // b) rounds up, so that the bound is never below the exact quotient.
    return aggregators * -(-_TAIL_EXPONENT * noise.epsilon.denominator // noise.epsilon.numerator)


def check_range(values: Iterable[int], *, bound: int, reports: int, each: tuple[int, int] = (0, 1)) -> None:
    """Refuse opened numbers that cannot be sums of shares and noise, such as counts outside [-B, reports + B].

    `each` is the least and the most that a report adds to such a number. The number of reports is secret, so no message
    shows it.

    Raises:
        VerificationFailed: a number is outside, so an aggregator did not add its share and its noise.
    """
    least, most = (reports * one for one in each)
    if any(not least - bound <= value <= most + bound for value in values):
        raise VerificationFailed("an opened number is outside what the reports and the noise allow")

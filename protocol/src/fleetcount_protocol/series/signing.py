"""Signatures of a series: every listed aggregator signs the canonical bytes once, and they stand for every window.

It must not decide what a device's owner allows: that is the client's `policy`.
"""

from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.series.series import Series, SignedSeries
from fleetcount_protocol.task.signing import TrustedAggregator, check_trusted, verify_all_signatures

__all__ = ["sign_series", "verify_signed_series"]


def sign_series(series: Series, key: Ed25519PrivateKey) -> bytes:
    """Return an aggregator's Ed25519 signature (RFC 8032, pure) over the canonical bytes, 64 bytes.

    The label at their front keeps them apart from everything else such a key signs.
    """
    return key.sign(series.canonical)


def verify_signed_series(signed: SignedSeries, trusted: Mapping[AggregatorId, TrustedAggregator]) -> None:
    """Accept a series only with valid signatures of all its aggregators, each trusted under this very key and operator.

    Raises:
        TaskError: an aggregator that is not trusted or is described otherwise, or fewer than two distinct operators.
        SignatureError: a signature that is missing or does not verify.
    """
    series = signed.series
    check_trusted(series.aggregators, trusted, series.schedule.latest_start)
    verify_all_signatures(series.aggregators, signed.signatures, series.canonical, f"series {series.name!r}")

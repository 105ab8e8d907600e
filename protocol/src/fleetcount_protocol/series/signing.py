"""Signatures of a series: every listed aggregator signs the canonical bytes once, and they stand for every window.

It must not decide what a device's owner allows: that is the client's `policy`.
"""

from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fleetcount_protocol.errors import TaskError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.series.derive import window_task
from fleetcount_protocol.series.series import Series, SignedSeries
from fleetcount_protocol.task.signing import TrustedAggregator, check_trusted, verify_all_signatures
from fleetcount_protocol.task.task import SignedTask

__all__ = ["sign_series", "verify_signed_series", "verify_window"]


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
    check_trusted(series.aggregators, trusted, series.schedule.first)
    verify_all_signatures(series.aggregators, signed.signatures, series.canonical, f"series {series.name!r}")


def verify_window(
    signed_task: SignedTask,
    signed_series: SignedSeries,
    trusted: Mapping[AggregatorId, TrustedAggregator],
    survivors: tuple[int, ...] = (),
) -> None:
    """Accept a window's task only if it is, byte for byte, the one that follows from a series all have signed.

    For a later step of a drill-down, `survivors` are those of the verified record of the step before.

    Raises:
        TaskError: no window of this series, signatures of its own, or other bytes; aggregators as for the series.
        UsageError: survivors that cannot be those of the step before.
        SignatureError: a signature of the series that is missing or does not verify.
    """
    verify_signed_series(signed_series, trusted)
    task, series = signed_task.task, signed_series.series
    if task.series is None or task.series.series_id != series.series_id:
        raise TaskError(f"task {task.name!r} is no window of series {series.series_id}")
    if signed_task.signatures:
        raise TaskError(f"task {task.name!r} has {len(signed_task.signatures)} signatures, allowed for a window: none")
    index = task.series.index
    if index >= series.schedule.windows or window_task(series, index, survivors).canonical != task.canonical:
        raise TaskError(f"task {task.name!r} is not what window {index} of series {series.series_id} must be")

"""The aggregators that a device trusts, and the series that it has checked.

A series is checked once: its bytes never change. Never judges whether the owner wants to answer (policy).
"""

import hashlib
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from fleetcount_protocol.errors import TaskError
from fleetcount_protocol.ids import AggregatorId

if TYPE_CHECKING:
    from fleetcount_protocol.release.record import ReleaseRecord
    from fleetcount_protocol.series.key_list import SignedKeyList
    from fleetcount_protocol.series.orders import SignedOrder
    from fleetcount_protocol.series.series import Series, SignedSeries
    from fleetcount_protocol.task.signing import TrustedAggregator

__all__ = ["TrustStore"]


class TrustStore:
    """The aggregators of one deployment that a device trusts; may be shared by many devices of one process."""

    def __init__(self, deployment: str, aggregators: "Iterable[TrustedAggregator]") -> None:
        trusted: dict[AggregatorId, TrustedAggregator] = {one.aggregator_id: one for one in aggregators}
        self._deployment = deployment
        self._trusted = MappingProxyType(trusted)
        self._checked: set[bytes] = set()

    @property
    def deployment(self) -> str:
        """The deployment whose questions are answered."""
        return self._deployment

    def check_series(self, signed: "SignedSeries") -> None:
        """Check a series' deployment and the signatures of all its aggregators, which stand for every window.

        Raises:
            TaskError: another deployment, or an aggregator that is not trusted.
            SignatureError: a signature that is missing or does not verify.
        """
        from fleetcount_protocol.series.signing import verify_signed_series  # Signatures: only with the first series.

        # The signatures are part of the name: the same series under other signatures is checked anew.
        name = hashlib.sha256(signed.series.canonical + b"".join(signed.signatures)).digest()
        if name not in self._checked:
            if signed.series.deployment != self._deployment:
                wrong = signed.series.deployment
                raise TaskError(f"deployment of the series is {wrong!r}; allowed is {self._deployment!r}")
            verify_signed_series(signed, self._trusted)
            self._checked.add(name)

    def check_record(self, record: "ReleaseRecord", signatures: Sequence[bytes]) -> None:
        """Check that all aggregators of a record's task, every one of them trusted, have signed it.

        Raises:
            SignatureError: a signature that is missing or does not verify, or an aggregator that is not trusted.
        """
        from fleetcount_protocol.release.record import verify_record_signatures  # As above.

        verify_record_signatures(record, signatures, self._trusted)

    def check_key_list(self, listed: "SignedKeyList", series: "Series") -> None:
        """Check that an aggregator of a checked series has signed its list of sealing keys.

        Raises:
            TaskError, SignatureError: it has not.
        """
        from fleetcount_protocol.series.key_list import verify_key_list  # As above.

        name = listed.key_list.aggregator_id
        described = {one.aggregator_id: one for one in series.aggregators}
        if name not in described:
            raise TaskError(f"key list of {name}, which the series does not list")
        verify_key_list(listed, described[name], self._trusted.get(name))

    def check_order(self, signed: "SignedOrder", series: "Series") -> None:
        """Check that an aggregator of a checked series has signed an order, and may give it.

        Raises:
            TaskError, SignatureError: it has not, or may not.
        """
        from fleetcount_protocol.series.orders import verify_order  # As above.

        verify_order(signed, series, self._trusted)

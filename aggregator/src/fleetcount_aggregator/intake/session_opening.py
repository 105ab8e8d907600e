"""The checks of session requests that need no private key, many at once: for the event loop or a worker process.

Chain, signature and form; the seal is opened where the keys are. Quotas and memory are the sessions' own (sessions).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from cryptography import x509
from fleetcount_protocol.channel.session import judge_request
from fleetcount_protocol.errors import DecodeError, Refused, RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest
from fleetcount_protocol.wire.device import SESSION_REQUEST


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSetting:
    """Whose sessions are opened: the aggregator, the ids of its sealing keys, the devices' authorities (DER)."""

    aggregator_id: AggregatorId
    key_ids: frozenset[int]
    authorities: tuple[bytes, ...]


def judge_requests(
    setting: SessionSetting, requests: Sequence[tuple[bytes, bool]], now: float
) -> list[Digest | RejectReason]:
    """Return the digest of each device's key, or why the request is refused.

    A request is its encoding and whether it is known: accepted and stored before, so that its signature is not checked
    a second time.
    """
    return [_judge(setting, request, now, known=known) for request, known in requests]


def _judge(setting: SessionSetting, request: bytes, now: float, *, known: bool) -> Digest | RejectReason:
    try:
        return judge_request(
            SESSION_REQUEST.decode(request),
            setting.key_ids,
            setting.aggregator_id,
            _authorities(setting.authorities),
            now,
            known=known,
        )
    except Refused as refusal:
        return refusal.reason
    except DecodeError:
        return RejectReason.MALFORMED


@lru_cache(maxsize=4)
def _authorities(encoded: tuple[bytes, ...]) -> tuple[x509.Certificate, ...]:
    return tuple(map(x509.load_der_x509_certificate, encoded))

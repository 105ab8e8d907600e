"""Names of reports: of one window and one device, so that nobody else can use one first and one owner decides about it.

    bytes 0 to 3    SHA-256(label | window id | device)[:4]: which shard and which leaf the report is in. They follow
                    from window and device alone, so a device's second report meets whoever holds its first one.
    bytes 4 to 11   random
    bytes 12 to 15  SHA-256(label | device | bytes 0 to 11)[:4]: they bind all the others to the device

`device` is the digest of the device's public key, never of its certificate. A name is checked as a whole: another key
passes for its owner with probability 2^-64, once a key that was ever enrolled. Of 2^30 reports of a window two share a
name with probability below 2^-68, since all but 64 random bits are hashes of two devices.

A name proves nothing to who does not know the device's key; who does can tell that it is this device's. So names stay
out of what other devices can read, and who sent a report is the session's to say.
"""

import hashlib
from typing import Final

from fleetcount_mechanisms.randomness import RandomSource

from fleetcount_protocol.ids import Digest, ReportId, WindowId

REPORT_ID_SHARD_BYTES: Final = 4
REPORT_ID_RANDOM_BYTES: Final = 8
_NAMED_BYTES: Final = REPORT_ID_SHARD_BYTES + REPORT_ID_RANDOM_BYTES
_SHARD_LABEL: Final = b"fleetcount v2 report shard"
_LABEL: Final = b"fleetcount v2 report id"


def new_report_id(window_id: WindowId, device: Digest, source: RandomSource) -> ReportId:
    """Return a new name for the report to a window of the device whose public key has this digest; run by the
    device.
    """
    named = _shard(window_id, device) + source.random_bytes(REPORT_ID_RANDOM_BYTES)
    return ReportId(named + _bound(device, named))


def owns(window_id: bytes, device: bytes, report_id: bytes) -> bool:
    """Return whether a name is one that this device may use for this window; run by every aggregator."""
    named = report_id[:_NAMED_BYTES]
    return report_id == named + _bound(device, named) and named.startswith(_shard(window_id, device))


def _shard(window_id: bytes, device: bytes) -> bytes:
    return hashlib.sha256(_SHARD_LABEL + window_id + device).digest()[:REPORT_ID_SHARD_BYTES]


def _bound(device: bytes, named: bytes) -> bytes:
    return hashlib.sha256(_LABEL + device + named).digest()[: ReportId.SIZE - _NAMED_BYTES]

"""Unsealing of many instalments at once, with their digests and receipts: run by an aggregator, in any process.

The results are byte for byte those of `session.unseal_instalment`, `Instalment.digest` and `session.receipt_for` for
one instalment. The aggregator sends a receipt after its commit, never before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fleetcount_protocol.channel.session import NONCE, RECEIPT_LABEL, REPORT_KEY_BYTES, REPORT_KEY_LABEL, REPORT_LABEL
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.layout import uint
from fleetcount_protocol.limits import MAX_AGGREGATORS
from fleetcount_protocol.messages import INSTALMENT_LABEL
from fleetcount_protocol.wire.device_columns import InstalmentColumns

_FIRST_BLOCK: Final = b"\x01"
"""HKDF-Expand of one block is HMAC(secret, info, 0x01), cut to its length (RFC 5869, section 2.3)."""
_KEY_BYTES: Final = 32
_PADDING: Final = bytes(64 - _KEY_BYTES)
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKeys:
    """The 32-byte window key of every instalment and its session's 32-byte receipt key, in the instalments' order."""

    window_keys: Sequence[bytes] = field(repr=False)
    receipt_keys: Sequence[bytes] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsealedColumns:
    """One entry for each instalment: the part, or None if the seal does not open; its digest; its receipt's MAC.

    `parts` is empty where no seal was opened (`receipt_columns`).
    """

    parts: Sequence[bytes | None] = field(repr=False)
    digests: Sequence[bytes]
    macs: Sequence[bytes] = field(repr=False)


def unseal_columns(keys: SessionKeys, position: int, columns: InstalmentColumns) -> UnsealedColumns:
    """Return every opened part with its digest and its receipt's MAC; run by the aggregator at `position`, from 0.

    If a seal does not open, only its own instalment is refused.

    Raises:
        UsageError: a position that no window has, or not one key of 32 bytes for each instalment.
    """
    _check_keys(keys.window_keys, columns)
    _check_keys(keys.receipt_keys, columns)
    digests = digest_columns(columns)
    return UnsealedColumns(
        parts=_open(keys.window_keys, position, columns),
        digests=digests,
        macs=_macs(keys.receipt_keys, columns, digests),
    )


def _open(window_keys: Sequence[bytes], position: int, columns: InstalmentColumns) -> list[bytes | None]:
    if not 0 <= position < MAX_AGGREGATORS:
        raise UsageError(f"aggregator position is {position}, not 0 to {MAX_AGGREGATORS - 1}")
    round_byte = uint(columns.round, 1)
    info_head, info_tail = REPORT_KEY_LABEL + columns.window_id, round_byte + _FIRST_BLOCK
    bound_head = REPORT_LABEL + columns.window_id
    bound_tail = round_byte + uint(position, 1) + uint(columns.public_share_size, 2)
    parts: list[bytes | None] = []
    rows = zip(window_keys, columns.report_ids, columns.public_shares, columns.ciphertexts, strict=True)
    for window_key, report_id, public_share, ciphertext in rows:
        key = _hmac(window_key, info_head + report_id + info_tail)[:REPORT_KEY_BYTES]
        try:
            parts.append(AESGCM(key).decrypt(NONCE, ciphertext, bound_head + report_id + bound_tail + public_share))
        except (InvalidTag, ValueError):
            parts.append(None)
    return parts


def digest_columns(columns: InstalmentColumns) -> list[bytes]:
    """Return the digest of every instalment (`Instalment.digest`)."""
    head = INSTALMENT_LABEL + columns.window_id
    middle = uint(columns.round, 1) + uint(columns.public_share_size, 2)
    last = uint(columns.ciphertext_size, 4)
    rows = zip(
        *(columns.report_ids, columns.session_ids, columns.key_numbers, columns.public_shares, columns.ciphertexts),
        strict=True,
    )
    return [
        sha256(head + report_id + session_id + key_number + middle + public_share + last + ciphertext).digest()
        for report_id, session_id, key_number, public_share, ciphertext in rows
    ]


def receipt_columns(receipt_keys: Sequence[bytes], columns: InstalmentColumns) -> UnsealedColumns:
    """Return digests and receipts of instalments that are stored already; `parts` is empty, no seal is opened.

    Raises:
        UsageError: not one key of 32 bytes for each instalment.
    """
    _check_keys(receipt_keys, columns)
    digests = digest_columns(columns)
    return UnsealedColumns(parts=(), digests=digests, macs=_macs(receipt_keys, columns, digests))


def _check_keys(keys: Sequence[bytes], columns: InstalmentColumns) -> None:
    """Refuse keys of another size or number: `_hmac` would give a wrong MAC without a word."""
    if len(keys) != len(columns.report_ids) or any(len(key) != _KEY_BYTES for key in keys):
        raise UsageError(f"there are {len(keys)} keys, allowed: {len(columns.report_ids)}, of {_KEY_BYTES} bytes each")


def _macs(receipt_keys: Sequence[bytes], columns: InstalmentColumns, digests: Sequence[bytes]) -> list[bytes]:
    head, round_byte = RECEIPT_LABEL + columns.window_id, uint(columns.round, 1)
    rows = zip(receipt_keys, columns.report_ids, columns.session_ids, digests, strict=True)
    return [
        _hmac(receipt_key, head + report_id + round_byte + session_id + digest)
        for receipt_key, report_id, session_id, digest in rows
    ]


def _hmac(key: bytes, message: bytes) -> bytes:
    """Return HMAC-SHA256 under a 32-byte key, H(key ^ opad, H(key ^ ipad, message)) (RFC 2104, section 2).

    The library's function takes twice as long for such short messages, mostly for its setup.
    """
    block = key + _PADDING
    return sha256(block.translate(_OUTER) + sha256(block.translate(_INNER) + message).digest()).digest()

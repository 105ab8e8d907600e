"""Receipts: an aggregator's promise that a part of a report is durable there; only the session's device can check it.

An aggregator sends a receipt after the commit, never before; its intake keeps that order.
"""

import hmac
from typing import Final

from fleetcount_protocol.channel.session import SessionSecret
from fleetcount_protocol.errors import SignatureError
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.layout import uint
from fleetcount_protocol.messages import Instalment, Receipt

RECEIPT_LABEL: Final = b"fleetcount v1 receipt"


def make_receipt(secret: SessionSecret, instalment: Instalment) -> Receipt:
    """Return the receipt of a stored instalment, always the same bytes; run by the aggregator after its commit."""
    return receipt_for(secret, instalment, instalment.digest)


def receipt_for(secret: SessionSecret, instalment: Instalment, digest: Digest) -> Receipt:
    """Return the receipt of an instalment whose digest is already known."""
    named = instalment.window_id + instalment.report_id + uint(instalment.round, 1) + instalment.session_id
    return Receipt(
        window_id=instalment.window_id,
        report_id=instalment.report_id,
        round=instalment.round,
        session_id=instalment.session_id,
        digest=digest,
        mac=hmac.digest(secret.receipt_key, RECEIPT_LABEL + named + digest, "sha256"),
    )


def check_receipt(secret: SessionSecret, instalment: Instalment, receipt: Receipt) -> None:
    """Accept a receipt only for exactly these bytes under this session; run by the device.

    Raises:
        SignatureError: it is for another part, or was not made with the session's receipt key.
    """
    expected = make_receipt(secret, instalment)
    same = (receipt.window_id, receipt.report_id, receipt.round, receipt.session_id, receipt.digest) == (
        expected.window_id,
        expected.report_id,
        expected.round,
        expected.session_id,
        expected.digest,
    )
    if not same or secret.session_id != instalment.session_id:
        raise SignatureError(f"receipt is not for report {instalment.report_id}, round {instalment.round}")
    if not hmac.compare_digest(receipt.mac, expected.mac):
        raise SignatureError(f"receipt for report {instalment.report_id} does not verify")

"""A receipt holds for exactly the stored bytes, under the session that sent them."""

from dataclasses import replace

import pytest
from fleetcount_protocol.channel.session import check_receipt, make_receipt
from fleetcount_protocol.errors import SignatureError
from fleetcount_protocol.ids import Digest, ReportId, SessionId, WindowId

from tests.support.protocol_samples import instalment, seed_bytes, session_secret

SECRET = session_secret()
STORED = instalment()
RECEIPT = make_receipt(SECRET, STORED)


def test_receipt_is_accepted_and_the_same_each_time() -> None:
    check_receipt(SECRET, STORED, RECEIPT)

    assert make_receipt(SECRET, STORED) == RECEIPT
    assert RECEIPT.digest == STORED.digest == STORED.digest
    assert RECEIPT.mac.hex() not in repr(RECEIPT)


def test_every_changed_bit_of_digest_and_mac_is_refused() -> None:
    for field in ("digest", "mac"):
        value: bytes = getattr(RECEIPT, field)
        for bit in range(8 * len(value)):
            changed = bytearray(value)
            changed[bit // 8] ^= 1 << bit % 8
            with pytest.raises(SignatureError):
                check_receipt(SECRET, STORED, replace(RECEIPT, **{field: type(value)(bytes(changed))}))
    for end in range(32):
        with pytest.raises(SignatureError):
            check_receipt(SECRET, STORED, replace(RECEIPT, mac=RECEIPT.mac[:end]))


@pytest.mark.parametrize(
    "changes",
    [
        {"window_id": WindowId(seed_bytes("other"))},
        {"report_id": ReportId(seed_bytes("other", 16))},
        {"session_id": SessionId(seed_bytes("other", 16))},
        {"round": 0},
    ],
)
def test_receipt_of_another_place_is_refused(changes: dict[str, WindowId]) -> None:
    with pytest.raises(SignatureError, match="not for report"):
        check_receipt(SECRET, STORED, replace(RECEIPT, **changes))
    with pytest.raises(SignatureError):
        check_receipt(SECRET, STORED, make_receipt(SECRET, replace(STORED, **changes)))


@pytest.mark.parametrize("changes", [{"public_share": b""}, {"ciphertext": seed_bytes("other", 48)}])
def test_receipt_for_other_bytes_is_refused(changes: dict[str, bytes]) -> None:
    other = replace(STORED, **changes)

    assert other.digest != STORED.digest
    with pytest.raises(SignatureError, match="not for report"):
        check_receipt(SECRET, other, RECEIPT)


def test_receipt_under_another_secret_is_refused() -> None:
    forged = make_receipt(replace(SECRET, receipt_key=seed_bytes("other")), STORED)

    with pytest.raises(SignatureError, match="does not verify"):
        check_receipt(SECRET, STORED, forged)


def test_bytes_cannot_move_between_public_share_and_ciphertext() -> None:
    moved = replace(STORED, public_share=STORED.public_share + STORED.ciphertext[:1], ciphertext=STORED.ciphertext[1:])

    assert moved.digest != STORED.digest
    assert isinstance(moved.digest, Digest)

"""A deny list is one spelling, signed by the authority it names, with a number and an end."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from fleetcount_protocol.channel import deny_list
from fleetcount_protocol.channel.certificates import CertificateAuthority, key_digest
from fleetcount_protocol.channel.deny_list import (
    MAX_DENY_LIST_BYTES,
    MAX_DENY_LIST_LIFETIME_S,
    DenyList,
    decode_signed_deny_list,
    sign_deny_list,
    verify_deny_list,
)
from fleetcount_protocol.errors import DecodeError, PeerError, SignatureError, UsageError
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.layout import sized

NOW = 1_800_000_000
FLEET = CertificateAuthority.create("Fleet", datetime.fromtimestamp(NOW, UTC))
KEYS = tuple(Digest(bytes([number]) * 32) for number in (1, 7, 200))
SIGNED = sign_deny_list(FLEET, KEYS, number=5, issued_at=NOW, expires=NOW + 86_400)
DATA = SIGNED.encode()


def test_a_list_comes_back_and_is_the_authority_s() -> None:
    found = decode_signed_deny_list(DATA)
    verify_deny_list(found, [CertificateAuthority.create("Other").certificate, FLEET.certificate])

    assert found == SIGNED
    assert found.deny_list.authority == key_digest(FLEET.certificate)
    assert found.deny_list.keys == KEYS


def test_the_order_of_the_keys_and_repeats_change_nothing() -> None:
    again = sign_deny_list(FLEET, [*KEYS[::-1], KEYS[0]], number=5, issued_at=NOW, expires=NOW + 86_400)

    assert again.deny_list.canonical == SIGNED.deny_list.canonical


def test_an_empty_list_says_that_nobody_is_denied() -> None:
    empty = sign_deny_list(FLEET, [], number=1, issued_at=NOW, expires=NOW + 1)

    assert decode_signed_deny_list(empty.encode()).deny_list.keys == ()


def test_another_authority_s_list_is_refused() -> None:
    other = CertificateAuthority.create("Fleet")
    forged = replace(SIGNED, signature=sign_deny_list(other, KEYS, number=5, issued_at=NOW, expires=NOW + 9).signature)

    for signed, authorities in ((SIGNED, [other.certificate]), (SIGNED, []), (forged, [FLEET.certificate])):
        with pytest.raises(SignatureError):
            verify_deny_list(signed, authorities)


def test_every_changed_byte_is_refused() -> None:
    for place in range(len(DATA)):
        changed = bytearray(DATA)
        changed[place] ^= 1 << place % 8
        with pytest.raises(PeerError):
            verify_deny_list(decode_signed_deny_list(bytes(changed)), [FLEET.certificate])


@pytest.mark.parametrize("cut", [0, 1, 8, 40, -1])
def test_a_part_of_a_list_is_none(cut: int) -> None:
    with pytest.raises(DecodeError):
        decode_signed_deny_list(DATA[:cut])


def test_anything_behind_a_list_or_beyond_its_size_is_refused() -> None:
    with pytest.raises(DecodeError, match="trailing"):
        decode_signed_deny_list(DATA + b"\0")
    with pytest.raises(DecodeError, match="more than"):
        decode_signed_deny_list(DATA + bytes(MAX_DENY_LIST_BYTES))


def test_keys_that_do_not_ascend_are_no_list() -> None:
    swapped = SIGNED.deny_list.canonical.replace(KEYS[0] + KEYS[1], KEYS[1] + KEYS[0])
    data = deny_list.SIGNED_DENY_LIST_LABEL + sized(swapped, 4) + sized(SIGNED.signature, 1)

    with pytest.raises(DecodeError, match="ascend"):
        decode_signed_deny_list(data)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"number": 0}, "number of a deny list is 0"),
        ({"number": 2**63}, "number of a deny list"),
        ({"expires": NOW}, "an end after its beginning"),
        ({"expires": NOW + MAX_DENY_LIST_LIFETIME_S + 1}, "an end after its beginning"),
        ({"keys": (KEYS[0], KEYS[0])}, "must ascend"),
    ],
)
def test_a_list_out_of_range_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    fields: dict[str, Any] = {
        "authority": KEYS[0],
        "number": 1,
        "issued_at": NOW,
        "expires": NOW + 1,
        "keys": KEYS,
    }

    with pytest.raises(UsageError, match=said):
        DenyList(**(fields | changes))

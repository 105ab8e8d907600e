"""A window names only keys that keep a secret."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_protocol.channel.hpke import HpkeKeyPair
from fleetcount_protocol.window.keys import check_hpke_public_key, check_signing_public_key

P = 2**255 - 19
# RFC 7748, section 6.1, and the list at cr.yp.to/ecdh.html#validate: every point of small order, canonical or not.
X25519_SMALL = [
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    P - 1,
    P,
    P + 1,
]
ORDER_8 = [
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
]


def le(value: int) -> bytes:
    return value.to_bytes(32, "little")


@pytest.mark.parametrize("value", X25519_SMALL)
def test_x25519_points_of_small_order_are_refused(value: int) -> None:
    with pytest.raises(ValueError, match=r"small order|canonical"):
        check_hpke_public_key(le(value))


def test_x25519_high_bit_is_no_second_spelling() -> None:
    key = HpkeKeyPair.generate(1).public_key

    check_hpke_public_key(key)
    with pytest.raises(ValueError, match="canonical"):
        check_hpke_public_key(key[:31] + bytes([key[31] | 0x80]))


def test_hybrid_key_is_checked_too() -> None:
    key = HpkeKeyPair.generate(1, post_quantum=True).public_key

    check_hpke_public_key(key)
    with pytest.raises(ValueError, match="small order"):
        check_hpke_public_key(key[:-32] + bytes(32))


@pytest.mark.parametrize("size", [0, 31, 33, 64, 1184, 1215, 1217])
def test_sealing_key_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} bytes"):
        check_hpke_public_key(b"\x09" * size)


@pytest.mark.parametrize("sign", [0, 0x80])
@pytest.mark.parametrize("key", [le(0), le(1), le(P - 1), *map(bytes.fromhex, ORDER_8)])
def test_ed25519_points_of_small_order_are_refused(key: bytes, sign: int) -> None:
    with pytest.raises(ValueError, match="small order"):
        check_signing_public_key(key[:31] + bytes([key[31] | sign]))


@pytest.mark.parametrize("value", [P, P + 1, P + 18])
def test_ed25519_second_spellings_are_refused(value: int) -> None:
    with pytest.raises(ValueError, match="canonical"):
        check_signing_public_key(le(value))


def test_half_of_all_texts_are_no_ed25519_point() -> None:
    refused = 0
    for y in range(2, 202):
        try:
            check_signing_public_key(le(y))
        except ValueError as error:
            refused += "not a point" in str(error)

    assert 60 < refused < 140


def test_real_signing_keys_are_accepted() -> None:
    for _ in range(20):
        check_signing_public_key(Ed25519PrivateKey.generate().public_key().public_bytes_raw())
    for size in (0, 31, 33):
        with pytest.raises(ValueError, match=f"{size} bytes"):
            check_signing_public_key(bytes(size))

"""A seal opens under its own key and info only."""

import pytest
from fleetcount_protocol.channel.hpke import HpkeKeyPair, seal_to
from fleetcount_protocol.errors import SealError, UsageError
from hypothesis import given
from hypothesis import strategies as st

from tests.support.protocol_samples import key_pair, seed_bytes

PAIR = key_pair(0)
HYBRID = HpkeKeyPair(7, seed_bytes("hybrid", 96))
# u-coordinates of the points of small order, where the shared secret would be known to all (RFC 7748, section 6.1).
SMALL = [0, 1, 325606250916557431795983626356110631294008115727848805560023387167927233504, 2**255 - 20, 2**255 - 19]


@given(st.binary(max_size=100), st.binary(max_size=50))
def test_seal_returns(plaintext: bytes, info: bytes) -> None:
    for pair, added in ((PAIR, 48), (HYBRID, 1_136)):
        sealed = seal_to(pair.public_key, plaintext, info)
        assert pair.open(sealed, info) == plaintext
        assert len(sealed) == len(plaintext) + added


def test_rfc_9180_base_mode_vector_opens() -> None:
    # RFC 9180, appendix A.1.1: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-128-GCM, base mode. Its ciphertexts bind an
    # associated text, which the single-shot interface has not, so only the key pair is compared.
    private = bytes.fromhex("4612c550263fc8ad58375df3f557aac531d26850903e55a9f23f21d8534e8ac8")
    public = "3948cfe0ad1ddb695d780e59077195da6c56506b027329794ab02bca80815c4d"

    assert HpkeKeyPair(0, private).public_key.hex() == public


def test_every_changed_byte_of_seal_and_info_is_refused() -> None:
    sealed, info = seal_to(PAIR.public_key, b"secret", b"info"), b"info"
    for index in range(len(sealed)):
        for flip in (1, 0x80):
            changed = bytearray(sealed)
            changed[index] ^= flip
            if index == 31 and flip == 0x80:
                continue  # X25519 ignores this bit, but HPKE hashes the key's bytes: see the next test.
            with pytest.raises(SealError):
                PAIR.open(bytes(changed), info)
    for other in (b"", b"inf", b"infp", b"info "):
        with pytest.raises(SealError):
            PAIR.open(sealed, other)


def test_ignored_bit_of_the_encapsulated_key_is_bound_too() -> None:
    sealed = bytearray(seal_to(PAIR.public_key, b"secret", b""))
    sealed[31] ^= 0x80

    with pytest.raises(SealError):
        PAIR.open(bytes(sealed), b"")


def test_seal_is_refused_truncated_appended_and_under_another_key() -> None:
    sealed = seal_to(PAIR.public_key, b"secret", b"")
    for end in range(len(sealed)):
        with pytest.raises(SealError):
            PAIR.open(sealed[:end], b"")
    for pair in (key_pair(1), HYBRID):
        with pytest.raises(SealError):
            pair.open(sealed, b"")
    with pytest.raises(SealError):
        PAIR.open(sealed + b"\0", b"")


@pytest.mark.parametrize("value", SMALL)
def test_points_of_small_order_neither_seal_nor_open(value: int) -> None:
    point = value.to_bytes(32, "little")

    with pytest.raises(UsageError):
        seal_to(point, b"secret", b"")
    with pytest.raises(SealError):
        PAIR.open(point + bytes(48), b"")


@pytest.mark.parametrize("size", [0, 31, 33, 64, 97])
def test_key_pair_refuses_other_sizes(size: int) -> None:
    with pytest.raises(UsageError, match=f"{size} bytes"):
        HpkeKeyPair(0, bytes(size))
    with pytest.raises(UsageError, match="256"):
        HpkeKeyPair(256, seed_bytes("key"))


def test_generated_pairs_differ_and_are_what_their_private_bytes_say() -> None:
    for post_quantum in (False, True):
        private = HpkeKeyPair.generate_private_key(post_quantum=post_quantum)
        assert HpkeKeyPair(1, private).public_key == HpkeKeyPair(1, private).public_key
        pairs = {HpkeKeyPair.generate(1, post_quantum=post_quantum).public_key for _ in range(4)}
        assert len(pairs) == 4


def test_no_private_key_in_a_representation() -> None:
    private = seed_bytes("sealing 0")

    assert private.hex()[:8] not in repr(PAIR)
    assert not hasattr(PAIR, "private_key")

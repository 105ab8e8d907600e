"""Devices seal a window to the newest key that its aggregator has signed as valid for all of it, or not at all."""

from dataclasses import replace
from typing import Any

import pytest
from fleetcount_protocol.channel.hpke import HpkeKeyPair
from fleetcount_protocol.errors import DecodeError, FleetcountError, PeerError, QuestionError, SignatureError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.question.key_list import (
    KeyList,
    ListedKey,
    check_distinct_keys,
    decode_key_list,
    decode_signed_key_list,
    encode_signed_key_list,
    key_for,
    sign_key_list,
    verify_key_list,
)
from fleetcount_protocol.window.fields import HpkeKey
from hypothesis import given
from hypothesis import strategies as st

from tests.support.protocol_samples import aggregator, seed_bytes, signing_key
from tests.support.question_samples import FIRST, key_list

LIST = key_list()
SIGNED = sign_key_list(LIST, signing_key(0))
EARLY, LATE = LIST.keys
HYBRID = HpkeKey(key_id=200, public_key=HpkeKeyPair(200, seed_bytes("hybrid", 96)).public_key)


def many(count: int) -> tuple[ListedKey, ...]:
    """Return `count` keys with ascending ids."""
    keys = (
        HpkeKey(key_id=one, public_key=HpkeKeyPair(one, seed_bytes(f"key {one}")).public_key) for one in range(count)
    )
    return tuple(ListedKey(key=key, not_before=one, not_after=one + 1) for one, key in enumerate(keys))


def test_key_lists_return() -> None:
    hybrid = replace(LIST, keys=(*LIST.keys, ListedKey(key=HYBRID, not_before=0, not_after=1)))
    for made in (LIST, hybrid, replace(LIST, keys=many(32))):
        assert decode_key_list(made.canonical) == made
        signed = sign_key_list(made, signing_key(0))
        assert decode_signed_key_list(encode_signed_key_list(signed)) == signed


def test_the_key_of_a_window_is_the_newest_one_valid_for_all_of_it() -> None:
    assert key_for(LIST, FIRST, FIRST + 1_200) == EARLY.key
    assert key_for(LIST, LATE.not_before - 1, LATE.not_before + 600) == EARLY.key
    assert key_for(LIST, LATE.not_before, LATE.not_before + 600) == LATE.key
    assert key_for(LIST, EARLY.not_after - 600, EARLY.not_after) == LATE.key
    assert key_for(LIST, LATE.not_after - 600, LATE.not_after) == LATE.key
    assert key_for(replace(LIST, keys=(EARLY,)), EARLY.not_before, EARLY.not_after) == EARLY.key


@pytest.mark.parametrize(
    ("opens", "closes"),
    [
        (EARLY.not_before - 1, EARLY.not_before + 600),
        (LATE.not_after - 600, LATE.not_after + 1),
        (EARLY.not_before, LATE.not_after),
        (LATE.not_after, LATE.not_after + 600),
    ],
)
def test_a_window_without_a_key_is_named_with_the_end_of_the_list(opens: int, closes: int) -> None:
    with pytest.raises(
        QuestionError, match=f"alpha lists no sealing key .* from {opens} until {closes}; .* until {LATE.not_after}"
    ):
        key_for(LIST, opens, closes)


def test_of_keys_that_begin_together_the_larger_id_counts() -> None:
    both = replace(LIST, keys=(EARLY, replace(LATE, not_before=EARLY.not_before)))

    assert key_for(both, FIRST, FIRST + 600) == LATE.key


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"issued_at": -1}, "issued_at is -1"),
        ({"keys": ()}, "number of listed keys is 0, allowed: a whole number from 1 to 32"),
        ({"keys": many(33)}, "number of listed keys is 33"),
        ({"keys": (LATE, EARLY)}, "key ids are .*, allowed: ascending"),
        ({"keys": (EARLY, replace(LATE, key=replace(LATE.key, key_id=EARLY.key.key_id)))}, "gives a key id twice"),
        ({"keys": (EARLY, replace(LATE, key=replace(EARLY.key, key_id=9)))}, "a listed key is given twice"),
        ({"keys": (replace(EARLY, not_after=EARLY.not_before),)}, "not_after of key 1 is"),
        ({"keys": (replace(EARLY, not_before=-1),)}, "not_before of key 1 is -1"),
        ({"keys": (replace(EARLY, not_after=253_402_300_800),)}, "not_after of key 1 is"),
        ({"keys": (replace(EARLY, key=HpkeKey(key_id=1, public_key=bytes(32))),)}, "small order"),
    ],
)
def test_a_key_list_holds_usable_keys_in_order(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(QuestionError, match=why):
        replace(LIST, **changes)


def test_two_aggregators_do_not_list_the_same_sealing_key() -> None:
    other = AggregatorId("beta")
    check_distinct_keys([LIST, replace(LIST, aggregator_id=other, keys=many(2))])

    shared = replace(EARLY, key=replace(EARLY.key, key_id=9), not_before=LATE.not_after, not_after=LATE.not_after + 1)
    with pytest.raises(QuestionError, match="alpha and beta list the same sealing key"):
        check_distinct_keys([LIST, replace(LIST, aggregator_id=other, keys=(*many(2), shared))])


def test_only_its_aggregator_signs_a_key_list() -> None:
    verify_key_list(SIGNED, aggregator(0))
    with pytest.raises(QuestionError, match="key list of alpha in the place of beta"):
        verify_key_list(SIGNED, aggregator(1))
    with pytest.raises(SignatureError, match="signature of alpha under its key list"):
        verify_key_list(sign_key_list(LIST, signing_key(1)), aggregator(0))
    with pytest.raises(SignatureError, match="signature of alpha under its key list"):
        verify_key_list(replace(SIGNED, key_list=replace(LIST, issued_at=LIST.issued_at + 1)), aggregator(0))


def test_truncated_and_flipped_lists_are_refused_or_their_own_encoding() -> None:
    data = encode_signed_key_list(SIGNED)
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            decode_signed_key_list(data[:end])
    with pytest.raises(DecodeError, match="trailing"):
        decode_signed_key_list(data + b"\0")
    accepted = 0
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            signed = decode_signed_key_list(bytes(flipped))
        except PeerError:
            continue
        accepted += 1
        assert encode_signed_key_list(signed) == flipped
    assert accepted > 500


@given(st.binary(max_size=200))
def test_noise_is_refused_with_our_own_error(data: bytes) -> None:
    for prefix in (b"", b"FCKEYS01"):
        with pytest.raises(FleetcountError):
            decode_key_list(prefix + data)


def test_a_full_list_of_hybrid_keys_is_below_its_cap() -> None:
    keys = tuple(
        ListedKey(
            key=HpkeKey(key_id=one, public_key=HpkeKeyPair(one, seed_bytes(f"{one}", 96)).public_key),
            not_before=0,
            not_after=1,
        )
        for one in range(32)
    )
    full = KeyList(aggregator_id=LIST.aggregator_id, issued_at=0, keys=keys)

    assert decode_key_list(full.canonical) == full

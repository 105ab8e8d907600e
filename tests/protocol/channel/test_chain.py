"""A chain of keys goes one way: what it moved on from is gone, what may still come is kept, and both are bounded."""

import random

import pytest
from fleetcount_protocol.channel.chain import KeyChain, WindowKey, next_key, window_key
from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.ids import SessionId
from fleetcount_protocol.limits import MAX_KEPT_WINDOW_KEYS, MAX_KEY_NUMBER, MAX_KEYS_AHEAD

from tests.support.protocol_samples import seed_bytes, session_secret

FIRST = seed_bytes("chain")
CHAIN_KEYS = [FIRST]
for _ in range(700):
    CHAIN_KEYS.append(next_key(CHAIN_KEYS[-1]))
WINDOW_KEYS = {number: window_key(key) for number, key in enumerate(CHAIN_KEYS, start=1)}


def start() -> KeyChain:
    return KeyChain(number=1, key=FIRST)


def opened(chain: KeyChain, most: int = 60) -> set[int]:
    """Return the numbers whose key the chain gives, and that it is the right one."""
    found = {number: key for number in range(most) if (key := chain.window_key(number)) is not None}
    assert all(WINDOW_KEYS[number] == key for number, key in found.items())
    return set(found)


def test_device_and_aggregator_have_the_same_key_of_every_number() -> None:
    session = session_secret()
    chain = KeyChain(number=1, key=session.secret)

    for number in range(1, 9):
        assert session.window_key.number == number
        assert chain.window_key(number) == session.window_key.key
        session = session.moved_on()
    assert len({*WINDOW_KEYS.values(), *CHAIN_KEYS}) == 2 * len(CHAIN_KEYS)


def test_numbers_may_end_in_any_order_and_only_those_are_erased() -> None:
    for seed in range(30):
        chooser = random.Random(seed)
        numbers = list(range(1, 21))
        chooser.shuffle(numbers)
        chain, gone = start(), set[int]()
        while numbers:
            some = [numbers.pop() for _ in range(min(len(numbers), chooser.randint(1, 4)))]
            gone |= set(some)
            chain = chain.without(some)
            assert opened(chain, 21) == set(range(1, 21)) - gone
            assert chain.without(some) == chain, "done again after a crash"
            held = chain.encode()
            assert all(WINDOW_KEYS[number] not in held and CHAIN_KEYS[number - 1] not in held for number in gone)
            assert KeyChain.decode(held) == chain
        assert (chain.number, chain.kept) == (21, ())


def test_a_number_too_far_ahead_has_no_key_and_moves_nothing() -> None:
    chain = start().without([9])

    assert chain.window_key(10 + MAX_KEYS_AHEAD) == WINDOW_KEYS[10 + MAX_KEYS_AHEAD]
    assert chain.window_key(11 + MAX_KEYS_AHEAD) is None
    assert chain.without([11 + MAX_KEYS_AHEAD, MAX_KEY_NUMBER]) == chain
    last = KeyChain(number=MAX_KEY_NUMBER, key=FIRST)
    assert last.window_key(MAX_KEY_NUMBER) == WINDOW_KEYS[1]
    assert last.window_key(MAX_KEY_NUMBER + 1) is None
    assert last.without([MAX_KEY_NUMBER]).window_key(MAX_KEY_NUMBER) is None
    assert chain.window_key(0) is None


def test_only_so_many_open_keys_are_kept_the_highest() -> None:
    chain = start().without([MAX_KEPT_WINDOW_KEYS + 11])

    assert [number for number, _ in chain.kept] == list(range(11, MAX_KEPT_WINDOW_KEYS + 11))
    assert opened(chain, MAX_KEPT_WINDOW_KEYS + 12) == set(range(11, MAX_KEPT_WINDOW_KEYS + 11))


def test_chains_and_keys_of_another_form_are_refused_and_none_is_shown() -> None:
    chain = start().without([2])
    for stored in (b"", chain.encode()[:-1], chain.encode() + b"\0"):
        with pytest.raises(DecodeError):
            KeyChain.decode(stored)
    for number, key in ((0, bytes(32)), (MAX_KEY_NUMBER + 1, bytes(32)), (1, bytes(31))):
        with pytest.raises(UsageError):
            WindowKey(session_id=SessionId(bytes(16)), number=number, key=key)
    shown = repr((chain, session_secret().window_key))
    assert "key=b" not in shown
    assert repr(chain.kept[0][1]) not in shown

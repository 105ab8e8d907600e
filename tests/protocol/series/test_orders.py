"""Orders skip windows of a series, the same ones at every party; nobody else than its aggregators gives them."""

from dataclasses import replace
from itertools import pairwise, permutations

import pytest
from fleetcount_protocol.errors import DecodeError, FleetcountError, PeerError, SignatureError, TaskError
from fleetcount_protocol.ids import AggregatorId, SeriesId
from fleetcount_protocol.series.orders import (
    OrderAction,
    SeriesOrder,
    check_follows,
    decode_order,
    decode_signed_order,
    encode_signed_order,
    sign_order,
    skipped_windows,
    verify_order,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.support.protocol_samples import signing_key
from tests.support.series_samples import order, sampling_series

SERIES = sampling_series(3)
PAUSE, RESUME, STOP = OrderAction


def skipped(*orders: SeriesOrder) -> set[int]:
    return {window for one in skipped_windows(SERIES, orders) for window in one}


def test_orders_return() -> None:
    for action in OrderAction:
        made = order(SERIES, 7, action, 719)
        signed = sign_order(made, signing_key(0))
        assert decode_order(made.canonical) == made
        assert decode_signed_order(encode_signed_order(signed)) == signed


def test_without_orders_nothing_is_skipped() -> None:
    assert skipped_windows(SERIES, ()) == ()


def test_a_pause_holds_until_its_resume_and_a_stop_for_ever() -> None:
    pause, resume = order(SERIES, 1, PAUSE, 10), order(SERIES, 2, RESUME, 24)

    assert skipped_windows(SERIES, [pause]) == (range(10, 720),)
    assert skipped_windows(SERIES, [pause, resume]) == (range(10, 24),)
    again = order(SERIES, 3, PAUSE, 100)
    stop = order(SERIES, 1, STOP, 50, position=2)
    assert skipped_windows(SERIES, [pause, resume, again]) == (range(10, 24), range(100, 720))
    assert skipped_windows(SERIES, [pause, resume, again, stop]) == (range(10, 24), range(50, 720))
    assert skipped_windows(SERIES, [pause, stop]) == (range(10, 720),)
    assert skipped_windows(SERIES, [stop, order(SERIES, 1, STOP, 40, position=1)]) == (range(40, 720),)
    assert skipped_windows(SERIES, [order(SERIES, 9, STOP, 0)]) == (range(720),)


def test_the_later_number_decides_about_its_windows() -> None:
    pause = order(SERIES, 1, PAUSE, 10)

    assert skipped_windows(SERIES, [pause, order(SERIES, 2, RESUME, 5)]) == ()
    assert skipped_windows(SERIES, [pause, order(SERIES, 2, RESUME, 10)]) == ()
    assert skipped_windows(SERIES, [pause, order(SERIES, 2, PAUSE, 20)]) == (range(10, 720),)
    assert skipped_windows(SERIES, [pause, order(SERIES, 2, RESUME, 20), order(SERIES, 3, PAUSE, 15)]) == (
        range(10, 720),
    )


def test_the_order_in_which_a_party_learns_of_them_does_not_matter() -> None:
    given = [
        order(SERIES, 2, PAUSE, 10),
        order(SERIES, 5, RESUME, 24),
        order(SERIES, 9, PAUSE, 60),
        order(SERIES, 4, STOP, 300, position=1),
    ]
    expected = skipped_windows(SERIES, given)

    assert all(skipped_windows(SERIES, mixed) == expected for mixed in permutations(given))
    assert skipped_windows(SERIES, given + given) == expected


orders = st.lists(st.tuples(st.sampled_from([PAUSE, RESUME]), st.integers(0, 719)), max_size=8)


@given(orders, st.one_of(st.none(), st.integers(0, 719)))
def test_skipped_windows_are_what_walking_through_the_orders_says(
    steps: list[tuple[OrderAction, int]], stop: int | None
) -> None:
    state = [False] * 720
    for action, start in steps:
        state[start:] = [action is PAUSE] * (720 - start)
    if stop is not None:
        state[stop:] = [True] * (720 - stop)
    made = [order(SERIES, number, *step) for number, step in enumerate(steps, start=1)]
    if stop is not None:
        made.append(order(SERIES, 1, STOP, stop, position=1))

    ranges = skipped_windows(SERIES, made)

    assert {window for one in ranges for window in one} == {window for window, out in enumerate(state) if out}
    assert all(first.stop < second.start for first, second in pairwise(ranges))


def test_two_orders_under_one_number_are_refused() -> None:
    with pytest.raises(TaskError, match="two different orders under one number"):
        skipped(order(SERIES, 1, PAUSE, 10), order(SERIES, 1, PAUSE, 11))
    assert skipped(order(SERIES, 1, PAUSE, 10), order(SERIES, 1, STOP, 700, position=1)) == set(range(10, 720))


def test_orders_are_the_leaders_but_for_a_stop() -> None:
    verify_order(sign_order(order(SERIES, 1, PAUSE, 10), signing_key(0)), SERIES)
    verify_order(sign_order(order(SERIES, 1, STOP, 10, position=2), signing_key(2)), SERIES)
    for action in (PAUSE, RESUME):
        with pytest.raises(TaskError, match=f"{action.name.lower()} is beta's, allowed: alpha's"):
            verify_order(sign_order(order(SERIES, 1, action, 10, position=1), signing_key(1)), SERIES)


def test_an_order_is_signed_by_its_aggregator_for_this_series() -> None:
    made = order(SERIES, 1, STOP, 10)
    good = sign_order(made, signing_key(0))
    with pytest.raises(SignatureError, match="signature of alpha under order 1"):
        verify_order(sign_order(made, signing_key(1)), SERIES)
    with pytest.raises(SignatureError, match="signature of alpha"):
        verify_order(replace(good, order=replace(made, from_window=11)), SERIES)
    with pytest.raises(TaskError, match="order about series"):
        verify_order(sign_order(replace(made, series_id=SeriesId(bytes(32))), signing_key(0)), SERIES)
    with pytest.raises(TaskError, match="does not list aggregator 'delta'"):
        verify_order(sign_order(replace(made, aggregator_id=AggregatorId("delta")), signing_key(0)), SERIES)
    with pytest.raises(TaskError, match="from_window is 720, allowed: a whole number from 0 to 719"):
        verify_order(sign_order(replace(made, from_window=720), signing_key(0)), SERIES)


def test_numbers_rise_and_nothing_follows_a_stop() -> None:
    known = [order(SERIES, 3, PAUSE, 10), order(SERIES, 8, STOP, 10, position=1)]

    check_follows(order(SERIES, 1, STOP, 5, position=2), known)
    check_follows(order(SERIES, 4, RESUME, 20), known)
    for number in (1, 3):
        with pytest.raises(TaskError, match=f"number of the order is {number}, allowed: above 3"):
            check_follows(order(SERIES, number, RESUME, 20), known)
    with pytest.raises(TaskError, match="beta has stopped its part"):
        check_follows(order(SERIES, 9, STOP, 5, position=1), known)


@pytest.mark.parametrize(("number", "window"), [(0, 0), (2**32, 0), (True, 0), (1, -1), (1, 2**16)])
def test_numbers_and_windows_have_a_range(number: int, window: int) -> None:
    with pytest.raises(TaskError, match="allowed: a whole number"):
        order(SERIES, number, PAUSE, window)


def test_truncated_and_flipped_orders_are_refused_or_their_own_encoding() -> None:
    data = encode_signed_order(sign_order(order(SERIES, 1, PAUSE, 10), signing_key(0)))
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            decode_signed_order(data[:end])
    with pytest.raises(DecodeError, match="trailing"):
        decode_signed_order(data + b"\0")
    accepted = 0
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            signed = decode_signed_order(bytes(flipped))
        except PeerError:
            continue
        accepted += 1
        assert encode_signed_order(signed) == flipped
    assert accepted > 700


@given(st.binary(max_size=80))
def test_noise_is_refused_with_our_own_error(data: bytes) -> None:
    for prefix in (b"", b"FCORDR01"):
        with pytest.raises(FleetcountError):
            decode_order(prefix + data)

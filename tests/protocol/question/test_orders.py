"""Orders skip windows of a question, the same ones at every party; nobody else than its aggregators gives them."""

from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import pytest
from fleetcount_protocol.errors import DecodeError, FleetcountError, PeerError, QuestionError, SignatureError
from fleetcount_protocol.ids import AggregatorId, QuestionId
from fleetcount_protocol.question.orders import (
    OrderAction,
    QuestionOrder,
    SignedOrder,
    check_follows,
    decode_order,
    decode_signed_order,
    encode_signed_order,
    sign_order,
    skipped_windows,
    started_by_window,
    started_question,
    verify_order,
    verify_orders,
)
from fleetcount_protocol.question.question import window_at
from hypothesis import given
from hypothesis import strategies as st

from tests.support.protocol_samples import signing_key
from tests.support.question_samples import FIRST, LATEST, order, sampling_question, start_order, submitted_question

QUESTION = sampling_question(3)
PAUSE, RESUME, STOP, START = OrderAction


def skipped(*orders: QuestionOrder) -> set[int]:
    return {window for one in skipped_windows(QUESTION, orders) for window in one}


def test_orders_return() -> None:
    for made in (*(order(QUESTION, 7, action, 719) for action in (PAUSE, RESUME, STOP)), start_order(QUESTION, FIRST)):
        signed = sign_order(made, signing_key(0))
        assert decode_order(made.canonical) == made
        assert decode_signed_order(encode_signed_order(signed)) == signed


def test_without_orders_nothing_is_skipped() -> None:
    assert skipped_windows(QUESTION, ()) == ()


def test_a_pause_holds_until_its_resume_and_a_stop_for_ever() -> None:
    pause, resume = order(QUESTION, 1, PAUSE, 10), order(QUESTION, 2, RESUME, 24)

    assert skipped_windows(QUESTION, [pause]) == (range(10, 720),)
    assert skipped_windows(QUESTION, [pause, resume]) == (range(10, 24),)
    again = order(QUESTION, 3, PAUSE, 100)
    stop = order(QUESTION, 1, STOP, 50, position=2)
    assert skipped_windows(QUESTION, [pause, resume, again]) == (range(10, 24), range(100, 720))
    assert skipped_windows(QUESTION, [pause, resume, again, stop]) == (range(10, 24), range(50, 720))
    assert skipped_windows(QUESTION, [pause, stop]) == (range(10, 720),)
    assert skipped_windows(QUESTION, [stop, order(QUESTION, 1, STOP, 40, position=1)]) == (range(40, 720),)
    assert skipped_windows(QUESTION, [order(QUESTION, 9, STOP, 0)]) == (range(720),)


def test_the_later_number_decides_about_its_windows() -> None:
    pause = order(QUESTION, 1, PAUSE, 10)

    assert skipped_windows(QUESTION, [pause, order(QUESTION, 2, RESUME, 5)]) == ()
    assert skipped_windows(QUESTION, [pause, order(QUESTION, 2, RESUME, 10)]) == ()
    assert skipped_windows(QUESTION, [pause, order(QUESTION, 2, PAUSE, 20)]) == (range(10, 720),)
    assert skipped_windows(QUESTION, [pause, order(QUESTION, 2, RESUME, 20), order(QUESTION, 3, PAUSE, 15)]) == (
        range(10, 720),
    )


def test_the_order_in_which_a_party_learns_of_them_does_not_matter() -> None:
    given = [
        order(QUESTION, 2, PAUSE, 10),
        order(QUESTION, 5, RESUME, 24),
        order(QUESTION, 9, PAUSE, 60),
        order(QUESTION, 4, STOP, 300, position=1),
    ]
    expected = skipped_windows(QUESTION, given)

    assert all(skipped_windows(QUESTION, mixed) == expected for mixed in permutations(given))
    assert skipped_windows(QUESTION, given + given) == expected


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
    made = [order(QUESTION, number, *step) for number, step in enumerate(steps, start=1)]
    if stop is not None:
        made.append(order(QUESTION, 1, STOP, stop, position=1))

    ranges = skipped_windows(QUESTION, made)

    assert {window for one in ranges for window in one} == {window for window, out in enumerate(state) if out}
    assert all(first.stop < second.start for first, second in pairwise(ranges))


def test_two_orders_under_one_number_are_refused() -> None:
    with pytest.raises(QuestionError, match="two different orders under one number"):
        skipped(order(QUESTION, 1, PAUSE, 10), order(QUESTION, 1, PAUSE, 11))
    assert skipped(order(QUESTION, 1, PAUSE, 10), order(QUESTION, 1, STOP, 700, position=1)) == set(range(10, 720))


def test_orders_are_the_leaders_but_for_a_stop() -> None:
    verify_order(sign_order(order(QUESTION, 1, PAUSE, 10), signing_key(0)), QUESTION)
    verify_order(sign_order(order(QUESTION, 1, STOP, 10, position=2), signing_key(2)), QUESTION)
    for action in (PAUSE, RESUME):
        with pytest.raises(QuestionError, match=f"{action.name.lower()} is beta's, allowed: alpha's"):
            verify_order(sign_order(order(QUESTION, 1, action, 10, position=1), signing_key(1)), QUESTION)


def test_an_order_is_signed_by_its_aggregator_for_this_question() -> None:
    made = order(QUESTION, 1, STOP, 10)
    good = sign_order(made, signing_key(0))
    with pytest.raises(SignatureError, match="signature of alpha under order 1"):
        verify_order(sign_order(made, signing_key(1)), QUESTION)
    with pytest.raises(SignatureError, match="signature of alpha"):
        verify_order(replace(good, order=replace(made, from_window=11)), QUESTION)
    with pytest.raises(QuestionError, match="order about question"):
        verify_order(sign_order(replace(made, question_id=QuestionId(bytes(32))), signing_key(0)), QUESTION)
    with pytest.raises(QuestionError, match="does not list aggregator 'delta'"):
        verify_order(sign_order(replace(made, aggregator_id=AggregatorId("delta")), signing_key(0)), QUESTION)
    with pytest.raises(QuestionError, match="from_window is 720, allowed: a whole number from 0 to 719"):
        verify_order(sign_order(replace(made, from_window=720), signing_key(0)), QUESTION)


def test_numbers_rise_and_nothing_follows_a_stop() -> None:
    known = [order(QUESTION, 3, PAUSE, 10), order(QUESTION, 8, STOP, 10, position=1)]

    check_follows(order(QUESTION, 1, STOP, 5, position=2), known)
    check_follows(order(QUESTION, 4, RESUME, 20), known)
    for number in (1, 3):
        with pytest.raises(QuestionError, match=f"number of the order is {number}, allowed: above 3"):
            check_follows(order(QUESTION, number, RESUME, 20), known)
    with pytest.raises(QuestionError, match="beta has stopped its part"):
        check_follows(order(QUESTION, 9, STOP, 5, position=1), known)


@pytest.mark.parametrize(("number", "window"), [(0, 0), (2**32, 0), (True, 0), (1, -1), (1, 2**16)])
def test_numbers_and_windows_have_a_range(number: int, window: int) -> None:
    with pytest.raises(QuestionError, match="allowed: a whole number"):
        order(QUESTION, number, PAUSE, window)


def test_truncated_and_flipped_orders_are_refused_or_their_own_encoding() -> None:
    data = encode_signed_order(sign_order(order(QUESTION, 1, PAUSE, 10), signing_key(0)))
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


# The start of a question that is counted from submission.

SUBMITTED = submitted_question(3)


def signed_start(start: int = FIRST + 60, position: int = 0) -> SignedOrder:
    return sign_order(start_order(SUBMITTED, start, position), signing_key(position))


def test_a_start_gives_the_question_its_windows_and_changes_nothing_that_was_signed() -> None:
    verify_order(signed_start(), SUBMITTED)
    started = started_question(SUBMITTED, [signed_start().order, order(SUBMITTED, 2, PAUSE, 7)])

    assert (started.schedule.opens(0), started.schedule.opens(2)) == (FIRST + 60, FIRST + 7_260)
    assert (started.canonical, started.question_id) == (SUBMITTED.canonical, SUBMITTED.question_id)
    assert (started.shape, started.design) == (SUBMITTED.shape, SUBMITTED.design)
    assert started_question(started, [signed_start().order]).schedule == started.schedule
    assert verify_orders([signed_start()], SUBMITTED).schedule == started.schedule
    assert skipped_windows(started, [signed_start().order]) == ()
    assert skipped_windows(started, [signed_start().order, order(SUBMITTED, 2, PAUSE, 7)]) == (range(7, 720),)


def test_a_question_that_has_not_started_has_no_windows_and_says_so() -> None:
    for ask in (lambda: window_at(SUBMITTED, 0), lambda: SUBMITTED.schedule.end, lambda: SUBMITTED.schedule.opens(3)):
        with pytest.raises(QuestionError, match="has not started: it has no windows yet"):
            ask()
    with pytest.raises(QuestionError, match="has not started"):
        verify_order(sign_order(order(SUBMITTED, 2, PAUSE, 3), signing_key(0)), SUBMITTED)


@pytest.mark.parametrize("start", [FIRST, LATEST])
def test_a_start_lies_within_what_was_signed(start: int) -> None:
    verify_order(signed_start(start), SUBMITTED)
    for outside in (FIRST - 60, LATEST + 60):
        with pytest.raises(QuestionError, match=f"start of the question is {outside}, allowed: .* {FIRST} to {LATEST}"):
            verify_order(signed_start(outside), SUBMITTED)
    with pytest.raises(QuestionError, match="not a multiple of time_precision_s = 60"):
        verify_order(signed_start(FIRST + 61), SUBMITTED)


def test_a_second_start_is_refused_and_the_same_one_changes_nothing() -> None:
    started = started_question(SUBMITTED, [signed_start().order])

    with pytest.raises(QuestionError, match=f"start of the question is {FIRST}, it started at {FIRST + 60} already"):
        verify_order(signed_start(FIRST), started)
    with pytest.raises(QuestionError, match="it started at"):
        started_question(SUBMITTED, [signed_start().order, signed_start(FIRST).order])
    with pytest.raises(QuestionError, match="number of the order is 1, allowed: above 1"):
        check_follows(signed_start(FIRST).order, [signed_start().order])


def test_a_start_is_the_leaders_for_a_question_that_is_counted_from_submission() -> None:
    with pytest.raises(QuestionError, match="start is beta's, allowed: alpha's"):
        verify_order(signed_start(position=1), SUBMITTED)
    with pytest.raises(SignatureError, match="signature of alpha"):
        verify_order(sign_order(signed_start().order, signing_key(1)), SUBMITTED)
    with pytest.raises(QuestionError, match="has fixed times, allowed: no start"):
        verify_order(sign_order(start_order(QUESTION, FIRST), signing_key(0)), QUESTION)
    with pytest.raises(QuestionError, match="has fixed times"):
        started_question(QUESTION, [start_order(QUESTION, FIRST)])


@pytest.mark.parametrize("action", [PAUSE, RESUME, STOP])
def test_no_order_of_the_leader_is_numbered_before_the_start(action: OrderAction) -> None:
    started, early = SUBMITTED.started(FIRST), sign_order(order(SUBMITTED, 1, action, 3), signing_key(0))
    for question in (SUBMITTED, started):
        with pytest.raises(QuestionError, match=f"order 1 of alpha is a {action.name.lower()}, allowed: the start"):
            verify_order(early, question)
    verify_order(sign_order(order(SUBMITTED, 1, STOP, 3, position=1), signing_key(1)), started)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"number": 2}, "number of a start is 2, allowed: a whole number from 1 to 1"),
        ({"start": None}, "start of the question is None"),
        ({"start": -1}, "start of the question is -1"),
        ({"from_window": 3}, "from_window of a start is 3"),
        ({"action": STOP}, "allowed in a start: this is a stop"),
    ],
)
def test_a_start_is_order_one_with_a_time(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(QuestionError, match=why):
        replace(start_order(SUBMITTED, FIRST), **changes)


def test_a_start_that_is_cut_or_of_an_unknown_action_is_refused() -> None:
    canonical = start_order(SUBMITTED, FIRST).canonical
    for size in range(len(canonical)):
        with pytest.raises(DecodeError):
            decode_order(canonical[:size])
    place = 8 + 32 + 4
    for action in (0, 5, 255):
        with pytest.raises(DecodeError):
            decode_order(canonical[:place] + bytes([action]) + canonical[place + 1 :])


def test_a_window_says_when_its_question_started() -> None:
    started = SUBMITTED.started(FIRST + 7_200)

    assert started_by_window(SUBMITTED, window_at(started, 5)).schedule == started.schedule
    assert started_by_window(QUESTION, window_at(QUESTION, 5)) is QUESTION
    with pytest.raises(QuestionError, match="it started at"):
        started_by_window(SUBMITTED.started(FIRST), window_at(started, 5))
    early = replace(window_at(started, 5), question=replace(window_at(started, 5).question, index=9))
    with pytest.raises(QuestionError, match="start of the question is"):
        started_by_window(SUBMITTED, early)

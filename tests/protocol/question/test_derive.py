"""Every party derives the same window of a window, the one its fields say, and its own verify key."""

import hashlib
import hmac
from dataclasses import replace

import pytest
from fleetcount_protocol.errors import QuestionError, UsageError
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.question.fields import window_fields
from fleetcount_protocol.question.question import check_verify_seed, decode_question, window_at, window_verify_key
from fleetcount_protocol.window.codec import encode_fields
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.window import Window, decode_window

from tests.support.protocol_samples import seed_bytes
from tests.support.question_samples import SEED, every_question, sampling_question

ALL = every_question()


@pytest.mark.parametrize("name", sorted(ALL.keys() - {"codes", "drill_down"}))
def test_a_window_has_the_fields_and_bytes_that_its_question_says(name: str) -> None:
    question = ALL[name]
    last = question.schedule.windows - 1
    for index in {0, min(1, last), last // 2, last}:
        window = window_at(question, index)
        fields = window_fields(question, question.question_id, index)

        assert window == Window(**{one: getattr(fields, one) for one in window.__dataclass_fields__})
        assert window.canonical == encode_fields(fields)
        assert decode_window(window.canonical) == window
        assert window.window_id == WindowId(hashlib.sha256(window.canonical).digest())
        assert window.design == question.design


def test_times_of_a_window_follow_the_schedule() -> None:
    question = ALL["sampling_window"]
    window = window_at(question, 719)

    opens = question.schedule.first + 719 * 3_600
    assert (window.round_one_opens, window.round_one_closes) == (opens, opens + 600)
    assert (window.round_two_closes, window.expiry) == (opens + 1_200, opens + 1_200 + 86_400)
    assert window.verify_key_digest == question.verify_seed_digest


def test_every_party_derives_the_same_bytes_and_every_window_differs() -> None:
    question = ALL["sampling_day"]
    other = decode_question(question.canonical)

    windows = [window_at(question, index) for index in range(720)]

    assert [window.canonical for window in windows] == [window_at(other, index).canonical for index in range(720)]
    assert len({window.window_id for window in windows}) == 720
    assert window_at(sampling_question(name="Another"), 3).window_id != window_at(sampling_question(), 3).window_id


def test_a_window_made_again_is_the_same_and_another_is_not() -> None:
    question = ALL["sampling_window"]

    made = [window_at(question, index) for index in (3, 3, 4, 3)]

    assert made[0] is made[1]
    assert [window.question.index for window in made if window.question] == [3, 3, 4, 3]
    assert made[0] == made[3] != made[2]


@pytest.mark.parametrize("index", [-1, 720, 1.0, True, None])
def test_there_is_no_other_window(index: int) -> None:
    with pytest.raises(UsageError, match=r"window is .*, allowed: 0 to 719"):
        window_at(ALL["sampling_window"], index)


def test_windows_share_what_does_not_change() -> None:
    names = tuple(f"{number:04d}" + "x" * 196 for number in range(4095))
    question = replace(ALL["direct"], domain=Categories(names=names))
    first, second = window_at(question, 0), window_at(question, 1)

    assert first.domain is second.domain
    assert first.design is second.design
    assert len(first.canonical) == len(question.canonical) + 20


def test_a_verify_key_is_expanded_from_the_seed_for_one_window() -> None:
    window_id = window_at(ALL["direct"], 2).window_id
    expected = hmac.new(SEED, b"fleetcount v1 verify key" + window_id + b"\1", hashlib.sha256).digest()

    assert window_verify_key(SEED, window_id) == expected
    assert window_verify_key(SEED, window_at(ALL["direct"], 3).window_id) != expected
    assert window_verify_key(seed_bytes("other"), window_id) != expected
    with pytest.raises(UsageError, match="31 bytes, allowed: 32"):
        window_verify_key(SEED[1:], window_id)


@pytest.mark.parametrize("seed", [SEED[:-1], SEED + b"\0", seed_bytes("other")])
def test_the_seed_is_the_one_that_was_signed(seed: bytes) -> None:
    check_verify_seed(ALL["direct"], SEED)
    with pytest.raises(QuestionError, match="not the one the question commits to"):
        check_verify_seed(ALL["direct"], seed)

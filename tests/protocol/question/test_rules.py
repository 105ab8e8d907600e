"""A question that may be built may be asked in every window: everything else is refused with value and range."""

from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

import pytest
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.errors import DecodeError, QuestionError
from fleetcount_protocol.question.fields import Coin, Participants, QuestionFields
from fleetcount_protocol.question.question import decode_question, encode_question_fields
from fleetcount_protocol.window.fields import Mode, Release, ReleaseKind, UploadStyle

from tests.support.protocol_samples import aggregator, keyed_aggregator
from tests.support.question_samples import (
    FIRST,
    HOURLY,
    LATEST,
    ONE_SIDED,
    SUBMITTED,
    drill_down_question,
    every_question,
    one_round_question,
    sampling_question,
    submitted_question,
)

DAY = 86_400


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"first": -60}, "first is -60, allowed: a whole number from 0"),
        ({"first": FIRST + 1}, "window 0 of the question: round_one_opens .* not a multiple of time_precision_s = 60"),
        ({"first": 253_402_300_740}, "window 0 of the question: round_one_closes is .*, allowed: .* to 253402300799"),
        ({"first": 1.5}, "first is 1.5, allowed: a whole number"),
        ({"every_s": 1_140}, "every_s is 1140, allowed: at least the rounds' 1200 s"),
        ({"every_s": 0}, "every_s is 0, allowed: a whole number from 1"),
        ({"every_s": 3_630}, "every_s is 3630, not a multiple of time_precision_s = 60"),
        ({"windows": 0}, "windows is 0, allowed: a whole number from 1 to 65536"),
        ({"windows": 2**16 + 1, "every_s": 1_200}, "windows is 65537"),
        ({"windows": True}, "windows is True"),
        ({"windows": 9_600}, "the last window expires .* s after the first opens"),
        ({"round_one_s": 0}, "round_one_s is 0"),
        ({"round_two_s": -60}, "round_two_s is -60"),
        ({"round_two_s": 0}, "window 0 of the question: round_two_closes"),
        ({"round_one_s": 630}, "not a multiple of time_precision_s = 60"),
        ({"expiry_s": 0}, "expiry_s is 0"),
        ({"expiry_s": 100 * DAY}, "window 0 of the question: expiry is"),
    ],
)
def test_windows_follow_each_other_on_the_grid_for_a_bounded_time(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(QuestionError, match=why):
        sampling_question(schedule=replace(HOURLY, **changes))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"delay_s": -1}, "delay_s is -1, allowed: a whole number from 0"),
        ({"earliest": -60}, "earliest start is -60"),
        ({"earliest": FIRST + 1}, f"earliest start is {FIRST + 1}, not a multiple of time_precision_s = 60"),
        ({"earliest": LATEST + 60}, f"latest start is {LATEST}, allowed: a whole number from {LATEST + 60}"),
        ({"latest": FIRST + 401 * DAY}, f"latest start is .*, allowed: .* to {FIRST + 400 * DAY}"),
        ({"latest": LATEST + 1}, "not a multiple of time_precision_s = 60"),
    ],
)
def test_a_start_counted_from_submission_has_signed_limits(changes: dict[str, Any], why: str) -> None:
    signed = SUBMITTED.submission
    assert signed is not None
    with pytest.raises(QuestionError, match=why):
        submitted_question(schedule=replace(SUBMITTED, submission=replace(signed, **changes)))


def test_counted_from_submission_no_toss_holds_for_a_day_and_no_utc_day_has_more_windows_than_is_promised() -> None:
    with pytest.raises(QuestionError, match="coin is day, allowed when counted from submission: window or questions"):
        submitted_question(coin=Coin.DAY)
    for every in (1_200, 3_600, 7 * 3_600, 90_000):
        schedule = replace(SUBMITTED, every_s=every, windows=100)
        promised = max(schedule.shape(Coin.WINDOW).days)
        for start in range(FIRST, FIRST + DAY, 3 * 3_600):
            fixed = replace(schedule, first=start, submission=None)
            assert max(fixed.shape(Coin.WINDOW).days) <= promised


def test_a_leap_year_of_hours_and_windows_without_a_gap_are_allowed() -> None:
    year = replace(HOURLY, windows=8_784)
    most = replace(HOURLY, windows=400 * 24 - 24)

    assert sampling_question(schedule=year).schedule.windows == 8_784
    assert sampling_question(schedule=replace(HOURLY, every_s=1_200)).schedule.every_s == 1_200
    assert sampling_question(schedule=most).schedule.end + DAY - FIRST <= 400 * DAY
    with pytest.raises(QuestionError, match=f"allowed: at most {400 * DAY}"):
        sampling_question(schedule=replace(most, windows=most.windows + 1))


def test_the_last_window_ends_before_the_year_ten_thousand() -> None:
    late = 253_402_300_800 - 10 * DAY

    assert sampling_question(schedule=replace(HOURLY, first=late, windows=24)).schedule.windows == 24
    with pytest.raises(QuestionError, match="window 239 of the question: expiry"):
        sampling_question(schedule=replace(HOURLY, first=late, windows=240))


def test_only_a_tossed_coin_holds_longer_than_a_window() -> None:
    for coin in (Coin.DAY, Coin.QUESTION):
        assert sampling_question(coin=coin).coin is coin
        for mode in (Mode.DIRECT, Mode.RESPONSE):
            with pytest.raises(
                QuestionError, match=f"coin is {coin.name.lower()}, allowed in {mode.name.lower()} mode"
            ):
                one_round_question(mode, coin=coin)


@pytest.mark.parametrize("coin", [Coin.DAY, Coin.QUESTION])
def test_a_drill_down_tosses_a_coin_for_each_window(coin: Coin) -> None:
    """Whoever reads its bytes refuses it: who asks, an operator who signs, an aggregator, a device."""
    walking = drill_down_question()
    said = f"coin is {coin.name.lower()}, allowed in a drill-down: window, a fresh toss for each step"

    with pytest.raises(QuestionError, match=said):
        drill_down_question(coin=coin)
    unchecked = QuestionFields(
        **{one.name: getattr(walking, one.name) for one in fields(QuestionFields)} | {"coin": coin}
    )
    with pytest.raises(DecodeError, match=said):
        decode_question(encode_question_fields(unchecked))


@pytest.mark.parametrize("delta", [Fraction(0), Fraction(-1), Fraction(1, 999), 0.0001, Fraction(1, 2**64)])
def test_delta_is_small(delta: Fraction) -> None:
    assert sampling_question(delta=Fraction(1, 1000)).delta == Fraction(1, 1000)
    with pytest.raises(QuestionError, match="delta"):
        sampling_question(delta=delta)


def test_a_promise_over_many_windows_needs_noise() -> None:
    exact = Release(kind=ReleaseKind.EXACT, noise_epsilon=None, level=Fraction(19, 20))

    with pytest.raises(QuestionError, match="release is exact, allowed in one window only"):
        sampling_question(release=exact)
    assert sampling_question(release=exact, schedule=replace(HOURLY, windows=1)).release == exact


def test_a_one_sided_question_is_direct_has_a_threshold_a_value_and_does_not_drill_down() -> None:
    assert one_round_question(Mode.DIRECT, release=ONE_SIDED).release == ONE_SIDED
    for mode in (Mode.RESPONSE, Mode.SAMPLING):
        with pytest.raises(QuestionError, match=f"release one-sided is not for {mode.name.lower()} mode"):
            sampling_question(release=ONE_SIDED) if mode is Mode.SAMPLING else one_round_question(
                mode, release=ONE_SIDED
            )
    with pytest.raises(QuestionError, match="release has 2 thresholds, not 3"):
        one_round_question(Mode.DIRECT, release=replace(ONE_SIDED, thresholds=(3, 3)))
    four = replace(ONE_SIDED, thresholds=(3,) * 4)
    with pytest.raises(QuestionError, match="release is one-sided, allowed in a drill-down: noise on both sides"):
        drill_down_question(Mode.DIRECT, release=four)


def test_noised_participants_are_for_modes_whose_outputs_do_not_tell_them() -> None:
    for made in (sampling_question(participants=Participants.NOISED), every_question()["direct"]):
        assert made.participants is Participants.NOISED
    with pytest.raises(QuestionError, match="participants is noised, allowed in response mode: hidden"):
        one_round_question(Mode.RESPONSE, participants=Participants.NOISED)


def test_every_rule_of_a_window_holds_for_its_windows() -> None:
    spoilt: list[tuple[dict[str, Any], str]] = [
        ({"signal": "Vehicle. Speed"}, "signal is"),
        ({"aggregators": (keyed_aggregator(0), aggregator(1))}, "names 1 sealing keys"),
        ({"min_batch_size": 1}, "min_batch_size is 1"),
        ({"mechanism": SamplingDie.uniform(Fraction(3, 5), 6, allow_large_rate=True)}, "sampling rate is 3/5"),
        ({"mechanism": None}, "sampling mode does not take"),
        ({"deployment": "A"}, "deployment"),
    ]
    for changes, why in spoilt:
        with pytest.raises(QuestionError, match=f"window 0 of the question: .*{why}"):
            sampling_question(**changes)


def test_one_envelope_has_no_second_round() -> None:
    with pytest.raises(QuestionError, match="round_two_s is 600, one envelope needs 0"):
        sampling_question(upload_style=UploadStyle.ONE_ENVELOPE)

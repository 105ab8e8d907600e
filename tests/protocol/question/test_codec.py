"""A question has one encoding, and every other text is refused."""

import json
from dataclasses import replace

import pytest
from fleetcount_protocol.errors import DecodeError, FleetcountError, PeerError, QuestionError, UsageError
from fleetcount_protocol.layout import fraction_bytes
from fleetcount_protocol.question.fields import Admission, Coin, Participants, Schedule
from fleetcount_protocol.question.question import (
    SignedQuestion,
    decode_question,
    decode_signed_question,
    encode_signed_question,
)
from fleetcount_protocol.question.question_json import question_to_json
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cases import places_of_bits
from tests.support.question_samples import (
    HOURLY,
    every_question,
    sampling_question,
    sign_everywhere,
    submitted_question,
)

ALL = every_question() | {"from_submission": submitted_question()}


@pytest.mark.parametrize("name", ALL)
def test_every_kind_of_question_returns(name: str) -> None:
    signed = sign_everywhere(ALL[name])

    assert decode_question(ALL[name].canonical) == ALL[name]
    assert decode_question(ALL[name].canonical).question_id == ALL[name].question_id
    assert decode_signed_question(encode_signed_question(signed)) == signed


@pytest.mark.parametrize("kind", [0, 2, 255])
def test_an_admission_other_than_by_certificate_is_refused(kind: int) -> None:
    question = ALL["sampling_day"]
    place = question.canonical.index(fraction_bytes(question.delta)) - 1
    assert question.canonical[place] == Admission.CERTIFICATE.value

    with pytest.raises(DecodeError, match="admission"):
        decode_question(question.canonical[:place] + bytes([kind]) + question.canonical[place + 1 :])


def test_ids_differ() -> None:
    assert len({question.question_id for question in ALL.values()}) == len(ALL)


@given(
    every=st.integers(20, 2_000),
    windows=st.integers(1, 200),
    first=st.integers(0, 10**8),
    expiry=st.integers(1, 1440),
    coin=st.sampled_from(Coin),
    participants=st.sampled_from(Participants),
)
@settings(max_examples=40, deadline=None)
def test_any_schedule_returns(
    every: int, windows: int, first: int, expiry: int, coin: Coin, participants: Participants
) -> None:
    schedule = Schedule(
        first=60 * first,
        every_s=60 * every,
        windows=windows,
        round_one_s=600,
        round_two_s=600,
        expiry_s=60 * expiry,
    )
    question = sampling_question(schedule=schedule, coin=coin, participants=participants)

    assert decode_question(question.canonical) == question


@pytest.mark.parametrize("name", ["sampling_day", "response", "from_submission"])
def test_question_is_refused_truncated_at_every_byte_and_with_a_trailing_one(name: str) -> None:
    for data, decode in (
        (ALL[name].canonical, decode_question),
        (encode_signed_question(sign_everywhere(ALL[name])), decode_signed_question),
    ):
        for end in range(len(data)):
            with pytest.raises(DecodeError):
                decode(data[:end])
        with pytest.raises(DecodeError, match="trailing"):
            decode(data + b"\0")


@pytest.mark.parametrize("name", ["sampling_window", "direct"])
def test_every_flipped_bit_is_refused_or_another_question(name: str) -> None:
    data = ALL[name].canonical
    seen = {ALL[name].question_id}
    for bit in places_of_bits(data):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            question = decode_question(bytes(flipped))
        except PeerError:
            continue
        assert question.canonical == flipped
        assert question.question_id not in seen
        seen.add(question.question_id)
    assert len(seen) > 14


@given(st.binary(max_size=400))
def test_noise_is_refused_with_our_own_error(data: bytes) -> None:
    for decode in (decode_question, decode_signed_question):
        for prefix in (b"", b"FCQUES01", b"FCSQUE01"):
            with pytest.raises(FleetcountError):
                decode(prefix + data)


def test_signed_question_has_a_place_for_every_aggregator() -> None:
    signed = sign_everywhere(ALL["sampling_window"])
    waiting = SignedQuestion(question=signed.question, signatures=(b"", signed.signatures[1]))

    assert decode_signed_question(encode_signed_question(waiting)) == waiting
    assert (signed.complete, waiting.complete) == (True, False)
    for signatures in ((), signed.signatures[:1], (*signed.signatures, b""), (b"short", b"")):
        with pytest.raises(UsageError):
            encode_signed_question(replace(signed, signatures=signatures))
    with pytest.raises(DecodeError, match="0 signatures for 2 aggregators"):
        decode_signed_question(encode_signed_question(signed)[:-131] + b"\0")


def test_question_beyond_its_cap_cannot_be_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetcount_protocol.question.question.MAX_QUESTION_BYTES", 100)

    with pytest.raises(QuestionError, match="at most 100"):
        _ = sampling_question().canonical
    with pytest.raises(DecodeError, match="more than 100"):
        decode_question(bytes(101))


@pytest.mark.parametrize("name", ALL)
def test_question_for_people_says_everything_and_is_json(name: str) -> None:
    shown = json.loads(json.dumps(question_to_json(ALL[name])))

    assert shown["question_id"] == ALL[name].question_id.hex()
    assert shown["coin"] == ALL[name].coin.name.lower()
    signed, times = ALL[name].schedule.submission, shown["schedule"]
    if signed is None:
        assert times["end"] == ALL[name].schedule.end
    else:
        assert (times["delay_s"], times["earliest_start"], times["latest_start"]) == (
            20,
            signed.earliest,
            signed.latest,
        )
        assert question_to_json(ALL[name].started(signed.latest))["schedule"]["first"] == signed.latest
    assert not {"window_id", "window", "expiry"} & shown.keys()


def test_a_schedule_of_an_unknown_kind_is_refused() -> None:
    canonical = ALL["from_submission"].canonical
    lengths = HOURLY.every_s.to_bytes(4) + HOURLY.windows.to_bytes(4)
    kind = canonical.index(lengths) - 21
    assert canonical[kind] == 2
    for other in (0, 1, 3, 255):
        with pytest.raises(DecodeError):
            decode_question(canonical[:kind] + bytes([other]) + canonical[kind + 1 :])

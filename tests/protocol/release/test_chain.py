"""The record of a window names the one before it and every window between them; other records know nothing of it."""

import json
from dataclasses import replace
from typing import Any

import pytest
from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.layout import uint
from fleetcount_protocol.release.chain import ChainLink, MissingWindow
from fleetcount_protocol.release.record import (
    NoisedParticipants,
    ReleaseRecord,
    decode_record,
    sign_record,
    verify_record_signatures,
)
from fleetcount_protocol.release.record_json import record_from_json, record_to_json
from fleetcount_protocol.window.window import opened_count
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cases import places_of_bits
from tests.support.protocol_samples import record, sampling_window, seed_bytes, signing_key, statement
from tests.support.question_samples import every_question, window_record

ALL = every_question()
NOISED, HIDDEN = ALL["direct"], ALL["response"]
BEFORE = Digest(seed_bytes("before"))


def link(before: int | None, *reasons: str) -> ChainLink:
    start = 0 if before is None else before + 1
    missing = tuple(MissingWindow(index=index, reason=reason) for index, reason in enumerate(reasons, start=start))
    return ChainLink(previous=None if before is None else BEFORE, previous_index=before, missing=missing)


@pytest.mark.parametrize("name", sorted(ALL.keys() - {"codes", "drill_down"}))
def test_record_of_a_window_of_every_kind_of_question_returns(name: str) -> None:
    last = ALL[name].schedule.windows - 1
    for index in {0, min(6, last)}:
        made = window_record(ALL[name], index, statement=statement() * 16)
        signatures = tuple(sign_record(made, signing_key(place)) for place in range(len(made.window.aggregators)))

        read, read_signatures = record_from_json(record_to_json(made, signatures))

        assert decode_record(made.canonical) == read == made
        assert made.canonical.startswith(b"FCRECD02")
        verify_record_signatures(read, read_signatures)


@given(
    st.integers(0, 40), st.lists(st.sampled_from(["paused", "missed", "too_few_reports"]), max_size=60), st.booleans()
)
@settings(max_examples=60, deadline=None)
def test_any_chain_returns(before: int, reasons: list[str], first: bool) -> None:
    made = link(None if first else before, *reasons)
    index = len(reasons) if first else before + 1 + len(reasons)
    written = window_record(ALL["sampling_window"], index, chain=made)

    assert decode_record(written.canonical).chain == made


def test_the_next_record_holds_the_digest_of_this_one() -> None:
    first = window_record(NOISED, 0)
    second = window_record(NOISED, 1, chain=ChainLink(previous=first.digest, previous_index=0, missing=()))
    changed = replace(first, participants=NoisedParticipants(raw=-2, low=10, high=41))

    assert second.chain is not None
    assert second.chain.previous == first.digest != changed.digest
    assert second.canonical.count(first.digest) == 1


def test_missing_windows_of_one_reason_take_one_run() -> None:
    long = window_record(ALL["sampling_window"], 719, chain=link(None, *["paused"] * 719))
    short = window_record(ALL["sampling_window"], 719, chain=link(718))

    assert len(long.canonical) - len(short.canonical) == (4 + 4 + 2 + len("paused")) - (32 + 4)


@pytest.mark.parametrize(
    ("chain", "why"),
    [
        (ChainLink(previous=BEFORE, previous_index=None, missing=()), "allowed: both or none"),
        (ChainLink(previous=None, previous_index=2, missing=()), "allowed: both or none"),
        (link(5), "of window 5, allowed: below 5"),
        (link(3), "missing windows must be those from 4 to below 5"),
        (link(3, "paused", "paused"), "missing windows must be those from 4"),
        (link(None, *["paused"] * 4), "missing windows must be those from 0"),
        (ChainLink(previous=BEFORE, previous_index=2, missing=link(2, "a", "b").missing[::-1]), "from 3 to below 5"),
        (link(3, ""), "reason of a missing window"),
        (link(3, "a\nb"), "reason of a missing window"),
        (link(3, "x" * 201), "reason of a missing window"),
    ],
)
def test_a_chain_accounts_for_every_window(chain: ChainLink, why: str) -> None:
    assert window_record(HIDDEN, 5, chain=link(3, "x" * 200)).chain
    with pytest.raises(UsageError, match=why):
        window_record(HIDDEN, 5, chain=chain)


def test_a_second_spelling_of_missing_windows_is_refused() -> None:
    made = window_record(HIDDEN, 4, chain=link(1, "paused", "paused"))
    text = b"\0\6paused"
    run = uint(1, 2) + uint(2, 4) + uint(2, 4) + text
    assert made.canonical.count(run) == 1

    split = uint(2, 2) + uint(2, 4) + uint(1, 4) + text + uint(3, 4) + uint(1, 4) + text
    with pytest.raises(DecodeError, match="canonical form"):
        decode_record(made.canonical.replace(run, split))
    for count in (0, 2**16 + 1, 2**32 - 1):
        with pytest.raises(DecodeError, match="counts"):
            decode_record(made.canonical.replace(run, uint(1, 2) + uint(2, 4) + uint(count, 4) + text))
    many = uint(3, 2) + (uint(2, 4) + uint(2**16, 4) + text) * 3
    with pytest.raises(DecodeError, match="misses more than 65536 windows"):
        decode_record(made.canonical.replace(run, many))


def test_noised_participants_are_where_the_question_says_so() -> None:
    some = NoisedParticipants(raw=7, low=2, high=9)

    assert window_record(NOISED, 0, participants=some).participants == some
    for question, wrong in ((NOISED, None), (HIDDEN, some)):
        with pytest.raises(UsageError, match="participants is for windows of a question with noised participants"):
            window_record(question, 0, participants=wrong)
    with pytest.raises(UsageError, match="participants is for windows"):
        record(sampling_window(), participants=some)
    with pytest.raises(UsageError, match="interval of participants is 9 to 2"):
        window_record(NOISED, 0, participants=NoisedParticipants(raw=7, low=9, high=2))
    with pytest.raises(UsageError, match="raw of participants is"):
        window_record(NOISED, 0, participants=NoisedParticipants(raw=2**63, low=2, high=9))


def test_a_record_of_a_window_that_was_asked_without_a_question_is_none() -> None:
    with pytest.raises(DecodeError, match="record does not begin with"):
        decode_record(b"FCRECD01" + window_record(HIDDEN, 0).canonical[8:])


def test_a_window_has_room_for_three_lines_an_adversary() -> None:
    assert len(window_record(HIDDEN, 0, statement=statement() * 16).statement) == 32
    with pytest.raises(UsageError, match="33 views, allowed: 1 to 32"):
        window_record(HIDDEN, 0, statement=(*statement() * 16, statement()[0]))


@pytest.mark.parametrize(
    "made", [window_record(NOISED, 3), window_record(HIDDEN, 3, chain=link(0, "paused", "missed"))]
)
def test_flipped_and_truncated_records_are_refused_or_other_records(made: ReleaseRecord) -> None:
    data = made.canonical
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            decode_record(data[:end])
    start = 12 + len(made.window.canonical)
    for bit in places_of_bits(data, start):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            other = decode_record(bytes(flipped))
        except DecodeError:
            continue
        assert other.canonical == flipped
        assert other != made


def test_json_names_the_chain_and_the_participants() -> None:
    made = window_record(NOISED, 3, chain=link(0, "paused", "missed"))
    signatures = tuple(sign_record(made, signing_key(place)) for place in range(2))
    text = record_to_json(made, signatures)
    shown: dict[str, Any] = json.loads(text)

    assert shown["question_id"] == NOISED.question_id.hex()
    assert shown["window"] == 3
    assert shown["participants"] == {"raw": -3, "low": 10, "high": 41}
    assert (shown["previous_record"], shown["previous_window"]) == (BEFORE.hex(), 0)
    assert shown["missing_windows"] == [{"window": 1, "reason": "paused"}, {"window": 2, "reason": "missed"}]
    for name, wrong in (("window", 4), ("participants", None), ("missing_windows", []), ("previous_window", False)):
        with pytest.raises(DecodeError, match="readable part"):
            record_from_json(json.dumps(shown | {name: wrong}))


def test_noised_participants_are_one_more_opened_number() -> None:
    for name, more in (("sampling_day", 1), ("direct", 1), ("sampling_window", 0), ("response", 0)):
        window = window_record(ALL[name], 0).window
        assert opened_count(window) == window.design.output_count + more
    assert opened_count(sampling_window()) == 6

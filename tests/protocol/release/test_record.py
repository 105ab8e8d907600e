"""A release record has one encoding, all its aggregators' signatures, and only numbers that may be said."""

import json
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from fleetcount_mechanisms.answers import Side
from fleetcount_mechanisms.statement import AdversaryView, views_of
from fleetcount_protocol.errors import DecodeError, SignatureError, UsageError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.layout import uint
from fleetcount_protocol.release.record import (
    Cell,
    ReleaseRecord,
    decode_record,
    encode_record,
    noise_laws,
    sign_record,
    verify_record_signatures,
)
from fleetcount_protocol.release.record_json import record_to_json, sides_words
from fleetcount_protocol.window.fields import Mode
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cases import places_of_bits
from tests.support.protocol_samples import (
    aggregator,
    every_window,
    one_round_window,
    record,
    sampling_window,
    signing_key,
    statement,
    trusted,
)

WINDOWS = every_window()
INT64 = st.integers(-(2**63) + 1, 2**63 - 1)


@st.composite
def records(draw: st.DrawFn) -> ReleaseRecord:
    window = draw(
        st.sampled_from([WINDOWS["sampling_grid"], WINDOWS["mangat"], WINDOWS["k_ary"], WINDOWS["one_sided"]])
    )
    cells = []
    for value in range(1, window.values + 1):
        low, high = sorted((draw(INT64), draw(INT64)))
        estimate = Fraction(draw(st.integers(-(2**300), 2**300)), draw(st.integers(1, 2**300)))
        label = window.domain.label(value)
        cells.append(Cell(value=value, label=label, raw=draw(INT64), estimate=estimate, low=low, high=high))
    baseline = draw(INT64) if window.mode is Mode.RESPONSE else None
    return record(window, cells=tuple(cells), baseline_raw=baseline)


@given(records())
@settings(max_examples=80, deadline=None)
def test_record_returns(made: ReleaseRecord) -> None:
    decoded = decode_record(encode_record(made))

    assert decoded == made
    assert decoded.canonical == made.canonical


@pytest.mark.parametrize("name", WINDOWS)
def test_record_of_every_kind_of_window_returns_with_its_real_statement(name: str) -> None:
    made = record(WINDOWS[name], statement=views_of(WINDOWS[name].design))

    assert decode_record(made.canonical) == made
    assert made.window_id == WINDOWS[name].window_id
    assert made.level == WINDOWS[name].release.level
    assert made.participants_at_least == 10


def test_record_is_refused_truncated_at_every_byte_and_with_a_trailing_one() -> None:
    data = record().canonical
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            decode_record(data[:end])
    with pytest.raises(DecodeError, match="trailing"):
        decode_record(data + b"\0")


def test_every_flipped_bit_behind_the_window_is_refused_or_another_record() -> None:
    made = record(one_round_window(Mode.RESPONSE))
    data = made.canonical
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


@given(st.binary(max_size=300))
def test_noise_is_refused(data: bytes) -> None:
    for prefix in (b"", b"FCRECD01", b"FCRECD02"):
        with pytest.raises(DecodeError):
            decode_record(prefix + data)


def cells(**changes: Any) -> tuple[Cell, ...]:
    first, *rest = record().cells
    return (replace(first, **changes), *rest)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cells": ()}, "values 1 to 6"),
        ({"cells": record().cells[:-1]}, "values 1 to 6"),
        ({"cells": record().cells[::-1]}, "values 1 to 6"),
        ({"cells": cells(value=0)}, "values 1 to 6"),
        ({"cells": cells(raw=2**63)}, "raw of cell 1"),
        ({"cells": cells(raw=-(2**63))}, "raw of cell 1"),
        ({"cells": cells(raw=1.0)}, "raw of cell 1"),
        ({"cells": cells(low=5, high=4)}, "interval of cell 1 is 5 to 4"),
        ({"cells": cells(label="here")}, "label"),
        ({"baseline_raw": 0}, "baseline_raw"),
        ({"released_at": 1_800_001_140}, "released_at"),
        ({"released_at": 1_800_001_201}, "released_at"),
        ({"released_at": 60 * 2**62}, "released_at"),
        ({"statement": ()}, "0 views"),
        ({"statement": statement() * 17}, "34 views"),
    ],
)
def test_impossible_records_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        record(**changes)


@pytest.mark.parametrize("cut", [1, 10, 34])
def test_a_record_holds_the_cells_of_all_zooms(cut: int) -> None:
    made = record(WINDOWS["direct_zooms"])

    assert [len(made.cells), made.cells[-1].label] == [32 + 8 + 2, "0,1/4"]
    with pytest.raises(UsageError, match="cells must be the values 1 to 42"):
        replace(made, cells=made.cells[:-cut])
    held = (
        made.canonical.index(made.window.canonical) + len(made.window.canonical) + 4 + 9
    )  # No window before, no participants; when.
    with pytest.raises(DecodeError):
        decode_record(made.canonical[:held] + uint(42 - cut, 2) + made.canonical[held + 2 :])
    assert made.canonical[held : held + 2] == uint(42, 2)


def test_a_larger_square_has_a_threshold_of_its_own() -> None:
    made = record(WINDOWS["one_sided_zooms"])
    low, last = (replace(one, raw=10, low=0) for one in made.cells[-2:])

    assert [made.side(low), made.side(last)] == [Side.UNKNOWN, Side.SAFE]


@pytest.mark.parametrize("mode", [Mode.RESPONSE])
def test_response_needs_its_baseline(mode: Mode) -> None:
    with pytest.raises(UsageError, match="baseline_raw"):
        record(one_round_window(mode), baseline_raw=None)


@pytest.mark.parametrize(
    "changes",
    [
        {"sentence": ""},
        {"sentence": "two\nlines"},
        {"audience": "x" * 1001},
        {"adversary": "e\u0301"},
        {"epsilon": Decimal("1e-30")},
        {"epsilon": Decimal("Infinity")},
        {"epsilon": Decimal(10**12)},
    ],
)
def test_statement_is_plain_text_and_plain_numbers(changes: dict[str, Any]) -> None:
    view: AdversaryView = replace(statement()[0], **changes)

    with pytest.raises(UsageError, match="statement"):
        record(statement=(view,))


@pytest.mark.parametrize(
    "number", ["-0", "+1", "01", "1.", "1.0", "1E1", ".5", "NaN", "Infinity", "1_0", "１", "1" * 11]
)
def test_second_spellings_of_a_number_are_refused(number: str) -> None:
    made = record()
    old = b"\x01\x00\x060.9793"
    encoded = number.encode()
    assert made.canonical.count(old) == 1

    with pytest.raises(DecodeError):
        decode_record(made.canonical.replace(old, b"\x01" + len(encoded).to_bytes(2) + encoded))


def test_record_holds_no_count_of_participants_and_no_set() -> None:
    fields = set(ReleaseRecord.__dataclass_fields__) | set(Cell.__dataclass_fields__)

    assert fields == {
        "window",
        "cells",
        "statement",
        "released_at",
        "baseline_raw",
        "chain",
        "participants",  # Noised, in windows of questions that say so.
        "value",
        "label",
        "raw",
        "estimate",
        "low",
        "high",
    }


def test_noise_of_every_aggregator_is_named() -> None:
    laws = {
        name: {noise.law for noise in noise_laws(WINDOWS[name])}
        for name in ("sampling_grid", "sampling_exact", "one_sided", "direct_gaussian")
    }

    assert laws == {
        "sampling_grid": {"two-sided geometric"},
        "sampling_exact": {"none"},
        "one_sided": {"one-sided geometric"},
        "direct_gaussian": {"discrete Gaussian"},
    }
    assert [dict(noise.parameters) for noise in noise_laws(WINDOWS["direct_gaussian"])] == [{"variance": 662}] * 2
    summed = noise_laws(WINDOWS["sampling_total"])
    assert [dict(noise.coarser) for noise in summed] == [{"total": {"variance": 4 * 662}}] * 2
    assert list(noise_laws(WINDOWS["zooms_and_total"])[0].coarser) == ["2", "total"]
    assert [noise.aggregator_id for noise in record(WINDOWS["sampling_five"]).noise] == [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
    ]


def test_one_sided_release_says_safe_only_at_or_below_the_threshold_and_danger_only_above_it() -> None:
    window = WINDOWS["one_sided"]
    label = window.domain.label(1)
    for raw, low, side in ((0, -5, Side.SAFE), (3, 3, Side.SAFE), (4, 3, Side.UNKNOWN), (9, 4, Side.DANGER)):
        cell = Cell(value=1, label=label, raw=raw, estimate=Fraction(raw), low=low, high=raw)
        made = record(window, cells=(cell,))
        assert made.side(cell) is side
        shown = json.loads(record_to_json(made, [b""] * len(window.aggregators)))
        assert shown["cells"][0]["side"] == side.value
        assert "wrong in a cell with a chance of at most 50 %" in shown["sides"]
    assert record().side(record().cells[0]) is None
    assert sides_words(record()) is None


def test_a_release_downwards_says_danger_only_above_the_threshold_and_is_never_wrong_there() -> None:
    window = WINDOWS["one_sided_down"]
    label = window.domain.label(1)
    for raw, high, side in ((9, 12, Side.DANGER), (4, 9, Side.DANGER), (3, 4, Side.UNKNOWN), (-2, 3, Side.SAFE)):
        cell = Cell(value=1, label=label, raw=raw, estimate=Fraction(raw), low=max(raw, 0), high=high)
        made = record(window, cells=(cell,))
        assert made.side(cell) is side
    assert str(sides_words(made)).startswith(
        '"danger" (above it) is never wrong; "safe" (at most the threshold) is wrong'
    )


# Signatures.

MADE = record(sampling_window(3))
SIGNATURES = tuple(sign_record(MADE, signing_key(position)) for position in range(3))


def test_signatures_of_all_are_accepted_and_are_over_the_canonical_bytes() -> None:
    verify_record_signatures(MADE, SIGNATURES)
    verify_record_signatures(MADE, SIGNATURES, trusted(MADE.window))

    key = Ed25519PublicKey.from_public_bytes(MADE.window.aggregators[2].signing_public_key)
    key.verify(SIGNATURES[2], MADE.canonical)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_every_signature_is_needed(position: int) -> None:
    other = sign_record(record(sampling_window(3), released_at=1_800_001_260), signing_key(position))
    for wrong in (b"", bytes(64), other, SIGNATURES[position - 1]):
        signatures = tuple(wrong if place == position else one for place, one in enumerate(SIGNATURES))
        with pytest.raises(SignatureError, match=aggregator(position).aggregator_id):
            verify_record_signatures(MADE, signatures)
    with pytest.raises(SignatureError, match="2 signatures for 3"):
        verify_record_signatures(MADE, SIGNATURES[:2])


def test_trusting_reader_refuses_other_keys() -> None:
    for known in (
        {},
        trusted(sampling_window(2)),
        trusted(MADE.window)
        | {AggregatorId("beta"): replace(trusted(MADE.window)[AggregatorId("beta")], signing_public_key=bytes(32))},
    ):
        with pytest.raises(SignatureError, match="not trusted"):
            verify_record_signatures(MADE, SIGNATURES, known)


def test_a_signature_of_the_window_is_no_record_signature() -> None:
    signatures = tuple(signing_key(position).sign(MADE.window.canonical) for position in range(3))

    with pytest.raises(SignatureError):
        verify_record_signatures(MADE, signatures)

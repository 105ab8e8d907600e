"""A window has one encoding, and every other text is refused."""

import json
import unicodedata
from dataclasses import replace
from fractions import Fraction

import pytest
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.errors import DecodeError, FleetcountError, PeerError, QuestionError
from fleetcount_protocol.layout import fraction_bytes, text_bytes, uint
from fleetcount_protocol.window.domain import (
    Bins,
    Categories,
    Numbers,
    Outside,
    SingleDomain,
    SquareGrid,
    ValueDomain,
    parts_of,
)
from fleetcount_protocol.window.frame import Frame
from fleetcount_protocol.window.window import Window, decode_window
from fleetcount_protocol.window.window_json import window_to_json
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cases import places_of_bits
from tests.support.protocol_samples import at_window, crossed, every_window, keyed_aggregator, sampling_window

WINDOWS = every_window() | {
    f"window_{name}": at_window(every_window()[name])
    for name in ("sampling_faces_bins", "direct", "k_ary", "direct_numbers")
}
WINDOWS["window_noised"] = at_window(every_window()["direct"], noised_participants=True)
NAMES = st.text(st.characters(categories=("Lu", "Ll", "Nd")), min_size=1, max_size=30).map(
    lambda text: unicodedata.normalize("NFC", text)
)
FRACTIONS = st.fractions(min_value=-(10**9), max_value=10**9, max_denominator=10**6)
OFFSETS = st.sampled_from(("0", "-683195.58", "99999999.999999", "-99999999.999999", "0.000001"))
BINS = st.builds(
    Bins,
    edges=st.lists(FRACTIONS, min_size=2, max_size=9, unique=True).map(lambda edges: tuple(sorted(edges))),
    open_above=st.booleans(),
    unit=NAMES,
)
NAMED = st.builds(Categories, names=st.lists(NAMES, min_size=1, max_size=9, unique=True).map(tuple))
SINGLES: st.SearchStrategy[SingleDomain] = st.one_of(
    BINS,
    st.builds(
        Numbers,
        low=FRACTIONS.map(lambda low: low - 10**9),
        high=FRACTIONS.map(lambda high: high + 10**9 + 1),
        values=st.integers(2, 4095),
        outside=st.sampled_from(Outside),
        unit=NAMES,
    ),
    NAMED,
    st.builds(
        SquareGrid,
        x0=FRACTIONS,
        y0=FRACTIONS,
        size=st.fractions(min_value=Fraction(1, 1000), max_value=1000, max_denominator=1000),
        columns=st.integers(1, 60),
        rows=st.integers(1, 60),
        frame=st.none() | st.builds(Frame, epsg=st.integers(1024, 32767), offset_x=OFFSETS, offset_y=OFFSETS),
    ),
)

DOMAINS: st.SearchStrategy[ValueDomain] = SINGLES | st.builds(crossed, BINS, NAMED)


@st.composite
def windows(draw: st.DrawFn) -> Window:
    domain = draw(DOMAINS)
    rate = draw(st.fractions(min_value=Fraction(1, 1000), max_value=Fraction(499, 1000), max_denominator=10**6))
    opens = 60 * draw(st.integers(0, 10**8))
    return sampling_window(
        draw(st.integers(2, 5)),
        name=draw(NAMES),
        signal=parts_of("Vehicle.CurrentLocation", domain)[0].signal,
        domain=domain,
        mechanism=SamplingDie.uniform(rate, domain.values),
        round_one_opens=opens,
        round_one_closes=opens + 60,
        round_two_closes=opens + 120,
        expiry=opens + 180,
        min_batch_size=draw(st.integers(2, 2**30)),
    )


@given(windows())
@settings(max_examples=60, deadline=None)
def test_window_returns(window: Window) -> None:
    decoded = decode_window(window.canonical)

    assert decoded == window
    assert decoded.window_id == window.window_id


@pytest.mark.parametrize("name", WINDOWS)
def test_every_kind_of_window_returns(name: str) -> None:
    assert decode_window(WINDOWS[name].canonical) == WINDOWS[name]


@pytest.mark.parametrize("name", WINDOWS)
def test_window_is_refused_truncated_at_every_byte_and_with_a_trailing_one(name: str) -> None:
    data = WINDOWS[name].canonical
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            decode_window(data[:end])
    with pytest.raises(DecodeError, match="trailing"):
        decode_window(data + b"\0")


@pytest.mark.parametrize("name", ["one_sided", "sampling_faces_bins", "direct_numbers", "window_direct"])
def test_every_flipped_bit_is_refused_or_another_window(name: str) -> None:
    data = WINDOWS[name].canonical
    seen = {WINDOWS[name].window_id}
    accepted = 0
    for bit in places_of_bits(data):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            window = decode_window(bytes(flipped))
        except PeerError:
            continue
        accepted += 1
        assert window.canonical == flipped
        assert window.window_id not in seen
        seen.add(window.window_id)
    assert accepted > 14  # Names, times and keys have neighbours that are windows too.


@given(st.binary(max_size=600))
def test_noise_is_refused_with_our_own_error(data: bytes) -> None:
    for prefix in (b"", b"FCWIND00", b"FCWIND01"):
        with pytest.raises(FleetcountError):
            decode_window(prefix + data)


@given(st.sampled_from(sorted(WINDOWS)), st.data())
@settings(max_examples=150, deadline=None)
def test_a_spliced_window_is_refused_or_its_own_encoding(name: str, data: st.DataObject) -> None:
    good = WINDOWS[name].canonical
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(len(good), start + 12)))
    spliced = good[:start] + data.draw(st.binary(max_size=12)) + good[end:]
    try:
        window = decode_window(spliced)
    except DecodeError:
        return
    assert window.canonical == spliced


def test_decoding_refuses_what_may_not_be_asked() -> None:
    data = sampling_window().canonical
    index = data.index((10).to_bytes(4), 100)  # min_batch_size.

    with pytest.raises(DecodeError, match="min_batch_size is 1"):
        decode_window(data[:index] + (1).to_bytes(4) + data[index + 4 :])


def test_a_window_is_the_same_question_behind_its_place_in_the_question() -> None:
    first, later = WINDOWS["direct"], at_window(WINDOWS["direct"], index=719)
    place = b"FCWIND01" + first.question.question_id

    assert first.canonical.startswith(place + uint(0, 4) + b"\1")
    assert later.canonical == place + uint(719, 4) + b"\1" + first.canonical[len(place) + 5 :]


def test_a_window_that_was_asked_without_a_question_is_refused() -> None:
    window = WINDOWS["direct"]
    for data in (b"FCWIND00" + window.canonical[8:], b"FCWIND00" + window.canonical[8 + 37 :]):
        with pytest.raises(DecodeError, match="does not begin with b'FCWIND01'"):
            decode_window(data)


def test_a_window_names_no_sealing_keys_on_the_wire() -> None:
    keyed = replace(WINDOWS["direct"].aggregators[1], hpke_keys=keyed_aggregator(1).hpke_keys)

    with pytest.raises(QuestionError, match="sealing keys"):
        replace(WINDOWS["direct"], aggregators=(WINDOWS["direct"].aggregators[0], keyed))


def test_half_of_the_devices_may_be_sampled_and_no_more() -> None:
    window = sampling_window(mechanism=SamplingDie.uniform(Fraction(1, 2), 6, allow_large_rate=True))

    assert decode_window(window.canonical) == window
    with pytest.raises(DecodeError, match="sampling rate is 2/3"):
        decode_window(window.canonical.replace(fraction_bytes(Fraction(1, 2)), fraction_bytes(Fraction(2, 3))))


def test_levels_stand_behind_the_noise_and_have_one_spelling() -> None:
    window = every_window()["sampling_zooms"]
    one = replace(window, release=replace(window.release, coarser=()))
    head = uint(1, 1) + uint(2, 1) + fraction_bytes(Fraction(1))

    assert window.canonical == one.canonical.replace(
        uint(1, 1) + uint(1, 1) + fraction_bytes(Fraction(1)),
        head + uint(1, 1) + uint(2, 1) + fraction_bytes(Fraction(1)),
    )
    assert window.window_id != one.window_id
    for count, side in ((0, 2), (2, 2), (8, 2), (9, 2), (255, 2), (1, 0), (1, 1), (1, 3), (1, 4), (1, 255)):
        with pytest.raises(DecodeError):
            decode_window(
                window.canonical.replace(head + uint(1, 1) + uint(2, 1), head + uint(count, 1) + uint(side, 1))
            )
    for noised in (0, 1, 3):
        with pytest.raises(DecodeError):
            decode_window(window.canonical.replace(head, uint(1, 1) + uint(noised, 1) + fraction_bytes(Fraction(1))))


def test_uniform_faces_written_out_are_a_second_spelling() -> None:
    window = sampling_window()
    die = b"\x01" + fraction_bytes(Fraction(1, 4)) + bytes(2)
    faces = b"\x01" + fraction_bytes(Fraction(1, 4)) + uint(7, 2) + fraction_bytes(Fraction(3, 28)) * 7
    assert window.canonical.count(die) == 1

    with pytest.raises(DecodeError, match="canonical form"):
        decode_window(window.canonical.replace(die, faces))


def test_largest_window_is_below_its_cap() -> None:
    names = tuple(f"{number:04d}" + "x" * 196 for number in range(4095))
    window = sampling_window(domain=Categories(names=names), mechanism=SamplingDie.uniform(Fraction(1, 4), 4095))

    assert len(window.canonical) < 2**20
    assert decode_window(window.canonical).window_id == window.window_id


def test_window_beyond_its_cap_cannot_be_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetcount_protocol.window.codec.MAX_WINDOW_BYTES", 100)

    with pytest.raises(QuestionError, match="at most 100"):
        _ = sampling_window().canonical
    with pytest.raises(DecodeError, match="more than 100"):
        decode_window(bytes(101))


def test_window_for_people_says_everything_and_is_json() -> None:
    for window in WINDOWS.values():
        shown = json.loads(json.dumps(window_to_json(window)))
        assert shown["window_id"] == window.window_id.hex()
        assert len(shown["labels"]) == window.values
    assert window_to_json(WINDOWS["sampling_grid"])["mechanism"] == {
        "kind": "sampling",
        "sampling_rate": "1/4",
        "face_probabilities": "uniform",
    }


def framed(epsg: int, *offsets: str) -> bytes:
    """Return a window whose frame is spelled like this behind the grid."""
    window, plain = every_window()["sampling_framed"], every_window()["sampling_framed"].domain
    assert isinstance(plain, SquareGrid)
    good = uint(25832, 2) + text_bytes("-683195.58") + text_bytes("-4928877.56")
    assert window.canonical.count(good) == 1
    return window.canonical.replace(good, uint(epsg, 2) + b"".join(map(text_bytes, offsets)))


def test_a_frame_stands_behind_its_grid_and_changes_nothing_else() -> None:
    window = every_window()["sampling_framed"]
    assert isinstance(window.domain, SquareGrid)
    bare = replace(window, domain=replace(window.domain, frame=None))
    at = len(b"FCWIND01") + 37 + sum(2 + len(text.encode()) for text in (window.name, window.deployment, window.signal))
    frame = uint(25832, 2) + text_bytes("-683195.58") + text_bytes("-4928877.56")

    assert bare.canonical == window.canonical[:at] + b"\3" + window.canonical[at + 1 :].replace(frame, b"")
    assert decode_window(framed(25832, "-683195.58", "-4928877.56")) == window
    assert window.window_id != bare.window_id


@pytest.mark.parametrize(
    ("epsg", "offsets"),
    [
        (1023, ("0", "0")),
        (32768, ("0", "0")),
        (0, ("0", "0")),
        (25832, ("", "0")),
        (25832, ("0", "-0")),
        (25832, ("1.50", "0")),
        (25832, ("0", "01")),
        (25832, ("0", "123456789")),
        (25832, ("0", "-99999999.9999999")),
        (25832, ("0",)),
        (25832, ("0", "0", "0")),
    ],
)
def test_a_frame_has_one_spelling_on_the_wire(epsg: int, offsets: tuple[str, ...]) -> None:
    with pytest.raises(PeerError):
        decode_window(framed(epsg, *offsets))


def test_a_window_for_people_says_its_frame() -> None:
    windows = every_window()

    assert window_to_json(windows["sampling_framed"])["frame"] == {
        "epsg": 25832,
        "offset_x": "-683195.58",
        "offset_y": "-4928877.56",
    }
    assert "frame" not in window_to_json(windows["sampling_grid"])
    assert "frame" not in window_to_json(windows["sampling_h3_envelope"])

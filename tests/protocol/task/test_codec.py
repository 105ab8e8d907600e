"""A task has one encoding, and every other text is refused."""

import json
import unicodedata
from dataclasses import replace
from fractions import Fraction

import pytest
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.errors import DecodeError, FleetcountError, PeerError, TaskError, UsageError
from fleetcount_protocol.layout import fraction_bytes, text_bytes, uint
from fleetcount_protocol.task.domain import Bins, Categories, Frame, SquareGrid, ValueDomain
from fleetcount_protocol.task.signed_file import decode_signed_task, encode_signed_task
from fleetcount_protocol.task.task import SignedTask, Task, decode_task
from fleetcount_protocol.task.task_json import task_to_json
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cases import places_of_bits
from tests.support.protocol_samples import every_task, in_series, sampling_task, sign_all

TASKS = every_task() | {
    f"window_{name}": in_series(every_task()[name]) for name in ("sampling_faces_bins", "direct", "k_ary")
}
TASKS["window_noised"] = in_series(every_task()["direct"], noised_participants=True)
NAMES = st.text(st.characters(categories=("Lu", "Ll", "Nd")), min_size=1, max_size=30).map(
    lambda text: unicodedata.normalize("NFC", text)
)
FRACTIONS = st.fractions(min_value=-(10**9), max_value=10**9, max_denominator=10**6)
OFFSETS = st.sampled_from(("0", "-683195.58", "99999999.999999", "-99999999.999999", "0.000001"))
DOMAINS: st.SearchStrategy[ValueDomain] = st.one_of(
    st.builds(
        Bins,
        edges=st.lists(FRACTIONS, min_size=2, max_size=9, unique=True).map(lambda edges: tuple(sorted(edges))),
        open_above=st.booleans(),
        unit=NAMES,
    ),
    st.builds(Categories, names=st.lists(NAMES, min_size=1, max_size=9, unique=True).map(tuple)),
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


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    domain = draw(DOMAINS)
    rate = draw(st.fractions(min_value=Fraction(1, 1000), max_value=Fraction(499, 1000), max_denominator=10**6))
    opens = 60 * draw(st.integers(0, 10**8))
    return sampling_task(
        draw(st.integers(2, 5)),
        name=draw(NAMES),
        domain=domain,
        mechanism=SamplingDie.uniform(rate, domain.values),
        round_one_opens=opens,
        round_one_closes=opens + 60,
        round_two_closes=opens + 120,
        expiry=opens + 180,
        min_batch_size=draw(st.integers(2, 2**30)),
    )


@given(tasks())
@settings(max_examples=60, deadline=None)
def test_task_returns(task: Task) -> None:
    decoded = decode_task(task.canonical)

    assert decoded == task
    assert decoded.task_id == task.task_id


@pytest.mark.parametrize("name", TASKS)
def test_every_kind_of_task_returns(name: str) -> None:
    signed = sign_all(TASKS[name])

    assert decode_task(TASKS[name].canonical) == TASKS[name]
    assert decode_signed_task(encode_signed_task(signed)) == signed


@pytest.mark.parametrize("name", TASKS)
def test_task_is_refused_truncated_at_every_byte_and_with_a_trailing_one(name: str) -> None:
    data = TASKS[name].canonical
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            decode_task(data[:end])
    with pytest.raises(DecodeError, match="trailing"):
        decode_task(data + b"\0")


@pytest.mark.parametrize("name", ["one_sided", "sampling_faces_bins", "window_direct"])
def test_every_flipped_bit_is_refused_or_another_task(name: str) -> None:
    data = TASKS[name].canonical
    seen = {TASKS[name].task_id}
    accepted = 0
    for bit in places_of_bits(data):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            task = decode_task(bytes(flipped))
        except PeerError:
            continue
        accepted += 1
        assert task.canonical == flipped
        assert task.task_id not in seen
        seen.add(task.task_id)
    assert accepted > 14  # Names, times and keys have neighbours that are tasks too.


@given(st.binary(max_size=600))
def test_noise_is_refused_with_our_own_error(data: bytes) -> None:
    for decode in (decode_task, decode_signed_task):
        for prefix in (b"", b"FCTASK01", b"FCTASK02", b"FCSTSK01"):
            with pytest.raises(FleetcountError):
                decode(prefix + data)


@given(st.sampled_from(sorted(TASKS)), st.data())
@settings(max_examples=150, deadline=None)
def test_a_spliced_task_is_refused_or_its_own_encoding(name: str, data: st.DataObject) -> None:
    good = TASKS[name].canonical
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(len(good), start + 12)))
    spliced = good[:start] + data.draw(st.binary(max_size=12)) + good[end:]
    try:
        task = decode_task(spliced)
    except DecodeError:
        return
    assert task.canonical == spliced


def test_decoding_refuses_what_may_not_be_asked() -> None:
    data = sampling_task().canonical
    index = data.index((10).to_bytes(4), 100)  # min_batch_size.

    with pytest.raises(DecodeError, match="min_batch_size is 1"):
        decode_task(data[:index] + (1).to_bytes(4) + data[index + 4 :])


def test_a_window_is_the_task_it_would_be_alone_behind_its_place_in_the_series() -> None:
    window = in_series(TASKS["direct"], index=719)
    assert window.series is not None
    place = b"FCTASK02" + window.series.series_id + uint(719, 4) + b"\1"
    without_keys = window.canonical.replace(place, b"FCTASK01")
    plain = TASKS["direct"].canonical
    for one in TASKS["direct"].aggregators:
        keys = b"\x01" + uint(one.hpke_keys[0].key_id, 1) + uint(0x20, 2) + one.hpke_keys[0].public_key
        assert plain.count(keys) == 1
        plain = plain.replace(keys, b"\x00")

    assert without_keys == plain
    with pytest.raises(DecodeError, match="counts 0 parts"):
        decode_task(without_keys)


def test_a_window_names_no_sealing_keys_on_the_wire() -> None:
    task = TASKS["direct"]
    window = in_series(task)
    assert window.series is not None
    smuggled = b"FCTASK02" + window.series.series_id + uint(5, 4) + b"\1" + task.canonical[8:]

    with pytest.raises(DecodeError, match="names 1 sealing keys"):
        decode_task(smuggled)


def test_half_of_the_devices_may_be_sampled_in_a_window_only() -> None:
    half = SamplingDie.uniform(Fraction(1, 2), 6, allow_large_rate=True)
    window = in_series(sampling_task(), mechanism=half)

    assert decode_task(window.canonical) == window
    with pytest.raises(DecodeError, match="below 1/2"):
        decode_task(sampling_task().canonical.replace(fraction_bytes(Fraction(1, 4)), fraction_bytes(Fraction(1, 2))))


def test_zooms_stand_behind_the_noise_and_have_one_spelling() -> None:
    task = every_task()["sampling_zooms"]
    one = replace(task, release=replace(task.release, zooms=1))
    head = uint(1, 1) + uint(2, 1) + fraction_bytes(Fraction(1))

    assert task.canonical == one.canonical.replace(
        uint(1, 1) + uint(1, 1) + fraction_bytes(Fraction(1)), head + uint(2, 1)
    )
    assert task.task_id != one.task_id
    for zooms in (0, 1, 3, 7, 255):
        with pytest.raises(DecodeError):
            decode_task(task.canonical.replace(head + uint(2, 1), head + uint(zooms, 1)))
    for noised in (0, 1, 3):
        with pytest.raises(DecodeError):
            decode_task(task.canonical.replace(head, uint(1, 1) + uint(noised, 1) + fraction_bytes(Fraction(1))))


def test_uniform_faces_written_out_are_a_second_spelling() -> None:
    task = sampling_task()
    die = b"\x01" + fraction_bytes(Fraction(1, 4)) + bytes(2)
    faces = b"\x01" + fraction_bytes(Fraction(1, 4)) + uint(7, 2) + fraction_bytes(Fraction(3, 28)) * 7
    assert task.canonical.count(die) == 1

    with pytest.raises(DecodeError, match="canonical form"):
        decode_task(task.canonical.replace(die, faces))


def test_largest_task_is_below_its_cap() -> None:
    names = tuple(f"{number:04d}" + "x" * 196 for number in range(4095))
    task = sampling_task(domain=Categories(names=names), mechanism=SamplingDie.uniform(Fraction(1, 4), 4095))

    assert len(task.canonical) < 2**20
    assert decode_task(task.canonical).task_id == task.task_id


def test_task_beyond_its_cap_cannot_be_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetcount_protocol.task.codec.MAX_TASK_BYTES", 100)

    with pytest.raises(TaskError, match="at most 100"):
        _ = sampling_task().canonical
    with pytest.raises(DecodeError, match="more than 100"):
        decode_task(bytes(101))


def test_signed_task_file_has_a_place_for_every_aggregator() -> None:
    signed = sign_all(sampling_task())
    waiting = SignedTask(task=signed.task, signatures=(signed.signatures[0], b""))

    assert decode_signed_task(encode_signed_task(waiting)) == waiting
    assert (signed.complete, waiting.complete) == (True, False)
    for signatures in ((), signed.signatures[:1], (*signed.signatures, b""), (b"short", b"")):
        with pytest.raises(UsageError):
            encode_signed_task(replace(signed, signatures=signatures))


def test_a_window_travels_without_signatures_and_with_none_only() -> None:
    window = in_series(sampling_task())
    signed = SignedTask(task=window, signatures=())

    assert decode_signed_task(encode_signed_task(signed)) == signed
    assert signed.complete
    for signatures in ((b"",), (b"", b""), (bytes(64), bytes(64))):
        assert not replace(signed, signatures=signatures).complete
        with pytest.raises(UsageError, match="for a window of a series, which has none"):
            encode_signed_task(replace(signed, signatures=signatures))
    with pytest.raises(DecodeError, match="2 signatures for a window"):
        decode_signed_task(encode_signed_task(signed)[:-1] + b"\2\0\0")
    with pytest.raises(DecodeError, match="0 signatures for 2 aggregators"):
        decode_signed_task(encode_signed_task(sign_all(sampling_task()))[:-131] + b"\0")


def test_signed_task_file_is_refused_truncated_and_tampered() -> None:
    data = encode_signed_task(sign_all(sampling_task()))
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            decode_signed_task(data[:end])
    with pytest.raises(DecodeError, match="trailing"):
        decode_signed_task(data + b"\0")
    with pytest.raises(DecodeError, match="3 signatures for 2"):
        decode_signed_task(data[:-131] + b"\3" + data[-130:] + b"\0")


def test_task_for_people_says_everything_and_is_json() -> None:
    for task in TASKS.values():
        shown = json.loads(json.dumps(task_to_json(task)))
        assert shown["task_id"] == task.task_id.hex()
        assert len(shown["labels"]) == task.values
    assert task_to_json(TASKS["sampling_grid"])["mechanism"] == {
        "kind": "sampling",
        "sampling_rate": "1/4",
        "face_probabilities": "uniform",
    }


def framed(epsg: int, *offsets: str) -> bytes:
    """Return a task whose frame is spelled like this behind the grid."""
    task, plain = every_task()["sampling_framed"], every_task()["sampling_framed"].domain
    assert isinstance(plain, SquareGrid)
    good = uint(25832, 2) + text_bytes("-683195.58") + text_bytes("-4928877.56")
    assert task.canonical.count(good) == 1
    return task.canonical.replace(good, uint(epsg, 2) + b"".join(map(text_bytes, offsets)))


def test_a_frame_stands_behind_its_grid_and_changes_nothing_else() -> None:
    task = every_task()["sampling_framed"]
    assert isinstance(task.domain, SquareGrid)
    bare = replace(task, domain=replace(task.domain, frame=None))
    at = len(b"FCTASK01") + sum(2 + len(text.encode()) for text in (task.name, task.deployment, task.signal))
    frame = uint(25832, 2) + text_bytes("-683195.58") + text_bytes("-4928877.56")

    assert bare.canonical == task.canonical[:at] + b"\3" + task.canonical[at + 1 :].replace(frame, b"")
    assert decode_task(framed(25832, "-683195.58", "-4928877.56")) == task
    assert task.task_id != bare.task_id


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
        decode_task(framed(epsg, *offsets))


def test_a_task_for_people_says_its_frame() -> None:
    tasks = every_task()

    assert task_to_json(tasks["sampling_framed"])["frame"] == {
        "epsg": 25832,
        "offset_x": "-683195.58",
        "offset_y": "-4928877.56",
    }
    assert "frame" not in task_to_json(tasks["sampling_grid"])
    assert "frame" not in task_to_json(tasks["sampling_h3_envelope"])

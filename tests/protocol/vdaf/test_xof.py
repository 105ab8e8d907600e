"""The extendable output function and the exact rejection rule of the vectors drawn from it."""

import json
from pathlib import Path

import pytest
from Crypto.Hash import TurboSHAKE128
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.vdaf.field import (
    FIELD64,
    FIELD128,
    SEED_SIZE,
    PrimeField,
    XofTurboShake128,
    derive_seed,
    domain_separation_tag,
    next_vector,
)
from hypothesis import given
from hypothesis import strategies as st

VECTOR = Path(__file__).parents[2] / "vectors" / "vdaf" / "XofTurboShake128.json"
TINY = PrimeField(name="F17", modulus=17, encoded_size=1, generator=3, two_adicity=4)


class GivenStream:
    """A stream of given bytes that fails when read past its end, and knows how far it was read."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def next(self, length: int) -> bytes:
        end = self.position + length
        if end > len(self.data):
            raise EOFError
        part = self.data[self.position : end]
        self.position = end
        return part


def word_by_word(stream: GivenStream, field: PrimeField, length: int) -> list[int]:
    """The draft's loop: one word at a time, masked, kept when below p."""
    mask = 2 ** (field.modulus - 1).bit_length() - 1
    vector: list[int] = []
    while len(vector) < length:
        word = int.from_bytes(stream.next(field.encoded_size), "little") & mask
        if word < field.modulus:
            vector.append(word)
    return vector


def test_the_official_vector_is_reproduced() -> None:
    case = json.loads(VECTOR.read_text())
    seed, dst, binder = (bytes.fromhex(case[name]) for name in ("seed", "dst", "binder"))

    derived = derive_seed(XofTurboShake128, seed, dst, binder)
    words = next_vector(XofTurboShake128(seed, dst, binder), FIELD128, case["length"])

    assert derived.hex() == case["derived_seed"]
    assert FIELD128.encode_vector(words).hex() == case["expanded_vec_field128"]


def test_the_message_is_tag_and_seed_with_their_lengths_then_the_binder() -> None:
    stream = XofTurboShake128(b"seed", b"tag" * 100, b"binder")

    expected = TurboSHAKE128.new(domain=1, data=b"\x2c\x01" + b"tag" * 100 + b"\x04seedbinder").read(40)

    assert stream.next(8) + stream.next(32) == expected


def test_the_domain_separation_tag_is_version_class_algorithm_usage_context() -> None:
    assert domain_separation_tag(0xFFFF1001, 7, b"ctx") == bytes.fromhex("1200ffff10010007") + b"ctx"


@pytest.mark.parametrize(("algorithm", "usage"), [(-1, 0), (1 << 32, 0), (0, -1), (0, 1 << 16)])
def test_a_tag_outside_its_ranges_is_refused(algorithm: int, usage: int) -> None:
    with pytest.raises(UsageError):
        domain_separation_tag(algorithm, usage, b"")


def test_a_tag_or_seed_whose_length_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="65535"):
        XofTurboShake128(bytes(32), bytes(65536), b"")
    with pytest.raises(UsageError, match="255"):
        XofTurboShake128(bytes(256), b"", b"")


@pytest.mark.parametrize("rejected", [FIELD64.modulus, FIELD64.modulus + 1, 2**64 - 1])
@pytest.mark.parametrize("places", [(0,), (1,), (3,), (0, 1, 2, 3), (3, 4), (2, 4, 5)])
def test_a_word_not_below_p_is_dropped_and_the_next_of_the_stream_takes_its_place(
    rejected: int, places: tuple[int, ...]
) -> None:
    words = [rejected if place in places else 1000 + place for place in range(12)]
    stream = GivenStream(b"".join(word.to_bytes(8, "little") for word in words))

    vector = next_vector(stream, FIELD64, 4)

    kept = [word for word in words if word != rejected][:4]
    assert vector == kept
    assert stream.position == 8 * (words.index(kept[-1]) + 1)


def test_the_largest_element_is_kept() -> None:
    stream = GivenStream((FIELD64.modulus - 1).to_bytes(8, "little"))

    assert next_vector(stream, FIELD64, 1) == [FIELD64.modulus - 1]


@pytest.mark.parametrize("field", [TINY, FIELD64, FIELD128], ids=lambda field: field.name)
@given(data=st.data())
def test_vectors_agree_with_the_word_by_word_loop_and_read_no_further(field: PrimeField, data: st.DataObject) -> None:
    low = st.integers(0, 20)
    high = st.integers(field.modulus - 2, 2 ** (8 * field.encoded_size) - 1)
    words = data.draw(st.lists(low | high, max_size=30))
    lengths = data.draw(st.lists(st.integers(0, 6), max_size=4))
    raw = b"".join(word.to_bytes(field.encoded_size, "little") for word in words) + bytes(30 * field.encoded_size)
    ours, theirs = GivenStream(raw), GivenStream(raw)

    for length in lengths:
        assert next_vector(ours, field, length) == word_by_word(theirs, field, length)
        assert ours.position == theirs.position


def test_a_shorter_vector_is_the_front_of_a_longer_one() -> None:
    args = (bytes(range(SEED_SIZE)), b"tag", b"binder")

    assert next_vector(XofTurboShake128(*args), FIELD64, 10) == next_vector(XofTurboShake128(*args), FIELD64, 25)[:10]

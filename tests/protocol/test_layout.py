"""The fields of canonical bytes have one spelling each."""

from fractions import Fraction

import pytest
from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.layout import (
    Reader,
    check_text,
    fraction_bytes,
    prints,
    sized,
    text_bytes,
    uint,
    wide_fraction_bytes,
)
from hypothesis import given
from hypothesis import strategies as st

TERMS = st.integers(-(2**63) + 1, 2**63 - 1)


def reader(data: bytes) -> Reader:
    return Reader(data, "sample", 1000)


@given(TERMS, st.integers(1, 2**63 - 1))
def test_fraction_returns(numerator: int, denominator: int) -> None:
    value = Fraction(numerator, denominator)
    fields = reader(fraction_bytes(value))

    assert fields.fraction() == value
    fields.finish()


@given(st.integers(-(2**512) + 1, 2**512 - 1), st.integers(1, 2**512 - 1))
def test_wide_fraction_returns(numerator: int, denominator: int) -> None:
    value = Fraction(numerator, denominator)
    fields = reader(wide_fraction_bytes(value))

    assert fields.wide_fraction() == value
    fields.finish()


@given(st.binary(max_size=140))
def test_whatever_reads_as_a_fraction_is_written_the_same(data: bytes) -> None:
    for read, write in ((Reader.fraction, fraction_bytes), (Reader.wide_fraction, wide_fraction_bytes)):
        fields = reader(data)
        try:
            value = read(fields)
            fields.finish()
        except DecodeError:
            continue
        assert write(value) == data


@given(st.binary(min_size=16, max_size=16))
def test_a_fraction_not_in_lowest_terms_is_refused(data: bytes) -> None:
    numerator, denominator = int.from_bytes(data[:8], signed=True), int.from_bytes(data[8:])
    lowest = denominator > 0 and Fraction(numerator, denominator).denominator == denominator
    small = abs(numerator) < 2**63 and denominator < 2**63
    if lowest and small:
        assert reader(data).fraction() == Fraction(numerator, denominator)
    else:
        with pytest.raises(DecodeError):
            reader(data).fraction()


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\1\2",  # 0/2.
        b"\2\1\1\1\1",
        b"\1\0\1\1",  # Minus zero.
        b"\0\2\0\1\1\1",  # A leading zero byte.
        b"\0\1\2\1\4",  # 2/4.
        b"\0\1\1\0",  # 1/0.
        b"\0\x41" + b"\1" * 65 + b"\1\1",
    ],
)
def test_wide_fraction_refuses_second_spellings(data: bytes) -> None:
    with pytest.raises(DecodeError):
        reader(data).wide_fraction()


@pytest.mark.parametrize("value", [Fraction(2**63), Fraction(1, 2**63), Fraction(-(2**63))])
def test_fraction_beyond_63_bits_cannot_be_written(value: Fraction) -> None:
    with pytest.raises(ValueError, match="2\\*\\*63"):
        fraction_bytes(value)


def test_least_int64_is_no_numerator() -> None:
    with pytest.raises(DecodeError, match="2\\*\\*63"):
        reader((-(2**63)).to_bytes(8, signed=True) + uint(1, 8)).fraction()


@pytest.mark.parametrize(("value", "size"), [(-1, 1), (256, 1), (65_536, 2), (2**64, 8)])
def test_uint_refuses_what_does_not_fit(value: int, size: int) -> None:
    with pytest.raises(ValueError, match=str(value)):
        uint(value, size)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a\nb", "control"),
        ("a\u200bb", "control"),
        ("a\u202eb", "control"),
        ("a\ud800", "control"),
        ("a\u2028b", "control"),
        ("a\ue000", "control"),
        ("e\u0301", "NFC"),
        ("Å", "NFC"),  # U+212B, the Ångström sign.
        (" a", "white space"),
        ("a\u00a0", "white space"),
        ("", "UTF-8 bytes"),
        ("é" * 6, "UTF-8 bytes"),
    ],
)
def test_texts_that_look_like_another_are_refused(text: str, why: str) -> None:
    text = "\u212b" if text == "Å" else text

    with pytest.raises(ValueError, match=why):
        check_text(text, 1, 10)


@pytest.mark.parametrize("text", ["Fiat\u00a0500", "\u6771\u3000\u4eac", "a\u2009b", "plain"])
def test_a_blank_of_any_width_inside_a_name_prints(text: str) -> None:
    assert prints(text)
    check_text(text, 1, 40)


@pytest.mark.parametrize("text", ["a\tb", "a\u2028b", "a\u202eb", "a\ud800", "a\u0378"])
def test_what_ends_a_line_turns_it_or_is_no_character_does_not_print(text: str) -> None:
    assert not prints(text)


@given(st.text(max_size=20))
def test_every_text_is_refused_or_returns(text: str) -> None:
    try:
        check_text(text, 0, 40)
    except ValueError:
        return
    fields = reader(text_bytes(text))

    assert fields.text(0, 40) == text
    fields.finish()


def test_reader_says_where_a_layout_ends_short() -> None:
    fields = reader(sized(b"abcdef", 2)[:-2])

    with pytest.raises(DecodeError, match="2 bytes short at byte 2"):
        fields.sized(2, 0, 10)


def test_reader_checks_a_length_before_it_takes() -> None:
    with pytest.raises(DecodeError, match="4294967295 parts"):
        reader(b"\xff\xff\xff\xff").sized(4, 0, 10)
    with pytest.raises(DecodeError, match="more than 3"):
        Reader(b"abcd", "sample", 3)


def test_reader_refuses_trailing_bytes_wrong_labels_and_other_flags() -> None:
    with pytest.raises(DecodeError, match="1 trailing"):
        reader(b"a").finish()
    with pytest.raises(DecodeError, match="does not begin"):
        reader(b"FCWIND01").expect(b"FCWIND00")
    with pytest.raises(DecodeError):
        reader(b"\2").flag()
    with pytest.raises(DecodeError, match="text"):
        reader(sized(b"\xff\xfe", 2)).text(0, 10)

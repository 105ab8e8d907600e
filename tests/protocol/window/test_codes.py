"""A code is one whole number, a prefix is named by the codes that begin with it, and by no other."""

from collections.abc import Iterator
from itertools import product

import pytest
from fleetcount_client.signals import misfit
from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.window.codes import CodeForm, Codes
from fleetcount_protocol.window.domain import Prefixes, all_prefixes
from fleetcount_protocol.window.signal import Kind

DTC = Codes(form=CodeForm.DTC)
FAILURES = Codes(form=CodeForm.DTC_24)
NAMES = Codes(form=CodeForm.TEXT, alphabet="XBA", length=3)
"""Two bits a character: X, B and A are 1, 2 and 3."""


def texts(codes: Codes) -> list[str]:
    return ["".join(one) for length in range(1, codes.length + 1) for one in product(codes.alphabet, repeat=length)]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        # SAE J2012: the two bits of the letter, the two of the first digit, and three hexadecimal digits.
        ("P0301", 0x0301),
        ("P3FFF", 0x3FFF),
        ("C1234", 0b01_01 << 12 | 0x234),
        ("B2abc", 0b10_10 << 12 | 0xABC),
        ("U3000", 0b11_11 << 12),
        ("u0fff", 0b11_00 << 12 | 0xFFF),
    ],
)
def test_a_trouble_code_is_the_two_bytes_that_the_standard_gives_it(text: str, number: int) -> None:
    assert DTC.bits == 16
    assert DTC.number_of(text) == number
    assert DTC.label(number, 16) == text.upper()


@pytest.mark.parametrize(
    "text", ["", "P0301 ", "P030", "P03011", "X0301", "P4301", "P03G1", "P0301-1F", "0301", "P٠301", "P0301\n", "ſ0301"]
)
def test_what_is_spelled_otherwise_is_no_trouble_code(text: str) -> None:
    assert DTC.number_of(text) is None


def test_a_trouble_code_with_its_failure_type_has_a_third_byte() -> None:
    assert FAILURES.bits == 24
    assert FAILURES.number_of("P0301-1F") == 0x03011F
    assert FAILURES.number_of("b1a2b-c0") == 0x9A2BC0
    assert FAILURES.label(0x9A2BC0, 24) == "B1A2B-C0"
    assert [FAILURES.number_of(one) for one in ("P0301", "P03011F", "P0301-1", "P030-11F", "P0301-1G")] == [None] * 5


@pytest.mark.parametrize(
    ("codes", "prefix", "bits", "label"),
    [
        (DTC, 0x03, 8, "P03.."),
        (DTC, 0x030, 12, "P030."),
        (DTC, 0b0, 1, "[PC]...."),
        (DTC, 0b10, 2, "B...."),
        (DTC, 0b110, 3, "U[01]..."),
        (DTC, 0b00_00_01, 6, "P0[4-7].."),
        (DTC, 0b00_00_1010_1, 9, "P0A[8-F]."),
        (DTC, 0x0301 >> 1, 15, "P030[01]"),
        (FAILURES, 0x0301, 16, "P0301-.."),
        (FAILURES, 0x03011, 20, "P0301-1."),
        (FAILURES, 0x03, 8, "P03..-.."),
        (NAMES, 0b01, 2, "X…"),
        (NAMES, 0b0, 1, "X…"),
        (NAMES, 0b1, 1, "[BA]…"),
        (NAMES, 0b1111, 4, "AA…"),
        (NAMES, 0b11110, 5, "AA, AAX"),
        (NAMES, 0b11111, 5, "AA[BA]"),
        (NAMES, 0b111, 3, "A[BA]…"),
        (NAMES, 0b110, 3, "A, AX…"),
        (NAMES, 0b1100, 4, "A"),
        (NAMES, 0b11_00_00, 6, "A"),
        (NAMES, 0b11_10_01, 6, "ABX"),
    ],
)
def test_a_prefix_says_what_is_fixed(codes: Codes, prefix: int, bits: int, label: str) -> None:
    assert codes.label(prefix, bits) == label


def matching(codes: Codes, label: str) -> Iterator[str]:
    """Yield the texts that a label of texts names, by what the docstring says."""
    for text in texts(codes):
        for one in label.split(", "):
            head, bracket, rest = one.rstrip("…").partition("[")
            allowed = rest.rstrip("]")
            span = range(codes.alphabet.index(allowed[0]), codes.alphabet.index(allowed[-1]) + 1) if bracket else ()
            starts = [head + codes.alphabet[place] for place in span] if bracket else [head]
            if text.startswith(tuple(starts)) if one.endswith("…") else text in starts:
                yield text


@pytest.mark.parametrize("codes", [NAMES, Codes(form=CodeForm.TEXT, alphabet="0123456789", length=2)])
def test_the_texts_of_a_prefix_are_those_that_its_label_names(codes: Codes) -> None:
    numbers = {text: codes.number_of(text) for text in texts(codes)}
    assert len(set(numbers.values())) == len(numbers)
    assert None not in numbers.values()
    for bits in range(1, codes.bits + 1):
        held: dict[int, set[str]] = {}
        for text, number in numbers.items():
            assert number is not None
            held.setdefault(number >> codes.bits - bits, set()).add(text)
        assert held.keys() == {prefix for prefix in range(1 << bits) if codes.begins(prefix, bits)}
        for prefix, some in held.items():
            assert codes.number_of(codes.first_of(prefix, bits)) == min(numbers[text] or 0 for text in some)
        assert {prefix: set(matching(codes, codes.label(prefix, bits))) for prefix in held} == held


def test_the_first_code_of_a_prefix_begins_so() -> None:
    assert [DTC.first_of(0x13, 8), FAILURES.first_of(0x1, 4), FAILURES.first_of(0x9A2BC0, 24)] == [
        "P1300",
        "P1000-00",
        "B1A2B-C0",
    ]


def test_every_trouble_code_begins_with_every_number() -> None:
    assert all(DTC.begins(prefix, bits) for bits in (1, 5, 10) for prefix in range(1 << bits))
    assert {DTC.number_of(DTC.label(number, 16)) for number in range(1 << 16)} == set(range(1 << 16))


@pytest.mark.parametrize("text", ["", "XXXX", "x", "X ", "Y", "X\0", "Ä"])
def test_what_is_no_text_over_the_alphabet_is_no_code(text: str) -> None:
    assert NAMES.number_of(text) is None


@pytest.mark.parametrize(
    ("alphabet", "length", "said"),
    [
        ("A", 1, "2 to 64 different printable characters of ASCII"),
        ("ABA", 1, "2 to 64 different"),
        ("".join(map(chr, range(0x21, 0x21 + 65))), 1, "2 to 64 different"),
        ("A B", 1, "without the space"),
        ("A\nB", 1, "printable"),
        ("AÄ", 1, "ASCII"),
        ("AB", 0, r"length is 0, allowed with 2 characters of 2 bits each: 1 to 8"),
        ("AB", 9, "1 to 8"),
        ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 7, r"length is 7, allowed with 26 characters of 5 bits each: 1 to 6"),
        ("AB", True, "length is True"),
    ],
)
def test_texts_that_do_not_fit_are_refused(alphabet: str, length: int, said: str) -> None:
    with pytest.raises(QuestionError, match=said):
        Codes(form=CodeForm.TEXT, alphabet=alphabet, length=length)


def test_a_text_has_as_many_bits_as_its_characters_and_an_end_need() -> None:
    sizes = {size: "".join(map(chr, range(0x21, 0x21 + size))) for size in (3, 4, 31, 32, 63, 64)}
    bits = {size: Codes(form=CodeForm.TEXT, alphabet=text, length=1).bits for size, text in sizes.items()}
    assert bits == {3: 2, 4: 3, 31: 5, 32: 6, 63: 6, 64: 7}
    assert Codes(form=CodeForm.TEXT, alphabet="ABC", length=8).bits == 16


def test_only_texts_have_an_alphabet() -> None:
    with pytest.raises(QuestionError, match="alphabet and length of dtc-24 codes"):
        Codes(form=CodeForm.DTC_24, alphabet="AB", length=1)


def test_a_code_counts_for_its_prefix_and_a_number_for_none() -> None:
    domain = Prefixes(bits=8, cells=(0x03, 0x93), codes=DTC)

    readings = ("P0301", "p03ff", "B1399", "P0401", "P0301-1F", 0x0301, None, True)
    assert [domain.value_of(reading) for reading in readings] == [1, 1, 2, 0, 0, 0, 0, 0]
    assert [domain.label(value) for value in (1, 2)] == ["P03..", "B13.."]
    assert misfit(domain, Kind.TEXT) == ""
    assert misfit(domain, Kind.NUMBER) == "it is a number, and the question asks for a text"
    with pytest.raises(QuestionError, match="prefixes of 17 bits, allowed: 1 to 16"):
        Prefixes(bits=17, cells=(0,), codes=DTC)


def test_no_prefix_is_asked_with_which_no_code_begins() -> None:
    assert all_prefixes(4, NAMES).cells == (4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
    assert all_prefixes(2, Codes(form=CodeForm.TEXT, alphabet="AB", length=1)).cells == (1, 2)
    with pytest.raises(QuestionError, match="no code begins"):
        Prefixes(bits=4, cells=(3, 4), codes=NAMES)

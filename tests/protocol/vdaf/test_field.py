"""Fields: constants, vector arithmetic, canonical encoding."""

import pytest
from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.vdaf.field import FIELD64, FIELD128, PrimeField
from hypothesis import given
from hypothesis import strategies as st

TINY = PrimeField(name="F257", modulus=257, encoded_size=2, generator=3, two_adicity=8)
FIELDS = [FIELD64, FIELD128, TINY]
BY_NAME = pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)


def vectors(field: PrimeField, size: int = 20) -> st.SearchStrategy[list[int]]:
    edges = st.sampled_from([0, 1, 2, field.modulus - 1, field.modulus // 2])
    return st.lists(edges | st.integers(0, field.modulus - 1), max_size=size)


def test_the_moduli_are_those_of_the_draft() -> None:
    assert FIELD64.modulus == 2**64 - 2**32 + 1
    assert FIELD128.modulus == 2**128 - 28 * 2**64 + 1


@BY_NAME
def test_a_root_of_unity_has_exactly_its_order(field: PrimeField) -> None:
    for exponent in range(field.two_adicity + 1):
        root = field.root_of_unity(1 << exponent)

        assert pow(root, 1 << exponent, field.modulus) == 1
        assert exponent == 0 or pow(root, 1 << (exponent - 1), field.modulus) == field.modulus - 1


@BY_NAME
@pytest.mark.parametrize("order", [0, 3, 6, -2, 1 << 70])
def test_an_order_that_has_no_root_is_refused(field: PrimeField, order: int) -> None:
    with pytest.raises(UsageError, match="power of two"):
        field.root_of_unity(order)


@BY_NAME
@given(data=st.data())
def test_encoding_and_decoding_are_inverse(field: PrimeField, data: st.DataObject) -> None:
    vector = data.draw(vectors(field))

    encoded = field.encode_vector(vector)

    assert len(encoded) == field.encoded_size * len(vector)
    assert field.decode_vector(encoded, len(vector)) == vector


@BY_NAME
@given(data=st.data())
def test_only_one_encoding_decodes_to_a_vector(field: PrimeField, data: st.DataObject) -> None:
    raw = data.draw(st.binary(max_size=6 * field.encoded_size))
    count = len(raw) // field.encoded_size
    words = [int.from_bytes(raw[i * field.encoded_size :][: field.encoded_size], "little") for i in range(count)]
    canonical = len(raw) == count * field.encoded_size and all(word < field.modulus for word in words)

    if canonical:
        assert field.encode_vector(field.decode_vector(raw, count)) == raw
    else:
        with pytest.raises(DecodeError):
            field.decode_vector(raw, count)


@BY_NAME
@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("excess", [0, 1])
def test_a_word_that_is_not_below_the_modulus_is_refused(field: PrimeField, position: int, excess: int) -> None:
    words = [1, 2, 3]
    words[position] = field.modulus + excess
    raw = b"".join(word.to_bytes(field.encoded_size, "little") for word in words)

    with pytest.raises(DecodeError, match="not below"):
        field.decode_vector(raw, 3)


@BY_NAME
@pytest.mark.parametrize("change", [-1, 1, -2, 2])
def test_missing_and_trailing_bytes_are_refused(field: PrimeField, change: int) -> None:
    raw = field.encode_vector([1, 2, 3])
    raw = raw + b"\0" * change if change > 0 else raw[:change]

    with pytest.raises(DecodeError, match="bytes"):
        field.decode_vector(raw, 3)


@BY_NAME
@pytest.mark.parametrize("excess", [0, 1, 1 << 200])
def test_encoding_refuses_what_is_no_element_and_does_not_name_it(field: PrimeField, excess: int) -> None:
    for word in (field.modulus + excess, -1 - excess):
        with pytest.raises(UsageError) as caught:
            field.encode_vector([0, word])

        assert str(word) not in str(caught.value)


@BY_NAME
@given(data=st.data())
def test_vector_arithmetic_is_arithmetic_modulo_p(field: PrimeField, data: st.DataObject) -> None:
    left = data.draw(vectors(field))
    right = data.draw(st.lists(st.integers(0, field.modulus - 1), min_size=len(left), max_size=len(left)))

    total = field.add_vectors([left, right, left], len(left))

    assert total == [(2 * a + b) % field.modulus for a, b in zip(left, right, strict=True)]
    assert field.subtract_vectors(total, left) == field.add_vectors([left, right], len(left))
    assert field.inner_product(left, right) == sum(a * b for a, b in zip(left, right, strict=True)) % field.modulus
    assert all(field.inverse(word) * word % field.modulus == 1 for word in left if word)


def test_the_sum_of_no_vector_is_zero() -> None:
    assert FIELD64.add_vectors([], 3) == [0, 0, 0]


def test_vectors_of_different_lengths_do_not_add() -> None:
    with pytest.raises(UsageError, match="elements"):
        FIELD64.add_vectors([[1, 2], [1]], 2)
    with pytest.raises(UsageError, match="elements"):
        FIELD64.subtract_vectors([1, 2], [1])


def test_zero_has_no_inverse() -> None:
    with pytest.raises(UsageError, match="no inverse"):
        FIELD64.inverse(FIELD64.modulus)


def test_powers_start_at_the_first() -> None:
    assert TINY.powers(3, 6) == [3, 9, 27, 81, 243, 729 % 257]


@pytest.mark.parametrize(
    ("modulus", "size", "generator", "adicity"),
    [(257, 1, 3, 8), (257, 2, 1, 8), (257, 2, 3, 7), (17, 1, 3, 0), (2, 1, 1, 1)],
)
def test_constants_that_contradict_each_other_make_no_field(
    modulus: int, size: int, generator: int, adicity: int
) -> None:
    with pytest.raises(UsageError):
        PrimeField(name="bad", modulus=modulus, encoded_size=size, generator=generator, two_adicity=adicity)

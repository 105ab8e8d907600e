"""A sealed set at rest: a bit a report, read again as it was."""

import pytest
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.rows import packed, unpacked
from hypothesis import given
from hypothesis import strategies as st

CHOSEN = st.lists(st.sampled_from([0, 1]), max_size=40).map(bytes)


@given(CHOSEN)
def test_a_set_comes_back_from_its_bits(chosen: bytes) -> None:
    assert unpacked(packed(chosen)) == chosen


def test_a_set_takes_a_bit_a_report() -> None:
    assert len(packed(bytes(2**20))) == 8 + 2**17
    assert packed(bytes((1, 0, 0, 0, 0, 0, 0, 0, 1))) == (9).to_bytes(8) + b"\x80\x80"


@pytest.mark.parametrize("kept", [packed(bytes(9))[:-1], packed(bytes(8)) + b"\0", bytes(7), b""])
def test_what_has_not_as_many_bits_as_it_says_is_damage(kept: bytes) -> None:
    with pytest.raises(StoreError, match="a sealed set"):
        unpacked(kept)

"""The quadtree of places: a position has one place, and the squares that hold it are its prefixes."""

from itertools import pairwise

import pytest
from fleetcount_protocol.window.domain import PLACE_BITS, Prefixes
from fleetcount_simulator.quadtree import Quadtree
from hypothesis import given
from hypothesis import strategies as st

TREE = Quadtree(x0=-1000, y0=-500, size=2)
SIDE = 2 * (1 << 16)
inside = st.floats(min_value=0, max_value=SIDE, exclude_max=True)


@pytest.mark.parametrize(
    ("x", "y", "place"),
    [(0, 0, 0), (2, 0, 0b01), (0, 2, 0b10), (2, 2, 0b11), (4, 0, 0b0100), (SIDE - 1, SIDE - 1, 2**32 - 1)],
)
def test_rows_stand_before_columns_bit_by_bit(x: float, y: float, place: int) -> None:
    assert TREE.place_of(x - 1000, y - 500) == place


@pytest.mark.parametrize(("x", "y"), [(-0.1, 0), (0, -0.1), (SIDE, 0), (0, SIDE)])
def test_outside_the_square_there_is_no_place(x: float, y: float) -> None:
    assert TREE.place_of(x - 1000, y - 500) is None


@given(x=inside, y=inside, bits=st.integers(1, PLACE_BITS))
def test_a_position_lies_in_every_prefix_of_its_place_and_in_no_other(x: float, y: float, bits: int) -> None:
    at = x - 1000, y - 500
    place = TREE.place_of(*at)
    assert place is not None

    left, lower, right, upper = TREE.corners(place >> PLACE_BITS - bits, bits)

    assert left <= at[0] < right
    assert lower <= at[1] < upper
    assert (right - left) * (upper - lower) == SIDE * SIDE / (1 << bits)
    assert Prefixes(bits=bits, cells=(place >> PLACE_BITS - bits,)).value_of(place) == 1


def test_the_children_of_a_square_fill_it() -> None:
    ends = [TREE.corners(0b1001, 4), *(TREE.corners(0b1001 << 2 | child, 6) for child in range(4))]

    whole, *parts = ends
    assert sum((right - left) * (upper - lower) for left, lower, right, upper in parts) == (
        (whole[2] - whole[0]) * (whole[3] - whole[1])
    )
    assert len(set(parts)) == 4
    assert all(one[0] >= whole[0] and one[2] <= whole[2] for one in parts)
    assert all(first[1] <= second[1] for first, second in pairwise(parts))

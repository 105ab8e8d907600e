"""Populations that are counts: scaled exactly, O(V) whatever their size, shaped as asked; the shipped data sets."""

import csv
import tracemalloc
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import fleetcount_data
import numpy as np
import pytest
from fleetcount_simulator.model import Population
from fleetcount_simulator.populations import build
from fleetcount_simulator.populations.fixed import shared_out
from hypothesis import given
from hypothesis import strategies as st

NONE = {"cells": "none"}
DATA = fleetcount_data.folder()
BOX = {"cells": "square", "size_m": 100, "bounds": [0, 0, 4000, 2000]}


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=40).filter(any), st.integers(2, 10**12))
def test_shares_are_the_nearest_whole_numbers_with_the_right_sum(weights: list[int], total: int) -> None:
    shares = shared_out(weights, total).tolist()

    exact = [Fraction(weight * total, sum(weights)) for weight in weights]
    assert sum(shares) == total
    assert all(int(part) <= share <= int(part) + 1 for share, part in zip(shares, exact, strict=True))
    # The largest remainders are rounded up, and of equal ones the first.
    order = sorted(range(len(exact)), key=lambda place: (int(exact[place]) - exact[place], place))
    ups = [shares[place] - int(exact[place]) for place in order]
    assert ups == sorted(ups, reverse=True)


def counts(**keys: Any) -> Population:
    return build({"kind": "counts", "counts": {"north": 700, "south": 300, "west": 0}} | keys, NONE, 1, Path())


def test_counts_are_the_values_in_their_order() -> None:
    population = counts(elsewhere=50)

    assert population.question.labels == ("north", "south", "west")
    assert population.histogram(0).tolist() == [50, 700, 300, 0]
    assert population.devices == 1050
    assert population.reachable(0, 2, 0, 1050) is None


def test_counts_scale_exactly() -> None:
    assert counts(devices=10**12).histogram(0).tolist() == [0, 7 * 10**11, 3 * 10**11, 0]
    assert counts(devices=7).histogram(0).tolist() == [0, 5, 2, 0]


def test_an_empty_value_of_a_table_is_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("city,n\n,9\nb,2\na,1\n")
    table = {"kind": "counts", "file": "t.csv", "value": "city", "count": "n"}

    found = build(table, {"cells": "categories"}, 1, tmp_path)
    declared = build(table, {"cells": "categories", "values": ["a", "b", "c"]}, 1, tmp_path)

    assert found.question.labels == ("b", "a")
    assert found.histogram(0).tolist() == [9, 2, 1]
    assert declared.histogram(0).tolist() == [9, 1, 2, 0]


def test_counts_of_hexagons_lie_on_the_map(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("value,count\n891ea0412dbffff,3\n891ea04145bffff,4\n")

    question = build({"kind": "counts", "file": "t.csv"}, {"cells": "h3", "resolution": 9}, 1, tmp_path).question

    assert question.labels == ("891ea0412dbffff", "891ea04145bffff")
    assert question.places is not None
    assert question.places.unit == "deg"


@pytest.mark.parametrize(
    ("population", "question"),
    [
        ({"kind": "counts", "counts": {"a": 1, "b": 2}, "devices": 10**12}, NONE),
        ({"kind": "city", "devices": 10**12, "values": 5835}, NONE),
        ({"kind": "city", "devices": 10**9, "shape": "normal"}, BOX),
    ],
)
def test_a_trillion_devices_take_the_memory_of_their_values(
    population: dict[str, Any], question: dict[str, Any]
) -> None:
    tracemalloc.start()
    try:
        made = build(population, question, 1, Path())
        last = made.truths(0, made.devices - 1000, made.devices)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert made.histogram(0).sum() == made.devices == population["devices"]
    assert len(last) == 1000
    assert peak < 16 * 2**20


def city(question: dict[str, Any] = NONE, seed: int = 1, **keys: Any) -> np.ndarray[Any, Any]:
    return build({"kind": "city", "devices": 10**9} | keys, question, seed, Path()).histogram(0)


def test_a_zipf_city_has_the_ratios_of_the_law() -> None:
    counted = city(values=100, exponent=Decimal("1.5"))

    assert counted[0] == 0
    ratios = counted[1] / counted[1:]
    assert ratios == pytest.approx(np.arange(1, 101) ** 1.5, rel=1e-4)


def test_on_a_map_the_seed_says_which_square_is_the_busiest() -> None:
    first, second = city(BOX, seed=1), city(BOX, seed=2)

    assert sorted(first.tolist()) == sorted(second.tolist())
    assert first.argmax() != second.argmax()


def test_a_uniform_city_is_even_and_the_rest_is_elsewhere() -> None:
    counted = city(values=7, shape="uniform", elsewhere="3/10")

    assert counted[0] == 3 * 10**8
    assert set(counted[1:].tolist()) == {10**8}


def test_a_listed_city_follows_its_weights() -> None:
    assert city(values=3, shape="list", weights=[1, 0, "1/4"]).tolist() == [0, 8 * 10**8, 0, 2 * 10**8]


def test_hot_spots_are_busy_around_one_place_and_narrow_ones_more_so() -> None:
    narrow = city(BOX, shape="normal", hot_spots=1, spread=Decimal("0.05"))[1:].reshape(20, 40)
    wide = city(BOX, shape="normal", hot_spots=1, spread=Decimal("0.5"))[1:].reshape(20, 40)

    assert narrow.max() > 20 * wide.max()
    row, column = np.unravel_index(narrow.argmax(), narrow.shape)
    assert np.all(np.diff(narrow[row, column:]) <= 0)
    assert np.all(np.diff(narrow[: row + 1, column]) >= 0)


def test_the_shipped_check_ins_are_the_busiest_of_the_histogram() -> None:
    population = build({"kind": "gowalla"}, NONE, 1, Path())
    with (DATA / "gowalla_nyc" / "histogram.csv").open(newline="") as file:
        rows = [(int(row["checkins"]), int(row["locations"])) for row in csv.DictReader(file)]
    busiest = sorted((checkins for checkins, locations in rows for _ in range(locations)), reverse=True)

    assert len(busiest) == 21_509
    assert population.question.values == 5835
    assert population.histogram(0).tolist() == [0, *busiest[:5835]]
    assert population.question.labels[0] == "LGA LaGuardia Airport (12505)"
    assert population.question.labels[5834] == "place 5835"


LOCATIONS = """location,checkins,users,lat,lon,name
1,100,10,40.70,-74.00,Pier
2,50,40,40.7001,-74.0001,
3,30,3,40.80,-73.95,"Park, North"
4,7,7,40.80,-73.95,Pier
"""


def test_a_file_of_places_gives_names_squares_and_hexagons(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text(LOCATIONS)
    table = {"kind": "gowalla", "file": "l.csv", "places": 3}
    bounds = [Decimal("-74.01"), Decimal("40.69"), Decimal("-73.99"), Decimal("40.71")]

    named = build(table, NONE, 1, tmp_path)
    users = build(table | {"unit": "users"}, NONE, 1, tmp_path)
    hexagons = build(table | {"places": 4}, {"cells": "h3", "resolution": 6}, 1, tmp_path)
    squares = build(table, {"cells": "square", "size_m": 5000, "bounds": bounds}, 1, tmp_path)

    assert named.question.labels == ("Pier (1)", "location 2", "Park, North (3)")
    assert named.histogram(0).tolist() == [0, 100, 50, 30]
    assert users.histogram(0).tolist() == [0, 40, 10, 7]
    assert users.question.labels == ("location 2", "Pier (1)", "Pier (4)")
    assert sorted(hexagons.histogram(0).tolist()) == [0, 37, 150]
    assert squares.histogram(0).tolist() == [30, 150]


def test_categories_stand_as_the_table_says_or_are_drawn_without_repetition(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("vehicle,value\n" + "".join(f"{row},v{row}\n" for row in range(99)) + "x,\n")
    table, question = {"kind": "categories", "file": "t.csv"}, {"cells": "categories"}

    whole = build(table, question, 1, tmp_path)
    drawn = build(table | {"devices": 60}, question, 1, tmp_path)
    other = build(table | {"devices": 60}, question, 2, tmp_path)

    assert whole.truths(0, 99, 100).tolist() == [0]
    assert whole.histogram(5).tolist() == [1] * 100
    assert drawn.histogram(0).max() == 1
    assert not np.array_equal(drawn.histogram(0), other.histogram(0))

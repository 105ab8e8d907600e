"""A release of several signals: its table in Python, in the terminal and in files, every number with its interval."""

import csv
import json
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import fleetcount as fc
import numpy as np
import pytest
from fleetcount.read.report import table_lines
from fleetcount_analysis.answers import joined_levels
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.question.fields import Coin
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.release.record_json import record_from_json
from fleetcount_protocol.window.domain import Bins, Categories, SquareGrid
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.window.frame import Frame

from tests.cli.analyst.test_releases import save, true_record, trusted_toml
from tests.support.protocol_samples import crossed, one_round_window, with_margins
from tests.support.question_samples import GAUSSIAN, one_round_question, sampling_question
from tests.support.released import write_question

SPEEDS = Bins(edges=(Fraction(0), Fraction(50)), open_above=True, unit="km/h")
FUELS = Categories(names=("diesel", "petrol", "other"))
CROSS = crossed(SPEEDS, FUELS)
SPEED, FUEL = "Vehicle.Speed", "Vehicle.Category"
WINDOW = one_round_window(
    Mode.DIRECT, signal=SPEED, domain=CROSS, release=with_margins(replace(GAUSSIAN, noise_variance=Fraction(50)), 2)
)
COUNTS = [700, 200, 0, 310, 90, 500]
RAW = [*COUNTS, 905, 898, 1001, 299, 495, 1811]


@pytest.fixture
def release(tmp_path: Path) -> fc.VerifiedRelease:
    (tmp_path / "trusted.toml").write_text(trusted_toml(WINDOW))
    path = save(true_record(WINDOW, RAW), tmp_path / "release.json")
    return fc.read_release(path).verify(fc.read_keys(tmp_path / "trusted.toml"))


def test_cells_margins_and_total_are_joined_and_named(release: fc.VerifiedRelease) -> None:
    found, joined = release.crosstab(), joined_levels(WINDOW.design, RAW, WINDOW.release.level)
    columns = found.columns_of()

    assert (found.signals, found.shape) == ((SPEED, FUEL), (2, 3))
    assert list(columns) == [SPEED, FUEL, "estimate", "low", "high"]
    assert columns[FUEL] == ["diesel", "petrol", "other"] * 2
    assert columns[SPEED] == ["[0, 50) km/h"] * 3 + ["[50, ∞) km/h"] * 3
    assert np.allclose(columns["estimate"], joined.estimates[0])
    assert list(columns["low"]) == joined.low[0].tolist()
    for place, signal in enumerate((SPEED, FUEL)):
        margin = found.margin(signal).columns_of()
        assert np.allclose(margin["estimate"], joined.estimates[1 + place])
        assert list(margin["high"]) == joined.high[1 + place].tolist()
        assert found.margin(place).columns_of() == margin
    assert (found.total().low, found.total().high) == (joined.low[3][0], joined.high[3][0])
    assert math.isclose(found.total().estimate, release.total().estimate)
    assert found.cell("[50, ∞) km/h", "other") == found.cell(2, 3) == release.sum("[50, ∞) km/h x other")
    assert release.sum("* x petrol") == release.sum(["[0, 50) km/h x petrol", "[50, ∞) km/h x petrol"])
    assert release.sum("* x petrol").low == joined.low[2][1]


def test_rows_of_a_release_have_a_column_for_each_signal(release: fc.VerifiedRelease) -> None:
    columns = release.columns_of()

    assert list(columns)[:5] == ["zoom", "cell", "label", SPEED, FUEL]
    assert list(zip(columns[SPEED], columns[FUEL], strict=True))[5:] == [
        ("[50, ∞) km/h", "other"),
        ("[0, 50) km/h", "*"),
        ("[50, ∞) km/h", "*"),
        ("*", "diesel"),
        ("*", "petrol"),
        ("*", "other"),
        ("*", "*"),
    ]


def test_shares_are_of_all_of_a_row_or_of_a_column(release: fc.VerifiedRelease) -> None:
    found = release.crosstab()
    true = np.array(COUNTS).reshape(2, 3)

    for of, whole in ((None, true.sum()), (SPEED, true.sum(axis=1)[:, None]), (1, true.sum(axis=0)[None, :])):
        columns = found.shares(of).columns_of()
        expected = (true / whole).ravel()
        low, high = np.array(columns["low"]), np.array(columns["high"])
        assert ((low - 0.01 <= expected) & (expected <= high + 0.01)).all()
        assert (high - low < 0.4).all()
    assert found.share(1, 2, of=SPEED) == found.share("[0, 50) km/h", "petrol", of=0)
    assert found.share(1, 2).high < found.share(1, 2, of=FUEL).low


def test_bins_have_a_mean_for_each_value_of_the_other_signal(tmp_path: Path) -> None:
    closed = replace(SPEEDS, edges=(Fraction(0), Fraction(50), Fraction(90)), open_above=False)
    window = replace(WINDOW, domain=crossed(closed, FUELS))
    (tmp_path / "trusted.toml").write_text(trusted_toml(window))
    path = save(true_record(window, RAW), tmp_path / "release.json")
    found = fc.read_release(path).verify(fc.read_keys(tmp_path / "trusted.toml")).crosstab()

    means = found.means(SPEED).columns_of()

    assert list(means) == [FUEL, "estimate", "low", "high"]
    assert means[FUEL] == ["diesel", "petrol", "other"]
    assert found.means(0).columns_of() == means
    for place, fast in enumerate((310 / 1010, 90 / 290, 1)):
        assert means["low"][place] < 50 * fast + 1
        assert means["high"][place] > 50 * (1 - fast) + 90 * fast - 1
        assert means["estimate"][place] == pytest.approx(25 * (1 - fast) + 70 * fast, abs=2)
    assert found.counts.mean(0, {}).estimate == pytest.approx((900 * 25 + 900 * 70) / 1800, abs=1)


def test_rows_are_compared_value_by_value(release: fc.VerifiedRelease) -> None:
    found = release.crosstab().difference(SPEED, 1, 2).columns_of()

    assert list(found) == [FUEL, "estimate", "low", "high"]
    for place, expected in enumerate((390, 110, -500)):
        assert found["low"][place] - 20 <= expected <= found["high"][place] + 20
        assert found["low"][place] <= found["estimate"][place] <= found["high"][place]
    back = release.crosstab().difference(SPEED, 2, 1).columns_of()
    assert np.allclose(back["estimate"], -np.array(found["estimate"]))


def test_numbers_of_numpy_name_signals_and_values_as_those_of_python_do(release: fc.VerifiedRelease) -> None:
    found, (zero, one, two) = release.crosstab(), np.arange(3)

    assert found.cell(one, two) == found.cell(1, 2)
    assert found.share(one, two, of=zero) == found.share(1, 2, of=0)
    assert found.margin(one).columns_of() == found.margin(1).columns_of()
    assert found.difference(zero, one, two).columns_of() == found.difference(0, 1, 2).columns_of()


def test_what_a_table_does_not_have_is_refused(release: fc.VerifiedRelease) -> None:
    found = release.crosstab()
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: found.margin("Vehicle.Speeed"), "does not ask for 'Vehicle.Speeed'; did you mean 'Vehicle.Speed'"),
        (lambda: found.margin(2), "does not ask for '2'; there are Vehicle.Speed, Vehicle.Category"),
        (lambda: found.cell("diesel"), "1 values; allowed is one of each signal: Vehicle.Speed, Vehicle.Category"),
        (lambda: found.cell(1, "dissel"), "Vehicle.Category has no value 'dissel'; did you mean 'diesel'"),
        (lambda: found.cell(0, 1), "Vehicle.Speed has no value '0'; there are 2"),
        (lambda: found.cell(True, 1), "Vehicle.Speed has no value 'True'"),
        (lambda: found.difference(FUEL, "diesel", 1), "'diesel' and 1 are one value of Vehicle.Category"),
        (release.map, "asks for several signals"),
        (lambda: release.sum(["* x petrol", "total"]), "count the same devices"),
        (release.mean, "asks for no numbers"),
        (lambda: found.means(FUEL), "Vehicle.Category of .* is not in bins"),
        (lambda: found.means(SPEED), "has a last bin '.50, ∞. km/h', so that no mean is known"),
    ]
    for ask, said in wrong:
        with pytest.raises(fc.UsageError, match=said.replace("* x", r"\* x")):
            ask()


def test_a_question_for_one_signal_has_no_table_of_several(tmp_path: Path) -> None:
    window = one_round_window(Mode.DIRECT, domain=FUELS)
    (tmp_path / "trusted.toml").write_text(trusted_toml(window))
    path = save(true_record(window, [1, 2, 3]), tmp_path / "release.json")
    alone = fc.read_release(path).verify(fc.read_keys(tmp_path / "trusted.toml"))

    with pytest.raises(fc.UsageError, match="asks for one signal"):
        alone.crosstab()


def test_a_table_is_drawn_with_its_margins_where_there_is_room(
    release: fc.VerifiedRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = release.record
    monkeypatch.setenv("COLUMNS", "100")
    lines = table_lines(record)
    monkeypatch.setenv("COLUMNS", "60")
    narrow = table_lines(record)

    assert lines[0] == f"{SPEED} in rows, {FUEL} in columns; 95 % intervals, each alone"
    assert lines[1].split() == ["diesel", "petrol", "other", "all"]
    assert [line.split("  ")[0] for line in lines[2:]] == ["[0, 50) km/h", "[50, ∞) km/h", "all"]
    found = release.crosstab()
    assert lines[-1].split("  ")[-1].strip() == f"{found.total().low:,} to {found.total().high:,}"
    assert all(len(line) <= 100 for line in lines)
    assert any(line.startswith("* x diesel") for line in narrow)
    assert "<td" in found._repr_html_()
    assert repr(found) == f"<Crosstab {WINDOW.name!r} of {SPEED} x {FUEL}, 2 by 3>"


FRAMED = SquareGrid(
    x0=Fraction(0),
    y0=Fraction(0),
    size=Fraction(250),
    columns=2,
    rows=1,
    frame=Frame(epsg=3857, offset_x="0", offset_y="0"),
)


def three() -> Question:
    """Return a week of a question for three signals, one of them places, with margins."""
    release = with_margins(replace(GAUSSIAN, noise_variance=Fraction(2)), 3)
    return one_round_question(Mode.DIRECT, signal=SPEED, domain=crossed(SPEEDS, FRAMED, FUELS), release=release)


def test_files_have_a_column_for_each_signal(fleetcount: Callable, tmp_path: Path) -> None:
    asked, folder = three(), tmp_path / "got"
    truth = np.arange(1, 13) * 100
    write_question(folder, asked, (0, 1), lambda index: truth + index)

    for name in ("t.csv", "t.parquet", "t.geojson"):
        ran = fleetcount("question", "export", "--records", folder, "--output", tmp_path / name)
        assert ran.code == 0, ran.err
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()[1:]))
    assert [*rows[0]][4:9] == ["label", SPEED, "Vehicle.CurrentLocation", FUEL, "raw"]
    assert len(rows) == 24
    assert rows[4]["label"] == " x ".join(rows[4][name] for name in (SPEED, "Vehicle.CurrentLocation", FUEL))
    shapes = json.loads((tmp_path / "t.geojson").read_text())
    places = [str(one["geometry"]["coordinates"]) for one in shapes["features"]]
    assert len(set(places)) == 2
    assert places[0] == places[1] == places[2] != places[3]
    assert shapes["features"][3]["properties"][FUEL] == "diesel"
    assert shapes["fleetcount"]["signals"] == [SPEED, "Vehicle.CurrentLocation", FUEL]
    assert len(shapes["fleetcount"]["margins"]) == 3
    found = fc.read_releases(folder).crosstab([0, 1])
    assert found.shape == (2, 2, 3)
    both = found.margin(SPEED).columns_of()
    for place, expected in enumerate((4_200 + 6, 11_400 + 6)):
        assert both["low"][place] <= expected <= both["high"][place]
    # Joined with all margins a sum of a district has its own width.
    ran = fleetcount("question", "export", "--records", folder, "--sum", "1-6", "--json")
    (answer,) = json.loads(ran.out)["answers"]
    assert (answer["low"], answer["high"]) == (both["low"][0], both["high"][0])


@pytest.mark.parametrize("total", [True, False])
def test_counts_that_add_up_have_each_margin_beside_its_own_raw_number(
    fleetcount: Callable, tmp_path: Path, total: bool
) -> None:
    asked = three()
    opened = asked.release if total else replace(asked.release, coarser=asked.release.coarser[:3])
    write_question(tmp_path / "got", replace(asked, release=opened), (0,), lambda _: np.arange(1, 13) * 100)
    record = fc.read_releases(tmp_path / "got")[0].record

    ran = fleetcount("question", "export", "--records", tmp_path / "got", "--consistent", "--json")

    assert ran.code == 0, ran.err
    rows = json.loads(ran.out)["answers"]
    assert [(one["label"], one["raw"]) for one in rows] == [(cell.label, cell.raw) for cell in record.cells]
    joined = joined_levels(record.window.design, [cell.raw for cell in record.cells], record.level)
    assert [one["estimate"] for one in rows] == [one for level in joined.estimates for one in level.tolist()]
    # Beside the least squares of all numbers, each a sum of the cells: the noise of the cells on each but the total.
    levels, laws = record.window.design.levels, record.window.design.laws
    sums = np.array([levels.all_sums(cell) for cell in np.eye(12, dtype=np.int64).tolist()]).T
    weights = np.repeat([1 / law.draw_variance for law in laws], levels.sizes) ** 0.5
    cells = np.linalg.lstsq(sums * weights[:, None], [one["raw"] for one in rows] * weights, rcond=None)[0]
    assert np.allclose([one["estimate"] for one in rows], sums @ cells)
    said = fleetcount("question", "export", "--records", tmp_path / "got", "--consistent").out
    assert f"counts of the cells, the margins{' and the total' * total} that add up" in said
    assert ("the total: " in said) == total


def test_the_released_file_says_its_margins(release: fc.VerifiedRelease, tmp_path: Path) -> None:
    text = json.loads((tmp_path / "release.json").read_text())
    record, _ = record_from_json(json.dumps(text))

    assert [cell["label"] for cell in text["cells"]][6:] == [
        "[0, 50) km/h x *",
        "[50, ∞) km/h x *",
        "* x diesel",
        "* x petrol",
        "* x other",
        "total",
    ]
    assert {"margin 1", "margin 2", "total"} <= set(text["noise"][0]["coarser"])
    assert record == release.record


def test_windows_that_share_a_toss_have_no_share_and_a_window_named_twice_counts_once(tmp_path: Path) -> None:
    bins = Bins(edges=(Fraction(0), Fraction(50), Fraction(100)), open_above=False, unit="km/h")
    cross = crossed(bins, Categories(names=("diesel", "petrol")))
    counts = np.array([1000, 200, 300, 4000])
    die = SamplingDie.uniform(Fraction(1, 4), 4)
    tossed = sampling_question(signal=SPEED, domain=cross, mechanism=die, coin=Coin.QUESTION)
    write_question(tmp_path / "tossed", tossed, (0, 1), lambda _: counts)
    direct = one_round_question(Mode.DIRECT, signal=SPEED, domain=cross, release=GAUSSIAN)
    write_question(tmp_path / "direct", direct, (0, 1), lambda _: counts)
    shared, apart = fc.read_releases(tmp_path / "tossed"), fc.read_releases(tmp_path / "direct")

    for refused in (lambda: shared.crosstab().share(1, 1), lambda: shared.crosstab().means(SPEED)):
        with pytest.raises(fc.UsageError, match=r"windows 0 to 1 .* share a toss of the coin"):
            refused()

    assert 0 < shared.crosstab(1).share(1, 1).low < shared.crosstab(1).share(1, 1).high < 1
    assert apart.crosstab([1, 1]).share(1, 1) == apart.crosstab(1).share(1, 1)
    assert apart.share(1, [1, 1]) == apart.share(1, 1)

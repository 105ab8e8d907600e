"""A release in Python: no number before its signatures are verified, then a table, sums and pictures."""

import importlib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import fleetcount as fc
import matplotlib as mpl
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount.keys.party_files import reader_toml
from fleetcount_analysis.reading import exact_estimates, read
from fleetcount_protocol.errors import FleetcountError, SignatureError, UsageError
from fleetcount_protocol.release.record import ReleaseRecord, sign_record
from fleetcount_protocol.release.record_json import record_to_json
from fleetcount_protocol.window.domain import Categories, SquareGrid
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.window.window import Window

from tests.support.cases import case
from tests.support.protocol_samples import every_window, one_round_window, record, sampling_window, signing_key

COLUMNS = ["cell", "label", "x", "y", "raw", "estimate", "low", "high"]


def true_record(window: Window, raw: list[int]) -> ReleaseRecord:
    """Return a record whose estimates and intervals are those of its opened numbers."""
    made = record(window)
    reading = read(window.design, raw, window.release.level)
    exact = exact_estimates(window.design, raw)
    cells = raw[1:] if window.design.baseline_opened else raw
    parts = zip(made.cells, cells, exact, reading.low.tolist(), reading.high.tolist(), strict=True)
    return replace(
        made,
        cells=tuple(replace(cell, raw=y, estimate=x, low=low, high=high) for cell, y, x, low, high in parts),
        baseline_raw=raw[0] if window.design.baseline_opened else None,
    )


def save(made: ReleaseRecord, path: Path) -> Path:
    parties = range(len(made.window.aggregators))
    path.write_text(record_to_json(made, [sign_record(made, signing_key(place)) for place in parties]))
    return path


@pytest.fixture
def keys(tmp_path: Path) -> fc.Keys:
    (tmp_path / "trusted.toml").write_text(trusted_toml(sampling_window()))
    return fc.read_keys(tmp_path / "trusted.toml")


def trusted_toml(window: Window) -> str:
    """Return a file of nothing but aggregators."""
    return "[[aggregators]]" + reader_toml("test", window.aggregators).partition("[[aggregators]]")[2]


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    domain = SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(250), columns=4, rows=3)
    window = one_round_window(Mode.DIRECT, domain=domain)
    return save(true_record(window, [10 * value - 15 for value in range(1, 13)]), tmp_path / "release.json")


@pytest.fixture
def release(grid: Path, keys: fc.Keys) -> fc.VerifiedRelease:
    return fc.read_release(grid).verify(keys)


@pytest.mark.parametrize("name", ["to_pandas", "record", "sum", "statement", "plot", "labels", "columns_of"])
def test_before_verify_there_is_no_number(grid: Path, name: str) -> None:
    release = fc.read_release(grid)

    with pytest.raises(fc.UnverifiedError, match=rf"{name} is known only after verification.*release\.verify"):
        getattr(release, name)
    assert not hasattr(release, "_repr_html_")
    assert "not verified" in repr(release)
    with pytest.raises(AttributeError, match="no attribute 'to_pandaz'"):
        _ = release.to_pandaz  # type: ignore[attr-defined] # that is the point


def test_a_verified_release_is_tidy(release: fc.VerifiedRelease) -> None:
    pandas = release.to_pandas()

    assert list(pandas.columns) == COLUMNS
    assert len(pandas) == 12
    assert pandas["label"].tolist()[:5] == ["0,0", "1,0", "2,0", "3,0", "0,1"]
    assert pandas["raw"].tolist() == [10 * value - 15 for value in range(1, 13)]
    assert (pandas["low"] <= pandas["high"]).all()
    assert str(pandas["raw"].dtype) == "int64"


@pytest.mark.nightly
def test_a_verified_release_is_the_same_in_every_library(release: fc.VerifiedRelease) -> None:
    pytest.importorskip("polars", reason="needs Polars (`make nightly` installs it)")
    pytest.importorskip("pyarrow", reason="needs pyarrow (`make nightly` installs it)")

    pandas, polars, arrow = release.to_pandas(), release.to_polars(), release.to_arrow()

    assert list(pandas.columns) == polars.columns == arrow.column_names == COLUMNS
    assert len(pandas) == len(polars) == arrow.num_rows == 12
    assert pandas["raw"].tolist() == polars["raw"].to_list() == arrow["raw"].to_pylist()


def test_a_sum_has_its_own_interval_which_is_narrower_than_the_sum_of_ends(release: fc.VerifiedRelease) -> None:
    chosen = ["3,1", "0,2", "1,2"]

    found = release.sum(chosen)

    frame = release.to_pandas().set_index("label").loc[chosen]
    assert found.estimate == pytest.approx(float(frame["estimate"].sum()))
    assert found.low <= found.estimate <= found.high
    assert found.high - found.low < int((frame["high"] - frame["low"]).sum())
    assert release.sum([8, 9, 10]) == found
    assert str(found).startswith(f"{found.low:,} to {found.high:,} (95 % interval, estimate ")


def test_a_pair_is_one_square_of_a_grid_and_never_two_cells(release: fc.VerifiedRelease) -> None:
    frame = release.to_pandas()
    by_square = {(row.x, row.y): row for row in frame.itertuples()}

    assert [f"{x},{y}" for x, y in zip(frame["x"], frame["y"], strict=True)] == frame["label"].tolist()
    found = release.sum((3, 1))
    assert (found.low, found.high) == (by_square[3, 1].low, by_square[3, 1].high)
    assert release.sum([(3, 1), (0, 2)]) == release.sum(["3,1", "0,2"])
    assert release.sum(np.int64(8)) == release.sum(8)
    with pytest.raises(fc.UsageError, match="no cell has the label '1,3'"):
        release.sum((1, 3))


def test_a_pair_of_numbers_names_two_cells_where_there_are_no_squares(tmp_path: Path, keys: fc.Keys) -> None:
    window = one_round_window(Mode.DIRECT, domain=Categories(names=("diesel", "petrol", "electric")))
    release = fc.read_release(save(true_record(window, [5, 60, 7]), tmp_path / "fuel.json")).verify(keys)

    assert release.sum((1, 3)) == release.sum(["diesel", "electric"])


def test_one_cell_s_sum_is_its_own_interval(release: fc.VerifiedRelease) -> None:
    frame = release.to_pandas()

    for row in frame.itertuples():
        found = release.sum(row.label)
        assert (found.low, found.high) == (row.low, row.high)


def test_a_label_that_is_not_there_is_refused_with_the_nearest(tmp_path: Path, keys: fc.Keys) -> None:
    window = one_round_window(Mode.DIRECT, domain=Categories(names=("diesel", "petrol", "electric")))
    release = fc.read_release(save(true_record(window, [5, 60, 7]), tmp_path / "fuel.json")).verify(keys)

    with pytest.raises(UsageError, match="no cell has the label 'electrik'; did you mean 'electric'"):
        release.sum(["petrol", "electrik"])
    with pytest.raises(UsageError, match="'0'; there are 3, 'diesel' to 'electric'"):
        release.sum(0)
    with pytest.raises(UsageError, match="no cell has the label 'True'"):
        release.sum([True])
    for asked in (release.sum, release.share):
        with pytest.raises(UsageError, match="0 cells are named, allowed: one or more"):
            asked([])
    with pytest.raises(UsageError, match="asks for no places"):
        release.map()


def test_a_release_of_zooms_names_them_and_adds_within_one(tmp_path: Path, keys: fc.Keys) -> None:
    window = every_window()["direct_zooms"]
    made = true_record(window, list(range(10, 10 + window.design.output_count)))
    release = fc.read_release(save(made, tmp_path / "zooms.json")).verify(keys)
    frame = release.to_pandas()

    coarse = frame[frame["zoom"] == 1]["label"].tolist()

    assert list(frame.columns) == ["zoom", *COLUMNS]
    assert sorted(set(frame["zoom"])) == list(range(window.design.levels.count))
    assert release.sum(coarse).estimate == pytest.approx(float(frame[frame["zoom"] == 1]["estimate"].sum()))
    with pytest.raises(UsageError, match="allowed: one zoom"):
        release.sum([1, coarse[0]])


def test_every_kind_of_release_has_a_table_a_sum_and_a_statement(tmp_path: Path) -> None:
    for name in sorted(every_window()):
        with case(name):
            window = every_window()[name]
            (tmp_path / "trusted.toml").write_text(trusted_toml(window))
            made = true_record(
                window,
                [
                    500 if window.design.baseline_opened and not place else place
                    for place in range(window.design.output_count)
                ],
            )

            release = fc.read_release(save(made, tmp_path / "r.json")).verify(fc.read_keys(tmp_path / "trusted.toml"))

            assert len(release.to_pandas()) == window.design.cell_count
            assert release.sum(1).high >= release.sum(1).low
            assert 1 <= len(release.statement.sentences) <= 2
            counted = window.design.cell_count - window.design.levels.weighted
            assert release._repr_html_().count("<tr>") == min(20, counted) + 1


def test_a_notebook_sees_intervals_and_sentences_and_no_markup_of_labels(tmp_path: Path, keys: fc.Keys) -> None:
    window = one_round_window(Mode.DIRECT, domain=Categories(names=("<script>x</script>", "b & c")))
    release = fc.read_release(save(true_record(window, [-400, 60]), tmp_path / "r.json")).verify(keys)

    shown = release._repr_html_()

    assert "<script>" not in shown
    assert "&lt;script&gt;x&lt;/script&gt;" in shown
    assert "95 % interval" in shown
    assert "0, below noise" in shown
    assert release.statement.sentences[0] in shown.replace("&#x27;", "'")
    assert str(release.statement) == " ".join(release.statement.sentences)


def test_who_is_not_trusted_or_has_not_signed_is_named(grid: Path, keys: fc.Keys, tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(
        trusted_toml(replace(sampling_window()))[: trusted_toml(sampling_window()).rindex("[[")]
    )
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    window = sampling_window()
    strangers = tuple(replace(one, signing_public_key=other) for one in window.aggregators[:1])
    (tmp_path / "other.toml").write_text(
        "[[aggregators]]" + reader_toml("t", strangers).partition("[[aggregators]]")[2]
    )
    release = fc.read_release(grid)

    with pytest.raises(
        SignatureError, match=r"aggregator 'beta' .*, for which .*one\.toml has no key; it has keys for alpha"
    ):
        release.verify(fc.read_keys(tmp_path / "one.toml"))
    with pytest.raises(SignatureError, match="names another key for aggregator 'alpha'"):
        release.verify(fc.read_keys(tmp_path / "other.toml"))
    with pytest.raises(UsageError, match="names another key for aggregator 'alpha' than the file before"):
        fc.read_keys(tmp_path / "one.toml", tmp_path / "other.toml")


def test_a_release_that_is_not_signed_says_by_whom(grid: Path, keys: fc.Keys) -> None:
    text = grid.read_text()
    made = fc.read_release(grid)
    forged = fc.Release(made._record, (made._signatures[0], b""), "draft.json")
    flipped = fc.Release(made._record, (made._signatures[0], bytes(64)), "forged.json")

    with pytest.raises(SignatureError, match=r"draft\.json is not signed by beta"):
        forged.verify(keys)
    with pytest.raises(SignatureError, match="signature of beta"):
        flipped.verify(keys)
    assert grid.read_text() == text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has 0 bytes"),
        (b"\x00\x01", "NUL"),
        (b"not json", "is no release, as 'fleetcount question release' writes it"),
        (b"{}", "is no release"),
        (b"[1, 2]", "is no release"),
    ],
)
def test_another_file_is_no_release(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "odd").write_bytes(content)

    with pytest.raises(UsageError, match=said):
        fc.read_release(tmp_path / "odd")
    with pytest.raises(FleetcountError, match=r"read_releases\(\) a directory of records"):
        fc.read_release(tmp_path)


def test_keys_come_from_descriptors_and_from_readers(tmp_path: Path, keys: fc.Keys, fleetcount: Callable) -> None:
    assert fleetcount("keys", "init", "--output", tmp_path / "made").code == 0
    descriptors = sorted((tmp_path / "made").rglob("*.descriptor.toml")) or sorted(
        path for path in (tmp_path / "made").rglob("*.toml") if "hpke_keys" in path.read_text()
    )
    analyst = next((tmp_path / "made").rglob("analyst.toml"))

    public, reader = fc.read_keys(*descriptors), fc.read_keys(analyst)

    assert dict(public.trusted) == dict(reader.trusted)
    assert repr(keys).startswith("<Keys of alpha, beta")
    with pytest.raises(UsageError, match="read_keys"):
        fc.read_keys()
    (tmp_path / "odd.toml").write_text("[other]\nx = 1\n")
    with pytest.raises(UsageError, match="no configuration of fleetcount"):
        fc.read_keys(tmp_path / "odd.toml")


def test_what_is_not_installed_is_named(release: fc.VerifiedRelease, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib.import_module("fleetcount.analyst.tables"), "import_module", missing)

    for method, package in (
        (release.to_pandas, "pandas"),
        (release.to_polars, "polars"),
        (release.to_arrow, "pyarrow"),
    ):
        with pytest.raises(fc.MissingPackageError, match=rf"needs the package '{package}': pip install {package}"):
            method()
    with pytest.raises(ImportError, match="matplotlib"):
        release.plot()


def test_pictures_show_intervals_and_units(release: fc.VerifiedRelease) -> None:
    mpl.use("agg")
    from matplotlib import pyplot

    plotted, mapped = release.plot(), release.map()
    figure, given = pyplot.subplots()

    assert release.plot(ax=given) is given
    assert plotted.get_xlabel() == "devices, with 95 % intervals"
    assert [label.get_text() for label in plotted.get_yticklabels()][:2] == ["0,0", "1,0"]
    assert mapped.get_xlabel() == "x in the grid's own unit"
    assert len(mapped.texts) == 12
    assert mapped.figure.axes[1].get_ylabel() == "devices"
    for made in (plotted.figure, mapped.figure, figure):
        pyplot.close(made)


@pytest.mark.nightly
def test_squares_with_a_frame_lie_on_earth(tmp_path: Path) -> None:
    pytest.importorskip("geopandas", reason="needs geopandas (`make nightly` installs it)")
    window = every_window()["sampling_framed"]
    (tmp_path / "trusted.toml").write_text(trusted_toml(window))
    made = true_record(window, [40] * window.design.output_count)

    release = fc.read_release(save(made, tmp_path / "f.json")).verify(fc.read_keys(tmp_path / "trusted.toml"))

    west, south, east, north = release.to_geopandas().total_bounds
    assert (west, south) == pytest.approx((11.304, 44.490), abs=1e-3)
    assert (east, north) == pytest.approx((11.309, 44.492), abs=1e-3)


@pytest.mark.nightly
def test_hexagons_lie_on_earth(tmp_path: Path) -> None:
    pytest.importorskip("geopandas", reason="needs geopandas (`make nightly` installs it)")
    window = every_window()["sampling_h3_envelope"]
    (tmp_path / "trusted.toml").write_text(trusted_toml(window))
    made = true_record(window, [40] * window.design.output_count)
    hexagons = fc.read_release(save(made, tmp_path / "h3.json")).verify(fc.read_keys(tmp_path / "trusted.toml"))

    frame = hexagons.to_geopandas()

    assert list(frame.columns) == [*(name for name in COLUMNS if name not in {"x", "y"}), "geometry"]
    assert frame.crs == "EPSG:4326"
    assert frame.geometry.is_valid.all()


def test_squares_of_nowhere_are_not_put_on_earth(release: fc.VerifiedRelease) -> None:
    with pytest.raises(UsageError, match="it has no frame that says where on Earth"):
        release.to_geopandas()
    for zoom in (1, "0", 0.0):
        with pytest.raises(UsageError, match=f"zoom is {zoom}, allowed: 0 to 0"):
            release.map(zoom=zoom)  # type: ignore[arg-type]

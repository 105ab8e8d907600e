"""The extracts: counts with the totals their sources state, no row of a person, and strict reading."""

import gzip
from pathlib import Path

import fleetcount_data
import numpy as np
import pytest
from fleetcount_evidence.papers.extracts import Census, ExtractError, Extracts

DATA = fleetcount_data.folder()
SHIPPED = Extracts.shipped()
CENSUS = "Age,Occupation,Education\n30,a,x\n31,b,y\n30,a,x\n"


def test_the_totals_are_those_of_the_sources() -> None:
    assert sum(count * places for count, places in SHIPPED.checkin_histogram().items()) == 138_957
    assert sum(SHIPPED.checkin_histogram().values()) == 21_509
    for attribute in ("age", "tumor_size"):
        assert sum(group.patients for group in SHIPPED.patients(attribute)) == 286
    assert sum(SHIPPED.city().values()) == 5_835
    assert sum(count * places for count, places in SHIPPED.city().items()) == 10_338
    assert SHIPPED.adult().codes.shape == (48_842, 8)


def test_gowalla_is_shipped_as_counts_of_many_users_and_without_places() -> None:
    locations = SHIPPED.locations()

    assert len(locations) == 1_424
    assert all(place.users >= 12 for place in locations)
    assert all(not place.name or place.users >= 100 for place in locations)
    assert [place.checkins for place in locations] == sorted((p.checkins for p in locations), reverse=True)
    files = {path.name for path in (DATA / "gowalla_nyc").iterdir()}
    assert files == {"SOURCE.md", "locations.csv", "histogram.csv"}


def test_every_extract_names_its_source_and_all_are_small() -> None:
    folders = [path for path in DATA.iterdir() if path.is_dir() and path.name != "__pycache__"]

    assert {"adult", "breast_cancer", "city", "gowalla_nyc"} <= {path.name for path in folders}
    assert all((path / "SOURCE.md").is_file() for path in folders)
    assert sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file()) < 2 * 2**20


def test_records_without_a_value_lose_it_and_keep_the_rest() -> None:
    adult = SHIPPED.adult()
    place = adult.columns.index("occupation")

    kept = adult.without("occupation", "?")

    assert kept.codes.shape[0] == 46_033
    assert "?" not in kept.labels[place]
    for column, labels in enumerate(kept.labels):
        assert sorted(set(kept.codes[:, column].tolist())) == list(range(len(labels)))
    old = np.bincount(adult.codes[:, place])
    new = np.bincount(kept.codes[:, place])
    assert sorted(new.tolist()) == sorted(n for n, label in zip(old, adult.labels[place], strict=True) if label != "?")


def test_a_folder_of_the_user_comes_first_and_the_shipped_one_stays(tmp_path: Path) -> None:
    (tmp_path / "city").mkdir()
    (tmp_path / "city" / "counts.csv").write_text("visitors,locations\n0,3\n4,1\n")

    extracts = Extracts.shipped(tmp_path)

    assert extracts.city() == {0: 3, 4: 1}
    assert len(extracts.locations()) == 1_424
    assert extracts.census_records() is None


@pytest.mark.parametrize("name", ["census.csv", "census.csv.gz"])
def test_a_census_is_read_by_its_columns(tmp_path: Path, name: str) -> None:
    content = b"\xef\xbb\xbf" + CENSUS.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)

    every = Extracts.shipped(tmp_path).census_records()
    one = Extracts.shipped(tmp_path, Census(sensitive=("Education",), quasi_identifiers=("Age",))).census_records()

    assert every is not None
    assert one is not None
    assert every.columns == ("Age", "Occupation", "Education")
    assert one.columns == ("Age", "Education")
    assert one.codes.tolist() == [[0, 0], [1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "a header"),
        (b"Age,Occupation,Education\n", "at least one row"),
        (b"Age,Age,Occupation,Education\n1,2,3,4\n", "twice"),
        (b"Age,Occupation,Education\n1,2\n", "row 2"),
        (b"Age,Work\n1,2\n", "'Occupation'"),
        (b'Age,Occupation,Education\n1,"2,3\n', "line 2"),
        (b"Age,Occupation,Education\n1,\xff,3\n", "UTF-8"),
        (b"Age,Occupation,Education\n1,\0,3\n", "NUL"),
        (b"Age,Occupation,Education,persons\n1,2,3,x\n", "'persons'"),
        (b"Age,Occupation,Education,persons\n1,2,3,99999999\n", "10000000"),
    ],
)
def test_a_malformed_census_is_refused_by_name(tmp_path: Path, content: bytes, named: str) -> None:
    (tmp_path / "census.csv").write_bytes(content)

    with pytest.raises(ExtractError, match=named):
        Extracts.shipped(tmp_path).census_records()


def test_a_truncated_archive_and_a_wrong_header_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "census.csv.gz").write_bytes(gzip.compress(CENSUS.encode())[:-9])
    (tmp_path / "city").mkdir()
    (tmp_path / "city" / "counts.csv").write_text("locations,visitors\n1,2\n")
    extracts = Extracts.shipped(tmp_path)

    with pytest.raises(ExtractError, match=r"census\.csv\.gz cannot be read"):
        extracts.census_records()
    with pytest.raises(ExtractError, match="the header is"):
        extracts.city()
    with pytest.raises(ExtractError, match="not a directory"):
        Extracts.shipped(tmp_path / "missing")

"""Bad data and bad keys: every one is refused by name, with file and line or the dotted key, and leaves nothing."""

import gzip
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from fleetcount_simulator.cells.files import MAX_LINE
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.populations import KINDS, build
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nightly import NIGHTLY
from tests.support.refusals import said_by

SQUARES = {"cells": "square", "size_m": 100}
HEXAGONS = {"cells": "h3", "resolution": 9}
TRACE = {"kind": "trace", "file": "t.csv"}
DEGREES = TRACE | {"lon": "lon", "lat": "lat"}
FCD = {"kind": "fcd", "file": "t.xml", "geo": False}
COUNTS = {"kind": "counts", "file": "t.csv"}
HEAD = "time,vehicle,x,y\n"
EARTH = "time,vehicle,lon,lat\n"
ROWS = HEAD + "0,a,1,2\n0,b,3,4\n60,a,5,6\n"


def held_open(folder: Path) -> list[str]:
    """Name the files below a folder that this process holds open; none where the system does not say."""
    descriptors = Path("/proc/self/fd")
    links = descriptors.iterdir() if descriptors.exists() else ()
    names = [str(link.readlink()) for link in links if link.is_symlink()]
    return [name for name in names if name.startswith(str(folder))]


def refusal(
    population: dict[str, Any], question: dict[str, Any], folder: Path, name: str = "", content: Any = None
) -> str:
    if isinstance(content, str):
        (folder / name).write_bytes(content.encode("utf-8", "surrogatepass"))
    elif isinstance(content, bytes):
        (folder / name).write_bytes(content)
    before = sorted(folder.iterdir())
    message = said_by(ScenarioError, build, population, question, 1, folder)
    assert not held_open(folder)
    assert sorted(folder.iterdir()) == before
    assert len(message) < 300
    assert "\n" not in message
    return message


BAD_TRACES: dict[str, tuple[Any, str]] = {
    "empty": ("", "t.csv line 1: no header"),
    "header only": (HEAD, "t.csv: no rows"),
    "semicolons": ("time;vehicle;x;y\n0;a;1;2\n", "t.csv line 1: no column 'time' (separated by semicolons?)"),
    "another header": ("t,vehicle,x,y\n0,a,1,2\n", "t.csv line 1: no column 'time'"),
    "a column twice": ("time,vehicle,x,x,y\n0,a,1,1,2\n", "t.csv line 1: the column 'x' occurs twice"),
    "a header of many": (",".join(f"c{i}" for i in range(300)) + "\n", "t.csv line 1: 300 columns"),
    "mark within": (HEAD + "\ufeff0,a,1,2\n", "t.csv line 2: time is"),
    "NUL": (HEAD + "0,a,1,2\n0,b\0,1,2\n", "t.csv line 3: holds a NUL"),
    "not UTF-8": (HEAD.encode() + b"0,\xff,1,2\n", "t.csv line 1 or soon after: not UTF-8"),
    "UTF-16": (ROWS.encode("utf-16"), "not UTF-8"),
    "lone surrogate": (HEAD + "0,\ud800,1,2\n", "not UTF-8"),
    "a field missing": (ROWS + "60,b,5\n", "t.csv line 5: 3 fields, not 4"),
    "a field too many": (ROWS + "60,b,5,6,7\n", "t.csv line 5: 5 fields, not 4"),
    "a blank line": (ROWS + "\n60,b,5,6\n", "t.csv line 5: the line is blank"),
    "cut in a row": (ROWS + "60,b", "t.csv line 5: 2 fields"),
    "open quote": (HEAD + '0,"a,1,2\n0,b,3,4\n', "t.csv line"),
    "a line end in a name": (HEAD + '0,"a\nb",1,2\n', "t.csv line 2: a field holds a line end"),
    "text after a quote": (HEAD + '0,"a"b,1,2\n', "t.csv line 2"),
    "long line": (HEAD + "0," + "a" * MAX_LINE + ",1,2\n", f"t.csv line 2: longer than {MAX_LINE}"),
    "nan": (HEAD + "0,a,nan,2\n", "t.csv line 2: x is 'nan'"),
    "inf": (HEAD + "0,a,1,-inf\n", "t.csv line 2: y is '-inf'"),
    "underscore": (HEAD + "0,a,1_0.5,2\n", "t.csv line 2: x is '1_0.5'"),
    "full-width digits": (HEAD + "0,a,１２,2\n", "t.csv line 2: x is '１２'"),
    "arabic digits": (HEAD + "0,a,١,2\n", "t.csv line 2: x is"),
    "exponent": (HEAD + "0,a,1e,2\n", "t.csv line 2: x is '1e'"),
    "hexadecimal": (HEAD + "0,a,0x10,2\n", "t.csv line 2: x is '0x10'"),
    "plus": (HEAD + "0,a,+1,2\n", "t.csv line 2: x is '+1'"),
    "blank before": (HEAD + "0,a, 1,2\n", "t.csv line 2: x is ' 1'"),
    "decimal comma": (HEAD + '0,a,"1,5",2\n', "t.csv line 2: x is '1,5'"),
    "no number": (HEAD + "0,a,,2\n", "t.csv line 2: x is ''"),
    "a bare point": (HEAD + "0,a,1.,2\n", "t.csv line 2: x is '1.'"),
    "sixteen digits": (HEAD + "0,a,1234567890123456,2\n", "t.csv line 2: x is"),
    "too far": (HEAD + "0,a,1000000001,2\n", "t.csv line 2: x is 1000000001; it must be"),
    "time before zero": (HEAD + "-1,a,1,2\n", "t.csv line 2: time is -1; it must be 0 to"),
    "unsorted": (ROWS + "59,b,1,2\n", "t.csv line 5: time 59 after 60; sort by time, for example"),
    "twice at once": (ROWS + "60,a,5,6\n", "t.csv line 5: vehicle 'a' occurs twice at 60"),
    "no name": (HEAD + "0,,1,2\n", "t.csv line 2: the vehicle is ''"),
    "a name with a blank": (HEAD + "0, a,1,2\n", "t.csv line 2: the vehicle is ' a'"),
    "a control character": (HEAD + "0,a\tb,1,2\n", "t.csv line 2: the vehicle is"),
    "a long name": (HEAD + "0," + "v" * 201 + ",1,2\n", "t.csv line 2: the vehicle is"),
    "a late fault": (
        HEAD + "".join(f"{i},a,1,2\n" for i in range(20_000)) + "20000,a,x,2\n",
        "t.csv line 20002: x is 'x'",
    ),
}


def test_a_bad_trace_is_refused_with_its_line(tmp_path: Path) -> None:
    for name, (content, named) in BAD_TRACES.items():
        assert named in refusal(TRACE, SQUARES, tmp_path, "t.csv", content), name


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ("0,a,11.3,91\n", "t.csv line 2: lat is 91; it must be -90 to 90 (are longitude and latitude swapped?)"),
        ("0,a,11.3,44.5\n0,b,540,44.5\n", "t.csv line 3: lon is 540; it must be -180 to 180"),
        ("0,a,44.5,111.3\n", "swapped?"),
        ("0,a,11.3,44.5\n0,b,0,0\n", "t.csv line 3: longitude 0, latitude 0 is a receiver without a fix"),
        ("0,a,0,0.0\n", "t.csv line 2: longitude 0"),
        ("0,a,1865.2,105.5\n", "t.csv line 2: lon is 1865.2"),
    ],
)
def test_positions_that_are_not_on_earth_are_refused(rows: str, named: str, tmp_path: Path) -> None:
    assert named in refusal(DEGREES, HEXAGONS, tmp_path, "t.csv", EARTH + rows)


@pytest.mark.parametrize(
    ("x", "y"), [("lon", "lat"), ("lat", "lon"), ("Longitude", "Latitude"), ("lng_deg", "lat_deg")]
)
def test_degrees_read_as_metres_are_refused_with_the_keys_that_convert_them(x: str, y: str, tmp_path: Path) -> None:
    rows = f"time,vehicle,{x},{y}\n0,a,11.3,44.5\n0,b,11.4,-44.6\n"
    lon, lat = (y, x) if x == "lat" else (x, y)

    message = refusal(TRACE | {"x": x, "y": y}, SQUARES, tmp_path, "t.csv", rows)

    assert f"write lon = '{lon}' and lat = '{lat}'" in message
    named = {"lon": lon, "lat": lat}
    converted = build(TRACE | named, SQUARES | {"origin": [Decimal("11.3"), Decimal(0)], "size_m": 10**7}, 1, tmp_path)
    assert converted.devices == 2


def test_metres_in_columns_that_are_named_like_degrees_are_metres(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time,vehicle,lon,lat\n0,a,686200,4929100\n0,b,686300,4929200\n")

    assert build(TRACE | {"x": "lon", "y": "lat"}, SQUARES, 1, tmp_path).devices == 2


@pytest.mark.parametrize("question", [HEXAGONS, SQUARES])
def test_coordinates_exchanged_within_their_ranges_miss_every_cell_and_are_refused(
    question: dict[str, Any], tmp_path: Path
) -> None:
    around = [Decimal(bound) for bound in ("11.2", "44.4", "11.4", "44.6")]

    message = refusal(DEGREES, question | {"bounds": around}, tmp_path, "t.csv", EARTH + "0,a,44.5,11.3\n")

    assert "not one of 1 sightings lies in any cell" in message
    assert "exchanged" in message


@pytest.mark.parametrize(
    ("moment", "named"),
    [
        ("2026-01-26 15:57", "time is '2026-01-26 15:57', not a moment like"),
        ("2026-01-26T15:57:02+24:00", "not a moment"),
        ("2026-01-26T15:57:02 CET", "not a moment"),
        ("2026-13-26T15:57:02Z", "line 2: time is '2026-13-26T15:57:02Z', which is no date"),
        ("2026-02-30T15:57:02", "is no date"),
        ("2026-01-26T23:59:60Z", "is no date"),
        ("2026-01-26T15:57:02123Z", "not a moment"),
        ("2026-01-26T15:57:02.Z", "not a moment"),
        ("2026-01-26T15:57:02.0000000001Z", "not a moment"),
        ("1769443022", "not a moment"),
        ("２026-01-26T15:57:02Z", "not a moment"),
        ("1969-12-31T23:59:59Z", "it must be 0 to"),
    ],
)
def test_a_moment_that_is_none_is_refused(moment: str, named: str, tmp_path: Path) -> None:
    message = refusal(TRACE | {"time_form": "utc"}, SQUARES, tmp_path, "t.csv", f"{HEAD}{moment},a,1,2\n")

    assert "t.csv line 2" in message
    assert named in message


def test_truncated_foreign_and_bloated_archives_are_refused_where_they_break(tmp_path: Path) -> None:
    generator = range(20_000)
    whole = gzip.compress(
        (HEAD + "".join(f"{i},car {i * 7919 % 10007},{i % 997},{i % 991}\n" for i in generator)).encode()
    )
    packed = TRACE | {"file": "t.csv.gz"}

    half = refusal(packed, SQUARES, tmp_path, "t.csv.gz", whole[: len(whole) // 2])
    trailer = refusal(packed, SQUARES, tmp_path, "t.csv.gz", whole[:-4])
    broken = refusal(packed, SQUARES, tmp_path, "t.csv.gz", whole[:5000] + bytes(50) + whole[5050:])
    bomb = refusal(packed, SQUARES, tmp_path, "t.csv.gz", gzip.compress(b"0" * 2**25))

    assert half.startswith("t.csv.gz line ")
    assert "cannot be read" in half
    assert "cannot be read" in trailer
    assert broken.startswith("t.csv.gz line ")
    assert f"line 1: longer than {MAX_LINE}" in bomb


def test_a_file_that_is_none_is_refused_by_its_key(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")

    for name in ("missing.csv", "folder.csv", "pipe.csv", "../" * 20 + "missing", "a" * 300):
        assert refusal(TRACE | {"file": name}, SQUARES, tmp_path).startswith("population.file is ")


def parquet(folder: Path, query: str, name: str = "t.parquet") -> None:
    connection = duckdb.connect(":memory:")
    connection.execute(f"COPY ({query}) TO '{folder / name}' (FORMAT parquet)")
    connection.close()


GOOD = "SELECT 60 * (i // 3) AS time, 'v' || (i % 3) AS vehicle, i * 1.5 AS x, i * 2.5 AS y FROM range(30) t(i)"


@pytest.mark.parametrize(
    ("query", "named"),
    [
        (GOOD.replace("i * 1.5 AS x", "'1.5' AS x"), "the column 'x' is of type VARCHAR, not a number"),
        (GOOD.replace("AS x", "AS ex"), "no column 'x'"),
        (GOOD.replace("i * 1.5 AS x", "CASE WHEN i = 4 THEN NULL ELSE 1.5 END AS x"), "t.parquet row 5: x is null"),
        (
            GOOD.replace("i * 1.5 AS x", "CASE WHEN i = 4 THEN 'nan'::DOUBLE ELSE 1 END AS x"),
            "t.parquet row 5: x is nan",
        ),
        (
            GOOD.replace("i * 1.5 AS x", "CASE WHEN i = 4 THEN 'inf'::DOUBLE ELSE 1 END AS x"),
            "t.parquet row 5: x is inf",
        ),
        (GOOD.replace("60 * (i // 3)", "-i"), "t.parquet row 2: time is -1"),
        (GOOD.replace("60 * (i // 3)", "30 - i"), "t.parquet row 2: time 29 after 30"),
        (GOOD.replace("i % 3", "i % 2"), "t.parquet row 3: vehicle 'v0' occurs twice at 0"),
        (GOOD.replace("60 * (i // 3)", "TIMESTAMP '2026-01-01'"), "of type TIMESTAMP, not a number"),
        (GOOD.replace("'v' || (i % 3)", "[i]"), "not a text or a whole number"),
        (GOOD + " WHERE i < 0", "t.parquet: no rows"),
    ],
)
def test_a_bad_parquet_table_is_refused_with_its_row(query: str, named: str, tmp_path: Path) -> None:
    parquet(tmp_path, query)

    assert named in refusal(TRACE | {"file": "t.parquet"}, SQUARES, tmp_path)


def test_a_broken_parquet_file_is_refused_by_name(tmp_path: Path) -> None:
    parquet(tmp_path, GOOD)
    whole = (tmp_path / "t.parquet").read_bytes()
    table = TRACE | {"file": "t.parquet"}

    for content in (b"", whole[: len(whole) // 2], whole[:-1], b"PAR1" + whole[4:-8] + b"\xff" * 8, ROWS.encode()):
        message = refusal(table, SQUARES, tmp_path, "t.parquet", content)
        assert message.startswith("t.parquet cannot be read as Parquet")
        assert str(tmp_path) not in message


@pytest.mark.parametrize("folder", ["edge=E9", "speed=0", "x=5", "vehicle=7", "[lake]", "a*b?", "it's"])
def test_the_name_of_a_folder_is_no_data_and_no_pattern(folder: str, tmp_path: Path) -> None:
    query = GOOD.replace("i * 2.5 AS y", "i * 2.5 AS y, i % 4 AS speed, 'E' || (i % 5) AS edge")
    parquet(tmp_path, query)
    (tmp_path / folder).mkdir()
    moved = tmp_path / folder / "[t]*.parquet"
    moved.write_bytes((tmp_path / "t.parquet").read_bytes())
    keys, edges = TRACE | {"interval_s": 60, "speed": "speed", "edge": "edge"}, {"cells": "edges"}

    one = build(keys | {"file": "t.parquet"}, edges, 1, tmp_path)
    other = build(keys | {"file": f"{folder}/[t]*.parquet"}, edges, 1, tmp_path)

    assert one.question.labels == other.question.labels == ("E0", "E1", "E2", "E3", "E4")
    assert all(one.histogram(e).tolist() == other.histogram(e).tolist() for e in range(10))


@pytest.mark.parametrize(
    "moment",
    [
        "2026-01-26 16:57:02+01", "2026-01-26 16:57:02+0100", "2026-01-26T16:57:02+01:00", "2026-01-26 15:57:02 UTC",
        "2026-01-26T15:57:02.000000000Z", "2026-01-26 10:27:02-05:30", "2026-01-26 15:57:02+00", "2026-01-26T15:57:02",
        '"2026-01-26T15:57:02,000000000+00:00"', '"2026-01-26T15:57:02,5"',
    ],
)  # fmt: skip
def test_a_moment_is_the_same_with_any_offset_that_is_written_out(moment: str, tmp_path: Path) -> None:
    keys = TRACE | {"time_form": "utc", "start_s": 1_769_443_022, "window_s": 1}
    (tmp_path / "t.csv").write_text(f"{HEAD}{moment},a,1,2\n{moment},b,2,3\n")

    population = build(keys, SQUARES, 1, tmp_path)

    assert population.histogram(0).sum() == 2


def test_numbers_as_programs_write_them_and_a_blank_last_line_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(HEAD + "0,a,1e-05,2E2\n0,b,-1.5e+1,0\n0,c,0.00012345678901234567,1\n\n\n")

    assert build(TRACE, SQUARES | {"bounds": [-100, 0, 100, 300]}, 1, tmp_path).histogram(0).sum() == 3


def test_moments_in_nanoseconds_with_a_zone_are_read(tmp_path: Path) -> None:
    moment = "make_timestamp_ns(1769443022000000000)::TIMESTAMPTZ_NS AS time"
    parquet(tmp_path, GOOD.replace("60 * (i // 3) AS time", moment).replace("i % 3", "i"))
    keys = TRACE | {"file": "t.parquet", "time_form": "utc", "start_s": 1_769_443_022, "window_s": 1}

    assert build(keys, SQUARES, 1, tmp_path).histogram(0).sum() == 30


def test_speeds_are_in_metres_a_second_unless_the_scenario_says_so(tmp_path: Path) -> None:
    rows = "".join(f"0,v{speed},1,2,{speed}\n" for speed in (0, 29, 30, 59, 60, 108))
    (tmp_path / "t.csv").write_text(f"time,vehicle,x,y,speed_kmh\n{rows}")
    bins, keys = {"cells": "speed", "bins_kmh": [30, 60]}, TRACE | {"speed": "speed_kmh"}

    assert build(keys | {"speed_unit": "km/h"}, bins, 1, tmp_path).histogram(0).tolist() == [2, 2, 2]
    assert build(keys | {"speed_unit": "m/s"}, bins, 1, tmp_path).histogram(0).tolist() == [1, 0, 5]
    assert "speed_unit is missing; allowed is one of m/s, km/h, mph, knots: 'speed_kmh' may be no m/s" in refusal(
        keys, bins, tmp_path
    )
    assert "population.speed_unit is given without population.speed" in refusal(
        TRACE | {"speed_unit": "km/h"}, SQUARES, tmp_path
    )


@pytest.mark.parametrize(
    "name",
    ["SOG", "speed_kn", "speed_kts", "kt", "speedKnots", "speed_mph", "speed_kmph", "v (mi/h)", "km per h", "sog [kn]"],
)
def test_a_column_named_after_another_unit_is_no_metres_a_second_without_a_word(name: str, tmp_path: Path) -> None:
    content = f"time,vehicle,x,y,{name}\n0,a,1,2,12.5\n"

    assert f"{name!r} may be no m/s" in refusal(
        TRACE | {"speed": name}, {"cells": "speed", "bins_kmh": [30]}, tmp_path, "t.csv", content
    )


@pytest.mark.parametrize(("unit", "kmh"), [("km/h", "1"), ("mph", "1.609344"), ("knots", "1.852")])
def test_a_speed_on_an_edge_is_in_the_bin_above_it_in_every_unit(unit: str, kmh: str, tmp_path: Path) -> None:
    speeds = [Decimal(tenths) / 10 for tenths in range(1, 400)]
    (tmp_path / "t.csv").write_text("time,vehicle,x,y,v\n" + "".join(f"0,v{one},1,2,{one}\n" for one in speeds))
    edges = [str(one * Decimal(kmh)) for one in speeds]

    bins = build(TRACE | {"speed": "v", "speed_unit": unit}, {"cells": "speed", "bins_kmh": edges}, 1, tmp_path)

    assert bins.histogram(0).tolist() == [0] + [1] * len(speeds)


SUMO_CSV = (
    "timestep_time;vehicle_angle;vehicle_id;vehicle_lane;vehicle_edge;vehicle_speed;vehicle_x;vehicle_y\n"
    "0.00;90.00;car1;C1D1_0;;5.00;1.00;2.00\n"
    "0.00;90.00;walker;;C1D1;1.30;7.00;2.00\n"
    "1.00;;;;;;;\n"
    "2.00;90.00;car1;C1D1_1;;5.00;11.00;2.00\n"
    "2.00;90.00;car2;A0_0_0;;6.00;150.00;2.00\n"
)


def test_tables_that_sumo_writes_are_floating_car_data(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(SUMO_CSV)
    duckdb.sql(
        f"COPY (SELECT * FROM read_csv('{tmp_path}/t.csv', delim = ';')) TO '{tmp_path}/t.parquet' (FORMAT parquet)"
    )
    for name in ("t.csv", "t.parquet"):
        fcd = {"kind": "fcd", "file": name, "interval_s": 2}

        roads = build(fcd, {"cells": "edges"}, 1, tmp_path)

        assert roads.devices == 2, "a person and a second without a vehicle are none"
        assert roads.question.labels == ("A0_0", "C1D1")
        assert roads.histogram(1).tolist() == [0, 1, 1]
        speeds = build(fcd, {"cells": "speed", "bins_kmh": [0, 20, 50]}, 1, tmp_path)
        assert speeds.histogram(1).sum() == 2


def test_a_receiver_without_a_fix_is_refused_in_every_file_with_degrees(tmp_path: Path) -> None:
    lost = "longitude 0, latitude 0 is a receiver without a fix"
    places = "location,checkins,users,lat,lon,name\n1,9,9,40.7,-74.0,a\n2,9,9,0,0.0,b\n"
    drives = SUMO_CSV.replace("150.00;2.00", "0.00;0.00")

    assert lost in refusal({"kind": "gowalla", "file": "t.csv"}, HEXAGONS, tmp_path, "t.csv", places)
    assert lost in refusal({"kind": "fcd", "file": "t.csv", "geo": True}, HEXAGONS, tmp_path, "t.csv", drives)


@pytest.mark.parametrize("question", [SQUARES, HEXAGONS | {"origin": ["11.3", "44.4"]}], ids=["square", "h3"])
def test_floating_car_data_that_may_be_degrees_are_no_metres_without_a_word(
    question: dict[str, Any], tmp_path: Path
) -> None:
    degrees = SUMO_CSV.replace("150.00;2.00", "11.342500;44.493800")
    fcd = {"kind": "fcd", "file": "t.csv"}

    assert "write geo = true in [population], or geo = false if they are metres" in refusal(
        fcd, question, tmp_path, "t.csv", degrees
    )
    assert build(fcd | {"geo": False}, question, 1, tmp_path).devices == 2
    assert build(fcd, {"cells": "edges"}, 1, tmp_path).devices == 2, "edges have names, whatever the frame"
    (tmp_path / "t.csv").write_text(degrees.replace("11.342500", "1134.25"))
    assert build(fcd, question, 1, tmp_path).devices == 2


def test_a_vehicle_s_name_may_hold_a_blank_that_does_not_break(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(HEAD + "0,Fiat\u00a0500,1,2\n0,\u6771\u3000\u4eac,3,4\n", encoding="utf-8")

    assert build(TRACE, SQUARES, 1, tmp_path).devices == 2


def test_times_that_sumo_writes_for_people_are_refused_by_their_value(tmp_path: Path) -> None:
    readable = SUMO_CSV.replace("0.00;90", "00:00:00.00;90")
    said = refusal(FCD | {"file": "t.csv"}, {"cells": "edges"}, tmp_path, "t.csv", readable)

    assert "'00:00:00.00'" in said
    assert "time" in said


def test_a_semicolon_can_stand_between_the_fields_of_a_trace(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text((HEAD + "0,a,1,2\n0,b,3,4\n").replace(",", ";"))

    assert build(TRACE | {"delimiter": ";"}, SQUARES, 1, tmp_path).devices == 2


def test_the_same_rows_are_the_same_population_as_csv_and_as_parquet(tmp_path: Path) -> None:
    parquet(tmp_path, GOOD)
    duckdb.connect(":memory:").execute(f"COPY ({GOOD}) TO '{tmp_path / 't.csv'}' (HEADER)")

    one = build(TRACE | {"interval_s": 60}, SQUARES, 1, tmp_path)
    other = build(TRACE | {"interval_s": 60, "file": "t.parquet"}, SQUARES, 1, tmp_path)

    assert one.devices == other.devices == 3
    assert one.epochs == other.epochs == 10
    assert all(one.truths(e, 0, 3).tolist() == other.truths(e, 0, 3).tolist() for e in range(10))


@pytest.mark.parametrize(
    "kind", ["TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"]
)
def test_moments_of_parquet_are_the_moments_of_csv(kind: str, tmp_path: Path) -> None:
    moment = f"CAST(TIMESTAMP '2026-01-26 08:00:00' + INTERVAL (5 * (i // 3)) MINUTE AS {kind})"
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"COPY ({GOOD.replace('60 * (i // 3)', moment)}) TO '{tmp_path / 't.parquet'}' (FORMAT parquet)")
    connection.close()
    rows = "".join(f"2026-01-26T08:{5 * (i // 3):02d}:00Z,v{i % 3},{i * 1.5},{i * 2.5}\n" for i in range(30))
    (tmp_path / "t.csv").write_text(HEAD + rows)
    keys = {"time_form": "utc", "start_s": 1_769_414_400}

    one = build(TRACE | keys, SQUARES, 1, tmp_path)
    other = build(TRACE | keys | {"file": "t.parquet"}, SQUARES, 1, tmp_path)

    assert one.epochs == other.epochs == 10
    assert all(one.truths(e, 0, 3).tolist() == other.truths(e, 0, 3).tolist() for e in range(10))


def test_counts_can_be_parquet(tmp_path: Path) -> None:
    parquet(tmp_path, "SELECT 'v' || i AS value, 10 * i AS count FROM range(1, 4) t(i)")

    population = build({"kind": "counts", "file": "t.parquet"}, {"cells": "categories"}, 1, tmp_path)

    assert population.question.labels == ("v1", "v2", "v3")
    assert population.histogram(0).tolist() == [0, 10, 20, 30]


OPEN = '<fcd-export>\n<timestep time="0.00">\n'
CAR = '<vehicle id="a" x="1.5" y="2" speed="3" lane="e_0"/>\n'
CLOSE = "</timestep>\n</fcd-export>\n"


BAD_FLOATING_CAR_DATA: list[tuple[str, str]] = [
    ("", "t.xml line 1: no element found"),
    (OPEN + CAR, "t.xml line 4: no element found (truncated?)"),
    (OPEN + CAR[:30], "t.xml line 3: unclosed token"),
    (OPEN + CAR + CLOSE + "more", "t.xml line 6: junk after document element"),
    ("<!DOCTYPE fcd-export>\n" + OPEN + CAR + CLOSE, "t.xml line 1: a DOCTYPE"),
    ('<!DOCTYPE x [<!ENTITY e "x">]>\n<fcd-export>&e;</fcd-export>', "t.xml line 1: a DOCTYPE"),
    ('<!DOCTYPE x SYSTEM "http://localhost:9/x.dtd">\n' + OPEN, "t.xml line 1: a DOCTYPE"),
    ("<fcd-export>&e;</fcd-export>", "t.xml line 1: undefined entity"),
    ('<?xml version="1.0" encoding="UTB-8"?>\n' + OPEN, "t.xml line 1: its encoding cannot be read: unknown encoding"),
    ('<?xml version="1.0" encoding="rot13"?>\n' + OPEN, "t.xml line 1: its encoding cannot be read: 'rot13'"),
    ('<?xml version="1.0" encoding="big5"?>\n' + OPEN, "t.xml line 1: its encoding cannot be read: multi-byte"),
    ('<net xmlns="urn:x">' + CLOSE, "the root element is 'net', not 'fcd-export'"),
    ('<x:fcd-export xmlns:x="urn:x"/>', "the root element is 'x:fcd-export'"),
    (OPEN + CLOSE, "t.xml: no rows"),
    (OPEN + CAR.replace("id=", "name=") + CLOSE, "t.xml line 3: a vehicle without id"),
    (OPEN + CAR.replace(' x="1.5"', "") + CLOSE, "t.xml line 3: a vehicle without x"),
    (OPEN.replace("time=", "begin=") + CAR + CLOSE, "t.xml line 2: a timestep without time"),
    (OPEN + CAR.replace("1.5", "nan") + CLOSE, "t.xml line 3: x is 'nan'"),
    (OPEN + CAR.replace("1.5", "１") + CLOSE, "t.xml line 3: x is '１'"),
    (OPEN + CAR.replace('speed="3"', 'speed="-3"') + CLOSE, "t.xml line 3: speed is -3"),
    (OPEN.replace("0.00", "00:01") + CAR + CLOSE, "t.xml line 3: time is '00:01'"),
    (OPEN + CAR + CAR + CLOSE, "t.xml line 4: vehicle 'a' occurs twice at 0"),
    (
        OPEN.replace("0.00", "5") + CAR + CLOSE.replace("</fcd", '<timestep time="4">' + CAR + "</timestep></fcd"),
        "4 after 5",
    ),
    (OPEN + CAR.replace("vehicle", "bicycle") + CLOSE, "t.xml line 3: the element 'bicycle'"),
    (
        OPEN.replace("timestep", "step") + CAR + CLOSE.replace("timestep", "step"),
        "t.xml line 2: the element 'step'",
    ),
    (OPEN + CAR.replace('"a"', '"' + "v" * 5_000_000 + '"') + CLOSE, "line 3: a tag of more than 4194304 bytes"),
    (OPEN + CAR.replace('"a"', '"a\0"') + CLOSE, "t.xml line 3: not well-formed"),
    (OPEN + CAR + CLOSE.replace("</timestep>", "</vehicle>"), "t.xml line 4: mismatched tag"),
]


def test_bad_floating_car_data_are_refused_with_their_line(tmp_path: Path) -> None:
    for text, named in BAD_FLOATING_CAR_DATA:
        assert named in refusal(FCD, SQUARES, tmp_path, "t.xml", text), text[:200]


@pytest.mark.parametrize(
    ("question", "missing"), [({"cells": "edges"}, "lane"), ({"cells": "speed", "bins_kmh": [9]}, "speed")]
)
def test_what_is_asked_must_be_in_the_floating_car_data(question: dict[str, Any], missing: str, tmp_path: Path) -> None:
    bare = CAR.replace(f'{missing}="', 'other="')

    assert f"t.xml line 3: a vehicle without {missing}" in refusal(
        FCD, question, tmp_path, "t.xml", OPEN + bare + CLOSE
    )
    assert build(FCD, SQUARES, 1, tmp_path).devices == 1


def test_a_truncated_archive_of_floating_car_data_is_refused(tmp_path: Path) -> None:
    cars = "".join(CAR.replace('"a"', f'"{i * 7919 % 100_003}"').replace("1.5", f"{i % 977}") for i in range(60_000))
    whole = gzip.compress((OPEN + cars + CLOSE).encode())

    message = refusal(FCD | {"file": "t.xml.gz"}, SQUARES, tmp_path, "t.xml.gz", whole[: len(whole) // 2])

    assert message.startswith("t.xml.gz line ")
    assert "cannot be read" in message


def test_persons_and_other_attributes_are_passed_over(tmp_path: Path) -> None:
    person = '<person id="p" x="1" y="1"/>\n<container id="c"/>\n'
    (tmp_path / "t.xml").write_text(OPEN + CAR.replace("speed=", 'angle="3" speed=') + person + CLOSE)

    assert build(FCD, SQUARES, 1, tmp_path).devices == 1


NAMES = {"cells": "categories"}


BAD_COUNTS: list[tuple[str, dict[str, Any], str]] = [
    ("", NAMES, "t.csv line 1: no header"),
    ("value,count\n", NAMES, "t.csv: no rows"),
    ("value,count\na,0\n", NAMES, "population.file: every count is 0"),
    ("value,count\na,1\n", NAMES, "population.file: 1 devices in all; it must be 2 to"),
    ("value,count\na,1\na,2\n", NAMES, "t.csv line 3: the value 'a' occurs twice"),
    ("value,count\né,1\ne\u0301,2\n", NAMES, "t.csv line 3: the value 'é' occurs twice"),
    ("value,count\na,-1\n", NAMES, "t.csv line 2: count is -1"),
    *(
        (f"value,count\na,1\nb,{one}\n", NAMES, f"t.csv line 3: count is {one}, not a whole number in digits alone")
        for one in ("1.5", "1.000", "1e3", "2.00")
    ),
    ("value,count\na,1000000000001\n", NAMES, "t.csv line 2: count is 1000000000001"),
    ("value,count\na,1_0\n", NAMES, "t.csv line 2: count is '1_0'"),
    ("value,count\na,5\nd,1\n", NAMES | {"values": ["a", "b"]}, "t.csv line 3: 'd' is not among question.values"),
    ("value,count\n a,5\n", NAMES, "t.csv line 2: the name ' a' holds a control character or a blank"),
    ("value,count\na,5\na\u200b,6\n", NAMES, "t.csv line 3: the name 'a\\u200b' holds a control character"),
    ("value,count\n" + "a" * 201 + ",5\n", NAMES, "t.csv line 2: the name"),
    ("value;count\na;5\n", NAMES, "separated by semicolons?"),
    ("value,count\n" + "".join(f"v{i},1\n" for i in range(100_002)), NAMES, "more than 100000 values"),
    ("value,count\nzz,5\n", HEXAGONS, "'zz' is not an H3 cell of resolution 9"),
    ("value,count\n891EA0412DBFFFF,5\n", HEXAGONS, "is not an H3 cell"),
    ("value,count\n0891ea0412dbffff,5\n", HEXAGONS, "is not an H3 cell"),
    ("value,count\n0x891ea0412dbffff,5\n", HEXAGONS, "is not an H3 cell"),
    ("value,count\n881ea0412dfffff,5\n", HEXAGONS, "is not an H3 cell of resolution 9"),
    ("value,count\na,5\n", SQUARES, "question.cells is 'square'; this population can be asked for categories"),
    ("value,count\na,5\n", NAMES | {"values": ["a", "a"]}, "question.values holds 'a' twice"),
    ("value,count\na,5\n", NAMES | {"values": []}, "question.values holds 0 entries"),
    ("value,count\na,5\n", NAMES | {"values": ["a", 3]}, "question.values"),
    ("value,count\na,5\n", NAMES | {"values": [""]}, "question.values: the name ''"),
]


def test_bad_counts_are_refused(tmp_path: Path) -> None:
    for content, question, named in BAD_COUNTS:
        assert named in refusal(COUNTS, question, tmp_path, "t.csv", content), content[:200]


@pytest.mark.parametrize(
    ("content", "question", "named"),
    [
        ("vehicle;value\n1;a\n", NAMES, "separated by semicolons?"),
        ("vehicle,value\n1,a\n2,c\n", NAMES | {"values": ["a", "b"]}, "t.csv line 3: 'c' is not among question.values"),
        ("vehicle,value\n1,a\n1,a\n", NAMES, "t.csv line 3: vehicle '1' occurs twice"),
        ("vehicle,value\n1,a\0\n", NAMES, "t.csv line 2: holds a NUL"),
    ],
)
def test_a_bad_table_of_categories_is_refused(
    content: str, question: dict[str, Any], named: str, tmp_path: Path
) -> None:
    assert named in refusal({"kind": "categories", "file": "t.csv"}, question, tmp_path, "t.csv", content)


NONE = {"cells": "none"}
CITY: dict[str, Any] = {"kind": "city", "devices": 100, "values": 3}
TOWN: dict[str, Any] = {"kind": "mobility", "devices": 100}
SUMO: dict[str, Any] = {"kind": "sumo"}


BAD_TABLES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, NONE, "population.kind is missing; it must be one of counts"),
    ({"kind": "bolonga"}, NONE, "population.kind is 'bolonga'; did you mean 'bologna'?"),
    ({"kind": 3}, NONE, "population.kind is 3"),
    ({"kind": "../errors"}, NONE, "population.kind is '../errors'"),
    ({"kind": "city", "devcies": 5}, NONE, "population.devcies is unknown; did you mean 'devices'?"),
    (CITY | {"devices": 0}, NONE, "population.devices is 0; allowed is a whole number from 2 to 1000000000000"),
    (CITY | {"devices": 10**12 + 1}, NONE, "population.devices is 1000000000001"),
    (CITY | {"devices": True}, NONE, "population.devices is true"),
    (CITY | {"devices": 5.0}, NONE, "population.devices is 5.0"),
    (CITY | {"values": 100_001}, NONE, "population.values is 100001"),
    (CITY, SQUARES, "population.values is for cells = 'none'"),
    ({"kind": "city", "devices": 100}, NONE, "population.values is missing"),
    ({"kind": "city", "devices": 100}, SQUARES, "question.bounds is missing"),
    ({"kind": "city", "devices": 100}, HEXAGONS | {"resolution": 9}, "question.bounds is missing"),
    ({"kind": "city", "devices": 100}, {"cells": "edges"}, "question.network is missing"),
    ({"kind": "city", "devices": 100}, NAMES, "question.values is missing"),
    (CITY | {"shape": "zip"}, NONE, "population.shape is 'zip'"),
    (CITY | {"exponent": 0}, NONE, "population.exponent is 0"),
    (CITY | {"shape": "uniform", "exponent": 1}, NONE, "population.exponent is for shape = 'zipf'"),
    (CITY | {"shape": "list"}, NONE, "population.weights is missing"),
    (CITY | {"shape": "list", "weights": [1, 2]}, NONE, "population.weights holds 2 entries"),
    (CITY | {"shape": "list", "weights": [0, 0, 0]}, NONE, "population.weights is [0, 0, 0]"),
    (CITY | {"shape": "list", "weights": [1, -1, 0]}, NONE, "population.weights holds -1"),
    (CITY | {"elsewhere": "3/2"}, NONE, "population.elsewhere is '3/2'"),
    (TOWN | {"rush_hours": [17, 8]}, NONE, "population.rush_hours is [17, 8]"),
    (TOWN | {"columns": 1}, NONE, "population.columns is 1"),
    (TOWN | {"speed_kmh": 1}, NONE, "population.speed_kmh makes trips of up to"),
    (TOWN | {"free_days": [7]}, NONE, "population.free_days holds 7"),
    (TOWN | {"free_days": ["1/2"]}, NONE, "population.free_days is ['1/2']; allowed is whole numbers from 0 to 6"),
    (TOWN | {"hours": 0}, NONE, "population.hours is 0"),
    (TOWN | {"interval_s": Decimal("0.001")}, NONE, "population.interval_s is 0.001"),
    (TOWN | {"parked": "home"}, NONE, "population.parked is 'home'"),
    (TOWN | {"commuters": Decimal("1.1")}, NONE, "population.commuters is 1.1"),
    (TOWN, HEXAGONS, "question.origin is missing"),
    ({"kind": "bologna", "window_s": 301}, NONE, "population.window_s is 301; allowed is at most interval_s"),
    ({"kind": "bologna", "draw": "seen"}, NONE, "population.draw is not used without population.devices"),
    ({"kind": "bologna", "epochs": 0}, NONE, "population.epochs is 0"),
    ({"kind": "bologna", "start_s": 10_000}, NONE, "positions.csv.gz: no sighting at any epoch"),
    ({"kind": "bologna", "interval_s": Decimal("0.001")}, NONE, "gives more than 100000 epochs"),
    ({"kind": "bologna"}, {"cells": "edges"}, "question.edge is 'own', but these data name no edge"),
    ({"kind": "gowalla"}, SQUARES, "population.file is missing"),
    ({"kind": "gowalla", "unit": "users"}, NONE, "population.unit is 'users'"),
    ({"kind": "gowalla", "places": 0}, NONE, "population.places is 0"),
    ({"kind": "counts"}, NAMES, "population.file or counts must be given"),
    ({"kind": "counts", "counts": [1, 2]}, NAMES, "population.counts is [1, 2]"),
    ({"kind": "counts", "counts": {}}, NAMES, "population.counts is a table; allowed is one value or more"),
    ({"kind": "counts", "counts": {"a": 0}}, NAMES, "population.counts: every count is 0"),
    ({"kind": "counts", "counts": {"a": -1}}, NAMES, "population.counts gives 'a' = -1"),
    ({"kind": "counts", "counts": {"a": True}}, NAMES, "population.counts gives 'a' = true"),
    ({"kind": "counts", "counts": {"a": 5}}, NAMES | {"values": ["b"]}, "population.counts: 'a' is not among"),
    (TRACE | {"x": "x", "lon": "lon"}, SQUARES, "population.x and y are metres, lon and lat degrees"),
    (TRACE | {"time_form": "iso"}, SQUARES, "population.time_form is 'iso'"),
    (TRACE | {"y": "x"}, SQUARES, "population.y is 'x', the column of population.x too"),
    (TRACE | {"lon": "lat"}, SQUARES, "population.lat is 'lat', the column of population.lon too"),
    (SUMO | {"config": "a", "network": "b"}, NONE, "population.config names its own network"),
    (SUMO | {"routes": "b"}, NONE, "population.routes needs population.network"),
    (SUMO | {"network": "b", "columns": 3}, NONE, "population.columns is for the generated grid"),
    (SUMO | {"config": "b", "vehicles": 3}, NONE, "population.vehicles is for random trips"),
    (SUMO | {"block_m": 3}, NONE, "population.block_m is 3"),
]


def test_a_table_that_cannot_be_used_is_refused_by_its_key(tmp_path: Path) -> None:
    for population, question, named in BAD_TABLES:
        for name in ("t.csv", "a", "b"):
            (tmp_path / name).write_text(ROWS)

        assert named in refusal(population, question, tmp_path), (population, question)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_refuses_an_unknown_key_and_an_unknown_question(kind: str, tmp_path: Path) -> None:
    assert "population.colour is unknown" in refusal({"kind": kind, "colour": 1}, NONE, tmp_path)


def test_a_missing_sumo_is_named_with_the_extra_that_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetcount_simulator.populations.sumo.find_spec", lambda name: None)
    monkeypatch.delenv("SUMO_HOME", raising=False)

    assert "pip install 'fleetcount[traffic]'" in refusal(SUMO, SQUARES, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"config": "bad.sumocfg"}, "population.kind: sumo ended with 1: Error"),
        ({"network": "bad.net.xml"}, "bad.net.xml line 1"),
        ({"network": "one.net.xml"}, "population.network: a trip needs two edges"),
    ],
)
def test_what_sumo_cannot_drive_is_refused_with_what_it_said(table: dict[str, str], named: str, tmp_path: Path) -> None:
    pytest.importorskip("sumo", reason="needs SUMO (`make nightly` installs it)")
    for name in ("bad.sumocfg", "bad.net.xml", "bad.rou.xml"):
        (tmp_path / name).write_text("<x")
    (tmp_path / "one.net.xml").write_text('<net><edge id="a"><lane id="a_0" shape="0,0 9,9"/></edge></net>')

    assert named in refusal(SUMO | table, SQUARES, tmp_path)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fleetcount_simulator.populations.snapshots import Recorder

    path = tmp_path / "t.csv"
    path.write_text(HEAD + "".join(f"{i},a,1,2\n" for i in range(40_000)))
    add: Callable[..., None] = Recorder.add

    def add_and_append(recorder: Recorder, piece: Any) -> None:
        add(recorder, piece)
        with path.open("a") as file:
            file.write("99999,b,1,2\n")

    monkeypatch.setattr(Recorder, "add", add_and_append)

    assert refusal(TRACE, SQUARES, tmp_path) == "t.csv changed while it was read"


@settings(max_examples=100 if NIGHTLY else 40)
@given(st.text(max_size=80))
def test_any_text_is_a_population_or_a_refusal_that_names_the_file(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "t.csv"
        path.write_bytes((HEAD + text).encode("utf-8", "surrogatepass"))
        try:
            build(TRACE, NONE, 1, Path(name))
        except ScenarioError as error:
            assert str(error).startswith("t.csv")  # noqa: PT017 either outcome is allowed, a refusal must name the file


def test_a_mark_at_the_start_carriage_returns_quotes_and_more_columns_are_accepted(tmp_path: Path) -> None:
    text = '\ufeffnote,time,vehicle,x,y\r\n"a, b",0,"say ""x""",1,2\r\nc,0,=cmd(),3,4'
    (tmp_path / "t.csv").write_bytes(text.encode())

    population = build(TRACE, NONE, 1, tmp_path)

    assert population.devices == 2
    assert population.histogram(0).tolist() == [0, 2]

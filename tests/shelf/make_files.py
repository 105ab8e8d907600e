"""Writes the files of the shelf that a library or a tool writes; run by hand, never by a test.

    python make_files.py --data DIR --election election.geojson.gz --boroughs nybb_16a.zip --catalogue vss.json

in an environment of its own with eclipse-sumo 1.28.0, pandas 3.1.1, polars 2.1.0, duckdb 2.0.1, pyarrow 26.0.1,
geopandas 1.2.0 (pyogrio 0.13.0) and tomli-w. DIR holds the extracts whose origin SOURCES.toml names: `buses.csv.gz`,
`adult.csv.gz` and `bologna.csv.gz`. The election comes from the wheel of plotly 7.1.0, the boroughs from that of
geopandas 0.14.4, the catalogue from `vspec export json` of vss-tools 6.1.0. Files of GTFS are as their
authors wrote them.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import duckdb
import geopandas
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyogrio
import shapely
import sumo
import tomli_w

HERE = Path(__file__).parent
FILES = HERE / "files"
ROOT = HERE.parents[1]
SUMO = Path(sumo.SUMO_HOME)


def main() -> None:
    """Write everything anew."""
    parser = argparse.ArgumentParser()
    for name in ("data", "election", "boroughs", "catalogue"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    given = parser.parse_args()
    for folder in ("sumo", "buses", "counts", "truths", "persons", "priors", "areas", "signals", "toml", "vss"):
        (FILES / folder).mkdir(parents=True, exist_ok=True)
    roads_and_traffic()
    buses(pd.read_csv(given.data / "buses.csv.gz", parse_dates=["timestamp"]))
    persons(pd.read_csv(given.data / "adult.csv.gz"))
    streets(pd.read_csv(given.data / "bologna.csv.gz"))
    areas(given.election, given.boroughs)
    signals_of(given.catalogue)
    tables()


SIGNALS = tuple(
    f"Vehicle.{name}"
    for name in (
        "Speed", "TraveledDistance", "IsBrokenDown", "LowVoltageSystemState", "CurrentLocation", "Powertrain.Type",
        "Powertrain.TractionBattery.StateOfCharge", "Diagnostics.DTCList", "Exterior.AirTemperature",
        "Chassis.Axle.Row1.Wheel.Left.Brake", "Chassis.Axle.Row1.Wheel.Right.Brake",
    )
)  # fmt: skip


def signals_of(catalogue: Path) -> None:
    """Write the part of the catalogue of signals that has these, and branches above them."""

    def part(node: dict[str, Any], path: str) -> dict[str, Any] | None:
        if path in SIGNALS:
            return node
        below = {name: kept for name, one in node.get("children", {}).items() if (kept := part(one, f"{path}.{name}"))}
        return {**node, "children": below} if below else None

    whole = json.loads(catalogue.read_text())
    (FILES / "vss" / "extract.json").write_text(
        json.dumps({"Vehicle": part(whole["Vehicle"], "Vehicle")}, indent=1) + "\n"
    )


def roads_and_traffic() -> None:
    """Write networks of SUMO, and what it says of a minute on two of them."""
    games, folder = SUMO / "tools" / "game" / "cross", FILES / "sumo"
    (folder / "cross.net.xml").write_bytes((games / "cross.net.xml").read_bytes())
    crossings = SUMO / "tools" / "sumolib" / "scenario" / "scenarios" / "RiLSA1" / "rilsa1.net.xml"
    (folder / "rilsa1.net.xml").write_bytes(crossings.read_bytes())
    with tempfile.TemporaryDirectory() as made:
        here = Path(made)
        walks = ["--spider", "--spider.arm-number", 4, "--spider.circle-number", 1, "--sidewalks.guess"]
        run(here, "netgenerate", *walks, "--crossings.guess", "--seed", 7, "-o", "sidewalks.net.xml")
        (folder / "sidewalks.net.xml.gz").write_bytes(gzip.compress((here / "sidewalks.net.xml").read_bytes(), mtime=0))
        run(here, "netgenerate", "--grid", "--grid.number", 3, "--sidewalks.guess", "-o", "town.net.xml")
        person = '<person id="p" depart="{}"><walk from="A1B1" to="B1C1"/></person>'
        box = '<container id="c" depart="6"><stop edge="A1B1" endPos="10" duration="30"/></container>'
        car = '<trip id="{}" depart="{}" from="A0A1" to="C1C0"/>'
        cars = [car.format("car-1", 3), car.format("Auto-ü", 6)]
        # Of what is written first SUMO's tables name their columns.
        (here / "foot.rou.xml").write_text(f"<routes>{person.format(0)}{''.join(cars)}</routes>")
        (here / "mixed.rou.xml").write_text(f"<routes>{cars[0]}{person.format(6)}{box}{cars[1]}</routes>")
        for name in ("cross.net.xml", "cross.rou.xml"):
            (here / name).write_bytes((games / name).read_bytes())
        for name, net, end in (("cross", "cross", 60), ("mixed", "town", 40), ("foot", "town", 40)):
            for form in ("xml", "csv", "parquet") if name != "foot" else ("csv",):
                steps = ["--end", end, "--device.fcd.period", 5, "--seed", 7, "--no-step-log"]
                files = ["-n", f"{net}.net.xml", "-r", f"{name}.rou.xml", "--fcd-output", f"{name}.fcd.{form}"]
                run(here, "sumo", *files, *steps)
                (folder / f"{name}.fcd.{form}").write_bytes((here / f"{name}.fcd.{form}").read_bytes())


def run(folder: Path, tool: str, *arguments: object) -> None:
    """Run a tool of SUMO in a folder."""
    environment = os.environ | {"SUMO_HOME": str(SUMO)}
    subprocess.run([SUMO / "bin" / tool, *map(str, arguments)], check=True, cwd=folder, env=environment)


def buses(every: pd.DataFrame) -> None:
    """Write 120 positions of buses as the field's libraries write them."""
    folder = FILES / "buses"
    rows = every.drop_duplicates(["vehicle_id", "timestamp"]).sort_values("timestamp", kind="stable").head(120)
    rows = rows[["vehicle_id", "timestamp", "latitude", "longitude", "bearing"]]
    moments = rows.assign(timestamp=rows["timestamp"].dt.tz_localize("UTC"))
    rome = moments.assign(timestamp=moments["timestamp"].dt.tz_convert("Europe/Rome"))
    seconds = rows.assign(timestamp=rows["timestamp"].astype("datetime64[s]").astype("int64"))
    moments.to_csv(folder / "pandas.csv", index=False)
    rome.to_csv(folder / "pandas-rome.csv", index=False)
    rome.to_csv(folder / "pandas-excel.csv", index=False, sep=";", encoding="utf-8-sig", lineterminator="\r\n")
    rows.to_csv(folder / "pandas-decimal-comma.csv", index=False, sep=";", decimal=",")
    rows.to_csv(folder / "pandas-utf-16.csv", index=False, encoding="utf-16")
    seconds.to_csv(folder / "pandas-seconds.csv.gz", index=False, compression={"method": "gzip", "mtime": 0})
    nanoseconds = moments.assign(timestamp=moments["timestamp"].astype("datetime64[ns, UTC]"))
    nanoseconds.to_parquet(folder / "pandas-nanoseconds.parquet", index=False)
    moments.assign(vehicle_id=moments["vehicle_id"].astype("string").astype("category")).to_parquet(
        folder / "pandas-category.parquet", compression="gzip"
    )
    frame = pl.from_pandas(moments.reset_index(drop=True))
    frame.write_csv(folder / "polars.csv")
    frame.with_columns(pl.col("vehicle_id").cast(pl.String).cast(pl.Categorical)).write_parquet(
        folder / "polars.parquet"
    )
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'America/New_York'")
    connection.register("rows", moments.reset_index(drop=True))
    connection.execute(f"COPY rows TO '{folder / 'duckdb.csv'}' (HEADER)")
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"COPY rows TO '{folder / 'duckdb-utc.csv'}' (HEADER)")
    exact = "SELECT * REPLACE (latitude::DECIMAL(9, 6) AS latitude, longitude::DECIMAL(9, 6) AS longitude) FROM rows"
    connection.execute(f"COPY ({exact}) TO '{folder / 'duckdb.parquet'}' (FORMAT parquet, COMPRESSION zstd)")
    table = pa.Table.from_pandas(moments, preserve_index=False).set_column(
        0, "vehicle_id", pa.array(moments["vehicle_id"].astype(str), pa.large_string())
    )
    pq.write_table(table, folder / "pyarrow.parquet", row_group_size=50, data_page_version="2.0", compression="brotli")
    where = geopandas.points_from_xy(moments["longitude"], moments["latitude"], crs="EPSG:4326")
    placed = geopandas.GeoDataFrame(moments.reset_index(drop=True), geometry=where)
    placed.to_parquet(folder / "geopandas.parquet", index=False)
    one = placed[placed["vehicle_id"] == placed["vehicle_id"].iloc[0]].head(12)
    one.to_file(FILES / "areas" / "geopandas-points.geojson", driver="GeoJSON")
    signals(one)


def signals(bus: pd.DataFrame) -> None:
    """Write what a program beside a bus would write: its positions as lines of JSON, and its last one as a file."""
    folder = FILES / "signals"
    plain = pd.DataFrame(bus.drop(columns="geometry"))
    plain = plain.assign(timestamp=plain["timestamp"].map(lambda moment: moment.isoformat()))
    plain.to_json(folder / "pandas.jsonl", orient="records", lines=True)
    pl.from_pandas(plain).write_ndjson(folder / "polars.ndjson")
    connection = duckdb.connect()
    connection.register("rows", plain)
    connection.execute(f"COPY rows TO '{folder / 'duckdb.json'}' (FORMAT json)")
    last = plain.iloc[-1]
    (folder / "position.json").write_text(json.dumps([last["longitude"], last["latitude"]]))
    (folder / "latitude.json").write_text(pd.Series([last["latitude"]]).to_json(orient="values")[1:-1])


def persons(every: pd.DataFrame) -> None:
    """Write counts and records of persons of the census."""
    counts, folder = every["education"].value_counts(), FILES / "counts"
    counts.to_csv(folder / "pandas.csv")
    table = pl.DataFrame({"education": counts.index.tolist(), "count": counts.tolist()})
    table.write_csv(folder / "polars.csv", separator=",", quote_style="always")
    connection = duckdb.connect()
    connection.register("rows", table.to_arrow())
    connection.execute(f"COPY rows TO '{folder / 'duckdb.parquet'}' (FORMAT parquet)")
    table.with_columns(pl.col("count").cast(pl.Float32)).write_parquet(folder / "polars-float32.parquet")
    few = every[["age", "sex", "education", "occupation", "income"]]
    few = few[~few["occupation"].isin(["?", "Armed-Forces", "Priv-house-serv"])].head(160)
    few.to_csv(FILES / "persons" / "pandas.csv", index=False)
    pl.from_pandas(few).write_csv(FILES / "persons" / "polars.csv", quote_style="non_numeric", line_terminator="\r\n")


def streets(every: pd.DataFrame) -> None:
    """Write where the vehicles of Bologna are at a moment, and how many there are in squares of 500 m."""
    now = every[every["t"] == 1800]
    inside = now["edge"].str.startswith(":")
    truths = pd.DataFrame({"vehicle": now["vehicle"], "value": now["edge"].mask(inside)}).head(150)
    truths.to_csv(FILES / "truths" / "pandas.csv", index=False)
    pl.from_pandas(truths.reset_index(drop=True)).write_csv(FILES / "truths" / "polars.csv", quote_style="always")
    squares = (now["x"] // 500).astype(int).astype(str) + "," + (now["y"] // 500).astype(int).astype(str)
    weights = squares.value_counts().value_counts().sort_index().rename_axis("count").rename("weight")
    weights.to_csv(FILES / "priors" / "pandas.csv")
    shares = pl.DataFrame({"count": weights.index.tolist(), "probability": (weights / weights.sum()).tolist()})
    shares.write_csv(FILES / "priors" / "polars.csv")


def areas(election: Path, boroughs: Path) -> None:
    """Write borders as GeoJSON, as geopandas and shapely write them."""
    folder = FILES / "areas"
    districts = json.loads(gzip.decompress(election.read_bytes()))
    districts["features"] = districts["features"][:6]
    (folder / "montreal.geojson").write_text(json.dumps(districts, separators=(",", ":"), ensure_ascii=False))
    city = geopandas.read_file(f"zip://{boroughs}!nybb.shp")
    city["geometry"] = city.simplify(3000)
    city.to_file(folder / "new-york-feet.geojson", driver="GeoJSON", RFC7946="NO", COORDINATE_PRECISION=0)
    degrees = city.to_crs(4326)
    degrees.to_file(folder / "new-york.geojson", driver="GeoJSON", RFC7946="NO", COORDINATE_PRECISION=5)
    degrees.to_file(folder / "new-york-sequence.geojson", driver="GeoJSONSeq", COORDINATE_PRECISION=5)
    nowhere = degrees[["BoroName", "geometry"]].head(2).copy()
    nowhere.loc[5] = ["nowhere", None]
    nowhere.to_file(folder / "new-york-nowhere.geojson", driver="GeoJSON", COORDINATE_PRECISION=5)
    rounded = shapely.set_precision(degrees.geometry.values, 1e-5)
    parts = shapely.geometrycollections([*rounded[:3], shapely.Point(-74, 40.7)])
    (folder / "shapely-collection.geojson").write_text(shapely.to_geojson(parts))
    only = shapely.geometrycollections(rounded[:3])
    (folder / "shapely-polygons.geojson").write_text(shapely.to_geojson(only))
    world = Path(pyogrio.__file__).parent / "tests" / "fixtures" / "naturalearth_lowres" / "naturalearth_lowres.shp"
    countries = geopandas.read_file(world)
    fiji = countries[countries["name"] == "Fiji"]
    fiji.to_file(folder / "fiji.geojson", driver="GeoJSON", RFC7946="YES")
    roads = [sys.executable, SUMO / "tools" / "net" / "net2geojson.py", "-n", FILES / "sumo" / "cross.net.xml"]
    subprocess.run([*roads, "-o", folder / "sumo-roads.geojson"], check=True)


def tables() -> None:
    """Write a scenario and a configuration as tomli-w writes them."""
    shipped = ROOT / "simulator" / "src" / "fleetcount_simulator" / "examples" / "coverage.toml"
    sample = ROOT / "deploy" / "sample" / "device.toml"
    for source, name in ((shipped, "scenario.toml"), (sample, "device.toml")):
        (FILES / "toml" / name).write_text(tomli_w.dumps(tomllib.loads(source.read_text())))


if __name__ == "__main__":
    main()

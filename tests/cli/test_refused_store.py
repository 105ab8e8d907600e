"""A database with the store of another aggregator is refused in one line by `doctor` and `serve`, and left as it is."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

import psycopg
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_aggregator.storage.store import Store
from psycopg.conninfo import make_conninfo

pytestmark = pytest.mark.processes


def rows(url: str) -> list[Any]:
    """Return all that an opening could write."""
    with closing(psycopg.connect(make_conninfo(url))) as connection:
        tables = ("instance", "coordinator", "commits", "data_keys", "schema_version")
        return [connection.execute(f"SELECT xmin, * FROM {one} ORDER BY 2").fetchall() for one in tables]


def test_another_aggregator_s_store_is_refused_by_both_commands_and_left_as_it_is(
    fleetcount: Callable[..., Any], postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = StorePlace(directory=tmp_path, url=postgres_url)
    asyncio.run(Store.over(open_engine(place, alone=False), place.file, bytes(range(32))).close())
    monkeypatch.chdir(tmp_path)
    assert fleetcount("keys", "init", "--output", "dep", "--base-port", "0").code == 0
    config = tmp_path / "dep" / "alpha" / "aggregator.toml"
    config.write_text(f'{config.read_text()}\n[store]\nurl = "{postgres_url}"\n')
    before = rows(postgres_url)

    looked = fleetcount("doctor", "--config", config)
    started = fleetcount("aggregator", "serve", "--config", config)

    said = "the store was written under another at-rest key, or is another aggregator's"
    [line] = [one for one in looked.out.splitlines() if one.startswith("FAILED  store:")]
    assert said in line
    assert started.code == 5
    assert said in started.error_line
    assert rows(postgres_url) == before

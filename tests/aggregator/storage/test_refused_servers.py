"""Servers that processes must not share are refused in one line, by `doctor` and at a start, before any write."""

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

import psycopg
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage import postgres
from fleetcount_aggregator.storage.data_keys import StoreKeys
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.storage.store_check import examine_server
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.pooler import pooled

KEYS = StoreKeys(bytes(range(32)), None)


def through(url: str, port: int) -> str:
    """Return the URL of the same database behind a pooler."""
    asked = conninfo_to_dict(url)
    options = "" if asked.get("options") is None else f"&options={quote(str(asked['options']))}"
    return f"postgresql://{asked['user']}@127.0.0.1:{port}/{asked['dbname']}?sslmode=disable{options}"


def socket_of(url: str) -> str:
    """Return the path of the server's socket."""
    asked = conninfo_to_dict(url)
    return f"{asked['host']}/.s.PGSQL.{asked.get('port', 5432)}"


def rows(url: str) -> list[Any]:
    """Return all that an opening could write."""
    with closing(psycopg.connect(make_conninfo(url))) as connection:
        tables = ("instance", "coordinator", "commits", "data_keys", "schema_version")
        return [connection.execute(f"SELECT xmin, * FROM {one} ORDER BY 2").fetchall() for one in tables]


def tables(url: str) -> int:
    with closing(psycopg.connect(make_conninfo(url))) as connection:
        query = "SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
        return int(connection.execute(query).fetchone()[0])


def refused(place: StorePlace, said: str) -> None:
    """See that neither a look nor a start takes it, each in one line."""
    for what in (lambda: examine_server(place, KEYS), lambda: open_engine(place, alone=False)):
        with pytest.raises(StoreError, match=said) as error:
            what()
        assert "\n" not in str(error.value)


def test_a_pooler_that_shares_sessions_is_refused_and_one_that_keeps_them_is_not(
    postgres_url: str, tmp_path: Path
) -> None:
    with pooled(socket_of(postgres_url), keeps=False) as port:
        place = StorePlace(directory=tmp_path, url=through(postgres_url, port))
        refused(place, "a pooler gives one session of the server to several clients; allowed is")
    assert tables(postgres_url) == 0
    with pooled(socket_of(postgres_url), keeps=True) as port:
        place = StorePlace(directory=tmp_path, url=through(postgres_url, port))
        open_engine(place, alone=False).close()


@pytest.mark.parametrize("off_s", [-120, 120])
def test_a_server_whose_clock_is_off_is_refused(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off_s: int
) -> None:
    here = SimpleNamespace(time=lambda: time.time() + off_s, monotonic=time.monotonic, sleep=time.sleep)
    monkeypatch.setattr(postgres, "time", here)
    refused(StorePlace(directory=tmp_path, url=postgres_url), r"its clock is 1[12]\d s away.*allowed are 30")
    assert tables(postgres_url) == 0


def test_another_aggregator_s_store_is_refused_by_both_commands_and_left_as_it_is(
    fleetcount: Callable[..., Any], postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = StorePlace(directory=tmp_path, url=postgres_url)
    asyncio.run(Store.over(open_engine(place, alone=False), place.file, KEYS.at_rest).close())
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

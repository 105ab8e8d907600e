"""Servers that processes must not share are refused in one line, by `doctor` and at a start, before any write."""

import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

import psycopg
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage import postgres
from fleetcount_aggregator.storage.data_keys import StoreKeys
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.opening import open_engine
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

"""A store is asked whether it can be written to by writing: one that can only be read is not well."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.rows import read_ledger
from fleetcount_aggregator.storage.store import Store

KEY = bytes(range(32))
REFUSE = "CREATE TRIGGER refuse BEFORE UPDATE ON instance BEGIN SELECT RAISE(ABORT, 'disk is full'); END"


async def test_a_store_that_takes_no_write_fails_its_probe_until_it_takes_them_again(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "a.db", KEY)
    await store.probe()
    with closing(sqlite3.connect(tmp_path / "a.db")) as other:
        other.execute(REFUSE)
        with pytest.raises(StoreError, match="disk is full"):
            await store.probe()
        assert await store.read(read_ledger) == []  # It can be read all the same.
        other.execute("DROP TRIGGER refuse")
    await store.probe()
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.probe()

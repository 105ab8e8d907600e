"""A check names what is damaged and nothing else, also while the aggregator writes."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage import store_check
from fleetcount_aggregator.storage.data_keys import StoreKeys
from fleetcount_aggregator.storage.database import WINDOWS, Database, RowSeal, SealedDatabase
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_aggregator.storage.row_types import BatchRow, StepRow, WindowChange, WindowRow
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.storage.store_check import StoreCheck, check_store
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.messages import WindowState

WINDOW = WindowId(b"t" * 32)
KEY = bytes(range(32))
Write = Callable[[Store], Coroutine[Any, Any, object]]


async def batch_is_verified(store: Store) -> None:
    batch = BatchRow(number=0, positions=np.arange(0), verdicts=b"", share_digests=b"", kept=b"")
    step = StepRow(name="batch/0", request=b"", answer=b"", transient=True)
    await store.apply(
        WindowChange(window_id=WINDOW, required=frozenset({WindowState.AGREEING}), step=step, batch=batch)
    )


async def window_ends(store: Store) -> None:
    ended = WindowChange(window_id=WINDOW, required=frozenset({WindowState.AGREEING}), new_state=WindowState.ABORTED)
    await store.apply(ended)
    await store.purge(WINDOW)


async def check_while(
    store: Store, place: StorePlace, monkeypatch: pytest.MonkeyPatch, write: Write, before: str
) -> StoreCheck:
    """Check a store, and write to it just before a statement of the check."""
    loop, writes = asyncio.get_running_loop(), [write]

    def written_to(plain: Database, seal: RowSeal) -> SealedDatabase:
        database = SealedDatabase(plain, seal)

        def execute(statement: str, values: Any = (), /) -> Any:
            if statement.startswith(before) and writes:
                asyncio.run_coroutine_threadsafe(writes.pop()(store), loop).result(60)
            return plain.execute(statement, values)

        database.execute = execute
        return database

    monkeypatch.setattr(store_check, "SealedDatabase", written_to)
    found = await asyncio.to_thread(check_store, place, StoreKeys(KEY, None))
    assert not writes
    return found


@pytest.mark.parametrize("kind", ["file", "postgres"])
@pytest.mark.parametrize(
    ("write", "before"),
    [(batch_is_verified, "SELECT window_id, number FROM batches"), (window_ends, f"{WINDOWS.select} WHERE (rest")],
)
async def test_what_is_written_while_a_store_is_checked_is_no_damage(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Write,
    before: str,
    kind: str,
) -> None:
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else None
    place = StorePlace(directory=tmp_path, url=url)
    store = Store.over(open_engine(place), place.file, KEY)
    sealed = store.data_keys.make(WINDOW).seal(b"the verify key", b"verify key", WINDOW)
    row = WindowRow(
        window_id=WINDOW, canonical=b"", verify_key=sealed, state=WindowState.AGREEING, abort_reason="", installed_at=1
    )
    await store.decide_windows((), row)
    unwritten = {str(one.damage) for one in check_store(place, StoreKeys(KEY, None)).verdicts}

    found = await check_while(store, place, monkeypatch, write, before)

    assert {str(one.damage) for one in found.verdicts} - unwritten == set()
    await store.close()


def test_a_check_names_the_row_by_which_one_process_leads_where_it_is_gone(postgres_url: str, tmp_path: Path) -> None:
    place = StorePlace(directory=tmp_path, url=postgres_url)
    engine = open_engine(place)
    Store.over(engine, place.file, KEY)
    engine.write(lambda db: db.execute("DELETE FROM coordinator"))
    engine.close()

    [found] = check_store(place, StoreKeys(KEY, None)).verdicts

    assert "the row of the table coordinator is missing" in str(found.damage)
    assert found.repair == "nothing: put back a backup"

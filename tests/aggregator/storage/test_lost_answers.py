"""Answers of PostgreSQL to instalments that are lost: what has a receipt stays, and what is counted lies there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fleetcount_aggregator.storage.database import Database
from fleetcount_aggregator.storage.errors import StoreAwayError, StoreError
from fleetcount_aggregator.storage.instalment_run import StoreOutcome
from fleetcount_aggregator.storage.postgres import Server
from fleetcount_aggregator.storage.postgres_engine import PostgresEngine
from fleetcount_aggregator.storage.postgres_frames import RetryingLink
from fleetcount_aggregator.storage.row_types import WindowChange, WindowRow
from fleetcount_aggregator.storage.store import Store
from fleetcount_protocol.ids import Digest, ReportId, WindowId
from fleetcount_protocol.messages import WindowState

from tests.support.instalments import StoredInstalment, add

WINDOW = WindowId(b"t" * 32)
CLOSE = WindowChange(window_id=WINDOW, required=frozenset({WindowState.COLLECTING}), new_state=WindowState.AGREEING)


async def opened(directory: Path, url: str) -> Store:
    """Return a store that has the database alone, with an open window."""
    store = Store.over(PostgresEngine.open(Server(url=url)), directory / "store.db", bytes(32))
    await store.decide_windows(
        (),
        WindowRow(
            window_id=WINDOW,
            canonical=b"canonical",
            verify_key=b"sealed",
            state=WindowState.COLLECTING,
            abort_reason="",
            installed_at=7,
        ),
    )
    return store


def instalment(number: int) -> StoredInstalment:
    """Return the only instalment of a report, whose first byte is the number."""
    return StoredInstalment(
        window_id=WINDOW,
        report_id=ReportId(bytes([number]) * 16),
        round=1,
        certificate=Digest(bytes([number]) * 32),
        digest=Digest(bytes([number]) * 32),
        public_share=b"",
        part=b"p" * 16,
        expected=1,
    )


@contextmanager
def lost(monkeypatch: pytest.MonkeyPatch, *, done: bool, times: int = 1) -> Iterator[None]:
    """The server does, or never gets, what it is asked for the next so many times, and nobody hears from it."""
    run, left = RetryingLink.run, [times]

    def without_answer(self: RetryingLink, work: Callable[[Database], Any]) -> Any:
        if left[0] == 0:
            return run(self, work)
        left[0] -= 1
        if done:
            run(self, work)
        raise StoreAwayError("the server does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(RetryingLink, "run", without_answer)
        yield
    assert left == [0]


async def ids(store: Store) -> bytes:
    """Return the first byte of each complete report, by position."""
    found = (await store.complete_reports(WINDOW)).ids
    return b"".join(found.at([at])[:1] for at in range(len(found)))


async def has(store: Store, number: int) -> bool:
    """Whether an instalment is stored."""
    return await store.instalment_digests(WINDOW, [ReportId(bytes([number]) * 16)], 1) != [None]


@pytest.mark.parametrize("done", [True, False])
async def test_what_was_stored_without_an_answer_is_where_it_is_after_a_restart_too(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    store = await opened(tmp_path, postgres_url)
    await add(store, [instalment(1)])
    with lost(monkeypatch, done=done), pytest.raises(StoreError):
        await add(store, [instalment(2)])
    await add(store, [instalment(200)])
    await store.apply(CLOSE)
    live = await ids(store)
    await store.close()

    again = await opened(tmp_path, postgres_url)
    read_back = await ids(again)
    await again.close()

    assert live == read_back == (bytes([1, 2, 200]) if done else bytes([1, 200]))


async def test_a_receipt_outlives_an_answer_that_is_lost_while_the_server_stays_away(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(tmp_path, postgres_url)
    assert await add(store, [instalment(1), instalment(200)]) == 2 * [StoreOutcome.STORED]
    with lost(monkeypatch, done=True), pytest.raises(StoreError):
        await add(store, [instalment(2)])
    with lost(monkeypatch, done=False), pytest.raises(StoreError):
        await has(store, 1)

    assert await has(store, 1)
    await store.apply(CLOSE)
    assert await ids(store) == bytes([1, 200, 2])
    await store.close()

"""Every process hears of what changed: once, in the order of the commits, or that it does not know what."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

from fleetcount_aggregator.storage import changes as storage_changes
from fleetcount_aggregator.storage.async_link import AsyncLink
from fleetcount_aggregator.storage.changes import Changes, note_changes
from fleetcount_aggregator.storage.database import Changed
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.postgres import PostgresDatabase, Server
from fleetcount_aggregator.storage.postgres_engine import PostgresEngine

from tests.support.connector import connector

WINDOW, OTHER = bytes(range(32)), bytes(range(1, 33))
SESSIONS = [bytes([number]) * 16 for number in range(3)]


@pytest.fixture
async def changes(postgres_url: str) -> AsyncIterator[Changes]:
    """What a process knows that has looked at everything."""
    await asyncio.to_thread(lambda: PostgresEngine.open(Server(url=postgres_url)).close())
    link = AsyncLink(connector(postgres_url))
    found = Changes(link)
    assert await found.look() is None
    assert await found.look() == {}
    yield found
    await link.close()


@contextmanager
def writing(url: str) -> Iterator[PostgresDatabase]:
    """A transaction that is committed at the end of the block."""
    connection = Server(url=url).connect()
    connection.execute(b"BEGIN")
    yield PostgresDatabase(connection)
    connection.execute(b"COMMIT")
    connection.close()


async def test_what_transactions_note_is_told_once_by_kind(changes: Changes, postgres_url: str) -> None:
    with writing(postgres_url) as db:
        note_changes(db, [(Changed.WINDOW, WINDOW), (Changed.WINDOW, WINDOW), (Changed.DATA_KEY, b"")])
        assert await changes.look() == {}, "nothing before the commit"
    with writing(postgres_url) as db:
        note_changes(db, [(Changed.WINDOW, OTHER), *((Changed.SESSION, one) for one in SESSIONS)])
        note_changes(db, [])

    assert await changes.look() == {
        Changed.WINDOW: [WINDOW, OTHER],
        Changed.DATA_KEY: [],
        Changed.SESSION: SESSIONS,
    }
    assert await changes.look() == {}


async def test_who_was_away_for_more_than_is_kept_takes_everything_for_changed(
    changes: Changes, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_changes, "KEPT", 2)
    for number in range(3):
        with writing(postgres_url) as db:
            note_changes(db, [(Changed.SESSION, SESSIONS[number])])
        if number == 1:
            assert await changes.look() == {Changed.SESSION: SESSIONS[:2]}
            changes._seen = 0
    assert await changes.look() is None
    assert await changes.look() == {}
    changes.forget()
    assert await changes.look() is None


async def test_a_server_that_was_put_back_is_looked_at_as_a_whole(changes: Changes, postgres_url: str) -> None:
    with writing(postgres_url) as db:
        note_changes(db, [(Changed.WINDOW, WINDOW)])
    assert await changes.look() == {Changed.WINDOW: [WINDOW]}
    with writing(postgres_url) as db:
        db.execute("UPDATE coordinator SET changes = 0")
    assert await changes.look() is None


async def test_numbers_are_committed_in_their_order(changes: Changes, postgres_url: str) -> None:
    """Else who has seen the later one would never hear of the earlier."""
    other = Server(url=postgres_url).connect()
    with writing(postgres_url) as db:
        note_changes(db, [(Changed.WINDOW, WINDOW)])
        late = asyncio.create_task(asyncio.to_thread(note_changes, PostgresDatabase(other), [(Changed.WINDOW, OTHER)]))
        await asyncio.sleep(0.2)
        assert not late.done()
    await late
    other.close()
    assert await changes.look() == {Changed.WINDOW: [WINDOW, OTHER]}


async def test_a_server_that_is_away_is_asked_again_and_nothing_is_missed(changes: Changes, postgres_url: str) -> None:
    with writing(postgres_url) as db:
        note_changes(db, [(Changed.WINDOW, WINDOW)])
    link, changes._link = changes._link, AsyncLink(connector("postgresql://127.0.0.1:1/nobody"))
    with pytest.raises(StoreError):
        await changes.look()
    changes._link = link
    assert await changes.look() == {Changed.WINDOW: [WINDOW]}

"""Who listens is told which rows changed once that is committed, and that something may have been missed."""

import asyncio
from collections import Counter
from typing import NoReturn

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

from fleetcount_aggregator.storage.database import Database
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.notices import Notices
from fleetcount_aggregator.storage.postgres import Server
from fleetcount_aggregator.storage.postgres_engine import PostgresEngine
from fleetcount_aggregator.storage.schema import CHAIN_CHANNEL, KEY_CHANNEL, WINDOW_CHANNEL
from psycopg.conninfo import conninfo_to_dict

from tests.support.members import connector
from tests.support.postgres import Cluster

WINDOW = bytes(range(32))


class _Heard:
    """What was heard, by channel."""

    def __init__(self) -> None:
        self.said: Counter[tuple[str, str]] = Counter()
        self._changed = asyncio.Event()

    def hear(self, channel: str, named: str = "") -> None:
        self.said[channel, named] += 1
        self._changed.set()

    async def until(self, *expected: tuple[str, str]) -> None:
        async with asyncio.timeout(60):
            while not all(self.said[one] for one in expected):
                await self._changed.wait()
                self._changed.clear()


async def test_changes_are_told_once_they_are_committed_and_a_lost_connection_too(
    postgres_cluster: Cluster, postgres_url: str
) -> None:
    engine, heard = await asyncio.to_thread(PostgresEngine.open, Server(url=postgres_url), alone=False), _Heard()
    channels = (WINDOW_CHANNEL, CHAIN_CHANNEL, KEY_CHANNEL)
    hearers = {channel: lambda named, channel=channel: heard.hear(channel, named) for channel in channels}
    listening = asyncio.create_task(Notices(connector(postgres_url), hearers, lambda: heard.hear("missed")).run())
    try:
        await heard.until(("missed", ""))
        heard.said.clear()
        await asyncio.to_thread(_change, engine)
        await heard.until((WINDOW_CHANNEL, WINDOW.hex()), (CHAIN_CHANNEL, "11" * 16), (KEY_CHANNEL, "gone"))
        # The row of the window was installed and moved in one transaction: told once.
        assert heard.said == {
            (WINDOW_CHANNEL, WINDOW.hex()): 1,
            (CHAIN_CHANNEL, "11" * 16): 1,
            (KEY_CHANNEL, "gone"): 1,
        }

        name = conninfo_to_dict(postgres_url)["dbname"]
        cut = (
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' AND query LIKE 'LISTEN%'"
        )
        assert postgres_cluster.run(cut)
        await heard.until(("missed", ""))
    finally:
        listening.cancel()
        await asyncio.wait([listening])
        engine.close()


async def test_a_server_that_is_away_when_a_listener_comes_back_is_asked_again() -> None:
    asked, missed = 0, asyncio.Event()

    async def away() -> NoReturn:
        nonlocal asked
        asked += 1
        raise StoreError("the server is away")

    listening = asyncio.create_task(Notices(away, {}, missed.set).run())
    try:
        async with asyncio.timeout(30):
            await asyncio.wait({listening, asyncio.ensure_future(missed.wait())}, return_when=asyncio.FIRST_COMPLETED)
        assert not listening.done()
        assert asked
    finally:
        listening.cancel()
        await asyncio.wait([listening])


def _change(engine: PostgresEngine) -> None:
    def work(db: Database) -> None:
        execute = db.execute
        execute(
            "INSERT INTO windows (window_id, canonical, verify_key, state, abort_reason, installed_at, place)"
            " VALUES (?, ?, ?, 'announced', '', 0, 1)",
            (WINDOW, b"", b""),
        )
        execute("UPDATE windows SET state = 'collecting'")
        execute("INSERT INTO chains (session_id, chain) VALUES (?, ?)", (b"\x11" * 16, b"old"))
        execute("UPDATE chains SET chain = ?", (b"new",))
        execute("INSERT INTO data_keys (name, wrapped) VALUES ('gone', ?)", (b"",))
        execute("DELETE FROM data_keys")

    engine.write(work)

"""Opens stores in processes that are killed at one statement after the other, for tests of kill -9 in a migration.

Run as a command, which forks before any thread is started: `python -m tests.support.killed_opening file DIRECTORY` with
a store of this version in DIRECTORY/old, opened as by the next one, or `server URL`. Prints one JSON object.
"""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from fleetcount_aggregator.storage import postgres_engine, schema, sqlite_engine
from fleetcount_aggregator.storage.postgres import Server
from fleetcount_aggregator.storage.postgres_engine import PostgresEngine
from fleetcount_aggregator.storage.rows import read_window
from fleetcount_aggregator.storage.store import Store
from fleetcount_protocol.ids import WindowId

from tests.support.next_release import later

KEY = bytes(range(32))


class Counter:
    """Kills this process before a statement of that number."""

    def __init__(self, number: int) -> None:
        self._left = number

    def statement(self, *_: object) -> None:
        """Note that one is about to be carried out."""
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1


def killed(work: Callable[[], None]) -> bool:
    """Run work in a process of its own; return whether it was killed.

    Raises:
        AssertionError: it failed otherwise.
    """
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise AssertionError("what was left could not be opened, or is not whole")
    return os.WIFSIGNALED(status)


def open_file(path: Path, counter: Counter) -> None:
    """Open a store with every statement counted."""
    connect = sqlite3.connect

    def counted(*place: Any, **how: Any) -> sqlite3.Connection:
        connection = connect(*place, **how)
        connection.set_trace_callback(counter.statement)
        return connection

    sqlite3.connect = counted
    asyncio.run(Store.open(path, KEY).close())


def check_file(path: Path) -> None:
    """Open what a kill has left; it has all that the version before had."""

    async def look() -> None:
        store = Store.open(path, KEY)
        window = await store.read(read_window, WindowId(b"t" * 32))
        assert window is not None
        assert window.state.value == "collecting"
        assert len((await store.complete_reports(window.window_id)).ids.order) == 1
        assert not await store.damaged()
        await store.close()

    asyncio.run(look())


def files(root: Path) -> dict[str, int]:
    """Kill at every statement of the opening of a file."""
    number, versions = 0, set[int]()
    while True:
        place = root / f"killed {number}"
        shutil.copytree(root / "old", place)
        was_killed = killed(lambda: open_file(place / "store.db", Counter(number)))  # noqa: B023 - it is run here
        with closing(sqlite3.connect(place / "store.db")) as database:
            versions.add(database.execute("SELECT version FROM schema_version").fetchone()[0])
        assert not killed(lambda: check_file(place / "store.db"))  # noqa: B023 - it is run here
        shutil.rmtree(place)
        if not was_killed:
            return {"killed": number, "oldest": min(versions), "newest": max(versions), "versions": len(versions)}
        number += 1


def open_server(server: Server, counter: Counter) -> None:
    """Make a store with every statement of its tables counted."""
    bring_up = postgres_engine.bring_up

    def counted(known: Any, **how: Any) -> None:
        execute, note = how.pop("execute"), how.pop("note")
        bring_up(
            known,
            execute=lambda one: (counter.statement(), execute(one)),
            note=lambda one: (counter.statement(), note(one), counter.statement()),
            **how,
        )

    postgres_engine.bring_up = counted
    PostgresEngine.open(server).close()


def servers(url: str) -> dict[str, int]:
    """Kill at every statement of the making of the tables of a server."""
    server, number = Server(url=url), 0

    def tables() -> None:
        with closing(server.connect()) as connection:
            query = (
                b"SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'"
            )
            row = connection.execute(query).fetchone()
            assert row == (0,), "half of a store"

    while killed(lambda: open_server(server, Counter(number))):  # noqa: B023 - it is run here
        assert not killed(tables)
        number += 1
    assert not killed(lambda: PostgresEngine.open(server).close())
    return {"killed": number, "statements": len(schema.POSTGRES.tables)}


if __name__ == "__main__":
    kind, place = sys.argv[1:]
    sqlite_engine.SQLITE = later(schema.SQLITE)  # type: ignore[misc]
    print(json.dumps(files(Path(place)) if kind == "file" else servers(place)))

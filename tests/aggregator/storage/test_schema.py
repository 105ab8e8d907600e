"""Tables have numbers: a database of the version before is brought up with all it holds, and no crash leaves half.

There was no release yet: the next version is made up here, one ahead by a table, a column and a statement over rows.
"""

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage import schema
from fleetcount_aggregator.storage.backup import BackupFile, write_backup
from fleetcount_aggregator.storage.data_keys import StoreKeys
from fleetcount_aggregator.storage.database import RowSeal
from fleetcount_aggregator.storage.errors import SchemaMovedError, StoreError
from fleetcount_aggregator.storage.instalment_run import StoreOutcome
from fleetcount_aggregator.storage.postgres import Server
from fleetcount_aggregator.storage.postgres_engine import PostgresEngine, ServerMark
from fleetcount_aggregator.storage.row_types import WindowChange, WindowRow
from fleetcount_aggregator.storage.sqlite_engine import SqliteEngine
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.storage.store_check import check_store
from fleetcount_aggregator.windows.status import read_status
from fleetcount_client.spool import APPLICATION_ID, SCHEMA, StateFile
from fleetcount_protocol.errors import MachineError
from fleetcount_protocol.ids import Digest, ReportId, WindowId
from fleetcount_protocol.messages import WindowState
from fleetcount_transport.migrations import Schema, bring_up

from tests.support.instalments import StoredInstalment, add
from tests.support.next_release import LATER, later

WINDOW = WindowId(b"t" * 32)
KEY = bytes(range(32))
ABOUT = BackupFile(aggregator_id="alpha", deployment="test", made_at=1, keys=())

NEXT_FILE = later(schema.SQLITE)


@pytest.fixture
def next_release(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What makes this program the next release, for stores in files and for device files."""

    def begin() -> None:
        monkeypatch.setattr("fleetcount_aggregator.storage.sqlite_engine.SQLITE", NEXT_FILE)
        monkeypatch.setattr("fleetcount_client.spool.SCHEMA", NEXT_SPOOL)

    return begin


def instalment(number: int, round_number: int) -> StoredInstalment:
    return StoredInstalment(
        window_id=WINDOW,
        report_id=ReportId(number.to_bytes(16)),
        round=round_number,
        certificate=Digest(number.to_bytes(32)),
        digest=Digest(bytes((round_number, 0)) + bytes(30)),
        public_share=b"public share %2d" % number if round_number == 2 else b"",
        part=b"part %d of %2d" % (round_number, number),
        expected=2,
    )


def tables(path: Path) -> dict[str, list[str]]:
    """Return the columns of every table, sorted: a column that was added later stands last."""
    with closing(sqlite3.connect(path)) as database:
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(row[1] for row in database.execute(f"PRAGMA table_info({name})")) for name in names}


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute("SELECT version FROM schema_version").fetchone()[0])


async def collecting(path: Path) -> None:
    """Make a store of this version with a window that collects."""
    store = Store.open(path, KEY)
    row = WindowRow(
        window_id=WINDOW,
        canonical=b"window",
        verify_key=b"key",
        state=WindowState.COLLECTING,
        abort_reason="",
        installed_at=7,
    )
    await store.decide_windows((), row)
    assert await add(store, [instalment(1, 1), instalment(1, 2)]) == [StoreOutcome.STORED] * 2
    await store.close()


async def test_a_store_of_the_version_before_goes_on_where_it_was(
    tmp_path: Path, next_release: Callable[[], None]
) -> None:
    path = tmp_path / "store.db"
    await collecting(path)
    next_release()

    store = Store.open(path, KEY)
    assert await add(store, [instalment(1, 1), instalment(2, 1)]) == [StoreOutcome.SAME, StoreOutcome.STORED]
    assert await add(store, [instalment(2, 2)]) == [StoreOutcome.STORED]
    await store.apply(
        WindowChange(window_id=WINDOW, required=frozenset({WindowState.COLLECTING}), new_state=WindowState.AGREEING)
    )
    reports = await store.complete_reports(WINDOW)
    loaded = reports.source(np.arange(2)).load()
    assert not await store.damaged()
    await store.close()

    assert version(path) == NEXT_FILE.version
    assert bytes(loaded.batch.input_shares) == b"".join(b"part %d of %2d" % (r, n) for n in (1, 2) for r in (1, 2))
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT later FROM windows").fetchall() == [(7,)]


def test_tables_brought_up_are_those_of_a_new_store(tmp_path: Path, next_release: Callable[[], None]) -> None:
    new, old = tmp_path / "new.db", tmp_path / "old.db"
    SqliteEngine.open(old).close()
    next_release()
    for path in (new, old):
        SqliteEngine.open(path).close()

    assert tables(old) == tables(new)
    assert version(old) == version(new) == NEXT_FILE.version


def test_a_file_is_written_to_the_disk_before_anything_is_promised(tmp_path: Path) -> None:
    """F41: every commit waits for its sync (SQLite's synchronous = 2, FULL), by whichever connection."""
    engine = SqliteEngine.open(tmp_path / "store.db")

    said = [
        look(lambda db: db.execute("PRAGMA synchronous").fetchone()[0]) for look in (engine.read, engine.read_as_writer)
    ]
    engine.close()

    assert said == [2, 2]


def test_what_a_move_takes_along_is_every_table_with_every_column(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    SqliteEngine.open(path).close()

    found = tables(path)

    about_itself = {"schema_version", "instance"}
    assert {one.name: sorted(one.columns) for one in schema.TABLES} == {
        name: columns for name, columns in found.items() if name not in about_itself
    }
    with closing(sqlite3.connect(path)) as database:
        for one in schema.TABLES:
            key = [row[1] for row in database.execute(f"PRAGMA table_info({one.name})") if row[5]]
            assert sorted(one.key) == sorted(key), one.name


def on_a_full_disk(*place: Any, **how: Any) -> sqlite3.Connection:
    """Connect to a file that may not become longer."""
    connection = _CONNECT(*place, **how)
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    return connection


_CONNECT = sqlite3.connect


class Killed(BaseException):
    """What is left when the process is gone: nothing of its own code runs any more."""


def copies_at_each_statement(begin: Callable[[Path, Callable[[str], None]], None], directory: Path) -> list[Path]:
    """Bring a database up once and return what the disk held before each statement: what kill -9 there leaves."""
    copies: list[Path] = []

    def copy(_: str) -> None:
        copies.append(directory.parent / f"copy {len(copies)}")
        shutil.copytree(directory, copies[-1])

    begin(directory, copy)
    copy("the end")
    return copies


async def test_killed_at_any_statement_a_store_is_the_old_one_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, next_release: Callable[[], None]
) -> None:
    directory = tmp_path / "store"
    directory.mkdir()
    await collecting(directory / "store.db")
    next_release()

    def begin(place: Path, copy: Callable[[str], None]) -> None:
        def watched(known: Schema, **how: Any) -> None:
            execute = how.pop("execute")
            bring_up(known, execute=lambda statement: (copy(statement), execute(statement)), **how)

        with monkeypatch.context() as patched:
            patched.setattr("fleetcount_aggregator.storage.sqlite_engine.bring_up", watched)
            SqliteEngine.open(place / "store.db").close()

    copies = copies_at_each_statement(begin, directory)

    assert len(copies) == 3 + len(LATER), "BEGIN, what is added, COMMIT, and the end"
    found = [version(copy / "store.db") for copy in copies]
    assert found == [schema.SQLITE.version] * (len(copies) - 1) + [NEXT_FILE.version]
    for copy in (copies[1], copies[-2]):
        store = Store.open(copy / "store.db", KEY)
        assert await add(store, [instalment(1, 1)]) == [StoreOutcome.SAME]
        await store.close()
        assert tables(copy / "store.db") == tables(copies[-1] / "store.db")


async def test_a_disk_that_fills_up_leaves_the_old_version_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, next_release: Callable[[], None]
) -> None:
    path = tmp_path / "store.db"
    await collecting(path)
    next_release()

    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", on_a_full_disk)
        with pytest.raises(StoreError, match="full"):
            SqliteEngine.open(path)

    assert version(path) == schema.SQLITE.version
    SqliteEngine.open(path).close()
    assert version(path) == NEXT_FILE.version


@pytest.mark.parametrize("which", ["status", "check", "backup"])
@pytest.mark.parametrize(
    ("found", "says"),
    [
        (NEXT_FILE.version + 1, f"knows {schema.SQLITE.version} to {NEXT_FILE.version}$"),
        (schema.SQLITE.version, "run `fleetcount aggregator migrate`"),
    ],
)
def test_who_only_reads_says_what_to_do_with_a_store_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, found: int, says: str
) -> None:
    monkeypatch.setattr(schema, "SQLITE", NEXT_FILE)
    place = StorePlace(directory=tmp_path)
    SqliteEngine.open(place.file).close()
    with closing(sqlite3.connect(place.file)) as database, database:
        database.execute("UPDATE schema_version SET version = ?", (found,))
    read: dict[str, Callable[[], object]] = {
        "status": lambda: read_status(place),
        "check": lambda: check_store(place, StoreKeys(KEY, None)),
        "backup": lambda: write_backup(place, RowSeal(KEY), tmp_path / "backup", ABOUT, {}),
    }

    with pytest.raises(StoreError, match=rf"aggregator\.db has schema version {found}; .*{says}"):
        read[which]()


NEXT_SPOOL = later(SCHEMA, ("CREATE TABLE later(one INTEGER)", "ALTER TABLE ledger ADD COLUMN later INTEGER"))


def spool(directory: Path) -> Path:
    """Make a device's file of this version."""
    path = directory / "device.db"
    file = StateFile(path)
    file.rows("SELECT name FROM device", ())
    file.close()
    return path


def marks(path: Path) -> tuple[int, int]:
    """Return what a device's file says of itself."""
    with closing(sqlite3.connect(path)) as database:
        found = [database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    return found[0], found[1]


def test_a_spool_killed_at_any_statement_is_the_old_one_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, next_release: Callable[[], None]
) -> None:
    directory = tmp_path / "spool"
    directory.mkdir()
    spool(directory)
    next_release()

    def begin(place: Path, copy: Callable[[str], None]) -> None:
        def watched(known: Schema, **how: Any) -> None:
            execute = how.pop("execute")
            bring_up(known, execute=lambda statement: (copy(statement), execute(statement)), **how)

        with monkeypatch.context() as patched:
            patched.setattr("fleetcount_client.spool.bring_up", watched)
            spool(place)

    copies = copies_at_each_statement(begin, directory)

    assert len(copies) == 5
    assert [marks(copy / "device.db") for copy in copies] == [(APPLICATION_ID, SCHEMA.version)] * 4 + [
        (APPLICATION_ID, NEXT_SPOOL.version)
    ]
    assert tables(copies[-1] / "device.db") == tables(spool(tmp_path))


def test_a_spool_on_a_full_disk_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, next_release: Callable[[], None]
) -> None:
    path = spool(tmp_path)
    next_release()

    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", on_a_full_disk)
        with pytest.raises(MachineError, match="full"):
            StateFile(path).rows("SELECT name FROM device", ())

    assert marks(path) == (APPLICATION_ID, SCHEMA.version)


def test_a_server_that_is_lost_at_any_statement_has_a_whole_store_or_none(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(url=postgres_url)
    statements = len(schema.POSTGRES.tables) + 1

    def lost_before(number: int) -> None:
        left = [number]

        def watched(known: Schema, **how: Any) -> None:
            execute = how.pop("execute")

            def or_lost(statement: str) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                execute(statement)

            bring_up(known, execute=or_lost, **how)

        monkeypatch.setattr("fleetcount_aggregator.storage.postgres_engine.bring_up", watched)
        with pytest.raises(Killed):
            PostgresEngine.open(server)
        monkeypatch.undo()

    for number in range(0, statements, 5):
        lost_before(number)
        with closing(server.connect()) as connection:
            query = b"SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
            assert connection.execute(query).fetchone() == (0,)
    PostgresEngine.open(server).close()


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("CREATE TABLE something (other INTEGER)", "holds 1 tables of something else"),
        ("CREATE TABLE schema_version (version INTEGER); INSERT INTO schema_version VALUES (99)", "version 99;"),
        ("CREATE TABLE schema_version (version INTEGER)", "of something else"),
    ],
)
def test_a_database_of_something_else_or_of_the_future_is_refused_and_left_alone(
    postgres_url: str, before: str, said: str
) -> None:
    with closing(psycopg.connect(postgres_url, autocommit=True)) as connection:
        connection.execute(before.encode())
        with pytest.raises(StoreError, match=said) as refused:
            PostgresEngine.open(Server(url=postgres_url))
        query = b"SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
        assert connection.execute(query).fetchone() == (1,)

    assert "\n" not in str(refused.value)


NEWER = schema.POSTGRES.version + 1
NEXT = later(schema.POSTGRES)
AFTER_NEXT = later(NEXT, ("CREATE TABLE last (one BIGINT)",))


def test_tables_of_the_release_before_are_served_as_they_are_and_brought_up_when_asked_alone(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F50: a start changes no table; older ones than those of the release before are not served."""
    server = Server(url=postgres_url)
    PostgresEngine.open(server).close()

    def found(known: Schema, **how: Any) -> int:
        monkeypatch.setattr("fleetcount_aggregator.storage.postgres_engine.POSTGRES", known)
        engine = PostgresEngine.open(server, **how)
        version = engine.read(lambda db: db.execute("SELECT version FROM schema_version").fetchone()[0])
        engine.close()
        return int(version)

    assert found(NEXT) == NEWER - 1
    with pytest.raises(StoreError, match=f"serves {NEWER} and {NEWER + 1}: run `fleetcount aggregator migrate`"):
        found(AFTER_NEXT)
    assert found(NEXT, migrate=True) == NEWER
    assert found(AFTER_NEXT) == NEWER
    assert found(AFTER_NEXT, migrate=True) == NEWER + 1
    with pytest.raises(StoreError, match=f"has schema version {NEWER + 1}"):
        found(schema.POSTGRES)


@pytest.mark.parametrize(
    ("change", "said"),
    [("system_id = '1'", "--accept-failover"), ("store_state = 'moved 7'", "was moved elsewhere")],
)
def test_tables_of_another_server_or_of_a_store_that_was_moved_are_not_brought_up(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, change: str, said: str
) -> None:
    server = Server(url=postgres_url)
    PostgresEngine.open(server).close()
    with closing(server.connect()) as connection:
        connection.execute(f"UPDATE instance SET {change}".encode())
    monkeypatch.setattr("fleetcount_aggregator.storage.postgres_engine.POSTGRES", NEXT)

    with pytest.raises(StoreError, match=said):
        PostgresEngine.open(server, migrate=True)

    assert version_at(postgres_url) == NEWER - 1


def test_a_server_put_back_to_before_its_store_was_made_gets_no_tables(postgres_url: str, tmp_path: Path) -> None:
    server = Server(url=postgres_url)
    ahead = server.examine().log_end
    ServerMark(tmp_path / "mark").note(replace(ahead, flushed=ahead.flushed + 2**30), instead=True)

    with pytest.raises(StoreError, match="its write-ahead log ends at byte"):
        PostgresEngine.open(server, mark=tmp_path / "mark")

    with closing(server.connect()) as connection:
        query = b"SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
        assert connection.execute(query).fetchone() == (0,)


def test_tables_are_brought_up_under_no_process_that_knows_only_the_older_ones(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F50: one that hung meanwhile, and comes back, takes nothing and says what to do in one line."""
    server = Server(url=postgres_url)
    old = PostgresEngine.open(server, alone=False)
    assert old.take_lead()
    monkeypatch.setattr("fleetcount_aggregator.storage.postgres_engine.POSTGRES", NEXT)
    with pytest.raises(StoreError, match=f"an older release, which know schema version {NEWER - 1} at most"):
        PostgresEngine.open(server, alone=False, migrate=True)
    assert version_at(postgres_url) == NEWER - 1

    with pytest.raises(psycopg.OperationalError):  # As the server ends the session of a process that hangs.
        old._writer.connection().execute(b"SELECT pg_terminate_backend(pg_backend_pid())")
    PostgresEngine.open(server, alone=False, migrate=True).close()

    assert version_at(postgres_url) == NEWER
    monkeypatch.setattr("fleetcount_aggregator.storage.postgres_engine.POSTGRES", schema.POSTGRES)
    with pytest.raises(SchemaMovedError, match=f"schema version {NEWER}; this process knows {NEWER - 1} at most"):
        old.write(lambda db: None)
    old.close()


def version_at(url: str) -> int:
    with closing(psycopg.connect(url)) as connection:
        row = connection.execute("SELECT version FROM schema_version").fetchone()
    assert row is not None
    return int(row[0])


def killed_opening(*words: str) -> dict[str, int]:
    """Return what came of killing real processes at one statement after the other."""
    line = [sys.executable, "-m", "tests.support.killed_opening", *words]
    said = subprocess.run(line, capture_output=True, check=False, text=True, cwd=Path(__file__).parents[3])
    assert said.returncode == 0, said.stderr[-2000:]
    found: dict[str, int] = json.loads(said.stdout)
    return found


@pytest.mark.processes
@pytest.mark.nightly  # A process, and its files with their syncs, for each statement.
@pytest.mark.timeout(300)
async def test_a_process_that_is_killed_at_any_statement_of_an_upgrade_leaves_a_store_that_opens_whole(
    tmp_path: Path,
) -> None:
    (tmp_path / "old").mkdir()
    await collecting(tmp_path / "old" / "store.db")

    found = killed_opening("file", str(tmp_path))

    assert found["killed"] > 20, "every statement, from the first look to the last"
    assert (found["oldest"], found["newest"], found["versions"]) == (1, 2, 2), "nothing in between"


@pytest.mark.processes
@pytest.mark.nightly  # A process and a connection for each statement.
@pytest.mark.timeout(300)
def test_a_process_that_is_killed_while_it_makes_the_tables_of_a_server_leaves_none(postgres_url: str) -> None:
    found = killed_opening("server", postgres_url)

    assert found["killed"] > found["statements"]

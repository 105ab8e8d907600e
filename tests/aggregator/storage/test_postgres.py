"""What a store in PostgreSQL promises beyond the rules of every store: once, under one leader, on a durable server."""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage import postgres, postgres_engine
from fleetcount_aggregator.storage.data_keys import StorageCipher
from fleetcount_aggregator.storage.database import Changed, Database
from fleetcount_aggregator.storage.ended import read_active
from fleetcount_aggregator.storage.errors import FencedError, StoreError
from fleetcount_aggregator.storage.instalment_run import StoreOutcome
from fleetcount_aggregator.storage.opening import open_engine, reading
from fleetcount_aggregator.storage.postgres import Server, ServerState
from fleetcount_aggregator.storage.postgres_engine import KeyRows, PostgresEngine, ServerMark
from fleetcount_aggregator.storage.row_types import LedgerRow, StepRow, WindowChange, WindowRow
from fleetcount_aggregator.storage.rows import (
    count_rejections,
    raise_high_water,
    read_ledger,
    read_rejections,
    read_step,
    read_window,
)
from fleetcount_aggregator.storage.store import Store
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, WindowId
from fleetcount_protocol.messages import WindowState

from tests.support.instalments import StoredInstalment, add
from tests.support.postgres import Cluster, own_cluster
from tests.support.processes import wait_until

WINDOW = WindowId(b"t" * 32)
OPEN = frozenset({WindowState.COLLECTING})
DRAWN = WindowChange(
    window_id=WINDOW,
    required=OPEN,
    new_state=WindowState.AGREEING,
    step=StepRow(name="commit", request=b"q", answer=b"the one draw"),
    debit=LedgerRow(window_id=WINDOW, signal="S", opens=1, closes=2, epsilon="0.5", debited_at=3),
    rejections={RejectReason.TOO_LATE: 2},
)
GOOD = ServerState(150_000, False, False, "on", "on", "on", "", 0, "7", 1)


@pytest.fixture(scope="module")
def postgres_cluster() -> Iterator[Cluster]:
    """A cluster of this module's own: its tests change the server's settings, and cut whoever is connected."""
    with own_cluster() as cluster:
        yield cluster


@pytest.fixture
def held_at_closing(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many locks each connection of this process still holds as it is closed; a server ends it some time later."""
    held: list[int] = []
    really = psycopg.Connection.close
    with psycopg.connect(postgres_url, autocommit=True) as looker:

        def close(self: psycopg.Connection[Any]) -> None:
            if not self.closed and self is not looker:
                query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %s"
                held.append(looker.execute(query, (self.info.backend_pid,)).fetchall()[0][0])
            really(self)

        monkeypatch.setattr(psycopg.Connection, "close", close)
        yield held
        monkeypatch.undo()


def test_what_a_closed_store_held_is_others_at_once(
    tmp_path: Path, postgres_url: str, held_at_closing: list[int]
) -> None:
    place = StorePlace(directory=tmp_path, url=postgres_url)
    first = open_engine(place)
    assert isinstance(first, PostgresEngine)
    with pytest.raises(StoreError, match="is locked: another aggregator process runs on this database"):
        open_engine(place)
    first.close()
    second = open_engine(place, alone=False)
    assert isinstance(second, PostgresEngine)
    assert second.take_lead()
    second.release_lead()
    second.read_as_writer(lambda _: None)  # in a session of its own
    with pytest.raises(StoreError, match="locked"):
        open_engine(place)
    second.close()
    assert held_at_closing
    assert not any(held_at_closing)


def window_row() -> WindowRow:
    return WindowRow(
        window_id=WINDOW,
        canonical=b"window",
        verify_key=b"sealed",
        state=WindowState.COLLECTING,
        abort_reason="",
        installed_at=7,
    )


async def installed(directory: Path, engine: PostgresEngine) -> Store:
    store = Store.over(engine, directory / "store.db", bytes(32))
    await store.decide_windows((), window_row())
    return store


async def what_happened(store: Store) -> tuple[object, ...]:
    window = await store.read(read_window, WINDOW)
    assert window is not None
    step = await store.read(read_step, WINDOW, "commit")
    drawn = None if step is None else step.answer
    return window.state, drawn, len(await store.read(read_ledger)), dict(await store.read(read_rejections, WINDOW))


ONCE = (WindowState.AGREEING, b"the one draw", 1, {RejectReason.TOO_LATE: 2})
NEVER = (WindowState.COLLECTING, None, 0, {})


# Who leads.


def test_a_store_without_the_row_by_which_one_process_leads_says_so(postgres_url: str) -> None:
    engine = PostgresEngine.open(Server(url=postgres_url), alone=False)
    engine.write(lambda db: db.execute("DELETE FROM coordinator"))

    for use in (
        engine.take_lead,
        lambda: engine.write(engine.leads),
        lambda: engine.write(lambda db: engine.note_changes(db, [(Changed.DATA_KEY, b"")])),
    ):
        with pytest.raises(StoreError, match="the row of the table coordinator is missing"):
            use()
    engine.close()


async def test_a_leader_that_was_followed_by_another_writes_nothing_that_happens_once(
    tmp_path: Path, postgres_url: str
) -> None:
    old = await installed(tmp_path, PostgresEngine.open(Server(url=postgres_url)))
    other = Server(url=postgres_url).connect()
    other.execute(b"UPDATE coordinator SET epoch = epoch + 1")
    other.close()

    for change in (
        old.apply(DRAWN),
        old.decide_windows((), replace(window_row(), window_id=WindowId(b"u" * 32))),
        old.write(raise_high_water, AggregatorId("beta"), 3),
        old.purge(WINDOW),
    ):
        with pytest.raises(FencedError, match="led by another process"):
            await change
    await old.write_unfenced(count_rejections, WINDOW, {RejectReason.MALFORMED: 1})

    assert await what_happened(old) == (WindowState.COLLECTING, None, 0, {RejectReason.MALFORMED: 1})
    assert list(await old.read(read_active)) == [WINDOW]
    await old.close()


async def test_who_was_never_elected_leads_nothing(tmp_path: Path, postgres_url: str) -> None:
    store = await installed(tmp_path, PostgresEngine.open(Server(url=postgres_url)))
    await store.close()
    replica = PostgresEngine.open(Server(url=postgres_url), alone=False)
    store = Store.over(replica, tmp_path / "store.db", bytes(32))

    with pytest.raises(FencedError):
        await store.apply(DRAWN)

    assert await what_happened(store) == NEVER
    await store.close()


def test_who_needs_a_database_alone_waits_for_all_who_share_it_and_they_for_it(postgres_url: str) -> None:
    server = Server(url=postgres_url)
    replicas = [PostgresEngine.open(server, alone=False) for _ in range(2)]
    for replica in replicas:
        with pytest.raises(StoreError, match="locked: another aggregator process"):
            PostgresEngine.open(server)
        replica.close()
    alone = PostgresEngine.open(server)
    with pytest.raises(StoreError, match="locked: another aggregator process"):
        PostgresEngine.open(server, alone=False)
    alone.close()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that hold a lock and are not heard of end after a fraction of a second."""
    monkeypatch.setattr(postgres, "HANGS_S", 0.4)


def stands_soon(engine: PostgresEngine) -> bool:
    """Stand until elected; False after some seconds."""
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        if engine.take_lead():
            return True
        time.sleep(0.02)
    return False


def test_one_leads_at_a_time_and_the_next_when_it_resigns_or_is_gone(postgres_url: str) -> None:
    first, second = (PostgresEngine.open(Server(url=postgres_url), alone=False) for _ in range(2))
    assert (first.take_lead(), second.take_lead()) == (True, False)
    assert (first.epoch, second.epoch) == (1, None)

    first.release_lead()
    assert second.take_lead()
    assert (first.epoch, second.epoch) == (None, 2)
    second.close()
    assert stands_soon(first)
    assert first.epoch == 3
    first.close()


@pytest.mark.usefixtures("soon")
def test_a_leader_that_is_not_heard_of_is_followed_and_finds_out(postgres_url: str) -> None:
    """As one that is stopped outside a transaction: without its heartbeat the server ends its session."""
    hung, second = (PostgresEngine.open(Server(url=postgres_url), alone=False) for _ in range(2))
    assert hung.take_lead()

    assert stands_soon(second)

    assert not hung.write(hung.leads)
    assert hung.epoch is None
    for one in (hung, second):
        one.close()


@pytest.mark.usefixtures("soon")
def test_what_a_leader_hangs_in_is_not_committed_and_it_leads_no_more(postgres_url: str) -> None:
    """As one that is stopped in a transaction: its late commit is refused, and it finds that another leads."""
    hung, second = (PostgresEngine.open(Server(url=postgres_url), alone=False) for _ in range(2))
    assert hung.take_lead()
    led: list[bool] = []

    def work(db: Database) -> None:
        led.append(hung.leads(db))
        if led == [True]:
            db.execute("INSERT INTO counters (name, value) VALUES ('late', 1)")
            assert stands_soon(second)

    hung.write(work)

    assert led == [True, False]
    assert second.read(lambda db: db.execute("SELECT * FROM counters").fetchall()) == []
    for one in (hung, second):
        one.close()


async def test_a_leader_that_has_nothing_to_write_is_heard_of(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresEngine, "heartbeat_s", 0.1)
    monkeypatch.setattr(postgres_engine, "_HEARTBEAT_S", 0.1)
    monkeypatch.setattr(postgres, "HANGS_S", 2.0)  # Twenty heartbeats: a crowded machine may miss some.
    leader = PostgresEngine.open(Server(url=postgres_url), alone=False)
    assert leader.take_lead()
    store = await installed(tmp_path, leader)
    second = PostgresEngine.open(Server(url=postgres_url), alone=False)

    await asyncio.sleep(3)

    assert not second.take_lead()
    assert leader.epoch == 1
    await store.close()
    second.close()


def test_a_leader_whose_session_is_ended_leads_on_unless_another_has_led(
    postgres_url: str, postgres_cluster: Cluster
) -> None:
    first, second = (PostgresEngine.open(Server(url=postgres_url), alone=False) for _ in range(2))
    assert first.take_lead()

    def end() -> None:
        process = first._writer.connection().info.backend_pid
        with pytest.raises(psycopg.OperationalError):
            first._writer.connection().execute(b"SELECT pg_terminate_backend(pg_backend_pid())")
        running = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {process}"
        wait_until(lambda: postgres_cluster.run(running) == [(0,)], "its session is over")

    end()
    assert first.write(first.leads)
    assert not second.take_lead()
    end()
    assert stands_soon(second)
    assert not first.write(first.leads)
    for one in (first, second):
        one.close()


async def test_a_transaction_under_way_ends_before_the_next_leader_begins(tmp_path: Path, postgres_url: str) -> None:
    """Else the old one could commit a draw after the new one has looked for it."""
    engine = PostgresEngine.open(Server(url=postgres_url))
    following = Server(url=postgres_url).connect()
    following.execute(b"SET lock_timeout = '50ms'")

    def work(db: Database) -> None:
        assert engine.leads(db)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            following.execute(b"UPDATE coordinator SET epoch = epoch + 1")

    engine.write(work)
    following.execute(b"UPDATE coordinator SET epoch = epoch + 1")

    assert not engine.write(engine.leads)
    following.close()
    engine.close()


# Once.


async def test_a_transaction_in_the_way_of_another_is_done_again_with_the_same_draw(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await installed(tmp_path, PostgresEngine.open(Server(url=postgres_url)))
    apply, seen = Store._apply, []

    def with_another_in_the_way(self: Store, db: Database, change: WindowChange) -> Any:
        done = apply(self, db, change)
        if not seen:
            with psycopg.connect(postgres_url) as other:
                other.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
                other.execute("SELECT count(*) FROM ledger").fetchone()
                other.execute("INSERT INTO ledger VALUES (%s, 'S', 1, 2, '1', 3, 0)", (b"o" * 32,))
        seen.append(change)
        return done

    monkeypatch.setattr(Store, "_apply", with_another_in_the_way)
    assert await store.apply(DRAWN) is None
    after = await what_happened(store)
    await store.close()

    assert len(seen) > 1, "the server let both pass: nothing was tried again"
    assert after == (WindowState.AGREEING, b"the one draw", 2, {RejectReason.TOO_LATE: 2})


class LostAtCommit:
    """A connection that is lost with a commit: just after the server did it, or just before it was asked.

    As many commits as `before` says are answered before that.
    """

    def __init__(self, real: psycopg.Connection[Any], *, done: bool, before: int = 0) -> None:
        self._real, self._done, self._before = real, done, before

    def execute(self, statement: Any, *arguments: Any, **how: Any) -> Any:
        if statement == b"COMMIT" and self._before:
            self._before -= 1
        elif statement == b"COMMIT":
            if self._done:
                self._real.execute(statement)
            self._real.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return self._real.execute(statement, *arguments, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("done", [True, False])
async def test_a_commit_without_an_answer_is_asked_for_and_happens_once(
    tmp_path: Path, postgres_url: str, done: bool, before: int
) -> None:
    """The first closes the intake, the second is the draw."""
    engine = PostgresEngine.open(Server(url=postgres_url))
    store = await installed(tmp_path, engine)
    real = engine._writer.connection()
    engine._writer._connection = LostAtCommit(real, done=done, before=before)  # type: ignore[assignment]

    assert await store.apply(DRAWN) is None
    assert real.closed
    assert await what_happened(store) == ONCE
    await store.close()


class LeftAtCommit(LostAtCommit):
    """A connection that is lost with a commit which the server does a second later."""

    closed = False

    def execute(self, statement: Any, *arguments: Any, **how: Any) -> Any:
        if statement != b"COMMIT":
            return self._real.execute(statement, *arguments, **how)
        self.closed = True
        threading.Timer(1.0, self._real.execute, [statement]).start()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    def close(self) -> None:
        """The server does not notice."""


async def test_a_commit_that_the_server_is_still_at_is_waited_for_and_happens_once(
    tmp_path: Path, postgres_url: str
) -> None:
    engine = PostgresEngine.open(Server(url=postgres_url), alone=False)
    assert engine.take_lead()
    store = await installed(tmp_path, engine)
    left = engine._writer.connection()
    engine._writer._connection = LeftAtCommit(left, done=True)  # type: ignore[assignment]

    await store.write_unfenced(count_rejections, WINDOW, {RejectReason.TOO_LATE: 2})
    assert await store.read(read_rejections, WINDOW) == {RejectReason.TOO_LATE: 2}
    await store.close()
    left.close()


async def test_an_idle_connection_whose_row_of_commits_was_cleaned_up_goes_on(
    tmp_path: Path, postgres_url: str
) -> None:
    engine = PostgresEngine.open(Server(url=postgres_url))
    store = await installed(tmp_path, engine)
    with psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute("DELETE FROM commits")

    assert await store.apply(DRAWN) is None
    assert await what_happened(store) == ONCE
    await store.close()


class KilledAtCommit(LostAtCommit):
    """A connection whose server is killed when it is asked to commit, comes back, and is used by others first."""

    def __init__(self, real: psycopg.Connection[Any], cluster: Cluster) -> None:
        super().__init__(real, done=False)
        self._cluster = cluster

    def execute(self, statement: Any, *arguments: Any, **how: Any) -> Any:
        if statement == b"COMMIT":
            self._cluster.kill()
            self._cluster.start()
            # What was not on the disk is gone, its number too, which the next transactions of all databases get again.
            for _ in range(20):
                self._cluster.run("SELECT pg_current_xact_id()")
        return super().execute(statement, *arguments, **how)


@pytest.mark.processes
async def test_a_commit_that_died_with_the_server_happens_though_another_has_its_number(tmp_path: Path) -> None:
    with own_cluster() as cluster:
        engine = PostgresEngine.open(Server(url=cluster.url("postgres")))
        store = await installed(tmp_path, engine)
        engine._writer._connection = KilledAtCommit(engine._writer.connection(), cluster)  # type: ignore[assignment]

        assert await store.apply(DRAWN) is None
        after = await what_happened(store)
        await store.close()

    assert after == ONCE


async def test_connections_that_are_cut_come_back(tmp_path: Path, postgres_url: str, postgres_cluster: Cluster) -> None:
    store = await installed(tmp_path, PostgresEngine.open(Server(url=postgres_url)))
    postgres_cluster.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fleetcount'")

    assert await store.apply(DRAWN) is None
    assert await what_happened(store) == ONCE
    assert store.data_keys.make(WindowId(b"u" * 32)) is not None
    await store.close()


# The server.


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 130_022}, "version is 13; allowed is 14"),
        ({"in_recovery": True}, "allowed is the primary"),
        ({"read_only": True}, "allowed is the primary"),
        ({"fsync": "off"}, "fsync is off; allowed is on"),
        ({"full_page_writes": "off"}, "full_page_writes is off; allowed is on"),
        ({"synchronous_commit": "off"}, "synchronous_commit is off; allowed are on"),
        ({"synchronous_commit": "local"}, "synchronous_commit is local; allowed are on"),
        ({"standbys": 1}, "synchronous_standby_names is empty with 1 standby"),
    ],
)
def test_a_server_that_does_not_keep_what_it_commits_is_refused(changes: dict[str, Any], said: str) -> None:
    """F41: what a power cut would take is promised to nobody."""
    assert said in replace(GOOD, **changes).refusal()


def test_a_server_that_keeps_it_is_not() -> None:
    named = replace(GOOD, standbys=1, synchronous_standby_names="ANY 1 (*)", synchronous_commit="remote_apply")

    assert (GOOD.refusal(), named.refusal()) == ("", "")


@contextmanager
def server_with(cluster: Cluster, setting: str) -> Iterator[Callable[[], None]]:
    """Reload the server with a setting; what is given back reloads it with its own again."""

    def reload(statement: str) -> None:
        cluster.run(statement)
        cluster.reload()

    name = setting.partition(" ")[0]
    reload(f"ALTER SYSTEM SET {setting}")
    try:
        yield lambda: reload(f"ALTER SYSTEM RESET {name}")
    finally:
        reload(f"ALTER SYSTEM RESET {name}")


def test_no_store_is_opened_where_a_power_cut_takes_what_was_committed(
    postgres_url: str, postgres_cluster: Cluster
) -> None:
    """F41: at the start."""
    with server_with(postgres_cluster, "full_page_writes = off"), pytest.raises(StoreError, match="full_page_writes"):
        PostgresEngine.open(Server(url=postgres_url))


async def test_a_setting_that_is_reloaded_stops_every_receipt_until_it_is_right_again(
    tmp_path: Path, postgres_url: str, postgres_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F41: while it runs."""
    monkeypatch.setattr("fleetcount_aggregator.storage.postgres_engine._HEARTBEAT_S", 0.0)
    store = await installed(tmp_path, PostgresEngine.open(Server(url=postgres_url)))

    with server_with(postgres_cluster, "fsync = off") as reset:
        with pytest.raises(StoreError, match="takes nothing: fsync is off; allowed is on"):
            await store.apply(DRAWN)
        with pytest.raises(StoreError, match="takes nothing: fsync is off; allowed is on"):
            await store.write_unfenced(count_rejections, WINDOW, {RejectReason.TOO_LATE: 2})
        assert await what_happened(store) == NEVER
        reset()
        assert await store.apply(DRAWN) is None

    await store.close()


def test_a_role_that_is_set_to_asynchronous_commits_is_overruled(postgres_url: str, postgres_cluster: Cluster) -> None:
    """F41: by a setting of the role."""
    postgres_cluster.run("ALTER ROLE owner SET synchronous_commit = off")
    try:
        connection = Server(url=postgres_url).connect()
        assert ServerState.of(connection).synchronous_commit == "on"
        connection.close()
        with pytest.raises(StoreError, match="synchronous_commit is off"):
            Server(url=postgres_url, settings=()).connect()
    finally:
        postgres_cluster.run("ALTER ROLE owner RESET synchronous_commit")


@pytest.mark.parametrize("column", ["system_id = '1'", "timeline = timeline + 1"])
def test_another_server_than_before_is_refused_until_it_is_accepted_once(postgres_url: str, column: str) -> None:
    server = Server(url=postgres_url)
    PostgresEngine.open(server).close()
    connection = server.connect()
    connection.execute(f"UPDATE instance SET {column}".encode())
    connection.close()

    with pytest.raises(StoreError, match="--accept-failover"):
        PostgresEngine.open(server)
    PostgresEngine.open(server, accept_failover=True).close()

    PostgresEngine.open(server).close()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"host": "/nowhere"}, "cannot be opened as a store"),
        ({"application": "x"}, "invalid"),
        ({"user": "nobody"}, "does not exist"),
    ],
)
def test_a_server_that_cannot_be_reached_is_one_line_without_a_secret(
    tmp_path: Path, postgres_cluster: Cluster, more: dict[str, str], said: str
) -> None:
    password = tmp_path / "password"
    password.write_text("the secret word\n")
    password.chmod(0o600)
    server = Server(url=postgres_cluster.url("postgres", **more), password_file=password)

    with pytest.raises(StoreError, match=said) as refused:
        server.connect()

    assert "\n" not in str(refused.value)
    assert "the secret word" not in f"{refused.value} {server!r} {refused.value.__cause__}"


async def test_what_lies_there_of_a_key_that_another_process_made_is_taken(tmp_path: Path, postgres_url: str) -> None:
    leading = PostgresEngine.open(Server(url=postgres_url), alone=False)
    assert leading.take_lead()
    first = await installed(tmp_path, leading)
    other = Store.over(PostgresEngine.open(Server(url=postgres_url), alone=False), tmp_path / "other.db", bytes(32))
    sealed = first.data_keys.of(WINDOW).seal(b"secret", b"place")
    later = WindowId(b"l" * 32)
    made = first.data_keys.make(later)

    assert other.data_keys.of(WINDOW).open(sealed, b"place") == b"secret"
    assert other.data_keys.make(later).open(made.seal(b"x", b""), b"") == b"x"
    first.data_keys.destroy(later)
    with pytest.raises(StoreError, match="no data key"):
        first.data_keys.of(later)
    await other.close()
    await first.close()


async def test_a_store_whose_key_is_replaced_leaves_nothing_under_the_one_before(
    tmp_path: Path, postgres_url: str
) -> None:
    """What archives hold is sealed under a key that can be destroyed."""
    server, new = Server(url=postgres_url), bytes(range(32))
    store = await installed(tmp_path, PostgresEngine.open(server))
    sealed = store.data_keys.of(WINDOW).seal(b"secret", b"place")
    await store.close()

    def opened(key: bytes, former: bytes | None = None) -> Store:
        return Store.over(PostgresEngine.open(server), tmp_path / "store.db", key, former)

    await opened(new, bytes(32)).close()
    with pytest.raises(StoreError, match="another at-rest key"):
        opened(bytes(32))
    store = opened(new)

    assert store.data_keys.of(WINDOW).open(sealed, b"place") == b"secret"
    wrapped = KeyRows("", store._engine.link()).read(f"{WINDOW.hex()}.data-key")  # type: ignore[attr-defined]
    assert wrapped is not None
    with pytest.raises(StoreError):
        StorageCipher(bytes(32)).open(wrapped[8:], b"data key", WINDOW)
    await store.close()


async def test_who_only_looks_sees_the_rows_while_they_are_served(tmp_path: Path, postgres_url: str) -> None:
    place = StorePlace(directory=tmp_path, url=postgres_url)
    with pytest.raises(StoreError, match="has not been started yet"), reading(place) as database:
        database.execute("SELECT window_id FROM windows")
    store = await installed(tmp_path, PostgresEngine.open(Server(url=postgres_url)))

    with reading(place) as database:
        assert database.execute("SELECT window_id FROM windows").fetchall() == [(WINDOW,)]
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            database.execute("DELETE FROM windows")
    await store.close()


@pytest.mark.parametrize(("name", "refused"), [("replica", True), ("pg_receivewal", False)])
def test_a_standby_that_is_not_waited_for_is_refused_and_a_backup_is_none(
    tmp_path: Path, postgres_url: str, postgres_cluster: Cluster, name: str, refused: bool
) -> None:
    with postgres_cluster.receiver(tmp_path, name):
        query = f"SELECT count(*) FROM pg_stat_replication WHERE application_name = '{name}'"
        wait_until(lambda: postgres_cluster.run(query) == [(1,)], "the server's log is taken")
        if refused:
            with pytest.raises(StoreError, match="synchronous_standby_names is empty with 1 standby"):
                PostgresEngine.open(Server(url=postgres_url))
        else:
            PostgresEngine.open(Server(url=postgres_url)).close()
    wait_until(lambda: postgres_cluster.run(query) == [(0,)], "nobody takes the server's log any more")


@pytest.mark.processes
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("recovery", "said"),
    [
        pytest.param((), "its write-ahead log ends at byte", id="a copy of its files"),
        pytest.param(
            ("restore_command = 'false'", "recovery_target = 'immediate'", "recovery_target_action = 'promote'"),
            "timeline 2",
            id="a point in time",
            marks=pytest.mark.nightly,  # A server of its own, put back twice.
        ),
    ],
)
async def test_a_server_that_was_put_back_to_a_moment_is_refused_and_says_so(
    tmp_path: Path, recovery: Sequence[str], said: str
) -> None:
    place = StorePlace(directory=tmp_path)
    with own_cluster() as cluster:
        place = replace(place, url=cluster.url("postgres"))
        engine = open_engine(place)
        store = await installed(tmp_path, engine)
        with cluster.base_backup() as copy:
            later = [part(number) for number in range(16)]
            assert await add(store, later) == [StoreOutcome.STORED] * 16, (
                "they have receipts, and are not in the backup"
            )
            await store.close()
            cluster.become(copy, *recovery)
            wait_until(lambda: cluster.run("SELECT pg_is_in_recovery()") == [(False,)], "it takes writes")

        with pytest.raises(StoreError, match=said) as refused:
            open_engine(place)

        assert "after a restored backup do not" in str(refused.value)
        assert "\n" not in str(refused.value)
        open_engine(place, accept_failover=True).close()
        open_engine(place).close()


def test_a_server_put_back_while_a_process_runs_is_refused_by_it_too(postgres_url: str) -> None:
    engine = PostgresEngine.open(Server(url=postgres_url))
    try:
        ahead = ServerState.of(engine._writer.connection())
        engine._mark.note(replace(ahead, flushed=ahead.flushed + 2**30).log_end)
        engine._writer.close()

        with pytest.raises(StoreError, match="its write-ahead log ends at byte"):
            engine.write(lambda db: db.execute("SELECT 1"))
    finally:
        engine.close()


@pytest.mark.parametrize("text", ["", "[]", '{"system_id": 7, "timeline": 1, "flushed": 1}', '{"flushed": 1}'])
def test_a_mark_that_was_changed_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "aggregator.server").write_text(text)

    with pytest.raises(StoreError, match="delete it to forget what it says"):
        ServerMark(tmp_path / "aggregator.server")


@pytest.mark.processes
@pytest.mark.nightly
def test_a_promoted_standby_is_another_server_until_it_is_accepted(tmp_path: Path) -> None:
    """The whole way: a synchronous standby, its primary killed, promoted, refused, accepted, with all that was held."""
    with own_cluster() as primary, primary.standby() as standby:
        primary.run("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.reload()
        store = asyncio.run(installed(tmp_path, PostgresEngine.open(Server(url=primary.url("postgres")))))
        asyncio.run(store.close())
        with pytest.raises(StoreError, match="allowed is the primary"):
            PostgresEngine.open(Server(url=standby.url("postgres")))
        primary.kill()
        standby.run("SELECT pg_promote()")
        promoted = Server(url=standby.url("postgres"))

        with pytest.raises(StoreError, match=r"with timeline 2; it was on .* with timeline 1"):
            PostgresEngine.open(promoted)
        PostgresEngine.open(promoted, accept_failover=True).close()

        engine = PostgresEngine.open(promoted)
        assert engine.read(lambda db: db.execute("SELECT window_id FROM windows").fetchall()) == [(WINDOW,)]
        engine.close()


def part(number: int) -> StoredInstalment:
    """Return an instalment whose part of 64 kB fills a disk soon; no engine compresses it."""
    return StoredInstalment(
        window_id=WINDOW,
        report_id=ReportId(number.to_bytes(16)),
        round=1,
        certificate=Digest(number.to_bytes(32)),
        digest=Digest(number.to_bytes(32)),
        public_share=b"",
        part=random.Random(number).randbytes(65_536),
        expected=2,
    )


@pytest.mark.processes
@pytest.mark.nightly  # A server of its own, which fills its disk.
@pytest.mark.timeout(240)
async def test_a_disk_that_is_full_takes_no_receipt_back_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with own_cluster() as cluster, cluster.small_disk(24) as enlarge:
        server = Server(url=cluster.url("small"))
        store = await installed(tmp_path, await asyncio.to_thread(PostgresEngine.open, server))
        receipted: list[StoredInstalment] = []
        refused = ""
        while not refused and len(receipted) < 400:
            try:
                assert await add(store, [part(len(receipted))]) == [StoreOutcome.STORED]
                receipted.append(part(len(receipted)))
            except StoreError as error:
                refused = str(error)

        assert "\n" not in refused
        assert "No space left on device" in refused
        assert len(receipted) > 20
        assert await add(store, receipted[:3]) == [StoreOutcome.SAME] * 3, "what needs no room goes on"
        enlarge(64)
        assert await add(store, [part(len(receipted))]) == [StoreOutcome.STORED]
        assert await store.apply(DRAWN) is None
        await store.close()
        again = Store.over(await asyncio.to_thread(PostgresEngine.open, server), tmp_path / "store.db", bytes(32))

        assert await add(again, receipted) == [StoreOutcome.SAME] * len(receipted), "no receipt was given for nothing"
        assert not await again.damaged()
        await again.close()

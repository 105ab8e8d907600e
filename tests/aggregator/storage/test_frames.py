"""Frames in memory, in a file and in PostgreSQL keep one promise: durable before they are answered, and all or none."""

import pickle
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage.data_keys import DataKeys, StoreKeys
from fleetcount_aggregator.storage.database import Database
from fleetcount_aggregator.storage.errors import DamagedError, StoreBusyError, StoreError, UnknownWriteError
from fleetcount_aggregator.storage.file_backend import FileBackend
from fleetcount_aggregator.storage.frames import RECORD_BYTES, FrameRange, LogBackend
from fleetcount_aggregator.storage.instalment_run import StoreOutcome
from fleetcount_aggregator.storage.log_format import HEAD_BYTES
from fleetcount_aggregator.storage.move_store import KnownLog, move_frames
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_aggregator.storage.report_log import JoinedLog, ReportLog
from fleetcount_aggregator.storage.report_logs import ReportLogs
from fleetcount_aggregator.storage.row_types import WindowRow
from fleetcount_aggregator.storage.schema import COMMIT_TABLE, FRAME_TABLES
from fleetcount_aggregator.storage.sqlite_engine import KeyFiles
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.storage.store_check import check_store
from fleetcount_protocol.ids import Digest, ReportId, WindowId
from fleetcount_protocol.messages import WindowState

from tests.support.instalments import StoredInstalment, outcomes_of, runs_of
from tests.support.oracle import included_in
from tests.support.postgres import Cluster, own_cluster
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from fleetcount_aggregator.storage.postgres import Link
    from fleetcount_aggregator.storage.postgres_backend import PostgresBackend

WINDOW = WindowId(b"t" * 32)
KEY = bytes(range(32))
STORED, SAME, OTHER, CLOSED = StoreOutcome.STORED, StoreOutcome.SAME, StoreOutcome.OTHER_BYTES, StoreOutcome.CLOSED


def report_id(number: int) -> ReportId:
    """Ids whose first bytes go round, so that they lie in all leaves."""
    return ReportId(bytes((37 * number % 256,)) + number.to_bytes(15))


def row(number: int, round_number: int = 1, *, size: int = 30, content: int = 0) -> StoredInstalment:
    return StoredInstalment(
        window_id=WINDOW,
        report_id=report_id(number),
        round=round_number,
        certificate=Digest(number.to_bytes(32)),
        digest=Digest(bytes((round_number, content)) + number.to_bytes(30)),
        public_share=b"p" * 64 if round_number == 2 else b"",
        part=part(number, round_number, size),
        expected=2,
    )


def part(number: int, round_number: int, size: int = 30) -> bytes:
    return (b"%d of %d|" % (round_number, number)).ljust(size, b"*")


Backends = Callable[[], LogBackend]
"""Each call is a process that comes up and finds what the one before has left."""


@pytest.fixture(params=["file", "postgres"])
def backends(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backends]:
    if request.param == "postgres":
        yield postgres_backends(request.getfixturevalue("postgres_url"))
        return
    yield lambda: FileBackend(tmp_path / "store.db")


@pytest.fixture
def url(postgres_url: str) -> str:
    """A database with a place for the window."""
    postgres_backends(postgres_url)
    return postgres_url


def postgres_backends(url: str) -> Backends:
    """Make the tables and the place of the window."""

    def make(db: Database) -> None:
        for statement in (COMMIT_TABLE, *FRAME_TABLES):
            db.execute(statement)
        backend_of(url).install(db, WINDOW)

    with closing(link_of(url)) as link:
        link.read(make)
    return lambda: backend_of(url)


def link_of(url: str, server: Any = None) -> "Link":
    from fleetcount_aggregator.storage.postgres import Link, Server

    return Link(server or Server(url=url), lambda _: None)


def backend_of(url: str, server: Any = None) -> "PostgresBackend":
    from fleetcount_aggregator.storage.postgres import Server
    from fleetcount_aggregator.storage.postgres_backend import PostgresBackend

    backend = PostgresBackend(Server(url=url), link_of(url, server))
    _BACKENDS.append(backend)
    return backend


_BACKENDS: list["PostgresBackend"] = []
"""Those of a test, whose connections are closed behind it."""


@pytest.fixture(autouse=True)
def closed_homes() -> Iterator[None]:
    yield
    while _BACKENDS:
        _BACKENDS.pop().close()


def run_sql(url: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    import psycopg

    with psycopg.connect(url) as connection:
        cursor = connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []


def opened(backend: LogBackend) -> ReportLog:
    """Return what lies there, to be gone on with by one process alone."""
    frames = backend.frames(WINDOW, KEY, 0 if backend.lanes(WINDOW) else None)
    return ReportLog.open(frames, WINDOW, KEY) or ReportLog(frames, WINDOW, KEY, 2)


def store(log: ReportLog, *rows: StoredInstalment) -> list[StoreOutcome]:
    outcomes = outcomes_of(log.decide(runs_of(rows), is_open=True))
    log.write()
    return outcomes


def filled(backend: LogBackend, groups: int = 3) -> ReportLog:
    """Return a log of groups of both rounds of four reports each."""
    log = opened(backend)
    for group in range(groups):
        store(log, *(row(4 * group + at, one) for at in range(4) for one in (1, 2)))
    return log


# What every backend promises.


@pytest.mark.parametrize("size", [30, 5000])
def test_what_was_appended_reads_back_in_any_choice(backends: Backends, size: int) -> None:
    """By the process that wrote it, by the next one, and by a worker that was sent a slice."""
    source = random.Random(size)
    log = opened(backends())
    for round_number in (1, 2):
        numbers = source.sample(range(60), 60)
        for start, end in ((0, 7), (7, 60)):
            store(log, *(row(n, round_number, size=size) for n in numbers[start:end]))
    before = log.complete().ids.joined

    for again in (log, opened(backends())):
        complete = again.complete()
        positions = np.array(source.sample(range(60), 40))
        loaded = pickle.loads(pickle.dumps(complete.source(positions))).load()
        assert complete.ids.joined == before, "positions are the same ever after"
        chosen = [int.from_bytes(complete.ids.at(positions[at : at + 1])[1:]) for at in range(40)]
        assert loaded.batch.nonces == complete.ids.at(positions)
        assert loaded.batch.input_shares == b"".join(part(n, one, size) for n in chosen for one in (1, 2))
        assert loaded.batch.public_shares == b"p" * 64 * 40
        assert loaded.damaged == ()


def test_heads_of_all_rounds_are_one_question(backends: Backends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question is a way to a database and back."""
    source = filled(backends()).complete().source(np.arange(12))
    with source.reader.opened() as reads:
        read, asked = type(reads).read, list[int]()

    def counting(reads: Any, ranges: Any) -> Any:
        asked.append(len(ranges))
        return read(reads, ranges)

    monkeypatch.setattr(type(reads), "read", counting)

    assert source.load().damaged == ()

    assert asked[0] == 2 * 3, "a frame a round and group"
    assert len(asked) == 1 + 2, "then the instalments of each round"


def test_a_worker_copies_nothing_out_of_an_answer(url: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    if psycopg.pq.__impl__ == "python":
        pytest.skip("plain Python's client copies by itself")
    log = filled(backend_of(url))
    with log.complete().source(np.arange(12)).reader.opened() as reads:
        [piece] = reads.read([FrameRange(0, HEAD_BYTES, 16)])

    assert isinstance(piece, memoryview)
    assert bytes(piece) == bytes(report_id(0))


def test_what_is_durable_is_known_by_its_bytes(backends: Backends) -> None:
    filled(backends())

    log = opened(backends())

    asked = [row(5), row(9, 2, content=1), row(0, 2), row(100), row(100)]
    assert store(log, *asked) == [SAME, OTHER, SAME, STORED, SAME]
    assert log.digest(report_id(5), 2) == row(5, 2).digest
    assert log.digest(report_id(101), 2) is None
    assert log.length > 0


def test_a_group_of_several_frames_is_one(backends: Backends) -> None:
    log = opened(backends())
    rows = [row(number, one, size=20 + number % 3) for number in range(12) for one in (2, 1)]

    assert set(store(log, *rows)) == {STORED}

    assert set(store(opened(backends()), *rows)) == {SAME}


def test_key_uses_come_back(backends: Backends) -> None:
    log = opened(backends())
    [run] = runs_of([row(1), row(2)])
    uses = bytes(range(36))
    log.decide([type(run)(**{**{name: getattr(run, name) for name in run.__slots__}, "key_uses": uses})], is_open=True)
    log.write()

    assert opened(backends()).key_uses() == uses


def test_digests_outlive_their_window(backends: Backends, keys: DataKeys) -> None:
    """Written again after a crash, they are what was written last; fewer than said are none."""
    backend = backends()
    logs = ReportLogs(backend, keys)
    [outcomes] = logs.add([runs_of([row(number, one) for number in range(20) for one in (1, 2)])], lambda _: True)
    assert not isinstance(outcomes, StoreError)
    whole = logs.complete(WINDOW, closed=True)
    chosen = bytes(whole.ids.at(np.array([at]))[-1] % 2 for at in range(20))
    assert backend.holds(WINDOW)

    for _ in range(2):
        logs.purge(WINDOW, chosen)

    assert not backend.holds(WINDOW)
    kept = backends().ended(WINDOW)
    for number in range(20):
        found = kept.find(report_id(number), 2)
        assert found is not None
        assert (found.digest, found.certificate) == (row(number, 2).digest, row(number).certificate)
    assert kept.find(report_id(20), 2) is None
    assert kept.find(report_id(3), 0) is None
    assert included_in(kept.records()) == {report_id(number) for number in range(1, 20, 2)}
    [answer] = logs.add([runs_of([row(3), row(3, content=1), row(30)])], lambda _: False)
    assert not isinstance(answer, StoreError)
    assert outcomes_of(answer) == [SAME, OTHER, CLOSED]


@pytest.mark.parametrize("kind", ["file", "postgres"])
@pytest.mark.parametrize("count", [255, 257])
def test_digests_that_are_not_as_many_as_said_leave_those_before(
    url: str, tmp_path: Path, kind: str, count: int
) -> None:
    backend = FileBackend(tmp_path / "here.db") if kind == "file" else backend_of(url)
    records = b"".join(bytes((leaf,)) * RECORD_BYTES for leaf in range(256))
    backend.ended(WINDOW).write(256, [records])

    with pytest.raises(StoreError, match="are not there"):
        backend.ended(WINDOW).write(count, [bytes(len(records))])

    assert ended(backend) == records
    assert [one for one in tmp_path.iterdir() if one.suffix == ".new"] == []


def test_digests_that_are_deleted_while_one_is_looked_up_hold_none(url: str) -> None:
    digests = backend_of(url).ended(WINDOW)
    digests.write(1, [bytes(RECORD_BYTES)])
    read, reads = digests._link.read, []

    def read_once(work: Any) -> Any:
        if reads:
            digests.delete()
        reads.append(work)
        return read(work)

    digests._link.read = read_once  # type: ignore[method-assign]

    assert digests.find(ReportId(bytes(16)), 0) is None
    assert len(reads) == 2


@pytest.fixture
def keys(tmp_path: Path) -> DataKeys:
    made = DataKeys(KEY, KeyFiles(tmp_path / "keys.db"))
    made.make(WINDOW)
    return made


# From one backend to another; windows of several lanes are in test_move_store.

ONE_LANE: Any = None
"""No joiner is asked for where there is nothing to join."""


def ended(backend: LogBackend, window_id: WindowId = WINDOW) -> bytes:
    return b"".join(backend.ended(window_id).records())


def test_frames_and_digests_move_both_ways_byte_for_byte(url: str, tmp_path: Path, keys: DataKeys) -> None:
    here, there, back = FileBackend(tmp_path / "here.db"), backend_of(url), FileBackend(tmp_path / "back.db")
    log = filled(here)
    known = {WINDOW: KnownLog(log.length, closed=True, ended=False)}
    log.close()
    other = WindowId(b"u" * 32)
    records = b"".join(bytes((leaf,)) * RECORD_BYTES for leaf in range(256))
    here.ended(other).write(256, [records])

    for _ in range(2):
        move_frames(here, there, known, ONE_LANE)
    move_frames(there, back, known, ONE_LANE)

    assert ended(there, other) == ended(back, other) == records
    [before, after] = [(tmp_path / f"{name}.{WINDOW.hex()}.log").read_bytes() for name in ("here", "back")]
    assert after == before
    assert opened(there).complete().source(np.arange(12)).load() == opened(back).complete().source(np.arange(12)).load()
    assert run_sql(url, "SELECT seq, closed, rows FROM lanes") == [(6, True, 24)]
    with pytest.raises(StoreBusyError):
        store(opened(there), row(100))


@pytest.mark.parametrize("change", [-1, 1])
def test_a_log_that_a_crash_may_have_torn_does_not_move(url: str, tmp_path: Path, change: int) -> None:
    here = FileBackend(tmp_path / "here.db")
    log = filled(here)
    log.close()

    with pytest.raises(StoreError, match="start it and stop it once"):
        move_frames(here, backend_of(url), {WINDOW: KnownLog(log.length + change, closed=False, ended=False)}, ONE_LANE)


def test_a_window_without_reports_takes_them_where_it_moved_to(url: str, tmp_path: Path) -> None:
    run_sql(url, "DELETE FROM intakes")

    known = {WINDOW: KnownLog(0, closed=False, ended=False)}
    move_frames(FileBackend(tmp_path / "here.db"), backend_of(url), known, ONE_LANE)

    assert store(postgres_log(url), row(1)) == [STORED]


# PostgreSQL: who may append what next.


def postgres_log(url: str, server: Any = None) -> ReportLog:
    return opened(backend_of(url, server=server))


def frame_count(url: str) -> int:
    [(name,)] = run_sql(url, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'frames%%'")
    return int(run_sql(url, f"SELECT count(*) FROM {name}")[0][0])


def test_two_that_write_one_lane_cannot_both_write(url: str) -> None:
    """A frame is what comes next or nothing: what a lost answer hides is never written twice, nor over."""
    store(postgres_log(url), row(0))
    one, other = postgres_log(url), postgres_log(url)
    store(one, row(1))

    with pytest.raises(StoreBusyError):
        store(other, row(1))

    assert frame_count(url) == 2
    assert store(postgres_log(url), row(1)) == [SAME]


def test_a_closed_lane_takes_nothing(url: str) -> None:
    log = postgres_log(url)
    store(log, row(1))
    with closing(link_of(url)) as link:
        link.write(lambda db: backend_of(url).close_window(db, WINDOW))

    with pytest.raises(StoreBusyError, match="closed"):
        store(log, row(2))

    assert frame_count(url) == 1
    assert run_sql(url, "SELECT seq, closed, rows FROM lanes") == [(1, True, 1)]


class Failing:
    """A server whose connection is lost at an append: before the server has it, or after it is committed."""

    place = "a failing server"

    def __init__(self, url: str, *, after: bool, times: int = 1) -> None:
        self._url = url
        self._after = after
        self._left = times

    def connect(self) -> Any:
        import psycopg

        connection = psycopg.connect(self._url, autocommit=True)
        honest = connection.execute

        def execute(statement: Any, *arguments: Any, **options: Any) -> Any:
            if not bytes(statement).startswith(b"WITH mine") or not self._left:
                return honest(statement, *arguments, **options)
            self._left -= 1
            if self._after:
                honest(statement, *arguments, **options)
            connection.close()
            raise psycopg.OperationalError("the server closed the connection unexpectedly")

        connection.execute = execute  # type: ignore[assignment] # a loss at one statement
        return connection


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("times", [1, 2])
def test_a_group_whose_answer_was_lost_is_stored_once(url: str, after: bool, times: int) -> None:
    log = postgres_log(url, server=Failing(url, after=after, times=times))

    assert store(log, row(1), row(2, 2)) == [STORED, STORED]

    assert frame_count(url) == 2
    assert run_sql(url, "SELECT seq, rows FROM lanes") == [(2, 2)]
    assert store(log, row(1), row(3)) == [SAME, STORED]
    assert store(postgres_log(url), row(1), row(2, 2), row(3)) == [SAME] * 3


def interrupted(cluster: Cluster, work: Future[Any], how: str) -> None:
    """Interrupt the wait of some work for its standby; it is asked for again, and waits again."""
    process = cluster.interrupt_wait(how)
    wait_until(lambda: work.done() or bool(set(cluster.waiting()) - {process}), "it is asked for again")
    assert not work.done(), "a receipt for what no standby has"


@pytest.mark.processes
def test_a_group_whose_answer_was_lost_while_a_standby_had_to_take_it_waits_for_the_standby() -> None:
    """Who is cut off while a commit waits for its standby leaves it committed on the primary alone."""
    with own_cluster() as cluster:
        postgres_backends(cluster.url("postgres"))
        log = postgres_log(cluster.url("postgres"))
        assert store(log, row(0)) == [STORED]  # So that what is cut off is a frame, and not the making of its lane.
        with ThreadPoolExecutor(1) as pool:
            with cluster.standby_away():
                stored = pool.submit(store, log, row(1))
                interrupted(cluster, stored, "pg_terminate_backend")
            assert stored.result() == [STORED]


@pytest.mark.processes
@pytest.mark.parametrize("work", ["frames", "rows"])
def test_a_wait_for_the_standby_that_is_cancelled_is_no_commit(work: str) -> None:
    """A statement's timeout, or who cancels what hangs: the server warns, and says that it was committed."""
    with own_cluster() as cluster:
        url = cluster.url("postgres")
        postgres_backends(url)
        cluster.run("ALTER ROLE owner SET client_min_messages = error")  # The warning is heard all the same.
        log = postgres_log(url)
        cluster.run("CREATE TABLE things (number bigint)")
        with closing(link_of(url)) as link, ThreadPoolExecutor(1) as pool:
            link.write(lambda _: None)
            insert = "INSERT INTO things VALUES (1) RETURNING number"
            with cluster.standby_away():
                done = pool.submit(
                    lambda: (
                        store(log, row(1)) if work == "frames" else link.write(lambda db: db.execute(insert).fetchall())
                    )
                )
                interrupted(cluster, done, "pg_cancel_backend")
            assert done.result() == ([STORED] if work == "frames" else [(1,)])
        assert cluster.run("SELECT count(*) FROM things") == [(0 if work == "frames" else 1,)]


@pytest.mark.processes
def test_a_server_that_is_killed_loses_no_receipt_and_stores_nothing_twice() -> None:
    """The postmaster and all, with -9, while groups come one after another; it comes back, and so does the writer."""
    with own_cluster() as cluster:
        url = cluster.url("postgres")
        postgres_backends(url)
        log, receipts = postgres_log(url), list[int]()

        def write() -> None:
            for number in range(120):
                assert store(log, row(number)) == [STORED]
                receipts.append(number)

        with ThreadPoolExecutor(1) as pool:
            written = pool.submit(write)
            wait_until(lambda: len(receipts) > 30, "thirty groups are stored")
            cluster.kill()
            before = len(receipts)
            cluster.start()
            written.result()

        assert before < 120
        assert frame_count(url) == 120
        assert store(postgres_log(url), *map(row, receipts)) == [SAME] * 120


def test_what_became_known_too_late_lies_there_and_is_counted_once(
    url: str, monkeypatch: pytest.MonkeyPatch, keys: DataKeys
) -> None:
    """The server does not come back in time: no receipt. Then the group turns out to be stored."""
    from fleetcount_aggregator.storage import postgres_frames

    monkeypatch.setattr(postgres_frames, "PATIENCE_S", 0.0)
    monkeypatch.setattr(postgres_frames, "REST_S", 0.0)
    logs = ReportLogs(backend_of(url, server=Failing(url, after=True, times=2)), keys, alone=False)
    assert isinstance(logs.add([runs_of([row(1)])], lambda _: True)[0], UnknownWriteError)
    assert not logs.writes(WINDOW), "it does not know what lies there"
    assert logs.digests(WINDOW, [report_id(1)], 1) == [row(1).digest]

    assert logs.add([runs_of([row(2), row(1)])], lambda _: True) == [[bytes((STORED, STORED))]]
    assert run_sql(url, "SELECT lane, seq FROM lanes ORDER BY lane") == [(0, 1), (1, 1)]
    assert logs.incomplete(WINDOW) == 2


def test_a_server_that_is_away_is_waited_for_once_and_not_by_each(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one writer would otherwise wait for every window in turn."""
    from fleetcount_aggregator.storage import postgres_frames

    class Away:
        place = "a server that is away"
        asked = 0

        def connect(self) -> Any:
            self.asked += 1
            raise StoreError(f"{self.place} cannot be opened as a store")

    now = 0.0

    def rest(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(postgres_frames, "time", SimpleNamespace(monotonic=lambda: now, sleep=rest))
    server, asked = Away(), list[int]()
    backend = backend_of(url, server=server)
    for _ in range(3):
        with pytest.raises(StoreError, match="is away cannot be opened"):
            ReportLog.open(backend.frames(WINDOW, KEY, 0), WINDOW, KEY)
        asked.append(server.asked)

    assert asked[0] > 1
    assert asked == asked[:1] * 3
    assert now >= postgres_frames.PATIENCE_S
    rest(postgres_frames.REST_S)
    with pytest.raises(StoreError, match="is away cannot be opened"):
        ReportLog.open(backend.frames(WINDOW, KEY, 0), WINDOW, KEY)
    assert server.asked == asked[0] + 1, "after a rest it is asked again, once"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("SET head = set_byte(head, 20, 255 - get_byte(head, 20)) WHERE seq = 1", "no frame begins there"),
        ("SET cols = set_byte(cols, 70, 255 - get_byte(cols, 70)) WHERE seq = 1", "its columns"),
        ("SET cols = substring(cols FROM 2) WHERE seq = 1", "bytes of columns"),
        ("SET seq = 99 WHERE seq = 1", "missing"),
        ("SET seq = CASE seq WHEN 1 THEN 12 ELSE 11 END WHERE seq IN (1, 2)", "missing"),
        (
            "SET head = (SELECT head FROM {0} WHERE seq = 2), cols = (SELECT cols FROM {0} WHERE seq = 2)"
            " WHERE seq = 1",
            "it holds frame 2",
        ),
    ],
)
def test_a_damaged_frame_is_named(url: str, change: str, why: str) -> None:
    filled(backend_of(url))
    [(name,)] = run_sql(url, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'frames%%'")
    run_sql(url, f"UPDATE {name} {change.format(name)}")

    with pytest.raises(StoreError, match=f"frame 1 of lane 0 is damaged: .*{why}"):
        postgres_log(url)


async def test_a_check_names_a_damaged_frame(postgres_url: str, tmp_path: Path) -> None:
    place = StorePlace(directory=tmp_path, url=postgres_url)
    opened_store = Store.over(open_engine(place), place.file, KEY)
    sealed = opened_store.data_keys.make(WINDOW).seal(b"the verify key", b"verify key", WINDOW)
    await opened_store.decide_windows(
        (),
        WindowRow(
            window_id=WINDOW,
            canonical=b"",
            verify_key=sealed,
            state=WindowState.COLLECTING,
            abort_reason="",
            installed_at=1,
        ),
    )
    await opened_store.add_instalments(runs_of([row(1)]))
    await opened_store.close()
    before = check_store(place, StoreKeys(KEY, None))
    [(name,)] = run_sql(postgres_url, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'frames%%'")
    run_sql(postgres_url, f"UPDATE {name} SET cols = substring(cols FROM 2)")

    serving = open_engine(place, alone=False)
    after = check_store(place, StoreKeys(KEY, None))
    serving.close()

    assert (before.runs, after.runs) == (False, True), "whether a process serves it"
    assert [one for one in before.verdicts if one.damage.table == "log"] == []
    [named] = [one.damage for one in after.verdicts if one.damage.table == "log"]
    assert (named.window_id, "frame 0 of lane 0 is damaged" in named.what) == (WINDOW, True)


def test_a_lane_that_is_damaged_is_read_once_and_named_ever_after(
    url: str, keys: DataKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = ReportLogs(backend_of(url), keys, alone=False)
    writing.add([runs_of([row(1)])], lambda _: True)
    [(name,)] = run_sql(url, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'frames%%'")
    run_sql(url, f"UPDATE {name} SET cols = substring(cols FROM 2)")
    logs = ReportLogs(backend_of(url), keys, alone=False)
    with pytest.raises(DamagedError, match="frame 0 of lane 0 is damaged"):
        logs.complete(WINDOW, closed=True)

    monkeypatch.setattr(JoinedLog, "take", None)
    for read in (lambda: logs.complete(WINDOW, closed=True), lambda: logs.digests(WINDOW, [report_id(1)], 1)):
        with pytest.raises(DamagedError, match="frame 0 of lane 0 is damaged"):
            read()
    [answer] = logs.add([runs_of([row(2)])], lambda _: True)
    assert isinstance(answer, DamagedError)


def test_a_damaged_part_is_missing_when_it_is_loaded(url: str) -> None:
    filled(backend_of(url))
    [(name,)] = run_sql(url, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'frames%%'")
    run_sql(url, f"UPDATE {name} SET parts = set_byte(parts, 5, 255 - get_byte(parts, 5)) WHERE seq = 0")

    log = postgres_log(url)

    assert log.complete().source(np.arange(12)).load().damaged == (0, 1, 2, 3)

"""A store moves whole between SQLite and PostgreSQL; whatever ends the move, one place at most can be served."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from fleetcount.groups import aggregator
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage import move_store as moving
from fleetcount_aggregator.storage.data_keys import StoreKeys
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.instalment_run import StoreOutcome
from fleetcount_aggregator.storage.move_store import move_store
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_aggregator.storage.question_rows import (
    install_question,
    note_question,
    read_decided,
    read_notes,
    read_questions,
)
from fleetcount_aggregator.storage.row_types import (
    DecidedWindow,
    LedgerRow,
    QuestionRow,
    SessionRow,
    StepRow,
    WindowChange,
    WindowRow,
)
from fleetcount_aggregator.storage.rows import (
    raise_high_water,
    read_high_water,
    read_ledger,
    read_rejections,
    read_step,
    read_window,
)
from fleetcount_aggregator.storage.session_rows import add_session, read_session
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.storage.store_check import check_store
from fleetcount_protocol.errors import RejectReason, UsageError
from fleetcount_protocol.ids import AggregatorId, Digest, QuestionId, ReportId, SessionId, WindowId
from fleetcount_protocol.messages import WindowState

from tests.support.instalments import StoredInstalment, add
from tests.support.postgres import Cluster

WINDOW, QUESTION = WindowId(b"t" * 32), QuestionId(b"s" * 32)
OPEN, CLOSED, ENDED = (WindowId(letter * 32) for letter in (b"o", b"c", b"e"))
KEY = bytes(range(32))
INSTALMENT = StoredInstalment(
    window_id=WINDOW,
    report_id=ReportId(bytes(16)),
    round=1,
    certificate=Digest(b"d" * 32),
    digest=Digest(b"i" * 32),
    public_share=b"",
    part=b"a part",
    expected=2,
)


def places(tmp_path: Path, url: str, *, to_postgres: bool) -> tuple[StorePlace, StorePlace]:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    file = StorePlace(directory=tmp_path / "here")
    server = StorePlace(directory=tmp_path / "there", url=url)
    return (file, server) if to_postgres else (server, file)


def move(source: StorePlace, target: StorePlace) -> bool:
    return move_store(source, target, lambda: StoreKeys(KEY, None))


def opened(place: StorePlace) -> Store:
    return Store.over(open_engine(place), place.file, KEY)


async def filled(place: StorePlace) -> None:
    """Put something into every kind of row, and an instalment into a log."""
    store = opened(place)
    sealed = store.data_keys.make(WINDOW).seal(b"the verify key", b"verify key", WINDOW)
    row = WindowRow(
        window_id=WINDOW,
        canonical=b"canonical",
        verify_key=sealed,
        state=WindowState.COLLECTING,
        abort_reason="",
        installed_at=7,
    )
    await store.decide_windows((), row)
    await store.write(
        install_question, QuestionRow(question_id=QUESTION, signed=b"signed", seed=b"sealed", installed_at=7), {}
    )
    await store.write(note_question, QUESTION, "keys/ä", b"note")
    await store.decide_windows(
        [DecidedWindow(question_id=QUESTION, index=n, window_id=None, missing="x") for n in range(3)]
    )
    session = SessionRow(
        session_id=SessionId(b"s" * 16),
        request=b"r",
        certificate=Digest(b"c" * 32),
        expiry=9,
        accepted=b"a",
        chain=b"k",
    )
    await store.write_unfenced(add_session, session, most=9, now=0)
    await store.write(raise_high_water, AggregatorId("beta"), 3)
    debit = LedgerRow(window_id=WINDOW, signal="Ort", opens=1, closes=2, epsilon="1.5", debited_at=3)
    step = StepRow(name="commit", request=b"q", answer=b"\x00the draw", transient=True)
    await store.apply(
        WindowChange(
            window_id=WINDOW,
            required=frozenset({WindowState.COLLECTING}),
            step=step,
            debit=debit,
            rejections={RejectReason.TOO_LATE: 2},
        )
    )
    assert await add(store, [INSTALMENT]) == [StoreOutcome.STORED]
    await store.close()


async def contents(place: StorePlace) -> tuple[Any, ...]:
    """Return everything that a store says, and whether it still takes what it has."""
    store = opened(place)
    window = await store.read(read_window, WINDOW)
    assert window is not None
    found = (
        window,
        store.data_keys.of(WINDOW).open(window.verify_key, b"verify key", WINDOW),
        await store.read(read_questions),
        await store.read(read_notes, QUESTION),
        await store.read(read_decided, QUESTION),
        await store.read(read_session, SessionId(b"s" * 16)),
        await store.read(read_high_water),
        await store.read(read_ledger),
        await store.read(read_step, WINDOW, "commit"),
        await store.read(read_rejections, WINDOW),
        await store.instalment_digests(WINDOW, [INSTALMENT.report_id], INSTALMENT.round),
    )
    await store.close()
    return found


def is_served(place: StorePlace) -> bool:
    """Whether an aggregator would start with a store here that has something in it."""
    try:
        engine = open_engine(place)
    except StoreError:
        return False
    held = engine.read(lambda db: db.execute("SELECT COUNT(*) FROM windows").fetchone()[0])
    engine.close()
    return bool(held)


@pytest.mark.parametrize("to_postgres", [True, False])
async def test_a_store_moves_with_all_it_holds_and_leaves_no_key_behind(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch, to_postgres: bool
) -> None:
    monkeypatch.setattr(moving, "_AT_ONCE", 2)
    source, target = places(tmp_path, postgres_url, to_postgres=to_postgres)
    await filled(source)
    before = await contents(source)

    assert move(source, target)

    assert await contents(target) == before
    assert not is_served(source)
    keys = open_engine(source, check_state=lambda *_: None)
    assert keys.key_store().names() == []
    keys.close()
    assert not move(source, target), "it is there already"
    with pytest.raises(StoreError, match="moved elsewhere"):
        move(source, StorePlace(directory=tmp_path))
    assert await contents(target) == before


def reports(window_id: WindowId, numbers: range, *rounds: int) -> list[StoredInstalment]:
    """Return instalments whose reports lie in all leaves."""
    return [
        replace(
            INSTALMENT,
            window_id=window_id,
            report_id=ReportId(bytes(((71 * number) % 256, number)) + bytes(14)),
            certificate=Digest(bytes((number,)) * 32),
            digest=Digest(bytes((number, one)) * 16),
            round=one,
            part=b"part %d of %3d" % (one, number),
        )
        for number in numbers
        for one in rounds
    ]


async def fill_lanes(place: StorePlace) -> None:
    """Put three windows of several lanes into a store: one that collects, one that is closed, one that has ended."""
    store = opened(place)
    for window_id in (OPEN, CLOSED, ENDED):
        sealed = store.data_keys.make(window_id).seal(b"the verify key", b"verify key", window_id)
        row = WindowRow(
            window_id=window_id,
            canonical=b"s",
            verify_key=sealed,
            state=WindowState.COLLECTING,
            abort_reason="",
            installed_at=7,
        )
        await store.decide_windows((), row)
    for start in range(0, 40, 5):
        for window_id in (OPEN, CLOSED, ENDED):
            await add(store, reports(window_id, range(start, start + 5), 1, *([2] if start else [])))
        if start % 10 == 5:  # A restart makes another lane.
            await store.close()
            store = opened(place)
    for window_id, state in ((CLOSED, WindowState.AGREEING), (ENDED, WindowState.ABORTED)):
        change = WindowChange(window_id=window_id, required=frozenset({WindowState.COLLECTING}), new_state=state)
        await store.apply(change)
    await store.purge(ENDED)
    await store.close()


async def held_of_lanes(place: StorePlace) -> tuple[Any, ...]:
    """Return what is known of the three windows: the complete reports by position with their parts, and every
    answer.
    """
    store = opened(place)
    assert not await store.damaged()
    found: list[Any] = [(await store.complete_reports(OPEN)).ids.joined]
    closed = await store.complete_reports(CLOSED)
    loaded = closed.source(np.arange(len(closed.ids))).load()
    assert not loaded.damaged
    found += [closed.ids.joined, bytes(loaded.batch.nonces), bytes(loaded.batch.input_shares)]
    for window_id in (OPEN, CLOSED, ENDED):
        asked = [one.report_id for one in reports(window_id, range(41), 1)]
        found.append(await store.instalment_digests(window_id, asked, 1))
    for window_id in (CLOSED, ENDED):
        found.append(await add(store, reports(window_id, range(40), 1)))
        found.append(
            await add(store, [replace(one, digest=Digest(b"x" * 32)) for one in reports(window_id, range(3), 1)])
        )
    found.append(await add(store, reports(CLOSED, range(50, 52), 1)))
    await store.close()
    return tuple(found)


async def test_a_store_of_several_lanes_moves_beside_a_file_and_back_with_every_position(
    tmp_path: Path, postgres_url: str, postgres_cluster: Cluster
) -> None:
    source, file = places(tmp_path, postgres_url, to_postgres=False)
    await fill_lanes(source)
    before = await held_of_lanes(source)
    assert before[7:9] == ([StoreOutcome.SAME] * 40, [StoreOutcome.OTHER_BYTES] * 3)

    assert move(source, file)

    assert await held_of_lanes(file) == before
    found = check_store(file, StoreKeys(KEY, None))
    assert not found.verdicts
    store = opened(file)
    assert await add(store, reports(OPEN, range(60, 80), 1, 2)) == [StoreOutcome.STORED] * 40
    await store.close()
    later = await held_of_lanes(file)
    assert later[1:] == before[1:]
    assert len(later[0]) == len(before[0]) + 20 * ReportId.SIZE
    postgres_cluster.run("CREATE SCHEMA moved_back")
    try:
        back = StorePlace(directory=tmp_path, url=postgres_cluster.url(options="-csearch_path=moved_back"))
        assert move(file, back)
        assert await held_of_lanes(back) == later
    finally:
        postgres_cluster.run("DROP SCHEMA moved_back CASCADE")


async def test_a_window_with_one_device_s_reports_in_two_lanes_moves_beside_no_file_until_it_has_ended(
    tmp_path: Path, postgres_url: str
) -> None:
    source, file = places(tmp_path, postgres_url, to_postgres=False)
    await fill_lanes(source)
    store = opened(source)
    await add(store, reports(OPEN, range(3), 1))
    await store.close()

    with pytest.raises(StoreError, match="has reports of one device in two lanes"):
        move(source, file)

    assert (is_served(source), is_served(file)) == (True, False)


async def test_a_damaged_frame_of_several_lanes_leaves_the_source_serving(tmp_path: Path, postgres_url: str) -> None:
    source, file = places(tmp_path, postgres_url, to_postgres=False)
    await fill_lanes(source)
    engine = open_engine(source)
    table = f"frames_{OPEN[:24].hex()}"
    other = f"SELECT head FROM {table} WHERE lane = 2 AND seq = 1"
    engine.write(lambda db: db.execute(f"UPDATE {table} SET head = ({other}) WHERE lane = 2 AND seq = 0"))
    engine.close()

    with pytest.raises(StoreError, match="frame 0 of lane 2 is damaged"):
        move(source, file)

    assert (is_served(source), is_served(file)) == (True, False)


async def test_ended_anywhere_a_move_leaves_one_place_at_most_that_serves_and_is_finished_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception that nothing catches, before each write to either place in turn, as kill -9 would end it there.

    Between two files, since that is fast: the steps are the same.
    """
    source, target = (StorePlace(directory=tmp_path / name) for name in ("here", "there"))
    for place in (source, target):
        place.directory.mkdir()
    await filled(source)
    before = await contents(source)
    ends = []

    for number in range(100):
        if not ended_before(number, lambda: move(source, target), monkeypatch):
            break
        ends.append((is_served(source), is_served(target)))
    else:
        pytest.fail("it never ended")

    assert ends.count((True, False)) > 15
    assert ends[-1] == (False, False), "the source has been left, and the target is not served before that is durable"
    assert set(ends[:-1]) == {(True, False)}
    assert not is_served(source)
    assert await contents(target) == before


class Killed(BaseException):
    """The end of a process that no code of its own notices."""


def ended_before(number: int, run: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run something that is ended before its write of this number; return False if it has fewer."""
    left = [number]

    def open_counted(*place: Any, **how: Any) -> Any:
        engine = open_engine(*place, **how)
        write = engine.write

        def counted(work: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return write(work)

        engine.write = counted  # type: ignore[method-assign]
        return engine

    with monkeypatch.context() as patched:
        patched.setattr(moving, "open_engine", open_counted)
        try:
            run()
        except Killed:
            return True
    return False


async def test_a_row_that_does_not_arrive_as_it_was_leaves_the_source_serving(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = places(tmp_path, postgres_url, to_postgres=True)
    await filled(source)
    before = await contents(source)
    insert = moving._insert

    def changed(db: Any, table: Any, rows: list[Any]) -> None:
        insert(db, table, [(row[0], row[1] + 1, *row[2:]) for row in rows] if table.name == "marks" else rows)

    monkeypatch.setattr(moving, "_insert", changed)
    with pytest.raises(StoreError, match="marks did not arrive"):
        move(source, target)

    assert (is_served(source), is_served(target)) == (True, False)
    assert await contents(source) == before


async def test_a_place_that_holds_a_store_and_one_without_are_refused(tmp_path: Path, postgres_url: str) -> None:
    source, target = places(tmp_path, postgres_url, to_postgres=True)
    with pytest.raises(StoreError, match="nothing to move"):
        move(source, target)
    await filled(source)
    await filled(target)

    with pytest.raises(StoreError, match="holds a store already"):
        move(source, target)
    with pytest.raises(UsageError, match="two places"):
        move(source, source)
    serving = opened(source)
    with pytest.raises(StoreError, match="locked"):
        move(source, target)
    await serving.close()
    with closing(sqlite3.connect(source.file)) as database, database:
        database.execute("UPDATE instance SET store_state = 'restored'")
    with pytest.raises(StoreError, match="put back from a backup and has not heard yet what it missed: start it"):
        move(source, target)
    with closing(sqlite3.connect(source.file)) as database, database:
        database.execute("UPDATE instance SET store_state = 'serving'")
    with closing(sqlite3.connect(source.file)) as database:
        assert database.execute("SELECT store_state FROM instance").fetchall() == [("serving",)]


@pytest.mark.parametrize("to_postgres", [True, False])
async def test_a_move_that_fails_leaves_nothing_that_may_be_served_at_an_empty_target(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch, to_postgres: bool
) -> None:
    source, target = places(tmp_path, postgres_url, to_postgres=to_postgres)
    with pytest.raises(StoreError, match=r"nothing to move|no store of schema"):
        move(source, target)
    assert not target.file.exists()
    await filled(source)

    def stand(store_state: str) -> None:
        engine = open_engine(source, check_state=lambda *_: None)
        engine.write(lambda db: db.execute("UPDATE instance SET store_state = ?", (store_state,)))
        engine.close()

    for store_state, why in (("restored", "put back"), ("moving 1", "target of a move"), ("moved 1", "not to ")):
        stand(store_state)
        with pytest.raises(StoreError, match=why):
            move(source, target)
        assert target.file.exists() is (why == "not to " and not to_postgres)
    with pytest.raises(StoreError, match="target of a move that has not ended"):
        open_engine(target)
    stand("serving")
    assert ended_before(0, lambda: move(source, target), monkeypatch), "before the first write to the target"
    with pytest.raises(StoreError, match="target of a move that has not ended"):
        open_engine(target)

    assert move(source, target)
    assert is_served(target)


async def test_the_command_moves_a_store_and_says_which_file_to_serve(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = places(tmp_path, postgres_url, to_postgres=True)
    await filled(source)

    class Old:
        store_place = source

    class New:
        store_place = target

    configs = {"old.toml": Old, "new.toml": New}
    monkeypatch.setattr("fleetcount.run.aggregator.load_config", lambda path, _: configs[str(path)])
    target.directory.rmdir()  # A configuration's state_directory is made if it is missing.
    said = [CliRunner().invoke(aggregator, ["move-store", "--from", "old.toml", "--to", "new.toml"]) for _ in range(2)]

    assert [one.output.strip() for one in said] == [
        f"{source.file} {word} to {postgres_url.partition('?')[0]}; serve new.toml from now on"
        for word in ("moved", "had been moved")
    ]
    assert is_served(target)
    assert target.directory.stat().st_mode & 0o777 == 0o700

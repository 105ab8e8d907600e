"""The rules every store keeps, in memory and on disk alike."""

import asyncio
import os
import sqlite3
import stat
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fleetcount_aggregator.memory_store import MemoryStore
from fleetcount_aggregator.sqlite_schema import SCHEMA_VERSION
from fleetcount_aggregator.sqlite_store import QUEUE_LENGTH, SqliteStore
from fleetcount_aggregator.states import State, StateConflictError
from fleetcount_aggregator.store import (
    PAGE,
    InstalmentRow,
    LedgerRow,
    Outcome,
    ReportStatus,
    SessionRow,
    Step,
    Store,
    StoreBusyError,
    StoreError,
    TaskChange,
    TaskRow,
    Verdict,
)
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SessionId, TaskId

TASK = TaskId(b"t" * 32)
OPEN = frozenset({State.ANNOUNCED, State.COLLECTING})


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: Store = MemoryStore() if request.param == "memory" else SqliteStore.open(tmp_path / "store.db")
    await opened.install(task_row())
    yield opened
    await opened.close()


def task_row(task_id: TaskId = TASK, state: State = State.COLLECTING) -> TaskRow:
    return TaskRow(
        task_id=task_id, signed=b"signed", verify_key=b"sealed", state=state, abort_reason="", installed_at=7
    )


def instalment(number: int, round_number: int = 1, device: int | None = None, content: int = 0) -> InstalmentRow:
    return InstalmentRow(
        task_id=TASK,
        report_id=ReportId(number.to_bytes(16)),
        round=round_number,
        session_id=SessionId(bytes(16)),
        certificate=Digest((number if device is None else device).to_bytes(32)),
        digest=Digest(bytes((round_number, content)) + bytes(30)),
        public_share=b"public" if round_number == 2 else b"",
        ciphertext=b"sealed part %d" % round_number,
        expected=2,
    )


async def complete(store: Store, *numbers: int) -> None:
    await store.add_instalments([instalment(n, r) for n in numbers for r in (1, 2)])


async def test_the_same_bytes_are_stored_once_and_said_to_be_the_same(store: Store) -> None:
    outcomes = await store.add_instalments([instalment(1), instalment(1)])

    again = await store.add_instalments([instalment(1)])

    assert [*outcomes, *again] == [Outcome.STORED, Outcome.SAME, Outcome.SAME]


async def test_the_first_bytes_of_a_report_win(store: Store) -> None:
    await store.add_instalments([instalment(1)])

    outcomes = await store.add_instalments([instalment(1, content=9)])

    assert outcomes == [Outcome.OTHER_BYTES]
    assert await store.instalment_digest(TASK, ReportId((1).to_bytes(16)), 1) == instalment(1).digest


async def test_a_device_has_one_report_a_task(store: Store) -> None:
    await store.add_instalments([instalment(1, device=5)])

    outcomes = await store.add_instalments([instalment(2, device=5)])

    assert outcomes == [Outcome.SECOND_REPORT]
    assert await store.report(TASK, ReportId((2).to_bytes(16))) is None


async def test_another_device_cannot_add_to_a_report(store: Store) -> None:
    await store.add_instalments([instalment(1, device=5)])

    outcomes = await store.add_instalments([instalment(1, 2, device=6), instalment(1, 1, device=6)])

    assert outcomes == [Outcome.OTHER_BYTES, Outcome.OTHER_BYTES]


async def test_rounds_may_arrive_in_any_order(store: Store) -> None:
    await store.add_instalments([instalment(1, 2)])
    assert not await store.complete_reports(TASK, 10)

    await store.add_instalments([instalment(1, 1)])

    [report] = await store.complete_reports(TASK, 10)
    assert [part.round for part in report.instalments] == [1, 2]


async def test_a_closed_task_takes_nothing_but_knows_what_it_has(store: Store) -> None:
    await store.add_instalments([instalment(1)])
    await store.apply(TaskChange(task_id=TASK, required=OPEN, new_state=State.AGREEING))

    outcomes = await store.add_instalments([instalment(1), instalment(2)])

    assert outcomes == [Outcome.SAME, Outcome.CLOSED]


async def test_an_unknown_task_takes_nothing(store: Store) -> None:
    other = replace(instalment(1), task_id=TaskId(b"u" * 32))

    assert await store.add_instalments([other]) == [Outcome.CLOSED]


async def test_closing_counts_half_pairs(store: Store) -> None:
    await complete(store, 1)
    await store.add_instalments([instalment(2), instalment(3, 2)])

    await store.apply(TaskChange(task_id=TASK, required=OPEN, new_state=State.AGREEING, refuse_incomplete=True))

    assert await store.rejections(TASK) == {RejectReason.HALF_PAIR: 2}
    assert [row.report_id[-1] for row in await store.reports(TASK, status=ReportStatus.REFUSED)] == [2, 3]


async def test_a_step_is_taken_once_and_its_first_answer_stays(store: Store) -> None:
    first = Step(name="commit", request=b"q", answer=b"first")
    assert await store.apply(TaskChange(task_id=TASK, required=OPEN, step=first)) is None

    second = TaskChange(
        task_id=TASK,
        required=OPEN,
        new_state=State.AGREEING,
        step=Step(name="commit", request=b"q", answer=b"second"),
    )

    assert await store.apply(second) == first
    assert await store.step(TASK, "commit") == first
    task = await store.task(TASK)
    assert task is not None
    assert task.state is State.COLLECTING


async def test_a_change_in_the_wrong_state_changes_nothing(store: Store) -> None:
    row = LedgerRow(task_id=TASK, signal="S", opens=1, closes=2, epsilon="1", debited_at=3)
    change = TaskChange(
        task_id=TASK,
        required=frozenset({State.VERIFYING}),
        step=Step(name="commit", request=b"", answer=b""),
        debit=row,
        rejections={RejectReason.MALFORMED: 1},
    )

    with pytest.raises(StateConflictError) as conflict:
        await store.apply(change)

    assert conflict.value.state is State.COLLECTING
    assert await store.step(TASK, "commit") is None
    assert not await store.ledger()
    assert not await store.rejections(TASK)


@pytest.mark.parametrize("new", [State.RELEASED, State.VERIFYING, State.ANNOUNCED, State.COLLECTING])
async def test_nothing_moves_backwards_or_skips(store: Store, new: State) -> None:
    with pytest.raises(StateConflictError):
        await store.apply(TaskChange(task_id=TASK, required=OPEN, new_state=new))


async def test_a_refused_report_stays_refused_and_is_counted_once(store: Store) -> None:
    await complete(store, 1)
    report_id = ReportId((1).to_bytes(16))
    refusal = Verdict(report_id=report_id, status=ReportStatus.REFUSED, reason=RejectReason.INVALID_PROOF)

    for verdict in (refusal, Verdict(report_id=report_id, status=ReportStatus.ACCEPTED), refusal):
        await store.apply(TaskChange(task_id=TASK, required=OPEN, verdicts=(verdict,)))

    row = await store.report(TASK, report_id)
    assert row is not None
    assert (row.status, row.reason) == (ReportStatus.REFUSED, RejectReason.INVALID_PROOF)
    assert await store.rejections(TASK) == {RejectReason.INVALID_PROOF: 1}


async def test_a_verdict_leaves_what_it_does_not_name(store: Store) -> None:
    await complete(store, 1)
    report_id = ReportId((1).to_bytes(16))
    share = Digest(b"s" * 32)
    steps = (
        Verdict(report_id=report_id, status=ReportStatus.VERIFIED, public_share_digest=share, verification=b"blob"),
        Verdict(report_id=report_id, status=ReportStatus.VERIFIED, batch=4),
        Verdict(report_id=report_id, status=ReportStatus.ACCEPTED),
    )

    for verdict in steps:
        await store.apply(TaskChange(task_id=TASK, required=OPEN, verdicts=(verdict,)))

    [row] = await store.reports(TASK, status=ReportStatus.ACCEPTED, batch=4)
    assert (row.public_share_digest, row.verification) == (share, b"blob")


async def test_reports_come_by_id_a_page_at_a_time(store: Store) -> None:
    numbers = range(1, PAGE + 11)
    await complete(store, *reversed(numbers))

    first = await store.reports(TASK, status=ReportStatus.COMPLETE)
    rest = await store.reports(TASK, status=ReportStatus.COMPLETE, after=first[-1].report_id)

    assert [int.from_bytes(row.report_id) for row in (*first, *rest)] == list(numbers)
    assert len(first) == PAGE


async def test_sessions_are_kept_as_they_first_came_until_they_expire(store: Store) -> None:
    row = SessionRow(session_id=SessionId(b"s" * 16), request=b"sealed", certificate=Digest(b"c" * 32), expiry=100)
    await store.add_session(row)
    await store.add_session(replace(row, request=b"other"))

    assert await store.session(row.session_id) == row
    assert await store.sessions_of(row.certificate, 99) == 1
    assert await store.sessions_of(row.certificate, 100) == 0

    await store.forget_sessions(101)

    assert await store.session(row.session_id) is None


async def test_a_task_is_installed_once_and_tasks_keep_their_order(store: Store) -> None:
    other = TaskId(b"a" * 32)
    await store.install(task_row(other, State.ANNOUNCED))

    stored = await store.install(replace(task_row(), signed=b"other"))

    assert stored.signed == b"signed"
    assert [row.task_id for row in await store.tasks()] == [TASK, other]


async def test_a_release_is_debited_once(store: Store) -> None:
    row = LedgerRow(task_id=TASK, signal="S", opens=1, closes=2, epsilon="1.5", debited_at=3)

    for debited_at in (3, 4):
        await store.apply(TaskChange(task_id=TASK, required=OPEN, debit=replace(row, debited_at=debited_at)))

    assert list(await store.ledger()) == [row]


async def test_a_mark_never_falls(store: Store) -> None:
    for rows in (3, 7, 5):
        await store.remember_mark(AggregatorId("beta"), rows)

    assert await store.marks() == {AggregatorId("beta"): 7}


async def test_purging_keeps_digests_and_forgets_shares(store: Store) -> None:
    await complete(store, 1)
    report_id = ReportId((1).to_bytes(16))
    verdict = Verdict(report_id=report_id, status=ReportStatus.VERIFIED, verification=b"secret")
    await store.apply(TaskChange(task_id=TASK, required=OPEN, verdicts=(verdict,)))

    await store.purge(TASK)

    row = await store.report(TASK, report_id)
    assert row is not None
    assert row.verification == b""
    assert await store.add_instalments([instalment(1)]) == [Outcome.SAME]


async def test_rejections_add_up(store: Store) -> None:
    await store.count_rejections(TASK, {RejectReason.TOO_LATE: 2, RejectReason.BAD_SEAL: 1})
    await store.count_rejections(TASK, {RejectReason.TOO_LATE: 3})

    assert await store.rejections(TASK) == {RejectReason.TOO_LATE: 5, RejectReason.BAD_SEAL: 1}


async def test_32_submitters_of_one_report_are_counted_once(store: Store) -> None:
    outcomes = await asyncio.gather(*(store.add_instalments([instalment(1)]) for _ in range(32)))

    assert sorted(one[0].value for one in outcomes) == ["same"] * 31 + ["stored"]


# What only a file has.


async def test_everything_is_there_after_opening_again(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore.open(path)
    await store.install(task_row())
    await complete(store, 1, 2)
    await store.close()

    again = SqliteStore.open(path)

    assert len(await again.complete_reports(TASK, 10)) == 2
    await again.close()


async def test_a_second_store_on_the_same_file_is_refused(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "store.db")

    with pytest.raises(StoreError, match="locked"):
        SqliteStore.open(tmp_path / "store.db")

    await store.close()
    await SqliteStore.open(tmp_path / "store.db").close()


async def test_files_belong_to_their_owner_alone(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        store = SqliteStore.open(tmp_path / "store.db")
    finally:
        os.umask(previous)
    await store.install(task_row())

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}, modes
    await store.close()


def _unknown_schema(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute(f"UPDATE schema_version SET version = {SCHEMA_VERSION + 1}")
    database.close()


def _other_database(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE something (else_ INTEGER)")
    database.close()


def _no_database(path: Path) -> None:
    path.write_bytes(b"this is not a database, however long it may be" * 100)


@pytest.mark.parametrize("damage", [_unknown_schema, _other_database, _no_database])
async def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "store.db"
    await SqliteStore.open(path).close()
    damage(path)
    before = path.read_bytes()

    with pytest.raises(StoreError):
        SqliteStore.open(path)

    assert path.read_bytes() == before


async def test_a_write_that_fails_does_not_take_its_group_with_it(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "store.db")
    await store.install(task_row())
    bad = TaskChange(task_id=TaskId(b"u" * 32), required=OPEN)

    results = await asyncio.gather(
        store.add_instalments([instalment(1)]),
        store.apply(bad),
        store.add_instalments([instalment(2)]),
        return_exceptions=True,
    )

    assert results[0] == results[2] == [Outcome.STORED]
    assert isinstance(results[1], StoreError)
    await store.close()


async def test_a_write_nobody_expected_to_fail_leaves_the_store_working(tmp_path: Path) -> None:
    """The writer is one thread: if it died, every later write would wait for ever."""
    store = SqliteStore.open(tmp_path / "store.db")
    await store.install(task_row())

    async with asyncio.timeout(5):
        results = await asyncio.gather(
            store.add_instalments([instalment(1)]),
            store.remember_mark(AggregatorId("beta"), 2**63),
            store.add_instalments([instalment(2)]),
            return_exceptions=True,
        )
        later = await store.add_instalments([instalment(3)])

    assert results[0] == results[2] == later == [Outcome.STORED]
    assert isinstance(results[1], StoreError)
    assert await store.marks() == {}
    await store.close()


async def test_concurrent_writes_share_commits(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "store.db")
    await store.install(task_row())
    commits: list[str] = []
    store._writer.set_trace_callback(lambda text: commits.append(text) if text == "COMMIT" else None)

    await asyncio.gather(*(store.add_instalments([instalment(n)]) for n in range(1, 201)))

    assert len(commits) < 20
    await store.close()


async def test_a_full_queue_is_said_to_be_busy(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "store.db")
    await store.install(task_row())

    outcomes = await asyncio.gather(
        *(store.add_instalments([instalment(1)]) for _ in range(QUEUE_LENGTH * 4)), return_exceptions=True
    )

    assert all(isinstance(one, list | StoreBusyError) for one in outcomes)
    await store.close()


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "store.db")
    await store.close()

    with pytest.raises(StoreError, match="closed"):
        await store.tasks()
    with pytest.raises(StoreError, match="closed"):
        await store.purge(TASK)

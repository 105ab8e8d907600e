"""The rules every store keeps, in memory and on disk alike."""

import asyncio
import errno
import os
import sqlite3
import stat
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fleetcount_aggregator.host.states import StateConflictError
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage import rows as sql
from fleetcount_aggregator.storage.database import Answer, SealedDatabase
from fleetcount_aggregator.storage.ended import read_active
from fleetcount_aggregator.storage.errors import DamagedError, StoreBusyError, StoreError
from fleetcount_aggregator.storage.instalment_run import StoreOutcome
from fleetcount_aggregator.storage.log_format import FILE_HEADER_BYTES, HEAD_BYTES
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_aggregator.storage.report_index import CompleteRows, ReportIndex
from fleetcount_aggregator.storage.row_types import (
    BatchRow,
    LedgerRow,
    ReportVerdict,
    SessionRow,
    StepRow,
    WindowChange,
    WindowRow,
)
from fleetcount_aggregator.storage.rows import (
    BATCHES_AT_ONCE,
    count_rejections,
    raise_high_water,
    read_batch,
    read_batches,
    read_high_water,
    read_included,
    read_ledger,
    read_rejections,
    read_step,
    read_window,
)
from fleetcount_aggregator.storage.schema import SQLITE
from fleetcount_aggregator.storage.session_rows import (
    add_session,
    forget_sessions,
    read_chains,
    read_session,
    read_sessions,
    read_sessions_of,
)
from fleetcount_aggregator.storage.store import Store, every_batch
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, SessionId, WindowId
from fleetcount_protocol.messages import WindowState

from tests.support.instalments import StoredInstalment, add, runs_of

WINDOW = WindowId(b"t" * 32)
LOG_KEY = bytes(range(32))
OPEN = frozenset({WindowState.ANNOUNCED, WindowState.COLLECTING})
CLOSE = WindowChange(window_id=WINDOW, required=OPEN, new_state=WindowState.AGREEING)


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened = opener(request)(tmp_path)
    await opened.decide_windows((), window_row())
    yield opened
    await opened.close()


Opening = Callable[..., Store]


def opener(request: pytest.FixtureRequest) -> Opening:
    """Return how the store of a test is opened in a directory, again and again."""
    if request.param == "sqlite":
        return open_store
    url = request.getfixturevalue("postgres_url")
    return lambda directory, key=LOG_KEY: Store.over(
        open_engine(StorePlace(directory=directory, url=url)), directory / "store.db", key
    )


@pytest.fixture(params=["sqlite", "postgres"])
def opens(request: pytest.FixtureRequest) -> Opening:
    """A durable store in each engine."""
    return opener(request)


def open_store(directory: Path, key: bytes = LOG_KEY) -> Store:
    return Store.open(directory / "store.db", key)


async def reopened(directory: Path, opens: "Opening | None" = None) -> Store:
    """Return the store as an aggregator has it that finished what a crash left."""
    store = (opens or open_store)(directory)
    for window_id in store.unpurged:
        await store.purge(window_id)
    return store


def window_row(window_id: WindowId = WINDOW, state: WindowState = WindowState.COLLECTING) -> WindowRow:
    return WindowRow(
        window_id=window_id, canonical=b"canonical", verify_key=b"sealed", state=state, abort_reason="", installed_at=7
    )


def instalment(number: int, round_number: int = 1, device: int | None = None, content: int = 0) -> StoredInstalment:
    return StoredInstalment(
        window_id=WINDOW,
        report_id=ReportId(number.to_bytes(16)),
        round=round_number,
        certificate=Digest((number if device is None else device).to_bytes(32)),
        digest=Digest(bytes((round_number, content)) + bytes(30)),
        public_share=b"public share %2d" % number if round_number == 2 else b"",
        part=b"part %d of %2d" % (round_number, number),
        expected=2,
    )


def session_row(number: int = 1) -> SessionRow:
    return SessionRow(
        session_id=SessionId(bytes([number]) * 16),
        request=b"sealed",
        certificate=Digest(b"c" * 32),
        expiry=100,
        accepted=b"a" * 64,
        chain=b"chain %d" % number,
    )


async def complete(store: Store, *numbers: int) -> None:
    await add(store, [instalment(n, r) for n in numbers for r in (1, 2)])


async def test_the_same_bytes_are_stored_once_and_said_to_be_the_same(store: Store) -> None:
    outcomes = await add(store, [instalment(1), instalment(1)])

    again = await add(store, [instalment(1)])

    assert [*outcomes, *again] == [StoreOutcome.STORED, StoreOutcome.SAME, StoreOutcome.SAME]


async def test_the_first_bytes_of_a_report_win(store: Store) -> None:
    await add(store, [instalment(1)])

    outcomes = await add(store, [instalment(1, content=9)])

    assert outcomes == [StoreOutcome.OTHER_BYTES]
    assert await store.instalment_digests(WINDOW, [ReportId((1).to_bytes(16))], 1) == [instalment(1).digest]


async def test_a_device_has_one_report_a_window(store: Store) -> None:
    await add(store, [instalment(1, device=5)])

    outcomes = await add(store, [instalment(2, device=5)])

    assert outcomes == [StoreOutcome.SECOND_REPORT]
    assert await store.instalment_digests(WINDOW, [ReportId((2).to_bytes(16))], 1) == [None]


async def test_another_device_cannot_add_to_a_report(store: Store) -> None:
    await add(store, [instalment(1, device=5)])

    outcomes = await add(store, [instalment(1, 2, device=6), instalment(1, 1, device=6)])

    assert outcomes == [StoreOutcome.OTHER_BYTES, StoreOutcome.OTHER_BYTES]


async def test_rounds_may_arrive_in_any_order(store: Store) -> None:
    await add(store, [instalment(1, 2)])
    assert len((await store.complete_reports(WINDOW)).ids) == 0

    await add(store, [instalment(1, 1)])

    reports = await store.complete_reports(WINDOW)
    loaded = reports.source(np.array([0])).load()
    assert loaded.batch.nonces == (1).to_bytes(16)
    assert bytes(loaded.batch.input_shares) == b"part 1 of  1part 2 of  1"
    assert loaded.batch.public_shares == b"public share  1"


async def test_a_closed_window_takes_nothing_but_knows_what_it_has(store: Store) -> None:
    await add(store, [instalment(1)])
    await store.apply(CLOSE)

    outcomes = await add(store, [instalment(1), instalment(2)])

    assert outcomes == [StoreOutcome.SAME, StoreOutcome.CLOSED]


@pytest.mark.parametrize("together", [True, False])
async def test_a_full_window_takes_what_belongs_to_its_reports_and_no_others(
    store: Store, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """Sealing refuses a set of more than 2^30: a report beyond it must not get a receipt."""
    monkeypatch.setattr("fleetcount_aggregator.storage.report_index.MAX_REPORTS_PER_WINDOW", 3)
    rows = [instalment(1), instalment(2), instalment(2), instalment(3, 2), instalment(4), instalment(5), instalment(5)]
    rows += [instalment(3), instalment(1, 2), instalment(6, device=1)]

    outcomes = await add(store, rows) if together else [(await add(store, [row]))[0] for row in rows]

    stored, full = StoreOutcome.STORED, StoreOutcome.FULL
    assert outcomes[:7] == [stored, stored, StoreOutcome.SAME, stored, full, full, full]
    assert outcomes[7:] == [stored, stored, StoreOutcome.SECOND_REPORT]
    assert await store.instalment_digests(WINDOW, [instalment(4).report_id], 1) == [None]


async def test_a_full_leaf_takes_no_more_reports_and_the_other_leaves_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a write that failed, and when the store is opened again."""
    monkeypatch.setattr("fleetcount_aggregator.storage.report_index.MAX_REPORTS_PER_LEAF", 3)
    store, elsewhere = open_store(tmp_path), [instalment(number << 120) for number in (1, 255)]
    await store.decide_windows((), window_row())
    with monkeypatch.context() as failing:
        failing.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(StoreError):
            await add(store, [instalment(8), instalment(9)])

    outcomes = await add(store, [elsewhere[0], *(instalment(number) for number in range(1, 6)), elsewhere[1]])

    stored, full = StoreOutcome.STORED, StoreOutcome.FULL
    assert outcomes == [stored] * 4 + [full] * 2 + [stored]
    await store.close()
    store = open_store(tmp_path)
    assert await add(store, [instalment(7), instalment(1, 2), instalment(2 << 120)]) == [full, stored, stored]
    await store.close()


async def test_an_unknown_window_takes_nothing(store: Store) -> None:
    other = replace(instalment(1), window_id=WindowId(b"u" * 32))

    assert await add(store, [other]) == [StoreOutcome.CLOSED]


async def test_closing_counts_half_pairs(store: Store) -> None:
    await complete(store, 1)
    await add(store, [instalment(2), instalment(3, 2)])

    await store.apply(CLOSE)

    assert await store.read(read_rejections, WINDOW) == {RejectReason.HALF_PAIR: 2}
    assert (await store.complete_reports(WINDOW)).ids.joined == (1).to_bytes(16)


async def test_a_step_is_taken_once_and_its_first_answer_stays(store: Store) -> None:
    first = StepRow(name="commit", request=b"q", answer=b"first")
    assert await store.apply(WindowChange(window_id=WINDOW, required=OPEN, step=first)) is None

    second = WindowChange(
        window_id=WINDOW,
        required=OPEN,
        new_state=WindowState.AGREEING,
        step=StepRow(name="commit", request=b"q", answer=b"second"),
    )

    assert await store.apply(second) == first
    assert await store.read(read_step, WINDOW, "commit") == first
    window = await store.read(read_window, WINDOW)
    assert window is not None
    assert window.state is WindowState.COLLECTING


async def test_a_step_that_is_taken_while_it_is_looked_for_is_not_taken_for_lost(
    tmp_path: Path, opens: Opening
) -> None:
    """Between the step's row and its window's another thread, or another process, may commit both."""
    store = opens(tmp_path)
    await store.decide_windows((), window_row())
    step = StepRow(name="commit", request=b"request", answer=b"answer", transient=False)
    loop, taking = asyncio.get_running_loop(), WindowChange(window_id=WINDOW, required=OPEN, step=step)

    def looked(db: SealedDatabase) -> StepRow | None:
        statements, execute = 0, db.execute

        def one_by_one(statement: str, values: Sequence[Any] = (), /) -> Answer:
            nonlocal statements
            statements += 1
            if statements == 2:
                asyncio.run_coroutine_threadsafe(store.apply(taking), loop).result()
            return execute(statement, values)

        db.execute = one_by_one
        return sql.read_step(db, WINDOW, "commit")

    assert await store.read(looked) in (None, step)
    await store.close()


async def test_a_change_in_the_wrong_state_changes_nothing(store: Store) -> None:
    row = LedgerRow(window_id=WINDOW, signal="S", opens=1, closes=2, epsilon="1", debited_at=3)
    change = WindowChange(
        window_id=WINDOW,
        required=frozenset({WindowState.RELEASING}),
        step=StepRow(name="commit", request=b"", answer=b""),
        debit=row,
        rejections={RejectReason.MALFORMED: 1},
    )

    with pytest.raises(StateConflictError) as conflict:
        await store.apply(change)

    assert conflict.value.state is WindowState.COLLECTING
    assert await store.read(read_step, WINDOW, "commit") is None
    assert not await store.read(read_ledger)
    assert not await store.read(read_rejections, WINDOW)


@pytest.mark.parametrize(
    "new", [WindowState.RELEASED, WindowState.RELEASING, WindowState.ANNOUNCED, WindowState.COLLECTING]
)
async def test_nothing_moves_backwards_or_skips(store: Store, new: WindowState) -> None:
    with pytest.raises(StateConflictError):
        await store.apply(WindowChange(window_id=WINDOW, required=OPEN, new_state=new))


def batch(number: int = 0, verdicts: bytes = bytes(3)) -> BatchRow:
    return BatchRow(
        number=number,
        positions=np.array([2, 0, 70_000]),
        verdicts=verdicts,
        share_digests=bytes(range(96)),
        kept=b"sealed",
    )


def fields(row: BatchRow) -> tuple[object, ...]:
    return (row.number, row.positions.tolist(), row.verdicts, row.share_digests, row.kept)


async def test_a_batch_is_stored_with_its_step_and_replaced_with_the_next(store: Store) -> None:
    first, second = (
        batch(3),
        batch(3, verdicts=bytes((ReportVerdict.ACCEPTED, ReportVerdict.DROPPED, ReportVerdict.REFUSED))),
    )
    steps = [StepRow(name=name, request=b"", answer=b"", transient=True) for name in ("propose/3", "finish/3")]

    await store.apply(WindowChange(window_id=WINDOW, required=OPEN, step=steps[0], batch=first))
    await store.apply(WindowChange(window_id=WINDOW, required=OPEN, step=steps[0], batch=second))
    row = await store.read(read_batch, WINDOW, 3)
    assert row is not None
    assert fields(row) == fields(first)

    await store.apply(WindowChange(window_id=WINDOW, required=OPEN, step=steps[1], batch=second))
    await store.apply(WindowChange(window_id=WINDOW, required=OPEN, batch=batch(1)))
    assert [fields(one) for one in await store.read(read_batches, WINDOW)] == [fields(batch(1)), fields(second)]
    assert await store.read(read_batch, WINDOW, 2) is None


async def test_complete_reports_are_fixed_by_closing_and_load_where_they_are(store: Store) -> None:
    numbers = [7, 3, 9, 1]
    await complete(store, *numbers)
    await add(store, [instalment(50)])
    await store.apply(CLOSE)

    reports = await store.complete_reports(WINDOW)

    assert reports.ids.joined == b"".join(number.to_bytes(16) for number in numbers)
    assert reports.ids.find((9).to_bytes(16) + (50).to_bytes(16)).tolist() == [2, -1]
    loaded = reports.source(np.array([2, 0])).load()
    assert bytes(loaded.batch.input_shares) == b"part 1 of  9part 2 of  9part 1 of  7part 2 of  7"
    assert loaded.batch.public_shares == b"public share  9public share  7"
    assert loaded.damaged == ()


async def test_the_reports_of_devices_are_found_by_their_keys_complete_or_not(store: Store) -> None:
    await complete(store, 1, 2, 3)
    await add(store, [instalment(50)])
    wanted = [instalment(number).certificate for number in (3, 50, 77)]

    found = await store.reports_of(WINDOW, b"".join(wanted))

    assert sorted(found[at : at + 16] for at in range(0, len(found), 16)) == [number.to_bytes(16) for number in (3, 50)]
    assert await store.reports_of(WINDOW, b"") == b""
    assert await store.reports_of(WindowId(bytes(32)), b"".join(wanted)) == b""


async def test_many_batches_are_read_a_few_at_a_time_and_each_once(store: Store) -> None:
    await complete(store, 1)
    await store.apply(CLOSE)
    numbers = [3 * number for number in range(2 * BATCHES_AT_ONCE + 1)]
    for number in reversed(numbers):
        await store.apply(
            WindowChange(window_id=WINDOW, required=frozenset({WindowState.AGREEING}), batch=batch(number))
        )

    assert [one.number async for one in every_batch(store, WINDOW)] == numbers
    assert [one.number for one in await store.read(read_batches, WINDOW)] == numbers[:BATCHES_AT_ONCE]


async def test_the_set_is_known_until_the_window_is_purged(store: Store) -> None:
    await complete(store, 1, 2, 3)
    await store.apply(CLOSE)
    change = WindowChange(
        window_id=WINDOW,
        required=frozenset({WindowState.AGREEING}),
        new_state=WindowState.RELEASING,
        included=bytes((1, 0, 1)),
    )

    assert await store.read(read_included, WINDOW) is None
    await store.apply(change)
    assert await store.read(read_included, WINDOW) == bytes((1, 0, 1))

    over = WindowChange(window_id=WINDOW, required=frozenset({WindowState.RELEASING}), new_state=WindowState.RELEASED)
    await store.apply(over)
    await store.purge(WINDOW)
    assert await store.read(read_included, WINDOW) is None


async def test_sessions_are_kept_as_they_first_came_until_they_expire(store: Store) -> None:
    row = session_row()
    assert await store.write_unfenced(add_session, row, most=1, now=0) == row
    assert await store.write_unfenced(add_session, replace(row, request=b"other"), most=1, now=0) == row

    assert await store.read(read_session, row.session_id) == row
    assert await store.read(read_sessions, [SessionId(b"u" * 16), row.session_id]) == [row]
    assert await store.read(read_sessions_of, row.certificate, 99) == 1
    assert await store.read(read_sessions_of, row.certificate, 100) == 0

    await store.write_unfenced(forget_sessions, 101)

    assert await store.read(read_session, row.session_id) is None
    assert await store.read(read_chains, [row.session_id]) == []


async def test_a_device_has_no_more_sessions_than_it_may_and_an_expired_one_does_not_count(store: Store) -> None:
    rows = [session_row(number) for number in range(1, 4)]
    assert [await store.write_unfenced(add_session, row, most=2, now=99) for row in rows] == [rows[0], rows[1], None]
    assert await store.write_unfenced(add_session, rows[0], most=2, now=99) == rows[0]
    assert await store.write_unfenced(add_session, rows[2], most=2, now=100) == rows[2]


async def test_sessions_and_their_keys_are_found_in_the_order_in_which_they_are_asked_for(store: Store) -> None:
    rows = [replace(session_row(), session_id=SessionId(number.to_bytes(16))) for number in range(1, 300)]
    await asyncio.gather(*(store.write_unfenced(add_session, row, most=300, now=0) for row in rows))
    asked = [rows[number] for number in (298, 3, 257, 256, 255)] + rows[:270]

    found = await store.read(read_sessions, [row.session_id for row in asked[:5]] + [SessionId(bytes(16))])
    chains = await store.read(read_chains, [row.session_id for row in asked])

    assert found == asked[:5]
    assert chains == [(row.session_id, row.chain) for row in asked]
    assert await store.read(read_sessions, []) == []


async def test_a_window_is_installed_once_and_windows_keep_their_order(store: Store) -> None:
    other = WindowId(b"a" * 32)
    await store.decide_windows((), window_row(other, WindowState.ANNOUNCED))

    await store.decide_windows((), replace(window_row(), canonical=b"other"))

    stored = await store.read(read_window, WINDOW)
    assert stored is not None
    assert stored.canonical == b"canonical"
    assert list(await store.read(read_active)) == [WINDOW, other]


async def test_a_release_is_debited_once(store: Store) -> None:
    row = LedgerRow(window_id=WINDOW, signal="S", opens=1, closes=2, epsilon="1.5", debited_at=3)

    for debited_at in (3, 4):
        await store.apply(WindowChange(window_id=WINDOW, required=OPEN, debit=replace(row, debited_at=debited_at)))

    assert list(await store.read(read_ledger)) == [row]


async def test_a_mark_never_falls(store: Store) -> None:
    for rows in (3, 7, 5):
        await store.write(raise_high_water, AggregatorId("beta"), rows)

    assert await store.read(read_high_water) == {AggregatorId("beta"): 7}


async def end(store: Store) -> None:
    """Close the window and abort it."""
    await store.apply(CLOSE)
    change = WindowChange(
        window_id=WINDOW, required=frozenset({WindowState.AGREEING}), new_state=WindowState.ABORTED, abort_reason="x"
    )
    await store.apply(change)


async def test_purging_keeps_digests_and_forgets_the_rest(store: Store) -> None:
    await complete(store, 1, 2)
    kept, transient = (
        StepRow(name=name, request=b"", answer=b"a", transient=name == "finish/0") for name in ("set", "finish/0")
    )
    for step in (kept, transient):
        await store.apply(WindowChange(window_id=WINDOW, required=OPEN, step=step, batch=batch()))
    await end(store)

    for _ in range(2):
        await store.purge(WINDOW)

    assert not await store.read(read_batches, WINDOW)
    assert (await store.read(read_step, WINDOW, "set"), await store.read(read_step, WINDOW, "finish/0")) == (kept, None)
    assert len((await store.complete_reports(WINDOW)).ids) == 0
    again = [instalment(1), instalment(2, 2), instalment(2, content=9), instalment(1, device=5), instalment(3)]
    assert await add(store, again) == [
        StoreOutcome.SAME,
        StoreOutcome.SAME,
        StoreOutcome.OTHER_BYTES,
        StoreOutcome.OTHER_BYTES,
        StoreOutcome.CLOSED,
    ]
    assert await store.instalment_digests(WINDOW, [instalment(2).report_id], 2) == [instalment(2, 2).digest]
    assert await store.instalment_digests(WINDOW, [instalment(3).report_id], 2) == [None]


async def test_rejections_add_up(store: Store) -> None:
    await store.write_unfenced(count_rejections, WINDOW, {RejectReason.TOO_LATE: 2, RejectReason.BAD_SEAL: 1})
    await store.write_unfenced(count_rejections, WINDOW, {RejectReason.TOO_LATE: 3})

    assert await store.read(read_rejections, WINDOW) == {RejectReason.TOO_LATE: 5, RejectReason.BAD_SEAL: 1}


async def test_32_submitters_of_one_report_are_counted_once(store: Store) -> None:
    outcomes = await asyncio.gather(*(add(store, [instalment(1)]) for _ in range(32)))

    assert sorted(one[0] for one in outcomes) == [StoreOutcome.STORED] + [StoreOutcome.SAME] * 31


async def test_nothing_is_stored_behind_the_closing_of_intake(store: Store) -> None:
    """What is promised while the window closes is there when it has closed: it is counted, here as half a pair."""
    before = await add(store, [instalment(41)])
    writes = [add(store, [instalment(n)]) for n in range(1, 41)]
    results = await asyncio.gather(*writes[:20], store.apply(CLOSE), *writes[20:], return_exceptions=True)

    failed = [one for one in results if isinstance(one, BaseException)]
    assert all(isinstance(one, StoreBusyError) for one in failed), (
        "a lane that is closed is busy until the move is known"
    )
    stored = sum(one == [StoreOutcome.STORED] for one in (before, *results))
    assert await store.read(read_rejections, WINDOW) == {RejectReason.HALF_PAIR: stored}
    assert await add(store, [instalment(99)]) == [StoreOutcome.CLOSED]


# What only a file has.


async def test_everything_is_there_after_opening_again(tmp_path: Path, opens: Opening) -> None:
    store = opens(tmp_path)
    await store.decide_windows((), window_row())
    await complete(store, 1, 2)
    await store.close()

    again = opens(tmp_path)

    assert len((await again.complete_reports(WINDOW)).ids) == 2
    shared = again.logs.backend.shared  # Then another lane is begun, which knows nothing of the one before.
    known = StoreOutcome.STORED if shared else StoreOutcome.SAME
    assert await add(again, [instalment(1), instalment(3)]) == [known, StoreOutcome.STORED]
    await again.apply(CLOSE)
    assert len((await again.complete_reports(WINDOW)).ids) == 2
    assert await again.read(read_rejections, WINDOW) == {RejectReason.HALF_PAIR: 1}
    await again.close()


async def test_a_closed_window_has_the_same_reports_after_opening_again(tmp_path: Path, opens: Opening) -> None:
    store = opens(tmp_path)
    await store.decide_windows((), window_row())
    for number in (5, 3, 8):
        await complete(store, number)
    await store.apply(CLOSE)
    before = (await store.complete_reports(WINDOW)).ids.joined
    await store.close()

    again = opens(tmp_path)

    assert (await again.complete_reports(WINDOW)).ids.joined == before
    await again.close()


async def test_a_closed_log_that_is_shorter_or_gone_is_named_and_nothing_of_it_used(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await store.decide_windows((), window_row())
    await complete(store, 1, 2)
    await store.apply(CLOSE)
    await store.close()
    [log] = tmp_path.glob("*.log")
    data = log.read_bytes()

    for damage in (lambda: log.write_bytes(data[:-1]), log.unlink):
        damage()
        assert "intake closed with" in await damage_in(tmp_path)

    log.write_bytes(data)
    await open_store(tmp_path).close()


def durable_bytes(directory: Path) -> int:
    """Return how long the store remembers the window's log to be."""
    with sqlite3.connect(directory / "store.db") as database:
        [[length]] = database.execute("SELECT durable_bytes FROM windows").fetchall()
    database.close()
    return int(length)


async def damage_in(directory: Path) -> str:
    """Return what a store says is damaged of its window, of whose reports it then shows none and takes none."""
    store = open_store(directory)
    [damage] = await store.damaged()
    with pytest.raises(DamagedError):
        await store.complete_reports(WINDOW)
    with pytest.raises(StoreError):
        await complete(store, 9)
    await store.close()
    assert damage.window_id == WINDOW
    return str(damage)


def as_a_crash_leaves_it(directory: Path) -> Path:
    """Return a copy of a running store's files."""
    copy = directory / "copy"
    copy.mkdir()
    for path in directory.glob("store*"):
        if path.suffix != ".lock":
            (copy / path.name).write_bytes(path.read_bytes())
    return copy


@pytest.mark.parametrize("ends", ["closed", "after another write", "a while later"])
@pytest.mark.parametrize("damage", ["shorter", "rotten", "rotten header", "empty", "gone"])
async def test_an_open_log_that_has_lost_what_was_durable_is_named_and_nothing_of_it_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, damage: str
) -> None:
    """A receipt means durable: what was promised is not taken for the torn end of a crash."""
    monkeypatch.setattr("fleetcount_aggregator.storage.write_queue.NOTE_S", 0.01 if ends == "a while later" else 3600)
    store = open_store(tmp_path)
    await store.decide_windows((), window_row())
    await complete(store, 1)
    [log] = tmp_path.glob("*.log")
    if ends == "closed":
        await store.close()
    elif ends == "after another write":
        await store.write(raise_high_water, AggregatorId("beta"), 1)
    else:
        async with asyncio.timeout(60):
            while durable_bytes(tmp_path) < log.stat().st_size:
                await asyncio.sleep(0.01)
    copy = as_a_crash_leaves_it(tmp_path)
    await store.close()
    [log] = copy.glob("*.log")
    data = log.read_bytes()
    assert durable_bytes(copy) == len(data)
    changed = {
        "shorter": data[:-1],
        "rotten": data[: FILE_HEADER_BYTES + HEAD_BYTES] + b"?" + data[FILE_HEADER_BYTES + HEAD_BYTES + 1 :],
        "rotten header": bytes(len(data)),
        "empty": b"",
        "gone": None,
    }[damage]
    log.unlink() if changed is None else log.write_bytes(changed)

    said = "is not what was written" if damage == "rotten" else "were durable, and have receipts"
    assert said in await damage_in(copy)
    assert changed is None or log.read_bytes() == changed, "left as it is"
    log.write_bytes(data)
    await open_store(copy).close()


async def test_what_grows_behind_the_last_note_may_be_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetcount_aggregator.storage.write_queue.NOTE_S", 3600)
    store = open_store(tmp_path)
    await store.decide_windows((), window_row())
    await complete(store, 1)
    await store.write(raise_high_water, AggregatorId("beta"), 1)
    await complete(store, 2)
    copy = as_a_crash_leaves_it(tmp_path)
    await store.close()
    [log] = copy.glob("*.log")
    log.write_bytes(log.read_bytes()[:-1])

    again = open_store(copy)

    assert await add(again, [instalment(1, 2), instalment(2, 2)]) == [StoreOutcome.SAME, StoreOutcome.STORED]
    await again.close()


@pytest.mark.parametrize("closed", [True, False])
async def test_a_window_whose_log_the_operator_put_aside_ends_and_the_others_go_on(
    tmp_path: Path, closed: bool
) -> None:
    other = WindowId(b"u" * 32)
    store = open_store(tmp_path)
    await store.decide_windows((), window_row())
    await store.decide_windows((), window_row(other))
    await add(store, [instalment(1), replace(instalment(1), window_id=other)])
    if closed:
        await store.apply(CLOSE)
    await store.close()
    log = tmp_path / f"store.{WINDOW.hex()}.log"
    lost = log.rename(log.with_name(log.name + ".lost"))

    for _ in range(2):
        again = await reopened(tmp_path)
        window = await again.read(read_window, WINDOW)
        assert window is not None
        assert (window.state, window.abort_reason) == (WindowState.ABORTED, "log_lost")
        rows = [instalment(1), replace(instalment(1), window_id=other)]
        assert await add(again, rows) == [StoreOutcome.CLOSED, StoreOutcome.SAME]
        assert not lost.exists()
        await again.close()


async def test_a_log_put_aside_after_its_set_was_sealed_is_named(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await store.decide_windows((), window_row())
    await complete(store, 1)
    await store.apply(CLOSE)
    await store.apply(
        WindowChange(window_id=WINDOW, required=frozenset({WindowState.AGREEING}), new_state=WindowState.RELEASING)
    )
    await store.close()
    [log] = tmp_path.glob("*.log")
    log.rename(log.with_name(log.name + ".lost"))

    assert "is missing" in await damage_in(tmp_path)


async def test_a_length_that_could_not_be_noted_is_noted_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetcount_aggregator.storage.write_queue.NOTE_S", 0.01)
    store = open_store(tmp_path)
    await store.decide_windows((), window_row())
    failing = FailingWriter(store._engine._writer, ("COMMIT",), 3)
    monkeypatch.setattr(store._engine, "_writer", failing)

    await complete(store, 1)

    [log] = tmp_path.glob("*.log")
    async with asyncio.timeout(60):
        while durable_bytes(tmp_path) < log.stat().st_size:
            await asyncio.sleep(0.01)
    assert failing._left == 0
    await store.close()


async def test_a_closed_window_is_not_gone_through_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every proposal asks for closing: at a million reports and two thousand proposals that was minutes."""
    store = open_store(tmp_path)
    await store.decide_windows((), window_row())
    await complete(store, 1, 2)
    await store.apply(CLOSE)
    await store.complete_reports(WINDOW)
    honest, calls = ReportIndex.complete, []

    def counted(index: ReportIndex) -> CompleteRows:
        calls.append(index)
        return honest(index)

    monkeypatch.setattr(ReportIndex, "complete", counted)
    for _ in range(3):
        with pytest.raises(StateConflictError):
            await store.apply(CLOSE)
        await store.complete_reports(WINDOW)

    assert not calls
    await store.close()


async def test_another_at_rest_key_opens_no_store(tmp_path: Path, opens: Opening) -> None:
    store = opens(tmp_path)
    await store.decide_windows((), window_row())
    await complete(store, 1)
    await store.close()

    with pytest.raises(StoreError, match="another at-rest key"):
        opens(tmp_path, bytes(32))


async def test_a_purge_that_a_crash_cut_off_is_finished_at_the_next_start(tmp_path: Path, opens: Opening) -> None:
    """Ended, and the process died before its shares were deleted."""
    store = opens(tmp_path)
    await store.decide_windows((), window_row())
    await complete(store, 1, 2)
    await store.apply(WindowChange(window_id=WINDOW, required=OPEN, batch=batch()))
    await end(store)
    assert store.logs.backend.holds(WINDOW)
    await store.close()

    again = await reopened(tmp_path, opens)

    assert not again.logs.backend.holds(WINDOW)
    assert not await again.read(read_batches, WINDOW)
    assert await add(again, [instalment(1), instalment(3)]) == [StoreOutcome.SAME, StoreOutcome.CLOSED]
    await again.close()


async def test_a_purge_that_had_deleted_the_log_only_is_finished_at_the_next_start(
    tmp_path: Path, opens: Opening
) -> None:
    store = opens(tmp_path)
    await store.decide_windows((), window_row())
    await complete(store, 1, 2)
    await store.apply(WindowChange(window_id=WINDOW, required=OPEN, batch=batch()))
    await end(store)
    await store.close()
    for path in tmp_path.glob("*.log"):
        path.unlink()

    again = await reopened(tmp_path, opens)

    assert not await again.read(read_batches, WINDOW)
    await again.close()


async def test_a_full_disk_fails_the_group_and_later_writes_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    await store.decide_windows((), window_row())
    await add(store, [instalment(1)])

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    results = await asyncio.gather(
        add(store, [instalment(1)]),
        add(store, [instalment(2), instalment(1, 2)]),
        store.write_unfenced(count_rejections, WINDOW, {RejectReason.TOO_LATE: 1}),
        return_exceptions=True,
    )
    monkeypatch.undo()

    assert isinstance(results[1], StoreError)
    assert results[2] is None, "what does not go into the log is none of its business"
    assert await store.instalment_digests(WINDOW, [instalment(2).report_id], 1) == [None]
    assert await add(store, [instalment(2), instalment(1, 2)]) == [StoreOutcome.STORED] * 2
    await store.close()


async def test_a_damaged_frame_fails_what_is_of_its_window_and_nothing_else_of_the_group(tmp_path: Path) -> None:
    """A repeat is compared with what lies there: that this cannot be read is no matter of other windows."""
    store, other = open_store(tmp_path), WindowId(b"o" * 32)
    for window_id in (WINDOW, other):
        await store.decide_windows((), window_row(window_id))
    await add(store, [instalment(1)])
    [path] = tmp_path.glob(f"*.{WINDOW.hex()}.log")
    path.write_bytes(path.read_bytes()[:FILE_HEADER_BYTES] + bytes(path.stat().st_size - FILE_HEADER_BYTES))
    groups = [runs_of([one]) for one in (instalment(1), replace(instalment(2), window_id=other))]

    damaged, stored = await asyncio.gather(*[store.add_instalments(group) for group in groups], return_exceptions=True)

    assert isinstance(damaged, StoreError)
    assert stored == [bytes((StoreOutcome.STORED,))]
    await store.close()


async def test_who_looks_for_long_holds_up_no_write_after_a_window_has_ended(tmp_path: Path) -> None:
    """A backup is one long read: the journal is folded in when it is over, and receipts do not wait for that."""
    store = open_store(tmp_path)
    await store.decide_windows((), window_row())
    await store.apply(WindowChange(window_id=WINDOW, required=OPEN, new_state=WindowState.ABORTED, abort_reason="x"))
    journal = tmp_path / "store.db-wal"
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as looking:
        looking.execute("BEGIN")
        looking.execute("SELECT COUNT(*) FROM windows").fetchone()
        begun = time.monotonic()
        await store.purge(WINDOW)
        await store.write(raise_high_water, AggregatorId("beta"), 1)
        assert time.monotonic() - begun < 9
        assert journal.stat().st_size

    await store.write(raise_high_water, AggregatorId("beta"), 2)
    assert not journal.stat().st_size
    await store.close()


async def test_windows_have_logs_of_their_own(tmp_path: Path) -> None:
    other = WindowId(b"u" * 32)
    store = open_store(tmp_path)
    await store.decide_windows((), window_row())
    await store.decide_windows((), window_row(other))

    rows = [instalment(1), replace(instalment(1, content=5), window_id=other), instalment(2)]
    assert await add(store, rows) == [StoreOutcome.STORED] * 3
    await end(store)
    await store.purge(WINDOW)

    assert await add(store, [rows[1]]) == [StoreOutcome.SAME]
    assert [path.name for path in tmp_path.glob("*.log")] == [f"store.{other.hex()}.log"]
    await store.close()


async def test_a_second_store_on_the_same_file_is_refused(tmp_path: Path, opens: Opening) -> None:
    store = opens(tmp_path)

    with pytest.raises(StoreError, match="locked"):
        opens(tmp_path)

    await store.close()
    await opens(tmp_path).close()


async def test_files_belong_to_their_owner_alone(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        store = open_store(tmp_path)
    finally:
        os.umask(previous)
    await store.decide_windows((), window_row())

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}, modes
    await store.close()


def _unknown_schema(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute(f"UPDATE schema_version SET version = {SQLITE.version + 1}")
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
    await open_store(tmp_path).close()
    damage(path)
    before = path.read_bytes()

    with pytest.raises(StoreError):
        open_store(tmp_path)

    assert path.read_bytes() == before


async def test_a_write_that_fails_does_not_take_its_group_with_it(tmp_path: Path, opens: Opening) -> None:
    store = opens(tmp_path)
    await store.decide_windows((), window_row())
    bad = WindowChange(window_id=WindowId(b"u" * 32), required=OPEN)

    results = await asyncio.gather(
        add(store, [instalment(1)]),
        store.apply(bad),
        add(store, [instalment(2)]),
        return_exceptions=True,
    )

    assert results[0] == results[2] == [StoreOutcome.STORED]
    assert isinstance(results[1], StoreError)
    await store.close()


async def test_a_write_nobody_expected_to_fail_leaves_the_store_working(tmp_path: Path, opens: Opening) -> None:
    """The writer is one thread: if it died, every later write would wait for ever."""
    store = opens(tmp_path)
    await store.decide_windows((), window_row())

    async with asyncio.timeout(60):
        results = await asyncio.gather(
            add(store, [instalment(1)]),
            store.write(raise_high_water, AggregatorId("beta"), 2**63),
            add(store, [instalment(2)]),
            return_exceptions=True,
        )
        later = await add(store, [instalment(3)])

    assert results[0] == results[2] == later == [StoreOutcome.STORED]
    assert isinstance(results[1], StoreError)
    assert await store.read(read_high_water) == {}
    await store.close()


class FailingWriter:
    """A connection on a disk that fails `left` statements of some kinds."""

    def __init__(self, honest: sqlite3.Connection, failing: tuple[str, ...], left: int) -> None:
        self._honest, self._failing, self._left = honest, failing, left

    def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        if statement in self._failing and self._left:
            self._left -= 1
            raise sqlite3.OperationalError("disk I/O error")
        return self._honest.execute(statement, *arguments)

    def __getattr__(self, name: str) -> object:
        return getattr(self._honest, name)


async def test_a_disk_that_fails_even_to_roll_back_leaves_the_store_working(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    await store.decide_windows((), window_row())
    engine = store._engine
    monkeypatch.setattr(engine, "_writer", FailingWriter(engine._writer, ("COMMIT", "ROLLBACK"), 2))

    async with asyncio.timeout(60):
        for _ in range(2):
            with pytest.raises(StoreError, match="could not commit"):
                await store.write(raise_high_water, AggregatorId("beta"), 3)
        await store.write(raise_high_water, AggregatorId("beta"), 4)

    assert await store.read(read_high_water) == {AggregatorId("beta"): 4}
    await store.close()


async def test_concurrent_writes_share_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    await store.decide_windows((), window_row())
    synced, sync = [], os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append(sync(descriptor)))

    await asyncio.gather(*(add(store, [instalment(n)]) for n in range(1, 201)))

    assert 0 < len(synced) < 20
    await store.close()


async def test_a_write_waits_a_little_where_others_came_lately_and_for_nobody_where_none_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    await store.decide_windows((), window_row())
    looks: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=looks.append)
    monkeypatch.setattr("fleetcount_aggregator.storage.write_queue.time", clock)
    begun, go_on, sync = threading.Event(), threading.Event(), os.fdatasync

    def held_sync(descriptor: int) -> None:
        begun.set()
        assert go_on.wait(30)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", held_sync)
    alone = asyncio.create_task(add(store, [instalment(1)]))
    await asyncio.to_thread(begun.wait, 30)
    together = [asyncio.create_task(add(store, [instalment(number)])) for number in (2, 3)]
    while store._writes._queue.qsize() < len(together):
        await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(alone, *together)
    assert looks == []

    waited = []
    for number in range(4, 14):
        looks.clear()
        await add(store, [instalment(number)])
        waited.append(round(1000 * sum(looks)))

    assert waited == [5] * 8 + [0, 0], "eight groups later nobody is expected any more"
    await store.close()


async def test_a_full_queue_is_said_to_be_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetcount_aggregator.storage.write_queue.QUEUE_LENGTH", 16)
    store = open_store(tmp_path)
    await store.decide_windows((), window_row())

    outcomes = await asyncio.gather(*(add(store, [instalment(1)]) for _ in range(64)), return_exceptions=True)

    assert outcomes[0] == [StoreOutcome.STORED]
    assert {type(one) for one in outcomes} == {list, StoreBusyError}
    await store.close()


async def test_bytes_that_wait_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetcount_aggregator.storage.write_queue.QUEUE_BYTES", 1000)
    store = open_store(tmp_path)
    await store.decide_windows((), window_row())
    rows = [replace(instalment(number), part=bytes(300)) for number in range(1, 21)]

    outcomes = await asyncio.gather(*(add(store, [row]) for row in rows), return_exceptions=True)
    later = await add(store, [replace(instalment(30), part=bytes(5000))])

    assert any(isinstance(one, StoreBusyError) for one in outcomes)
    assert outcomes[0] == later == [StoreOutcome.STORED]
    await store.close()


async def test_a_closed_store_says_so(tmp_path: Path, opens: Opening) -> None:
    store = opens(tmp_path)
    await store.close()

    with pytest.raises(StoreError, match="closed"):
        await store.read(read_active)
    with pytest.raises(StoreError, match="closed"):
        await store.purge(WINDOW)

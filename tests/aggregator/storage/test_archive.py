"""Ended windows in every store: at rest, retired, forgotten; what never falls, and what is never touched."""

import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage.ended import (
    AT_ONCE,
    FIRST_KEY,
    ArchivedWindow,
    archive_windows,
    forget_windows,
    read_active,
    read_archived,
    read_debit,
)
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.instalment_run import InstalmentRun, StoreOutcome
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_aggregator.storage.question_rows import (
    archive_question,
    install_question,
    note_question,
    read_decided,
    read_notes,
    read_questions,
)
from fleetcount_aggregator.storage.row_repair import mend_others
from fleetcount_aggregator.storage.row_types import (
    DecidedWindow,
    LedgerRow,
    Lifecycle,
    QuestionRow,
    StepRow,
    WindowChange,
    WindowRow,
)
from fleetcount_aggregator.storage.rows import (
    count_rejections,
    read_ledger,
    read_ledger_rows,
    read_rejections,
    read_step,
    read_window,
)
from fleetcount_aggregator.storage.store import Store
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import Digest, QuestionId, ReportId, WindowId
from fleetcount_protocol.messages import WindowState

KEPT: Mapping[WindowState, Sequence[str]] = {
    WindowState.RELEASED: ("set", "release"),
    WindowState.ABORTED: ("set", "sign"),
}
REPORT, DEVICE, DIGEST = ReportId(b"r" * 16), b"d" * 32, b"i" * 32
QUESTION = QuestionRow(question_id=QuestionId(b"s" * 32), signed=b"signed", seed=b"sealed", installed_at=7)


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "sqlite":
        opened = Store.open(tmp_path / "a.db", bytes(32))
    else:
        place = StorePlace(directory=tmp_path, url=request.getfixturevalue("postgres_url"))
        opened = Store.over(open_engine(place), tmp_path / "a.db", bytes(32))
    yield opened
    await opened.close()


def window_id(number: int) -> WindowId:
    return WindowId(number.to_bytes(4, "big") * 8)


def row_of(number: int, state: WindowState = WindowState.RELEASED) -> WindowRow:
    return WindowRow(
        window_id=window_id(number),
        canonical=b"canonical",
        verify_key=b"",
        state=state,
        abort_reason="",
        installed_at=0,
    )


def rest_of(number: int, expiry: int = 100) -> ArchivedWindow:
    return ArchivedWindow(window_id=window_id(number), expiry=expiry, led=number % 2 == 0)


async def install(store: Store, numbers: Sequence[int], state: WindowState = WindowState.RELEASED) -> None:
    for number in numbers:
        await store.decide_windows((), row_of(number, state))


async def debit(store: Store, number: int, signal: str = "Vehicle.Speed", closes: int = 20) -> None:
    row = LedgerRow(window_id=window_id(number), signal=signal, opens=10, closes=closes, epsilon="1", debited_at=9)
    await store.apply(WindowChange(window_id=window_id(number), required=frozenset(WindowState), debit=row))


async def take(store: Store, number: int, *names: str) -> None:
    for name in names:
        step = StepRow(name=name, request=b"asked", answer=b"said")
        await store.apply(WindowChange(window_id=window_id(number), required=frozenset(WindowState), step=step))


async def resting(store: Store, rest: Lifecycle, until: int = 10**9) -> list[WindowId]:
    return [row.window_id for row in await store.read(read_archived, rest, FIRST_KEY, until)]


async def test_a_window_at_rest_is_in_work_no_more_and_answered_about_as_before(store: Store) -> None:
    await install(store, [1, 2, 3])
    await take(store, 1, "release", "commit")

    for _ in range(2):
        await store.write(archive_windows, [rest_of(1), rest_of(3)])

    assert list(await store.read(read_active)) == [window_id(2)]
    assert await store.read(read_archived, Lifecycle.ARCHIVED, FIRST_KEY, 100) == [rest_of(1), rest_of(3)]
    assert await store.read(read_window, window_id(1)) == row_of(1)
    assert await store.read(read_step, window_id(1), "commit") is not None


async def test_a_window_that_has_not_ended_is_never_put_to_rest_nor_retired(store: Store) -> None:
    await install(store, [1])
    await install(store, [2], WindowState.RELEASING)
    await take(store, 2, "commit")

    with pytest.raises(StoreError):
        await store.write(archive_windows, [rest_of(1), rest_of(2)])
    await store.retire([window_id(1), window_id(2)], KEPT)

    assert len(await store.read(read_active)) == 2
    assert await store.read(read_step, window_id(2), "commit") is not None
    assert not await store.write(forget_windows, [window_id(1), window_id(2)])


async def test_windows_at_rest_come_by_expiry_a_page_at_a_time(store: Store) -> None:
    count = AT_ONCE + 3
    await install(store, range(count))
    await store.write(archive_windows, [rest_of(number, expiry=1000 - number // 2) for number in range(count)])

    first = await store.read(read_archived, Lifecycle.ARCHIVED, FIRST_KEY, 1000)
    second = await store.read(read_archived, Lifecycle.ARCHIVED, first[-1].sort_key, 1000)

    assert len(first) == AT_ONCE
    assert [*first, *second] == sorted((*first, *second), key=lambda row: row.sort_key)
    assert {row.window_id for row in (*first, *second)} == {window_id(number) for number in range(count)}
    assert not await store.read(read_archived, Lifecycle.ARCHIVED, FIRST_KEY, 900)


async def test_a_retired_window_keeps_what_it_is_asked_about_and_no_digest(store: Store) -> None:
    await store.decide_windows((), row_of(1, WindowState.COLLECTING))
    run = InstalmentRun(
        window_id=window_id(1),
        round=0,
        expected=1,
        report_ids=REPORT,
        certificates=DEVICE,
        digests=DIGEST,
        public_shares=b"",
        parts=b"part",
    )
    assert await store.add_instalments([run]) == [bytes([StoreOutcome.STORED])]
    for state in (WindowState.AGREEING, WindowState.RELEASING, WindowState.RELEASED):
        await store.apply(WindowChange(window_id=window_id(1), required=frozenset(WindowState), new_state=state))
    await take(store, 1, "set", "commit", "sign", "release")
    await store.write_unfenced(count_rejections, window_id(1), {RejectReason.TOO_LATE: 2})
    await store.purge(window_id(1))
    await store.write(archive_windows, [rest_of(1)])
    before = await store.instalment_digests(window_id(1), [REPORT], 0), await store.add_instalments([run])

    for _ in range(2):
        await store.retire([window_id(1)], KEPT)

    assert before == ([Digest(DIGEST)], [bytes([StoreOutcome.SAME])])
    assert await store.instalment_digests(window_id(1), [REPORT], 0) == [None]
    assert await store.add_instalments([run]) == [bytes([StoreOutcome.CLOSED])]
    assert [
        await store.read(read_step, window_id(1), name) is not None for name in ("set", "commit", "sign", "release")
    ] == [
        True,
        False,
        False,
        True,
    ]
    assert await store.read(read_rejections, window_id(1)) == {RejectReason.TOO_LATE: 2}
    assert (await resting(store, Lifecycle.ARCHIVED), await resting(store, Lifecycle.RETIRED)) == ([], [window_id(1)])


async def test_steps_are_kept_by_the_state_a_window_ended_in(store: Store) -> None:
    await install(store, [1], WindowState.ABORTED)
    await take(store, 1, "set", "sign")
    await store.write(archive_windows, [rest_of(1)])

    await store.retire([window_id(1)], KEPT)

    assert await store.read(read_step, window_id(1), "sign") is not None


async def test_what_is_forgotten_is_gone_but_was_debited_for_ever(store: Store) -> None:
    await install(store, [1, 2])
    for number in (1, 2, 1):
        await debit(store, number)
    await take(store, 1, "release")
    await store.write(archive_windows, [rest_of(1), rest_of(2)])
    assert not await store.write(forget_windows, [window_id(1)]), "it is not retired"
    await store.retire([window_id(1)], KEPT)

    gone = await store.write(forget_windows, [window_id(1), window_id(2)])

    assert gone == [window_id(1)]
    assert (await store.read(read_window, window_id(1)), await store.read(read_step, window_id(1), "release")) == (
        None,
        None,
    )
    assert (await store.read(read_debit, window_id(1)), [row.window_id for row in await store.read(read_ledger)]) == (
        None,
        [window_id(2)],
    )
    assert await store.read(read_ledger_rows) == 2
    await install(store, [3])
    await debit(store, 3)
    assert await store.read(read_ledger_rows) == 3
    assert [row.window_id for row in await store.read(read_ledger)] == [window_id(2), window_id(3)]
    await store.write(archive_windows, [rest_of(3)])
    await store.retire([window_id(2), window_id(3)], KEPT)
    assert len(await store.write(forget_windows, [window_id(2), window_id(3)])) == 2
    assert (await store.read(read_ledger_rows), await store.read(read_ledger)) == (3, [])


async def test_windows_stay_while_their_question_runs_and_it_goes_with_the_last_of_them(store: Store) -> None:
    await store.write(install_question, QUESTION, {})
    for number in (1, 2):
        await store.decide_windows(
            [DecidedWindow(question_id=QUESTION.question_id, index=number, window_id=window_id(number))], row_of(number)
        )
    await store.write(note_question, QUESTION.question_id, "order/alpha/1", b"order")
    await store.write(note_question, QUESTION.question_id, "keys/beta", b"list")
    await store.write(archive_windows, [rest_of(1), rest_of(2)])
    await store.retire([window_id(1), window_id(2)], KEPT)
    running = await store.write(forget_windows, [window_id(1)])

    await store.write(archive_question, QUESTION.question_id, 50, "keys/")
    found = [await store.read(read_questions, ended_after=moment) for moment in (49, 50)]
    notes = await store.read(read_notes, QUESTION.question_id)
    first, second = await store.write(forget_windows, [window_id(1)]), await store.write(forget_windows, [window_id(2)])

    assert not running
    assert found == [[QUESTION], []]
    assert notes == {"order/alpha/1": b"order"}
    assert (first, second) == ([window_id(1)], [window_id(2)])
    assert (await store.read(read_questions), await store.read(read_decided, QUESTION.question_id)) == ([], [])
    assert not await store.read(read_notes, QUESTION.question_id)


async def test_places_stay_in_order_when_the_first_windows_are_forgotten(store: Store) -> None:
    await install(store, [1, 2, 3])
    await store.write(archive_windows, [rest_of(1), rest_of(2)])
    await store.retire([window_id(1), window_id(2)], KEPT)
    await store.write(forget_windows, [window_id(1), window_id(2)])

    await install(store, [4, 5])

    assert list(await store.read(read_active)) == [window_id(3), window_id(4), window_id(5)]
    assert replace(row_of(5)) == await store.read(read_window, window_id(5))


async def test_a_window_whose_rest_is_damaged_is_not_retired_and_comes_back_by_repair(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "a.db", bytes(32))
    await install(store, [1, 2])
    await store.write(archive_windows, [rest_of(1), rest_of(2)])
    await store.close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute("UPDATE windows SET expiry = 0 WHERE window_id = ?", (window_id(1),))
        database.commit()

    store = Store.open(tmp_path / "a.db", bytes(32))
    named = [one.window_id for one in await store.damaged()]
    found = await resting(store, Lifecycle.ARCHIVED)
    await store.retire([window_id(1)], KEPT)
    done = await store.write(lambda db: mend_others(db, lambda _: None))

    assert named == [window_id(1)]
    assert found == [window_id(2)]
    assert done == [f"let window {window_id(1).hex()} be looked at again at the next start"]
    assert list(await store.read(read_active)) == [window_id(1)]
    await store.close()

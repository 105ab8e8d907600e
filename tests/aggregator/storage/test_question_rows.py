"""What every store keeps of question."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from fleetcount_aggregator.storage.ended import read_active, read_costs
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.question_rows import (
    install_question,
    note_question,
    read_decided,
    read_decided_of,
    read_notes,
    read_one_question,
    read_questions,
)
from fleetcount_aggregator.storage.row_types import (
    Charged,
    Cost,
    DecidedWindow,
    LedgerRow,
    QuestionRow,
    WindowChange,
    WindowRow,
)
from fleetcount_aggregator.storage.store import Store
from fleetcount_protocol.ids import QuestionId, WindowId
from fleetcount_protocol.messages import WindowState

QUESTION, OTHER = QuestionId(b"s" * 32), QuestionId(b"o" * 32)
ROW = QuestionRow(question_id=QUESTION, signed=b"signed", seed=b"sealed", installed_at=7)
LOG_KEY = bytes(range(32))


def open_store(directory: Path) -> Store:
    return Store.open(directory / "store.db", LOG_KEY)


def window_row(number: int) -> WindowRow:
    return WindowRow(
        window_id=WindowId(bytes([number]) * 32),
        canonical=b"canonical",
        verify_key=b"sealed",
        state=WindowState.ANNOUNCED,
        abort_reason="",
        installed_at=number,
    )


def window(index: int, *, window: bool = False) -> DecidedWindow:
    return DecidedWindow(
        question_id=QUESTION, index=index, window_id=window_row(index).window_id, missing="" if window else "missed"
    )


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = open_store(tmp_path)
    yield opened
    await opened.close()


async def test_the_first_bytes_of_a_question_win(store: Store) -> None:
    await store.write(install_question, ROW, {})

    again = await store.write(install_question, replace(ROW, signed=b"other", seed=b"other"), {})
    await store.write(install_question, replace(ROW, question_id=OTHER), {})

    assert again == ROW
    assert [row.question_id for row in await store.read(read_questions)] == [QUESTION, OTHER]


async def test_a_note_takes_the_place_of_the_one_before_and_belongs_to_one_question(store: Store) -> None:
    await store.write(note_question, QUESTION, "keys/beta", b"old")

    await store.write(note_question, QUESTION, "keys/beta", b"new")
    await store.write(note_question, QUESTION, "keys/gamma", b"more")

    assert await store.read(read_notes, QUESTION) == {"keys/beta": b"new", "keys/gamma": b"more"}
    assert await store.read(read_notes, OTHER) == {}


async def test_a_window_is_decided_once_and_its_window_is_installed_with_it(store: Store) -> None:
    await store.decide_windows([window(0), window(1)])
    await store.decide_windows([window(2, window=True)], window_row(2))

    for again in (window(1, window=True), window(2)):
        with pytest.raises(StoreError, match="decided already"):
            await store.decide_windows([window(3), again], window_row(3))

    assert await store.read(read_decided, QUESTION) == [window(0), window(1), window(2, window=True)]
    assert await store.read(read_decided, QUESTION, above=1) == [window(2, window=True)]
    assert await store.read(read_decided, QUESTION, above=0, below=2) == [window(1)]
    assert await store.read(read_decided_of, window_row(1).window_id) == window(1)
    assert await store.read(read_decided_of, window_row(3).window_id) is None
    assert list(await store.read(read_active)) == [window_row(2).window_id]
    assert not await store.read(read_decided, OTHER)


@pytest.mark.parametrize(
    ("windows", "refused", "decided", "ends", "cost"),
    [
        (1, False, 0, None, Cost.OPEN),
        (1, True, 0, None, Cost.NOTHING),
        (1, False, 1, None, Cost.NOTHING),  # It is missing.
        (1, False, 1, WindowState.COLLECTING, Cost.OPEN),
        (1, False, 1, WindowState.ABORTED, Cost.NOTHING),
        (1, False, 1, WindowState.RELEASED, Cost.DEBITED),
        (
            2,
            False,
            1,
            WindowState.ABORTED,
            Cost.OPEN,
        ),  # The window that follows counts from the unit that this one began.
        (2, True, 2, WindowState.ABORTED, Cost.NOTHING),
        (2, True, 1, WindowState.AGREEING, Cost.OPEN),
    ],
)
async def test_a_question_costs_nothing_only_if_it_was_refused_or_its_one_window_failed(
    store: Store, windows: int, refused: bool, decided: int, ends: WindowState | None, cost: Cost
) -> None:
    first = (
        None
        if ends is None
        else replace(window_row(0), state=WindowState.RELEASING if ends is WindowState.RELEASED else ends)
    )
    if decided:
        await store.decide_windows([window(0, window=ends is not None)], first)
    if decided > 1:
        await store.decide_windows([window(1)])
    if ends is WindowState.RELEASED:
        window_id = window_row(0).window_id
        debit = LedgerRow(window_id=window_id, signal="s", opens=1, closes=2, epsilon="1", debited_at=3)
        await store.apply(
            WindowChange(
                window_id=window_id,
                required=frozenset({WindowState.RELEASING}),
                new_state=WindowState.RELEASED,
                debit=debit,
            )
        )

    assert await store.read(read_costs, [Charged(QUESTION, windows, refused), Charged(OTHER, 1, True)]) == [
        cost,
        Cost.NOTHING,
    ]


async def test_one_question_is_read_by_itself(store: Store) -> None:
    await store.write(install_question, ROW, {})

    assert [await store.read(read_one_question, one) for one in (QUESTION, OTHER)] == [ROW, None]


async def test_question_notes_and_windows_outlive_the_process(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await store.write(install_question, ROW, {})
    await store.write(note_question, QUESTION, "name", b"note")
    await store.decide_windows([window(0), window(1, window=True)], window_row(1))
    await store.close()

    store = open_store(tmp_path)
    found = (
        await store.read(read_questions),
        await store.read(read_notes, QUESTION),
        await store.read(read_decided, QUESTION),
    )
    await store.close()

    assert found == ([ROW], {"name": b"note"}, [window(0), window(1, window=True)])

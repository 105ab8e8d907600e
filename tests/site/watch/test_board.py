"""The board: a late or returning reader is told the rest and no more, and its history has an end."""

import asyncio
import json
from typing import Any

import pytest
from fleetcount_site.watch.board import MOST_READERS, MOST_SUBJECTS, Board, BoardFullError


def parsed(text: str) -> tuple[str, str, Any]:
    """Return id, name and content of one event."""
    fields = dict(line.split(": ", 1) for line in text.strip().splitlines())
    return fields["id"], fields["event"], json.loads(fields["data"])


async def told(board: Board, last_id: str = "") -> list[tuple[str, str, Any]]:
    """Return all that a closed board tells a reader."""
    return [parsed(text) async for text in board.follow(last_id) if text.startswith("id")]


async def test_a_reader_who_comes_late_is_told_the_latest_on_every_subject_in_order() -> None:
    board = Board()
    for done in range(1000):
        board.state("stage one", {"done": done})
    board.state("question", {"text": "a\nb"})
    board.state("stage one", {"done": 1000})
    board.close()

    events = await told(board)

    assert [(name, content) for _, name, content in events] == [
        ("question", {"text": "a\nb"}),
        ("stage", {"done": 1000}),
    ]


async def test_a_reader_who_comes_back_is_told_what_is_new_and_one_of_another_run_everything() -> None:
    board, other = Board(), Board()
    for one in (board, other):
        one.state("a", {"n": 1})
        one.state("b", {"n": 2})
    other.close()
    (first, *_), (last, *_) = (await told(other))[0], (await told(other))[-1]
    reader = board.follow()
    seen = [await anext(reader) for _ in range(3)]
    known = parsed(seen[-1])[0]
    await reader.aclose()  # type: ignore[attr-defined] # an asynchronous generator

    board.state("c", {"n": 3})
    board.close()

    assert [name for _, name, _ in await told(board, known)] == ["c"]
    for strange in (first, last, known + "0", "x", "-", f"{known.partition('-')[0]}-²", "9" * 5000):
        assert len(await told(board, strange)) == (0 if strange == known + "0" else 3)


async def test_readers_are_told_as_it_happens_and_end_with_the_board() -> None:
    board = Board()
    heard: list[str] = []

    async def follow() -> None:
        heard.extend([name for _, name, _ in await told(board)])

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(follow())
        while not board.readers:
            await asyncio.sleep(0)
        await asyncio.to_thread(board.state, "from-a-thread", {})
        board.close()
        board.state("after", {})

    assert heard == ["from-a-thread"]
    assert board.readers == 0


async def test_no_more_follow_than_may_and_who_leaves_makes_room() -> None:
    board = Board()
    readers = [board.follow() for _ in range(MOST_READERS + 1)]
    for one in readers[:-1]:
        await anext(one)

    with pytest.raises(BoardFullError, match=f"{MOST_READERS} pages"):
        await anext(readers[-1])
    await readers[0].aclose()  # type: ignore[attr-defined] # an asynchronous generator

    assert board.readers == MOST_READERS - 1
    for one in readers[1:-1]:
        await one.aclose()  # type: ignore[attr-defined] # as above


def test_a_board_has_an_end_and_plain_subjects() -> None:
    board = Board()
    for number in range(MOST_SUBJECTS):
        board.state(f"s{number}", {})

    with pytest.raises(ValueError, match="one more than"):
        board.state("another", {})
    with pytest.raises(ValueError, match="printable ASCII"):
        board.state("a\nevent: b", {})

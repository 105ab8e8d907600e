"""Parts of what one device does at the same time: who ends first with a reason or a failure ends the others."""

import asyncio
import inspect
import math
from collections.abc import Coroutine
from typing import Any

import pytest
from fleetcount_client.timer import Activity, ManualTimer
from fleetcount_protocol.errors import MachineError, RejectReason

ended: list[str] = []


async def nothing() -> None:
    """Close nothing."""


def activity() -> Activity:
    ended.clear()
    return Activity(ManualTimer(0.0), math.inf, nothing)


async def part(name: str, turns: int, answer: str | RejectReason | Exception) -> str | RejectReason:
    """Take so many turns of the event loop, then answer or fail; say how it ended, in a turn of its own."""
    try:
        for _ in range(turns):
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        await asyncio.sleep(0)
        ended.append(f"{name} cancelled")
        raise
    if isinstance(answer, Exception):
        raise answer
    ended.append(name)
    return answer


async def test_answers_come_in_the_order_of_the_parts() -> None:
    assert await activity().together([part("slow", 5, "a"), part("fast", 1, "b")]) == ["a", "b"]
    assert ended == ["fast", "slow"]


async def test_the_first_reason_is_the_answer_and_the_others_have_ended() -> None:
    parts: list[Coroutine[Any, Any, str | RejectReason]] = [
        part("never", 1000, RejectReason.BUSY),
        part("second", 4, RejectReason.BAD_SEAL),
        part("first", 2, RejectReason.DUPLICATE_OTHER_BYTES),
    ]

    assert await activity().together(parts) is RejectReason.DUPLICATE_OTHER_BYTES
    assert sorted(ended) == ["first", "never cancelled", "second cancelled"]


async def test_where_the_first_part_refuses_at_once_no_other_begins() -> None:
    left = part("other", 0, "a")

    assert await activity().together([part("first", 0, RejectReason.BAD_CERTIFICATE), left]) is (
        RejectReason.BAD_CERTIFICATE
    )
    assert ended == ["first"]
    assert inspect.getcoroutinestate(left) == inspect.CORO_CLOSED


async def test_what_the_first_part_that_failed_has_raised_is_raised_as_it_is() -> None:
    failed = MachineError("disk full")

    with pytest.raises(MachineError) as caught:
        await activity().together([part("waits", 1000, "a"), part("fails", 1, failed)])

    assert caught.value is failed
    assert ended == ["waits cancelled"]


async def test_parts_end_with_who_waits_for_them_and_all_are_counted_as_under_way() -> None:
    it, seen = activity(), list[bool]()

    async def look() -> str:
        seen.append(it.resting)
        return await part("waits", 1000, "a")  # type: ignore[return-value]

    with it.begun():
        waiting = asyncio.create_task(it.together([look(), look()]))
        for _ in range(3):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        seen.append(it.resting)

    assert waiting.cancelled()
    assert ended == ["waits cancelled"] * 2
    assert (seen, it.resting) == ([False] * 3, True)

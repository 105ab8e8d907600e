"""Devices that share a connection: their messages travel together, and each gets its own answer or its own failure."""

import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from fleetcount_client.transport import Unreachable
from fleetcount_protocol.errors import DecodeError, PeerError
from fleetcount_simulator.network.shared_transport import Channel, SharedTransport

from tests.support.told_time import told_time, turns_until


class Far:
    """The other end of a channel: notes what arrived together, answers after `hold` is set."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.batches: list[list[int]] = []
        self.failure = failure
        self.hold = asyncio.Event()
        self.hold.set()

    async def send(self, batch: list[int]) -> Sequence[str]:
        self.batches.append(batch)
        await self.hold.wait()
        if self.failure is not None:
            raise self.failure
        return [f"answer {item}" for item in batch]


async def test_what_waits_travels_together_and_every_device_gets_its_own_answer() -> None:
    far = Far()
    channel = Channel(far.send, 100)

    answers = await asyncio.gather(*(channel.put(item) for item in range(40)))

    assert answers == [f"answer {item}" for item in range(40)]
    assert sorted(item for batch in far.batches for item in batch) == list(range(40))
    assert len(far.batches) <= 2


async def test_no_batch_is_larger_than_allowed_and_two_are_under_way_at_once() -> None:
    far = Far()
    far.hold.clear()
    channel = Channel(far.send, 10)
    waiting = [asyncio.create_task(channel.put(item)) for item in range(35)]
    await turns_until(lambda: len(far.batches) == 2)
    for _ in range(100):
        await asyncio.sleep(0)  # Whatever else would begin has its turn.
    under_way = len(far.batches)
    far.hold.set()

    assert await asyncio.gather(*waiting) == [f"answer {item}" for item in range(35)]
    assert under_way == 2
    assert max(map(len, far.batches)) == 10


async def test_who_asks_again_as_both_batches_come_back_is_not_forgotten() -> None:
    far = Far()
    far.hold.clear()
    channel = Channel(far.send, 1)

    async def asks_again() -> list[str]:
        return [await channel.put(1), await channel.put(2)]

    waiting = [asyncio.create_task(asks_again()), asyncio.create_task(channel.put(3))]
    await turns_until(lambda: len(far.batches) == 2)
    far.hold.set()
    await turns_until(lambda: all(one.done() for one in waiting))

    assert [one.result() for one in waiting] == [["answer 1", "answer 2"], "answer 3"]


@pytest.mark.parametrize(
    ("failure", "kind"), [(Unreachable("gone"), Unreachable), (DecodeError("nonsense"), PeerError)]
)
async def test_a_batch_that_fails_fails_for_each_of_its_devices_and_the_next_one_travels(
    failure: Exception, kind: type[Exception]
) -> None:
    far = Far(failure)
    channel = Channel(far.send, 100)

    errors = await asyncio.gather(*(channel.put(item) for item in range(5)), return_exceptions=True)
    far.failure = None

    assert all(isinstance(error, kind) for error in errors)
    assert len({id(error) for error in errors}) == 5
    assert await channel.put(7) == "answer 7"


async def test_a_device_that_is_switched_off_while_it_waits_sends_nothing() -> None:
    far = Far()
    channel = Channel(far.send, 100)
    with told_time() as told:
        gone = asyncio.create_task(channel.put(1))
        stays = asyncio.create_task(channel.put(2))
        for _ in range(5):
            await asyncio.sleep(0)
        gone.cancel()
        told.passes(1.0)  # Whoever gathers sends what is there.

        assert await stays == "answer 2"
    assert far.batches == [[2]]


@pytest.mark.parametrize(
    ("left_s", "gathered_s"), [((4.0, 90.0), 0.1), ((60.0, 90.0), 0.2), ((-1.0, 2.0), 0.05), ((-9.0, -1.0), 0.0)]
)
async def test_a_batch_waits_for_a_small_part_of_what_is_left_of_its_round(
    left_s: tuple[float, float], gathered_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, sent = 1_000_000.0, list[int]()
    monkeypatch.setattr(time, "time", lambda: now)
    window = SimpleNamespace(window_id=b"w", round_one_closes=now + left_s[0], round_two_closes=now + left_s[1])
    instalment = SimpleNamespace(public_share=b"", ciphertext=bytes(100))

    class Inner:
        async def upload(self, window: Any, position: int, instalments: Sequence[Any]) -> tuple[Any, ...]:
            sent.append(len(instalments))
            return tuple(instalments)

    shared = SharedTransport(Inner())  # type: ignore[arg-type]
    with told_time() as told:
        waiting = [asyncio.create_task(shared.upload(window, 0, [instalment])) for _ in range(2)]  # type: ignore[arg-type, list-item]
        for share in (0.9, 0.2, 0.0):
            for _ in range(20):
                await asyncio.sleep(0)
            assert sent == ([2] if not gathered_s or share == 0.0 else [])
            told.passes(share * gathered_s)
        await asyncio.gather(*waiting)


async def test_closing_tells_everybody_who_waits() -> None:
    far = Far()
    far.hold.clear()
    channel = Channel(far.send, 1)
    waiting: list[asyncio.Task[Any]] = [asyncio.create_task(channel.put(item)) for item in range(4)]
    await turns_until(lambda: len(far.batches) == 2)

    await channel.close()
    errors = await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(error) for error in errors] == [Unreachable] * 4


async def test_devices_that_ask_in_the_same_moment_what_is_on_offer_share_one_answer() -> None:
    class Inner:
        calls = 0

        async def list_questions(self) -> tuple[Any, ...]:
            self.calls += 1
            return (f"answer {self.calls}",)

        async def close(self) -> None:
            return

    inner = Inner()
    shared = SharedTransport(inner)  # type: ignore[arg-type] # lists alone

    first: list[Any] = await asyncio.gather(*(shared.list_questions() for _ in range(50)))
    later: Any = await shared.list_questions()
    await shared.disconnect()

    assert set(first) == {("answer 1",)}
    assert later == ("answer 2",)

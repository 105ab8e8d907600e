"""One process coordinates at a time; who is overtaken or fails ends, and stands again."""

import asyncio
from dataclasses import dataclass, field

import pytest
from fleetcount_aggregator.roles.election import Election
from fleetcount_aggregator.storage.errors import FencedError
from structlog.testing import capture_logs


@dataclass
class Lock:
    """The lock of who leads, and the newest epoch."""

    holder: "Engine | None" = None
    epoch: int = 0


@dataclass
class Engine:
    """One process's engine, elected whenever nobody leads."""

    lock: Lock
    epoch: int | None = None
    stood: int = 0

    def take_lead(self) -> bool:
        self.stood += 1
        if self.lock.holder is not None:
            return False
        self.lock.holder, self.lock.epoch = self, self.lock.epoch + 1
        self.epoch = self.lock.epoch
        return True

    def release_lead(self) -> None:
        self.epoch = None
        if self.lock.holder is self:
            self.lock.holder = None


@dataclass
class Work:
    """What a coordinator does: it says so, until it is told to fail or is cancelled."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    fail: asyncio.Event = field(default_factory=asyncio.Event)

    async def coordinate(self) -> None:
        self.begun.set()
        try:
            await self.fail.wait()
            self.fail.clear()
            raise FencedError("somebody else writes")
        finally:
            self.ended.set()


async def until(event: asyncio.Event) -> None:
    async with asyncio.timeout(30):
        await event.wait()


async def test_who_is_overtaken_or_fails_ends_and_says_why_and_another_takes_over_when_it_stops() -> None:
    lock = Lock()
    first, second = Engine(lock), Engine(lock)
    works = Work(), Work()
    with capture_logs() as logs:
        running = [
            asyncio.create_task(Election(one, work.coordinate).run())
            for one, work in zip((first, second), works, strict=True)
        ]
        await until(works[0].begun)
        assert not works[1].begun.is_set()
        first.epoch = None  # The thread that writes has found another session with its lock.
        await until(works[0].ended)
        works[0].begun.clear()
        async with asyncio.timeout(30):
            while not (works[0].begun.is_set() or works[1].begun.is_set()):
                await asyncio.sleep(0.01)
        at = int(lock.holder is second)
        works[at].ended.clear()
        works[at].fail.set()
        await until(works[at].ended)
        async with asyncio.timeout(30):
            while sum(one["event"] == "coordinator_ended" for one in logs) < 2:
                await asyncio.sleep(0.01)
        for task in running:
            task.cancel()
        await asyncio.wait(running)

    ended = [(one["epoch"], one["reason"]) for one in logs if one["event"] == "coordinator_ended"]
    assert ended[:2] == [(1, "another process leads"), (2, "somebody else writes")]
    assert lock.holder is None


async def test_a_coordinator_whose_work_fails_at_once_stands_ever_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails() -> None:
        raise FencedError("the same as before")

    engine, pauses, real = Engine(Lock()), list[float](), asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    monkeypatch.setattr("fleetcount_aggregator.roles.election.asyncio.sleep", sleep)
    election = asyncio.create_task(Election(engine, fails).run())
    while engine.stood < 14:
        await real(0.001)
    election.cancel()
    await asyncio.wait([election])

    waited = [one for one in pauses if one > 0.2]  # Who watches the coordinator looks as often.
    assert waited == sorted(waited)
    assert waited[:3] == [0.4, 0.8, 1.6]
    assert waited[-1] == 60.0

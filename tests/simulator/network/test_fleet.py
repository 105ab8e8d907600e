"""The devices of a process: they wait at the gate, and their coins are the system's unless a seed is given."""

import asyncio
import gc
import time
import weakref
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.question.fields import Schedule
from fleetcount_simulator.network.connections import GatedTransport
from fleetcount_simulator.network.fleet_devices import collect_between_windows
from fleetcount_simulator.network.simulated_device import coins_of


class Slow:
    """A transport that counts how many are inside."""

    def __init__(self, inside: list[int]) -> None:
        self._inside = inside

    async def list_questions(self) -> tuple[Any, ...]:
        self._inside[0] += 1
        self._inside[1] = max(self._inside[1], self._inside[0])
        await asyncio.sleep(0)
        self._inside[0] -= 1
        return ()

    async def open_sessions(self, aggregator: Any, requests: Sequence[Any]) -> tuple[Any, ...]:
        return ()

    async def upload(self, window: Any, position: int, instalments: Sequence[Any]) -> tuple[Any, ...]:
        return ()

    async def release(self, window: Any) -> Any:
        raise AssertionError(window)

    async def close(self) -> None:
        await asyncio.sleep(0)


ALPHA: Any = SimpleNamespace(aggregator_id="alpha")


async def test_no_more_vehicles_are_connected_at_once_than_the_gate_lets_in() -> None:
    inside = [0, 0]
    gate = asyncio.Semaphore(3)

    async def vehicle() -> None:
        transport = GatedTransport(Slow(inside), gate)
        await asyncio.gather(transport.list_questions(), transport.open_sessions(ALPHA, []))
        await transport.close()
        await transport.close()

    async with asyncio.timeout(60):
        await asyncio.gather(*(vehicle() for _ in range(20)))

    assert inside == [0, 3]
    assert gate._value == 3  # Every place was given back, once.


def test_coins_are_the_systems_unless_a_seed_is_given_and_then_a_stream_a_vehicle() -> None:
    draws = {(seed, number): coins_of(seed, number).random_bytes(32) for seed in (7, 8) for number in (0, 1)}

    assert isinstance(coins_of(None, 0), SystemRandom)
    assert len(set(draws.values())) == len(draws)
    assert coins_of(7, 0).random_bytes(32) == draws[7, 0]


async def test_a_fleet_of_many_windows_keeps_no_garbage_of_ended_ones() -> None:
    class Ring:
        def __init__(self) -> None:
            self.itself = self

    now = int(time.time())
    schedule = Schedule(first=now - 60, every_s=3_600, windows=2, round_one_s=20, round_two_s=20, expiry_s=60)
    gc.disable()
    try:
        ring = weakref.ref(Ring())
        assert ring() is not None
        async with asyncio.timeout(60):  # The last window's close, an hour away, is not waited for.
            await collect_between_windows(schedule)
        assert ring() is None
    finally:
        gc.enable()

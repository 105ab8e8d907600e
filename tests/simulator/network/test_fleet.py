"""The fleet process: its specification survives the file, vehicles wait at the gate, coins are the system's."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.task.task import SignedTask
from fleetcount_simulator.network.fleet import GatedTransport, Tally, coins_of
from fleetcount_simulator.network.fleet_spec import FleetSpec, TrustedParty


def test_what_a_fleet_is_told_survives_its_file(tmp_path: Path) -> None:
    spec = FleetSpec(
        name="grpc",
        transport="grpc",
        deployment="demo",
        task_name="t",
        signal="Vehicle.Speed",
        aggregators=(TrustedParty(aggregator_id="a", operator="A", signing_public_key=bytes(32), grpc_endpoint="h:1"),),
        broker="",
        aggregator_ca_file="a",
        device_ca_file="d",
        device_ca_key_file="k",
        spool_file="s",
        policy={"largest_epsilon": "1"},
        at_once=3,
        coin_seed=None,
        readings=((1.5, -2.0), None, "red", 3.25),
    )
    (tmp_path / "spec.json").write_text(spec.encode())

    assert FleetSpec.read(tmp_path / "spec.json") == spec
    assert "red" not in repr(spec)


class Slow:
    """A transport that counts how many are inside."""

    def __init__(self, inside: list[int]) -> None:
        self._inside = inside

    async def list_tasks(self) -> tuple[SignedTask, ...]:
        self._inside[0] += 1
        self._inside[1] = max(self._inside[1], self._inside[0])
        await asyncio.sleep(0)
        self._inside[0] -= 1
        return ()

    async def open_sessions(self, aggregator: Any, requests: Sequence[Any]) -> tuple[Any, ...]:
        return ()

    async def upload(self, task: Any, position: int, instalments: Sequence[Any]) -> tuple[Any, ...]:
        return ()

    async def close(self) -> None:
        await asyncio.sleep(0)


async def test_no_more_vehicles_are_connected_at_once_than_the_gate_lets_in() -> None:
    inside = [0, 0]
    gate, tally = asyncio.Semaphore(3), Tally(receipts=Counter())

    async def vehicle() -> None:
        transport = GatedTransport(Slow(inside), gate, tally)
        await asyncio.gather(transport.list_tasks(), transport.open_sessions(None, []))  # type: ignore[arg-type] # unused
        await transport.close()
        await transport.close()

    async with asyncio.timeout(10):
        await asyncio.gather(*(vehicle() for _ in range(20)))

    assert inside == [0, 3]
    assert gate._value == 3  # Every place was given back, once.


def test_coins_are_the_systems_unless_a_seed_is_given_and_then_a_stream_a_vehicle() -> None:
    draws = {
        (seed, fleet, number): coins_of(seed, fleet, number).random_bytes(32)
        for seed in (7, 8)
        for fleet in ("grpc", "mqtt")
        for number in (0, 1)
    }

    assert isinstance(coins_of(None, "grpc", 0), SystemRandom)
    assert len(set(draws.values())) == len(draws)
    assert coins_of(7, "grpc", 0).random_bytes(32) == draws[7, "grpc", 0]

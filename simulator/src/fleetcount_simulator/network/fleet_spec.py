"""What a fleet process is told: the file between the demo and `python -m fleetcount_simulator.network.fleet`.

Holds truths, which are known only because it is a simulation; the file is private to the run.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.task.domain import Signal
from fleetcount_protocol.task.signing import TrustedAggregator

__all__ = ["FleetSpec", "TrustedParty", "party_from_json", "party_to_json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedParty:
    """One aggregator a vehicle trusts."""

    aggregator_id: str
    operator: str
    signing_public_key: bytes
    grpc_endpoint: str

    def trusted(self) -> TrustedAggregator:
        """Return it as a device's trust store takes it."""
        return TrustedAggregator(
            aggregator_id=AggregatorId(self.aggregator_id),
            operator=self.operator,
            signing_public_key=self.signing_public_key,
        )


def party_to_json(party: TrustedParty) -> dict[str, str]:
    """Return a party as JSON takes it."""
    return {**asdict(party), "signing_public_key": base64.b64encode(party.signing_public_key).decode()}


def party_from_json(content: Mapping[str, str]) -> TrustedParty:
    """Return the party `party_to_json` wrote."""
    return TrustedParty(
        aggregator_id=content["aggregator_id"],
        operator=content["operator"],
        signing_public_key=base64.b64decode(content["signing_public_key"]),
        grpc_endpoint=content["grpc_endpoint"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """A fleet of real device clients in one process.

    `readings[i]` is what vehicle i's signal reads. `coin_seed` is None for the operating system's coins; a number makes
    every coin, secret and share predictable and protects nobody. `at_once` bounds how many vehicles are connected.
    """

    name: str
    transport: str
    deployment: str
    task_name: str
    signal: str
    aggregators: tuple[TrustedParty, ...]
    broker: str
    aggregator_ca_file: str
    device_ca_file: str
    device_ca_key_file: str
    spool_file: str
    policy: dict[str, str]
    at_once: int
    coin_seed: int | None
    readings: tuple[Signal, ...] = field(repr=False)

    def encode(self) -> str:
        """Return the JSON text of the file."""
        content = asdict(self)
        content["aggregators"] = [party_to_json(party) for party in self.aggregators]
        return json.dumps(content)

    @classmethod
    def read(cls, path: Path) -> "FleetSpec":
        """Return what a file written by `encode` says; it comes from our own parent and is not checked further."""
        content = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
        parties = tuple(map(party_from_json, content.pop("aggregators")))
        # A position is a tuple for the domain, and a list in JSON.
        readings = tuple(tuple(one) if isinstance(one, list) else one for one in content.pop("readings"))
        return cls(**content, aggregators=parties, readings=cast("tuple[Signal, ...]", readings))

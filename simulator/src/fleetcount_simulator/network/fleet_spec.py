"""What a fleet process is told: the private file between the runner and `python -m fleetcount_simulator.network.fleet`.

Holds truths and the seed of coins, which are known only because it is a simulation.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.task.domain import Signal
from fleetcount_protocol.task.task import Aggregator, HpkeKey

__all__ = ["OWN", "SHARED", "FleetSpec", "SeriesPart", "write_private"]

OWN: Final = "own"
SHARED: Final = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPart:
    """What devices do in a series: by window and device `readings` and `faults`, as `FleetSpec` has them for one task.

    By device: `came`, the window before which it joins, and `gone`, that before which it leaves. Each asks for news of
    the series every `news_s` seconds.
    """

    readings: Sequence[Sequence[Signal]] = field(repr=False)
    faults: Sequence[Sequence[int]] = field(repr=False)
    came: Sequence[int] = field(repr=False)
    gone: Sequence[int] = field(repr=False)
    news_s: float

    def of(self, chosen: slice) -> "SeriesPart":
        """Return the part of some of the devices."""
        return SeriesPart(
            readings=[row[chosen] for row in self.readings],
            faults=[row[chosen] for row in self.faults],
            came=self.came[chosen],
            gone=self.gone[chosen],
            news_s=self.news_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """The devices of one fleet process.

    `connections` is "own" (every device its own, `at_once` devices connected at a time) or "shared" (all devices of
    the process over one). Device i of the process has the number `numbers[i]` in the population, reads `readings[i]`
    when it is asked for `signal`, meets the faults `device_faults[i]` (`device_faults.DeviceFault`), and its clock is
    fast by `skews[i]` windows (negative: slow). `spread` is the part of a window in which devices send first,
    `limits` what their owners allow (fields of `OwnerPolicy`), both as fractions in text. `coin_seed` decides every
    coin, secret and share and gives no privacy; None leaves them to the operating system. With `series` the devices
    answer the series of the name `task_name` instead. With `telling` the process says which devices of a task hold
    their receipts, as they come.
    """

    name: str
    transport: str
    connections: str
    at_once: int
    deployment: str
    task_name: str
    signal: str
    aggregators: tuple[Aggregator, ...]
    broker: str
    authorities: str
    """The folder with the certificates of both enrolment authorities, and the devices' private key."""
    spool_file: str
    report_file: str
    limits: Mapping[str, str]
    call_timeout_s: float
    spread: str
    reorder: bool
    coin_seed: int | None = field(repr=False)
    numbers: Sequence[int] = field(repr=False)
    readings: Sequence[Signal] = field(repr=False)
    device_faults: Sequence[int] = field(repr=False)
    skews: Sequence[float] = field(repr=False)
    series: SeriesPart | None = None
    telling: bool = False

    def encode(self) -> str:
        """Return the JSON text of the file."""
        return json.dumps(asdict(self), default=lambda value: base64.b64encode(value).decode())

    @classmethod
    def read(cls, path: Path) -> "FleetSpec":
        """Return what a file written by `encode` says; its writer is the parent process, so values are not checked."""
        content = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
        aggregators = tuple(map(_aggregator, content.pop("aggregators")))
        readings = _readings(content.pop("readings"))
        part: dict[str, Any] | None = content.pop("series")
        if part is not None:
            part["readings"] = [_readings(row) for row in part["readings"]]
        series = None if part is None else SeriesPart(**part)
        return cls(**content, aggregators=aggregators, readings=readings, series=series)


def _readings(content: Sequence[Any]) -> list[Signal]:
    # A position is a tuple for the domain, and a list in JSON.
    return cast("list[Signal]", [tuple(one) if isinstance(one, list) else one for one in content])


def _aggregator(content: Mapping[str, Any]) -> Aggregator:
    keys = tuple(
        HpkeKey(key_id=one["key_id"], public_key=base64.b64decode(one["public_key"])) for one in content["hpke_keys"]
    )
    return Aggregator(
        aggregator_id=AggregatorId(content["aggregator_id"]),
        operator=content["operator"],
        grpc_endpoint=content["grpc_endpoint"],
        mqtt_broker=content["mqtt_broker"],
        hpke_keys=keys,
        signing_public_key=base64.b64decode(content["signing_public_key"]),
    )


def write_private(path: Path, content: bytes) -> None:
    """Write a file of mode 0600 under a temporary name, then give it its own."""
    temporary = path.with_name(f".{path.name}.part")
    temporary.touch(mode=0o600)
    temporary.write_bytes(content)
    temporary.replace(path)

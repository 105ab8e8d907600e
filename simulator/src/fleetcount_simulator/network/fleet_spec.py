"""The specification of a fleet process: the private file that `python -m fleetcount_simulator.network.fleet` reads.

It has truths and the seed of coins, which only a simulation knows.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from fleetcount_client.signals import Said
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.window.fields import Aggregator, HpkeKey

OWN: Final = "own"
SHARED: Final = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPart:
    """The devices of a process in the windows of a question.

    By window and device: `readings`, the value of each signal, and `faults` (`device_faults.DeviceFault`). By device:
    `came`, the first window in which it takes part, `gone`, the first after it has left, and `skews`, by how many
    windows its clock is fast (negative: slow). A process asks for new orders of the question every `news_s` seconds.
    """

    readings: Sequence[Sequence[Sequence[Said]]] = field(repr=False)
    faults: Sequence[Sequence[int]] = field(repr=False)
    came: Sequence[int] = field(repr=False)
    gone: Sequence[int] = field(repr=False)
    skews: Sequence[float] = field(repr=False)
    news_s: float

    def of(self, chosen: slice) -> "FleetPart":
        """Return the part of some of the devices."""
        return FleetPart(
            readings=[row[chosen] for row in self.readings],
            faults=[row[chosen] for row in self.faults],
            came=self.came[chosen],
            gone=self.gone[chosen],
            skews=self.skews[chosen],
            news_s=self.news_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """The devices of one fleet process.

    `connections` is "own" (every device its own, `at_once` devices connected at a time) or "shared" (all devices of
    the process over one). The devices answer the question of the name `question_name`, which asks for `signals`; device
    i of the process has the number `numbers[i]` in the population. `spread` is the part of a window in which devices
    send first, `limits` the limits of their owners (fields of `OwnerPolicy`), both as fractions in text. `coin_seed`
    decides every coin, secret and share and gives no privacy; None leaves them to the operating system. With `telling`
    the process reports which devices have their receipts of the first window, as these arrive.
    """

    name: str
    transport: str
    connections: str
    at_once: int
    deployment: str
    question_name: str
    signals: tuple[str, ...]
    aggregators: tuple[Aggregator, ...]
    broker: str
    relay: str
    """ "host:port" of the relay that calls go through, "" where they go to the aggregators."""
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
    part: FleetPart
    telling: bool = False

    def encode(self) -> str:
        """Return the JSON text of the file."""
        return json.dumps(asdict(self), default=_written)

    @classmethod
    def read(cls, path: Path) -> "FleetSpec":
        """Return the specification of a file by `encode`; values are not checked, because the parent wrote them."""
        content = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
        aggregators = tuple(map(_aggregator, content.pop("aggregators")))
        signals, part = tuple(content.pop("signals")), content.pop("part")
        part["readings"] = [[_readings(one) for one in row] for row in part["readings"]]
        return cls(**content, signals=signals, aggregators=aggregators, part=FleetPart(**part))


def _written(value: bytes | frozenset[str]) -> str | dict[str, list[str]]:
    return {"set": sorted(value)} if isinstance(value, frozenset) else base64.b64encode(value).decode()


def _readings(content: Sequence[Any]) -> tuple[Said, ...]:
    return cast("tuple[Said, ...]", tuple(map(_reading, content)))


def _reading(content: Any) -> Any:
    # The domain expects a position as a tuple, which JSON turns into a list, and knows no object.
    if isinstance(content, dict):
        return frozenset(cast("Mapping[str, list[str]]", content)["set"])
    return tuple(cast("list[float]", content)) if isinstance(content, list) else content


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
    """Write a file of mode 0600 under a temporary name, then rename it, so that a reader never sees a part of it."""
    temporary = path.with_name(f".{path.name}.part")
    temporary.touch(mode=0o600)
    temporary.write_bytes(content)
    temporary.replace(path)

"""What a client process of a network run is told, and what it reports: the two private files between it and the engine.

Hold truths, coins' seeds and report ids, which are known only because it is a simulation.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from fleetcount_protocol.ids import Digest, ReportId
from numpy.typing import NDArray

from fleetcount_simulator.model import Integers
from fleetcount_simulator.network.fleet_spec import TrustedParty, party_from_json, party_to_json

__all__ = ["ClientsReport", "ClientsSpec", "write_private"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientsSpec:
    """The devices of one client process.

    Device i of the process has the number `numbers[i]` in the population, the truth `truths[i]`, the fate `fates[i]`
    (`fates.Fate`) and a clock that is fast by `skews[i]` windows (negative: slow). `spread` is the part of a
    window in which devices send first, as a fraction in text. `coin_seed` decides every coin, secret and share.
    """

    name: str
    transport: str
    deployment: str
    task_name: str
    aggregators: tuple[TrustedParty, ...]
    broker: str
    aggregator_ca_file: str
    device_ca_file: str
    device_ca_key_file: str
    spool_file: str
    report_file: str
    call_timeout_s: float
    spread: str
    reorder: bool
    coin_seed: int = field(repr=False)
    numbers: Sequence[int] = field(repr=False)
    truths: Sequence[int] = field(repr=False)
    fates: Sequence[int] = field(repr=False)
    skews: Sequence[float] = field(repr=False)

    def encode(self) -> str:
        """Return the JSON text of the file."""
        content = asdict(self)
        content["aggregators"] = [party_to_json(party) for party in self.aggregators]
        return json.dumps(content)

    @classmethod
    def read(cls, path: Path) -> "ClientsSpec":
        """Return what a file written by `encode` says; it comes from our own parent and is not checked further."""
        content = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
        parties = tuple(map(party_from_json, content.pop("aggregators")))
        return cls(**content, aggregators=parties)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClientsReport:
    """What became of the devices of one process.

    Per device: `numbers` (n,) int64, `outcomes` (n,) uint8 (place in `OUTCOMES`), `flags` (n,) uint8 of the constants
    below. Per report that any device ever named: `owners` (r,) int64 (device number), `report_ids` (r, 16),
    `share_digests` (r, 32) and `complete` (r,) bool: whether every aggregator receipted every round.
    """

    numbers: Integers
    outcomes: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    owners: Integers
    report_ids: NDArray[np.uint8] = field(repr=False)
    share_digests: NDArray[np.uint8] = field(repr=False)
    complete: NDArray[np.bool_]

    FIRST = 1
    """`flags`: round one (or the whole report) is receipted by every aggregator."""
    LATE = 2
    """`flags`: a message came after its window."""
    RESENT = 4
    """`flags`: some bytes were sent more than once."""
    UNCERTAIN = 8
    """`flags`: a message is without an answer, and all others have their receipts: the report may count."""

    def write(self, path: Path) -> None:
        """Write the report to a private file, whole or not at all."""
        content = io.BytesIO()
        np.savez(content, **{name: getattr(self, name) for name in self.__dataclass_fields__})
        write_private(path, content.getvalue())

    @classmethod
    def read(cls, path: Path) -> "ClientsReport":
        """Return the report of a file."""
        with np.load(path, allow_pickle=False) as content:
            return cls(**{name: content[name] for name in content.files})

    def items(self) -> list[tuple[ReportId, Digest]]:
        """Return the complete reports, as the set digest takes them."""
        chosen = np.flatnonzero(self.complete)
        return [(ReportId(self.report_ids[row].tobytes()), Digest(self.share_digests[row].tobytes())) for row in chosen]


def write_private(path: Path, content: bytes) -> None:
    """Write a file of mode 0600 under a temporary name, then give it its own."""
    temporary = path.with_name(f".{path.name}.part")
    temporary.touch(mode=0o600)
    temporary.write_bytes(content)
    temporary.replace(path)

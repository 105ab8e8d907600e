"""The fate of the devices of one fleet process: the private file between it and the runner.

It has report ids by device number, which only a simulation knows.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from fleetcount_client.contact import OutcomeKind
from fleetcount_protocol.ids import Digest, ReportId
from fleetcount_protocol.window.window import Window
from numpy.typing import NDArray

from fleetcount_simulator.model import Integers
from fleetcount_simulator.network.faulty_transport import Trace, rounds_of
from fleetcount_simulator.network.fleet_spec import write_private

OUTCOMES: Final = (*(kind.value for kind in OutcomeKind), "absent")
"""How an answer ended: an outcome of the client, or "absent" for a device that was off or not in the question."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetReport:
    """The fate of the devices of one process in one window.

    Per device: `numbers` (n,) int64, `outcomes` (n,) uint8 (place in `OUTCOMES`), `flags` (n,) uint8 of the constants
    below. Per report id that any device ever used: `owners` (r,) int64 (device number), `report_ids` (r, 16),
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
    """`flags`: a message arrived after its window."""
    RESENT = 4
    """`flags`: some bytes were sent more than once."""
    UNCERTAIN = 8
    """`flags`: a message has no answer, and all others have their receipts: the report may be counted."""

    def write(self, path: Path) -> None:
        """Write the report to a private file, whole or not at all."""
        content = io.BytesIO()
        np.savez(content, **{name: getattr(self, name) for name in self.__dataclass_fields__})
        write_private(path, content.getvalue())

    @classmethod
    def read(cls, path: Path) -> "FleetReport":
        """Return the report of a file."""
        with np.load(path, allow_pickle=False) as content:
            return cls(**{name: content[name] for name in content.files})

    def items(self) -> list[tuple[ReportId, Digest]]:
        """Return the complete reports: the input of the set digest."""
        chosen = np.flatnonzero(self.complete)
        return [(ReportId(self.report_ids[row].tobytes()), Digest(self.share_digests[row].tobytes())) for row in chosen]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AskedOf:
    """A window and the devices of a process: for each its number, its outcome and its trace."""

    window: Window
    devices: Sequence[tuple[int, str, Trace]] = field(repr=False)
    file: Path
    """The file of its report."""


def window_file(file: Path, index: int) -> Path:
    """Return the path of the report of a window, beside `file`, the report file of the process."""
    return file.with_stem(f"{file.stem}-window-{index:05d}")


def report_of(devices: Sequence[tuple[int, str, Trace]], window: Window) -> FleetReport:
    """Return the report on devices in a window; `devices` has for each its number, its outcome and its trace."""
    places = _places(window)
    named = [
        (number, trace, report_id, digest)
        for number, _, trace in devices
        for report_id, digest in trace.reports.items()
        if digest is not None
    ]
    return FleetReport(
        numbers=np.array([number for number, _, _ in devices], dtype=np.int64),
        outcomes=np.array([OUTCOMES.index(outcome) for _, outcome, _ in devices], dtype=np.uint8),
        flags=np.array([_flags(trace, window) for _, _, trace in devices], dtype=np.uint8),
        owners=np.array([number for number, _, _, _ in named], dtype=np.int64),
        report_ids=_bytes([report_id for _, _, report_id, _ in named], 16),
        share_digests=_bytes([digest for _, _, _, digest in named], 32),
        complete=np.array([places <= trace.receipted for _, trace, _, _ in named], dtype=np.bool_),
    )


def uncertain(trace: Trace, window: Window) -> bool:
    """Return whether a message has no answer and all others have their receipts: the report may be counted."""
    missing = _places(window) - trace.receipted
    return bool(missing) and missing <= trace.pending.keys()


def _places(window: Window) -> set[tuple[int, int]]:
    """Return the round and position of every message of one report."""
    return {(number, position) for number in rounds_of(window) for position in range(len(window.aggregators))}


def _flags(trace: Trace, window: Window) -> int:
    first = all(place in trace.receipted for place in _places(window) if place[0] == rounds_of(window)[0])
    return (
        FleetReport.FIRST * first
        | FleetReport.LATE * trace.late
        | FleetReport.RESENT * trace.resent
        | FleetReport.UNCERTAIN * uncertain(trace, window)
    )


def _bytes(values: Sequence[bytes], size: int) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    return np.frombuffer(b"".join(values), dtype=np.uint8).reshape(len(values), size)

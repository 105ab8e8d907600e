"""What another process does in the place of one that ended: coordinators, workers, an intake with a million reports.

Then a window of which one intake took a million reports and died: the first receipt of another, and joining the lanes.

Two processes' parts over one PostgreSQL server of its own, in this process. Reports have two instalments each, in
frames of as many rows as one write had; ids are made. Counts what is known afterwards, decides nothing.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import numpy as np
from failover import time_failover
from fleetcount_aggregator.storage.instalment_run import InstalmentRun, StoreOutcome
from fleetcount_aggregator.storage.log_format import NewFrame
from fleetcount_aggregator.storage.row_types import WindowChange, WindowRow
from fleetcount_aggregator.storage.rows import read_rejections
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.messages import WindowState
from rows import Row, quick, report, smoke

from tests.support.postgres import find_postgres, own_cluster
from tests.support.replica_stores import ReplicaStore, replica_store

TRIALS: Final = 5
"""Of each way in which a process ends."""
LIMIT_S: Final = 5.0
REPORTS: Final = 2**20
ROUNDS: Final = (1, 2)
GROUPS: Final = (2_048, 64, 8)
"""Instalments of one write: many devices at once, a busy hour, devices that come one after the other."""
SMALLEST: Final = 64
"""Below it nothing is demanded: a frame costs its two checks however few rows it has."""
PART_BYTES: Final = 32
PUBLIC_SHARE: Final = 64
FRAMES_AT_ONCE: Final = 256
"""Frames that one statement stores while the lane is filled; each has the rows of a group all the same."""
KNOWN: Final = 4_096
"""Instalments that are sent again to the other intake, and count once."""
RECEIPT_S: Final = 0.1


@dataclass(frozen=True)
class Taken:
    """Seconds to the first receipt and of closing, CPU seconds of this process then, bytes of the index a report."""

    receipt_s: float
    wall_s: float
    cpu_s: float
    bytes_a_report: float


def instalments(window_id: WindowId, ids: bytes, certificates: bytes, round_number: int) -> InstalmentRun:
    """Return an instalment of each report; its digest is a device's own, changed by the round."""
    count = len(ids) // 16
    digests = (np.frombuffer(certificates, dtype=np.uint8) ^ round_number).tobytes()
    return InstalmentRun(
        window_id=window_id,
        round=round_number,
        expected=len(ROUNDS),
        report_ids=ids,
        certificates=certificates,
        digests=digests,
        public_shares=bytes(PUBLIC_SHARE * count),
        parts=bytes(PART_BYTES * count),
    )


async def open_window(owner: ReplicaStore, window_id: WindowId) -> None:
    """Install a window."""
    owner.lead()
    await asyncio.to_thread(owner.store.data_keys.make, window_id)
    await owner.store.decide_windows(
        (),
        WindowRow(
            window_id=window_id,
            canonical=b"",
            verify_key=b"",
            state=WindowState.COLLECTING,
            abort_reason="",
            installed_at=0,
        ),
    )


def fill(owner: ReplicaStore, runs: Sequence[InstalmentRun], group: int) -> None:
    """Write frames of so many rows, as an intake does, many to a statement."""
    window_id = runs[0].window_id
    key = owner.store.data_keys.of(window_id).log_key
    frames = owner.store.logs.backend.frames(window_id, key)
    at = [np.arange(start, min(start + group, len(runs[0]))) for start in range(0, len(runs[0]), group)]
    pieces = [run.only(places) for run in runs for places in at]
    for first in range(0, len(pieces), FRAMES_AT_ONCE):
        new = [
            NewFrame([piece], sequence=first + number, group=first + number, log_key=key, salt=os.urandom(32))
            for number, piece in enumerate(pieces[first : first + FRAMES_AT_ONCE])
        ]
        frames.append(new, len(ROUNDS))


async def join(url: str, directory: Path, count: int, group: int) -> Taken:
    """Fill a lane, let another intake go on, and close; SystemExit if anything is lost or counted twice."""
    window_id, ids, certificates = WindowId(os.urandom(32)), os.urandom(16 * count), os.urandom(32 * count)
    runs = [instalments(window_id, ids, certificates, number) for number in ROUNDS]
    async with replica_store(url, directory) as one, replica_store(url, directory) as other:
        await open_window(one, window_id)
        await asyncio.to_thread(fill, one, runs, group)
        new = [instalments(window_id, ids[:16], certificates[:32], number) for number in ROUNDS]
        wall = time.perf_counter()
        outcomes = await other.store.add_instalments(new)
        receipt_s = time.perf_counter() - wall
        if set(b"".join(outcomes)) != {StoreOutcome.STORED} or other.store.logs.memory_bytes > 2**20:
            raise SystemExit("the other intake has read what it need not")
        places = np.unique(np.linspace(0, count - 1, min(count, KNOWN)).astype(np.int64))
        await other.store.add_instalments([run.only(places) for run in runs])
        closing = WindowChange(
            window_id=window_id, required=frozenset({WindowState.COLLECTING}), new_state=WindowState.AGREEING
        )
        wall, cpu = time.perf_counter(), time.process_time()
        await one.store.apply(closing)
        taken = Taken(
            receipt_s,
            time.perf_counter() - wall,
            time.process_time() - cpu,
            one.store.logs.memory_bytes / count,
        )
        held = await one.store.complete_reports(window_id)
        if len(held.ids) != count or await one.store.read(read_rejections, window_id):
            raise SystemExit(f"{len(held.ids):,} of {count:,} reports are complete")
    return taken


def main(arguments: Sequence[str] | None = None) -> int:
    """Report receipts and joining for each size of a write."""
    parser = argparse.ArgumentParser(description=__doc__)
    share = 1024 if smoke() else 64 if quick() else 1
    parser.add_argument("--reports", type=int, default=REPORTS // share, help="of the window (default %(default)s)")
    parser.add_argument("--group", type=int, nargs="*", default=GROUPS, help="instalments of one write, each a row")
    options = parser.parse_args(arguments)
    if find_postgres() is None:
        report(Row(path="lanes joined", ours=None, unit="s", note="needs PostgreSQL (scripts/programs)"))
        return 0
    for group in options.group:
        with (
            tempfile.TemporaryDirectory() as directory,
            own_cluster("shared_buffers=128MB", "max_wal_size=1GB") as cluster,
        ):
            taken = asyncio.run(join(cluster.url("postgres"), Path(directory), options.reports, group))
        size = f"lanes of {options.reports:,} reports, {group:,} instalments a write"
        report(
            Row(
                path=f"{size}: the first receipt of another intake",
                ours=taken.receipt_s,
                unit="s",
                peer="the limit",
                peer_value=RECEIPT_S,
                ratio=taken.receipt_s / RECEIPT_S,
                larger_is_better=False,
                note="it reads nothing of what the first has taken",
            )
        )
        report(
            Row(
                path=f"{size}: closed and joined",
                ours=taken.wall_s,
                unit="s",
                peer="the limit",
                peer_value=LIMIT_S,
                ratio=taken.wall_s / LIMIT_S,
                must=1 if group >= SMALLEST else None,
                aim=1,
                larger_is_better=False,
                note=f"{taken.cpu_s:.2f} s of CPU here, {taken.bytes_a_report:.0f} B a report in memory",
            )
        )
    time_failover(1 if quick() or smoke() else TRIALS)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A shard that another process takes over: from the moment its lease is free to the first receipt of the new owner.

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
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import numpy as np
from fleetcount_aggregator.storage.instalment_run import InstalmentRun, StoreOutcome
from fleetcount_aggregator.storage.log_format import NewFrame
from fleetcount_aggregator.storage.row_types import WindowRow
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.messages import WindowState
from rows import Row, quick, report, smoke

from tests.support.postgres import find_postgres, own_cluster
from tests.support.replica_stores import ReplicaStore, replica_store

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
"""Frames that one statement stores while the shard is filled; each has the rows of a group all the same."""
KNOWN: Final = 4_096
"""Instalments that are sent again to the new owner, which must know them."""
LOOK_S: Final = 0.02


@dataclass(frozen=True)
class Taken:
    """Seconds to the first receipt, CPU seconds of this process meanwhile, and bytes of the index a report."""

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
    """Install a window of one shard, which this process takes."""
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
    await owner.keeper.take()


def fill(owner: ReplicaStore, runs: Sequence[InstalmentRun], group: int) -> None:
    """Write frames of so many rows, as the owner does, many to a statement."""
    window_id = runs[0].window_id
    backend, key = owner.store.logs.backend, owner.store.data_keys.of(window_id).log_key
    frames = backend.frames(window_id, key, 0, 1)
    list(frames.columns())
    at = [np.arange(start, min(start + group, len(runs[0]))) for start in range(0, len(runs[0]), group)]
    pieces = [run.only(places) for run in runs for places in at]
    for first in range(0, len(pieces), FRAMES_AT_ONCE):
        new = [
            NewFrame([piece], sequence=first + number, group=first + number, log_key=key, salt=os.urandom(32))
            for number, piece in enumerate(pieces[first : first + FRAMES_AT_ONCE])
        ]
        frames.append(new, len(ROUNDS))


async def first_receipt(follower: ReplicaStore, run: InstalmentRun, looking: asyncio.Task[None]) -> None:
    """Send one instalment until its owner has stored it, as a device does that hears "busy", while somebody looks."""
    while not looking.done():
        [outcomes] = await follower.reports.add_instalments([run])
        if outcomes == bytes((StoreOutcome.STORED,)):
            return
        await asyncio.sleep(LOOK_S)
    raise SystemExit(f"nobody looks for shards any more: {looking}")


async def take_over(url: str, directory: Path, count: int, group: int) -> Taken:
    """Fill a shard, let its owner run out, and see when the other gives a receipt; SystemExit if anything is lost."""
    window_id, ids, certificates = WindowId(os.urandom(32)), os.urandom(16 * count), os.urandom(32 * count)
    runs = [instalments(window_id, ids, certificates, number) for number in ROUNDS]
    async with replica_store(url, directory, shards=1) as owner, AsyncExitStack() as stack:
        await open_window(owner, window_id)
        await asyncio.to_thread(fill, owner, runs, group)
        # Only now, however long that took: neither renews its lease here.
        follower = await stack.enter_async_context(replica_store(url, directory, shards=1))
        looking = asyncio.create_task(follower.keeper.run())
        await asyncio.sleep(0)
        new = instalments(window_id, os.urandom(16), os.urandom(32), 1)
        try:
            await owner.run_out()
            wall, cpu = time.perf_counter(), time.process_time()
            await first_receipt(follower, new, looking)
            taken = Taken(
                time.perf_counter() - wall,
                time.process_time() - cpu,
                follower.store.logs.memory_bytes / count,
            )
            await check(follower, runs, count)
        finally:
            looking.cancel()
            await asyncio.wait([looking])
    return taken


async def check(follower: ReplicaStore, runs: Sequence[InstalmentRun], count: int) -> None:
    """See that the new owner knows every report once: no instalment is stored twice, none is missing."""
    places = np.unique(np.linspace(0, count - 1, min(count, KNOWN)).astype(np.int64))
    again = await follower.reports.add_instalments([run.only(places) for run in runs])
    held = await follower.store.complete_reports(runs[0].window_id)
    if set(b"".join(again)) != {StoreOutcome.SAME} or len(held.ids) != count:
        raise SystemExit(f"{len(held.ids):,} of {count:,} reports are complete, sent again {set(b''.join(again))}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Report a take-over for each size of a write."""
    parser = argparse.ArgumentParser(description=__doc__)
    share = 1024 if smoke() else 64 if quick() else 1
    parser.add_argument("--reports", type=int, default=REPORTS // share, help="of the shard (default %(default)s)")
    parser.add_argument("--group", type=int, nargs="*", default=GROUPS, help="instalments of one write, each a row")
    options = parser.parse_args(arguments)
    if find_postgres() is None:
        report(Row(path="a shard taken over", ours=None, unit="s", note="needs PostgreSQL (scripts/programs)"))
        return 0
    for group in options.group:
        with (
            tempfile.TemporaryDirectory() as directory,
            own_cluster("shared_buffers=128MB", "max_wal_size=1GB") as cluster,
        ):
            taken = asyncio.run(take_over(cluster.url("postgres"), Path(directory), options.reports, group))
        report(
            Row(
                path=f"a shard of {options.reports:,} reports taken over, {group:,} instalments a write",
                ours=taken.wall_s,
                unit="s",
                peer="the limit",
                peer_value=LIMIT_S,
                ratio=taken.wall_s / LIMIT_S,
                must=1 if group >= SMALLEST else None,
                aim=1,
                larger_is_better=False,
                note=f"from the lease being free to a receipt; {taken.cpu_s:.2f} s of CPU here,"
                f" {taken.bytes_a_report:.0f} B a report in memory",
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

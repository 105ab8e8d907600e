"""The durable store beside the disk it stands on, and agreement on a set beside Python sets.

The disk: the same bytes appended to a plain file with a sync a batch, which is what a promise a batch costs; and, where
many batches wait at once, with as few syncs as the store made of them. Decides nothing.
"""

import argparse
import asyncio
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from unittest import mock

import numpy as np
from fleetcount_aggregator.agreement.report_set import BatchVerdicts, OwnSet
from fleetcount_aggregator.storage import data_keys
from fleetcount_aggregator.storage.database import RowSeal
from fleetcount_aggregator.storage.file_frames import FileFrames
from fleetcount_aggregator.storage.instalment_run import InstalmentRun, StoreOutcome
from fleetcount_aggregator.storage.report_ids import ReportIds
from fleetcount_aggregator.storage.report_log import ReportLog
from fleetcount_aggregator.storage.row_types import BatchRow, ReportVerdict, WindowChange, WindowRow
from fleetcount_aggregator.storage.store import Store, every_batch
from fleetcount_protocol.ids import Digest, ReportId, WindowId
from fleetcount_protocol.messages import SealSet, WindowState
from fleetcount_protocol.release.commitments import set_digest
from fleetcount_protocol.wire.peer import split_seal_set
from rows import Row, quick, report, smoke

Result = TypeVar("Result")
KEY = os.urandom(32)
WINDOW = WindowId(os.urandom(32))
LEADER_PART, HELPER_PART, PUBLIC_SHARE = 8_248, 32, 64
"""Bytes of round two at L = 1,000, k = 2."""
TURNS = 3 if quick() else 7
"""Of these the best counts, of the store and of its peer: what disturbs one of them disturbs the ratio."""


def instalments(count: int, part_bytes: int) -> InstalmentRun:
    """Return instalments of as many devices, of round two."""
    return InstalmentRun(
        window_id=WINDOW,
        round=2,
        expected=2,
        report_ids=os.urandom(16 * count),
        certificates=os.urandom(32 * count),
        digests=os.urandom(32 * count),
        public_shares=os.urandom(PUBLIC_SHARE * count),
        parts=os.urandom(part_bytes * count),
    )


async def fill(directory: Path, batches: Sequence[InstalmentRun], in_flight: int) -> tuple[float, float, bytes]:
    """Store batches, `in_flight` of them waiting at a time; return seconds, seconds of CPU, and the log's key."""
    store = Store.open(directory / "bench.db", KEY)
    row = WindowRow(
        window_id=WINDOW, canonical=b"", verify_key=b"", state=WindowState.COLLECTING, abort_reason="", installed_at=0
    )
    await store.decide_windows((), row)
    todo = iter(batches)

    async def lane() -> None:
        for batch in todo:
            outcomes = await store.add_instalments([batch])
            if outcomes != [bytes((StoreOutcome.STORED,)) * len(batch)]:
                raise SystemExit("an instalment was not stored")

    start, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(lane() for _ in range(in_flight)))
    seconds, used = time.perf_counter() - start, time.process_time() - used
    log_key = store.data_keys.of(WINDOW).log_key
    await store.close()
    return seconds, used, log_key


def append(directory: Path, data: bytes, syncs: int) -> float:
    """Append bytes to a plain file, a sync after each of so many equal pieces; return seconds."""
    size = -(-len(data) // syncs)
    pieces = [memoryview(data)[start : start + size] for start in range(0, len(data), size)]
    descriptor = os.open(directory / "plain", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    start = time.perf_counter()
    for piece in pieces:
        os.write(descriptor, piece)
        os.fdatasync(descriptor)
    seconds = time.perf_counter() - start
    os.close(descriptor)
    return seconds


@dataclass(frozen=True)
class Filled:
    """One filling of the store and its peer: seconds, CPU seconds, syncs, bytes; and the key of its log."""

    ours: float
    cpu: float
    syncs: int
    size: int
    peer: float
    log_key: bytes


def fill_once(directory: Path, batches: Sequence[InstalmentRun], in_flight: int) -> Filled:
    """Fill a store, then append the bytes of its log to a plain file."""
    syncs: list[int] = []
    honest = os.fdatasync
    os.fdatasync = lambda descriptor: syncs.append(honest(descriptor) or 0)  # type: ignore[assignment] # counted
    try:
        ours, used, log_key = asyncio.run(fill(directory, batches, in_flight))
    finally:
        os.fdatasync = honest
    [log] = directory.glob("*.log")
    data = log.read_bytes()
    peer = append(directory, data, len(batches) if in_flight == 1 else len(syncs))
    return Filled(ours, used, len(syncs), len(data), peer, log_key)


def bench_store(directory: Path, count: int, part_bytes: int, batch: int, in_flight: int) -> None:
    """Report the store beside append and sync of the same bytes: the best of several turns of each."""
    run = instalments(count, part_bytes)
    batches = [run.only(np.arange(start, min(start + batch, count))) for start in range(0, count, batch)]
    turns: list[Filled] = []
    for turn in range(TURNS):
        with tempfile.TemporaryDirectory(dir=directory) as name:
            turns.append(fill_once(Path(name), batches, in_flight))
            if turn == TURNS - 1 and in_flight == 1:
                [log] = Path(name).glob("*.log")
                bench_opening(log, turns[-1].log_key, count, part_bytes)
    ours, plain = min(one.ours for one in turns), min(one.peer for one in turns)
    cpu, a_sync = min(one.cpu for one in turns), turns[0].size / turns[0].syncs
    report(
        Row(
            path=f"store, parts of {part_bytes:,} B, batches of {batch:,}, {in_flight} waiting",
            ours=count / ours,
            unit="/s",
            peer="append + fdatasync of the same bytes, " + ("one a batch" if in_flight == 1 else "as few syncs"),
            peer_value=count / plain,
            ratio=plain / ours,
            must=0.25,
            aim=0.5,
            note=f"best of {TURNS}; {cpu / count * 1e6:.1f} us of CPU each, {a_sync / 1e6:.2f} MB a sync",
        )
    )


class _Timed(RowSeal):
    """Tags as they are, and what they cost: seconds of CPU of whichever thread makes or checks them."""

    used = 0.0

    def tag(self, place: str, values: Sequence[object]) -> bytes:
        begun = time.thread_time()
        made = super().tag(place, values)
        _Timed.used += time.thread_time() - begun
        return made

    def holds(self, tag: object, place: str, values: Sequence[object]) -> bool:
        begun = time.thread_time()
        held = super().holds(tag, place, values)
        _Timed.used += time.thread_time() - begun
        return held


async def keep_window(directory: Path, count: int, part_bytes: int) -> None:
    """Keep a window's reports, close it, keep its batches and read them back: all that the store does for reports."""
    store = Store.open(directory / "bench.db", KEY)
    row = WindowRow(
        window_id=WINDOW, canonical=b"", verify_key=b"", state=WindowState.COLLECTING, abort_reason="", installed_at=0
    )
    await store.decide_windows((), row)
    run = instalments(count, part_bytes)
    for start in range(0, count, 2_048):
        await store.add_instalments([run.only(np.arange(start, min(start + 2_048, count)))])
    collecting, agreeing = frozenset({WindowState.COLLECTING}), frozenset({WindowState.AGREEING})
    await store.apply(WindowChange(window_id=WINDOW, required=collecting, new_state=WindowState.AGREEING))
    for number, start in enumerate(range(0, count, 512)):
        size = min(512, count - start)
        batch = BatchRow(
            number=number,
            positions=np.arange(start, start + size),
            verdicts=bytes(size),
            share_digests=os.urandom(32 * size),
            kept=os.urandom(8_000 + 32 * size),  # The sum at L = 1,000, and a seed each.
        )
        await store.apply(WindowChange(window_id=WINDOW, required=agreeing, batch=batch))
    async for _ in every_batch(store, WINDOW):
        pass
    await store.close()


def bench_tags(directory: Path, count: int, part_bytes: int) -> None:
    """Report what the tags of rows cost beside all that the store does for a window's reports."""
    ratios: list[float] = []
    for _ in range(TURNS):
        with tempfile.TemporaryDirectory(dir=directory) as name, mock.patch.object(data_keys, "RowSeal", _Timed):
            _Timed.used, begun = 0.0, time.process_time()
            asyncio.run(keep_window(Path(name), count, part_bytes))
            whole = time.process_time() - begun
        ratios.append(whole / (whole - _Timed.used))
    ratio = sorted(ratios)[TURNS // 2]
    report(
        Row(
            path=f"store with tags of its rows, parts of {part_bytes:,} B",
            ours=ratio,
            unit="",
            peer="the same without making and checking them",
            peer_value=1.0,
            ratio=ratio,
            must=1.02,
            aim=1.02,
            larger_is_better=False,
            note=f"CPU, the middle of {TURNS}: {count:,} instalments, then batches of 512, written and read",
        )
    )


def bench_opening(path: Path, log_key: bytes, count: int, part_bytes: int) -> None:
    """Report what reading the index back costs, in time and memory."""
    start = time.process_time()
    log = ReportLog.open(FileFrames(path, WINDOW, log_key), WINDOW, log_key)
    seconds = time.process_time() - start
    if log is None:
        raise SystemExit("the log is empty")
    what = f"parts of {part_bytes:,} B"
    report(Row(path=f"store opened again, {what}, an instalment", ours=seconds / count * 1e6, unit="us", note="CPU"))
    report(Row(path=f"store, its index in memory, {what}, a report", ours=log.memory_bytes / count, unit="B"))
    log.close()


def best(operation: Callable[[], Result], runs: int = 3) -> tuple[float, Result]:
    """Return the shortest CPU time of several runs, and the result: other work on the machine does not count."""
    shortest = float("inf")
    for _ in range(runs):
        start = time.process_time()
        result = operation()
        shortest = min(shortest, time.process_time() - start)
    return shortest, result


def bench_agreement(count: int) -> None:
    """Report agreeing on a set of `count` reports: a helper finds out whether the leader's set is its own."""
    joined, digests = os.urandom(16 * count), os.urandom(32 * count)
    ids = [ReportId(joined[at : at + 16]) for at in range(0, 16 * count, 16)]
    held = [Digest(digests[at : at + 32]) for at in range(0, 32 * count, 32)]
    verdicts = np.full(count, ReportVerdict.ACCEPTED, dtype=np.uint8)
    columns = np.frombuffer(digests, dtype=np.uint8).reshape(-1, 32)
    leader = OwnSet.of(WINDOW, BatchVerdicts(ReportIds(joined), verdicts, columns), verdicts > 0)
    request = SealSet(window_id=WINDOW, leaf_digests=leader.leaves)

    def leaves(mine: ReportIds | None = None) -> Digest:
        return OwnSet.agreed(WINDOW, BatchVerdicts(mine or ReportIds(joined), verdicts, columns), request).digest

    def lists() -> Digest:
        return set_digest(WINDOW, zip(ids, held, strict=True))

    # An aggregator meets its ids in every batch before it meets the set, so that it has them in order by then.
    met = ReportIds(joined)
    met.find(joined[:16])
    (peer, theirs), (alone, _) = best(lists, 1), best(lambda: hashlib.sha256(bytes(48 * count)).digest())
    for what, agree in (("", leaves), (", after its batches", lambda: leaves(met))):
        ours, digest = best(agree)
        if digest != theirs:
            raise SystemExit("the two ways do not agree")
        report(
            Row(
                path=f"agreeing on {count:,} reports{what}",
                ours=ours * 1e3,
                unit="ms",
                peer="a sorted list of pairs",
                peer_value=peer * 1e3,
                ratio=peer / ours,
                must=10,
                aim=20,
                note=f"CPU time, the best of three; SHA-256 alone takes {alone * 1e3:.1f} ms",
            )
        )
    bytes_said = sum(len(chunk.SerializeToString()) for chunk in split_seal_set(request))
    report(
        Row(
            path=f"naming an equal set of {count:,} reports",
            ours=bytes_said,
            unit="B",
            peer="all its ids",
            peer_value=18 * count,
            ratio=18 * count / bytes_said,
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Report every figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    share = 100 if smoke() else 10 if quick() else 1
    parser.add_argument(
        "--directory", type=Path, default=None, help="where to write; by default the system's own place"
    )
    parser.add_argument(
        "--reports",
        type=int,
        default=160_000 // {1: 1, 10: 2, 100: 100}[share],
        help="instalments a row (default %(default)s)",
    )
    parser.add_argument("--ids", type=int, default=1_000_000 // share, help="reports to agree on (default %(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        for in_flight in (1, 16):
            bench_store(directory, options.reports // 16, LEADER_PART, 120, in_flight)
            bench_store(directory, options.reports, HELPER_PART, 2_048, in_flight)
        bench_tags(directory, options.reports // 16, LEADER_PART)
        bench_tags(directory, options.reports, HELPER_PART)
    bench_agreement(options.ids)
    return 0


if __name__ == "__main__":
    sys.exit(main())

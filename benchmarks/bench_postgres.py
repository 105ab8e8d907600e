"""Frames in PostgreSQL beside COPY of the same bytes into the same table, a commit a group; and a lane read back.

A server of its own on a socket, with default durability. Decides nothing.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from fleetcount_aggregator.storage.file_frames import FileFrames
from fleetcount_aggregator.storage.frames import Frames
from fleetcount_aggregator.storage.instalment_run import InstalmentRun
from fleetcount_aggregator.storage.log_format import NewFrame
from fleetcount_aggregator.storage.report_log import ReportLog
from fleetcount_aggregator.storage.schema import COMMIT_TABLE, FRAME_TABLES
from fleetcount_protocol.ids import WindowId
from rows import Row, quick, report, smoke

from tests.support.postgres import Cluster, find_postgres

KEY: Final = os.urandom(32)
LEADER_PART, HELPER_PART, PUBLIC_SHARE = 8_248, 32, 64
"""Bytes of round two at L = 1,000, k = 2."""
TURNS: Final = 5
"""Of these the best counts, of ours and of COPY in turn: what disturbs one of them disturbs the ratio."""
SETTINGS: Final = ("shared_buffers=128MB", "max_wal_size=1GB")
BATCH: Final = 512
"""Reports that a worker reads at once."""


def instalments(window_id: WindowId, count: int, part_bytes: int) -> InstalmentRun:
    """Return instalments of as many devices, each a whole report."""
    return InstalmentRun(
        window_id=window_id,
        round=2,
        expected=1,
        report_ids=os.urandom(16 * count),
        certificates=os.urandom(32 * count),
        digests=os.urandom(32 * count),
        public_shares=os.urandom(PUBLIC_SHARE * count),
        parts=os.urandom(part_bytes * count),
    )


class Bench:
    """One database: frames of a new window each time, and a table like theirs for COPY."""

    def __init__(self, url: str) -> None:
        from fleetcount_aggregator.storage.postgres import Link, Server
        from fleetcount_aggregator.storage.postgres_backend import PostgresBackend

        server = Server(url=url)
        self.link = Link(server, lambda _: None)
        self.home = PostgresBackend(server, self.link)
        self.link.read(lambda db: [db.execute(statement) for statement in (COMMIT_TABLE, *FRAME_TABLES)])

    def frames(self, window_id: WindowId) -> Frames:
        """Return the frames of a new window, to be written."""
        self.link.write(lambda db: self.home.install(db, window_id))
        return self.home.frames(window_id, KEY)

    def append(self, groups: Sequence[InstalmentRun]) -> float:
        """Seal and append a frame a group; return seconds."""
        window_id = groups[0].window_id
        frames = self.frames(window_id)
        start = time.perf_counter()
        for number, run in enumerate(groups):
            frames.append([new_frame(run, number)], 1)
        return time.perf_counter() - start

    def copy(self, groups: Sequence[InstalmentRun]) -> float:
        """Append the bytes of the same frames by binary COPY, a commit each; return seconds."""
        window_id = WindowId(os.urandom(32))
        self.link.write(lambda db: self.home.install(db, window_id))
        table = f"frames_{window_id[:24].hex()}"
        sealed = [new_frame(run, number) for number, run in enumerate(groups)]
        rows = [(one.head_bytes, one.columns, bytes(one.parts()), one.head.count) for one in sealed]
        connection: Any = self.link.connection()
        start = time.perf_counter()
        for number, (head, columns, parts, count) in enumerate(rows):
            with connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(["int4", "int8", "int2", "int4", "bytea", "bytea", "bytea"])
                copy.write_row((0, number, 2, count, head, columns, parts))
        seconds = time.perf_counter() - start
        self.home.drop(window_id)
        return seconds


def new_frame(run: InstalmentRun, sequence: int) -> NewFrame:
    """Return a frame of one run."""
    return NewFrame([run], sequence=sequence, group=sequence, log_key=KEY, salt=os.urandom(32))


def bench_append(bench: Bench, name: str, group: int, count: int, part_bytes: int) -> None:
    """Report frames beside COPY: the best of several turns of each."""
    ours, peer = [], []
    for _ in range(TURNS):
        run = instalments(WindowId(os.urandom(32)), count, part_bytes)
        groups = [run.only(np.arange(start, min(start + group, count))) for start in range(0, count, group)]
        ours.append(bench.append(groups))
        peer.append(bench.copy(groups))
        bench.home.drop(run.window_id)
    report(
        Row(
            path=f"frames in PostgreSQL, {name}, parts of {part_bytes:,} B, {group:,} a group",
            ours=count / min(ours),
            unit="/s",
            peer="binary COPY of the same bytes, a commit a group",
            peer_value=count / min(peer),
            ratio=min(peer) / min(ours),
            must=0.7,
            aim=0.9,
            note=f"best of {TURNS} in turn; ours seals too, and is fenced",
        )
    )


def bench_reading(bench: Bench, directory: Path, count: int) -> None:
    """Report how long a start or a closing reads, from PostgreSQL and from a file."""
    window_id, group = WindowId(os.urandom(32)), 2_048
    path = directory / "window.log"
    for frames in (bench.frames(window_id), FileFrames(path, window_id, KEY)):
        for number, start in enumerate(range(0, count, group)):
            frames.append([new_frame(instalments(window_id, min(group, count - start), HELPER_PART), number)], 1)
        frames.close()
    for what, again in (
        ("PostgreSQL", bench.home.frames(window_id, KEY, 0)),
        ("a file", FileFrames(path, window_id, KEY)),
    ):
        wall, cpu = time.perf_counter(), time.process_time()
        log = ReportLog.open(again, window_id, KEY)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        if log is None:
            raise SystemExit("the log is empty")
        report(
            Row(
                path=f"a log of {count:,} reports read back from {what}",
                ours=wall,
                unit="s",
                peer="the limit",
                peer_value=5.0,
                ratio=wall / 5.0,
                must=1,
                larger_is_better=False,
                note=f"{cpu:.2f} s of CPU here, {log.memory_bytes / count:.0f} B a report in memory",
            )
        )
        bench_batch(log, what, count)
        log.close()


def bench_batch(log: ReportLog, what: str, count: int) -> None:
    """Report how long a worker reads and opens one batch."""
    complete, best = log.complete(), float("inf")
    for turn in range(5):
        source = complete.source(np.arange(BATCH) + turn * BATCH % max(1, count - BATCH))
        start = time.perf_counter()
        loaded = source.load()
        best = min(best, time.perf_counter() - start)
        if loaded.damaged:
            raise SystemExit("what was just written is damaged")
    report(Row(path=f"a batch of {BATCH} reports read from {what}", ours=best * 1e3, unit="ms", note="best of 5"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Report every figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    share = 100 if smoke() else 10 if quick() else 1
    parser.add_argument("--reports", type=int, default=2**20 // share, help="of a log (default %(default)s)")
    options = parser.parse_args(arguments)
    programs = find_postgres()
    if programs is None:
        report(Row(path="frames in PostgreSQL", ours=None, unit="/s", note="this machine has no PostgreSQL server"))
        return 0
    directory = Path(tempfile.mkdtemp(prefix="fc-bench-"))
    directory.chmod(0o755)
    cluster = None
    try:
        (directory / "server").mkdir()
        cluster = Cluster(programs, directory / "server", *SETTINGS)
        cluster.make()
        cluster.start()
        bench = Bench(cluster.url("postgres"))
        with closing(bench.home):
            bench_append(bench, "A", 120, 12_000 // share, LEADER_PART)
            bench_append(bench, "B", 2_048, 400_000 // share, HELPER_PART)
            bench_reading(bench, directory, options.reports)
    finally:
        if cluster is not None:
            cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Disks under PostgreSQL that are full or slow: no receipt without what the server has synced, and none taken back."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.instalment_run import StoreOutcome
from fleetcount_aggregator.storage.postgres import Server
from fleetcount_aggregator.storage.postgres_engine import PostgresEngine

from tests.aggregator.storage.test_postgres import DRAWN, installed, part
from tests.support.instalments import StoredInstalment, add
from tests.support.postgres import Cluster, own_cluster
from tests.support.processes import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(240), pytest.mark.processes]


async def test_a_log_disk_that_is_full_stops_the_server_and_every_receipt_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F39: PostgreSQL panics, and does not start again on a full disk."""
    for limit in ("postgres._RETRY_S", "postgres_frames.PATIENCE_S", "postgres_frames.REST_S"):
        monkeypatch.setattr(f"fleetcount_aggregator.storage.{limit}", 0.0)
    with own_cluster("max_wal_size=1GB") as cluster, cluster.small_log_disk(40) as enlarge:
        server = Server(url=cluster.url("postgres"))
        store = await installed(tmp_path, await asyncio.to_thread(PostgresEngine.open, server))
        receipted: list[StoredInstalment] = []
        refused = ""
        while not refused and len(receipted) < 800:
            try:
                assert await add(store, [part(len(receipted))]) == [StoreOutcome.STORED]
                receipted.append(part(len(receipted)))
            except StoreError as error:
                refused = str(error)
        await asyncio.to_thread(cluster.ended)

        assert "\n" not in refused
        assert len(receipted) > 20
        assert 'PANIC:  could not write to file "pg_wal/' in cluster.log.read_text()
        with pytest.raises(AssertionError, match=r"(?s)PostgreSQL ended: .*No space left on device"):
            await asyncio.to_thread(cluster.start)
        with pytest.raises(StoreError):
            await add(store, [part(len(receipted))])

        enlarge(200)
        await asyncio.to_thread(cluster.revive)
        assert await add(store, receipted) == [StoreOutcome.STORED] * len(receipted), "in another lane"
        assert await add(store, [part(len(receipted) + 1)]) == [StoreOutcome.STORED]
        assert await store.apply(DRAWN) is None
        asked = [one.report_id for one in receipted]
        found = await store.instalment_digests(receipted[0].window_id, asked, receipted[0].round)
        assert found == [one.digest for one in receipted], "a receipt was given for nothing"
        assert not await store.damaged()
        await store.close()


_SLOW_US = 600_000_000
"""Longer than the test: whoever is done has not waited."""
_SYNCING = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event IN ('WALSync', 'WALWrite')"
    " AND backend_type = 'client backend'"  # It syncs by itself, or waits for the server's own writer that does.
)


@contextmanager
def slow_syncs(cluster: Cluster) -> Iterator[None]:
    """Let no sync of the server end as long as the block lasts."""
    if shutil.which("strace") is None or os.geteuid() != 0:
        pytest.skip("needs strace, and the right to trace another user's processes")
    command = ["strace", "-f", "-o", "/dev/null", "-e", "trace=fsync,fdatasync"]
    targets = [word for pid in cluster.processes() for word in ("-p", str(pid))]
    tracer = subprocess.Popen(
        [*command, "-e", f"inject=fsync,fdatasync:delay_enter={_SLOW_US}", *targets],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert tracer.stderr is not None
    try:
        for _ in range(len(targets) // 2):
            assert b"attached" in tracer.stderr.readline()
        yield
    finally:
        tracer.terminate()
        tracer.communicate()


async def test_a_sync_that_takes_its_time_is_waited_for_before_anything_is_promised(tmp_path: Path) -> None:
    """F40: the receipt follows the sync, however slow the disk is."""
    with own_cluster() as cluster:
        server = Server(url=cluster.url("postgres"))
        store = await installed(tmp_path, await asyncio.to_thread(PostgresEngine.open, server))
        with slow_syncs(cluster):
            adding = asyncio.create_task(add(store, [part(0)]))
            await asyncio.to_thread(
                wait_until, lambda: adding.done() or cluster.run(_SYNCING)[0][0] > 0, "a commit waits for its sync"
            )
            await asyncio.wait({adding}, timeout=0.5)
            assert not adding.done()

        assert await adding == [StoreOutcome.STORED]
        await store.close()

"""What an aggregator with years behind it costs: its start and memory with ended tasks, a stall, idle open tasks.

Ended tasks are made by rows, whole: signed task, set, record of a real one's size, debit, at rest. Every start is a
fresh process over one store; the empty store of the same run is the peer. Decides nothing.
"""

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench_intake import ask, deploy
from fleetcount_aggregator.config import AggregatorConfig, load_config
from fleetcount_aggregator.host.keys import load_signing_key
from fleetcount_aggregator.host.states import State
from fleetcount_aggregator.storage import archive_rows
from fleetcount_aggregator.storage.archive import Rest, RestRow
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_aggregator.storage.rows import apply_change, install_task
from fleetcount_aggregator.storage.sealed_database import SealedDatabase
from fleetcount_aggregator.storage.sql_store import SqlStore
from fleetcount_aggregator.storage.store import LedgerRow, StepRow, TaskChange, TaskRow
from fleetcount_aggregator.storage.store_keys import StoreKeys
from fleetcount_protocol.task.signed_file import encode_signed_task
from fleetcount_protocol.task.task import SignedTask, Task
from fleetcount_simulator.network.deployments import Deployment
from rows import Row, Unit, quick, report, smoke

ENDED = 300 if smoke() else 10_000 if quick() else 100_000
OPEN = 50 if smoke() else 500 if quick() else 2_000
IDLE_S = 1 if smoke() else 5 if quick() else 20
AT_ONCE = 1_000
RECORD = os.urandom(2_600)
"""As long as the record of a task over eight values with two signatures."""


@dataclass(frozen=True)
class Running:
    """An aggregator that has started: after how many seconds, its memory then, and the CPU of a while without work."""

    seconds: float
    mib: float
    idle_share: float


def opened(config: AggregatorConfig) -> SqlStore:
    """Open an aggregator's store, as its process would."""
    keys, place = config.keys, config.store_place
    wrapping = StoreKeys.load(keys.signing_key_file, keys.store_key_file, None, load_signing_key(keys.signing_key_file))
    return SqlStore.over(open_engine(place), place.file, wrapping.at_rest, wrapping.former)


def fill_ended(db: SealedDatabase, tasks: Sequence[Task]) -> None:
    """Write tasks as if each had been released and delivered in its turn."""
    for task in tasks:
        signed = encode_signed_task(SignedTask(task=task, signatures=(b"", b"")))
        install_task(db, row_of(task, signed, State.RELEASED))
        for name, request, answer in (
            ("set", bytes(32), bytes(32)),
            ("release", bytes(32), RECORD),
            ("delivered", b"", b""),
        ):
            step = StepRow(name=name, request=request, answer=answer)
            apply_change(db, TaskChange(task_id=task.task_id, required=frozenset(State), step=step), None)
        debit = LedgerRow(
            task_id=task.task_id,
            signal=task.signal,
            opens=task.round_one_opens,
            closes=task.round_two_closes,
            epsilon="1",
            debited_at=task.round_two_closes,
        )
        apply_change(db, TaskChange(task_id=task.task_id, required=frozenset(State), debit=debit), None)
    archive_rows.put_to_rest(db, [RestRow(task_id=one.task_id, expiry=one.expiry, led=True) for one in tasks])


def row_of(task: Task, signed: bytes, state: State, verify_key: bytes = b"") -> TaskRow:
    """Return a task as it lies in the store."""
    return TaskRow(
        task_id=task.task_id,
        signed=signed,
        verify_key=verify_key,
        state=state,
        abort_reason="",
        installed_at=task.round_one_opens,
    )


def moved(base: Task, number: int, opens: int) -> Task:
    """Return a task like another, of another time and signal."""
    return replace(
        base,
        signal=f"Vehicle.Bench{number % 5_000}",
        round_one_opens=opens,
        round_one_closes=opens + 60,
        round_two_closes=opens + 120,
        expiry=opens + 30 * 86_400,
    )


@asynccontextmanager
async def store_of(config: AggregatorConfig) -> AsyncIterator[SqlStore]:
    """Hold a store open."""
    store = opened(config)
    try:
        yield store
    finally:
        await store.close()


async def fill(config: AggregatorConfig, base: Task) -> None:
    """Put ended tasks into a store, one every 20 seconds up to now; none has expired."""
    now = int(time.time())
    async with store_of(config) as store:
        for first in range(0, ENDED, AT_ONCE):
            last = min(first + AT_ONCE, ENDED)
            tasks = [moved(base, number, now - 20 * (ENDED - number)) for number in range(first, last)]
            await store.mend(partial(fill_ended, tasks=tasks))


async def open_many(config: AggregatorConfig, base: Task) -> None:
    """Put tasks into a store that open tomorrow, known to every helper."""
    tomorrow = int(time.time()) + 86_400
    async with store_of(config) as store:
        for number in range(OPEN):
            task = moved(base, number, tomorrow)
            key = store.data_keys.make(task.task_id).seal(bytes(32), b"verify key", task.task_id)
            signed = encode_signed_task(SignedTask(task=task, signatures=(b"", b"")))
            await store.install(row_of(task, signed, State.ANNOUNCED, key))
            step = StepRow(name="installed", request=b"", answer=b"")
            await store.apply(TaskChange(task_id=task.task_id, required=frozenset(State), step=step))


def run(config: str, idle_s: float) -> Running:
    """Start an aggregator until it says that it listens, let it be for a while, and end it."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "fleetcount", "aggregator", "serve", "--config", config]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            if b'"ready"' not in process.stdout.readline():
                raise SystemExit("the aggregator did not start")
            seconds = time.perf_counter() - began
            time.sleep(2)  # Its first looks at everything are over.
            before = cpu_s(process.pid)
            time.sleep(idle_s)
            share = (cpu_s(process.pid) - before) / idle_s
            mib = resident_mib(process.pid)
        finally:
            process.terminate()
    return Running(seconds, mib, share)


def cpu_s(pid: int) -> float:
    """Return the seconds of CPU that a process has used so far, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Return the memory that a process has now."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    [kib] = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(kib) / 1024


async def longest_stall_s(config: AggregatorConfig) -> float:
    """Return the longest time for which the event loop was held up while an old store is asked and looked after."""
    async with store_of(config) as store:
        longest, over = 0.0, asyncio.Event()

        async def watch() -> None:
            nonlocal longest
            while not over.is_set():
                began = time.perf_counter()
                await asyncio.sleep(0.001)
                longest = max(longest, time.perf_counter() - began - 0.001)

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.01)
        await store.tasks_in_work()
        now = int(time.time())
        rows = await store.resting(Rest.AT_REST, (now, b""), now + 10**7)
        for row in rows:
            await store.task(row.task_id)
        await store.ledger_rows()
        over.set()
        await watching
    return longest


def tell(path: str, ours: float, unit: Unit, limit: float, peer: str) -> None:
    """Report a figure beside the limit it is held against."""
    report(
        Row(
            path=path,
            ours=ours,
            unit=unit,
            peer=peer,
            peer_value=limit,
            ratio=ours / limit,
            must=None if smoke() or quick() else 1,
            larger_is_better=False,
        )
    )


def measure(deployment: Deployment) -> None:
    """Fill one store step by step, and start an aggregator over each step."""
    path = deployment.config_of(0)
    config = load_config(path, {})
    base = ask(deployment, 1)
    for file in config.aggregator.task_directory.iterdir():
        file.unlink()
    if not smoke():
        run(str(path), 0.1)  # Compiles what every start loads.
    empty = run(str(path), IDLE_S)
    asyncio.run(fill(config, base))
    size = config.store_place.file.stat().st_size
    old = run(str(path), IDLE_S)
    tell(f"start with {ENDED:,} ended tasks", old.seconds, "s", 3, "what is allowed")
    tell(f"memory with {ENDED:,} ended tasks", old.mib - empty.mib, "MiB", 10, "beyond an empty store, allowed")
    tell("longest stall of the event loop", 1e3 * asyncio.run(longest_stall_s(config)), "ms", 100, "what is allowed")
    report(Row(path="disk for an ended task, retired or not", ours=size / ENDED, unit="B"))
    report(Row(path="start with an empty store", ours=empty.seconds, unit="s"))
    asyncio.run(open_many(config, base))
    many = run(str(path), IDLE_S)
    tell(f"a core, idle with {OPEN:,} open tasks", 100 * many.idle_share, "%", 5, "what is allowed")
    report(Row(path="a core, idle with none", ours=100 * old.idle_share, unit="%"))
    report(Row(path=f"start with {OPEN:,} open tasks", ours=many.seconds, unit="s"))
    report(
        Row(
            path="peak memory of the benchmark",
            ours=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            unit="MiB",
        )
    )


def main() -> None:
    """Measure over a deployment of its own."""
    with tempfile.TemporaryDirectory() as directory:
        measure(deploy(Path(directory)))


if __name__ == "__main__":
    main()

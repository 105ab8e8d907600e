"""What an aggregator with years behind it costs: its start and memory with ended windows, a stall, idle open windows.

Ended windows are those of questions that still count in the budget of a period, and are made by rows, whole: window,
set, record of a real one's size, debit, at rest. Every start is a fresh process over one store; the empty store of the
same run is the peer. Decides nothing.
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench_intake import deploy
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_aggregator.config import AggregatorConfig, load_config
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.host import OwnIdentity
from fleetcount_aggregator.host.keys import load_signing_key
from fleetcount_aggregator.memory.installed import InstalledQuestion, window_row
from fleetcount_aggregator.memory.questions import QUESTION
from fleetcount_aggregator.storage import ended, question_rows
from fleetcount_aggregator.storage.data_keys import StoreKeys
from fleetcount_aggregator.storage.database import SealedDatabase
from fleetcount_aggregator.storage.ended import ArchivedWindow, read_active, read_archived
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_aggregator.storage.row_types import (
    DecidedWindow,
    LedgerRow,
    Lifecycle,
    StepRow,
    WindowChange,
    WindowRow,
)
from fleetcount_aggregator.storage.rows import apply_change, install_window, read_ledger_rows, read_window
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.windows.question_install import adopt_question
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.fields import Schedule
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_simulator.network.deployments import Deployment
from fleetcount_transport.logs import configure
from one_window import SEED, draft, once, signed_by
from rows import Row, Unit, quick, report, smoke
from stored_window import context_over, identity_of

from tests.support.inline_workers import InlineWorkers

ENDED = 300 if smoke() else 10_000 if quick() else 100_000
OPEN = 50 if smoke() else 500 if quick() else 2_000
IDLE_S = 1 if smoke() else 5 if quick() else 20
WINDOWS = 100
"""Of a question that has ended; so many of them end in 23 days of the full size."""
EVERY_S = 600
RECORD = os.urandom(2_600)
"""As long as the record of a window over eight values with two signatures."""


@dataclass(frozen=True)
class Seat:
    """One aggregator of a deployment, and the signing keys of all."""

    config: AggregatorConfig
    identity: OwnIdentity
    aggregators: tuple[Aggregator, ...]
    keys: tuple[Ed25519PrivateKey, ...]


@dataclass(frozen=True)
class Running:
    """An aggregator that has started: after how many seconds, its memory then, and the CPU of a while without work."""

    seconds: float
    mib: float
    idle_share: float


def opened(config: AggregatorConfig) -> Store:
    """Open an aggregator's store, as its process would."""
    keys, place = config.keys, config.store_place
    wrapping = StoreKeys.load(keys.signing_key_file, keys.store_key_file, None, load_signing_key(keys.signing_key_file))
    return Store.over(open_engine(place), place.file, wrapping.at_rest, wrapping.former)


def seat_of(deployment: Deployment, position: int = 0) -> Seat:
    """Return what the process of an aggregator has of a deployment; the leader's is at position 0."""
    configs = [load_config(deployment.config_of(position), {}) for position in range(len(deployment.aggregators))]
    keys = tuple(load_signing_key(one.keys.signing_key_file) for one in configs)
    identity = identity_of(deployment.aggregators, position, keys[position])
    return Seat(configs[position], identity, deployment.aggregators, keys)


async def take_on(context: Context, seat: Seat, number: int, schedule: Schedule) -> InstalledQuestion:
    """Store a question about a signal of its own as one that every aggregator has; return it."""
    places = Categories(names=tuple(f"place {one}" for one in range(100)))
    asked = draft(seat.aggregators, places, schedule, name=f"question {number}", signal=f"Vehicle.Bench{number}")
    await adopt_question(context.questions, signed_by(asked, seat.keys), SEED)
    question = context.questions[asked.question_id]
    for other in question.others:
        await context.questions.note_given(question, other, QUESTION)
    return question


def fill_ended(db: SealedDatabase, question: InstalledQuestion, rows: Sequence[WindowRow]) -> None:
    """Write windows of a question as if each had been released and delivered in its turn."""
    windows = [window_at(question.asked, index) for index in range(len(rows))]
    decided = [
        DecidedWindow(question_id=question.question_id, index=index, window_id=window.window_id)
        for index, window in enumerate(windows)
    ]
    question_rows.decide_windows(db, decided, None)
    for window, row in zip(windows, rows, strict=True):
        install_window(db, row)
        for name, request, answer in (
            ("set", bytes(32), bytes(32)),
            ("release", bytes(32), RECORD),
            ("delivered", b"", b""),
        ):
            step = StepRow(name=name, request=request, answer=answer)
            apply_change(db, WindowChange(window_id=window.window_id, required=frozenset(WindowState), step=step), None)
        debit = LedgerRow(
            window_id=window.window_id,
            signal=window.signal,
            opens=window.round_one_opens,
            closes=window.round_two_closes,
            epsilon="1",
            debited_at=window.round_two_closes,
        )
        apply_change(db, WindowChange(window_id=window.window_id, required=frozenset(WindowState), debit=debit), None)
    ended.archive_windows(db, [ArchivedWindow(window_id=one.window_id, expiry=one.expiry, led=True) for one in windows])


@asynccontextmanager
async def store_of(config: AggregatorConfig) -> AsyncIterator[Store]:
    """Hold a store open."""
    store = opened(config)
    try:
        yield store
    finally:
        await store.close()


async def fill(seat: Seat) -> None:
    """Put questions of ended windows into a store, a window every 20 seconds up to now; none has expired."""
    now = int(time.time())
    async with store_of(seat.config) as store:
        context = context_over(store, seat.identity, InlineWorkers())
        for number in range(ENDED // WINDOWS):
            ends = now - 20 * (ENDED - (number + 1) * WINDOWS)
            schedule = Schedule(
                first=ends - WINDOWS * EVERY_S,
                every_s=EVERY_S,
                windows=WINDOWS,
                round_one_s=60,
                round_two_s=60,
                expiry_s=30 * 86_400,
            )
            question = await take_on(context, seat, number, schedule)
            # Without a verify key, as after a purge: a data key a window would be made only to be destroyed again.
            ended = [
                WindowRow(
                    window_id=window.window_id,
                    canonical=window.asked.canonical,
                    verify_key=b"",
                    state=WindowState.RELEASED,
                    abort_reason="",
                    installed_at=question.asked.schedule.opens(index),
                )
                for index, window in enumerate(map(question.window, range(WINDOWS)))
            ]
            await store.write(partial(fill_ended, question=question, rows=ended))


async def open_many(seat: Seat, opens: int, questions: int) -> None:
    """Put questions of one window into a store that are open for a day from a Unix second on."""
    async with store_of(seat.config) as store:
        for first in range(0, questions, 100):
            # Each is judged beside all that its context knows of, and these ask about signals of their own.
            context = context_over(store, seat.identity, InlineWorkers())
            for number in range(first, min(first + 100, questions)):
                question = await take_on(context, seat, ENDED + number, once(opens, 86_400, 86_400))
                window = question.window(0)
                row = replace(await window_row(store, window, context.host.now()), state=WindowState.COLLECTING)
                decided = DecidedWindow(question_id=question.question_id, index=0, window_id=window.window_id)
                await store.decide_windows([decided], row)


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
        await store.read(read_active)
        now = int(time.time())
        rows = await store.read(read_archived, Lifecycle.ARCHIVED, (now, b""), now + 10**7)
        for row in rows:
            await store.read(read_window, row.window_id)
        await store.read(read_ledger_rows)
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
    seat = seat_of(deployment)
    if not smoke():
        run(str(path), 0.1)  # Compiles what every start loads.
    empty = run(str(path), IDLE_S)
    asyncio.run(fill(seat))
    size = seat.config.store_place.file.stat().st_size
    old = run(str(path), IDLE_S)
    tell(f"start with {ENDED:,} ended windows", old.seconds, "s", 3, "what is allowed")
    tell(f"memory with {ENDED:,} ended windows", old.mib - empty.mib, "MiB", 10, "beyond an empty store, allowed")
    tell(
        "longest stall of the event loop", 1e3 * asyncio.run(longest_stall_s(seat.config)), "ms", 100, "what is allowed"
    )
    report(Row(path="disk for an ended window, retired or not", ours=size / ENDED, unit="B"))
    report(Row(path="start with an empty store", ours=empty.seconds, unit="s"))
    asyncio.run(open_many(seat, int(time.time()) - 10, OPEN))
    many = run(str(path), IDLE_S)
    tell(f"a core, idle with {OPEN:,} open windows", 100 * many.idle_share, "%", 5, "what is allowed")
    report(Row(path="a core, idle with none", ours=100 * old.idle_share, unit="%"))
    report(Row(path=f"start with {OPEN:,} open windows", ours=many.seconds, unit="s"))
    report(
        Row(
            path="peak memory of the benchmark",
            ours=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            unit="MiB",
        )
    )


def main() -> None:
    """Measure over a deployment of its own."""
    configure("warning")  # Else this process says of every question that it was taken up.
    with tempfile.TemporaryDirectory() as directory:
        measure(deploy(Path(directory)))


if __name__ == "__main__":
    main()

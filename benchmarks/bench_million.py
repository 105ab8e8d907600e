"""Two aggregators and a million devices on one machine: from shares to a release, in seconds and peak memory.

Shares are made for many devices at once and put into both durable stores, as intake does behind its seals; each store
has a process, which makes all devices' shares and keeps its own. Then two aggregators, each in processes of its own,
read their stores, agree, verify, add up and release over gRPC on loopback.
The opened numbers are checked against what the devices' coins say. `--postgres`: both stores are databases of a server
of its own (bench_million_postgres).
"""

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from batch_sharding import BatchSharder
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_aggregator.host.host import Limits, OwnIdentity
from fleetcount_aggregator.host.malloc import return_large_arrays
from fleetcount_aggregator.host.states import FINAL_STATES
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.process.serving import Core
from fleetcount_aggregator.storage.instalment_run import InstalmentRun
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.transport.grpc_peers import GrpcPeer
from fleetcount_aggregator.transport.grpc_server import PeerShell, claimed_peer, peer_server
from fleetcount_aggregator.verification.workers import ProcessWorkers
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.question import (
    SignedQuestion,
    decode_signed_question,
    encode_signed_question,
    window_at,
)
from fleetcount_protocol.release.record import decode_record
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.fields import Aggregator, Release, ReleaseKind
from fleetcount_protocol.window.window import Window, context_of, prio3_for
from fleetcount_simulator.network.ports import free_ports
from meter import Meter
from one_window import draft, once, signed_by
from rows import Row, Unit, quick, report, smoke
from side_by_side import ENDING_S, Results, in_both
from stored_window import context_over, identity_of, put

from tests.support.inline_workers import InlineWorkers
from tests.support.postgres import Cluster, find_postgres, own_cluster

NAMES = (AggregatorId("alpha"), AggregatorId("beta"))
MILLION = 1_000_000
AIM_S = 60.0
MUST_MIB = 1024.0
BLOCK = 16_384
"""Devices whose shares are made at once."""
UPLOAD = 2_048
"""Instalments handed to a store at once, as many as one message of a device's transport holds."""
UPLOAD_BYTES = 1024 * 1024
"""Bytes of their parts, likewise."""
SAID_EVERY = 8
"""Blocks between two words about how far a store is filled."""
SETTINGS = ("shared_buffers=256MB", "max_wal_size=4GB")
LIMIT_S = 1_800.0
"""How long both processes of a half may take; the benchmark then ends with an error that names who is missing."""


@dataclass(frozen=True, kw_only=True)
class Seat:
    """What one aggregator's process needs, as bytes: it is started afresh."""

    position: int
    signing_keys: tuple[bytes, bytes] = field(repr=False)
    ports: tuple[int, int]
    place: StorePlace
    signed: bytes
    devices: int
    seed: int

    @property
    def identity(self) -> OwnIdentity:
        """Who the aggregator is."""
        keys = [Ed25519PrivateKey.from_private_bytes(one) for one in self.signing_keys]
        return identity_of(described(keys, self.ports), self.position, keys[self.position])


def described(signing: Sequence[Ed25519PrivateKey], ports: Sequence[int]) -> tuple[Aggregator, ...]:
    """Return both aggregators as a question names them."""
    return tuple(
        Aggregator(
            aggregator_id=name,
            operator=f"Operator of {name}",
            grpc_endpoint=f"127.0.0.1:{port}",
            mqtt_broker="",
            hpke_keys=(),
            signing_public_key=key.public_key().public_bytes_raw(),
        )
        for name, key, port in zip(NAMES, signing, ports, strict=True)
    )


def new_question(values: int, signing: Sequence[Ed25519PrivateKey], ports: Sequence[int]) -> SignedQuestion:
    """Return a signed question whose only window has just closed; without noise, so that the sum can be checked."""
    question = draft(
        described(signing, ports),
        Categories(names=tuple(f"cell {one}" for one in range(1, values + 1))),
        once(int(time.time()) - 30, 10, 10),
        sampling_rate=Fraction(1, 4),
        name="a million",
        signal="Vehicle.Speed",
        release=Release(kind=ReleaseKind.EXACT, noise_epsilon=None, level=Fraction(19, 20)),
    )
    return signed_by(question, signing)


# The stores.


def open_store(seat: Seat) -> Store:
    """Open or make an aggregator's store."""
    return Store.over(open_engine(seat.place), seat.place.file, seat.signing_keys[seat.position])


def say(seat: Seat, what: str, since: float) -> None:
    """Tell whoever waits how far an aggregator is."""
    print(f"{NAMES[seat.position]}: {what}, {time.perf_counter() - since:.0f} s", file=sys.stderr, flush=True)


class Filler:
    """Makes the shares of simulated devices and puts one aggregator's into its store."""

    def __init__(self, window: Window, position: int, store: Store) -> None:
        self._window = window
        self._position = position
        self._store = store
        self._prio3 = prio3_for(window)
        self._sharder = BatchSharder(self._prio3, context_of(window))
        self.shares_s = 0.0
        self.shares_cpu_s = 0.0
        self.storing_s = 0.0
        self.difference = np.zeros(window.values + 1, dtype=np.int64)

    async def add(self, count: int, seed: np.random.SeedSequence) -> None:
        """Let devices answer both rounds: a quarter says the same twice, the others in round two only."""
        start, start_cpu = time.perf_counter(), time.process_time()
        source = np.random.default_rng(seed)
        nonces, rands = source.bytes(16 * count), source.bytes(self._prio3.rand_size * count)
        truths = source.integers(0, self._window.values + 1, count)
        first = np.where(source.random(count) < 0.25, truths, 0)
        self.difference += np.bincount(truths, minlength=len(self.difference))
        self.difference -= np.bincount(first, minlength=len(self.difference))
        one = self._sharder.first_instalments(nonces, rands, first)[self._position]
        two = self._sharder.second_instalments(nonces, rands, first, truths)
        middle, middle_cpu = time.perf_counter(), time.process_time()
        certificates = source.bytes(32 * count)
        first_run = self._run(nonces, certificates, 1, b"", one)
        second_run = self._run(nonces, certificates, 2, two.public_shares, two.shares[self._position])
        await self._store_all((first_run, second_run))
        self.shares_s += middle - start
        self.shares_cpu_s += middle_cpu - start_cpu
        self.storing_s += time.perf_counter() - middle

    async def _store_all(self, runs: Sequence[InstalmentRun]) -> None:
        """Hand runs to the store in uploads of a transport's size, a few of them waiting at a time."""
        size = min(UPLOAD, UPLOAD_BYTES // max(run.part_bytes for run in runs))
        uploads = ((run, start) for run in runs for start in range(0, len(run), size))

        async def lane() -> None:
            for run, start in uploads:
                await self._store.add_instalments([run.only(np.arange(start, min(start + size, len(run))))])

        await asyncio.gather(*(lane() for _ in range(16)))

    def _run(
        self, nonces: bytes, certificates: bytes, round_number: int, public_shares: bytes, parts: bytes
    ) -> InstalmentRun:
        return InstalmentRun(
            window_id=self._window.window_id,
            round=round_number,
            expected=2,
            report_ids=nonces,
            certificates=certificates,
            digests=certificates,
            public_shares=public_shares,
            parts=parts,
        )


def fill_seat(seat: Seat, results: Results, _: Barrier) -> None:
    """Make one aggregator's store, with the question and every device's report; the whole of a process."""
    results.put((seat.position, asyncio.run(_fill(seat))))


async def _fill(seat: Seat) -> dict[str, Any]:
    start = time.perf_counter()
    store = open_store(seat)
    signed = decode_signed_question(seat.signed)
    window = await put(context_over(store, seat.identity, InlineWorkers()), signed, WindowState.COLLECTING)
    filler = Filler(window.asked, seat.position, store)
    ready, ready_cpu = time.perf_counter(), time.process_time()
    blocks = np.random.SeedSequence(seat.seed).spawn(-(-seat.devices // BLOCK))
    for number, block in enumerate(blocks):
        await filler.add(min(BLOCK, seat.devices - number * BLOCK), block)
        if number % SAID_EVERY == SAID_EVERY - 1:
            say(seat, f"{(number + 1) * BLOCK:,} of {seat.devices:,} devices stored", ready)
    await store.close()
    return {
        "ready_s": ready - start,
        "ready_cpu_s": ready_cpu,
        "shares_s": filler.shares_s,
        "shares_cpu_s": filler.shares_cpu_s,
        "storing_s": filler.storing_s,
        "difference": filler.difference.tolist(),
        "cpu_s": time.process_time(),
    }


# One aggregator's process.


@asynccontextmanager
async def running(seat: Seat, found: dict[str, Any]) -> AsyncIterator[Core]:
    """Run an aggregator with its store, its worker process and its peer listener."""
    start = time.perf_counter()
    store = open_store(seat)
    found["open"] = time.perf_counter() - start
    own, other = NAMES[seat.position], NAMES[1 - seat.position]
    endpoint = f"127.0.0.1:{seat.ports[1 - seat.position]}"
    context = context_over(
        store,
        seat.identity,
        ProcessWorkers(1),
        limits=Limits(smallest_min_batch_size=2, allow_exact_release=True, give_up_s=86_400),
        peers={other: GrpcPeer(other, endpoint, caller=own, timeout_s=60, credentials=None)},
    )
    await context.questions.load(context.windows)
    await context.windows.load(context.questions)
    core = Core.of(context)
    server = peer_server(PeerShell(core.helper, context.host.metrics, claimed_peer(NAMES)))
    server.add_insecure_port(f"127.0.0.1:{seat.ports[seat.position]}")
    await server.start()
    try:
        yield core
    finally:
        await server.stop(1)
        await context.workers.close()
        await store.close()


def run_seat(seat: Seat, results: Results, ended: Barrier) -> None:
    """Run one aggregator until the window has ended everywhere, and report; the whole of a process."""
    return_large_arrays()
    found: dict[str, Any] = {}
    with Meter() as meter:
        asyncio.run(_run_seat(seat, found, ended, meter))
    found["cpu"].append(("closed", meter.cpu_s()))
    found["memory"] = meter.memory()
    results.put((seat.position, found))


async def _run_seat(seat: Seat, found: dict[str, Any], ended: Barrier, meter: Meter) -> None:
    window_id = window_at(decode_signed_question(seat.signed).question, 0).window_id
    found["cpu"] = [("loaded", meter.cpu_s())]
    async with running(seat, found) as core:
        start = time.perf_counter()
        found["cpu"].append(("opened", meter.cpu_s()))
        moved: list[tuple[str, float]] = []

        def note() -> None:
            state = core.context.windows.states[window_id].value
            if not moved or moved[-1][0] != state:
                if moved:
                    found["cpu"].append((moved[-1][0], meter.cpu_s()))
                moved.append((state, time.perf_counter() - start))
                say(seat, state, start)

        while core.context.windows.states[window_id] not in FINAL_STATES:
            driving = asyncio.ensure_future(core.scheduler.look_after(core.context.windows[window_id]))
            while not driving.done():
                note()
                await asyncio.sleep(0.02)
            await driving
            await asyncio.sleep(0.02)
        note()
        found["moved"] = moved
        found["total"] = moved[-1][1]
        found["state"] = moved[-1][0]
        answer = await core.service.release(window_id)
        found["record"] = answer.record
        await asyncio.to_thread(ended.wait, ENDING_S)
        found["cpu"].append((moved[-1][0], meter.cpu_s()))


# The whole.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the whole and report seconds a stage and peak memory; 1 if the numbers are not what the coins say."""
    options = _parser().parse_args(arguments)
    load = os.getloadavg()[0]
    if options.postgres and find_postgres() is None:
        report(Row(path="two aggregators over PostgreSQL", ours=None, unit="s", note="needs PostgreSQL"))
        return 0
    started = time.perf_counter()
    directory = Path(tempfile.mkdtemp(dir=options.directory))
    with ExitStack() as opened:
        opened.callback(shutil.rmtree, directory)
        server = opened.enter_context(own_cluster(*SETTINGS)) if options.postgres else None
        seats = seats_in(directory, server, options)
        filled = in_both(fill_seat, seats, options.limit)
        disk = sum(path.stat().st_size for path in directory.glob("*/*"))
        if server is not None:
            disk = sum(server.run(f"SELECT pg_database_size('{name}')")[0][0] for name in NAMES)
        half = time.perf_counter()
        reports = in_both(run_seat, seats, options.limit)
    records = {at: one.pop("record") for at, one in reports.items()}
    differences = [one.pop("difference") for one in filled.values()]
    figures = {
        "devices": options.devices,
        "L": options.values + 1,
        "load": load,
        "stores": "PostgreSQL" if options.postgres else "files",
        "filling_s": half - started,
        "store_bytes": disk,
        "total_s": time.perf_counter() - started,
        "filled": {NAMES[at]: one for at, one in filled.items()},
        "aggregators": {NAMES[at]: one for at, one in reports.items()},
    }
    show(figures)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    cells = [cell.raw for cell in decode_record(records[0]).cells]
    if cells != differences[0][1:] or records[0] != records[1]:
        print("the released numbers are not what the coins say", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    devices = 2_000 if smoke() else 20_000 if quick() else MILLION
    parser.add_argument("--devices", type=int, default=devices, help="how many (default %(default)s)")
    parser.add_argument("--values", type=int, default=100, help="cells; L is one more (default 100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="where the stores lie; by default a temporary place")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds either half may take (default 1800)")
    parser.add_argument("--postgres", action="store_true", help="stores in databases of a server of its own")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    return parser


def seats_in(directory: Path, server: Cluster | None, options: argparse.Namespace) -> dict[str, Seat]:
    """Return both aggregators of one question, by name, with places below a directory."""
    signing = [Ed25519PrivateKey.generate() for _ in NAMES]
    one, two = free_ports("127.0.0.1", 2)
    signed = encode_signed_question(new_question(options.values, signing, (one, two)))
    return {
        name: Seat(
            position=position,
            signing_keys=(signing[0].private_bytes_raw(), signing[1].private_bytes_raw()),
            ports=(one, two),
            place=place_of(name, directory, server),
            signed=signed,
            devices=options.devices,
            seed=options.seed,
        )
        for position, name in enumerate(NAMES)
    }


def place_of(name: str, directory: Path, server: Cluster | None) -> StorePlace:
    """Return where one aggregator's store lies: a directory, or a new database."""
    own = directory / name
    own.mkdir()
    if server is None:
        return StorePlace(directory=own)
    server.run(f"CREATE DATABASE {name}")
    return StorePlace(directory=own, url=server.url(name))


def show(figures: dict[str, Any]) -> None:
    """Report the figures; what must be is that it ends, in a minute if possible."""
    size = f"two aggregators, {figures['devices']:,} devices, L = {figures['L']}"
    # The limits are those of the embedded store; on a server the figure stands beside them without a demand.
    full = figures["devices"] == MILLION and figures["stores"] == "files"
    if figures["stores"] != "files":
        size += ", PostgreSQL"
    seconds, note = figures["total_s"], f"both stores {figures['store_bytes'] / 2**20:,.0f} MiB"
    limited(f"{size}: from shares to release", seconds, "s", AIM_S if full else None, aim=1, note=note)
    for name in NAMES:
        one = figures["filled"][name]
        shares, rest = one["shares_cpu_s"], one["cpu_s"] - one["ready_cpu_s"] - one["shares_cpu_s"]
        stage(f"{size}: {name} makes shares", one["shares_s"], f"CPU {shares:.1f} s")
        stage(f"{size}: {name} stores its instalments", one["storing_s"], f"CPU {rest:.1f} s")
    for name in NAMES:
        one = figures["aggregators"][name]
        moved, cpu = dict(one["moved"]), dict(one["cpu"])
        sealed = moved.get("releasing", one["total"])
        stage(f"{size}: {name} opens its store", one["open"], f"CPU {cpu['opened']:.1f} s")
        took = sealed - moved.get("agreeing", 0.0)
        stage(f"{size}: {name} agrees and verifies", took, f"CPU {cpu.get('agreeing', 0.0):.1f} s, {one['state']}")
        note = f"CPU {sum(cpu.values()):.1f} s in all, {cpu['loaded']:.1f} s of it to load programs"
        stage(f"{size}: {name} adds up and releases", one["total"] - sealed, note)
        memory = {what: value / 2**20 for what, value in one["memory"].items()}
        own = f"{memory['process']:,.0f} MiB in the process, {memory['workers']:,.0f} in its worker"
        note = f"{own}, {memory['files']:,.0f} of files, mapped by both and counted once"
        limited(f"{size}: {name}, memory", sum(memory.values()), "MiB", MUST_MIB if full else None, must=1, note=note)


def stage(what: str, seconds: float, note: str = "") -> None:
    """Report one stage."""
    report(Row(path=what, ours=seconds, unit="s", note=note))


def limited(
    what: str,
    value: float,
    unit: Unit,
    limit: float | None,
    *,
    must: float | None = None,
    aim: float | None = None,
    note: str,
) -> None:
    """Report a figure beside its limit, where it has one at this size."""
    if limit is None:
        report(Row(path=what, ours=value, unit=unit, note=note))
        return
    report(
        Row(
            path=what,
            ours=value,
            unit=unit,
            peer="limit",
            peer_value=limit,
            ratio=value / limit,
            must=must,
            aim=aim,
            larger_is_better=False,
            note=note,
        )
    )


if __name__ == "__main__":
    sys.exit(main())

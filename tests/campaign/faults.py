"""What fails in a trial of the campaign, by the name that the page has for it, and in which lanes it can."""

import asyncio
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from fleetcount_transport.failpoints import AGGREGATOR_FAILPOINTS

from tests.campaign.devices import DEVICES, certificate_of
from tests.campaign.trials import NOTHING, Episode, Fault, Lane, Spared
from tests.support.postgres import Cluster
from tests.support.processes import ChildProcess, pace, wait_until
from tests.support.replicas import NEXT_RELEASE, THIS_RELEASE, open_files

_POINTS: Final = {
    "alpha": tuple(one for one in AGGREGATOR_FAILPOINTS if not one.startswith("helper.")),
    "beta": tuple(one for one in AGGREGATOR_FAILPOINTS if not one.startswith("leader.")),
}
_OFF_S: Final = 6.0
_FAR_S: Final = (3_600.0, 86_400.0, 400 * 86_400.0)
"""A hardware clock in local time, one that lost a day, and one without a battery."""
_HANGS_S: Final = 9.0
Names = Callable[[Lane], list[str]]


def _leader(lane: Lane) -> list[str]:
    return lane.leader


def _helper(lane: Lane) -> list[str]:
    del lane
    return ["beta"]


def _both(lane: Lane) -> list[str]:
    return lane.aggregators


def _devices(lane: Lane) -> list[str]:
    del lane
    return ["devices"]


def _relay(lane: Lane) -> list[str]:
    del lane
    return ["relay"]


def _broker(lane: Lane) -> list[str]:
    del lane
    return ["broker"]


def _intake(lane: Lane) -> list[str]:
    """One of the processes that take reports."""
    return [lane.dice.choice([name for name in lane.leader if name.startswith("intake")])]


def _worker(lane: Lane) -> list[str]:
    return [name for name in lane.leader if name.startswith("worker")]


def _coordinator(lane: Lane) -> list[str]:
    assert lane.replicas is not None
    return [lane.replicas.leading()]


def _waiting_coordinator(lane: Lane) -> list[str]:
    [leading] = _coordinator(lane)
    return [next(name for name in lane.leader if name.startswith("coordinator") and name != leading)]


def _any_aggregator(lane: Lane) -> list[str]:
    return [lane.dice.choice(lane.aggregators)]


def _found(names: Names, lane: Lane, under: Episode) -> list[str]:
    """Return whom a fault hits now; nobody if nobody has the role at this moment."""
    if not all(found := names(lane)):
        under.begun = 0.0
        raise Spared
    return found


async def _nothing(lane: Lane, under: Episode) -> None:
    del lane, under


async def _killed(lane: Lane, under: Episode, names: Names) -> None:
    await under.strikes()
    found = _found(names, lane, under)
    await lane.kill(*found)
    await asyncio.sleep(lane.dice.uniform(0.0, 1.0))
    await asyncio.gather(*(lane.start(name, under.ready_s) for name in found))


async def _killed_at_a_point(lane: Lane, under: Episode, name: str) -> None:
    """Die by its own hand, as by SIGKILL, at any of its fail points; armed before the windows open."""
    await lane.kill(name)
    under.begun = time.time()
    await lane.start(name, under.ready_s, lane.dice.choice(_POINTS[name]))
    while lane.child(name).running and time.time() < under.closes + 40 * pace():
        await asyncio.sleep(0.02)
    await asyncio.to_thread(lane.child(name).reap)
    await lane.start(name, under.ready_s)


async def _stopped(lane: Lane, under: Episode, names: Names, least_s: float = 1.0) -> None:
    await under.strikes()
    pids = [lane.child(name).pid for name in _found(names, lane, under)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(lane.dice.uniform(least_s, least_s + 5.0))
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


async def _cut_off(lane: Lane, under: Episode, names: Names) -> None:
    """Let nothing pass between a process and the server for longer than a session may be silent; then all that waited
    comes at once.
    """
    await under.strikes()
    lines = [lane.lines[name] for name in _found(names, lane, under)]
    for line in lines:
        line.passes.clear()
    await asyncio.sleep(lane.dice.uniform(_HANGS_S, _HANGS_S + 5.0))
    for line in lines:
        line.passes.set()


def _workers_of(pid: int) -> Iterator[int]:
    """Return the processes that check proofs for an aggregator: it has another child, which only counts semaphores."""
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((directory / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == pid and b"multiprocessing.spawn" in (directory / "cmdline").read_bytes():
                yield int(directory.name)


async def _proof_worker_killed(lane: Lane, under: Episode) -> None:
    """Kill a process that checks proofs, of one aggregator's, when some window's rounds are closing."""
    names = ["beta"] if lane.replicas is not None else lane.aggregators
    moment = lane.dice.choice(under.windows).window.round_two_closes - 0.5
    await under.strikes(moment, moment)
    pid = lane.child(lane.dice.choice(names)).pid
    for _ in range(400):
        for worker in _workers_of(pid):
            os.kill(worker, signal.SIGKILL)
            return
        await asyncio.sleep(0.01)
    raise Spared


async def _upgraded(lane: Lane, under: Episode) -> None:
    """End the leader's processes one after the other, each followed by one of the next release, or of this one again.

    The tables stay those of this release, which both serve.
    """
    assert lane.replicas is not None
    await under.strikes()
    names = list(lane.leader)
    lane.dice.shuffle(names)
    release = lane.dice.choice([THIS_RELEASE, NEXT_RELEASE])
    for name in names:
        lane.child(name).terminate()
        await asyncio.to_thread(lane.child(name).ended)
        lane.replicas.change_release(name, release)
        await lane.start(name, under.ready_s)


async def _server_killed(lane: Lane, under: Episode) -> None:
    assert lane.cluster is not None
    await under.strikes()
    await asyncio.to_thread(lane.cluster.kill)
    await asyncio.sleep(lane.dice.uniform(0.0, 2.0))
    await asyncio.to_thread(lane.cluster.start)


async def _failed_over(lane: Lane, under: Episode) -> None:
    """Kill the server once a standby has all that is committed; that takes over, and the operator says so."""
    assert lane.cluster is not None
    assert lane.replicas is not None
    primary, names = lane.cluster, list(lane.replicas.processes)
    await under.strikes()
    standby = await asyncio.to_thread(lane.owned.enter_context, primary.standby())
    await asyncio.to_thread(primary.run, "ALTER SYSTEM SET synchronous_standby_names = '*'")
    await asyncio.to_thread(primary.run, "SELECT pg_reload_conf()")
    await asyncio.sleep(lane.dice.uniform(0.5, 4.0))
    await asyncio.to_thread(primary.kill)
    await asyncio.to_thread(standby.run, "SELECT pg_promote()")
    lane.cluster = standby
    for line in lane.lines.values():
        line.targets = [standby.socket]
    await lane.kill(*names)
    with lane.replicas.accepting_failover():
        await asyncio.gather(*(lane.start(name, under.ready_s) for name in names))


async def _devices_killed(lane: Lane, under: Episode) -> None:
    await under.strikes()
    under.devices.kill()
    await asyncio.sleep(lane.dice.uniform(0.0, 1.0))
    await asyncio.to_thread(under.devices.start)


async def _cold_start(lane: Lane, under: Episode) -> None:
    """Kill everything at once; then the server of the stores starts, and all others in any order."""
    await under.strikes()
    names = [*lane.aggregators, "broker", "relay"]
    server = [asyncio.to_thread(lane.cluster.kill)] if lane.cluster is not None else []
    await asyncio.gather(lane.kill(*names), asyncio.to_thread(under.devices.reap), *server)
    if lane.cluster is not None:
        await asyncio.to_thread(lane.cluster.start)
    lane.dice.shuffle(names)
    await asyncio.to_thread(under.devices.start)
    await asyncio.gather(*(lane.start(name, under.ready_s) for name in names))


async def _disk_full(lane: Lane, under: Episode) -> None:
    """Fill the disk that both stores lie on, for some seconds."""
    await under.strikes()
    filling = lane.root / "filling"
    with suppress(OSError), filling.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    await asyncio.sleep(lane.dice.uniform(1.0, 4.0))
    filling.unlink()


@contextmanager
def _failing_syncs(pids: list[int]) -> Iterator[None]:
    """Let every fsync of these processes fail with EIO."""
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync"]
    targets = [word for pid in pids for word in ("-p", str(pid))]
    tracer = subprocess.Popen(
        [*command, "-e", "inject=fsync,fdatasync:error=EIO", *targets],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        tracer.terminate()
        tracer.wait()


async def _disk_error(lane: Lane, under: Episode) -> None:
    """Let syncs of one aggregator fail for some seconds."""
    [name] = _any_aggregator(lane)
    await under.strikes()
    under.supervised = name
    with _failing_syncs([lane.child(name).pid]):
        await asyncio.sleep(lane.dice.uniform(1.0, 4.0))


async def _server_disk_error(lane: Lane, under: Episode) -> None:
    """Let syncs of PostgreSQL fail for some seconds; it panics and recovers by itself."""
    assert lane.cluster is not None
    await under.strikes()
    with _failing_syncs(lane.cluster.processes()):
        await asyncio.sleep(lane.dice.uniform(1.0, 4.0))
    await asyncio.to_thread(lane.cluster.revive)


async def _limited(lane: Lane, under: Episode, kind: int, limit: Callable[[int], int]) -> None:
    """Give an aggregator's process a limit of resources that it has reached already, for some seconds."""
    [name] = _any_aggregator(lane)
    await under.strikes()
    under.supervised, pid = name, lane.child(name).pid
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (limit(pid), before[1]))
    await asyncio.sleep(lane.dice.uniform(1.0, 5.0))
    with suppress(ProcessLookupError):
        resource.prlimit(pid, kind, before)


def _data_bytes(pid: int) -> int:
    """Return how much writable memory a process has of its own, as the kernel counts it; of that some is free still."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[5]) * resource.getpagesize()


async def _clock_off(lane: Lane, under: Episode) -> None:
    """Start one aggregator with a clock that is up to six seconds off, and later with the right one."""
    [name] = _any_aggregator(lane) if lane.replicas is None else _helper(lane)
    await _off(lane, under, name, lane.dice.choice([-1, 1]) * lane.dice.uniform(1.0, _OFF_S))


async def _clock_far_off(lane: Lane, under: Episode, names: Names) -> None:
    """Start a process with a clock that is an hour, a day or 400 days off, and later with the right one.

    Where an aggregator's store is on a server, that has the same wrong clock, as on one machine, or the right one:
    then the process refuses to start.
    """
    name, ahead_s = lane.dice.choice(names(lane)), lane.dice.choice([-1, 1]) * lane.dice.choice(_FAR_S)
    has_server = lane.cluster is not None and name in (lane.leader if lane.replicas else lane.aggregators)
    if not has_server:
        await _off(lane, under, name, ahead_s)
    elif lane.replicas is not None or lane.dice.random() < 0.5:
        await _off(lane, under, name, ahead_s, is_refused=True)
    else:
        await _off(lane, under, name, ahead_s, server=lane.cluster)


async def _off(
    lane: Lane,
    under: Episode,
    name: str,
    ahead_s: float,
    *,
    server: Cluster | None = None,
    is_refused: bool = False,
) -> None:
    """Start a process again with a clock that is off, as its server's is if one is named, then with the right one."""
    child = under.devices if name == "devices" else lane.child(name)
    await under.strikes()
    try:
        await _set_clock(child, ahead_s, server)
        await asyncio.to_thread(child.kill)
        if is_refused:
            await asyncio.to_thread(_start_is_refused, child)
        else:
            await _start(lane, under, name)
        await asyncio.sleep(max(0.0, lane.dice.uniform(under.begun, under.closes + 3.0) - time.time()))
    finally:
        await _set_clock(child, 0.0, server)
    await asyncio.to_thread(child.reap)
    await _start(lane, under, name)


async def _set_clock(child: ChildProcess, ahead_s: float, server: Cluster | None) -> None:
    child.clock_s = ahead_s
    if server is not None:
        await asyncio.to_thread(server.set_clock, child.name, ahead_s)


async def _start(lane: Lane, under: Episode, name: str) -> None:
    if name == "devices":
        await asyncio.to_thread(under.devices.start)
    else:
        await lane.start(name, under.ready_s)


def _start_is_refused(child: ChildProcess) -> None:
    """Let a process start whose clock is not that of its server; refuse to go on if it does anything but end."""
    child.start()
    wait_until(lambda: not child.running, f"{child.name} has ended", 60.0)
    if "its clock is" not in (said := child.last_lines(1)):
        raise AssertionError(f"{child.name} started with a wrong clock, or ended for another reason: {said}")


async def _denied(lane: Lane, under: Episode) -> None:
    """Put a device on the deny list in the middle, unless a slow machine has not made its devices by then."""
    await under.strikes()
    if not certificate_of(under.directory, DEVICES).exists():
        raise Spared
    lane.deny(under, lane.dice.randrange(1, DEVICES + 1))


def _run(lane: Lane, position: int, *words: str) -> None:
    """Run `fleetcount aggregator` for a position; refuse to go on if it fails."""
    command = [sys.executable, "-m", "fleetcount", "aggregator", words[0], "--config"]
    said = subprocess.run(
        [*command, str(lane.deployment.config(position)), *words[1:]],
        capture_output=True, check=False, text=True, timeout=120 * pace(),
    )  # fmt: skip
    if said.returncode != 0:
        raise AssertionError(f"{words}: exit {said.returncode}: {said.stdout}{said.stderr}")


async def _bit_flipped(lane: Lane, under: Episode) -> None:
    """Flip one bit of a helper's log of reports between a window's rounds; start; later stop, repair and start
    again.
    """
    window = lane.dice.choice(under.windows).window
    moment = window.round_one_closes + 1.0
    await under.strikes(moment, moment)
    await lane.kill("beta")
    log = lane.deployment.state_directory(1) / f"aggregator.{window.window_id.hex()}.log"
    data = bytearray(log.read_bytes())
    place = lane.dice.randrange(len(data))
    data[place] ^= 1 << lane.dice.randrange(8)
    log.write_bytes(data)
    await lane.start("beta", under.ready_s)
    await asyncio.sleep(max(0.0, window.round_two_closes + 2.0 - time.time()))
    lane.child("beta").terminate()
    await asyncio.to_thread(lane.child("beta").ended)
    await asyncio.to_thread(_run, lane, 1, "repair")
    await lane.start("beta", under.ready_s)


async def _restored(lane: Lane, under: Episode) -> None:
    """Back up one aggregator while windows are open, lose its disk at some later moment, and put the backup back."""
    position = lane.dice.randrange(2)
    name, state = lane.aggregators[position], lane.deployment.state_directory(position)
    await asyncio.sleep(max(0.0, under.opens + 0.5 - time.time()))
    backup = under.directory / "backup"
    await asyncio.to_thread(_run, lane, position, "backup", "--output", str(backup))
    await under.strikes(earliest=time.time(), latest=max(time.time(), under.closes) + 1.0)
    await lane.kill(name)
    shutil.rmtree(state)
    await asyncio.to_thread(_run, lane, position, "restore", str(backup))
    await lane.start(name, under.ready_s)


FAULTS: Final[dict[str, Fault]] = {
    NOTHING: _nothing,
    "kill -9 of the leader": partial(_killed, names=_leader),
    "kill -9 of the helper": partial(_killed, names=_helper),
    "kill -9 of both": partial(_killed, names=_both),
    "kill -9 of the leader between two steps": partial(_killed_at_a_point, name="alpha"),
    "kill -9 of the helper between two steps": partial(_killed_at_a_point, name="beta"),
    "kill -9 of a proof worker": _proof_worker_killed,
    "kill -9 of the broker": partial(_killed, names=_broker),
    "kill -9 of the relay": partial(_killed, names=_relay),
    "kill -9 of all devices": _devices_killed,
    "kill -9 of PostgreSQL": _server_killed,
    "kill -9 of PostgreSQL, replicas follow its standby": _failed_over,
    "kill -9 of an intake replica": partial(_killed, names=_intake),
    "kill -9 of the worker replica": partial(_killed, names=_worker),
    "kill -9 of the elected coordinator": partial(_killed, names=_coordinator),
    "kill -9 of the coordinator that waits": partial(_killed, names=_waiting_coordinator),
    "kill -9 of everything, a cold start": _cold_start,
    "replicas of another release, one after the other": _upgraded,
    "SIGSTOP of the leader": partial(_stopped, names=_leader),
    "SIGSTOP of the helper": partial(_stopped, names=_helper),
    "SIGSTOP of an intake replica": partial(_stopped, names=_intake, least_s=_HANGS_S),
    "SIGSTOP of the coordinator beyond its session": partial(_stopped, names=_coordinator, least_s=_HANGS_S),
    "an intake replica cut off from PostgreSQL": partial(_cut_off, names=_intake),
    "the worker replica cut off from PostgreSQL": partial(_cut_off, names=_worker),
    "the elected coordinator cut off from PostgreSQL": partial(_cut_off, names=_coordinator),
    "full disk": _disk_full,
    "EIO from every sync": _disk_error,
    "EIO from every sync of PostgreSQL": _server_disk_error,
    "files that cannot grow": partial(_limited, kind=resource.RLIMIT_FSIZE, limit=lambda _: 1),
    "descriptors used up": partial(_limited, kind=resource.RLIMIT_NOFILE, limit=lambda pid: len(open_files(pid))),
    "memory used up": partial(_limited, kind=resource.RLIMIT_DATA, limit=_data_bytes),
    "a clock up to 6 s off": _clock_off,
    "a start of the leader with a clock far off": partial(_clock_far_off, names=_leader),
    "a start of the helper with a clock far off": partial(_clock_far_off, names=_helper),
    "a start of the relay with a clock far off": partial(_clock_far_off, names=_relay),
    "a start of all devices with a clock far off": partial(_clock_far_off, names=_devices),
    "a device denied in the middle": _denied,
    "a flipped bit and a repair": _bit_flipped,
    "a disk lost, a backup put back": _restored,
}
"""Everything that is tried, by what the page calls it."""
_FILES: Final = {
    "a flipped bit and a repair",
    "a disk lost, a backup put back",
    "EIO from every sync",
    "files that cannot grow",
}
_WHOLE: Final = {"kill -9 of the leader between two steps"}
_SERVER: Final = {"kill -9 of PostgreSQL", "EIO from every sync of PostgreSQL"}
_REPLICAS: Final = {name for name in FAULTS if "replica" in name or "coordinator" in name}


def fits(fault: str, lane: Lane) -> bool:
    """Whether a fault can be tried in a lane: files are flipped, lost and filled up below SQLite."""
    if "EIO" in fault and (shutil.which("strace") is None or os.geteuid() != 0):
        return False
    if fault in _REPLICAS:
        return lane.replicas is not None
    if fault in _SERVER:
        return lane.cluster is not None
    if fault == "full disk":
        return lane.disk
    if fault == "a device denied in the middle":
        return lane.deny_list is not None
    return (lane.cluster is None or fault not in _FILES) and (lane.replicas is None or fault not in _WHOLE)

"""One window after the other through real processes for as long as asked: what an aggregator holds does not grow.

    python -m tests.campaign.soak --seconds 3600 >> soak.jsonl

Four devices with cells of their own and coins that the test fixes answer a window every few seconds, half of them over
MQTT. A tenth of the run is one line on standard error; the last line, on standard output, is the result as JSON. What
is there after the first tenth, or ten minutes if that is more, is compared with the end: exit code 1 if anything grew
by more than `allowed`, a window was not released as the coins say, or more than one in a hundred were too slow to
judge. A signal ends a run with what was seen so far, and with exit code 1.
"""

import argparse
import asyncio
import json
import math
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import grpc.aio
from fleetcount_client.contact import OutcomeKind
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_transport.lost_reasons import call_reason

from tests.support.broker import embedded_broker
from tests.support.build import build, today
from tests.support.deployment import LiveDeployment
from tests.support.fleet import Fleet, offer_of
from tests.support.oracle import expected_difference, raw_cells
from tests.support.processes import pace

_DEVICES: Final = 4
_STEPS: Final = 10
_SETTLING_S: Final = 600.0
"""Code is compiled, and the first windows are retired: `windows.retention` looks once a minute."""
_CLOSING_S: Final = 5.0
_KEPT_S: Final = 30
_CACHE_BYTES: Final = 4 << 20
_OWN: Final = re.compile(r"^RssAnon:\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one aggregator holds: it and its workers, and its state directory.

    `own_mib` is memory that no file backs: what is shared, and pages of programs, come and go with the machine's.
    """

    own_mib: float
    descriptors: int
    files: int
    state_bytes: int
    ended: int
    """Windows that had ended by then."""


def allowed(every_s: float) -> dict[str, float]:
    """Return by how much each may grow when a window is asked every so many seconds.

    Windows are retired once a minute, and have a file until then; an ended one keeps its record, steps and debit.
    """
    return {"own_mib": 8.0, "descriptors": 8.0, "files": 16.0 + 90.0 / every_s, "bytes_a_window": 24_576.0}


def too_slow(slow: Sequence[str], asked: int) -> list[str]:
    """Return what there is to say if more than one window in a hundred, and more than one at all, were slow."""
    if len(slow) <= max(1, asked // 100):
        return []
    return [f"{len(slow)} of {asked} windows were too slow to judge, the first {slow[0]}"]


def _family(pid: int) -> list[int]:
    """Return a process and everything below it that lives."""
    below = [int(word) for word in _text(f"/proc/{pid}/task/{pid}/children").split()]
    return [pid, *(one for child in below for one in _family(child))]


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _descriptors(pid: int) -> int:
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0


def held(pid: int, state: Path, ended: int) -> Held:
    """Return what an aggregator holds now, by its process and its state directory."""
    family, sizes = _family(pid), list[int]()
    for path in state.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # It went meanwhile.
            continue
    own = [_OWN.search(_text(f"/proc/{one}/status")) for one in family]
    return Held(
        own_mib=round(sum(int(one[1]) for one in own if one) / 2**10, 1),
        descriptors=sum(map(_descriptors, family)),
        files=len(sizes),
        state_bytes=sum(sizes),
        ended=ended,
    )


def grown(first: Held, last: Held) -> dict[str, float]:
    """Return by how much what is held has grown, by the names of `allowed`.

    Not counted is what SQLite may keep of the database, for two connections, until each cache is full.
    """
    found = {name: float(getattr(last, name) - getattr(first, name)) for name in ("own_mib", "descriptors", "files")}
    cached = (2 * min(_CACHE_BYTES, one.state_bytes) / 2**20 for one in (last, first))
    found["own_mib"] -= next(cached) - next(cached)
    return found | {"bytes_a_window": (last.state_bytes - first.state_bytes) / max(1, last.ended - first.ended)}


class Soak:
    """A deployment, its devices, and what has come of the windows so far."""

    def __init__(self, deployment: LiveDeployment, fleet: Fleet) -> None:
        self.deployment, self.fleet = deployment, fleet
        self.asked, self.ended, self.released, self.late = 0, 0, 0, 0
        self.wrong: list[str] = []
        self.slow: list[str] = []

    def question(self) -> Question:
        """Return a question that is retired half a minute or so after its window."""
        one = self.deployment.question(_DEVICES)
        kept_s = math.ceil(time.time() + _KEPT_S * pace()) - one.schedule.end
        return replace(one, schedule=replace(one.schedule, expiry_s=max(1, kept_s)))

    async def one(self, question: Question) -> None:
        """Let the devices answer a question, and judge what comes of it; no single one ends the run.

        One that was not offered or told of in time is slow. What that hides is bounded: `too_slow`.
        """
        try:
            await self._judged(question)
        except TimeoutError:
            self.slow.append(f"{question.name}: not offered in time")
        except grpc.aio.AioRpcError as error:
            told = self.slow if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else self.wrong
            told.append(f"{question.name}: its release was not told: {call_reason(error)}")
        except AssertionError as error:
            self.wrong.append(f"{question.name}: {error}")

    async def _judged(self, question: Question) -> None:
        window = window_at(await asyncio.to_thread(self.deployment.submit, question), 0)
        offer = await offer_of(self.deployment, window)
        devices = self.fleet.devices
        outcomes = await asyncio.gather(*(live.device.answer_question(offer) for live in devices))
        kept = [
            live for live, ends in zip(devices, outcomes, strict=True) if ends and ends[0].kind is OutcomeKind.DELIVERED
        ]
        self.late += len(devices) - len(kept)  # On a loaded machine: they missed a window, and say so.
        statuses = await self.deployment.ended(window)
        self.ended += 1
        if {one.state for one in statuses} == {WindowState.RELEASED}:
            self.released += 1
            cells = raw_cells((await self.deployment.release(window)).record)
            least, most = (expected_difference(_DEVICES, [live.rounds for live in one]) for one in (kept, devices))
            if not all(low <= cell <= high for low, cell, high in zip(least, cells, most, strict=True)):
                self.wrong.append(f"{window.name}: cells {list(cells)}; delivered {least}, of all {most}")
        elif len(kept) >= window.min_batch_size:
            self.wrong.append(f"{window.name}: {[(one.state.value, one.abort_reason) for one in statuses]}")

    def measure(self) -> list[Held]:
        """Return what every aggregator holds."""
        one = self.deployment
        return [held(child.pid, one.state_directory(at), self.ended) for at, child in enumerate(one.children)]


@asynccontextmanager
async def _started(root: Path) -> AsyncGenerator[Soak]:
    with ExitStack() as stack:
        broker = embedded_broker(root)
        stack.callback(broker.stop)
        deployment = LiveDeployment(root / "soak", 2, broker=broker.started, compiled=True)
        for position in range(2):
            path = deployment.config(position)
            path.write_text(path.read_text().replace("[limits]\n", f"[limits]\nkeep_digests_s = {_KEPT_S}\n", 1))
        stack.callback(deployment.stop_all)
        deployment.start_all()
        mechanism = deployment.question(_DEVICES).mechanism
        assert isinstance(mechanism, SamplingDie)
        fleet = Fleet(deployment, root, mechanism, ["grpc", "mqtt"], devices=_DEVICES)
        async with AsyncExitStack() as devices:
            for live in fleet.devices:
                await devices.enter_async_context(live.device)
            yield Soak(deployment, fleet)


async def _soak(seconds: float, every_s: float, root: Path) -> tuple[Soak, list[Held], list[Held]]:
    """Ask for so long; return what came of it and what everybody held once settled and in the end.

    At both moments nothing is under way: how many connections ten windows have at once is the machine's load.
    """
    async with _started(root) as soak:
        under: set[asyncio.Task[None]] = set()
        begun, step, first = time.monotonic(), 1, list[Held]()
        due, over = begun, asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):  # A shell lets what it begins in the background ignore SIGINT.
            asyncio.get_running_loop().add_signal_handler(number, over.set)
        while (passed := time.monotonic() - begun) < seconds and not over.is_set():
            if not first and passed >= max(seconds / _STEPS, min(_SETTLING_S, seconds / 2)):
                first, under = await _quiet(soak, under), set()
            if passed >= step * seconds / _STEPS:
                _say(passed, soak, soak.measure())
                step += 1
            question = soak.question()
            soak.asked += 1
            under.add(asyncio.create_task(soak.one(question), name=question.name))
            due = max(due + every_s, time.monotonic())
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), due - time.monotonic())
        last = await _quiet(soak, under)
        _say(passed, soak, last)
        if over.is_set():
            soak.wrong.append(f"ended by a signal after {passed:.0f} s of {seconds:.0f}")
    soak.wrong += soak.deployment.troubles()[:20]
    return soak, first or last, last


async def _quiet(soak: Soak, under: Iterable[asyncio.Task[None]]) -> list[Held]:
    """Return what everybody holds once all windows have ended and their connections are closed."""
    await asyncio.gather(*under)
    await asyncio.sleep(_CLOSING_S)
    return soak.measure()


def _say(passed: float, soak: Soak, now: Sequence[Held]) -> None:
    shown = "; ".join(
        f"{child.name} {one.own_mib:.0f} MiB, {one.descriptors} descriptors, {one.files} files,"
        f" {one.state_bytes // max(1, one.ended)} bytes a window"
        for child, one in zip(soak.deployment.children, now, strict=True)
    )
    print(f"{passed:.0f} s, {soak.released} of {soak.asked} released: {shown}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaign.soak", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=3600.0, help="ask for so long (3600)")
    parser.add_argument("--every", type=float, default=2.5, help="seconds from one window to the next (2.5)")
    parser.add_argument("--result", type=Path, metavar="FILE", help="write the last line there too, for the page")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fc-soak-") as directory:
        soak, first, last = asyncio.run(_soak(chosen.seconds, chosen.every, Path(directory)))
    names = [child.name for child in soak.deployment.children]
    growth = {name: grown(*pair) for name, *pair in zip(names, first, last, strict=True)}
    limits = allowed(chosen.every)
    too_much = [
        f"{name}: {what} grew by {by:.1f}, allowed {limits[what]:g}"
        for name, found in growth.items()
        for what, by in found.items()
        if by > limits[what]
    ]
    result = {
        "build": build(),
        "day": today(),
        "soak_s": chosen.seconds,
        "every_s": chosen.every,
        "windows": soak.asked,
        "released": soak.released,
        "late_answers": soak.late,
        "slow": soak.slow[:20],
        "settled": dict(zip(names, map(asdict, first), strict=True)),
        "end": dict(zip(names, map(asdict, last), strict=True)),
        "grown": growth,
        "failed": [*too_much, *too_slow(soak.slow, soak.asked), *soak.wrong],
    }
    print(json.dumps(result), flush=True)
    if chosen.result:
        chosen.result.write_text(json.dumps(result) + "\n")
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

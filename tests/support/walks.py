"""Walks through the product: which of its files run between two points, and how often one calls a file above it.

    python -m tests.support.walks [--files]      prints a line a walk; with --files, each file and its import floor

A file's floor is one more than the highest that it imports. Real code runs, in the tests' worlds in memory, under
`sys.setprofile`.
"""

import ast
import asyncio
import gc
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from fleetcount.read.report import statement_lines, table_lines
from fleetcount_protocol.release.record import decode_record
from fleetcount_protocol.wire.device_columns import UPLOAD, Upload

from tests.client.deployment import Deployment
from tests.support.aggregators import Network, TestDevice

ROOT: Final = Path(__file__).resolve().parent.parent.parent
_SOURCE: Final = "/src/fleetcount"


@dataclass
class Walk:
    """What ran: product files with the number of calls into each, and pairs of a calling file and a called one."""

    files: Counter[Path] = field(default_factory=Counter)
    edges: set[tuple[Path, Path]] = field(default_factory=set)

    def upward(self, floors: dict[Path, int]) -> list[tuple[Path, Path]]:
        """Return the edges that lead to a file on a higher floor than the caller's, sorted."""
        return sorted((one, other) for one, other in self.edges if floors[one] < floors[other])

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Take part as a function of `sys.setprofile`."""
        code = frame.f_code
        if event != "call" or _SOURCE not in code.co_filename or code.co_name == "<module>" or _is_import(frame):
            return
        called = Path(code.co_filename)
        self.files[called] += 1
        caller = frame.f_back
        # Libraries and the event loop hand calls on; a test in between starts anew.
        while caller is not None and not any(word in caller.f_code.co_filename for word in (_SOURCE, "/tests/")):
            caller = caller.f_back
        if caller is not None and _SOURCE in caller.f_code.co_filename:
            self.edges.add((Path(caller.f_code.co_filename), called))


def _is_import(frame: FrameType) -> bool:
    """Say whether a module is being loaded: what its body calls (tables, class bodies) is no step of a walk."""
    while (outer := frame.f_back) is not None:
        if frame.f_code.co_name == "<module>":
            return True
        if "/tests/" in frame.f_code.co_filename:
            return False
        frame = outer
    return False


@contextmanager
def recorded() -> Iterator[Walk]:
    """Record what runs, in every thread that begins meanwhile too."""
    walk = Walk()
    # What earlier tests left is collected before: its ends (of generators, of finalizers) are no step of a walk.
    gc.collect()
    gc.disable()
    threading.setprofile(walk.note)
    sys.setprofile(walk.note)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        gc.enable()
    walk.edges = {(one, other) for one, other in walk.edges if one != other}


def floors() -> dict[Path, int]:
    """Return the floor of every product file, by what it imports anywhere in it."""
    names = {}
    for path in ROOT.glob("*/src/**/*.py"):
        parts = path.relative_to(next(one for one in path.parents if one.name == "src")).with_suffix("").parts
        names[".".join(parts).removesuffix(".__init__")] = path
    imports: dict[Path, set[Path]] = {}
    for path in names.values():
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
        imports[path] = {names[one] for one in found if one in names and names[one] != path}
    known: dict[Path, int] = {}

    def floor(path: Path) -> int:
        if path not in known:
            known[path] = 0  # A circle ends here.
            known[path] = 1 + max((floor(one) for one in imports[path]), default=0)
        return known[path]

    return {path: floor(path) for path in imports}


async def every_thread() -> None:
    """Let the loop's pool begin all of its threads: who finds none idle begins another, and that would be recorded.

    So a walk is what runs on the loop and in threads that it begins itself, however busy the machine is.
    """
    most = ThreadPoolExecutor()._max_workers
    all_there = threading.Barrier(most)
    await asyncio.gather(*(asyncio.to_thread(all_there.wait) for _ in range(most)))


async def device_walk() -> Walk:
    """From a device's truth to the bytes of both rounds at its transport."""
    world = Deployment(2)
    question = world.once()
    with tempfile.TemporaryDirectory() as place:
        device = world.device(Path(place) / "device.db", world.transport(world.offer(question)), truth="B")
        await every_thread()
        with recorded() as walk:
            await device.answer()
    return walk


async def aggregator_walks() -> dict[str, Walk]:
    """From a part's bytes to its receipt, from a closed intake to the signed record, from there to a printed table."""
    walks: dict[str, Walk] = {}
    with tempfile.TemporaryDirectory() as place:
        network = Network(2, directory=Path(place))
        await network.start_all()
        window = await network.ask()
        await network.advance_to(window.round_one_opens)
        coins = [(0, 1), (1, 1), (2, 2), (0, 3)]
        devices = [TestDevice(network, window, number) for number in range(len(coins))]
        for one in devices:
            await one.open_sessions()
        for one, (first, _) in zip(devices[1:], coins[1:], strict=True):
            await one.send(one.first(first))
        parts = devices[0].first(coins[0][0])
        data = UPLOAD.encode(Upload.of(network.core(0).context.host.aggregator_id, parts[:1]))
        with recorded() as walks["part to receipt"]:
            await network.core(0).service.upload(UPLOAD.decode(data).instalments())
        await devices[0].send(parts, to=[1])
        await network.advance_to(window.round_one_closes)
        for one, both in zip(devices, coins, strict=True):
            await one.send(one.second(*both))
        await every_thread()
        with recorded() as walks["closed intake to signed record"]:
            await network.run_to_the_end(window)
        answer = await network.core(0).service.release(window.window_id)
        with recorded() as walks["record to table"]:
            record = decode_record(answer.record)
            table_lines(record)
            statement_lines(record, explain=True)
        with recorded() as walks["question to first window"]:
            question = await network.stand()
            await network.advance_to(question.schedule.first - 5)
            await network.look_after_all()
        await network.stop_all()
    return walks


def every_walk() -> dict[str, Walk]:
    """Return all of them by name."""
    return {"truth to transport": asyncio.run(device_walk()), **asyncio.run(aggregator_walks())}


def main(arguments: list[str]) -> None:
    """Print them."""
    known = floors()
    for name, walk in every_walk().items():
        up = walk.upward(known)
        reached = {known[path] for path in walk.files}
        print(f"{name}: {len(walk.files)} files on {len(reached)} floors, {len(walk.edges)} edges, {len(up)} upward")
        for path, calls in sorted(walk.files.items(), key=lambda one: -known[one[0]]) if "--files" in arguments else ():
            print(f"  {known[path]:>3}  {path.relative_to(ROOT)}  {calls}")
        for one, other in up if "--files" in arguments else ():
            print(f"  up {one.relative_to(ROOT)} -> {other.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The devices of one process of a network run: `python -m fleetcount_simulator.network.fleet SPEC.json`.

Devices share only the process, the state file and, where the specification says so, the connections. The process writes
JSON lines to stdout and reads commands from stdin ("enrol", "probe", "end"); it never writes a truth or a coin.
"""

import asyncio
import gc
import json
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any, Final

from fleetcount_simulator.network.fleet_devices import FleetDevices
from fleetcount_simulator.network.fleet_spec import FleetSpec

_PROGRESS_S: Final = 0.25


def _say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def _say_progress(fleet: FleetDevices, event: str, **more: Any) -> None:
    tally = fleet.tally
    latest = {str(number): moment for number, moment in tally.latest.items()}
    first, second = tally.receipts[0] + tally.receipts[1], tally.receipts[2]
    _say(event=event, enrolled=tally.enrolled, round_one=first, round_two=second, latest=latest, **fleet.news(), **more)


async def _report_progress(fleet: FleetDevices) -> None:
    """Write the devices' progress every quarter of a second until cancelled."""
    while True:
        _say_progress(fleet, "progress")
        await asyncio.sleep(_PROGRESS_S)


async def _serve(spec: FleetSpec) -> None:
    commands = _commands()
    fleet = FleetDevices(spec)
    gc.freeze()
    _say(ready=True, devices=len(spec.numbers))
    while (command := await commands.get()) != "end":
        if command == "enrol":
            reporter = asyncio.create_task(_report_progress(fleet), name="progress")
            _say_progress(fleet, "enrolled", seconds=await fleet.enrol())
            gc.freeze()  # The sessions and what waits for the question stay as long as the devices do.
            reasons = await _answered(fleet, commands)
            reporter.cancel()
            fleet.report()
            _say_progress(fleet, "done", reasons=dict(reasons.most_common(5)))
        elif command == "probe":
            await fleet.probe()
            fleet.report()
            _say(event="probed")
    await fleet.close()
    gc.freeze()  # The interpreter's end collects once more.


async def _answered(fleet: FleetDevices, commands: "asyncio.Queue[str]") -> Counter[str]:
    """Let the devices answer; the only command meanwhile is "over": nothing is asked any more."""

    async def hear() -> None:
        await commands.get()
        fleet.over()

    hearing = asyncio.create_task(hear(), name="over")
    try:
        return await fleet.answer()
    finally:
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)


def _commands() -> "asyncio.Queue[str]":
    """Return a queue of the lines of stdin; this process ends when stdin closes, because its parent has ended."""
    queue: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        # Not sys.stdin: a thread inside its lock would keep the interpreter from ending.
        rest = b""
        while data := os.read(0, 4096):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                loop.call_soon_threadsafe(queue.put_nowait, line.decode())
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    return queue


def main() -> int:
    """Run the devices of the file named on the command line."""
    # Thousands of devices exist until the end, and what an answer leaves has no cycles: the garbage collector would
    # visit them again and again, and find nothing. The devices let it run between two windows.
    gc.disable()
    asyncio.run(_serve(FleetSpec.read(Path(sys.argv[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

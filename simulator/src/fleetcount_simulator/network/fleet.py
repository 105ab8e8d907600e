"""The devices of one process of a network run: `python -m fleetcount_simulator.network.fleet SPEC.json`.

Only the process, the state file and, where the specification says so, the connections are shared. Speaks JSON lines on
stdout, takes commands on stdin ("enrol", "probe", "end"), never says a truth or a coin.
"""

import asyncio
import gc
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from fleetcount_client.device import Device
from fleetcount_client.spool import SpoolFile
from fleetcount_client.transport import Transport, Unreachable
from fleetcount_protocol.channel.certificates import CertificateAuthority, load_certificate, load_private_key
from fleetcount_protocol.errors import PeerError
from fleetcount_protocol.messages import Instalment, Receipt
from fleetcount_protocol.task.task import SignedTask, Task

from fleetcount_simulator.network.connections import Connections
from fleetcount_simulator.network.device_faults import DeviceFault
from fleetcount_simulator.network.faulty_transport import Tally, Trace, rounds_of
from fleetcount_simulator.network.fleet_report import AskedOf, report_of, uncertain
from fleetcount_simulator.network.fleet_spec import SHARED, FleetSpec
from fleetcount_simulator.network.series_fleet import SeriesFleet
from fleetcount_simulator.network.simulated_device import DeviceMaker, SimulatedDevice, enrol, simulated_devices

__all__ = ["main"]

_POLL_S: Final = 0.1
_PROGRESS_S: Final = 0.25
_GRACE_S: Final = 2.0
_ENROL_S: Final = 3_600.0
_ENROLLING: Final = 64
"""Devices with connections of their own that connect at once: more would wait for each other's handshakes."""
_PROBES: Final = 100
_PROBE_S: Final = 0.3
_MOST_TOLD: Final = 20_000
"""Devices named in one line, which stays far below the longest that is read."""
_COLLECT_AFTER: Final = 50_000
"""New objects between two looks of the collector, 700 as Python starts."""


class _Fleet:
    """The devices of one process."""

    def __init__(self, spec: FleetSpec) -> None:
        self._spec = spec
        # An fsync a device and step would measure the disk, not the fleet: a simulation need not survive a power cut.
        self._file = SpoolFile(Path(spec.spool_file), durable=False)
        authority = CertificateAuthority(
            certificate=load_certificate(Path(spec.authorities) / "devices.crt"),
            private_key=load_private_key(Path(spec.authorities) / "devices.key"),
        )
        self.connections = Connections(spec, authority)
        self.tally = Tally()
        maker = DeviceMaker(spec, authority, self.connections, self._file)
        self._tasked = [] if spec.series else simulated_devices(maker, self.connections, self.tally)
        self._series = SeriesFleet(maker, spec.series, self.connections, self.tally) if spec.series else None
        self._asked: list[AskedOf] = []
        self._task: Task | None = None
        self._told: dict[str, set[int]] = {"first": set(), "every": set()}

    async def enrol(self) -> float:
        """Let every device that is on connect and open its sessions; return the seconds it took all but the first.

        The first one waits for what an aggregator loads with its first session.
        """
        asked = [one.device for one in self._tasked if DeviceFault.ABSENT not in one.faults]
        asked += [one.device for one in self._series.devices] if self._series else []
        started = time.perf_counter()
        for group in (asked[:1], asked[1:]):
            started = time.perf_counter()
            await self._enrol(group)
        return time.perf_counter() - started

    async def _enrol(self, devices: list[Device]) -> None:
        shared = self._spec.connections == SHARED
        gate, deadline = asyncio.Semaphore(len(devices) if shared else _ENROLLING), time.time() + _ENROL_S

        async def one(device: Device) -> None:
            async with gate:
                await enrol(device, self._spec.aggregators, deadline, stay=self.connections.stay)
                self.tally.enrolled += 1

        async with asyncio.TaskGroup() as group:
            for device in devices:
                group.create_task(one(device), name="enrol")

    async def answer(self, joined: Callable[[], None]) -> Counter[str]:
        """Let every device answer what is asked; return why devices say they were not counted.

        In a series `joined` is called once the devices that are there from the beginning have joined.
        """
        if self._series is not None:
            self._asked = await self._series.attend(joined)
            return self._series.reasons()
        signed = await self._wait_for_task()
        await self._answer_all(signed)
        devices = [(one.number, one.outcome, one.trace) for one in self._tasked]
        self._asked = [AskedOf(task=signed.task, devices=devices, file=Path(self._spec.report_file))]
        return Counter(one.reason for one in self._tasked if one.reason)

    async def _wait_for_task(self) -> SignedTask:
        """Return the task once an aggregator offers it; one connection asks for all."""
        scout = self.connections.scout()
        try:
            while True:
                try:
                    offered = await scout.list_tasks()
                except (Unreachable, PeerError):
                    offered = ()
                for signed in offered:
                    if signed.task.name == self._spec.task_name:
                        return signed
                await asyncio.sleep(_POLL_S)
        finally:
            await scout.close()

    async def _answer_all(self, signed: SignedTask) -> None:
        """Let every device answer the task to its end, or until its last window has long closed."""
        self._task, task, skews = signed.task, signed.task, self._spec.skews
        window_s = task.round_one_closes - task.round_one_opens
        for one, skew in zip(self._tasked, skews, strict=True):
            one.timer.error_s = skew * window_s
        deadline = task.round_two_closes + _GRACE_S + max(0.0, -min(skews, default=0.0)) * window_s
        async with asyncio.TaskGroup() as group:
            for one in self._tasked:
                group.create_task(self._answer(one, signed, deadline))
        await asyncio.gather(*(one.transport.stop() for one in self._tasked))

    async def _answer(self, one: SimulatedDevice, signed: SignedTask, deadline: float) -> None:
        if DeviceFault.ABSENT in one.faults:
            one.outcome = "absent"
        else:
            await one.answer(signed, deadline)

    def news(self) -> dict[str, Any]:
        """Return, where it is wanted, which devices newly hold their receipts, and how often messages were refused."""
        if not self._spec.telling or self._task is None:
            return {}
        rounds, parties = rounds_of(self._task), range(len(self._task.aggregators))
        needed = {"first": rounds[:1], "every": rounds}
        held: dict[str, list[int]] = {}
        for name, numbers in needed.items():
            told, places = self._told[name], {(number, position) for number in numbers for position in parties}
            new = [one.number for one in self._tasked if one.number not in told and places <= one.trace.receipted]
            held[name] = new[:_MOST_TOLD]
            told.update(held[name])
        return {**held, "refused": dict(self.tally.refused)}

    async def probe(self) -> None:
        """Send every message without an answer again: an aggregator that holds it gives its receipt at any time.

        A refusal now only says that the bytes are not there; the device does not count as late for it.
        """
        direct = self.connections.calling()
        try:
            await asyncio.gather(
                *(
                    _probe(direct, asked.task, trace, position, instalment)
                    for asked in self._asked
                    for _, _, trace in asked.devices
                    if uncertain(trace, asked.task)
                    for (_, position), instalment in list(trace.pending.items())
                )
            )
        finally:
            await direct.disconnect()

    def report(self) -> None:
        """Write the files that say what became of the devices, one a task."""
        for asked in self._asked:
            report_of(asked.devices, asked.task).write(asked.file)

    async def close(self) -> None:
        """Close connections and the state file."""
        await self.connections.close()
        self._file.close()


async def _probe(transport: Transport, task: Task, trace: Trace, position: int, instalment: Instalment) -> None:
    """Ask about one message until an aggregator that is starting again answers, for half a minute."""
    for _ in range(_PROBES):
        try:
            (answer,) = await transport.upload(task, position, [instalment])
        except (Unreachable, PeerError):
            await asyncio.sleep(_PROBE_S)
            continue
        if isinstance(answer, Receipt):
            trace.note_stored(position, instalment)
        return


# The process.


def _say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def _say_progress(fleet: _Fleet, event: str, **more: Any) -> None:
    tally = fleet.tally
    latest = {str(number): moment for number, moment in tally.latest.items()}
    first, second = tally.receipts[0] + tally.receipts[1], tally.receipts[2]
    _say(event=event, enrolled=tally.enrolled, round_one=first, round_two=second, latest=latest, **fleet.news(), **more)


async def _report_progress(fleet: _Fleet) -> None:
    """Say how far the devices are until cancelled."""
    while True:
        _say_progress(fleet, "progress")
        await asyncio.sleep(_PROGRESS_S)


async def _serve(spec: FleetSpec) -> None:
    commands = _commands()
    fleet = _Fleet(spec)
    # Thousands of devices live to the end: the collector need not look at them again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    _say(ready=True, devices=len(spec.numbers))
    while (command := await commands.get()) != "end":
        if command == "enrol":
            reporter = asyncio.create_task(_report_progress(fleet), name="progress")
            _say_progress(fleet, "enrolled", seconds=await fleet.enrol())
            reasons = await fleet.answer(lambda: _say_progress(fleet, "joined"))
            reporter.cancel()
            fleet.report()
            _say_progress(fleet, "done", reasons=dict(reasons.most_common(5)))
        elif command == "probe":
            await fleet.probe()
            fleet.report()
            _say(event="probed")
    await fleet.close()


def _commands() -> "asyncio.Queue[str]":
    """Return the lines of stdin as they come; when it closes the parent is gone, and this process ends."""
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
    asyncio.run(_serve(FleetSpec.read(Path(sys.argv[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

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

from fleetcount_client.outcome import OutcomeKind
from fleetcount_client.spool import SpoolFile
from fleetcount_client.transport import Transport, Unreachable
from fleetcount_protocol.channel.certificates import CertificateAuthority, load_certificate, load_private_key
from fleetcount_protocol.errors import PeerError
from fleetcount_protocol.messages import Instalment, Receipt
from fleetcount_protocol.series.derive import window_task
from fleetcount_protocol.series.series import Series
from fleetcount_protocol.task.domain import Signal
from fleetcount_protocol.task.task import SignedTask, Task

from fleetcount_simulator.network.connections import Connections
from fleetcount_simulator.network.device_faults import DeviceFault
from fleetcount_simulator.network.faulty_transport import Tally, Trace
from fleetcount_simulator.network.fleet_report import report_of, uncertain
from fleetcount_simulator.network.fleet_spec import SHARED, FleetSpec
from fleetcount_simulator.network.simulated_device import SimulatedDevice, simulated_devices

__all__ = ["main"]

_POLL_S: Final = 0.1
_PROGRESS_S: Final = 0.25
_GRACE_S: Final = 2.0
_ENROL_S: Final = 3_600.0
_ENROLLING: Final = 64
"""Devices with connections of their own that connect at once: more would wait for each other's handshakes."""
_PROBES: Final = 100
_PROBE_S: Final = 0.3
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
        self.devices = simulated_devices(spec, authority, self.connections, self._file, self.tally)

    async def enrol(self) -> float:
        """Let every device that is on connect and open its sessions; return the seconds it took all but the first.

        The first one waits for what an aggregator loads with its first session.
        """
        asked = [one for one in self.devices if DeviceFault.ABSENT not in one.faults]
        started = time.perf_counter()
        for group in (asked[:1], asked[1:]):
            started = time.perf_counter()
            await self._enrol(group)
        return time.perf_counter() - started

    async def _enrol(self, devices: list[SimulatedDevice]) -> None:
        shared = self._spec.connections == SHARED
        gate, deadline = asyncio.Semaphore(len(devices) if shared else _ENROLLING), time.time() + _ENROL_S

        async def one(device: SimulatedDevice) -> None:
            async with gate:
                await device.enrol(self._spec.aggregators, deadline, stay=self.connections.stay)
                self.tally.enrolled += 1

        async with asyncio.TaskGroup() as group:
            for device in devices:
                group.create_task(one(device), name=f"enrol {device.number}")

    async def wait_for_task(self) -> SignedTask:
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

    async def answer(self, signed: SignedTask) -> None:
        """Let every device answer the task to its end, or until its last window has long closed."""
        task, skews = signed.task, self._spec.skews
        window_s = task.round_one_closes - task.round_one_opens
        for one, skew in zip(self.devices, skews, strict=True):
            one.timer.error_s = skew * window_s
        deadline = task.round_two_closes + _GRACE_S + max(0.0, -min(skews, default=0.0)) * window_s
        async with asyncio.TaskGroup() as group:
            for one in self.devices:
                group.create_task(self._answer(one, signed, deadline))
        await asyncio.gather(*(one.transport.stop() for one in self.devices))

    async def wait_for_series(self) -> Series:
        """Return the series once an aggregator offers it with the key lists of all; one connection asks for all."""
        scout = self.connections.scout()
        try:
            while True:
                try:
                    offered = await scout.list_series()
                except (Unreachable, PeerError):
                    offered = ()
                for offer in offered:
                    series = offer.signed.series
                    if series.name == self._spec.task_name and len(offer.key_lists) == len(series.aggregators):
                        return series
                await asyncio.sleep(_POLL_S)
        finally:
            await scout.close()

    async def answer_series(self, series: Series) -> list[int]:
        """Let every device join and answer all windows; return how many delivered each."""
        schedule, frames = series.schedule, self._spec.frames
        tasks = {window_task(series, index).task_id: index for index in range(schedule.windows)}

        def reads(place: int) -> Callable[[], Signal]:
            return lambda: frames[max(0, int(time.time() - schedule.first) // schedule.every_s)][place]

        ended = await asyncio.gather(
            *(
                one.answer_series({self._spec.signal: reads(place)}, schedule.end + _GRACE_S)
                for place, one in enumerate(self.devices)
            )
        )
        delivered = [0] * schedule.windows
        for outcome in (outcome for outcomes in ended for outcome in outcomes):
            delivered[tasks[outcome.task_id]] += outcome.kind is OutcomeKind.DELIVERED
        return delivered

    async def _answer(self, one: SimulatedDevice, signed: SignedTask, deadline: float) -> None:
        if DeviceFault.ABSENT in one.faults:
            one.outcome = "absent"
        else:
            await one.answer(signed, deadline)

    async def probe(self, task: Task) -> None:
        """Send every message without an answer again: an aggregator that holds it gives its receipt at any time.

        A refusal now only says that the bytes are not there; the device does not count as late for it.
        """
        direct = self.connections.calling()
        try:
            await asyncio.gather(
                *(
                    _probe(direct, task, one.trace, position, instalment)
                    for one in self.devices
                    if uncertain(one.trace, task)
                    for (_, position), instalment in list(one.trace.pending.items())
                )
            )
        finally:
            await direct.disconnect()

    def report(self, task: Task) -> None:
        """Write the file that says what became of the devices."""
        devices = [(one.number, one.outcome, one.trace) for one in self.devices]
        report_of(devices, task).write(Path(self._spec.report_file))

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
    _say(event=event, enrolled=tally.enrolled, round_one=first, round_two=second, latest=latest, **more)


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
    _say(ready=True, devices=len(fleet.devices))
    reporter: asyncio.Task[None] | None = None
    signed: SignedTask | None = None
    while (command := await commands.get()) != "end":
        if command == "enrol":
            reporter = asyncio.create_task(_report_progress(fleet), name="progress")
            _say_progress(fleet, "enrolled", seconds=await fleet.enrol())
            delivered: list[int] = []
            if spec.frames:
                delivered = await fleet.answer_series(await fleet.wait_for_series())
            else:
                signed = await fleet.wait_for_task()
                await fleet.answer(signed)
                fleet.report(signed.task)
            reporter.cancel()
            reasons = Counter(one.reason for one in fleet.devices if one.reason)
            _say_progress(fleet, "done", reasons=dict(reasons.most_common(5)), delivered=delivered)
        elif command == "probe" and signed is not None:
            await fleet.probe(signed.task)
            fleet.report(signed.task)
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

"""The devices of one fleet process: they enrol, take part in the windows of one question, and leave or stay to its end.

They are the client's own devices, with the faults and traces of the study. It must not talk to the runner.
"""

import asyncio
import gc
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from fleetcount_client.contact import OutcomeKind
from fleetcount_client.device import Device
from fleetcount_client.signals import SignalSource
from fleetcount_client.spool import SpoolFile
from fleetcount_client.transport import Transport, Unreachable
from fleetcount_protocol.channel.certificates import CertificateAuthority, load_certificate, load_private_key
from fleetcount_protocol.errors import PeerError
from fleetcount_protocol.messages import Instalment, QuestionOffer, Receipt
from fleetcount_protocol.question.fields import Schedule
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.window.window import Window

from fleetcount_simulator.network.connections import Connections
from fleetcount_simulator.network.device_faults import DeviceFault
from fleetcount_simulator.network.faulty_transport import (
    FaultyUploads,
    SkewedTimer,
    Tally,
    Trace,
    WindowTransport,
    rounds_of,
)
from fleetcount_simulator.network.fleet_report import AskedOf, report_of, uncertain, window_file
from fleetcount_simulator.network.fleet_spec import SHARED, FleetSpec
from fleetcount_simulator.network.simulated_device import DeviceMaker, SimulatedDevice, delays_of, enrol

_POLL_S: Final = 0.2
_GRACE_S: Final = 2.0
_AFTER_S: Final = 0.1
"""Seconds from the close of its last window until a device leaves: it still reads its last receipt."""
_ENROL_S: Final = 3_600.0
_ENROLLING: Final = 64
"""Devices with connections of their own that connect at once: more would wait for each other's handshakes."""
_PROBES: Final = 100
_PROBE_S: Final = 0.3
_MOST_TOLD: Final = 20_000
"""Devices named in one line at most, which keeps it far below the longest line that the runner reads."""


class FleetDevices:
    """The devices of one process."""

    def __init__(self, spec: FleetSpec) -> None:
        self._spec = spec
        self._part = spec.part
        self._slowest = max(0.0, -min(spec.part.skews, default=0.0))
        # One fsync per device and step would measure the disk: a simulation need not survive a power cut.
        self._file = SpoolFile(Path(spec.spool_file), durable=False, alone=True)
        authority = CertificateAuthority(
            certificate=load_certificate(Path(spec.authorities) / "devices.crt"),
            private_key=load_private_key(Path(spec.authorities) / "devices.key"),
        )
        self.connections = Connections(spec, authority)
        self.tally = Tally()
        self._maker = DeviceMaker(spec, authority, self.connections, self._file)
        self._windows: dict[int, Window] = {}
        self._devices = [self._made(place) for place in range(len(spec.numbers))]
        self._latest: QuestionOffer | None = None
        self._asked: list[AskedOf] = []
        self._reported: dict[str, set[int]] = {"first": set(), "every": set()}

    def _made(self, place: int) -> SimulatedDevice:
        spec, identity, timer = self._spec, self._maker.identity(), SkewedTimer()
        number, inner = spec.numbers[place], self.connections.of(identity)
        chance = delays_of(spec.coin_seed, number)

        def of_window(index: int) -> FaultyUploads:
            faults = self._faults(place, index)
            return FaultyUploads(inner, faults, Trace(), self.tally, reorder=spec.reorder, chance=chance)

        transport = WindowTransport(inner, of_window, self._windows)
        device = self._maker.device(
            place,
            identity,
            transport,
            {signal: self._source(place, part) for part, signal in enumerate(spec.signals)},
            timer=timer,
            # With many windows the device's own ledger decides; the fault is for a question of one window alone.
            refusing=len(self._part.faults) == 1 and DeviceFault.REFUSED in self._faults(place, 0),
            conditions=lambda: DeviceFault.ABSENT not in self._faults(place, self._window()),
        )
        over = asyncio.get_running_loop().create_future()
        return SimulatedDevice(place=place, number=number, device=device, transport=transport, timer=timer, over=over)

    def _source(self, place: int, part: int) -> SignalSource:
        return lambda: self._part.readings[self._window()][place][part]

    def _faults(self, place: int, index: int) -> DeviceFault:
        return DeviceFault(self._part.faults[index][place])

    @property
    def _offer(self) -> QuestionOffer:
        """The latest offer of the question: it has all orders so far."""
        if self._latest is None:
            raise RuntimeError("no question is on offer yet")
        return self._latest

    @property
    def _question(self) -> Question:
        return self._offer.signed.question

    def _window(self) -> int:
        """Return the window that opened last."""
        schedule = self._question.schedule
        return max(0, min(int(time.time() - schedule.opens(0)) // schedule.every_s, schedule.windows - 1))

    async def enrol(self) -> float:
        """Let every device that is on connect and open its sessions; return the seconds of all but the first.

        The first one is not timed: an aggregator loads code and keys with its first session.
        """
        windows = range(len(self._part.faults))
        asked = [
            one.device
            for one in self._devices
            if any(DeviceFault.ABSENT not in self._faults(one.place, index) for index in windows)
        ]
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
                await enrol(device, self._spec.aggregators, deadline, stay=self.connections.all_stay)
                self.tally.enrolled += 1

        async with asyncio.TaskGroup() as group:
            for device in devices:
                group.create_task(one(device), name="enrol")

    async def answer(self) -> Counter[str]:
        """Let every device answer the question from its offer to its end; return the reasons of undelivered answers."""
        scout = self.connections.question_transport()
        try:
            while self._latest is None:
                self._latest = await self._offered(scout)
                await asyncio.sleep(_POLL_S)
            await scout.close()
            for one in self._devices:
                one.timer.error_s = self._part.skews[one.place] * self._question.schedule.round_one_s
                if self._part.came[one.place] == 0:
                    one.take_part(self._offer)
                    await asyncio.sleep(
                        0
                    )  # Joining reserves every window, which takes long: let other devices' messages go first.
            listening = asyncio.create_task(self._hear_orders(scout), name="orders")
            collecting = asyncio.create_task(collect_between_windows(self._question.schedule), name="garbage")
            async with asyncio.TaskGroup() as group:
                for one in self._devices:
                    group.create_task(self._stay(one))
            for task in (listening, collecting):
                task.cancel()
            await asyncio.gather(listening, collecting, return_exceptions=True)
        finally:
            await scout.close()
        for one in self._devices:
            await one.transport.stop()
        self._asked = self._windows_asked()
        return Counter(reason for one in self._devices for reason in one.reasons or [one.refused] if reason)

    def over(self) -> None:
        """Nothing is asked any more, as after the end of a walk: let no device wait for the last window."""
        for one in self._devices:
            if not one.over.done():
                one.over.set_result(None)

    async def _offered(self, scout: Transport) -> QuestionOffer | None:
        """Return the offer of the question with every aggregator's key list and the most orders, or None.

        One connection asks on behalf of all devices.
        """
        try:
            offers = await scout.list_questions()
        except (Unreachable, PeerError):
            return None
        whole = [
            offer
            for offer in offers
            if offer.signed.question.name == self._spec.question_name
            and len(offer.key_lists) == len(self._spec.aggregators)
        ]
        return max(whole, key=lambda offer: len(offer.orders), default=None)

    async def _hear_orders(self, scout: Transport) -> None:
        """Pass new orders of the question to every device that takes part, until cancelled."""
        while True:
            await asyncio.sleep(self._part.news_s)
            offer = await self._offered(scout)
            await scout.close()
            if offer is None or len(offer.orders) <= len(self._offer.orders):
                continue
            self._latest = offer
            for one in self._devices:
                if one.answering is not None and not one.answering.done():
                    one.device.questions.take([offer])
                    await asyncio.sleep(0)

    async def _stay(self, one: SimulatedDevice) -> None:
        """Let a device take part from the window in which it joins until it leaves, or until after the last window."""
        question, came, gone = self._question, self._part.came[one.place], self._part.gone[one.place]
        if came > 0:
            await asyncio.sleep(question.schedule.closes(came - 1) - time.time())
            one.take_part(self._offer)
        leaves = gone < question.schedule.windows
        # For a device with a slow clock the last window is open for longer.
        after_s = _AFTER_S if leaves else _GRACE_S + self._slowest * question.schedule.round_one_s
        until = question.schedule.closes(gone - 1) + after_s
        await one.finish(question.question_id, until, leaves=leaves)

    def _windows_asked(self) -> list[AskedOf]:
        """Return the fate of these devices in every window.

        For a window in which no device answered it uses window 0: the form of messages is the same.
        """
        file, first = Path(self._spec.report_file), window_at(self._question, 0)
        return [
            AskedOf(
                window=self._windows.get(index, first),
                devices=[self._of_window(one, index) for one in self._devices],
                file=window_file(file, index),
            )
            for index in range(self._question.schedule.windows)
        ]

    def _of_window(self, one: SimulatedDevice, index: int) -> tuple[int, str, Trace]:
        trace = one.transport.window(index).trace
        outcome = OutcomeKind.GIVEN_UP.value if trace.pending else OutcomeKind.DELIVERED.value
        if one.refused:
            outcome = OutcomeKind.REFUSED.value
        here = self._part.came[one.place] <= index < self._part.gone[one.place]
        if not here or DeviceFault.ABSENT in self._faults(one.place, index):
            outcome = "absent"
        return one.number, outcome, trace

    def news(self) -> dict[str, Any]:
        """Return, with `telling`, the devices with new receipts of window 0, and the refusals by reason."""
        if not self._spec.telling or self._latest is None:
            return {}
        first = window_at(self._question, 0)
        rounds, parties = rounds_of(first), range(len(first.aggregators))
        needed = {"first": rounds[:1], "every": rounds}
        held: dict[str, list[int]] = {}
        for name, numbers in needed.items():
            reported, places = self._reported[name], {(number, position) for number in numbers for position in parties}
            receipted = {one.number: one.transport.window(0).trace.receipted for one in self._devices}
            new = [number for number, has in receipted.items() if number not in reported and places <= has]
            held[name] = new[:_MOST_TOLD]
            reported.update(held[name])
        return {**held, "refused": dict(self.tally.refused)}

    async def probe(self) -> None:
        """Send every message without an answer again: an aggregator that has stored it repeats its receipt at any time.

        A refusal now only means that the aggregator does not have the bytes; it does not make the device late.
        """
        direct = self.connections.shared_grpc()
        try:
            await asyncio.gather(
                *(
                    _probe(direct, asked.window, trace, position, instalment)
                    for asked in self._asked
                    for _, _, trace in asked.devices
                    if uncertain(trace, asked.window)
                    for (_, position), instalment in list(trace.pending.items())
                )
            )
        finally:
            await direct.disconnect()

    def report(self) -> None:
        """Write the reports on the devices, one file per window."""
        for asked in self._asked:
            report_of(asked.devices, asked.window).write(asked.file)

    async def close(self) -> None:
        """Close connections and the state file."""
        await self.connections.close()
        self._file.close()


async def collect_between_windows(schedule: Schedule) -> None:
    """Collect garbage at the close of every window but the last, where the fewest messages are under way."""
    for index in range(schedule.windows - 1):
        await asyncio.sleep(schedule.closes(index) - time.time())
        gc.collect()


async def _probe(transport: Transport, window: Window, trace: Trace, position: int, instalment: Instalment) -> None:
    """Ask about one message until an aggregator that is starting again answers, for half a minute."""
    for _ in range(_PROBES):
        try:
            (answer,) = await transport.upload(window, position, [instalment])
        except (Unreachable, PeerError):
            await asyncio.sleep(_PROBE_S)
            continue
        if isinstance(answer, Receipt):
            trace.note_stored(position, instalment)
        return

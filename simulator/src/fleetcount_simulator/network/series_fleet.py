"""The devices of one process in a series: each joins before a window, answers from then on, and leaves before another.

They are the client's own devices, which serve until they leave; what they meet and what is noted stays here.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fleetcount_client.device import Device
from fleetcount_client.outcome import OutcomeKind
from fleetcount_client.timer import SystemTimer, sleep_until
from fleetcount_client.transport import Unreachable
from fleetcount_protocol.errors import PeerError, UsageError
from fleetcount_protocol.messages import SeriesOffer
from fleetcount_protocol.series.derive import window_task
from fleetcount_protocol.series.series import Series
from fleetcount_protocol.task.domain import Signal
from fleetcount_protocol.task.task import Task

from fleetcount_simulator.network.connections import Connections
from fleetcount_simulator.network.device_faults import DeviceFault
from fleetcount_simulator.network.faulty_transport import FaultyTransport, SkewedTimer, Tally, Trace, WindowTransport
from fleetcount_simulator.network.fleet_report import AskedOf, window_file
from fleetcount_simulator.network.fleet_spec import SeriesPart
from fleetcount_simulator.network.simulated_device import DeviceMaker, delays_of

__all__ = ["SeriesDevice", "SeriesFleet"]

_POLL_S: Final = 0.2
_AFTER_S: Final = 0.1
"""From the close of a window to a device's leaving: what it notes of its last receipt."""
_GRACE_S: Final = 2.0


@dataclass(slots=True)
class SeriesDevice:
    """One device, its place in the process, its way to the aggregators, and why it did not join, if so."""

    place: int
    device: Device
    transport: WindowTransport
    refused: str = field(default="", repr=False)


class SeriesFleet:
    """The devices of one process that answer a series."""

    def __init__(self, maker: DeviceMaker, part: SeriesPart, connections: Connections, tally: Tally) -> None:
        self._maker = maker
        self._part = part
        self._connections = connections
        self._tally = tally
        self._timer = SystemTimer()
        self._series: Series | None = None
        self._tasks: dict[int, Task] = {}
        self.devices = [self._made(place) for place in range(len(maker.spec.numbers))]

    def _made(self, place: int) -> SeriesDevice:
        spec, identity, timer = self._maker.spec, self._maker.identity(), SkewedTimer()
        inner = self._connections.of(identity)
        chance = delays_of(spec.coin_seed, spec.numbers[place])

        def of_window(index: int) -> FaultyTransport:
            faults = self._faults(place, index)
            return FaultyTransport(inner, faults, Trace(), self._tally, reorder=spec.reorder, chance=chance)

        def reading() -> Signal:
            return self._part.readings[self._window()][place]

        transport = WindowTransport(inner, of_window, self._tasks)
        device = self._maker.device(
            place,
            identity,
            transport,
            reading,
            timer=timer,
            policy=self._maker.policy(),
            conditions=lambda: DeviceFault.ABSENT not in self._faults(place, self._window()),
        )
        return SeriesDevice(place=place, device=device, transport=transport)

    def _faults(self, place: int, index: int) -> DeviceFault:
        return DeviceFault(self._part.faults[index][place])

    def _window(self) -> int:
        """Return the window that opened last."""
        schedule = self._joined.schedule
        return min(int(time.time() - schedule.first) // schedule.every_s, schedule.windows - 1)

    @property
    def _joined(self) -> Series:
        if self._series is None:
            raise RuntimeError("no series has been joined")
        return self._series

    async def attend(self, joined: Callable[[], None]) -> list[AskedOf]:
        """Take part in the series from its offer to its end; `joined` is called when the first devices have joined."""
        offers = await self._wait_for_series()
        self._series = offers[0].signed.series
        for one in self.devices:
            if self._part.came[one.place] == 0:
                await self._join(one, offers)
        joined()
        async with asyncio.TaskGroup() as group:
            for one in self.devices:
                group.create_task(self._attend(one, offers))
        await asyncio.gather(*(one.transport.stop() for one in self.devices))
        return self._asked()

    async def _wait_for_series(self) -> Sequence[SeriesOffer]:
        """Return the offers of the series once they hold every aggregator's key list; one connection asks for all."""
        scout = self._connections.scout()
        wanted = {one.aggregator_id for one in self._maker.spec.aggregators}
        try:
            while True:
                try:
                    listed = await scout.list_series()
                except (Unreachable, PeerError):
                    listed = ()
                offers = [one for one in listed if one.signed.series.name == self._maker.spec.task_name]
                if {one.key_list.aggregator_id for offer in offers for one in offer.key_lists} == wanted:
                    return offers
                await asyncio.sleep(_POLL_S)
        finally:
            await scout.close()

    async def _join(self, one: SeriesDevice, offers: Sequence[SeriesOffer]) -> None:
        book = one.device.series
        book.take(offers)
        try:
            refusal = book.join(self._joined.series_id)
        except UsageError as error:  # So late that the last window is over.
            one.refused = str(error)
        else:
            one.refused = "" if refusal is None else refusal.message
        await asyncio.sleep(0)  # Joining reserves every window: the others' messages go first.

    async def _attend(self, one: SeriesDevice, offers: Sequence[SeriesOffer]) -> None:
        """Let a device join if it has not, serve, and leave at its time."""
        schedule, came, gone = self._joined.schedule, self._part.came[one.place], self._part.gone[one.place]
        if came > 0:
            await sleep_until(self._timer, schedule.closes(came - 1))
            await self._join(one, offers)
        if not one.refused:
            serving = asyncio.create_task(one.device.serve(), name=f"device {self._maker.spec.numbers[one.place]}")
            stays_on = gone == schedule.windows
            until = schedule.closes(gone - 1) + (_GRACE_S if stays_on else _AFTER_S)
            await asyncio.wait({serving}, timeout=until - time.time())
            if not stays_on:
                one.device.series.leave(self._joined.series_id)
            serving.cancel()
            (ended,) = await asyncio.gather(serving, return_exceptions=True)
            if not isinstance(ended, asyncio.CancelledError):
                raise RuntimeError("a device stopped serving") from ended
        await one.device.close()

    def _asked(self) -> list[AskedOf]:
        """Return every window as a task that was asked of these devices.

        A window that none of them answered stands with the task of the first: the form of messages is the same.
        """
        file, first = Path(self._maker.spec.report_file), window_task(self._joined, 0)
        return [
            AskedOf(
                task=self._tasks.get(index, first),
                devices=[self._of_window(one, index) for one in self.devices],
                file=window_file(file, index),
            )
            for index in range(self._joined.schedule.windows)
        ]

    def _of_window(self, one: SeriesDevice, index: int) -> tuple[int, str, Trace]:
        trace = one.transport.window(index).trace
        outcome = OutcomeKind.GIVEN_UP.value if trace.pending else OutcomeKind.DELIVERED.value
        if one.refused:
            outcome = OutcomeKind.REFUSED.value
        here = self._part.came[one.place] <= index < self._part.gone[one.place]
        if not here or DeviceFault.ABSENT in self._faults(one.place, index):
            outcome = "absent"
        return self._maker.spec.numbers[one.place], outcome, trace

    def reasons(self) -> Counter[str]:
        """Return why devices did not join."""
        return Counter(one.refused for one in self.devices if one.refused)

"""The transport of one simulated device, with faults of its messages and a trace of the aggregators' answers.

Wraps a transport and a clock; must not change a byte of a message. Its traces are for the study, never for a device.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field

from fleetcount_client.timer import SystemTimer
from fleetcount_client.transport import PassingTransport, Transport, Unreachable
from fleetcount_protocol.errors import PeerError, RejectReason
from fleetcount_protocol.ids import Digest, ReportId
from fleetcount_protocol.messages import (
    Instalment,
    Receipt,
    Refusal,
)
from fleetcount_protocol.release.commitments import public_share_digest
from fleetcount_protocol.window.window import Window

from fleetcount_simulator.network.device_faults import DeviceFault

_NO_FAULT = DeviceFault(0)
_LATE = frozenset({RejectReason.TOO_LATE, RejectReason.WINDOW_CLOSED})
_AFTER_CLOSE_S = 0.05
_SHUFFLE = 0.02
"""Largest delay of a reordered message as a share of its window: some hundred other devices' messages overtake it."""
Place = tuple[int, int]
"""Round and aggregator position."""


def rounds_of(window: Window) -> tuple[int, ...]:
    """Return the round numbers of the messages of one report: (1, 2), or (0,) for a report in one message."""
    return (1, 2) if window.two_instalments else (0,)


def last_round(window: Window) -> int:
    """Return the round of a device's last message."""
    return rounds_of(window)[-1]


@dataclass(slots=True)
class Trace:
    """The fate of one device's messages, as the device sees it.

    `reports` maps each report id it ever used to the digest of its public share (None before round two); `receipted`
    has the rounds and positions with a receipt, `pending` the messages without an answer to their last upload.
    """

    reports: dict[ReportId, Digest | None] = field(default_factory=dict[ReportId, Digest | None])
    receipted: set[Place] = field(default_factory=set[Place])
    pending: dict[Place, Instalment] = field(default_factory=dict[Place, Instalment], repr=False)
    sent: set[Place] = field(default_factory=set[Place])
    resent: bool = False
    late: bool = False

    def note_sent(self, position: int, instalment: Instalment) -> None:
        """Note a message before it is sent: from now on an aggregator may have it."""
        place = (instalment.round, position)
        self.resent = self.resent or place in self.sent
        self.sent.add(place)
        known = self.reports.get(instalment.report_id)
        digest = public_share_digest(instalment.public_share) if instalment.round != 1 else known
        self.reports[instalment.report_id] = digest
        if place not in self.receipted:
            self.pending[place] = instalment

    def note_stored(self, position: int, message: Instalment | Receipt) -> bool:
        """Note that an aggregator has stored a message; return whether this was not noted before."""
        place = (message.round, position)
        news = place not in self.receipted
        self.receipted.add(place)
        self.pending.pop(place, None)
        return news

    def note_answer(self, position: int, answer: Receipt | Refusal) -> bool:
        """Note an aggregator's answer; return whether it is the first receipt of its message."""
        place = (answer.round, position)
        if isinstance(answer, Receipt):
            return self.note_stored(position, answer)
        if answer.reason.final:
            self.late = self.late or answer.reason in _LATE
            self.pending.pop(place, None)
        return False


@dataclass(slots=True)
class Tally:
    """The progress of the devices of a process: enrolled devices, receipts and the time of the latest one per round
    (Unix seconds), and refusals by reason."""

    receipts: Counter[int] = field(default_factory=Counter[int])
    latest: dict[int, float] = field(default_factory=dict[int, float])
    refused: Counter[str] = field(default_factory=Counter[str])
    enrolled: int = 0


class SkewedTimer(SystemTimer):
    """This machine's clock with a constant error, seconds; positive for a clock that is fast."""

    def __init__(self, error_s: float = 0.0) -> None:
        super().__init__()
        self.error_s = error_s

    def now(self) -> float:
        """Return the Unix seconds of the device's clock."""
        return super().now() + self.error_s


class FaultyUploads:
    """One device's uploads of a window over a real transport, with the faults that it meets.

    Sessions are opened without faults: those of a study concern reports. `chance` draws delays, never coins.
    """

    def __init__(
        self, inner: Transport, faults: DeviceFault, trace: Trace, tally: Tally, *, reorder: bool, chance: random.Random
    ) -> None:
        self._inner = inner
        self._faults = faults
        self.trace = trace
        self._tally = tally
        self._reorder = reorder
        self._chance = chance
        self._copies: set[asyncio.Task[None]] = set()

    async def upload(
        self, window: Window, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        """Upload as the device's faults let it.

        Raises:
            Unreachable: the message was lost.
        """
        if self._faults is _NO_FAULT and not self._reorder:
            return await self._send(window, position, instalments)
        round_number = instalments[0].round
        closes = window.round_two_closes if round_number == 2 else window.round_one_closes
        opens = window.round_one_closes if round_number == 2 else window.round_one_opens
        # A device that was switched off after round one sends nothing more for this window.
        if DeviceFault.LOST in self._faults or (DeviceFault.DROPPED in self._faults and round_number == 2):
            await self._until(closes)
            raise Unreachable("lost on the way")
        if DeviceFault.LATE in self._faults and round_number == last_round(window):
            # Over MQTT no aggregator reads the topic any more, and no refusal will come.
            self.trace.late = True
            await self._until(closes + _AFTER_CLOSE_S)
        elif self._reorder:
            await asyncio.sleep(self._chance.uniform(0.0, _SHUFFLE * (closes - opens)))
        answers = await self._send(window, position, instalments)
        if DeviceFault.REPEATED in self._faults:
            copy = asyncio.create_task(self._repeat(window, position, instalments), name="copy")
            self._copies.add(copy)
            copy.add_done_callback(self._copies.discard)
        return answers

    async def stop(self) -> None:
        """Stop the copies that are still under way."""
        for copy in self._copies:
            copy.cancel()
        if self._copies:
            await asyncio.gather(*self._copies, return_exceptions=True)

    async def _send(
        self, window: Window, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        for instalment in instalments:
            self.trace.note_sent(position, instalment)
        answers = await self._inner.upload(window, position, instalments)
        for answer in answers:
            if self.trace.note_answer(position, answer):
                self._tally.receipts[answer.round] += 1
                self._tally.latest[answer.round] = time.time()
            elif isinstance(answer, Refusal):
                self._tally.refused[answer.reason.name.lower().replace("_", " ")] += 1
        return answers

    async def _repeat(self, window: Window, position: int, instalments: Sequence[Instalment]) -> None:
        """Send the same bytes again up to 0.2 s later, as a network may deliver twice; ignore its errors."""
        await asyncio.sleep(self._chance.uniform(0.0, 0.2))
        try:
            await self._send(window, position, instalments)
        except (Unreachable, PeerError):
            return

    async def _until(self, moment: float) -> None:
        await asyncio.sleep(max(0.0, moment - time.time()))


class WindowTransport(PassingTransport):
    """One device's transport through the windows of a question; messages meet the faults of their window."""

    def __init__(
        self, inner: Transport, of_window: Callable[[int], FaultyUploads], asked: MutableMapping[int, Window]
    ) -> None:
        """List questions and open sessions over `inner`; upload over the transport that `of_window` makes for a window.

        It adds every window in which it uploads to `asked`, which devices share.
        """
        super().__init__(inner)
        self._asked = asked
        self._of_window = of_window
        self._windows: dict[int, FaultyUploads] = {}

    def window(self, index: int) -> FaultyUploads:
        """Return the device's transport in a window."""
        if index not in self._windows:
            self._windows[index] = self._of_window(index)
        return self._windows[index]

    async def upload(
        self, window: Window, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        """Upload as the faults of the window let it.

        Raises:
            Unreachable: the message was lost.
        """
        self._asked.setdefault(window.question.index, window)
        return await self.window(window.question.index).upload(window, position, instalments)

    async def stop(self) -> None:
        """Stop the copies that are still under way."""
        for one in self._windows.values():
            await one.stop()

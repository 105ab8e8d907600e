"""The world of the model: real aggregators of one window and four devices, on virtual time, one thread and one loop.

Everything an aggregator decides is the code that runs in production: intake, proofs, agreement, release, settling,
durable steps, greetings. What stands for something else: stores in memory, calls between aggregators as function calls,
a clock that is told the time, noise that is zero. The proofs are computed for real once and remembered by all their
input bytes: they have no state, and a list of operations meets the same reports thousands of times.
"""

import copy
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from fleetcount_aggregator.agreement.report_set import abort_here
from fleetcount_aggregator.host.states import FINAL_STATES
from fleetcount_aggregator.peers import PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.row_types import WindowChange
from fleetcount_protocol.errors import SignatureError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.messages import FinishedRecord, Instalment, Receipt, WindowState
from fleetcount_protocol.release.record import decode_record, verify_record_signatures
from fleetcount_protocol.window.window import Window
from fleetcount_transport.denials import Denials

from tests.model.parties import ModelNetwork, ModelSeat
from tests.support.aggregators import START, SimulatedCrashError, TestDevice
from tests.support.denials import denials_of
from tests.support.manual_clock import ManualClock
from tests.support.stores import StoreFolder, copied, rows_of

DEVICES: Final = 4
"""Device d has cell d for itself: the released number of the cell says how often it is counted."""
_HEALING_S: Final = 60
_HEALING_STEPS: Final = 80


@dataclass
class Dawn:
    """Where lists begin: what is on each party's disk, who is up, and all that was said and done until then."""

    stores: list[StoreFolder]
    up: list[int]
    now: float = START
    offsets: Counter[int] = field(default_factory=Counter[int])
    starts: Counter[str] = field(default_factory=Counter[str])
    denials: dict[int, Denials] = field(default_factory=dict[int, Denials])
    opened: dict[AggregatorId, set[bytes]] = field(default_factory=dict[AggregatorId, set[bytes]])
    told: dict[str, Any] = field(default_factory=dict[str, Any])
    """The fields of `World` by their names."""


@dataclass
class Template:
    """What all lists of one number of parties begin with: keys, the window, sessions, and every message of a device.

    Made once a process: signing and encrypting would take most of the time.
    """

    network: ModelNetwork
    window: Window
    devices: list[TestDevice]
    messages: dict[tuple[int, int, bool], list[Instalment]]
    dawn: Dawn
    denials: list[Denials]

    @classmethod
    async def make(cls, count: int) -> "Template":
        """Make keys, install the window everywhere, open every session."""
        network = ModelNetwork(count)
        await network.start_all()
        window = await network.ask(values=DEVICES)
        devices = [TestDevice(network, window, number) for number in range(DEVICES)]
        messages: dict[tuple[int, int, bool], list[Instalment]] = {}
        for number, device in enumerate(devices):
            await device.open_sessions()
            for other in (False, True):
                # The other bytes make a report of their own, which counts nowhere, and with these none that verifies.
                device.rand = device.rand[::-1] if other else device.rand
                messages[number, 1, other] = device.first(number + 1 if other else 0)
                messages[number, 2, other] = device.second(number + 1 if other else 0, number + 1)
        with TemporaryDirectory() as directory:
            denials = [denials_of(Path(directory) / str(number), number) for number in range(DEVICES)]
        dawn = Dawn([copied(seat.store_path) for seat in network.seats], list(range(count)))
        await network.stop_all()
        return cls(network, window, devices, messages, dawn, denials)


@dataclass
class World:
    """One run of a list of operations: who was told what, besides what the aggregators themselves hold."""

    template: Template
    sent: set[tuple[int, int, int, bool]] = field(default_factory=set[tuple[int, int, int, bool]])
    """Device, round, party, other bytes: what may have been stored."""
    receipts: set[tuple[int, int, int, bool]] = field(default_factory=set[tuple[int, int, int, bool]])
    denied: set[int] = field(default_factory=set[int])
    lost: Counter[tuple[str, int, int]] = field(default_factory=Counter[tuple[str, int, int]])
    cut: set[int] = field(default_factory=set[int])
    copies: dict[int, StoreFolder] = field(default_factory=dict[int, StoreFolder])
    steps: list[tuple[int, WindowChange]] = field(default_factory=list[tuple[int, WindowChange]])
    faults: set[str] = field(default_factory=set[str])

    @property
    def network(self) -> ModelNetwork:
        """The aggregators."""
        return self.template.network

    @property
    def parties(self) -> int:
        """How many aggregators there are."""
        return len(self.network.seats)

    async def begin(self, dawn: Dawn) -> None:
        """Give every aggregator its store as it was at dawn, and start those that were up."""
        network = self.network
        network.clock = ManualClock(dawn.now)
        network.offsets, network.starts = Counter(dawn.offsets), Counter(dawn.starts)
        network.denials = dict(dawn.denials)
        network.opened = defaultdict(set, copy.deepcopy(dawn.opened))
        network.proved.clear()
        network.crashed.clear()
        network.restored = False
        network.before, network.after = self._request, self._reply
        for name, value in dawn.told.items():
            setattr(self, name, copy.copy(value))
        for position, seat in enumerate(network.seats):
            assert isinstance(seat, ModelSeat)
            seat.folders.clear()
            seat.give_store(copied(dawn.stores[position].path / seat.store_path.name))
            seat.note = lambda change, position=position: self.steps.append((position, change))  # type: ignore[misc]
            if position in dawn.up:
                await network.start(position)

    async def dawn(self) -> Dawn:
        """Kill every process; return where a list that goes on from here begins."""
        network = self.network
        up = [position for position, seat in enumerate(network.seats) if seat.core is not None]
        await self.close()
        return Dawn(
            stores=[seat.folders[-1] for seat in network.seats],
            up=up,
            now=network.clock.now(),
            offsets=network.offsets,
            starts=network.starts,
            denials=network.denials,
            opened=network.opened,
            told={one.name: copy.copy(getattr(self, one.name)) for one in fields(self) if one.name != "template"},
        )

    def _at(self, name: AggregatorId) -> int:
        return [seat.aggregator_id for seat in self.network.seats].index(name)

    def _request(self, caller: AggregatorId, other: AggregatorId, name: str) -> None:
        self._lose("request", caller, other, name)

    def _reply(self, caller: AggregatorId, other: AggregatorId, name: str) -> None:
        self._lose("reply", caller, other, name)

    def _lose(self, what: str, caller: AggregatorId, other: AggregatorId, name: str) -> None:
        ends = self._at(caller), self._at(other)
        if self.cut & set(ends):
            raise PeerUnreachableError(f"{name}: no way")
        if self.lost[what, *ends] > 0:
            self.lost[what, *ends] -= 1
            raise PeerUnreachableError(f"{name}: the {what} is lost")

    # Operations.

    async def run(self, operations: Sequence[tuple[Any, ...]]) -> None:
        """Carry out a list. What devices send one after the other reaches each party as one batch, if it can live."""
        for is_sent, several in itertools.groupby(operations, lambda one: one[0] == "send"):
            if not is_sent:
                for one in several:
                    await self.do(*one)
                continue
            sent = [(device, number, party, other) for _, device, number, party, other in several]
            for party in range(self.parties):
                core, to_party = self.network.seats[party].core, [one for one in sent if one[2] == party]
                dies = core is not None and core.context.host.failpoints.armed.startswith("intake.")
                for batch in [[one] for one in to_party] if dies else [to_party]:
                    await self._send(party, batch)

    async def do(self, name: str, *arguments: Any) -> None:
        """Carry out one operation and let everything go on until all wait for time."""
        await getattr(self, f"op_{name}")(*arguments)
        await self.network.settle()

    async def _send(self, party: int, sent: Sequence[tuple[int, int, int, bool]]) -> None:
        """Devices send one instalment each, or the same again; `other`: other bytes under the same id."""
        core = self.network.seats[party].core
        if core is None or party in self.cut or not sent:
            return
        if any(other for *_, other in sent):
            self.faults.add("cheat")
        self.sent.update(sent)
        messages = self.template.messages
        try:
            answers = await core.service.upload(
                [messages[device, number, other][party] for device, number, _, other in sent]
            )
        except SimulatedCrashError:
            await self.network.crash()
        except StoreError:
            pass
        else:
            self.receipts.update(one for one, answer in zip(sent, answers, strict=True) if isinstance(answer, Receipt))
        await self.network.settle()

    async def op_step(self, seconds: float) -> None:
        """Time passes."""
        await self.network.pass_time(seconds)

    async def op_look(self, party: int) -> None:
        """A party does what is due."""
        self.network.look(party)

    async def op_lose(self, what: str, caller: int, other: int, count: int) -> None:
        """The next requests, or replies, between two parties are lost."""
        self.faults.add("lost")
        self.lost[what, caller, other] += count

    async def op_cut(self, party: int) -> None:
        """No message reaches a party, or leaves it."""
        self.faults.add("lost")
        self.cut.add(party)

    async def op_join(self, party: int) -> None:
        """A party is reached again."""
        self.cut.discard(party)

    async def op_full(self, party: int, count: int) -> None:
        """The next writes of a party fail."""
        core: Any = self.network.seats[party].core
        if core is not None:
            self.faults.add("full")
            core.context.store.failures += count

    async def op_crash(self, party: int) -> None:
        """kill -9."""
        self.faults.add("crash")
        await self.network.stop(party)

    async def op_fail(self, party: int, point: str) -> None:
        """kill -9 at a fail point, when the party comes by it."""
        core = self.network.seats[party].core
        if core is not None:
            self.faults.add("crash")
            core.context.host.failpoints.armed = point

    async def op_restart(self, party: int) -> None:
        """Start a party that is down."""
        if self.network.seats[party].core is None:
            await self.network.start(party)

    async def op_copy(self, party: int) -> None:
        """Keep a copy of a party's disk."""
        self.copies[party] = copied(self.network.seats[party].store_path)

    async def op_restore(self, party: int) -> None:
        """Start a party with the copy of its disk; what it receipted since then it no longer has."""
        if party not in self.copies:
            return
        self.faults.add("restore")
        await self.network.stop(party)
        seat = self.network.seats[party]
        seat.give_store(copied(self.copies[party].path / seat.store_path.name))
        self.network.restored = True
        await self.network.start(party)
        self.network.restored = False
        self.receipts = {one for one in self.receipts if one[2] != party}

    async def op_skew(self, party: int, seconds: float) -> None:
        """A party starts again with a clock that is off: a running process follows its machine's clock by 1 % only."""
        self.faults.update({"crash", "far clock" if abs(seconds) > 300 else "skew"})
        await self.network.stop(party)
        self.network.offsets[party] = int(seconds)
        await self.network.start(party)

    async def op_deny(self, device: int, party: int) -> None:
        """A party is given a deny list that names a device."""
        self.denied.add(device)
        self.network.denials[party] = self.template.denials[device]
        core = self.network.seats[party].core
        if core is not None:
            core.context.host.denials = self.template.denials[device]

    async def op_abort(self, party: int) -> None:
        """A party gives the window up, as `repair` does."""
        core = self.network.seats[party].core
        if core is not None:
            self.faults.add("abort")
            with suppress(StoreError):
                await abort_here(core.context.windows, self.template.window.window_id, "operator")

    async def op_forge(self, party: int) -> None:
        """Somebody who holds a leader's identity shows a helper a record that the helper has not signed."""
        window_id, helper = self.template.window.window_id, self.network.seats[party].core
        signed = self.rows(0, "SELECT request, answer FROM steps WHERE window_id = ? AND name = 'sign'")
        if party == 0 or helper is None or not signed:
            return
        [(request, answer)] = signed
        signatures = (answer, *(self.parties - 1) * [bytes(len(answer))])
        forged = FinishedRecord(window_id=window_id, record=request, signatures=signatures)
        try:
            await helper.helper.deliver_record(self.network.seats[0].aggregator_id, forged)
        except (PeerRefusalError, StoreError):
            pass
        except SimulatedCrashError:
            await self.network.crash()

    # The end.

    def state(self, party: int) -> WindowState:
        """Return the window's state in the store of a party."""
        return self.window(party)[0]

    def window(self, party: int) -> tuple[WindowState, str]:
        """Return the window's state in the store of a party, and why it was given up."""
        [(state, reason)] = self.rows(party, "SELECT state, abort_reason FROM windows WHERE window_id = ?")
        return WindowState(state), reason

    def rows(self, party: int, query: str) -> list[Any]:
        """Return rows of the store of a party about the window, whether it is up or not."""
        return rows_of(self.network.seats[party].store_path, query, self.template.window.window_id)

    async def heal(self) -> bool:
        """Mend every fault and let time pass until the window has ended everywhere; return whether it has."""
        network = self.network
        self.lost.clear()
        self.cut.clear()
        network.offsets.clear()
        for position, seat in enumerate(network.seats):
            if seat.core is not None:
                store: Any = seat.core.context.store
                store.failures, seat.core.context.host.failpoints.armed = 0, ""
                if seat.core.context.host.clock.now() != network.clock.now():
                    await network.stop(position)
            await self.op_restart(position)
        await network.pass_time(max(0, self.template.window.round_two_closes - network.clock.now()))
        for _ in range(_HEALING_STEPS):
            for position in range(self.parties):
                network.look(position)
                await network.settle()
            if self._ended():
                return True
            await network.pass_time(_HEALING_S)
        return False

    def _ended(self) -> bool:
        states = {self.state(party) for party in range(self.parties)}
        return len(states) == 1 and states <= FINAL_STATES

    def proves(self, finished: FinishedRecord) -> bool:
        """Whether every aggregator has signed a record."""
        network = self.network
        key = finished.record, finished.signatures
        if key not in network.proved:
            try:
                verify_record_signatures(
                    decode_record(finished.record), finished.signatures, network._identity(network.seats[0]).trusted
                )
                network.proved[key] = True
            except SignatureError:
                network.proved[key] = False
        return network.proved[key]

    async def close(self) -> None:
        """End every process."""
        await self.network.stop_all()
        await self.network.settle()


def seeded(seed: int) -> random.Random:
    """Return the dice of a list; the jitter of pauses follows them too."""
    random.seed(seed)
    return random.Random(seed)


def pairs(count: int) -> Sequence[tuple[int, int]]:
    """Return the leader with each helper, both ways."""
    return [pair for other in range(1, count) for pair in ((0, other), (other, 0))]

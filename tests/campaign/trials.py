"""Trials of the campaign: small windows through real processes while something fails, and the oracle over each.

A lane is one deployment. Several windows at a time go through it with windows that follow each other closely, so that
one fault finds them in different states; each of them is a trial. Every device has a cell of its own and coins that the
test fixes, and nothing adds noise: a released cell says exactly how often its device counts.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fleetcount_aggregator.host.states import AbortReason
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.channel.certificates import key_digest, load_certificate
from fleetcount_protocol.channel.deny_list import sign_deny_list
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.messages import ReleaseAnswer, WindowState, WindowStatus
from fleetcount_protocol.window.window import Window
from fleetcount_transport.durable_files import replace_file

from tests.campaign.devices import DEVICES, Spec, certificate_of, ends_of, rounds_of, write_spec
from tests.support.broker import RunningBroker
from tests.support.deployment import FINAL, NAMES, LiveDeployment
from tests.support.fleet import offers_of
from tests.support.live_relay import LiveRelay
from tests.support.oracle import expected_difference, raw_cells
from tests.support.postgres import Cluster
from tests.support.processes import ChildProcess, pace
from tests.support.replicas import Balancer, Replicas

_WINDOWS: Final = 8
_LEAD_S: Final = 6.0
_WINDOWS_S: Final = (6.0, 6.0)
_APART_S: Final = 1.5
_OFFERED_S: Final = 60.0
"""An aggregator that was put back takes on no window before its peers have greeted it."""
_STUCK_S: Final = 120.0
"""After its windows and its fault a window has ended within so long, or it is stuck."""
_POLL_S: Final = 0.5
_DENIED_AFTER_S: Final = 3.0
"""An aggregator looks at its deny list every second."""
NOTHING: Final = "nothing"


class Spared(Exception):
    """The fault found nothing that it could hit."""


@dataclass(kw_only=True)
class Trial:
    """What came of one window: `wrong` is empty if everything held."""

    fault: str
    store: str
    end: str = ""
    counted: int = 0
    delivered: int = 0
    damaged: int = 0
    """Reports that an aggregator says are out because its only copy of a part is damaged."""
    lost: int = 0
    doubled: int = 0
    wrong: list[str] = field(default_factory=list[str])
    stuck: bool = False
    unanswered: list[str] = field(default_factory=list[str])
    """What became of the devices that do not hold every receipt."""
    ended_s: float = 0.0
    """From the end of the windows, or of the fault if that is later, to the end of the window everywhere."""
    ready_s: list[float] = field(default_factory=list[float])
    """Restarts, until the process serves again; those of an episode are told by its first trial under the fault."""


@dataclass
class Under:
    """A window that goes through a lane: when it was last seen open, and when first ended everywhere."""

    window: Window
    trial: Trial
    open_at: float = 0.0
    ended_at: float = 0.0
    statuses: list[WindowStatus] = field(default_factory=list[WindowStatus])


class Episode:
    """Some windows that go through a lane together, and the fault that hits them."""

    def __init__(self, lane: "Lane", fault: str, directory: Path, windows: list[Window]) -> None:
        self.lane, self.fault, self.directory = lane, fault, directory
        self.windows = [Under(window, Trial(fault=fault, store=lane.store)) for window in windows]
        command = [sys.executable, "-m", "tests.campaign.devices", str(directory)]
        self.devices = ChildProcess.of("devices", command, directory)
        self.begun, self.over = 0.0, 0.0
        self.denied: dict[int, float] = {}
        self.keys = {position: lane.deployment.keys(position) for position in range(lane.deployment.count)}
        """The sealing keys of the aggregators as they were; none ends within a trial."""
        self.supervised = ""
        """The process that may end by itself, because its disk fails, and is started again then."""
        self.ready_s: list[float] = []

    @property
    def opens(self) -> float:
        """When the first window opens."""
        return float(min(one.window.round_one_opens for one in self.windows))

    @property
    def closes(self) -> float:
        """When the last window closes."""
        return float(max(one.window.round_two_closes for one in self.windows))

    @property
    def _half_closed(self) -> float:
        """When half of the windows go on to their end: later, a fault would miss too many."""
        return float(sorted(one.window.round_two_closes for one in self.windows)[len(self.windows) // 2])

    async def strikes(self, earliest: float = 0.0, latest: float = 0.0) -> None:
        """Wait for a moment, any in which half of the windows or more go on; from now on the fault is there."""
        moment = self.lane.dice.uniform(earliest or self.opens, latest or self._half_closed + 1.0)
        await asyncio.sleep(max(0.0, moment - time.time()))
        self.begun = time.time()


Fault = Callable[["Lane", Episode], Coroutine[None, None, None]]


class Lane:
    """A deployment of two aggregators, its broker, its relay, and the server of its stores if they are not files.

    `disk` says that a small disk is mounted at `root`, on which the stores lie. With `replicas` the leader is several
    processes behind `balancer`, each with a line to the server in `lines`. `deny_list` is the file that all aggregators
    follow, None for none. What a fault puts into `owned` ends with the lane.
    """

    def __init__(
        self,
        root: Path,
        deployment: LiveDeployment,
        broker: RunningBroker,
        relay: LiveRelay,
        *,
        fleets: Path,
        cluster: Cluster | None = None,
        replicas: Replicas | None = None,
        balancer: Balancer | None = None,
        deny_list: Path | None = None,
        disk: bool = False,
        seed: int = 0,
        lines: Mapping[str, Balancer] | None = None,
        owned: ExitStack | None = None,
    ) -> None:
        self.root, self.deployment, self.broker, self.relay = root, deployment, broker, relay
        self.cluster, self.replicas, self.balancer = cluster, replicas, balancer
        self.deny_list, self.disk, self._fleets = deny_list, disk, fleets
        self.lines, self.owned = lines or {}, owned or ExitStack()
        self.dice = random.Random(seed)
        self.answers: dict[bytes, tuple[Window, ReleaseAnswer]] = {}
        self._ports: dict[str, int] = {}
        self._episodes = 0

    @property
    def store(self) -> str:
        """What has its rows."""
        if self.replicas is not None:
            return "replicas on PostgreSQL"
        return "SQLite" if self.cluster is None else "PostgreSQL"

    # Processes.

    @property
    def leader(self) -> list[str]:
        """The names of the leader's processes."""
        return [NAMES[0]] if self.replicas is None else list(self.replicas.processes)

    @property
    def aggregators(self) -> list[str]:
        """The names of all aggregators' processes."""
        return [*self.leader, *NAMES[1 : self.deployment.count]]

    def child(self, name: str) -> ChildProcess:
        """Return a process by its name."""
        if name in ("broker", "relay"):
            return (self.broker if name == "broker" else self.relay).child
        if self.replicas is not None and name in self.replicas.processes:
            return self.replicas.processes[name]
        return self.deployment.children[NAMES.index(name)]

    async def kill(self, *names: str) -> None:
        """Kill processes with -9, all at once."""
        await asyncio.gather(*(asyncio.to_thread(self.child(name).kill) for name in names))

    async def start(self, name: str, ready_s: list[float] | None = None, failpoint: str = "") -> None:
        """Start a process again, and measure until it is ready."""
        begun = time.monotonic()
        await asyncio.to_thread(self.child(name).start, failpoint)
        said = await asyncio.to_thread(self.child(name).ready)
        if ready_s is not None:
            ready_s.append(time.monotonic() - begun)
        if self.balancer is not None and name in self.leader and "device_port" in said:
            self._ports[name] = said["device_port"]
            self.balancer.targets = [("127.0.0.1", port) for port in self._ports.values()]

    def ended_by_itself(self) -> list[str]:
        """Return which processes do not run, and what they said last."""
        names = [*self.aggregators, "broker", "relay"]
        return [
            f"{name} has ended: {self.child(name).last_lines(1)[:300]}"
            for name in names
            if not self.child(name).running
        ]

    # Trials.

    async def episode(
        self,
        name: str,
        fault: Fault,
        *,
        windows: int = _WINDOWS,
        lead_s: float = _LEAD_S,
        windows_s: tuple[float, float] = _WINDOWS_S,
    ) -> list[Trial]:
        """Ask windows while something fails, and judge each."""
        self._episodes += 1
        asked = [
            await asyncio.to_thread(
                self.deployment.ask, DEVICES, lead_s=lead_s + number * _APART_S, windows_s=windows_s
            )
            for number in range(windows)
        ]
        under = Episode(self, name, self._fleets / str(self._episodes), asked)
        spec = Spec(
            root=str(self.deployment.written.root),
            name=self.deployment.written.name,
            broker=self.deployment.written.mqtt_broker,
            relay=self.relay.address,
            seed=self._episodes,
        )
        write_spec(under.directory, spec, await offers_of(self.deployment, asked, timeout_s=_OFFERED_S))
        await asyncio.to_thread(under.devices.start)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._struck(under, fault))
                group.create_task(self._supervised(under))
                for one in under.windows:
                    group.create_task(self._watched(under, one))
            for one in under.windows:
                await self._judge(under, one)
        finally:
            await asyncio.to_thread(under.devices.reap)
        trials = [one.trial for one in under.windows]
        next((one for one in trials if one.fault == name), trials[0]).ready_s = under.ready_s
        return trials

    async def _struck(self, under: Episode, fault: Fault) -> None:
        try:
            await fault(self, under)
        except Spared:
            under.begun = 0.0
        under.over = time.time()
        for one in under.windows:
            # A window that had ended before, or that nothing hit, was asked while nothing failed.
            seen_open = max(one.open_at, one.window.round_two_closes)
            if under.begun == 0.0 or (one.ended_at > 0.0 and seen_open < under.begun):
                one.trial.fault = NOTHING

    async def _supervised(self, under: Episode) -> None:
        """Start a process again that ends by itself, until all windows have ended, as the units of deploy/ do."""
        while any(one.ended_at == 0.0 and not one.trial.stuck for one in under.windows):
            if under.supervised and not self.child(under.supervised).running:
                await self.start(under.supervised, under.ready_s)
            await asyncio.sleep(_POLL_S)

    async def _watched(self, under: Episode, one: Under) -> None:
        """Follow a window until it has ended everywhere or is stuck."""
        said: list[WindowStatus | str] = []
        await asyncio.sleep(max(0.0, one.window.round_two_closes - time.time()))
        while under.over == 0.0 or time.time() < max(under.over, one.window.round_two_closes) + _STUCK_S * pace():
            asked_at = time.time()
            said = await self.deployment.statuses(one.window)
            known = [status for status in said if isinstance(status, WindowStatus)]
            if len(known) == self.deployment.count and all(status.state in FINAL for status in known):
                one.ended_at, one.statuses = time.time(), known
                return
            one.open_at = asked_at
            await asyncio.sleep(_POLL_S)
        one.trial.stuck, one.trial.end = True, "stuck"
        one.trial.wrong.append(f"stuck: {said}")

    async def _judge(self, under: Episode, one: Under) -> None:
        trial, window = one.trial, one.window
        ends = await self._device_ends(under, window)
        delivered = [number for number, (kind, _) in ends.items() if kind == "delivered"]
        trial.delivered = len(delivered)
        trial.unanswered = [
            f"{number}: {kind} {reason}" for number, (kind, reason) in ends.items() if kind != "delivered"
        ]
        if len(ends) != DEVICES:
            trial.wrong.append(f"devices without an end: {under.devices.last_lines(1)[:300]}")
        if trial.stuck:
            return
        trial.ended_s = max(0.0, one.ended_at - max(under.over, window.round_two_closes))
        states = {status.state for status in one.statuses}
        trial.end = "released" if states == {WindowState.RELEASED} else one.statuses[0].abort_reason or "aborted"
        if len(states) != 1:
            trial.wrong.append(f"ends differ: {one.statuses}")
        for position, keys in under.keys.items():
            if keys != self.deployment.keys(position):
                trial.wrong.append(f"{NAMES[position]} has other sealing keys than before")
        trial.damaged = self._said_damaged(window)
        kept = sum(number not in under.denied for number in delivered) - trial.damaged
        if trial.end == AbortReason.TOO_FEW_REPORTS.value and kept >= window.min_batch_size:
            trial.lost = kept
            trial.wrong.append(f"too few reports, and {kept} devices hold every receipt")
        if states == {WindowState.RELEASED}:
            await self._judge_release(under, window, trial, delivered)

    async def _device_ends(self, under: Episode, window: Window) -> dict[int, tuple[str, str]]:
        deadline, path = time.time() + 30 * pace(), ends_of(under.directory, window)
        while not path.exists() and under.devices.running and time.time() < deadline:
            await asyncio.sleep(_POLL_S)
        return (
            {int(number): tuple(end) for number, end in json.loads(path.read_text()).items()} if path.exists() else {}
        )

    async def _judge_release(self, under: Episode, window: Window, trial: Trial, delivered: list[int]) -> None:
        answers = [await self._release_of(window, position) for position in range(self.deployment.count)]
        if any(answer != answers[0] for answer in answers):
            trial.wrong.append("two releases of one window")
        self.answers[window.window_id] = window, answers[0]
        cells, die = raw_cells(answers[0].record), window.mechanism
        assert isinstance(die, SamplingDie)
        shut = {one for one, since in under.denied.items() if since + _DENIED_AFTER_S * pace() < window.round_one_opens}
        rounds = {number: rounds_of(die, number, self._episodes) for number in range(1, DEVICES + 1)}
        told = expected_difference(DEVICES, [rounds[one] for one in delivered if one not in under.denied])
        most = expected_difference(DEVICES, [rounds[one] for one in rounds if one not in shut])
        trial.counted = sum(cells)
        trial.lost = max(0, sum(cell < least for cell, least in zip(cells, told, strict=True)) - trial.damaged)
        trial.doubled = sum(cell > limit for cell, limit in zip(cells, most, strict=True))
        if trial.lost or trial.doubled:
            trial.wrong.append(f"cells {cells}; delivered {told}, of all {most}; denied {sorted(under.denied)}")

    async def _release_of(self, window: Window, position: int) -> ReleaseAnswer:
        """Return what an aggregator gives of a released window; one that was put back from before it adopts it
        first.
        """
        until = time.time() + _STUCK_S * pace()
        while True:
            answer = await self.deployment.release(window, position)
            if answer.record or time.time() > until:
                return answer
            await asyncio.sleep(_POLL_S)

    def _said_damaged(self, window: Window) -> int:
        """Return how many reports of a window an aggregator says are damaged; one done again says it again."""
        lines = [line for name in self.aggregators for line in self.child(name).log.read_text("utf-8").splitlines()]
        of_window = [line for line in lines if "reports_damaged" in line and window.window_id.hex() in line]
        return max((int(json.loads(line)["count"]) for line in of_window), default=0)

    async def second_releases(self) -> int:
        """Return how many of the lane's windows any aggregator now gives another release of than at their end."""
        second = 0
        for window, first in self.answers.values():
            for position in range(self.deployment.count):
                second += await self.deployment.release(window, position) != first
        return second

    def deny(self, under: Episode, number: int) -> None:
        """Put a device on the deny list."""
        assert self.deny_list is not None
        certificate = load_certificate(certificate_of(under.directory, number))
        write_deny_list(self.deny_list, self.deployment, [key_digest(certificate)])
        under.denied[number] = time.time()


def write_deny_list(path: Path, deployment: LiveDeployment, keys: list[Digest]) -> None:
    """Write the next deny list of a deployment: these keys and none of before, whose devices have gone."""
    now = time.time()
    signed = sign_deny_list(
        deployment.written.authorities.devices,
        keys,
        number=int(now * 1000),
        issued_at=int(now),
        expires=int(now) + 86_400,
    )
    replace_file(path, signed.encode())

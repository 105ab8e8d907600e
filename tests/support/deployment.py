"""A deployment of real processes: k aggregators by `fleetcount aggregator serve`, each with its own keys and store.

Everything lies below one directory, every port is a free one; what a test may replace is who runs, what lies in between
(proxies), and the windows of a question.
"""

import json
import math
import secrets
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio
from fleetcount.keys.deployment import Deployment, write_analyst
from fleetcount.read.states import ask_statuses
from fleetcount_aggregator.config import load_config
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.windows.status import read_status
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.channel.certificates import CertificateAuthority, load_certificate, load_private_key
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.limits import VERIFY_KEY_BYTES
from fleetcount_protocol.messages import ReleaseAnswer, ReleaseQuery, WindowState, WindowStatus
from fleetcount_protocol.question.fields import Coin, Participants, Schedule
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.v1.device_pb2_grpc import DeviceServiceStub
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.fields import Aggregator, Mode, Release, ReleaseKind, UploadStyle
from fleetcount_protocol.window.window import Window
from fleetcount_protocol.wire.device import RELEASE_ANSWER, RELEASE_QUERY
from fleetcount_simulator.network.brokers import StartedBroker
from fleetcount_simulator.network.children import Child, Children
from fleetcount_simulator.network.deployments import NAMES, Authorities
from fleetcount_simulator.network.parties import Parties, submit_question

from tests.support.pem import pem_pair
from tests.support.processes import ChildProcess, SeenProcess, pace, under_clock, wait_until, without_numba

__all__ = ["NAMES", "SIGNAL", "Deployed", "LiveDeployment", "categories", "troubles_of"]

SIGNAL = "Vehicle.CurrentLocation"
_ENVIRONMENT = {"FLEETCOUNT_LOG__LEVEL": "debug", "FLEETCOUNT_METRICS__LISTEN": "127.0.0.1:0"}
FINAL = frozenset({WindowState.RELEASED, WindowState.ABORTED})
_START_S = 1.25
"""What an aggregator needs to start on an idle machine of two cores, beside four others; a second of it computes."""
_EVERY_S = 60
"""So long before a window opens, or as soon as the question is there, the aggregators make its window."""
_SLOWEST = 4.0
"""Windows get no longer than so many times what they are on an idle machine: a test has its limit too."""


def categories(count: int) -> Categories:
    """Return a domain of `count` values."""
    return Categories(names=tuple(f"place {number}" for number in range(1, count + 1)))


_TROUBLES = (
    "Traceback",
    "Exception in callback",
    "call_failed",
    "window_failed",
    "Exception ignored",
    "never retrieved",
    "RuntimeWarning",
)


def troubles_of(child: ChildProcess | SeenProcess) -> list[str]:
    """Return every line of a process's log that no test may cause: tracebacks and errors nobody expected."""
    lines = child.log.read_text("utf-8", "replace").splitlines() if child.log.exists() else []
    return [f"{child.name}: {line}" for line in lines if any(mark in line for mark in _TROUBLES)]


class Deployed:
    """k aggregators that run on this machine, whoever started them; seat 0 leads every question."""

    def __init__(
        self, written: Deployment, root: Path, analyst: Path, children: Sequence[Any], *, slowness: float = 1.0
    ) -> None:
        self.written = written
        self.root = root
        self.analyst = analyst
        self.children = list(children)
        self._asked = 0
        self._slowness = slowness

    @classmethod
    def of(cls, description: dict[str, Any]) -> Self:
        """Return what another process started and described."""
        place = description["written"] / "ca"
        authorities = Authorities(aggregators=_authority(place, "aggregators"), devices=_authority(place, "devices"))
        written = Deployment(root=description["written"], authorities=authorities, **description["fields"])
        children = [SeenProcess(**child) for child in description["children"]]
        return cls(written, description["root"], description["analyst"], children, slowness=description["slowness"])

    @property
    def count(self) -> int:
        """k."""
        return len(self.children)

    def config(self, position: int) -> Path:
        """Return an aggregator's configuration file."""
        return self.written.config_of(position)

    def state_directory(self, position: int) -> Path:
        """Return where an aggregator's store lies."""
        return self.config(position).parent / "state"

    def keys(self, position: int) -> dict[str, bytes]:
        """Return an aggregator's sealing keys by the names of their files."""
        return {path.name: path.read_bytes() for path in (self.config(position).parent / "keys").glob("*.key")}

    def store_place(self, position: int) -> StorePlace:
        """Return where an aggregator's store lies, as its configuration says."""
        return load_config(self.config(position), {}).store_place

    @property
    def pace(self) -> float:
        """How much longer windows are here than on an idle machine: `pace()`, or more where the start took longer."""
        return max(pace(), min(_SLOWEST, self._slowness))

    def metric(self, position: int, name: str) -> float:
        """Return one number, without labels, of an aggregator's metrics."""
        port = self.children[position].ready()["metrics_port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return float(next((line.split()[-1] for line in lines if line.startswith(f"{name} ")), 0.0))

    def log_records(self, position: int) -> list[dict[str, Any]]:
        """Return an aggregator's log, a record a line."""
        return [json.loads(line) for line in self.children[position].log.read_text().splitlines() if line[:1] == "{"]

    def troubles(self) -> list[str]:
        """Return every line of any log that no test may cause: tracebacks and errors nobody expected."""
        return [line for child in self.children for line in troubles_of(child)]

    # Questions.

    def question(
        self,
        values: int,
        *,
        lead_s: float = 2.0,
        windows_s: tuple[float, float] = (2.0, 2.0),
        aggregators: Sequence[Aggregator] | None = None,
        **changes: Any,
    ) -> Question:
        """Return a sampling question of one window whose result is published without noise; it has no seed yet.

        `windows_s` are the lengths of both rounds, which follow the machine: on one that is loaded, or was when the
        aggregators started, they are longer.
        """
        self._asked += 1
        one, two = (math.ceil(length * self.pace) for length in windows_s)
        schedule = Schedule(
            first=math.ceil(time.time() + lead_s * self.pace),
            every_s=max(_EVERY_S, one + two),
            windows=1,
            round_one_s=one,
            round_two_s=two,
            expiry_s=3600,
        )
        fields: dict[str, Any] = {
            "name": f"question {self._asked}",
            "deployment": self.written.name,
            "signal": SIGNAL,
            "domain": categories(values),
            "mode": Mode.SAMPLING,
            "mechanism": SamplingDie.uniform(Fraction(2, 5), values),
            "schedule": schedule,
            "coin": Coin.WINDOW,
            "participants": Participants.HIDDEN,
            "delta": Fraction(1, 10**9),
            "release": Release(kind=ReleaseKind.EXACT, noise_epsilon=None, level=Fraction(19, 20)),
            "upload_style": UploadStyle.TWO_INSTALMENTS,
            "time_precision_s": 1,
            "min_batch_size": 2,
            "aggregators": tuple(replace(one, hpke_keys=()) for one in aggregators or self.written.aggregators),
            "verify_seed_digest": Digest(bytes(32)),
        }
        return Question(**(fields | changes))

    def submit(self, draft: Question, seed: bytes | None = None) -> Question:
        """Give a question a seed, a new one unless it is named, let every operator sign it and submit it; return it."""
        return submit_question(self.written, draft, seed or secrets.token_bytes(VERIFY_KEY_BYTES)).question

    def ask(self, values: int, **settings: Any) -> Window:
        """Make, sign and submit a question of one window; return the window."""
        return window_at(self.submit(self.question(values, **settings)), 0)

    async def statuses(self, window: Window, asker: int = 0) -> list[WindowStatus | str]:
        """Return every aggregator's status, or why it gives none, as the operator of `asker` sees it."""
        return list((await ask_statuses(self.config(asker), window)).values())

    async def ended(self, window: Window, timeout_s: float = 40.0) -> list[WindowStatus]:
        """Wait until the window has ended at every aggregator; return the statuses."""
        import asyncio

        deadline = max(time.time(), window.round_two_closes) + timeout_s * pace()
        while True:
            statuses = await self.statuses(window)
            known = [status for status in statuses if isinstance(status, WindowStatus)]
            if len(known) == self.count and all(status.state in FINAL for status in known):
                return known
            if time.time() > deadline:
                raise AssertionError(f"not ended: {statuses}; {[child.last_lines(3) for child in self.children]}")
            # Each question is a connection of its own, for which the aggregators compute; before a window closes it
            # ends only if it is aborted.
            await asyncio.sleep(max(0.2, window.round_two_closes - time.time()))

    async def release(self, window: Window, position: int = 0) -> ReleaseAnswer:
        """Return what one aggregator answers an analyst."""
        async with self.channel(position) as channel:
            query = ReleaseQuery(aggregator_id=window.aggregators[position].aggregator_id, window_id=window.window_id)
            answer = await DeviceServiceStub(channel).GetRelease(RELEASE_QUERY.to_pb(query), timeout=10)
        return RELEASE_ANSWER.from_pb(answer)

    # Connections.

    def device_credentials(self) -> grpc.ChannelCredentials:
        """Return TLS credentials under a device's certificate of this deployment."""
        key, certificate = pem_pair(self.written.authorities.devices.issue_device())
        authorities = (self.written.root / "ca" / "aggregators.crt").read_bytes()
        return grpc.ssl_channel_credentials(authorities, key, certificate)

    def channel(
        self, position: int, credentials: grpc.ChannelCredentials | None = None, *, peer: bool = False
    ) -> grpc.aio.Channel:
        """Return a channel to an aggregator's device port, or to its peer port."""
        plan = self.written.plans[position]
        port = plan.peer_port if peer else plan.device_port
        options = [("grpc.ssl_target_name_override", str(plan.aggregator_id)), ("grpc.enable_retries", 0)]
        return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials or self.device_credentials(), options=options)

    def wait_state(self, position: int, window: Window, state: WindowState) -> None:
        """Wait until an aggregator's own store says that the window is in a state or beyond."""
        order, place = list(WindowState), self.store_place(position)

        def reached() -> bool:
            rows = [row for row in read_status(place).windows if row.window_id == window.window_id]
            return bool(rows) and order.index(rows[0].state) >= order.index(state)

        wait_until(reached, f"{NAMES[position]} has {state.value}", 60 * pace())


def _authority(place: Path, name: str) -> CertificateAuthority:
    return CertificateAuthority(
        certificate=load_certificate(place / f"{name}.crt"), private_key=load_private_key(place / f"{name}.key")
    )


class LiveDeployment(Deployed):
    """k aggregators that this process starts, may kill, and ends.

    `compiled`: they verify with compiled code, which takes longer to load than a few reports in plain Python.
    """

    def __init__(
        self,
        root: Path,
        count: int = 2,
        *,
        name: str = "test",
        broker: StartedBroker | None = None,
        give_up_s: float = 120.0,
        call_timeout_s: float = 5.0,
        largest_epsilon: int = 4,
        compiled: bool = False,
        peer_endpoint: Callable[[str], str] = str,
    ) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._environment = _ENVIRONMENT | ({} if compiled else without_numba())
        parties = Parties(Children(root), root, broker=broker, environment=self._environment)
        limits = {"give_up_s": str(give_up_s), "call_timeout_s": str(call_timeout_s)}
        parties.write(name, count, {"largest_epsilon": f'"{largest_epsilon}"', "allow_exact_release": "true", **limits})
        written: Deployment = parties.deployment
        children = [
            ChildProcess(NAMES[position], partial(self._begin, parties, position), root) for position in range(count)
        ]
        super().__init__(written, root, write_analyst(written), children)
        for position in range(count):
            self._meet(position, peer_endpoint)

    def _meet(self, position: int, peer: Callable[[str], str]) -> None:
        """Let peers meet where the test says."""
        path = self.config(position)
        text = path.read_text()
        for plan in self.written.plans:
            endpoint = f"{plan.host}:{plan.peer_port}"
            if plan is not self.written.plans[position]:
                text = text.replace(f'\nendpoint = "{endpoint}"', f'\nendpoint = "{peer(endpoint)}"')
        path.write_text(text)

    # Processes.

    async def _begin(self, parties: Parties, position: int, failpoint: str) -> Child:
        if not (ahead_s := self.children[position].clock_s):
            return await parties.start(position, failpoint)
        command = under_clock(self.written.serve_command(position), ahead_s)
        return await parties.children.start(NAMES[position], command, environment=self._environment)

    def start(self, position: int, failpoint: str = "") -> None:
        """Start one aggregator, armed to end at a fail point if one is named; returns before it is ready."""
        self.children[position].start(failpoint)

    def start_all(self) -> "LiveDeployment":
        """Start everyone and wait until all are ready; how long that takes is how slow this machine is now."""
        begun = time.monotonic()
        for position in range(self.count):
            self.start(position)
        self.wait_ready()
        self._slowness = (time.monotonic() - begun) / (_START_S * self.count)
        return self

    def wait_ready(self) -> list[dict[str, Any]]:
        """Wait until all are ready; return what they say."""
        return [child.ready() for child in self.children]

    def stop_all(self) -> list[int]:
        """End everyone; return the exit codes."""
        for child in self.children:
            child.terminate()
        return [child.ended() for child in self.children]

    def description(self) -> dict[str, Any]:
        """Return what others need to ask it; private keys they read where they lie."""
        one = self.written
        children = [
            {"name": child.name, "log": child.log, "pid": child.pid, "ready": child.ready()} for child in self.children
        ]
        fields = {name: getattr(one, name) for name in ("name", "plans", "aggregators", "mqtt_broker")}
        return {
            "written": one.root,
            "root": self.root,
            "analyst": self.analyst,
            "slowness": self._slowness,
            "children": children,
            "fields": fields,
        }

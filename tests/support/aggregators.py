"""Aggregators in one process with an in-memory network, and devices whose coins a test chooses.

Real cryptography throughout; what a test may replace is the clock, the noise, the network and the stores.
"""

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.host import Host, Limits, NoiseSource, OwnIdentity
from fleetcount_aggregator.host.keys import KeyRing
from fleetcount_aggregator.host.states import FINAL_STATES
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.peers import PeerUnreachableError
from fleetcount_aggregator.process.serving import Core
from fleetcount_aggregator.release.noise import SystemNoise
from fleetcount_aggregator.roles.helper import Helper
from fleetcount_aggregator.storage.data_keys import at_rest_key_of
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_aggregator.storage.question_rows import read_decided
from fleetcount_aggregator.storage.rows import read_latest_time
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.verification.workers import Workers
from fleetcount_aggregator.windows.question_install import install_question
from fleetcount_mechanisms.noise import NoiseLaw
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.channel.certificates import CertificateAuthority, key_digest
from fleetcount_protocol.channel.hpke import HpkeKeyPair
from fleetcount_protocol.channel.session import DeviceIdentity, SessionSecret, new_session, seal_instalment
from fleetcount_protocol.clock import Clock
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, new_report_id
from fleetcount_protocol.messages import Instalment, Receipt, Refusal, SessionAccepted, SessionRequest
from fleetcount_protocol.question.fields import Coin, Participants, Schedule
from fleetcount_protocol.question.question import Question, SignedQuestion, sign_question, window_at
from fleetcount_protocol.vdaf.prio3 import first_instalments, second_instalments
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.fields import Aggregator, HpkeKey, Mode, Release, ReleaseKind, UploadStyle
from fleetcount_protocol.window.signing import TrustedAggregator
from fleetcount_protocol.window.succession import SignedSuccession, with_successions
from fleetcount_protocol.window.window import Window, context_of, prio3_for
from fleetcount_transport.failpoints import Failpoints

from tests.support.expiries import on_the_hour
from tests.support.inline_workers import InlineWorkers
from tests.support.manual_clock import ManualClock
from tests.support.memory_peers import MemoryPeer
from tests.support.protocol_samples import session_secret
from tests.support.stores import StoreFolder, close_with, shut, watched

START = 1_800_000_000
NAMES = ("alpha", "beta", "gamma", "delta", "epsilon")


class SimulatedCrashError(BaseException):
    """Stands for kill -9: no handler of the code under test catches it."""


class NoNoise:
    """A test's noise: none."""

    def draw(self, law: NoiseLaw, count: int) -> list[int]:
        """Return zeros."""
        del law
        return [0] * count


@lru_cache(maxsize=1)
def device_authority() -> CertificateAuthority:
    """Return the authority of all test devices."""
    return CertificateAuthority.create("test devices")


def device_digest(number: int) -> Digest:
    """Return the digest of the public key of test device `number`."""
    return key_digest(device_identity(number).certificate)


@lru_cache(maxsize=256)
def device_identity(number: int) -> DeviceIdentity:
    """Return the identity of test device `number`."""
    del number
    return DeviceIdentity.generate(device_authority())


@dataclass
class Seat:
    """One aggregator's durable part: what survives a crash, and how to start it again."""

    aggregator: Aggregator
    signing_key: Ed25519PrivateKey
    keys: KeyRing
    store_path: Path
    folders: list[StoreFolder] = field(default_factory=list[StoreFolder])
    """What keeps the folder of `store_path`, and those of stores before."""
    at_rest_key: bytes = field(default_factory=partial(os.urandom, 32))
    successions: tuple[SignedSuccession, ...] = ()
    core: Core | None = None
    failpoint: str = ""
    """The one that it was started with, and must have reached once it is stopped."""
    url: str | None = None
    """Of a PostgreSQL database that has its rows."""
    opened: list[Store] = field(default_factory=list[Store])
    running: Store | None = None

    def __post_init__(self) -> None:
        close_with(self, self.opened)

    @property
    def aggregator_id(self) -> AggregatorId:
        return self.aggregator.aggregator_id

    def open_store(self) -> Store:
        """Open the store for a new process; the process before has ended, however that was."""
        if self.running is not None:
            shut(self.running)
        self.running = watched(self._open())
        self.opened[:] = [*(one for one in self.opened if not one._closed), self.running]
        return self.running

    def give_store(self, folder: StoreFolder | None = None) -> None:
        """Give the next process another store, without one a new one; a process that runs goes on with its own."""
        self.folders.append(folder or StoreFolder())
        self.store_path = self.folders[-1].path / self.store_path.name
        self.running = None

    def _open(self) -> Store:
        try:
            former = at_rest_key_of(self.signing_key)
        except UsageError:
            former = None  # A token gives no key away.
        if self.url is None:
            return Store.open(self.store_path, self.at_rest_key, former)
        engine = open_engine(StorePlace(directory=self.store_path.parent, url=self.url))
        return Store.over(engine, self.store_path, self.at_rest_key, former)


class AheadClock:
    """A clock that is ahead of another by some seconds, or behind it."""

    def __init__(self, true: Clock, seconds: float) -> None:
        self._true, self._seconds = true, seconds

    def now(self) -> float:
        """See `Clock.now`."""
        return self._true.now() + self._seconds


class Network:
    """k aggregators that talk through function calls. Seat 0 leads every window."""

    def __init__(
        self,
        count: int = 2,
        *,
        directory: Path | None = None,
        noise: NoiseSource | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.clock = ManualClock(START)
        self.noise = NoNoise() if noise is None else noise
        self.limits = limits or Limits(smallest_min_batch_size=2, give_up_s=600, first_retry_s=1, longest_retry_s=60)
        self.supervised = True
        self.greets = False
        self.wrong_s: dict[int, float] = {}
        """By how many seconds the clock is ahead that an aggregator is started with, by position."""
        self.restored = False
        self.crashed: list[int] = []
        self.crashing = asyncio.Lock()
        self.before: Callable[[AggregatorId, AggregatorId, str], None] = lambda *_: None
        self.after: Callable[[AggregatorId, AggregatorId, str], None] = lambda *_: None
        self.seats = [self._seat(name, directory) for name in NAMES[:count]]

    def _seat(self, name: str, directory: Path | None) -> Seat:
        signing_key, hpke = Ed25519PrivateKey.generate(), HpkeKeyPair.generate(1)
        folders = [] if directory is not None else [StoreFolder()]
        return Seat(
            aggregator=Aggregator(
                aggregator_id=AggregatorId(name),
                operator=f"Operator of {name}",
                grpc_endpoint=f"127.0.0.1:{7000 + NAMES.index(name)}",
                mqtt_broker="",
                hpke_keys=(HpkeKey(key_id=1, public_key=hpke.public_key),),
                signing_public_key=signing_key.public_key().public_bytes_raw(),
            ),
            signing_key=signing_key,
            keys=KeyRing({1: hpke}),
            store_path=(folders[0].path if directory is None else directory) / f"{name}.db",
            folders=folders,
        )

    # Life of the processes.

    async def start(self, position: int, failpoint: str = "") -> Core:
        """Start an aggregator, or start it again after a crash."""
        seat = self.seats[position]
        host = Host(
            identity=self._identity(seat),
            keys=seat.keys,
            clock=self._clock(seat),
            limits=self.limits,
            noise=self.noise,
            failpoints=Failpoints(failpoint, _crash),
            pause=self._pause,
            **self._parts(seat),
        )
        peers = {other.aggregator_id: self._peer(seat, other) for other in self.seats if other is not seat}
        context = Context.over(host, seat.open_store(), self._workers(seat), peers)
        await context.questions.load(context.windows)
        await context.windows.load(context.questions)
        if self.greets:
            context.host.moments.begin(await context.store.read(read_latest_time), context.peers)
            context.peers.greetings.restored = self.restored
            await context.peers.greetings.begin(seat.signing_key, context.host.source)
        seat.core, seat.failpoint = Core.of(context), failpoint
        return seat.core

    async def start_all(self) -> None:
        """Start every aggregator."""
        for position in range(len(self.seats)):
            await self.start(position)

    async def stop(self, position: int) -> None:
        """Take an aggregator down; its store stays."""
        seat = self.seats[position]
        if seat.core is not None:
            core, seat.core = seat.core, None
            reached = core.context.host.failpoints.tripped or not seat.failpoint
            await core.context.store.close()
            assert reached, f"{seat.aggregator_id} never came to {seat.failpoint}"

    async def stop_all(self) -> None:
        """Take every aggregator down."""
        for position in range(len(self.seats)):
            await self.stop(position)

    def core(self, position: int) -> Core:
        """Return a running aggregator."""
        core = self.seats[position].core
        if core is None:
            raise AssertionError(f"aggregator {position} is down")
        return core

    async def _pause(self, seconds: float) -> None:
        """Let time pass for whoever waits; a supervisor starts crashed aggregators again meanwhile."""
        async with self.crashing:
            self.clock.advance(seconds)
            if self.supervised:
                await self.start_crashed()

    async def start_crashed(self) -> None:
        """Start again whoever is down after a crash, without its fail point."""
        while self.crashed:
            await self.start(self.crashed.pop())

    def _parts(self, seat: Seat) -> dict[str, Any]:
        """Return what else the host of an aggregator that starts is made of."""
        del seat
        return {}

    def _workers(self, seat: Seat) -> Workers:
        """Return who verifies for an aggregator that starts."""
        del seat
        return InlineWorkers()

    def _clock(self, seat: Seat) -> Clock:
        """Return what an aggregator tells the time by."""
        wrong_s = self.wrong_s.get(self.seats.index(seat), 0.0)
        return AheadClock(self.clock, wrong_s) if wrong_s else self.clock

    def _identity(self, seat: Seat) -> OwnIdentity:
        return OwnIdentity(
            aggregator_id=seat.aggregator_id,
            operator=seat.aggregator.operator,
            deployment="test",
            signing_key=seat.signing_key,
            trusted={
                one.aggregator_id: with_successions(
                    TrustedAggregator(
                        aggregator_id=one.aggregator_id,
                        operator=one.aggregator.operator,
                        signing_public_key=one.aggregator.signing_public_key,
                    ),
                    one.successions,
                )
                for one in self.seats
            },
            device_ca=(device_authority().certificate,),
        )

    def _peer(self, caller: Seat, other: Seat) -> MemoryPeer:
        def find() -> Helper:
            if other.core is None:
                raise PeerUnreachableError(f"{other.aggregator_id} is down")
            return other.core.helper

        def crash_aware(name: str) -> None:
            if caller.core is None:
                raise PeerUnreachableError("the caller is down")
            self.before(caller.aggregator_id, other.aggregator_id, name)

        return _CrashingPeer(
            self,
            other,
            caller.aggregator_id,
            find,
            greetings=lambda: None if caller.core is None else caller.core.context.peers.greetings,
            before=crash_aware,
            after=lambda name: self.after(caller.aggregator_id, other.aggregator_id, name),
        )

    # Question.

    def question(self, **changes: object) -> tuple[SignedQuestion, bytes]:
        """Return a signed question of sampling windows, one a minute, over 8 `values`, with `changes`, and its seed."""
        seed = bytes(range(1, 33))
        values = int(str(changes.pop("values", 8)))
        fields: dict[str, Any] = {
            "name": "where are you",
            "deployment": "test",
            "signal": "Vehicle.CurrentLocation",
            "domain": Categories(names=tuple(f"place {one}" for one in range(1, values + 1))),
            "mode": Mode.SAMPLING,
            "mechanism": SamplingDie.uniform(Fraction(1, 4), values),
            "schedule": Schedule(
                first=START + 120, every_s=60, windows=5, round_one_s=10, round_two_s=10, expiry_s=86_400
            ),
            "coin": Coin.WINDOW,
            "participants": Participants.HIDDEN,
            "delta": Fraction(1, 10**9),
            "release": Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1), level=Fraction(19, 20)),
            "upload_style": UploadStyle.TWO_INSTALMENTS,
            "time_precision_s": 10,
            "min_batch_size": 2,
            "aggregators": tuple(seat.aggregator for seat in self.seats),
            "verify_seed_digest": Digest(hashlib.sha256(seed).digest()),
        } | changes
        fields["aggregators"] = tuple(replace(one, hpke_keys=()) for one in fields["aggregators"])
        question = Question(**fields)
        signatures = tuple(sign_question(question, seat.signing_key) for seat in self.seats)
        return SignedQuestion(question=question, signatures=signatures), seed

    def once(self, **changes: object) -> tuple[SignedQuestion, bytes]:
        """Return a signed question of one window, with `changes`, which may name the window's times, and its seed."""
        times = {"round_one_opens": 10, "round_one_closes": 20, "round_two_closes": 30, "expiry": 86_400}
        opens, one_closes, two_closes, expiry = (int(str(changes.pop(one, START + at))) for one, at in times.items())
        if changes.get("upload_style") is UploadStyle.ONE_ENVELOPE:
            two_closes = one_closes
        step = int(str(changes.get("time_precision_s", 10)))
        schedule = Schedule(
            first=opens,
            every_s=-(-max(two_closes - opens, 60) // step) * step,
            windows=1,
            round_one_s=one_closes - opens,
            round_two_s=two_closes - one_closes,
            expiry_s=expiry - two_closes,
        )
        return self.question(**{"schedule": schedule, **changes})

    def window(self, **changes: object) -> Window:
        """Return the window of `once`."""
        return window_at(self.once(**changes)[0].question, 0)

    async def ask(self, **changes: object) -> Window:
        """Let the leader install a question of one window and hand it to everybody; return the window."""
        signed, seed = self.once(**changes)
        await install_question(self.core(0).context, signed, seed)
        for _ in range(2):  # The others decide about the window once they have the question.
            await self.look_after_all()
        return window_at(signed.question, 0)

    async def stand(self, **changes: object) -> Question:
        """Install a question at the leader, let it hand it to everybody, and return it."""
        signed, seed = self.question(**changes)
        await install_question(self.core(0).context, signed, seed)
        await self.core(0).handover.run_due()
        return signed.question

    async def missing(self, question: Question, position: int = 0) -> dict[int, str]:
        """Return the windows of a question that are missing at an aggregator, and why."""
        rows = await self.core(position).context.store.read(read_decided, question.question_id)
        return {row.index: row.missing for row in rows if row.missing}

    async def decided(self, question: Question, position: int = 0) -> list[str]:
        """Return what an aggregator decided about each window: "window" or why it is missing."""
        missing = await self.missing(question, position)
        following = self.core(position).context.questions[question.question_id].following
        return [missing.get(index, "window") for index in range(following)]

    async def come_to(self, window: Window) -> None:
        """Move the clock to a minute before a window opens, and let everybody decide about it."""
        await self.advance_to(window.round_one_opens - 60)
        await self.look_after_all()

    async def advance_to(self, moment: int) -> None:
        """Move the clock forward to a moment."""
        self.clock.advance(max(0, moment - self.clock.now()))

    async def look_after_all(self) -> None:
        """Let every running aggregator look after every window once; a crash takes its aggregator down."""
        for seat in self.seats:
            try:
                if seat.core is not None:
                    await seat.core.scheduler.open_windows()
                    await seat.core.handover.run_due()
            except SimulatedCrashError:
                await self.crash()
            for window in [] if seat.core is None else seat.core.scheduler.pending():
                try:
                    if seat.core is not None:
                        await seat.core.scheduler.look_after(window)
                except SimulatedCrashError:
                    await self.crash()
            if seat.core is not None:
                await seat.core.retention.look()

    async def crash(self) -> None:
        """Take down whoever hit its fail point; several calls under way may have hit it."""
        async with self.crashing:
            for position, seat in enumerate(self.seats):
                if seat.core is not None and seat.core.context.host.failpoints.tripped:
                    await self.stop(position)
                    self.crashed.append(position)

    async def run_to_the_end(self, window: Window) -> None:
        """Let the windows close and everybody work until the window has ended everywhere, crashes included."""
        await self.advance_to(window.round_two_closes)
        for _ in range(20):
            await self.look_after_all()
            await self.start_crashed()
            if all(
                seat.core and seat.core.context.windows.states[window.window_id] in FINAL_STATES for seat in self.seats
            ):
                break
            self.clock.advance(60)
        await self.look_after_all()


class _CrashingPeer(MemoryPeer):
    """A peer whose crash looks like silence to the caller."""

    def __init__(self, network: Network, other: Seat, *arguments: Any, **hooks: Any) -> None:
        super().__init__(*arguments, **hooks)
        self._network = network
        self._other = other

    async def _send(self, name: str, ask: Callable[[Helper], Awaitable[Any]]) -> Any:
        try:
            return await super()._send(name, ask)
        except SimulatedCrashError:
            core = self._other.core
            if core is not None and not core.context.host.failpoints.tripped:
                raise
            await self._network.crash()
            raise PeerUnreachableError(f"{self._other.aggregator_id} crashed") from None
        except StoreError:
            # What was under way when another call crashed it.
            raise PeerUnreachableError(f"{self._other.aggregator_id} crashed") from None


def _crash(name: str) -> None:
    raise SimulatedCrashError(name)


@dataclass
class TestDevice:
    """A device whose coins the test chooses; sends what it is told, valid or not."""

    __test__ = False

    network: Network
    window: Window
    number: int
    secrets: list[SessionSecret] = field(default_factory=list)
    requests: list[SessionRequest] = field(default_factory=list)
    nonce: bytes = b""
    rand: bytes = b""

    def __post_init__(self) -> None:
        own = new_report_id(self.window.window_id, device_digest(self.number), SystemRandom())
        self.nonce = self.nonce or bytes(own)
        self.rand = self.rand or SystemRandom().random_bytes(prio3_for(self.window).rand_size)

    @property
    def report_id(self) -> ReportId:
        return ReportId(self.nonce)

    async def open_sessions(self) -> None:
        """Open a session with every running aggregator."""
        identity, expiry = device_identity(self.number), on_the_hour(self.network.clock.now(), 13)
        for seat in self.network.seats:
            request, opening = new_session(
                seat.aggregator, seat.aggregator.hpke_keys[0], identity, expiry, SystemRandom()
            )
            self.requests.append(request)
            if seat.core is None:
                self.secrets.append(session_secret())
                continue
            [reply] = await seat.core.service.open_sessions([request])
            assert isinstance(reply, SessionAccepted), reply
            self.secrets.append(opening.finish(reply))

    def first(self, round_one: int) -> list[Instalment]:
        """Return the sealed instalments of round one."""
        parts = first_instalments(prio3_for(self.window), context_of(self.window), self.nonce, self.rand, round_one)
        return self.seal(1, b"", parts)

    def second(self, round_one: int, round_two: int) -> list[Instalment]:
        """Return the sealed instalments of round two."""
        public_share, parts = second_instalments(
            prio3_for(self.window), context_of(self.window), self.nonce, self.rand, round_one, round_two
        )
        return self.seal(2, public_share, parts)

    def raw(self, measurement: Sequence[int]) -> tuple[bytes, tuple[bytes, ...]]:
        """Return shares of field elements as they stand, valid or not."""
        prio3 = prio3_for(self.window)
        elements = [value % prio3.field.modulus for value in measurement]
        return prio3.shard_encoded(context_of(self.window), elements, self.nonce, self.rand)

    def seal(self, round_number: int, public_share: bytes, parts: Sequence[bytes]) -> list[Instalment]:
        """Return one sealed instalment an aggregator."""
        return [
            seal_instalment(
                self.secrets[position].window_key,
                self.window.window_id,
                self.report_id,
                round_number,
                position,
                public_share,
                part,
            )
            for position, part in enumerate(parts)
        ]

    async def send(self, instalments: Sequence[Instalment], to: Sequence[int] | None = None) -> list[Receipt | Refusal]:
        """Send each aggregator its instalment; return the answers of those it was sent to."""
        answers: list[Receipt | Refusal] = []
        for position in range(len(instalments)) if to is None else to:
            answers += await self._send_one(position, instalments[position])
        return answers

    async def _send_one(self, position: int, instalment: Instalment) -> Sequence[Receipt | Refusal]:
        """Send one instalment; after a crash send the same bytes again."""
        for _ in range(3):
            try:
                return await self.network.core(position).service.upload([instalment])
            except SimulatedCrashError:
                await self.network.crash()
                await self.network.start_crashed()
        raise AssertionError("an aggregator crashed three times in a row")


async def answer_all(
    network: Network,
    window: Window,
    coins: Sequence[tuple[int, int]],
    *,
    offset: int = 0,
    numbers: Sequence[int] | None = None,
) -> list[TestDevice]:
    """Let one device a pair of coins (round one, round two) answer both rounds everywhere; return the devices.

    Their numbers go up from `offset`, or are these.
    """
    devices = [TestDevice(network, window, number) for number in numbers or range(offset, offset + len(coins))]
    await network.advance_to(window.round_one_opens)
    for device, (first, _) in zip(devices, coins, strict=True):
        await device.open_sessions()
        answers = await device.send(device.first(first))
        assert all(isinstance(answer, Receipt) for answer in answers), answers
    await network.advance_to(window.round_one_closes)
    for device, (first, second) in zip(devices, coins, strict=True):
        answers = await device.send(device.second(first, second))
        assert all(isinstance(answer, Receipt) for answer in answers), answers
    return devices


def system_noise() -> NoiseSource:
    """Return the real noise."""
    return SystemNoise(SystemRandom())

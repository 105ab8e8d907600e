"""A deployment that `fleetcount keys init` wrote, all of it in this process on a clock that is told the time.

Real keys, stores, question directories and devices, and device ports with TLS that the command asks. The aggregators
talk to each other by function calls, the devices to them alike; nothing moves the clock but `pass_to`.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc.aio
import pytest
from fleetcount_aggregator.config import AggregatorConfig, load_config
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.host import Limits, OwnIdentity
from fleetcount_aggregator.host.keys import load_signing_key, load_store_key
from fleetcount_aggregator.process.app import build_identity
from fleetcount_aggregator.transport.grpc_server import DeviceShell, device_server
from fleetcount_aggregator.windows.directory import QuestionDirectory
from fleetcount_aggregator.windows.sealing_keys import SealingKeys
from fleetcount_client.assembly import identity_of, trust_of
from fleetcount_client.config import DeliverySettings, load_settings
from fleetcount_client.device import Device
from fleetcount_client.policy import JoinRule
from fleetcount_client.spool import SpoolFile
from fleetcount_client.transport import Unreachable
from fleetcount_protocol.channel.certificates import Purpose
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.messages import QuestionQuery
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_transport.admission.handshake_gate import HandshakeGate
from fleetcount_transport.key_files import TlsFiles, read_public_file
from fleetcount_transport.listening import bind

from tests.support.aggregators import Network, Seat, system_noise

Shell = Callable[..., Any]
"""Runs the command in this process: the fixture `fleetcount` of tests/cli."""
ASKING = tuple(f"fleetcount.question.{one}" for one in ("create", "orders"))
"""The modules of the commands that ask a question and know the time."""


class _Network(Network):
    """A network whose seats are those of configuration files."""

    def __init__(self, configs: Sequence[AggregatorConfig]) -> None:
        self._configs = {AggregatorId(one.aggregator.id): one for one in configs}
        limits = configs[0].limits
        super().__init__(
            len(configs),
            noise=system_noise(),
            limits=Limits(
                largest_epsilon=limits.largest_epsilon,
                smallest_min_batch_size=limits.smallest_min_batch_size,
                give_up_s=600,
                first_retry_s=1,
                longest_retry_s=60,
            ),
        )

    def _seat(self, name: str, directory: Path | None) -> Seat:
        del directory
        config = self._configs[AggregatorId(name)]
        key, store_key_file = load_signing_key(config.keys.signing_key_file), config.keys.store_key_file
        assert store_key_file is not None
        return Seat(
            aggregator=Aggregator(
                aggregator_id=AggregatorId(name),
                operator=config.aggregator.operator,
                grpc_endpoint=config.grpc.device_listen,
                mqtt_broker="",
                hpke_keys=(),
                signing_public_key=key.public_key().public_bytes_raw(),
            ),
            signing_key=key,
            keys=config.keys.key_ring(),
            store_path=config.aggregator.state_directory / "aggregator.db",
            at_rest_key=load_store_key(store_key_file),
        )

    def _identity(self, seat: Seat) -> OwnIdentity:
        return build_identity(self._configs[seat.aggregator_id])


class _Timer:
    """The town's clock for those who sleep by it: they wake when the town has come to their time."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self.sleepers: list[tuple[float, asyncio.Event]] = []
        self.busy = 0

    def now(self) -> float:
        return float(self._clock.now())

    async def sleep(self, seconds: float) -> None:
        sleeper = (self.now() + max(0.0, seconds), asyncio.Event())
        self.sleepers.append(sleeper)
        try:
            await sleeper[1].wait()
        finally:
            self.sleepers.remove(sleeper)


@dataclass
class _Transport:
    """Hands a device's messages to the aggregators of this process; says while it does."""

    network: Network
    timer: _Timer

    async def _work(self, ask: Callable[[Any], Awaitable[Any]], name: AggregatorId) -> Any:
        self.timer.busy += 1
        try:
            return await ask(self._service(name))
        finally:
            self.timer.busy -= 1

    def _service(self, name: AggregatorId) -> Any:
        [seat] = [seat for seat in self.network.seats if seat.aggregator_id == name]
        if seat.core is None:
            raise Unreachable(f"{name} is down")
        return seat.core.service

    async def list_questions(self) -> Any:
        leader = AggregatorId("alpha")
        return self._service(leader).questions(QuestionQuery(aggregator_id=leader, deployment="test")).offers

    async def open_sessions(self, aggregator: Aggregator, requests: Any) -> Any:
        return await self._work(lambda service: service.open_sessions(requests), aggregator.aggregator_id)

    async def upload(self, window: Any, position: int, instalments: Any) -> Any:
        to = window.aggregators[position].aggregator_id
        return await self._work(lambda service: service.upload(instalments), to)

    async def release(self, window: Any) -> Any:
        leader = window.aggregators[0].aggregator_id
        return await self._work(lambda service: service.release(window.window_id), leader)

    async def close(self) -> None:
        """Hold no connection."""


@dataclass(frozen=True, kw_only=True)
class _Running:
    """What a running aggregator has beside its rules: ports, and what looks after its folders."""

    server: grpc.aio.Server
    front: HandshakeGate
    directory: QuestionDirectory
    sealing_keys: SealingKeys


class Told:
    """What stands for the module `time` in commands: the town's clock; waiting moves it."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock

    def time(self) -> float:
        return float(self._clock.now())

    monotonic = time


class Town:
    """Aggregators, devices and the command, on one clock."""

    def __init__(self, root: Path, fleetcount: Shell, devices: int = 0, rotate_s: int | None = None) -> None:
        """Make keys with `fleetcount keys init`; the clock begins now, on a whole minute.

        With `rotate_s` sealing keys change every so many seconds, and two overlap for a quarter of them.
        """
        self.root = root
        made = fleetcount("keys", "init", "--output", "dep", "--devices", str(devices), "--base-port", "0")
        assert made.code == 0, made
        if rotate_s is not None:
            for name in ("alpha", "beta"):
                path, rotation = (
                    root / "dep" / name / "aggregator.toml",
                    f"rotate_s = {rotate_s}\noverlap_s = {rotate_s // 4}\n",
                )
                path.write_text(path.read_text().replace("[keys]\n", f"[keys]\n{rotation}", 1))
        self.configs = [load_config(root / "dep" / name / "aggregator.toml", os.environ) for name in ("alpha", "beta")]
        self.network = _Network(self.configs)
        self.network.clock.advance(0)
        self.clock = self.network.clock
        self.timer = _Timer(self.clock)
        self._running: dict[int, _Running] = {}
        self._loops: list[asyncio.Task[None]] = []
        self.devices: list[Device] = []

    def told(self, monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
        """Let modules of the command see the town's clock."""
        for module in modules:
            monkeypatch.setattr(f"{module}.time", Told(self.clock))

    async def __aenter__(self) -> Self:
        """Start the aggregators and open their device ports."""
        for position in range(len(self.configs)):
            await self.start(position)
        return self

    async def start(self, position: int) -> None:
        """Start an aggregator, or start it again after its death, and open its device port."""
        await self.network.start(position)
        config, core = self.configs[position], self.network.core(position)
        context: Context = core.context
        tls, host = config.tls, context.host
        files = TlsFiles.read(tls.aggregator_ca_file, tls.certificate_file, tls.key_file, Purpose.AGGREGATOR)
        readers = read_public_file(tls.device_ca_file) + b"\n" + files.authorities
        front = HandshakeGate(host.admission.limits, 64, count_broken=host.metrics.handshake_failed, tls=True)
        shell = DeviceShell(core.service, host.metrics, host.admission, denies=host.denials.denies, front=front)
        server = device_server(shell)
        behind = bind(server, files.to_clients(readers))
        await server.start()
        front.listen(config.grpc.device_listen, behind)
        self._running[position] = _Running(
            server=server,
            front=front,
            directory=QuestionDirectory(context, config.aggregator.question_directory),
            sealing_keys=SealingKeys(host, config.keys.rotation),
        )

    async def kill(self, position: int) -> None:
        """Take an aggregator and its port down at once; its store stays as it is."""
        running = self._running.pop(position)
        await running.server.stop(0)
        running.front.close()
        await self.network.stop(position)

    async def __aexit__(self, *_: object) -> None:
        """End devices, ports and aggregators."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        for position in list(self._running):
            await self.kill(position)

    def drive(self, number: int, *, allow_direct: bool = True) -> None:
        """Let a device of `keys init` run: it joins what is offered and reads the files of its signals."""
        path = self.root / "dep" / "devices" / f"{number:04d}" / "device.toml"
        if allow_direct:
            path.write_text(path.read_text().replace("[policy]  ", "[policy]\nallow_direct = true\n# ", 1))
        settings = load_settings(path)
        device = Device(
            identity=identity_of(settings),
            trust=trust_of(settings),
            policy=settings.policy,
            spool=SpoolFile(settings.state_file, durable=False).device(),
            transport=_Transport(self.network, self.timer),
            signals=settings.signals,
            timer=self.timer,
            settings=DeliverySettings(poll_interval_s=600),
            join=JoinRule.AUTO,
        )
        self.devices.append(device)
        self._loops.append(asyncio.create_task(device.serve(), name=f"device {number}"))

    async def pass_to(self, moment: float) -> None:
        """Let time pass to a moment: devices wake in turn, then the aggregators do what is due."""
        while True:
            await self._settle()
            due = min((one[0] for one in self.timer.sleepers if not one[1].is_set()), default=moment + 1)
            if due > moment:
                break
            self.clock.advance(max(0.0, due - self.clock.now()))
            for wakes, event in self.timer.sleepers:
                if wakes <= self.clock.now():
                    event.set()
        self.clock.advance(max(0.0, moment - self.clock.now()))
        for running in self._running.values():
            await running.directory.poll()
            await running.sealing_keys.look()
        await self.network.look_after_all()

    async def _settle(self) -> None:
        calm = 0
        while calm < 20:
            await asyncio.sleep(0 if self.timer.busy == 0 else 0.001)
            calm = calm + 1 if self.timer.busy == 0 else 0

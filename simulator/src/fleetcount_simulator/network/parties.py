"""The aggregators and the broker of a network run, as processes of their own on this machine.

They are started by the commands of an operator, called by the public protocol, and killed by their process id. All
state lies in one private directory, every port is a free one, and nothing is installed.
"""

import contextlib
import hashlib
import secrets
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import grpc
import grpc.aio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount_aggregator.host.keys import load_signing_key
from fleetcount_aggregator.peers import PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.transport.grpc_peers import GrpcPeer
from fleetcount_mechanisms.accounting.vectors import LARGEST_BUDGET
from fleetcount_protocol.channel.certificates import key_pem
from fleetcount_protocol.errors import DecodeError
from fleetcount_protocol.ids import Digest, WindowId
from fleetcount_protocol.limits import MAX_RECORD_BYTES, VERIFY_KEY_BYTES
from fleetcount_protocol.messages import ReleaseAnswer, ReleaseQuery, WindowStatus
from fleetcount_protocol.question.orders import OrderAction, QuestionOrder, encode_signed_order, sign_order
from fleetcount_protocol.question.question import (
    Question,
    SignedQuestion,
    encode_signed_question,
    sign_question,
    signed_question,
)
from fleetcount_protocol.window.window import Window
from fleetcount_protocol.wire.device import RELEASE_ANSWER, RELEASE_QUERY
from fleetcount_transport.channels import open_channel

from fleetcount_simulator.errors import ProcessError
from fleetcount_simulator.network.brokers import StartedBroker, start_broker
from fleetcount_simulator.network.children import Child, Children, last_line
from fleetcount_simulator.network.deployments import HOST, NAMES, Deployment, local_plans, write_aggregators
from fleetcount_simulator.network.fleet_spec import write_private
from fleetcount_simulator.network.ports import free_ports

START_S: Final = 90.0
_CALL_S: Final = 5.0
_QUESTION: Final = ".question"
_SEED: Final = ".seed"
"""Suffixes in the leader's directory of questions: a signed question, and beside it the seed of its verify keys."""
_SERVICE: Final = "/fleetcount_protocol.v1.DeviceService/"


@contextlib.asynccontextmanager
async def running(
    root: Path,
    count: int,
    *,
    deployment: str = "study",
    broker: str = "",
    relay: bool = False,
    operators: Sequence[str] = (),
    limits: Mapping[str, str] = MappingProxyType({}),
    failpoints: Mapping[int, str] = MappingProxyType({}),
) -> "AsyncGenerator[Parties]":
    """Start `count` aggregators with all their state below `root`, a private directory, until the block ends.

    `deployment` is its name, `broker` a kind for `brokers.start_broker`, "" for none; with `relay` one is started;
    `limits` are as in `deployments.write_aggregators`, and `failpoints` arms aggregators by position. Returns before
    aggregators are ready.

    Raises:
        ProcessError: a process does not start, or there is no mosquitto.
    """
    (root / "logs").mkdir()
    async with Children(root / "logs") as children:
        parties = Parties(children, root, operators)
        try:
            if broker:
                await parties.start_broker(broker)
            parties.write(deployment, count, limits)
            for position in range(count):
                await parties.start(position, failpoints.get(position, ""))
            if relay:
                await parties.start_relay()
            yield parties
        finally:
            await parties.close()


def submit_question(deployment: Deployment, draft: Question, seed: bytes) -> SignedQuestion:
    """Sign a question for every operator of a deployment on this machine, and give it and its seed to the leader.

    The verify keys are derived from `seed`; the question that is returned commits to it.
    """
    question = replace(draft, verify_seed_digest=Digest(hashlib.sha256(seed).digest()))
    places = range(len(question.aggregators))
    signatures = tuple(sign_question(question, _signing_key(deployment, place)) for place in places)
    signed, path = signed_question(question, signatures), _dropped(deployment, question)
    # The question is written after its seed: the leader reads the seed as soon as it finds the question.
    write_private(path.with_suffix(_SEED), seed)
    write_private(path, encode_signed_question(signed))
    return signed


def _dropped(deployment: Deployment, question: Question) -> Path:
    """Return the path at which the leader finds a question."""
    return deployment.config_of(0).parent / "questions" / f"{question.question_id.hex()[:16]}{_QUESTION}"


def _signing_key(deployment: Deployment, position: int) -> Ed25519PrivateKey:
    return load_signing_key(deployment.config_of(position).parent / "keys" / "signing.key")


class Parties:
    """k aggregators and, where devices use MQTT, a broker; aggregator 0 leads every window."""

    def __init__(
        self,
        children: Children,
        root: Path,
        operators: Sequence[str] = (),
        *,
        broker: StartedBroker | None = None,
        environment: Mapping[str, str] = MappingProxyType({"FLEETCOUNT_LOG__LEVEL": "warning"}),
    ) -> None:
        """Start nothing yet; `broker` runs already, `environment` is added to that of every aggregator."""
        self.children = children
        self._operators = operators
        self._root = root
        self._broker = broker
        self.relay = ""
        """"host:port" of the relay, "" without one."""
        self._environment = environment
        self._processes: dict[int, Child] = {}
        self._listening: set[Child] = set()
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._deployment: Deployment | None = None
        self._credentials: grpc.ChannelCredentials | None = None

    async def start_broker(self, kind: str) -> None:
        """Start the broker; `kind` as in `brokers.start_broker`.

        Raises:
            ProcessError: it does not start, or there is no mosquitto.
        """
        self._broker = await start_broker(self.children, self._root, kind)

    async def start_relay(self) -> None:
        """Start a relay in front of the aggregators, and wait until it listens.

        Raises:
            ProcessError: it does not start.
        """
        address = f"{HOST}:{free_ports(HOST, 1)[0]}"
        command = self.deployment.relay_command(address, self._root)
        child = await self.children.start("relay", command, environment=self._environment)
        await child.ready(START_S)
        self.relay = address

    @property
    def broker(self) -> str:
        """The kind of the broker: "embedded", "mosquitto", or "" without one."""
        return "" if self._broker is None else self._broker.kind

    def write(self, name: str, count: int, limits: Mapping[str, str] = MappingProxyType({})) -> None:
        """Make keys, certificates and configurations of `count` aggregators; `limits` as in `write_aggregators`."""
        root = self._root / "deployment"
        root.mkdir(mode=0o700)
        self._deployment = write_aggregators(
            root,
            name,
            local_plans(count, self._operators),
            mqtt_broker="" if self._broker is None else self._broker.address,
            mqtt_inflight=None if self._broker is None else self._broker.inflight,
            largest_epsilon=str(LARGEST_BUDGET),
            limits={"allow_one_sided": "true", "leeway_s": "0", **limits},  # No leeway: lateness is exact.
        )

    @property
    def deployment(self) -> Deployment:
        """The written deployment. Raises ProcessError before `write`."""
        if self._deployment is None:
            raise ProcessError("the aggregators have no configuration yet")
        return self._deployment

    # Processes.

    async def start(self, position: int, failpoint: str = "") -> Child:
        """Start an aggregator, which ends at the fail point if one is given; return it before it is ready."""
        armed = {"FLEETCOUNT_TESTING": "1", "FLEETCOUNT_FAILPOINT": failpoint} if failpoint else {}
        child = await self.children.start(
            NAMES[position], self.deployment.serve_command(position), environment={**self._environment, **armed}
        )
        self._processes[position] = child
        return child

    async def ready(self, position: int) -> Child:
        """Wait until an aggregator listens, if it does not yet; return it. Raises ProcessError when it ends instead."""
        child = self._processes[position]
        if child not in self._listening:
            await child.ready(START_S)
            self._listening.add(child)
        return child

    def kill(self, position: int) -> None:
        """End an aggregator as a power cut would."""
        self._processes[position].send(signal.SIGKILL)

    async def ended(self, position: int) -> str:
        """Wait until the present process of an aggregator has ended; return a sentence with its code and last line."""
        child = self._processes[position]
        await child.process.wait()
        return f"{child.name} ended with code {child.process.returncode}: {last_line(child.log)}"

    # Questions.

    def submit(self, draft: Question) -> SignedQuestion:
        """Draw a seed of a question's verify keys, sign the question for every operator and give both to the leader."""
        return submit_question(self.deployment, draft, secrets.token_bytes(VERIFY_KEY_BYTES))

    def order(self, question: Question, number: int, action: OrderAction, from_window: int) -> None:
        """Sign an order about a question as the operator of its leader, and give it to the leader."""
        order = QuestionOrder(
            question_id=question.question_id,
            number=number,
            action=action,
            aggregator_id=question.aggregators[0].aggregator_id,
            from_window=from_window,
        )
        path = _dropped(self.deployment, question).with_suffix(f".{number:04}.order")
        write_private(path, encode_signed_order(sign_order(order, _signing_key(self.deployment, 0))))

    async def release(self, window: Window, position: int) -> ReleaseAnswer | None:
        """Return an aggregator's answer about a window's release; None when it does not answer."""
        aggregator_id = self.deployment.aggregators[position].aggregator_id
        query = RELEASE_QUERY.encode(ReleaseQuery(aggregator_id=aggregator_id, window_id=window.window_id))
        channel = self._channel(position)
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"{_SERVICE}GetRelease")
        try:
            return RELEASE_ANSWER.decode(await method(query, timeout=_CALL_S))
        except (grpc.aio.AioRpcError, DecodeError):
            return None

    def _channel(self, position: int) -> grpc.aio.Channel:
        if position not in self._channels:
            aggregator = self.deployment.aggregators[position]
            options = (
                ("grpc.max_receive_message_length", MAX_RECORD_BYTES + 65_536),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 500),
            )
            self._channels[position] = open_channel(
                aggregator.grpc_endpoint, self._reader(), name=aggregator.aggregator_id, options=options
            )
        return self._channels[position]

    def _reader(self) -> grpc.ChannelCredentials:
        if self._credentials is None:
            credential = self.deployment.authorities.devices.issue_device()
            self._credentials = grpc.ssl_channel_credentials(
                (self.deployment.root / "ca" / "aggregators.crt").read_bytes(),
                key_pem(credential.private_key),
                credential.certificate.public_bytes(Encoding.PEM),
            )
        return self._credentials

    async def status(self, position: int, window_id: WindowId) -> WindowStatus | None:
        """Return a window's status at an aggregator, asked as its own operator does; None when it does not answer."""
        plan = self.deployment.plans[position]
        keys = self.deployment.config_of(position).parent / "keys"
        credentials = grpc.ssl_channel_credentials(
            (self.deployment.root / "ca" / "aggregators.crt").read_bytes(),
            (keys / "aggregator.key").read_bytes(),
            (keys / "aggregator.crt").read_bytes(),
        )
        peer = GrpcPeer(
            plan.aggregator_id,
            f"{plan.host}:{plan.peer_port}",
            caller=plan.aggregator_id,
            timeout_s=_CALL_S,
            credentials=credentials,
        )
        try:
            return await peer.status(window_id)
        except (PeerUnreachableError, PeerRefusalError):
            return None
        finally:
            await peer.close()

    async def close(self) -> None:
        """Close the connections; the processes are the children's."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

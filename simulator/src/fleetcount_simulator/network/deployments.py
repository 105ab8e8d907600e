"""The aggregators of a test deployment on disk: authorities, keys, certificates and configuration files.

Every private file is made with mode 0600 and nothing is ever overwritten. In production each operator makes its
own keys; this is for simulations, demos, tests and first steps. It starts no process (`parties` does).
"""

import base64
import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from fleetcount_protocol.channel.certificates import CertificateAuthority, save_certificates, save_private_key
from fleetcount_protocol.errors import MachineError, UsageError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.window.fields import Aggregator, HpkeKey
from fleetcount_protocol.window.signing import TrustedAggregator

from fleetcount_simulator.network.ports import free_ports

HOST: Final = "127.0.0.1"
NAMES: Final = ("alpha", "beta", "gamma", "delta", "epsilon")
HPKE_KEY_ID: Final = 1
_DIRECTORY_MODE: Final = 0o700


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorPlan:
    """One aggregator to be made: it listens at `host`, the name in its certificate."""

    aggregator_id: AggregatorId
    operator: str
    host: str
    device_port: int
    peer_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorities:
    """The two enrolment authorities of a deployment: one for aggregators, one for devices."""

    aggregators: CertificateAuthority
    devices: CertificateAuthority


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The written deployment: root directory, authorities, and the aggregators as windows name them."""

    root: Path
    name: str
    authorities: Authorities
    plans: tuple[AggregatorPlan, ...]
    aggregators: tuple[Aggregator, ...]
    mqtt_broker: str

    @property
    def trusted(self) -> dict[AggregatorId, TrustedAggregator]:
        """The aggregators that devices trust, and whose signatures a record has."""
        return {
            one.aggregator_id: TrustedAggregator(
                aggregator_id=one.aggregator_id, operator=one.operator, signing_public_key=one.signing_public_key
            )
            for one in self.aggregators
        }

    def serve_command(self, position: int) -> list[str]:
        """Return the command by which an operator starts an aggregator."""
        config = str(self.config_of(position))
        return [sys.executable, "-m", "fleetcount", "aggregator", "serve", "--config", config]

    def config_of(self, position: int) -> Path:
        """Return the configuration file of an aggregator."""
        return self.root / self.plans[position].aggregator_id / "aggregator.toml"


def local_plans(count: int, operators: Sequence[str] = ()) -> list[AggregatorPlan]:
    """Return `count` aggregators on free ports of this machine, named alpha, beta, ..., each with its operator."""
    ports = free_ports(HOST, 2 * count)
    return [
        AggregatorPlan(
            aggregator_id=AggregatorId(NAMES[i]),
            operator=operators[i] if operators else f"Operator of {NAMES[i]}",
            host=HOST,
            device_port=ports[2 * i],
            peer_port=ports[2 * i + 1],
        )
        for i in range(count)
    ]


def write_aggregators(
    root: Path,
    name: str,
    plans: Sequence[AggregatorPlan],
    *,
    mqtt_broker: str = "",
    mqtt_inflight: int | None = None,
    largest_epsilon: str = "4",
    smallest_min_batch_size: int = 2,
    limits: Mapping[str, str] = MappingProxyType({}),
) -> Deployment:
    """Write the authorities and every aggregator's folder below `root`, an empty directory.

    `mqtt_inflight` is the broker's own limit of unacknowledged messages to one aggregator, None for the default of
    brokers. `limits` are further keys of the configuration's [limits], their values as TOML.

    Raises:
        UsageError: a name that a certificate cannot have, or a file that exists already.
        MachineError: a file cannot be written.
    """
    authorities = Authorities(
        aggregators=CertificateAuthority.create(f"{name} aggregators"),
        devices=CertificateAuthority.create(f"{name} devices"),
    )
    allowed = {
        "largest_epsilon": _quoted(largest_epsilon),
        "smallest_min_batch_size": str(smallest_min_batch_size),
        **limits,
    }
    try:
        _write_authorities(root / "ca", authorities)
        keys = [_write_keys(root, plan, authorities) for plan in plans]
        aggregators = tuple(
            _public(plan, *pair, mqtt_broker=mqtt_broker) for plan, pair in zip(plans, keys, strict=True)
        )
        deployment = Deployment(
            root=root,
            name=name,
            authorities=authorities,
            plans=tuple(plans),
            aggregators=aggregators,
            mqtt_broker=mqtt_broker,
        )
        for position in range(len(plans)):
            text = _aggregator_toml(deployment, position, mqtt_inflight, allowed)
            _write_new(deployment.config_of(position), text.encode(), 0o644)
    except FileExistsError as error:
        raise UsageError(f"{error.filename} exists already; nothing is overwritten") from error
    except OSError as error:
        raise MachineError(f"{error.filename or root}: {error.strerror}") from error
    return deployment


def _write_authorities(directory: Path, authorities: Authorities) -> None:
    directory.mkdir(mode=_DIRECTORY_MODE)
    for name, authority in (("aggregators", authorities.aggregators), ("devices", authorities.devices)):
        save_certificates(directory / f"{name}.crt", [authority.certificate])
        save_private_key(directory / f"{name}.key", authority.private_key)


def _write_keys(root: Path, plan: AggregatorPlan, authorities: Authorities) -> tuple[bytes, bytes]:
    """Write one aggregator's private keys; return its public signing key and sealing key."""
    directory = root / plan.aggregator_id
    for part in (
        directory,
        directory / "keys",
        directory / "keys" / "hpke",
        directory / "questions",
        directory / "state",
    ):
        part.mkdir(mode=_DIRECTORY_MODE)
    hosts = [plan.host, "localhost"] if plan.host in {"127.0.0.1", "::1", "localhost"} else [plan.host]
    credential = authorities.aggregators.issue_aggregator(plan.aggregator_id, hosts)
    save_certificates(directory / "keys" / "aggregator.crt", [credential.certificate])
    save_private_key(directory / "keys" / "aggregator.key", credential.private_key)
    signing, sealing = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    for path, key in (("signing.key", signing), (f"hpke/{HPKE_KEY_ID}.key", sealing)):
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        _write_new(directory / "keys" / path, pem, 0o600)
    write_store_key(directory / "keys" / "store.key")
    return signing.public_key().public_bytes_raw(), sealing.public_key().public_bytes_raw()


def write_store_key(path: Path) -> None:
    """Write a new at-rest key of an aggregator's store: 32 bytes in base64, mode 0600; nothing is overwritten.

    Raises:
        FileExistsError, OSError: the file exists, or cannot be written.
    """
    _write_new(path, base64.b64encode(secrets.token_bytes(32)) + b"\n", 0o600)


def _public(plan: AggregatorPlan, signing_key: bytes, hpke_key: bytes, *, mqtt_broker: str) -> Aggregator:
    return Aggregator(
        aggregator_id=plan.aggregator_id,
        operator=plan.operator,
        grpc_endpoint=_endpoint(plan.host, plan.device_port),
        mqtt_broker=mqtt_broker,
        hpke_keys=(HpkeKey(key_id=HPKE_KEY_ID, public_key=hpke_key),),
        signing_public_key=signing_key,
    )


def _endpoint(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _aggregator_toml(deployment: Deployment, position: int, inflight: int | None, limits: Mapping[str, str]) -> str:
    plan = deployment.plans[position]
    rows = [
        "# One aggregator of a test deployment, by `fleetcount keys init`. Every path is relative to this file.",
        "",
        "[aggregator]",
        f"id = {_quoted(plan.aggregator_id)}",
        f"operator = {_quoted(plan.operator)}",
        f"deployment = {_quoted(deployment.name)}",
        'state_directory = "state"',
        'question_directory = "questions"',
        "",
        "[keys]",
        'signing_key_file = "keys/signing.key"',
        'hpke_key_directory = "keys/hpke"',
        'store_key_file = "keys/store.key"',
        "",
        "[tls]",
        'certificate_file = "keys/aggregator.crt"',
        'key_file = "keys/aggregator.key"',
        'aggregator_ca_file = "../ca/aggregators.crt"',
        'device_ca_file = "../ca/devices.crt"',
        "",
        "[grpc]",
        f"device_listen = {_quoted(_endpoint(plan.host, plan.device_port))}",
        f"peer_listen = {_quoted(_endpoint(plan.host, plan.peer_port))}",
    ]
    if deployment.mqtt_broker:
        rows += ["", "[mqtt]", f"broker = {_quoted(deployment.mqtt_broker)}"]
        rows += [] if inflight is None else [f"inflight = {inflight}"]
    for peer, public in zip(deployment.plans, deployment.aggregators, strict=True):
        if peer is not plan:
            rows += [
                "",
                "[[peers]]",
                f"id = {_quoted(peer.aggregator_id)}",
                f"operator = {_quoted(peer.operator)}",
                f"endpoint = {_quoted(_endpoint(peer.host, peer.peer_port))}",
                f'signing_public_key = "{base64.b64encode(public.signing_public_key).decode()}"',
            ]
    rows += ["", "[limits]", *(f"{key} = {value}" for key, value in limits.items())]
    return "\n".join(rows) + "\n"


def _quoted(value: str) -> str:
    """Return a text as a TOML basic string: JSON's escapes are TOML's, but for DEL, which JSON leaves as it is."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def _write_new(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())

"""A whole test deployment on disk: authorities, aggregators with their keys and configuration, devices.

Every private file is made with mode 0600 and nothing is ever overwritten. In real life each operator makes its own
keys; this is for demos, tests and first steps.
"""

import base64
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from fleetcount_protocol.certificates import CertificateAuthority, save_certificates, save_private_key
from fleetcount_protocol.errors import MachineError, UsageError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.task import Aggregator, HpkeKey

from fleetcount.descriptors import encode_descriptor, toml_text
from fleetcount.files import write_file
from fleetcount.readers import reader_toml

__all__ = [
    "AggregatorPlan",
    "Authorities",
    "Deployment",
    "free_ports",
    "write_aggregators",
    "write_analyst",
    "write_device",
]

HPKE_KEY_ID: Final = 1
_DIRECTORY_MODE: Final = 0o700


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorPlan:
    """One aggregator to be made: `host` is where it listens and what its certificate is for."""

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
    """What was written: the root directory, the authorities, and the aggregators as tasks name them."""

    root: Path
    name: str
    authorities: Authorities
    plans: tuple[AggregatorPlan, ...]
    aggregators: tuple[Aggregator, ...]
    mqtt_broker: str

    def config_of(self, position: int) -> Path:
        """Return the configuration file of an aggregator."""
        return self.root / self.plans[position].aggregator_id / "aggregator.toml"


def free_ports(host: str, count: int) -> list[int]:
    """Return `count` ports that are free on this host now, each another one.

    Raises:
        UsageError: the host is no address of this machine.
    """
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            sockets.append(socket.socket(family, socket.SOCK_STREAM))
            sockets[-1].bind((host, 0))
        return [int(one.getsockname()[1]) for one in sockets]
    except OSError as error:
        raise UsageError(f"host {host!r} is no address of this machine: {error.strerror}") from error
    finally:
        for one in sockets:
            one.close()


def write_aggregators(
    root: Path,
    name: str,
    plans: Sequence[AggregatorPlan],
    *,
    mqtt_broker: str = "",
    largest_epsilon: str = "4",
    smallest_min_batch_size: int = 2,
) -> Deployment:
    """Write the authorities and every aggregator's folder and descriptor below `root`, an empty directory.

    Raises:
        UsageError: a name that cannot stand in a certificate, or a file that is there already.
        MachineError: the disk does not take them.
    """
    authorities = Authorities(
        aggregators=CertificateAuthority.create(f"{name} aggregators"),
        devices=CertificateAuthority.create(f"{name} devices"),
    )
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
            text = _aggregator_toml(deployment, position, largest_epsilon, smallest_min_batch_size)
            write_file(deployment.config_of(position), text.encode(), overwrite=False)
            descriptor = root / f"{plans[position].aggregator_id}.descriptor.toml"
            write_file(descriptor, encode_descriptor(aggregators[position]).encode(), overwrite=False)
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
    for part in (directory, directory / "keys", directory / "keys" / "hpke", directory / "tasks", directory / "state"):
        part.mkdir(mode=_DIRECTORY_MODE)
    credential = authorities.aggregators.issue_aggregator(plan.aggregator_id, _hosts(plan.host))
    save_certificates(directory / "keys" / "aggregator.crt", [credential.certificate])
    save_private_key(directory / "keys" / "aggregator.key", credential.private_key)
    signing, sealing = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    for path, key in (("signing.key", signing), (f"hpke/{HPKE_KEY_ID}.key", sealing)):
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_file(directory / "keys" / path, pem, mode=0o600, overwrite=False)
    return signing.public_key().public_bytes_raw(), sealing.public_key().public_bytes_raw()


def _hosts(host: str) -> list[str]:
    return [host, "localhost"] if host in {"127.0.0.1", "::1", "localhost"} else [host]


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


def _aggregator_toml(deployment: Deployment, position: int, largest_epsilon: str, smallest_batch: int) -> str:
    plan = deployment.plans[position]
    rows = [
        "# One aggregator of a test deployment, by `fleetcount keys init`. Every path is relative to this file.",
        "",
        "[aggregator]",
        f"id = {toml_text(plan.aggregator_id)}",
        f"operator = {toml_text(plan.operator)}",
        f"deployment = {toml_text(deployment.name)}",
        'state_directory = "state"',
        'task_directory = "tasks"',
        "",
        "[keys]",
        'signing_key_file = "keys/signing.key"',
        'hpke_key_directory = "keys/hpke"',
        "",
        "[tls]",
        'certificate_file = "keys/aggregator.crt"',
        'key_file = "keys/aggregator.key"',
        'aggregator_ca_file = "../ca/aggregators.crt"',
        'device_ca_file = "../ca/devices.crt"',
        "",
        "[grpc]",
        f"device_listen = {toml_text(_endpoint(plan.host, plan.device_port))}",
        f"peer_listen = {toml_text(_endpoint(plan.host, plan.peer_port))}",
    ]
    if deployment.mqtt_broker:
        rows += ["", "[mqtt]", f"broker = {toml_text(deployment.mqtt_broker)}"]
    for peer, public in zip(deployment.plans, deployment.aggregators, strict=True):
        if peer is not plan:
            rows += [
                "",
                "[[peers]]",
                f"id = {toml_text(peer.aggregator_id)}",
                f"operator = {toml_text(peer.operator)}",
                f"endpoint = {toml_text(_endpoint(peer.host, peer.peer_port))}",
                f'signing_public_key = "{base64.b64encode(public.signing_public_key).decode()}"',
            ]
    rows += ["", "[limits]", f'largest_epsilon = "{largest_epsilon}"', f"smallest_min_batch_size = {smallest_batch}"]
    return "\n".join(rows) + "\n"


def write_analyst(deployment: Deployment) -> Path:
    """Write the folder of an analyst, who may read releases; return its configuration file.

    Raises:
        UsageError: a file that is there already.
        MachineError: the disk does not take it.
    """
    directory = deployment.root / "analyst"
    credential = deployment.authorities.devices.issue_device()
    try:
        directory.mkdir(mode=_DIRECTORY_MODE)
        save_certificates(directory / "analyst.crt", [credential.certificate])
        save_private_key(directory / "analyst.key", credential.private_key)
    except OSError as error:
        raise MachineError(f"{error.filename or directory}: {error.strerror}") from error
    text = reader_toml(deployment.name, deployment.aggregators)
    write_file(directory / "analyst.toml", text.encode(), overwrite=False)
    return directory / "analyst.toml"


def write_device(deployment: Deployment, number: int, *, transport: str) -> Path:
    """Write the folder of one device, devices/NNNN; return its configuration file.

    Raises:
        UsageError: a file that is there already.
        MachineError: the disk does not take it.
    """
    directory = deployment.root / "devices" / f"{number:04d}"
    try:
        directory.mkdir(mode=_DIRECTORY_MODE, parents=True)
        credential = deployment.authorities.devices.issue_device()
        save_certificates(directory / "device.crt", [credential.certificate])
        save_private_key(directory / "device.key", credential.private_key)
    except OSError as error:
        raise MachineError(f"{error.filename or directory}: {error.strerror}") from error
    write_file(directory / "device.toml", _device_toml(deployment, transport).encode(), overwrite=False)
    return directory / "device.toml"


def _device_toml(deployment: Deployment, transport: str) -> str:
    rows = [
        "# One device of a test deployment, by `fleetcount keys init`. Every path is relative to this file.",
        "",
        "[device]",
        f"deployment = {toml_text(deployment.name)}",
        'state_file = "device.db"',
        'certificate_file = "device.crt"',
        'key_file = "device.key"',
        f'transport = "{transport}"',
        "",
        "[grpc]",
        'ca_file = "../../ca/aggregators.crt"',
    ]
    if deployment.mqtt_broker:
        rows += ["", "[mqtt]", f"broker = {toml_text(deployment.mqtt_broker)}"]
    rows += [
        "",
        "[policy]                            # what the owner allows; a task beyond any of these is refused",
        'signals = ["Vehicle.CurrentLocation", "Vehicle.Speed", "Vehicle.Category"]',
        'largest_epsilon = "1"               # of one release, public view',
        'largest_sampling_rate = "0.5"       # the chance that all aggregators together see the truth',
        "smallest_min_batch_size = 2         # a test deployment counts small fleets; a real owner asks for more",
        'total_epsilon = "10"                # over budget_period_s',
        'total_exposure = "3"',
        "budget_period_s = 2592000",
        'fresh_ledger = "allow"              # a test deployment does not wait after a new ledger',
    ]
    for aggregator in deployment.aggregators:
        rows += [
            "",
            "[[aggregators]]",
            f"id = {toml_text(aggregator.aggregator_id)}",
            f"operator = {toml_text(aggregator.operator)}",
            f'signing_public_key = "{base64.b64encode(aggregator.signing_public_key).decode()}"',
            f"grpc_endpoint = {toml_text(aggregator.grpc_endpoint)}",
        ]
    for signal in ("CurrentLocation", "Speed", "Category"):
        rows += ["", f'[signals."Vehicle.{signal}"]', f'file = "{signal.lower()}.json"']
    return "\n".join(rows) + "\n"

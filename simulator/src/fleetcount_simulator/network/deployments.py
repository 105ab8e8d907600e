"""The aggregators of a deployment on disk: authorities, keys, certificates and configuration files.

Every private file is made with mode 0600 and nothing is ever overwritten. A test deployment has all of them in one
directory, for simulations, demos, tests and first steps; in production each operator makes its own aggregator's, by the
same functions. It starts no process (`parties` does).
"""

import base64
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from fleetcount_protocol.channel.certificates import (
    CertificateAuthority,
    Purpose,
    save_certificates,
    save_credential,
    save_private_key,
    write_new,
)
from fleetcount_protocol.errors import MachineError, UsageError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.window.fields import Aggregator, HpkeKey
from fleetcount_protocol.window.signing import TrustedAggregator
from fleetcount_transport.toml_writing import toml_base64, toml_tables, toml_text

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
        return {one.aggregator_id: TrustedAggregator.of(one) for one in self.aggregators}

    def serve_command(self, position: int) -> list[str]:
        """Return the command by which an operator starts an aggregator."""
        config = str(self.config_of(position))
        return [sys.executable, "-m", "fleetcount", "aggregator", "serve", "--config", config]

    def relay_command(self, address: str, directory: Path) -> list[str]:
        """Write the files of a relay on this machine, "host:port", into a folder; return the command that starts it."""
        host, authorities = address.rpartition(":")[0], self.root / "ca"
        credential = self.authorities.aggregators.issue_new(Purpose.RELAY, "relay", hosts_of(host))
        save_private_key(directory / "relay.key", credential.private_key)
        save_certificates(directory / "relay.crt", [credential.certificate])
        comment = "A relay of a test deployment."
        text = relay_toml(self.aggregators, listen=address, ca_directory=f"{authorities}/", comment=comment)
        config = directory / "relay.toml"
        write_new(config, text.encode(), 0o644)
        return [sys.executable, "-m", "fleetcount", "relay", "--config", str(config)]

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
        "largest_epsilon": toml_text(largest_epsilon),
        "smallest_min_batch_size": "2",
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
            write_new(deployment.config_of(position), text.encode(), 0o644)
    except FileExistsError as error:
        raise UsageError(f"{error.filename} exists already; nothing is overwritten") from error
    except OSError as error:
        raise MachineError(f"{error.filename or root}: {error.strerror}") from error
    return deployment


def _write_authorities(directory: Path, authorities: Authorities) -> None:
    directory.mkdir(mode=_DIRECTORY_MODE)
    for name, authority in (("aggregators", authorities.aggregators), ("devices", authorities.devices)):
        save_credential(directory, name, authority)


def _write_keys(root: Path, plan: AggregatorPlan, authorities: Authorities) -> tuple[bytes, bytes]:
    """Write one aggregator's folder; return its public signing key and sealing key."""
    directory = root / plan.aggregator_id
    credential = authorities.aggregators.issue_aggregator(plan.aggregator_id, hosts_of(plan.host))
    public = write_keys(directory, credential.private_key)
    save_certificates(directory / "keys" / "aggregator.crt", [credential.certificate])
    return public


def hosts_of(host: str) -> list[str]:
    """Return the names for the certificate of a server that is reached at a host; this machine has two."""
    return [host, "localhost"] if host in {"127.0.0.1", "::1", "localhost"} else [host]


def write_keys(directory: Path, tls_key: ec.EllipticCurvePrivateKey) -> tuple[bytes, bytes]:
    """Make the folders of one aggregator and its private keys: `tls_key`, and new ones to sign, to seal and to store.

    Returns the public signing key and the public sealing key, 32 bytes each.

    Raises:
        FileExistsError, OSError: a key is there already, or the disk does not take it.
    """
    for part in ("", "keys", "keys/hpke", "questions", "state"):
        (directory / part).mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
    save_private_key(directory / "keys" / "aggregator.key", tls_key)
    signing, sealing = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    save_private_key(directory / "keys" / "signing.key", signing)
    save_private_key(directory / "keys" / "hpke" / f"{HPKE_KEY_ID}.key", sealing)
    write_store_key(directory / "keys" / "store.key")
    return signing.public_key().public_bytes_raw(), sealing.public_key().public_bytes_raw()


def write_store_key(path: Path) -> None:
    """Write a new at-rest key of an aggregator's store: 32 bytes in base64, mode 0600; nothing is overwritten.

    Raises:
        FileExistsError, OSError: the file exists, or cannot be written.
    """
    write_new(path, base64.b64encode(secrets.token_bytes(32)) + b"\n", 0o600)


def _public(plan: AggregatorPlan, signing_key: bytes, hpke_key: bytes, *, mqtt_broker: str) -> Aggregator:
    return Aggregator(
        aggregator_id=plan.aggregator_id,
        operator=plan.operator,
        grpc_endpoint=endpoint_of(plan.host, plan.device_port),
        mqtt_broker=mqtt_broker,
        hpke_keys=(HpkeKey(key_id=HPKE_KEY_ID, public_key=hpke_key),),
        signing_public_key=signing_key,
    )


def endpoint_of(host: str, port: int) -> str:
    """Return "host:port", an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _aggregator_toml(deployment: Deployment, position: int, inflight: int | None, limits: Mapping[str, str]) -> str:
    plan = deployment.plans[position]
    tables: list[tuple[str, Mapping[str, str]]] = [
        *own_tables(plan, deployment.name),
        ("[tls]", own_tls("../ca/aggregators.crt", "../ca/devices.crt")),
        ("[grpc]", listeners(plan, plan.host)),
    ]
    if deployment.mqtt_broker:
        inflight_row = {} if inflight is None else {"inflight": str(inflight)}
        tables.append(("[mqtt]", {"broker": toml_text(deployment.mqtt_broker), **inflight_row}))
    tables += [
        peer_table(public, endpoint_of(peer.host, peer.peer_port))
        for peer, public in zip(deployment.plans, deployment.aggregators, strict=True)
        if peer is not plan
    ]
    comment = "One aggregator of a test deployment, by `fleetcount keys init`. Every path is relative to this file."
    return toml_tables(comment, [*tables, ("[limits]", limits)])


def own_tables(plan: AggregatorPlan, deployment: str) -> list[tuple[str, Mapping[str, str]]]:
    """Return [aggregator] and [keys] of an aggregator whose folder is as `write_keys` makes it."""
    return [
        (
            "[aggregator]",
            {
                "id": toml_text(plan.aggregator_id),
                "operator": toml_text(plan.operator),
                "deployment": toml_text(deployment),
                "state_directory": '"state"',
                "question_directory": '"questions"',
            },
        ),
        (
            "[keys]",
            {
                "signing_key_file": '"keys/signing.key"',
                "hpke_key_directory": '"keys/hpke"',
                "store_key_file": '"keys/store.key"',
            },
        ),
    ]


def own_tls(aggregator_ca_file: str, device_ca_file: str) -> dict[str, str]:
    """Return [tls] of such an aggregator, with the files of the authorities it trusts."""
    return {
        "certificate_file": '"keys/aggregator.crt"',
        "key_file": '"keys/aggregator.key"',
        "aggregator_ca_file": toml_text(aggregator_ca_file),
        "device_ca_file": toml_text(device_ca_file),
    }


def listeners(plan: AggregatorPlan, host: str) -> dict[str, str]:
    """Return [grpc] of an aggregator that listens on an address of its machine."""
    return {
        "device_listen": toml_text(endpoint_of(host, plan.device_port)),
        "peer_listen": toml_text(endpoint_of(host, plan.peer_port)),
    }


def peer_table(public: Aggregator, endpoint: str, ca_file: str = "") -> tuple[str, dict[str, str]]:
    """Return the [[peers]] of an aggregator; `ca_file` has the authority of it alone, "" for the common one."""
    own = {"ca_file": toml_text(ca_file)} if ca_file else {}
    return "[[peers]]", {
        "id": toml_text(public.aggregator_id),
        "operator": toml_text(public.operator),
        "endpoint": toml_text(endpoint),
        "signing_public_key": toml_base64(public.signing_public_key),
        **own,
    }


def relay_toml(
    aggregators: Sequence[Aggregator],
    *,
    listen: str,
    ca_directory: str,
    name: str = "relay",
    more: Sequence[tuple[str, Mapping[str, str]]] = (),
    comment: str,
) -> str:
    """Return a relay's configuration file, its key and certificate beside it, those of the authorities in a folder."""
    tls = {
        "certificate_file": toml_text(f"{name}.crt"),
        "key_file": toml_text(f"{name}.key"),
        "aggregator_ca_file": toml_text(f"{ca_directory}aggregators.crt"),
        "device_ca_file": toml_text(f"{ca_directory}devices.crt"),
    }
    upstream = [
        ("[[aggregators]]", {"id": toml_text(one.aggregator_id), "endpoint": toml_text(one.grpc_endpoint)})
        for one in aggregators
    ]
    return toml_tables(comment, [("[relay]", {"listen": toml_text(listen)}), ("[tls]", tls), *more, *upstream])

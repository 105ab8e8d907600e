"""`fleetcount keys`: the keys, certificates and configurations of a test deployment.

It writes files and prints their names; it must not print a key.
"""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
from fleetcount_protocol.endpoint import check_host, split_endpoint
from fleetcount_protocol.errors import FleetcountError, MachineError, UsageError

from fleetcount.command.files import check_output_directory
from fleetcount.command.lazy import LazyGroup, OneOf
from fleetcount.command.numbers import EPSILON, Count

MAX_DEVICES = 10_000


@click.group(cls=LazyGroup, short_help="Make the keys and configurations of a test deployment.")
def keys() -> None:
    """Make keys, certificates and configurations.

    For tests and first steps: one person makes everybody's keys. In earnest every operator makes its own and hands
    out the descriptor file alone.
    """


@keys.command("init", short_help="A whole test deployment in a new directory.")
@click.option("--output", required=True, type=click.Path(path_type=Path), help="A new or empty directory.")
@click.option("--aggregators", default="alpha,beta", show_default=True, help="2 to 5 ids, separated by commas.")
@click.option("--operators", help="Who runs each, separated by commas (default: 'Operator of ID').")
@click.option("--devices", type=Count(0, MAX_DEVICES), default=0, show_default=True, help="How many device folders.")
@click.option("--deployment", default="test", show_default=True, help="Name: a-z, 0-9 and '-', at most 32.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where the aggregators listen.")
@click.option(
    "--base-port",
    type=Count(0, 65_000),
    default=7411,
    show_default=True,
    help="Devices reach aggregator i at PORT+i, peers at PORT+10+i; 0 takes free ports.",
)
@click.option("--broker", default="", help="MQTT broker, host:port; without it no reports over MQTT.")
@click.option("--servers", is_flag=True, help="A relay and an MQTT broker with TLS too: deploy/compose.yaml runs them.")
@click.option("--transport", type=OneOf(["grpc", "mqtt"]), default="grpc", show_default=True)
@click.option(
    "--largest-epsilon", type=EPSILON, default="4", show_default=True, help="What an aggregator's ledger allows."
)
def init(**options: Any) -> None:
    """Write a test deployment: two authorities, aggregators, devices.

    \b
    OUTPUT/ca/                        the authorities (their .key files enrol others: keep them apart)
    OUTPUT/alpha/aggregator.toml      for `fleetcount aggregator serve --config`
    OUTPUT/alpha.descriptor.toml      public: for the authors of questions
    OUTPUT/analyst/analyst.toml       for `fleetcount question release --config`
    OUTPUT/devices/0001/device.toml   for `fleetcount device run --config`
    OUTPUT/relay/relay.toml           with --servers: for `fleetcount relay --config`
    OUTPUT/broker/                    with --servers: what deploy/mosquitto.conf names

    Private files get mode 0600. Nothing is overwritten.
    """
    request = _Request(**options)
    if request.transport == "mqtt" and not request.broker:
        raise UsageError("--transport is mqtt; it needs --broker host:port")
    output = request.output
    check_output_directory(output, fresh=True)
    ids = _ids(request.aggregators)
    names = _operators(request.operators, ids)
    check_names(request.deployment, request.host, request.broker)
    existed = output.exists()
    output.mkdir(parents=True, exist_ok=True)
    try:
        _write(request, ids, names)
    except BaseException:
        _remove(output, existed=existed)
        raise
    click.echo(
        f"{output}: {len(ids)} aggregators ({', '.join(ids)}), {request.devices} devices, "
        f"deployment {request.deployment!r}"
    )
    for name in ids:
        click.echo(f"  fleetcount aggregator serve --config {output / name / 'aggregator.toml'}")
    if request.devices:
        click.echo(f"  fleetcount device run --config {output / 'devices' / '0001' / 'device.toml'}")


@keys.command("store", short_help="A new key for what an aggregator's store holds.")
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="FILE", help="A new file.")
def store(output: Path) -> None:
    """Write a new at-rest key, mode 0600: for [keys] store_key_file of one aggregator.

    A store that has none yet is sealed under a key that follows from its signing key; it moves to this one when the
    aggregator is started with it for the first time, under the same signing key. Keep a copy apart from the store's.
    """
    from fleetcount_simulator.network.deployments import write_store_key

    try:
        write_store_key(output)
    except FileExistsError:
        raise UsageError(f"--output {output} exists already; nothing is overwritten") from None
    except OSError as error:
        raise MachineError(f"{output}: {error.strerror}") from error
    click.echo(f"{output}: the key of one store; name it in [keys] store_key_file, and keep a copy of it apart")


@keys.command("succeed", short_help="A new signing key, named by the old one.")
@click.option("--config", required=True, type=click.Path(path_type=Path), metavar="FILE", help="aggregator.toml.")
@click.option("--new-key", required=True, metavar="FILE", help="The new key's file; or the pkcs11: URI of one.")
@click.option("--overlap-days", type=Count(1, 3650), default=90, show_default=True, help="How long both are valid.")
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The statement's file.")
def succeed(config: Path, new_key: str, overlap_days: int, output: Path) -> None:
    """Make a new signing key, and the statement by which the present one names it: public, for everybody who trusts it.

    Whoever has it in succession_files takes what the new key signs, and until the overlap ends what the old one does.
    """
    import os
    import time

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from fleetcount_aggregator.config import load_config
    from fleetcount_aggregator.host.keys import load_signing_key
    from fleetcount_aggregator.host.token_keys import PKCS11_SCHEME
    from fleetcount_protocol.ids import AggregatorId
    from fleetcount_protocol.window.succession import Succession, encode_signed_succession, sign_succession

    from fleetcount.command.files import write_file

    settings, now = load_config(config, os.environ), int(time.time())
    if settings.keys.store_key_file is None:
        raise UsageError(
            "keys.store_key_file is missing: the store's key follows from the signing key; give it one of its own first"
            ' ("fleetcount keys store"), and start the aggregator with it once'
        )
    in_token = new_key.startswith(PKCS11_SCHEME)
    old = load_signing_key(settings.keys.signing_key_file)
    new = load_signing_key(new_key) if in_token else Ed25519PrivateKey.generate()
    succession = Succession(
        aggregator_id=AggregatorId(settings.aggregator.id),
        old_key=old.public_key().public_bytes_raw(),
        new_key=new.public_key().public_bytes_raw(),
        not_before=now,
        not_after=now + overlap_days * 86_400,
    )
    if output.exists():
        raise UsageError(f"--output {output} exists already; nothing is overwritten")
    if not in_token:
        pem = new.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_file(Path(new_key), pem, mode=0o600, overwrite=False)
    write_file(output, encode_signed_succession(sign_succession(succession, old)), overwrite=False)
    click.echo(f"{output}: for succession_files of everybody who trusts {settings.aggregator.id!r}, itself included")
    click.echo(f"{new_key}: its new signing_key_file, once they have it")


@keys.command("wrap", short_help="Put sealing keys under a key of a token.")
@click.option("--config", required=True, type=click.Path(path_type=Path), metavar="FILE", help="aggregator.toml.")
def wrap(config: Path) -> None:
    """Encrypt the files of an aggregator's sealing keys under the AES key in a token that [keys] wrapping_key names.

    Once, before the aggregator is started with wrapping_key; keys that it makes itself are wrapped already. The plain
    bytes are overwritten where they lay. Copies elsewhere stay what they are: better let rotate_s replace such keys.
    """
    import os

    from fleetcount_aggregator.config import load_config
    from fleetcount_aggregator.host.key_rotation import wrap_keys
    from fleetcount_aggregator.host.token_keys import load_wrapping_key

    keys = load_config(config, os.environ).keys
    if keys.wrapping_key is None:
        raise UsageError(f"{config} names no keys.wrapping_key: the pkcs11: URI of the AES-256 key to wrap under")
    try:
        wrapped = wrap_keys(keys.hpke_key_directory, load_wrapping_key(keys.wrapping_key))
    except OSError as error:
        raise MachineError(f"{error.filename}: {error.strerror}") from error
    named = ", ".join(map(str, wrapped))
    click.echo(f"{keys.hpke_key_directory}: " + (f"wrapped {named}" if wrapped else "nothing to wrap"))


@keys.command("descriptor", short_help="A descriptor with the keys of now.")
@click.option("--config", required=True, type=click.Path(path_type=Path), metavar="FILE", help="aggregator.toml.")
@click.option("--from", "source", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The old one.")
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The new descriptor.")
def descriptor(config: Path, source: Path, output: Path) -> None:
    """Write an aggregator's descriptor anew, with its present signing key and the sealing keys valid now, newest first.

    After a rotation or a succession: authors of questions need it. They take sealing keys from the aggregator itself.
    """
    import os
    import time
    from dataclasses import replace

    from fleetcount_aggregator.config import load_config
    from fleetcount_aggregator.host.keys import load_signing_key
    from fleetcount_protocol.window.fields import HpkeKey

    from fleetcount.command.files import write_file
    from fleetcount.keys.descriptors import encode_descriptor, read_descriptor

    settings, before, now = load_config(config, os.environ), read_descriptor(source), time.time()
    if before.aggregator_id != settings.aggregator.id:
        raise UsageError(f"--from describes {before.aggregator_id!r}, --config is of {settings.aggregator.id!r}")
    ring = settings.keys.key_ring()
    valid = [one for one in ring.listed() if one[2].not_before <= now < one[2].not_after]
    if not valid:
        raise UsageError(f"{settings.keys.hpke_key_directory} holds no sealing key that is valid now")
    newest = sorted(valid, key=lambda one: one[2].not_before, reverse=True)
    signing = load_signing_key(settings.keys.signing_key_file).public_key().public_bytes_raw()
    described = replace(
        before,
        signing_public_key=signing,
        hpke_keys=tuple(HpkeKey(key_id=key_id, public_key=public_key) for key_id, public_key, _ in newest),
    )
    write_file(output, encode_descriptor(described).encode())
    click.echo(f"{output}: {before.aggregator_id}, sealing keys {', '.join(str(one[0]) for one in newest)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """The options as click gives them."""

    output: Path
    aggregators: str
    operators: str | None
    devices: int
    deployment: str
    host: str
    base_port: int
    broker: str
    servers: bool
    transport: str
    largest_epsilon: Fraction


def _write(request: _Request, ids: Sequence[str], operators: Sequence[str]) -> None:
    from fleetcount_protocol.ids import AggregatorId
    from fleetcount_simulator.network.deployments import AggregatorPlan
    from fleetcount_simulator.network.ports import free_ports

    # Loads cryptography: only when keys are really made.
    from fleetcount.keys.deployment import write_aggregators, write_analyst, write_device, write_servers

    count, base = len(ids), request.base_port
    ports = free_ports(request.host, 2 * count) if base == 0 else [base + i for i in range(count)]
    peers = ports[count:] if base == 0 else [base + 10 + i for i in range(count)]
    plans = [
        AggregatorPlan(
            aggregator_id=AggregatorId(ids[i]),
            operator=operators[i],
            host=request.host,
            device_port=ports[i],
            peer_port=peers[i],
        )
        for i in range(count)
    ]
    written = write_aggregators(
        request.output,
        request.deployment,
        plans,
        mqtt_broker=request.broker,
        largest_epsilon=str(request.largest_epsilon),
    )
    write_analyst(written)
    if request.servers:
        write_servers(written, f"{request.host}:{7431 if base else free_ports(request.host, 1)[0]}")
    for number in range(1, request.devices + 1):
        write_device(written, number, transport=request.transport)


def _ids(text: str) -> list[str]:
    from fleetcount_protocol.ids import AggregatorId

    names = text.split(",")
    if not 2 <= len(names) <= 5:
        raise UsageError(f"--aggregators names {len(names)}; it must be 2 to 5 ids separated by commas")
    for name in names:
        try:
            AggregatorId(name)
        except FleetcountError as error:
            raise UsageError(f"--aggregators: {error}") from error
    if len(set(names)) < len(names):
        raise UsageError(f"--aggregators is {text!r}; every id must be another one")
    if taken := set(names) & {"analyst", "broker", "ca", "devices", "relay"}:
        raise UsageError(f"--aggregators names {taken.pop()!r}, which is the name of another folder there")
    return names


def _operators(text: str | None, ids: Sequence[str]) -> list[str]:
    from fleetcount_protocol.window.rules import operator_key

    names = text.split(",") if text is not None else [f"Operator of {name}" for name in ids]
    if len(names) != len(ids):
        raise UsageError(f"--operators names {len(names)}; it must name {len(ids)}, one an aggregator")
    for name in names:
        if not name or len(name.encode("utf-8", "replace")) > 200 or not name.isprintable() or name != name.strip():
            raise UsageError(f"--operators: {name[:40]!r} is not 1 to 200 printable characters")
    if len({operator_key(name) for name in names}) < 2:
        raise UsageError("--operators names one operator only; a question needs at least two distinct ones")
    return names


def check_names(deployment: str, host: str, broker: str) -> None:
    """Refuse names that no deployment can have; "" stands for no broker.

    Raises:
        UsageError: with the option, its value and what is allowed.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,31}", deployment, re.ASCII):
        raise UsageError(f"--deployment is {deployment[:40]!r}; it must be 1 to 32 of a-z, 0-9 and '-'")
    if not check_host(f"[{host}]" if ":" in host else host):
        raise UsageError(f"--host is {host[:40]!r}; it must be a host name or an address")
    try:
        if broker:
            split_endpoint(broker)
    except UsageError as error:
        raise UsageError(f"--broker: {error}") from None


def _remove(output: Path, *, existed: bool) -> None:
    """Leave the directory as it was found: empty, or not there."""
    for entry in output.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    if not existed:
        output.rmdir()

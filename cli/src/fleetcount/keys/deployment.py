"""`fleetcount keys init`: a whole test deployment on disk, from the authorities to the devices.

What the simulator makes of it (authorities, aggregators), and the descriptors, analysts, servers and devices beside it.
Every private file is made with mode 0600 and nothing is ever overwritten. In earnest each operator makes its own keys;
this is for demos, tests and first steps.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import click
from fleetcount_protocol.channel.certificates import Credential, Purpose, save_credential
from fleetcount_protocol.errors import FleetcountError, MachineError, UsageError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.layout import prints
from fleetcount_protocol.window.window import operator_key
from fleetcount_simulator.network.deployments import AggregatorPlan, Deployment, relay_toml, write_aggregators
from fleetcount_simulator.network.ports import free_ports
from fleetcount_transport.toml_writing import toml_text

from fleetcount.command.base import OneOf, StrictCommand
from fleetcount.command.numbers import EPSILON
from fleetcount.command.options import PATH, Count, check_output_directory, write_file
from fleetcount.keys.describing import check_names, encode_descriptor
from fleetcount.keys.descriptors import authorities_pem
from fleetcount.keys.party_files import TEST, device_toml, reader_toml

MAX_DEVICES = 10_000
_FAULTS: Final = "Vehicle.Diagnostics.DTCList"
_BRAKES: Final = "Vehicle.Chassis.IsBrakesWorn"
"""Whether any wheel's brake is worn; of each wheel a file says it."""
_DIRECTORY_MODE: Final = 0o700


@click.command("init", cls=StrictCommand)
@click.option("--output", required=True, type=PATH, help="A new or empty directory.")
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
    for aggregator in written.aggregators:
        descriptor = request.output / f"{aggregator.aggregator_id}.descriptor.toml"
        write_file(descriptor, encode_descriptor(aggregator).encode(), overwrite=False)
    write_analyst(written)
    if request.servers:
        write_servers(written, f"{request.host}:{7431 if base else free_ports(request.host, 1)[0]}")
    for number in range(1, request.devices + 1):
        write_device(written, number, transport=request.transport)


def _ids(text: str) -> list[str]:
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
    names = text.split(",") if text is not None else [f"Operator of {name}" for name in ids]
    if len(names) != len(ids):
        raise UsageError(f"--operators names {len(names)}; it must name {len(ids)}, one per aggregator")
    for name in names:
        if not name or len(name.encode("utf-8", "replace")) > 200 or not prints(name) or name != name.strip():
            raise UsageError(f"--operators: {name[:40]!r} is not 1 to 200 printable characters")
    if len({operator_key(name) for name in names}) < 2:
        raise UsageError("--operators names one operator only; a question needs at least two distinct ones")
    return names


def _remove(output: Path, *, existed: bool) -> None:
    """Leave the directory as it was found: empty, or not there."""
    for entry in output.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    if not existed:
        output.rmdir()


def write_analyst(deployment: Deployment) -> Path:
    """Write the folder of an analyst, who may read releases; return its configuration file.

    Raises:
        UsageError: a file that is there already.
        MachineError: the disk does not take it.
    """
    directory = deployment.root / "analyst"
    _write_credential(directory, "analyst", deployment.authorities.devices.issue_new(Purpose.READER, "analyst"))
    text = reader_toml(deployment.name, deployment.aggregators)
    write_file(directory / "analyst.toml", text.encode(), overwrite=False)
    return directory / "analyst.toml"


def write_servers(deployment: Deployment, relay_listen: str) -> None:
    """Write the folder of a relay, and that of an MQTT broker: certificate, key, and whom it lets in (clients.*).

    Raises:
        UsageError: a file that is there already.
        MachineError: the disk does not take it.
    """
    root, authorities = deployment.root, deployment.authorities
    hosts = sorted({"localhost", *(plan.host for plan in deployment.plans)})
    for name, purpose in (("relay", Purpose.RELAY), ("broker", Purpose.BROKER)):
        _write_credential(root / name, name, authorities.aggregators.issue_new(purpose, name, hosts))
    both = (authorities.devices, authorities.aggregators)
    for file, of_each in (
        ("clients.crt", [one.certificate for one in both]),
        ("clients.crl", [one.revocations(()) for one in both]),
    ):
        write_file(root / "broker" / file, authorities_pem(of_each), overwrite=False)
    text = relay_toml(
        deployment.aggregators,
        listen=relay_listen,
        ca_directory="../ca/",
        more=[("[metrics]", {"listen": '"127.0.0.1:9431"'})],
        comment=f"The relay {TEST}",
    )
    write_file(root / "relay" / "relay.toml", text.encode(), overwrite=False)


def write_device(deployment: Deployment, number: int, *, transport: str) -> Path:
    """Write the folder of one device, devices/NNNN; return its configuration file.

    Raises:
        UsageError: a file that is there already.
        MachineError: the disk does not take it.
    """
    directory = deployment.root / "devices" / f"{number:04d}"
    _write_credential(directory, "device", deployment.authorities.devices.issue_device())
    write_file(directory / "device.toml", _device_toml(deployment, transport).encode(), overwrite=False)
    return directory / "device.toml"


def _write_credential(directory: Path, name: str, credential: Credential) -> None:
    """Make the folder of a party, with its certificate and key."""
    try:
        directory.mkdir(mode=_DIRECTORY_MODE, parents=True)
        save_credential(directory, name, credential)
    except OSError as error:
        raise MachineError(f"{error.filename or directory}: {error.strerror}") from error


def _device_toml(deployment: Deployment, transport: str) -> str:
    tables = [("[grpc]", {"ca_file": '"../../ca/aggregators.crt"'})]
    if deployment.mqtt_broker:
        tables.append(("[mqtt]", {"broker": toml_text(deployment.mqtt_broker)}))
    policy = {
        "signals": f'["Vehicle.CurrentLocation", "Vehicle.Speed", "Vehicle.Category", "{_BRAKES}", "{_FAULTS}"]',
        "largest_epsilon": '"1"               # of one release, public view',
        "largest_sampling_rate": '"0.5"       # the chance that all aggregators together see the truth',
        "smallest_min_batch_size": "2         # a test deployment counts small fleets; a real owner asks for more",
        "total_epsilon": '"10"                # over budget_period_s',
        "budget_period_s": "2592000",
        "fresh_ledger": '"allow"              # a test deployment does not wait after a new ledger',
    }
    wheels = ", ".join(f'"worn-{row}-{side}.json"' for row in ("front", "rear") for side in ("left", "right"))
    signals = {f"Vehicle.{one}": {"file": f'"{one.lower()}.json"'} for one in ("CurrentLocation", "Speed", "Category")}
    signals[_FAULTS] = {"file": '"dtclist.json"'}
    signals[_BRAKES] = {"file": f"[{wheels}]", "type": '"boolean"', "any": "true"}
    return device_toml(
        deployment.name, deployment.aggregators, transport=transport, tables=tables, policy=policy, signals=signals
    )

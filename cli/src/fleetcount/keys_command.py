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
from fleetcount_protocol.errors import FleetcountError, UsageError

from fleetcount.files import check_output_directory
from fleetcount.lazy import LazyGroup
from fleetcount.numbers import EPSILON, Count

__all__ = ["check_names", "keys"]

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
@click.option("--transport", type=click.Choice(["grpc", "mqtt"]), default="grpc", show_default=True)
@click.option(
    "--largest-epsilon", type=EPSILON, default="4", show_default=True, help="What an aggregator's ledger allows."
)
def init(**options: Any) -> None:
    """Write a test deployment: two authorities, aggregators, devices.

    \b
    OUTPUT/ca/                        the authorities (their .key files enrol others: keep them apart)
    OUTPUT/alpha/aggregator.toml      for `fleetcount aggregator serve --config`
    OUTPUT/alpha.descriptor.toml      public: for the authors of tasks
    OUTPUT/analyst/analyst.toml       for `fleetcount task release --config`
    OUTPUT/devices/0001/device.toml   for `fleetcount device run --config`

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
    transport: str
    largest_epsilon: Fraction


def _write(request: _Request, ids: Sequence[str], operators: Sequence[str]) -> None:
    from fleetcount_protocol.ids import AggregatorId

    # Loads cryptography: only when keys are really made.
    from fleetcount.deployment import AggregatorPlan, free_ports, write_aggregators, write_analyst, write_device

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
    if taken := set(names) & {"ca", "devices", "analyst"}:
        raise UsageError(f"--aggregators names {taken.pop()!r}, which is the name of another folder there")
    return names


def _operators(text: str | None, ids: Sequence[str]) -> list[str]:
    from fleetcount_protocol.task.rules import operator_key

    names = text.split(",") if text is not None else [f"Operator of {name}" for name in ids]
    if len(names) != len(ids):
        raise UsageError(f"--operators names {len(names)}; it must name {len(ids)}, one an aggregator")
    for name in names:
        if not name or len(name.encode("utf-8", "replace")) > 200 or not name.isprintable() or name != name.strip():
            raise UsageError(f"--operators: {name[:40]!r} is not 1 to 200 printable characters")
    if len({operator_key(name) for name in names}) < 2:
        raise UsageError("--operators names one operator only; a task needs at least two distinct ones")
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

"""`fleetcount analyst new`, `relay new` and `broker new`: what those who ask and who carry begin with.

Each makes its own key and a request for an operator to admit. It must not print a key.
"""

import getpass
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Final

import click
from fleetcount_protocol.channel.certificates import Purpose
from fleetcount_simulator.network.deployments import endpoint_of, hosts_of
from fleetcount_transport.toml_writing import toml_text

from fleetcount.command.base import StrictCommand
from fleetcount.command.options import Length
from fleetcount.keys.descriptors import authorities_pem, host_and_port, read_operators
from fleetcount.keys.party_files import reader_toml, relay_toml
from fleetcount.keys.requests import (
    DESCRIPTORS,
    MIN_BATCH,
    OUTPUT,
    begin_party,
    check_file_name,
    listening_host,
    say_made,
)

_HOST: Final = click.option("--host", required=True, metavar="HOST[:PORT]", help="Where others reach it.")
_RELAY_PORT: Final = 7431
_BROKER_PORT: Final = 8883
_QUESTION: Final = "question.toml"


def _sample(name: str) -> str:
    return resources.files("fleetcount.samples").joinpath(name).read_text(encoding="utf-8")


@click.command("analyst", cls=StrictCommand)
@click.argument("name")
@DESCRIPTORS
@OUTPUT
@MIN_BATCH
@click.option(
    "--window", type=Length(), default="60 s", show_default=True, metavar="LENGTH", help="How long devices may answer."
)
def analyst(name: str, descriptors: tuple[Path, ...], output: Path | None, min_batch: int, window: int) -> None:
    """Make what an analyst needs to ask and to read: key, request, analyst.toml, and a first question.

    question.toml asks how many vehicles are faster than 50 km/h: change it as you like, and hand it to the operator of
    the first descriptor, who leads it (`fleetcount question create`). Run again it changes nothing.
    """
    check_file_name(name)
    operators, output = read_operators(descriptors), output or Path(name)
    aggregators = [one.aggregator for _, one, _ in operators]
    deployment = operators[0][2].deployment
    text = reader_toml(
        deployment,
        aggregators,
        name=name,
        ca_file="aggregators.crt",
        comment="One analyst, by `fleetcount analyst new`. Every path is relative to this file.",
    )
    ids = [str(one.aggregator_id) for one in aggregators]
    files = {
        "analyst.toml": text.encode(),
        "aggregators.crt": authorities_pem([added.aggregator_authority for _, _, added in operators]),
        _QUESTION: _question_toml(deployment, ids, min_batch, window).encode(),
        **{f"{one}.descriptor.toml": path.read_bytes() for one, (path, _, _) in zip(ids, operators, strict=True)},
    }
    made = begin_party(output, Purpose.READER, name, (), files, "analyst.toml")
    asks = f"a first question: hand it to {ids[0]!r}, who creates it, signs it and hands it to the others to sign"
    reads = "for `fleetcount question release --config`, once it is admitted"
    say_made(output, name, made, [(str(output / _QUESTION), asks), (str(output / "analyst.toml"), reads)])


def _question_toml(deployment: str, ids: list[str], min_batch: int, window: int) -> str:
    """Return the shipped question of one window, of this deployment."""
    rows = {
        'deployment = "test"': f"deployment = {toml_text(deployment)}",
        "min_batch_size = 10 ": f"min_batch_size = {min_batch} ",
        'window = "60 s" ': f'window = "{window} s" ',
    }
    text = _sample("window.toml").partition("[[aggregators]]")[0]
    for before, after in rows.items():
        if before not in text:
            raise AssertionError(f"samples/window.toml has no {before!r}")
        text = text.replace(before, after)
    described = "\n".join(f'[[aggregators]]\ndescriptor = "{one}.descriptor.toml"\n' for one in ids)
    return text.replace(" Unknown keys are refused.", "") + described


@click.command("relay", cls=StrictCommand)
@click.argument("name")
@DESCRIPTORS
@_HOST
@OUTPUT
def relay(name: str, descriptors: tuple[Path, ...], host: str, output: Path | None) -> None:
    """Make what a relay needs: NAME.key, which stays, NAME.request, for an operator to admit, and relay.toml.

    Devices reach it at --host, by default at port 7431. Run again it changes nothing.
    """
    check_file_name(name)
    where, port = host_and_port(host, _RELAY_PORT)
    operators, output = read_operators(descriptors), output or Path(name)
    text = relay_toml(
        [one.aggregator for _, one, _ in operators],
        listen=endpoint_of(listening_host(where), port),
        ca_directory="",
        name=name,
        comment="One relay, by `fleetcount relay new`. Every path is relative to this file.",
    )
    files = {
        "relay.toml": text.encode(),
        "aggregators.crt": authorities_pem([added.aggregator_authority for _, _, added in operators]),
        "devices.crt": authorities_pem([added.device_authority for _, _, added in operators]),
    }
    made = begin_party(output, Purpose.RELAY, name, hosts_of(where), files, "relay.toml")
    runs = f"for `fleetcount relay --config {output / 'relay.toml'}`, once it is admitted"
    say_made(output, name, made, [(str(output / "relay.toml"), runs)])


@click.command("new", cls=StrictCommand)
@click.argument("name")
@DESCRIPTORS
@_HOST
@OUTPUT
def broker(name: str, descriptors: tuple[Path, ...], host: str, output: Path | None) -> None:
    """Make what an MQTT broker needs: NAME.key, which stays, NAME.request, and the files of mosquitto.

    It lets in whom the operators certify, each to its own topics, at port 8883 if --host names none. Run again it
    changes nothing.
    """
    check_file_name(name)
    where, port = host_and_port(host, _BROKER_PORT)
    operators, output = read_operators(descriptors), output or Path(name)
    ids = [str(one.aggregator.aggregator_id) for _, one, _ in operators]
    clients = [one for _, _, added in operators for one in (added.device_authority, added.aggregator_authority)]
    lists = [one for _, _, added in operators for one in (added.device_revocations, added.aggregator_revocations)]
    place = output.absolute()
    files = {
        "mosquitto.conf": "".join(_conf(name, place, listening_host(where), port)).encode(),
        "mosquitto.acl": "".join(_acl(operators[0][2].deployment, ids)).encode(),
        "clients.crt": authorities_pem(clients),
        "clients.crl": authorities_pem(lists),
    }
    made = begin_party(output, Purpose.BROKER, name, hosts_of(where), files, "mosquitto.conf")
    runs = f"for `mosquitto -c {output / 'mosquitto.conf'}`, once it is admitted"
    say_made(output, name, made, [(str(output / "mosquitto.conf"), runs)])


def _conf(name: str, place: Path, host: str, port: int) -> Iterator[str]:
    """Yield the lines of the shipped mosquitto.conf, with the files of this folder."""
    files = {"certfile": f"{name}.crt", "keyfile": f"{name}.key"}
    for line in _sample("mosquitto.conf").splitlines(keepends=True):
        key, _, value = line.strip().partition(" ")
        if key == "listener":
            yield f"listener {port} {host}\n"
        elif key in {"cafile", "crlfile", "certfile", "keyfile", "acl_file"}:
            yield f"{key} {place / files.get(key, Path(value).name)}\n"
        elif key == "persistence_location":
            yield f"{key} {place}/\n"
        else:
            yield line
    # Begun by root, mosquitto would give up the rights to this folder.
    yield f"\n# Whose folder this is; of other users only root may become that one.\nuser {getpass.getuser()}\n"


def _acl(deployment: str, ids: list[str]) -> Iterator[str]:
    """Yield the lines of the shipped mosquitto.acl: those of all devices, and of each aggregator its own."""
    lines = _sample("mosquitto.acl").replace("DEPLOYMENT", deployment).splitlines()
    yield "# Who may read and write what; by `fleetcount broker new`. Users are the names in certificates.\n\n"
    yield from (f"{line}\n" for line in lines if line.startswith("pattern "))
    start = lines.index("user alpha")
    block = lines[start : lines.index("", start)]
    for one in ids:
        yield "\n" + "".join(f"{line.replace('alpha', one)}\n" for line in block)

"""`fleetcount analyst new` and `relay new`: what those who ask and who carry begin with (brokers: `broker`).

Each makes its own key and a request for an operator to admit. It must not print a key.
"""

from pathlib import Path
from typing import Final

import click
from fleetcount_protocol.channel.certificates import Purpose
from fleetcount_protocol.limits import MAX_WINDOW_S
from fleetcount_simulator.network.deployments import endpoint_of, hosts_of, relay_toml
from fleetcount_transport.toml_writing import toml_text

from fleetcount.command.base import StrictCommand
from fleetcount.command.numbers import Length
from fleetcount.keys.describing import host_and_port
from fleetcount.keys.descriptors import authorities_pem, read_operators
from fleetcount.keys.party_files import reader_toml
from fleetcount.keys.requests import (
    DESCRIPTORS,
    HOST,
    MIN_BATCH,
    OUTPUT,
    begin_party,
    check_file_name,
    listening_host,
    sample,
    say_made,
)

_RELAY_PORT: Final = 7431
_QUESTION: Final = "question.toml"
_TWO_ROUNDS_S: Final = 2


@click.command("analyst", cls=StrictCommand)
@click.argument("name")
@DESCRIPTORS
@OUTPUT
@MIN_BATCH
@click.option(
    "--window",
    type=Length(_TWO_ROUNDS_S, MAX_WINDOW_S),
    default="60 s",
    show_default=True,
    metavar="LENGTH",
    help="How long devices may answer.",
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
    text = sample("window.toml").partition("[[aggregators]]")[0]
    for before, after in rows.items():
        if before not in text:
            raise AssertionError(f"samples/window.toml has no {before!r}")
        text = text.replace(before, after)
    described = "\n".join(f'[[aggregators]]\ndescriptor = "{one}.descriptor.toml"\n' for one in ids)
    return text.replace(" Unknown keys are refused.", "") + described


@click.command("relay", cls=StrictCommand)
@click.argument("name")
@DESCRIPTORS
@HOST
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

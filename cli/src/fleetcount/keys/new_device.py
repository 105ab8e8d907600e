"""`fleetcount device new`: what one device begins with: its key, its request and its configuration.

It must not print a key or decide who is admitted.
"""

from pathlib import Path
from typing import Final

import click
from fleetcount_protocol.channel.certificates import Purpose
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import split_endpoint
from fleetcount_protocol.window.signal import check_signal
from fleetcount_transport.toml_writing import toml_text

from fleetcount.command.base import StrictCommand
from fleetcount.command.options import Count
from fleetcount.keys.descriptors import authorities_pem, read_operators
from fleetcount.keys.party_files import device_toml
from fleetcount.keys.requests import DESCRIPTORS, MIN_BATCH, OUTPUT, begin_party, check_file_name, say_made

_DAY_S: Final = 86_400
_PERIOD_DAYS: Final = 30  # Of the budget, for which a new ledger waits.


@click.command("new", cls=StrictCommand)
@click.argument("name")
@DESCRIPTORS
@OUTPUT
@click.option("--mqtt", is_flag=True, help="Send over the MQTT broker that the descriptors name.")
@click.option("--relay", default="", metavar="HOST:PORT", help="Send through a relay.")
@click.option(
    "--signal",
    "signals",
    multiple=True,
    metavar="PATH=FILE",
    default=("Vehicle.Speed=speed.txt",),
    show_default=True,
    help="A signal, and the file that has its value; may be repeated.",
)
@click.option(
    "--wait",
    type=Count(0, 3650),
    default=_PERIOD_DAYS,
    show_default=True,
    metavar="DAYS",
    help="How long a new ledger answers nothing; 0 for a trial.",
)
@MIN_BATCH
def new(
    name: str,
    descriptors: tuple[Path, ...],
    output: Path | None,
    mqtt: bool,
    relay: str,
    signals: tuple[str, ...],
    wait: int,
    min_batch: int,
) -> None:
    """Make what one device needs: NAME.key, which stays, NAME.request, for an operator to admit, and device.toml.

    A new ledger may stand in for a lost one, so it waits until all that one may have spent is over: with --wait 0 it
    does not, and a device that loses its state file answers again. Run again it changes nothing.
    """
    check_file_name(name)
    operators = read_operators(descriptors)
    aggregators = [one.aggregator for _, one, _ in operators]
    read = _signals(signals)
    device = device_toml(
        operators[0][2].deployment,
        aggregators,
        transport="mqtt" if mqtt else "grpc",
        tables=[_mqtt(relay, {one.mqtt_broker for one in aggregators}) if mqtt else _grpc(relay)],
        policy={
            "signals": f"[{', '.join(map(toml_text, read))}]",
            "largest_epsilon": '"1"               # of one release, public view',
            "largest_sampling_rate": '"0.5"       # the chance that all aggregators together see the truth',
            "smallest_min_batch_size": f"{min_batch}",
            "total_epsilon": '"10"                # over budget_period_s',
            "budget_period_s": f"{_PERIOD_DAYS * _DAY_S}",
            **_waiting(wait),
        },
        signals={path: {"file": toml_text(file)} for path, file in read.items()},
        name=name,
        comment="One device, by `fleetcount device new`. Every path is relative to this file.",
    )
    files = {
        "device.toml": device.encode(),
        "aggregators.crt": authorities_pem([added.aggregator_authority for _, _, added in operators]),
    }
    folder = output or Path(name)
    made = begin_party(folder, Purpose.DEVICE, name, (), files, "device.toml")
    run = f"fleetcount device run --config {folder / 'device.toml'}"
    say_made(folder, name, made, [(str(folder / "device.toml"), f"for `{run}`, once it is admitted")])


def _waiting(days: int) -> dict[str, str]:
    if days == 0:
        return {"fresh_ledger": '"allow"              # a trial: a lost ledger is not waited for'}
    return {"fresh_ledger_wait_s": f"{days * _DAY_S}    # a new ledger answers nothing for so long"}


def _grpc(relay: str) -> tuple[str, dict[str, str]]:
    rows = {"ca_file": '"aggregators.crt"'}
    if relay:
        try:
            split_endpoint(relay)
        except UsageError as error:
            raise UsageError(f"--relay: {error}") from None
        rows["relay"] = toml_text(relay)
    return "[grpc]", rows


def _mqtt(relay: str, brokers: set[str]) -> tuple[str, dict[str, str]]:
    if relay:
        raise UsageError("--mqtt and --relay are both given; allowed: one of them")
    if len(brokers) != 1 or "" in brokers:
        raise UsageError(f"the descriptors name {len(brokers - {''})} brokers; --mqtt needs one, the same in all")
    return "[mqtt]", {
        "broker": toml_text(brokers.pop()),
        "ca_file": '"aggregators.crt"',
        "client_certificate": "true",
    }


def _signals(texts: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        path, _, file = text.partition("=")
        if not file:
            raise UsageError(f"--signal is {text[:60]!r}; allowed: PATH=FILE, like Vehicle.Speed=speed.txt")
        check_signal(path)
        if path in found:
            raise UsageError(f"--signal gives {path!r} twice; allowed: once")
        found[path] = file
    return found

"""A whole test deployment on disk: what the simulator makes of it, and the descriptors, analysts and devices beside it.

Every private file is made with mode 0600 and nothing is ever overwritten. In real life each operator makes its own
keys; this is for demos, tests and first steps.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fleetcount_protocol.channel.certificates import Purpose, save_certificates, save_private_key
from fleetcount_protocol.errors import MachineError
from fleetcount_simulator.network import deployments
from fleetcount_simulator.network.deployments import (
    AggregatorPlan,
    Deployment,
)

from fleetcount.command.files import write_file
from fleetcount.keys.descriptors import encode_descriptor, toml_text
from fleetcount.read.readers import reader_toml

_DIRECTORY_MODE: Final = 0o700


def write_aggregators(
    root: Path,
    name: str,
    plans: Sequence[AggregatorPlan],
    *,
    mqtt_broker: str = "",
    mqtt_inflight: int | None = None,
    largest_epsilon: str = "4",
    smallest_min_batch_size: int = 2,
) -> Deployment:
    """Write the authorities and every aggregator's folder and descriptor below `root`, an empty directory.

    `mqtt_inflight` is the broker's own limit of messages under way to one aggregator, None for that of a default one.

    Raises:
        UsageError: a name that cannot stand in a certificate, or a file that is there already.
        MachineError: the disk does not take them.
    """
    deployment = deployments.write_aggregators(
        root,
        name,
        plans,
        mqtt_broker=mqtt_broker,
        mqtt_inflight=mqtt_inflight,
        largest_epsilon=largest_epsilon,
        smallest_min_batch_size=smallest_min_batch_size,
    )
    for aggregator in deployment.aggregators:
        descriptor = root / f"{aggregator.aggregator_id}.descriptor.toml"
        write_file(descriptor, encode_descriptor(aggregator).encode(), overwrite=False)
    return deployment


def write_analyst(deployment: Deployment) -> Path:
    """Write the folder of an analyst, who may read releases; return its configuration file.

    Raises:
        UsageError: a file that is there already.
        MachineError: the disk does not take it.
    """
    directory = deployment.root / "analyst"
    credential = deployment.authorities.devices.issue_new(Purpose.READER, "analyst")
    try:
        directory.mkdir(mode=_DIRECTORY_MODE)
        save_certificates(directory / "analyst.crt", [credential.certificate])
        save_private_key(directory / "analyst.key", credential.private_key)
    except OSError as error:
        raise MachineError(f"{error.filename or directory}: {error.strerror}") from error
    text = reader_toml(deployment.name, deployment.aggregators)
    write_file(directory / "analyst.toml", text.encode(), overwrite=False)
    return directory / "analyst.toml"


def write_servers(deployment: Deployment, relay_listen: str) -> None:
    """Write the folder of a relay, and that of an MQTT broker: certificate, key, and whom it lets in (clients.crt).

    Raises:
        UsageError: a file that is there already.
        MachineError: the disk does not take it.
    """
    root, authorities = deployment.root, deployment.authorities
    hosts = sorted({"localhost", *(plan.host for plan in deployment.plans)})
    try:
        for name, purpose in (("relay", Purpose.RELAY), ("broker", Purpose.BROKER)):
            (root / name).mkdir(mode=_DIRECTORY_MODE)
            credential = authorities.aggregators.issue_new(purpose, name, hosts)
            save_certificates(root / name / f"{name}.crt", [credential.certificate])
            save_private_key(root / name / f"{name}.key", credential.private_key)
        clients = [authorities.devices.certificate, authorities.aggregators.certificate]
        save_certificates(root / "broker" / "clients.crt", clients)
    except OSError as error:
        raise MachineError(f"{error.filename or root}: {error.strerror}") from error
    rows = [
        "# The relay of a test deployment, by `fleetcount keys init`. Every path is relative to this file.",
        "",
        "[relay]",
        f"listen = {toml_text(relay_listen)}",
        "",
        "[tls]",
        'certificate_file = "relay.crt"',
        'key_file = "relay.key"',
        'aggregator_ca_file = "../ca/aggregators.crt"',
        'device_ca_file = "../ca/devices.crt"',
        "",
        "[metrics]",
        'listen = "127.0.0.1:9431"',
    ]
    for one in deployment.aggregators:
        rows += ["", "[[aggregators]]", f"id = {toml_text(one.aggregator_id)}"]
        rows += [f"endpoint = {toml_text(one.grpc_endpoint)}"]
    write_file(root / "relay" / "relay.toml", ("\n".join(rows) + "\n").encode(), overwrite=False)


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
        "[policy]                            # what the owner allows; a window beyond any of these is refused",
        'signals = ["Vehicle.CurrentLocation", "Vehicle.Speed", "Vehicle.Category"]',
        'largest_epsilon = "1"               # of one release, public view',
        'largest_sampling_rate = "0.5"       # the chance that all aggregators together see the truth',
        "smallest_min_batch_size = 2         # a test deployment counts small fleets; a real owner asks for more",
        'total_epsilon = "10"                # over budget_period_s',
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

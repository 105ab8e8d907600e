"""From settings to a transport: the name a device goes by at its broker."""

import base64
from pathlib import Path

import pytest
from fleetcount_client.assembly import transport_of
from fleetcount_client.config import DeviceSettings, load_settings
from fleetcount_client.mqtt_transport import MqttTransport
from fleetcount_client.transport import Unreachable
from fleetcount_protocol.channel.certificates import (
    CertificateAuthority,
    load_certificate,
    save_certificates,
    save_private_key,
)
from fleetcount_protocol.channel.user_names import key_name
from fleetcount_transport.toml_table import ConfigError

FLEET = CertificateAuthority.create("Fleet")


def settings(directory: Path, *mqtt: str) -> DeviceSettings:
    """Return the settings of the device d-1 with these lines in its [mqtt] table."""
    made = FLEET.issue_device("d-1")
    save_certificates(directory / "device.crt", [made.certificate])
    save_private_key(directory / "device.key", made.private_key)
    save_certificates(directory / "ca.crt", [FLEET.certificate])
    rows = [
        "[device]",
        'deployment = "test"',
        'state_file = "device.db"',
        'certificate_file = "device.crt"',
        'key_file = "device.key"',
        'transport = "mqtt"',
        "[mqtt]",
        'broker = "127.0.0.1:1"',
        *mqtt,
        "[policy]",
        'signals = ["Vehicle.Speed"]',
        'fresh_ledger = "allow"',
        '[signals."Vehicle.Speed"]',
        'value = "1"',
    ]
    for number, name in enumerate(("alpha", "beta")):
        key = base64.b64encode(bytes([number]) * 32).decode()
        rows += ["[[aggregators]]", f'id = "{name}"', f'operator = "{name}"', f'signing_public_key = "{key}"']
    (directory / "device.toml").write_text("\n".join(rows))
    return load_settings(directory / "device.toml")


@pytest.mark.parametrize(
    ("table", "certified"),
    [
        ((), False),
        (('ca_file = "ca.crt"',), False),
        (('ca_file = "ca.crt"', "client_certificate = true"), True),
        (('username = "d-1"',), True),
    ],
)
async def test_a_device_goes_by_its_certificate_s_name_or_its_key(
    tmp_path: Path, table: tuple[str, ...], certified: bool
) -> None:
    configured = settings(tmp_path, *table)
    transport = transport_of(configured)

    assert isinstance(transport, MqttTransport)
    transport._new_connection()
    assert transport._user == ("d-1" if certified else key_name(load_certificate(configured.certificate_file)))


def test_a_user_name_that_is_not_the_certificate_s_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mqtt\.username is 'car', allowed: the certificate's common name, 'd-1'"):
        transport_of(settings(tmp_path, 'username = "car"'))


async def test_a_key_that_comes_after_its_certificate_is_refused_at_the_start_only(
    tmp_path: Path,
) -> None:
    transport = transport_of(settings(tmp_path))
    next_one = FLEET.issue_device("d-1")
    (tmp_path / "device.crt").unlink()
    save_certificates(tmp_path / "device.crt", [next_one.certificate])

    with pytest.raises(Unreachable, match=r"device\.key"):
        await transport.list_questions()
    with pytest.raises(ConfigError, match=r"device\.key"):
        transport_of(load_settings(tmp_path / "device.toml"))


def test_a_login_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    made = settings(tmp_path, 'ca_file = "ca.crt"')
    (tmp_path / "ca.crt").write_text("no certificate", "utf-8")

    with pytest.raises(ConfigError, match=r"mqtt\.ca_file"):
        transport_of(made)

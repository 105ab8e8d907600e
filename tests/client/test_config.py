"""Every wrong line of a configuration is refused by key, value and allowed range, in one line."""

import base64
import math
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_client.config import DeliverySettings, load_settings
from fleetcount_client.device import Device
from fleetcount_client.signals import read_signal
from fleetcount_protocol.channel.certificates import CertificateAuthority, save_certificates
from fleetcount_protocol.errors import UsageError
from fleetcount_transport.toml_table import ConfigError

from tests.support.refusals import said_by

GOOD = f"""
[device]
deployment = "bologna"
state_file = "device.db"
certificate_file = "device.crt"
key_file = "device.key"
transport = "grpc"

[grpc]
ca_file = "aggregators.crt"

[mqtt]
broker = "127.0.0.1:1884"

[policy]
signals = ["Vehicle.CurrentLocation", "Vehicle.Speed"]
largest_epsilon = "1"
largest_sampling_rate = "0.5"
smallest_min_batch_size = 10
total_epsilon = "10"
total_delta = "1/1000000000"
trust = "one honest operator"
budget_period_s = 2592000
allow_direct = false
allow_exact_release = false

[[aggregators]]
id = "alpha"
operator = "City of Bologna"
signing_public_key = "{base64.b64encode(bytes(32)).decode()}"
grpc_endpoint = "127.0.0.1:7411"

[[aggregators]]
id = "beta"
operator = "University of Bologna"
signing_public_key = "{base64.b64encode(bytes(range(32))).decode()}"

[signals."Vehicle.Speed"]
file = "speed.txt"
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    (tmp_path / "device.crt").write_text("pem")
    save_certificates(tmp_path / "aggregators.crt", [CertificateAuthority.create("aggregators").certificate])
    (tmp_path / "device.key").touch(mode=0o600)

    def _write(text: str) -> Path:
        path = tmp_path / "device.toml"
        path.write_text(text)
        return path

    return _write


async def test_the_sample_says_what_it_says(write: Callable[[str], Path], tmp_path: Path) -> None:
    settings = load_settings(write(GOOD))

    assert settings.deployment == "bologna"
    assert settings.state_file == tmp_path / "device.db"
    assert settings.grpc is not None
    assert settings.mqtt is None
    assert settings.policy.largest_sampling_rate == Fraction(1, 2)
    assert settings.policy.fresh_ledger_wait_s == 2592000
    assert [one.id for one in settings.aggregators] == ["alpha", "beta"]
    (tmp_path / "speed.txt").write_text("61")
    assert (await read_signal(settings.signals, "Vehicle.Speed")).value == 61


def test_a_relay_is_an_endpoint_and_the_aggregators_themselves_without_one(write: Callable[[str], Path]) -> None:
    ca_file = 'ca_file = "aggregators.crt"'
    relayed = load_settings(write(GOOD.replace(ca_file, f'{ca_file}\nrelay = "relay.example.org:7431"')))
    direct = load_settings(write(GOOD))

    assert relayed.grpc is not None
    assert relayed.grpc.relay == "relay.example.org:7431"
    assert direct.grpc is not None
    assert direct.grpc.relay == ""
    with pytest.raises(ConfigError, match=r"grpc\.relay is 'relay'"):
        load_settings(write(GOOD.replace(ca_file, f'{ca_file}\nrelay = "relay"')))


def test_the_shipped_sample_is_complete_but_for_the_keys(write: Callable[[str], Path]) -> None:
    text = (Path(__file__).parents[2] / "deploy/sample/device.toml").read_text()
    for said, key in (("base64 of 32 bytes", bytes(32)), ("base64 of 32 other bytes", bytes(range(32)))):
        text = text.replace(said, base64.b64encode(key).decode())

    settings = load_settings(write(text.replace("../../ca/aggregators.crt", "aggregators.crt")))

    assert [one.id for one in settings.aggregators] == ["alpha", "beta"]


BAD_LINES: list[tuple[str, str, str]] = [
    ('transport = "grpc"', 'transprot = "grpc"', r"device\.transprot.*'transport'"),
    ('transport = "grpc"', 'transport = "http"', r"device\.transport is 'http'.*'grpc' or 'mqtt'"),
    ('transport = "grpc"', "", r"device\.transport is missing"),
    ('deployment = "bologna"', 'deployment = "Bologna/+"', r"device\.deployment"),
    ('deployment = "bologna"', 'deployment = "bologna"\ndeployment = "x"', "not TOML"),
    ("[grpc]", "[grcp]", r"line \d+: grcp is unknown.*'grpc'"),
    ("[mqtt]\nbroker", "[mqtt]\nbrokr", r"mqtt\.brokr.*'broker'"),
    ('ca_file = "aggregators.crt"', 'ca_file = "nothing.crt"', r"grpc\.ca_file is 'nothing\.crt'"),
    ('ca_file = "aggregators.crt"', 'ca_file = "."', r"grpc\.ca_file.*regular file"),
    ('ca_file = "aggregators.crt"', "", r"grpc\.ca_file is missing"),
    ("[grpc]", "[grpc]\ninsecure = true", r"line \d+: grpc\.insecure is true; allowed is only without ca_file"),
    ('state_file = "device.db"', 'state_file = "nowhere/device.db"', r"device\.state_file.*nowhere"),
    ('state_file = "device.db"', 'state_file = "."', r"device\.state_file is '\.'; allowed is a file in"),
    ('largest_epsilon = "1"', 'largest_epsilon = "0"', r"policy\.largest_epsilon is '0'.*above 0"),
    ('largest_epsilon = "1"', 'largest_epsilon = "-1"', r"largest_epsilon is '-1'"),
    ('largest_epsilon = "1"', 'largest_epsilon = "nan"', "largest_epsilon is 'nan'"),
    ('largest_epsilon = "1"', 'largest_epsilon = "1e4"', "largest_epsilon is '1e4'"),
    ('largest_epsilon = "1"', 'largest_epsilon = "1,5"', "largest_epsilon is '1,5'"),
    ('largest_epsilon = "1"', 'largest_epsilon = "１"', "largest_epsilon is"),
    ('largest_epsilon = "1"', 'largest_epsilon = "1_0"', "largest_epsilon is '1_0'"),
    ('largest_epsilon = "1"', "largest_epsilon = 0.1", "largest_epsilon is 0.1"),
    ('largest_epsilon = "1"', "largest_epsilon = true", "largest_epsilon is true"),
    ('largest_epsilon = "1"', 'largest_epsilon = "1/0"', "largest_epsilon is '1/0'"),
    ('largest_epsilon = "1"', 'largest_epsilon = "21"', "at most 20"),
    ('largest_sampling_rate = "0.5"', 'largest_sampling_rate = "1.0000001"', "largest_sampling_rate.*at most 1"),
    ("smallest_min_batch_size = 10", "smallest_min_batch_size = 1", "smallest_min_batch_size is 1.*from 2"),
    ("smallest_min_batch_size = 10", 'smallest_min_batch_size = "10"', "smallest_min_batch_size is '10'"),
    ("budget_period_s = 2592000", "budget_period_s = 60", "budget_period_s is 60.*from 3600"),
    ("allow_direct = false", 'allow_direct = "no"', "allow_direct is 'no'.*true or false"),
    ("allow_direct = false", 'fresh_ledger = "never"', "fresh_ledger is 'never'.*'wait' or 'allow'"),
    (
        "allow_direct = false",
        'fresh_ledger = "allow"\nfresh_ledger_wait_s = 60',
        r"policy\.fresh_ledger_wait_s is 60; allowed is nothing beside fresh_ledger = 'allow'",
    ),
    (
        "allow_direct = false",
        'fresh_ledger = "allow"\nenrolment_wait_s = 60',
        r"policy\.enrolment_wait_s is 60; allowed is nothing beside fresh_ledger = 'allow'",
    ),
    (
        "allow_direct = false",
        'largest_chance = "1/100"',
        r"policy\.largest_chance is '1/100'; allowed is only with trust = 'no operator'",
    ),
    ("allow_direct = false", "largest_expected_answers = 3", "largest_expected_answers is 3; allowed is only with"),
    (
        'trust = "one honest operator"\nbudget_period_s = 2592000\nallow_direct = false',
        'trust = "no operator"\nallow_direct = true',
        r"policy\.allow_direct is true; allowed is nothing but false beside trust = 'no operator'",
    ),
    ("[policy]", "[renewal]\nretry_s = 60\n[policy]", r"renewal\.retry_s is 60; allowed is only with a command"),
    ("allow_direct = false", "fresh_ledger_wait_s = 0\nenrolment_wait_s = 60", "enrolment_wait_s is 60.*from 0 to 0"),
    ("allow_direct = false", "allow_dirct = false", "allow_dirct.*'allow_direct'"),
    ('signals = ["Vehicle.CurrentLocation", "Vehicle.Speed"]', 'signals = "Vehicle.Speed"', r"policy\.signals"),
    ('signals = ["Vehicle.CurrentLocation", "Vehicle.Speed"]', 'signals = ["a/b"]', r"policy\.signals"),
    ('id = "beta"', 'id = "alpha"', r"aggregators\.id 'alpha' is given twice"),
    ('id = "beta"', 'id = "Beta"', r"aggregators\[1\]\.id is 'Beta'"),
    ('operator = "University of Bologna"', 'operator = "city of bologna"', "2 distinct operators"),
    (
        base64.b64encode(bytes(range(32))).decode(),
        base64.b64encode(bytes(32)).decode(),
        "signing_public_key.*twice",
    ),
    (base64.b64encode(bytes(range(32))).decode(), "AAAA", r"signing_public_key.*base64 of 32 bytes"),
    (base64.b64encode(bytes(range(32))).decode(), "not base64!", r"signing_public_key.*base64"),
    ('grpc_endpoint = "127.0.0.1:7411"', 'grpc_endpoint = "127.0.0.1:70000"', "grpc_endpoint.*1 to 65535"),
    ('grpc_endpoint = "127.0.0.1:7411"', 'grpc_endpoint = "http://x:1"', "grpc_endpoint.*host:port"),
    ('grpc_endpoint = "127.0.0.1:7411"', "", r"grpc_endpoint is missing in every entry"),
    ('file = "speed.txt"', 'fil = "speed.txt"', r'line \d+: signals\."Vehicle\.Speed"\.fil.*\'file\''),
    ('file = "speed.txt"', 'file = "speed.txt"\nvalue = 3', "exactly one"),
    ('file = "speed.txt"', "value = [1]", r"value is \[1\]"),
    ('file = "speed.txt"', "value = nan", r"value is nan; allowed is a number"),
    ("[policy]", "[delivery]\nspread = 0\n[policy]", r"delivery\.spread is 0"),
    ("[policy]", "[delivery]\nretry_base_s = 10\nretry_cap_s = 5\n[policy]", r"retry_cap_s is 5.*at least"),
    ("[policy]", "[delivery]\nsession_lifetime_s = 1\n[policy]", r"session_lifetime_s is 1"),
    ("[device]", "delivery = 5\n[device]", "delivery is 5; allowed is a table"),
    ("[device]", "\ufeff[device]", "not TOML"),
]


def test_a_wrong_line_is_refused_by_name(write: Callable[[str], Path]) -> None:
    for old, new, said in BAD_LINES:
        assert old in GOOD

        message = said_by(ConfigError, load_settings, write(GOOD.replace(old, new, 1)))

        assert re.search(said, message), new
        assert "\n" not in message, new
        assert "device.toml" in message, new


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('broker = "192.0.2.1:1883"', r"mqtt\.broker.*loopback without TLS"),
        ('broker = "127.0.0.1:1883"\nclient_certificate = true', "only together with ca_file"),
        ('broker = "b:1883"\nca_file = "device.crt"\ninsecure = true', r"mqtt\.insecure is true.*only without ca_file"),
        ('broker = "127.0.0.1:1883"\npassword_file = "device.key"', "only together with username"),
        ('broker = "127.0.0.1:1883"\nusername = "u"\npassword_file = "device.crt"', "0600"),
    ],
)
def test_a_broker_is_not_spoken_to_in_the_open(write: Callable[[str], Path], table: str, said: str) -> None:
    text = GOOD.replace('transport = "grpc"', 'transport = "mqtt"').replace('broker = "127.0.0.1:1884"', table)

    with pytest.raises(ConfigError, match=said):
        load_settings(write(text))


def test_plaintext_beyond_this_machine_needs_insecure(write: Callable[[str], Path]) -> None:
    table = 'broker = "192.0.2.1:1883"\ninsecure = true'
    text = GOOD.replace('transport = "grpc"', 'transport = "mqtt"').replace('broker = "127.0.0.1:1884"', table)

    settings = load_settings(write(text))

    assert settings.mqtt is not None
    assert settings.mqtt.insecure


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_key_others_may_read_is_refused(write: Callable[[str], Path], tmp_path: Path, mode: int) -> None:
    path = write(GOOD)
    (tmp_path / "device.key").chmod(mode)

    with pytest.raises(ConfigError, match=rf"key_file.*0{mode:o}.*chmod 600"):
        load_settings(path)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 5000, b"#" * (1 << 20 | 1)])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "device.toml"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=r"device\.toml"):
        load_settings(path)


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigError, match="not a file"):
            load_settings(path)


def test_a_certificate_file_that_is_none_is_refused_before_anything_runs(write: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="certificate_file"):
        Device.from_config(write(GOOD))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spread", Fraction(11, 10)),
        ("poll_interval_s", 0),
        ("call_timeout_s", math.nan),
        ("retry_base_s", -1),
        ("session_lifetime_s", 10**7),
    ],
)
def test_a_program_s_own_delivery_keeps_to_the_limits(key: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{key} is .*; allowed is more than 0 and at most"):
        DeliverySettings(**{key: value})  # type: ignore[arg-type]

"""One grammar of "host:port" for whoever reads one: windows, descriptors, every configuration, the command line."""

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fleetcount.keys.describing import check_names, encode_descriptor
from fleetcount.keys.descriptors import read_descriptor
from fleetcount_aggregator.config import MqttTable, PeerTable
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import ENDPOINT
from fleetcount_relay.config import UpstreamTable
from fleetcount_transport.settings import read_settings
from fleetcount_transport.toml_table import Source, Table

from tests.support.protocol_samples import aggregator, keyed_aggregator, sampling_window

GOOD = (
    *("a:1", "a-b.example:65535", "127.0.0.1:80", "[::1]:7411", "[2001:db8::2]:1", "localhost:7411"),
    f"{'a' * 63}.{'b' * 63}.{'c' * 63}.{'d' * 61}:65535",
)
BAD = (
    *("host", ":80", "host:", "host:0", "host:00080", "host:65536", "host:-1", "host:+1", "host:８０", "host:8_0"),
    *("a b:80", "host:80 ", " host:80", "host:80\n", "http://x:1", "user@host:1", "host:1/path"),
    *("::1:80", "[::1]", "[]:80"),
    *("1.2.3:80", "1.2.3.256:80", "01.2.3.4:80", "[1.2.3.4]:80", "[fe80::1%eth0]:80"),
    *("a..b:80", "-a:80", "a-:80", "a_b:80", "a.example.:80"),
    *("é.example:80", f"{'a' * 64}:80", f"{'a.' * 127}a:80"),
)


def in_window(endpoint: str, _: Path) -> None:
    sampling_window(aggregators=(aggregator(0), replace(aggregator(1), grpc_endpoint=endpoint)))


def in_descriptor(endpoint: str, directory: Path) -> None:
    path = directory / "descriptor.toml"
    path.write_text(encode_descriptor(replace(keyed_aggregator(1), mqtt_broker=endpoint)), encoding="utf-8")
    read_descriptor(path)


def in_table(key: str) -> Callable[[str, Path], None]:
    def read(endpoint: str, _: Path) -> None:
        Table(Source("a.toml"), "", {key: endpoint}, (key,)).endpoint(key)

    return read


def in_aggregator(endpoint: str, _: Path) -> None:
    root = Table(Source("a.toml"), "", {"mqtt": {"broker": endpoint, "insecure": True}}, None)
    read_settings(root, "mqtt", MqttTable)


def in_relay(endpoint: str, _: Path) -> None:
    root = Table(Source("relay.toml"), "", {"aggregators": {"id": "alpha", "endpoint": endpoint}}, None)
    read_settings(root, "aggregators", UpstreamTable)


def in_peer(endpoint: str, _: Path) -> None:
    key = tomllib.loads(f'key = "{"A" * 43}="')["key"]
    peer = {"id": "beta", "operator": "City", "endpoint": endpoint, "signing_public_key": key}
    read_settings(Table(Source("a.toml"), "", {"peer": peer}, None), "peer", PeerTable)


def in_command(endpoint: str, _: Path) -> None:
    check_names("bologna", "127.0.0.1", endpoint)


READERS = {
    "window": in_window,
    "descriptor": in_descriptor,
    "a device's broker": in_table("broker"),
    "a device's relay": in_table("relay"),
    "an aggregator's broker": in_aggregator,
    "an aggregator's peer": in_peer,
    "a relay's upstream": in_relay,
    "the command line": in_command,
}


def said(reader: str, endpoint: str, folder: Path) -> str:
    """Return what a reader says of an endpoint that it refuses, "" for one that it takes."""
    try:
        READERS[reader](endpoint, folder)
    except UsageError as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize("reader", READERS)
def test_a_good_endpoint_is_taken_by_everybody(reader: str, tmp_path: Path) -> None:
    assert {endpoint: words for endpoint in GOOD if (words := said(reader, endpoint, tmp_path))} == {}


@pytest.mark.parametrize("reader", READERS)
def test_a_bad_endpoint_is_refused_by_everybody_with_the_same_words(reader: str, tmp_path: Path) -> None:
    words = {endpoint: said(reader, endpoint, tmp_path) for endpoint in BAD}

    assert {endpoint: one for endpoint, one in words.items() if ENDPOINT not in one or "\n" in one} == {}

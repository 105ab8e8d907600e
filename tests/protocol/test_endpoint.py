"""The grammar of an endpoint; every reader that uses it is in tests/transport/test_endpoints.py."""

import pytest
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import is_loopback, split_endpoint, split_listener


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("192.0.2.1", False),
        ("localhost.example", False),
    ],
)
def test_loopback_is_only_this_machine(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_an_endpoint_is_split_with_brackets_for_version_six() -> None:
    assert split_endpoint("[::1]:80") == ("::1", 80)
    for wrong in ("host", "host:0", "host:65536", ":80", "host:８０", "a b:80", "host:80 "):
        with pytest.raises(UsageError, match="host:port with a port from 1 to 65535"):
            split_endpoint(wrong)


@pytest.mark.parametrize("host", ["fleet_alpha_1", "alpha.fleet.svc.cluster.local."])
def test_where_the_host_is_wrong_and_the_port_is_right_the_refusal_speaks_of_the_host(host: str) -> None:
    with pytest.raises(UsageError, match=r"a host that is an address or a name .*no '_', no '\.' at its end"):
        split_endpoint(f"{host}:7411")


def test_only_a_listener_may_leave_the_port_to_the_machine() -> None:
    assert split_listener("[::]:0") == ("::", 0)
    with pytest.raises(UsageError, match="port from 1"):
        split_endpoint("127.0.0.1:0")
    with pytest.raises(UsageError, match="port from 0"):
        split_listener("127.0.0.1:00")


def test_a_zone_names_an_interface_of_one_machine_and_is_no_endpoint() -> None:
    with pytest.raises(UsageError, match=r"fe80::1%eth0"):
        split_endpoint("[fe80::1%eth0]:7411")

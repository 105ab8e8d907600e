"""The one place that makes a gRPC channel: to whom it may lead without TLS, and what every channel has in common.

It must not call anything; attempts, delays and deadlines are the caller's.
"""

from collections.abc import Iterable
from typing import Final

import grpc
import grpc.aio
from fleetcount_protocol.errors import UsageError
from fleetcount_protocol.ids import is_loopback, split_endpoint

Options = Iterable[tuple[str, int | str]]

_COMMON: Final = {
    # A proxy that the environment names would carry even calls to this machine to another one.
    "grpc.enable_http_proxy": 0,
    # Attempts and their jitter are decided by the caller alone.
    "grpc.enable_retries": 0,
    "grpc.initial_reconnect_backoff_ms": 200,
    "grpc.max_reconnect_backoff_ms": 5_000,
    # A silent peer is noticed after 30 s, also between calls.
    "grpc.keepalive_time_ms": 20_000,
    "grpc.keepalive_timeout_ms": 10_000,
}

DEVICE_OPTIONS: Final = (
    # Else gRPC pings after every answer to learn how much the path holds, which is half of all packets, and lets who
    # sends much have ever more on its way unread than 64 KiB of a call.
    ("grpc.http2.bdp_probe", 0),
)
"""Options of both ends of a device's connection, which carries little, seldom."""


def open_channel(
    endpoint: str,
    credentials: grpc.ChannelCredentials | None,
    *,
    name: str = "",
    options: Options = (),
    proxy: str = "",
    plaintext_anywhere: bool = False,
) -> grpc.aio.Channel:
    """Return a channel to "host:port" that goes there directly, whatever proxy the environment names.

    With `credentials` it is TLS, and the certificate must carry `name`, or with "" the host. Without, it is plaintext
    and leads to this machine only, or anywhere with `plaintext_anywhere`. `proxy` is "host:port" of an HTTP proxy that
    the configuration names, "" for none. `options` are gRPC's own; they win over what all channels have in common.

    Raises:
        UsageError: plaintext to another machine.
    """
    chosen: dict[str, int | str] = {**_COMMON, **dict(options)}
    if proxy:
        chosen |= {"grpc.enable_http_proxy": 1, "grpc.http_proxy": f"http://{proxy}"}
    if credentials is None:
        if not plaintext_anywhere and not is_loopback(split_endpoint(endpoint)[0]):
            raise UsageError(f"{endpoint} is not on this machine; allowed without TLS is loopback only")
        return grpc.aio.insecure_channel(endpoint, options=list(chosen.items()))
    if name:
        chosen["grpc.ssl_target_name_override"] = name
    return grpc.aio.secure_channel(endpoint, credentials, options=list(chosen.items()))

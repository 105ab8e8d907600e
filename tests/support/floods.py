"""Attackers who only want to be in the way: a process of its own that holds connections or calls, or repeats one call.

    python -m tests.support.floods FLOOD.json

Prints a line of JSON once its connections or first calls are made, and goes on until it is killed.
"""

import asyncio
import base64
import contextlib
import json
import resource
import secrets
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.certificates import Credential
from fleetcount_protocol.channel.session import DeviceIdentity, new_session
from fleetcount_protocol.wire.device_stream import DEVICE_MESSAGE, DeviceMessage

from tests.support.deployment import Deployed
from tests.support.expiries import on_the_hour
from tests.support.pem import pem_pair
from tests.support.processes import ChildProcess

_REST_S = 0.02


@contextmanager
def _flood(directory: Path, **settings: object) -> Iterator[None]:
    name = f"flood-{secrets.token_hex(4)}"
    path = directory / f"{name}.json"
    path.write_text(json.dumps(settings))
    path.chmod(0o600)
    child = ChildProcess.of(name, [sys.executable, "-m", "tests.support.floods", str(path)], directory)
    child.start()
    try:
        child.ready()
        yield
        assert child.running, child.last_lines(5)
    finally:
        child.reap()


@contextmanager
def sockets(directory: Path, port: int, count: int) -> Iterator[None]:
    """Hold so many TCP connections to a port of this machine that say nothing, each made again when it is ended."""
    with _flood(directory, kind="sockets", port=port, count=count):
        yield


@contextmanager
def calls(
    deployment: Deployed,
    position: int,
    callers: Sequence[Credential | DeviceIdentity],
    method: str,
    message: bytes | None,
    at_once: int,
    *,
    peer: bool = False,
) -> Iterator[None]:
    """Make so many calls at once under each certificate, again and again; without a message a call sends none ever."""
    plan = deployment.written.plans[position]
    with _flood(
        deployment.root,
        kind="calls",
        endpoint=f"127.0.0.1:{plan.peer_port if peer else plan.device_port}",
        server=str(plan.aggregator_id),
        authorities=(deployment.written.root / "ca" / "aggregators.crt").read_text(),
        callers=[[text.decode() for text in pem_pair(one)] for one in callers],
        method=method,
        message=None if message is None else base64.b64encode(message).decode(),
        at_once=at_once,
    ):
        yield


def bad_requests(deployment: Deployed, position: int, device: DeviceIdentity, count: int = 64) -> bytes:
    """Return a message that asks for sessions, none of whose signatures holds."""
    aggregator = deployment.written.aggregators[position]
    expiry = on_the_hour(time.time(), 24)
    made = [new_session(aggregator, aggregator.hpke_keys[0], device, expiry, SystemRandom())[0] for _ in range(count)]
    spoilt = [replace(one, signature=made[0].signature) for one in made[1:]]
    return DEVICE_MESSAGE.encode(DeviceMessage(requests=(*spoilt, replace(made[0], signature=made[1].signature))))


# The process.


async def _hold_sockets(port: int, count: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held = 0
    all_tried = asyncio.Event()

    async def hold() -> None:
        nonlocal held
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, family=socket.AF_INET)
                held += 1
                if held >= count:
                    all_tried.set()
                with contextlib.suppress(OSError):
                    await reader.read(1)
                writer.close()
            await asyncio.sleep(1.0)

    holders = [asyncio.create_task(hold()) for _ in range(count)]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            await all_tried.wait()
    print(json.dumps({"event": "ready", "made": held}), flush=True)
    await asyncio.gather(*holders)


async def _call(
    endpoint: str,
    server: str,
    authorities: str,
    callers: list[list[str]],
    method: str,
    message: str | None,
    at_once: int,
) -> None:
    data = None if message is None else base64.b64decode(message)

    async def work(channel: grpc.aio.Channel) -> None:
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                if data is None:
                    await channel.stream_stream(method)().code()
                else:
                    await channel.unary_unary(method)(data, timeout=60)
            await asyncio.sleep(_REST_S)

    workers = []
    for key, certificate in callers:
        credentials = grpc.ssl_channel_credentials(authorities.encode(), key.encode(), certificate.encode())
        options = [("grpc.ssl_target_name_override", server), ("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.aio.secure_channel(endpoint, credentials, options=options)
        await channel.channel_ready()
        workers += [asyncio.create_task(work(channel)) for _ in range(at_once)]
    await asyncio.sleep(0.5)
    print(json.dumps({"event": "ready"}), flush=True)
    await asyncio.gather(*workers)


def main(path: Path) -> None:
    """Be the flood that a file describes."""
    settings = json.loads(path.read_text())
    asyncio.run({"sockets": _hold_sockets, "calls": _call}[settings.pop("kind")](**settings))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

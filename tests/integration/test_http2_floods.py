"""Frames of HTTP/2 that cost a server more than their sender (F55): pings, and calls that are taken back at once."""

import asyncio
import ssl
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.messages import SessionAccepted

from tests.attack.test_devices import asking
from tests.support.deployment import Deployed
from tests.support.fleet import identity_of, transport_of
from tests.support.pem import pem_pair
from tests.support.processes import pace
from tests.support.raw_calls import DEVICE, healthy

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

FRAMES = 20_000
HEADERS, RST_STREAM, SETTINGS, PING = 1, 3, 4, 6
END_HEADERS, ACK = 4, 1
CANCEL = 8
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, stream: int, payload: bytes, flags: int = 0) -> bytes:
    """Return a frame (RFC 9113, section 4.1)."""
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def text(value: str) -> bytes:
    """Return a string of HPACK, not compressed (RFC 7541, section 5.2)."""
    return bytes([len(value)]) + value.encode()


CALL = (
    b"\x83\x87"  # POST, https: entries 3 and 7 of the static table
    + (b"\x04" + text(DEVICE + "Answer"))
    + (b"\x01" + text("alpha"))
    + (b"\x0f\x10" + text("application/grpc"))  # content-type, entry 31
    + (b"\x00" + text("te") + text("trailers"))
)
"""The headers of a call."""
LAST = frame(PING, 0, b"the last")
ANSWER = frame(PING, 0, b"the last", ACK)


def pings() -> Iterator[bytes]:
    for number in range(FRAMES):
        yield frame(PING, 0, number.to_bytes(8))


def resets() -> Iterator[bytes]:
    """Begin calls and take each back before its answer: so they never count as open."""
    for stream in range(1, 2 * FRAMES, 2):
        yield frame(HEADERS, stream, CALL, END_HEADERS) + frame(RST_STREAM, stream, CANCEL.to_bytes(4))


async def flood(target: Deployed, directory: Path, device: DeviceIdentity, frames: Iterable[bytes]) -> bytes:
    """Send frames to the leader's device port over TLS as a device; return what it said until it had read them all.

    Or until it hung up.
    """
    for name, pem in zip(("key", "crt"), pem_pair(device), strict=True):
        (directory / f"flood.{name}").write_bytes(pem)
    context = ssl.create_default_context(cafile=str(target.written.root / "ca" / "aggregators.crt"))
    context.check_hostname = False
    context.load_cert_chain(directory / "flood.crt", directory / "flood.key")
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection("127.0.0.1", target.written.plans[0].device_port, ssl=context)
    writer.write(PREFACE + frame(SETTINGS, 0, b"") + frame(SETTINGS, 0, b"", ACK))
    said = bytearray(await reader.readexactly(9))
    hearing = asyncio.create_task(hear(reader, said))
    with suppress(ConnectionError):
        for number, one in enumerate(frames):
            writer.write(one)
            if number % 100 == 0:
                await writer.drain()
                await asyncio.sleep(0)  # What it says when it hangs up is read before it is lost.
        writer.write(LAST)
        await writer.drain()
    await asyncio.wait_for(hearing, 30 * pace())
    writer.transport.abort()
    return bytes(said)


async def hear(reader: asyncio.StreamReader, said: bytearray) -> None:
    """Collect what the server says until it has answered the last frame, or hung up."""
    with suppress(ConnectionError):
        while ANSWER not in said and (part := await reader.read(1 << 16)):
            said += part


async def opens(target: Deployed, device: DeviceIdentity) -> None:
    """Let a device open a session with the leader."""
    transport = transport_of(target, device, "grpc", timeout_s=30 * pace())
    try:
        [answer] = await transport.open_sessions(target.written.aggregators[0], [asking(target, device)])
    finally:
        await transport.close()
    assert isinstance(answer, SessionAccepted), answer


async def served_beside(target: Deployed, flooding: Awaitable[bytes]) -> bytes:
    """Let new devices open sessions as long as a flood lasts; return what was said to it."""
    under_way = asyncio.ensure_future(flooding)
    await opens(target, identity_of(target))
    while not under_way.done():
        await opens(target, identity_of(target))
    return await under_way


async def test_who_floods_with_pings_is_hung_up_on_and_others_are_served(target: Deployed, tmp_path: Path) -> None:
    async with healthy(target):
        said = await served_beside(target, flood(target, tmp_path, identity_of(target), pings()))

    assert ANSWER not in said
    assert len(said) < FRAMES, "most pings were answered"


async def test_calls_that_are_taken_back_at_once_hold_nothing_and_others_are_served(
    target: Deployed, tmp_path: Path
) -> None:
    device = identity_of(target)
    async with healthy(target):
        await served_beside(target, flood(target, tmp_path, device, resets()))
        await opens(target, device)

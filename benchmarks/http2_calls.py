"""gRPC calls of a hostile load over one connection, as cheap as they go: their cost is not the aggregator's.

Just enough of HTTP/2 (RFC 9113) to make calls and to see which were answered; it understands no header.
"""

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_HEAD_BYTES: Final = 9
_WINDOW_BYTES: Final = 65_535
_LARGEST_FRAME: Final = 16_384


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _integer(value: int, bits: int) -> bytes:
    """Return an integer with a prefix of so many bits (RFC 7541, section 5.1)."""
    most = (1 << bits) - 1
    if value < most:
        return bytes((value,))
    out, value = bytearray((most,)), value - most
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _headers(path: str) -> bytes:
    """Return the block of headers of a gRPC call: literals that nobody has to remember."""
    wanted = {
        ":method": "POST",
        ":scheme": "https",
        ":path": path,
        ":authority": "aggregator",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    literals = (
        b"\0" + _integer(len(name), 7) + name.encode() + _integer(len(value), 7) + value.encode()
        for name, value in wanted.items()
    )
    return b"".join(literals)


class HostileConnection(asyncio.Protocol):
    """A connection of one identity, made anew when it ends."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._next = 1
        self._room = _WINDOW_BYTES
        self._waiting: dict[int, asyncio.Future[str]] = {}

    @classmethod
    async def open(cls, place: str, tls: ssl.SSLContext, address: str) -> "HostileConnection":
        """Return a connection to "host:port" from a local address. Raises OSError."""
        host, _, port = place.rpartition(":")
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(
            cls, host, int(port), ssl=tls, server_hostname="", local_addr=(address, 0)
        )
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin HTTP/2."""
        assert isinstance(transport, asyncio.Transport)  # Of a protocol that is no datagram's.
        self._transport = transport
        transport.write(_PREFACE + _frame(_SETTINGS, 0, 0, b""))

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""
        return self._transport is not None

    async def call(self, path: str, message: bytes | None, timeout_s: float) -> str:
        """Call a method with one message, or none ever; return what became of it."""
        if self._transport is None:
            return "not connected"
        stream, self._next = self._next, self._next + 2
        body = b"" if message is None else b"\0" + len(message).to_bytes(4) + message
        if len(body) > self._room:
            return "not made: what was said before is not taken"
        self._room -= len(body)
        frames = [_frame(_HEADERS, _END_HEADERS, stream, _headers(path))]
        cut = range(0, len(body), _LARGEST_FRAME)
        frames += [_frame(_DATA, 0, stream, body[begin : begin + _LARGEST_FRAME]) for begin in cut]
        if message is not None:
            frames.append(_frame(_DATA, _END_STREAM, stream, b""))
        self._transport.write(b"".join(frames))
        return await self._end_of(stream, timeout_s)

    async def begin(self, path: str, parts: Sequence[bytes], timeout_s: float) -> str:
        """Begin a call whose message comes in parts, each sent alone, and never ends; take the call back at the end."""
        if self._transport is None:
            return "not connected"
        stream, self._next = self._next, self._next + 2
        self._room -= sum(map(len, parts))
        self._transport.write(_frame(_HEADERS, _END_HEADERS, stream, _headers(path)))
        for part in parts:
            await asyncio.sleep(0)
            self._transport.write(_frame(_DATA, 0, stream, part))
        return await self._end_of(stream, timeout_s)

    async def _end_of(self, stream: int, timeout_s: float) -> str:
        """Return what becomes of a call; one that is not answered in time is taken back."""
        answered = self._waiting[stream] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                return await answered
        except TimeoutError:
            if self._transport is not None:
                self._transport.write(_frame(_RESET, 0, stream, (8).to_bytes(4)))
            return "not answered in time"
        finally:
            self._waiting.pop(stream, None)

    def data_received(self, data: bytes) -> None:
        """Take the frames that are whole."""
        self._received += data
        while len(self._received) >= _HEAD_BYTES:
            length = int.from_bytes(self._received[:3])
            if len(self._received) < _HEAD_BYTES + length:
                return
            head, payload = self._received[:_HEAD_BYTES], self._received[_HEAD_BYTES : _HEAD_BYTES + length]
            self._received = self._received[_HEAD_BYTES + length :]
            self._take(head[3], head[4], int.from_bytes(head[5:9]), payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind in (_SETTINGS, _PING) and not flags & _ACK and self._transport is not None:
            self._transport.write(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind == _WINDOW and not stream:
            self._room += int.from_bytes(payload)
        elif kind == _DATA:
            self._end(stream, "answered")
        elif kind == _RESET or (kind == _HEADERS and flags & _END_STREAM):
            self._end(stream, "refused")

    def _end(self, stream: int, how: str) -> None:
        waiting = self._waiting.get(stream)
        if waiting is not None and not waiting.done():
            waiting.set_result(how)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of all calls."""
        self._transport = None
        for stream in list(self._waiting):
            self._end(stream, "connection ended")

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            with suppress(OSError):
                self._transport.abort()

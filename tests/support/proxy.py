"""A TCP proxy that treats connections badly: cuts them after so many bytes, delays, slows down, or refuses them."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

_PIECE = 16_384
_PACKET = 1_400
_SENT_AGAIN_S = 0.2
"""After how long a lost packet is sent again, twice as long each time (RFC 6298; Linux waits at least so long)."""


@dataclass(frozen=True)
class Fate:
    """What becomes of one connection: bytes that pass each way before it is cut (None: all), delay of each piece.

    Its line carries so many `bytes_per_s` each way (None: all there are) and loses a share of the packets: what is lost
    comes when TCP would have sent it again, and holds up all behind it.
    """

    upstream: int | None = None
    downstream: int | None = None
    delay_s: float = 0.0
    bytes_per_s: float | None = None
    lost: float = 0.0


class Proxy:
    """Listens on a free port of loopback and passes connections on to `target`; `fate` decides about each."""

    def __init__(self, target: str, fate: Callable[[int], Fate]) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._fate = fate
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self._chance = random.Random(host)
        self.connections = 0
        self.cuts = 0
        self.losses = 0

    async def start(self, port: int = 0) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)

    @property
    def address(self) -> str:
        """host:port."""
        if self._server is None:
            raise AssertionError("the proxy has not been started")
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)
        fate = self._fate(self.connections)
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        both = (
            asyncio.ensure_future(self._pump(reader, far_writer, fate.upstream, fate)),
            asyncio.ensure_future(self._pump(far_reader, writer, fate.downstream, fate)),
        )
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            # A reset, not a polite end: what was on its way is lost.
            writer.transport.abort()
            far_writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int | None, fate: Fate
    ) -> None:
        """Pass bytes on until the end, or until the budget is used up; the piece that is too long passes in part."""
        with suppress(ConnectionError):
            while piece := await reader.read(_PIECE if fate.bytes_per_s is None and not fate.lost else _PACKET):
                await asyncio.sleep(fate.delay_s + self._on_its_way_s(len(piece), fate))
                if budget is not None:
                    piece, budget = piece[:budget], budget - len(piece)
                writer.write(piece)
                await writer.drain()
                if budget is not None and budget <= 0:
                    self.cuts += 1
                    return

    def _on_its_way_s(self, size: int, fate: Fate) -> float:
        """Return how long a packet takes on a line that is slow, or loses it, several times perhaps."""
        way_s = 0.0 if fate.bytes_per_s is None else size / fate.bytes_per_s
        again_s = _SENT_AGAIN_S
        while self._chance.random() < fate.lost:
            self.losses += 1
            way_s, again_s = way_s + again_s, 2 * again_s
        return way_s


@asynccontextmanager
async def proxied(target: str, fate: Callable[[int], Fate], port: int = 0) -> AsyncIterator[Proxy]:
    """Run a proxy."""
    proxy = Proxy(target, fate)
    await proxy.start(port)
    try:
        yield proxy
    finally:
        await proxy.stop()

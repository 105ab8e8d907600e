"""A small web server on this machine: the headers of every answer, the check of the host, its start and its end.

It must not know the content of pages, and opens no browser.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, cast

import uvicorn
from fleetcount_protocol.errors import MachineError, UsageError
from fleetcount_transport.strangers import Unfinished
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from fleetcount_site.pages import ASSETS, POLICY, assets

LOOPBACK: Final = "127.0.0.1"
HEADERS: Final = {
    "content-security-policy": POLICY + "; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""The headers of every answer: a page loads its own files alone, appears in no frame, and sends no referrer."""
_GRACE_S: Final = 1
_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
_BACKLOG: Final = 128


def secured(routes: Sequence[BaseRoute], *, local: bool = True) -> Starlette:
    """Return an application of routes whose every answer has `HEADERS`, with the files of `assets` below `ASSETS`.

    With `local` a request whose Host is not this machine is refused: otherwise a foreign page could read the answers by
    DNS rebinding, with a name that resolves to this machine.
    """
    asked = [Middleware(_LocalOnly)] if local else []
    return Starlette(routes=[*routes, asset_route()], middleware=[Middleware(_Secured), *asked])


def asset_route() -> Route:
    """Return the route of the files that pages share; others are not found."""

    async def found(request: Request) -> Response:
        path = assets().get(request.path_params["name"])
        return PlainTextResponse("not found\n", status_code=404) if path is None else FileResponse(path)

    return Route(f"/{ASSETS}/{{name:path}}", found, methods=["GET"])


def listen(host: str = LOOPBACK, port: int = 0) -> socket.socket:
    """Return a socket that listens; port 0 takes a free one.

    Raises:
        UsageError: the host is no address of this machine, or the port is in use or out of range.
    """
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        raise UsageError(f"host is {host[:80]!r}, allowed: an address of this machine, such as {LOOPBACK}") from None
    if not 0 <= port <= 65_535:
        raise UsageError(f"port is {port}, allowed: 0 (a free one) to 65535")
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except PermissionError as error:
        listener.close()
        raise UsageError(f"port {port} is not for this user ({error.strerror}); take one from 1024 on, or 0") from error
    except OSError as error:
        listener.close()
        text = f"cannot listen on {host} port {port}: {error.strerror}"
        raise UsageError(f"{text}; give another port, or 0 for a free one") from error
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the address of a listening socket for a browser, as in "http://127.0.0.1:8080/"."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def server(app: ASGIApp, ready: Callable[[], None] = lambda: None) -> uvicorn.Server:
    """Return a server of an application, for an event loop that its caller has: `await server(app).serve([listener])`.

    `ready` is called once it answers and a Ctrl-C ends it in order. Setting its attribute should_exit ends it; streams
    that are still open are cut off after a second.
    """
    waiting = Unfinished()
    config = uvicorn.Config(
        app,
        # It is called as the class is: with the arguments of a protocol.
        http=cast("type[asyncio.Protocol]", partial(_Connection, waiting)),
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="off",
        timeout_graceful_shutdown=_GRACE_S,
        limit_concurrency=256,
    )
    return _Server(config, ready)


def run(app: ASGIApp, listener: socket.socket, ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or SIGTERM; `ready` is called with the address once the server answers there.

    Raises:
        MachineError: the server cannot start.
        KeyboardInterrupt: Ctrl-C, after the answers under way.
    """
    running = server(app, lambda: ready(address_of(listener)))
    try:
        running.run(sockets=[listener])
    finally:
        listener.close()
    if not running.started:
        raise MachineError("the web server did not start")


class _Server(uvicorn.Server):
    """A server that says when it answers: before, a Ctrl-C would meet an event loop that is half made."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so; a server that could not start leaves `started` false."""
        await super().startup(sockets)
        if self.started:
            self._ready()


class _Connection(H11Protocol):
    """A connection of HTTP with a time for the head of each request, which uvicorn does not have."""

    def __init__(self, waiting: Unfinished, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._waiting = waiting

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waiting.begin(self, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle: Any = self.cycle  # None before the first request, though its type does not say so.
        if cycle is None or cycle.response_complete:  # A head has begun, and is not whole.
            self._waiting.begin(self, self.transport.abort)
        else:
            self._waiting.end(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.end(self)
        super().connection_lost(exc)


class _Secured:
    """Adds the headers to every answer; it does not buffer streams."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-cache")
            await send(message)

        await self._app(scope, receive, sent)


class _LocalOnly:
    """Refuses requests that name another host than this machine."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_local(Headers(scope=scope).get("host", "")):
            refused = PlainTextResponse("this server answers for this machine alone\n", status_code=421)
            await refused(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_local(host: str) -> bool:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host) in _LOCAL_NAMES

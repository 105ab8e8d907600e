"""The HTTP pages of a server for its operator's programs: metrics, liveness, readiness with reasons.

GET and HEAD alone, one request per connection, under names that a foreign page cannot have. It must not depend on a
service: the caller gives the content of the pages.
"""

import asyncio
import contextlib
import ipaddress
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from fleetcount_protocol.errors import MachineError
from fleetcount_protocol.ids import split_listener
from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from fleetcount_transport.logs import log
from fleetcount_transport.strangers import Unfinished

_REQUEST_BYTES: Final = 8192
_MOST_CONNECTIONS: Final = 64
_BACKLOG: Final = 16
"""Connections accepted at once: few beside the descriptors that are kept for the store."""
_TEXT: Final = "text/plain; charset=utf-8"
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Of every answer: what a browser is shown loads nothing, and no page of another origin reads it."""
# The moment at which a counter first counted may be that of a report.
disable_created_metrics()  # type: ignore[no-untyped-call]


class PageRequest(NamedTuple):
    """A request of a page: the values of its query by name, and its Accept header."""

    query: Mapping[str, Sequence[str]]
    accept: str


class Page(NamedTuple):
    """An answer."""

    status: HTTPStatus
    content_type: str
    body: bytes


Pages = Mapping[str, Callable[[PageRequest], Page]]
"""The function of each path, which is called for each request, on the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One condition of readiness: its name, from a closed list, whether it holds, and the problem or a remark."""

    name: str
    ok: bool
    reason: str = ""


def json_page(status: HTTPStatus, value: Any) -> Page:
    """Return a page with a value as JSON."""
    return Page(status, "application/json", json.dumps(value).encode() + b"\n")


def metrics_page(registry: CollectorRegistry) -> Callable[[PageRequest], Page]:
    """Return the page of a registry: OpenMetrics 1.0 if accepted, else the Prometheus text format 0.0.4."""

    def page(asked: PageRequest) -> Page:
        encode, content_type = choose_encoder(asked.accept)
        return Page(HTTPStatus.OK, content_type, encode(registry))

    return page


def health_pages(checks: Callable[[], Sequence[Check]]) -> Pages:
    """Return `/healthz`, answered while the event loop runs, and `/readyz`, 503 while a check fails.

    `/readyz?exclude=NAME` leaves a check out of the verdict: a load balancer of devices excludes `peers`, because
    devices may upload while another aggregator is away.
    """

    def ready(asked: PageRequest) -> Page:
        found, left_out = checks(), asked.query.get("exclude", ())
        names = [check.name for check in found]
        unknown = [name for name in left_out if name not in names]
        if unknown:
            text = f"exclude is {unknown[0][:40]!r}; allowed: {', '.join(names)}\n"
            return Page(HTTPStatus.BAD_REQUEST, _TEXT, text.encode())
        is_ready = all(check.ok for check in found if check.name not in left_out)
        status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return json_page(status, {"ready": is_ready, "checks": [asdict(check) for check in found]})

    return {"/healthz": lambda _: json_page(HTTPStatus.OK, {"alive": True}), "/readyz": ready}


async def serve_pages(listen: str, pages: Pages, host: str = "") -> tuple[asyncio.Server, int]:
    """Serve pages at "host:port"; return the server and its port.

    It answers under addresses and names without a dot, such as localhost, and under `host`: a name that somebody else
    lets point to this machine would make its answers readable for that one's pages (DNS rebinding).

    Raises:
        MachineError: the address is in use, or not an address of this machine.
    """

    waiting = Unfinished(_MOST_CONNECTIONS)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting.begin(writer, writer.transport.abort)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.write(_answer(pages, await reader.readuntil(b"\r\n\r\n"), host))
            await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        waiting.end(writer)

    interface, port = split_listener(listen)
    try:
        server = await asyncio.start_server(answer, interface, port, limit=_REQUEST_BYTES, backlog=_BACKLOG)
    except OSError as error:
        raise MachineError(f"cannot listen on {listen}: {error.strerror}") from error
    return server, int(server.sockets[0].getsockname()[1])


_METHODS: Final = ("GET", "HEAD")


def _is_own(name: str, host: str) -> bool:
    """Return whether a Host header is an address, a name without a dot, or this host's name."""
    bare, colon, port = name.rpartition(":")
    bare = (bare if colon and port.isdigit() else name).lower()
    try:
        ipaddress.ip_address(bare.strip("[]"))
    except ValueError:
        return "." not in bare or bare == host.lower()
    return True


def _answer(pages: Pages, request: bytes, host: str) -> bytes:
    """Return the bytes of the answer to a request's head."""
    first, *rest = request.decode("latin-1").split("\r\n")
    method, _, target = first.partition(" ")
    try:
        address = urlsplit(target.partition(" ")[0])
    except ValueError:
        address = urlsplit("")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    page = pages.get(address.path)
    if not _is_own(headers.get("host", ""), host):
        found = Page(HTTPStatus.MISDIRECTED_REQUEST, _TEXT, b"this name is not this server's ([metrics] host)\n")
    elif page is None or method not in _METHODS:
        status = HTTPStatus.NOT_FOUND if method in _METHODS else HTTPStatus.METHOD_NOT_ALLOWED
        found = Page(status, _TEXT, f"allowed: GET {', '.join(pages)}\n".encode())
    else:
        found = _asked(page, address.query, headers.get("accept", ""))
    own = {
        "Content-Type": found.content_type,
        "Content-Length": str(len(found.body)),
        "Connection": "close",
        **_HEADERS,
    }
    head = f"HTTP/1.1 {found.status.value} {found.status.phrase}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in own.items()) + "\r\n"
    # HEAD is answered as GET without the content (RFC 9110, section 9.3.2): monitors and balancers ask so.
    return head.encode() + (b"" if method == "HEAD" else found.body)


def _asked(page: Callable[[PageRequest], Page], query: str, accept: str) -> Page:
    try:
        return page(PageRequest(parse_qs(query, keep_blank_values=True), accept))
    except Exception as error:
        # The top of a request: an error of a page must not end the server.
        log.error("page_failed", error=type(error).__name__)
        return Page(HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, b"internal\n")

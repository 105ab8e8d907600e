"""What programs of the operator read over HTTP: metrics in both formats, liveness, readiness with reasons."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
from fleetcount_protocol.errors import MachineError
from fleetcount_transport.operator_pages import Check, Page, PageRequest, Pages, health_pages, metrics_page, serve_pages
from prometheus_client import CollectorRegistry, Counter

CHECKS = [
    Check(name="store", ok=True),
    Check(name="peers", ok=False, reason="beta: unreachable since 40 s"),
]


async def asked(pages: Pages, request: bytes, host: str = "") -> tuple[int, dict[str, str], str]:
    """Return the status, the headers and the body that a request gets from a server of these pages."""
    server, port = await serve_pages("127.0.0.1:0", pages, host)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = (await reader.read()).decode()
        writer.close()
    finally:
        server.close()
    head, _, body = answer.partition("\r\n\r\n")
    first, *rest = head.split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in rest), body


def get(path: str, accept: str = "*/*") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: here\r\nAccept: {accept}\r\n\r\n".encode()


async def test_ready_says_no_with_every_reason_and_yes_when_all_is_well() -> None:
    status, headers, body = await asked(health_pages(lambda: CHECKS), get("/readyz"))

    assert status == 503
    assert headers["Content-Type"] == "application/json"
    assert int(headers["Content-Length"]) == len(body)
    assert json.loads(body) == {
        "ready": False,
        "checks": [
            {"name": "store", "ok": True, "reason": ""},
            {"name": "peers", "ok": False, "reason": "beta: unreachable since 40 s"},
        ],
    }
    status, _, body = await asked(health_pages(lambda: CHECKS[:1]), get("/readyz"))
    assert (status, json.loads(body)["ready"]) == (200, True)


async def test_a_check_is_left_out_by_its_name_and_a_name_that_is_none_is_refused() -> None:
    pages = health_pages(lambda: CHECKS)

    status, _, body = await asked(pages, get("/readyz?exclude=peers"))
    assert (status, json.loads(body)["ready"]) == (200, True)
    assert (await asked(pages, get("/readyz?exclude=store")))[0] == 503
    status, _, body = await asked(pages, get("/readyz?exclude=peer"))
    assert (status, body) == (400, "exclude is 'peer'; allowed: store, peers\n")


async def test_alive_does_not_ask_whether_it_is_ready() -> None:
    status, _, body = await asked(health_pages(lambda: CHECKS), get("/healthz"))

    assert (status, json.loads(body)) == (200, {"alive": True})


async def test_metrics_come_as_open_metrics_to_who_accepts_them_and_as_text_to_others() -> None:
    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc()
    pages = {"/metrics": metrics_page(registry)}

    _, headers, body = await asked(pages, get("/metrics"))
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert "things_total 1.0" in body
    assert "_created" not in body, "it may be the moment of a report"
    _, headers, body = await asked(pages, get("/metrics", "application/openmetrics-text;version=1.0.0"))
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith("# EOF\n")
    assert "_created" not in body


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/"), 404),
        (get("/metrics/../readyz"), 404),
        (b"POST /healthz HTTP/1.1\r\n\r\n", 405),
        (b"\r\n\r\n", 405),
        (b"GET http://[ HTTP/1.1\r\n\r\n", 404),
        (get("/broken"), 500),
    ],
)
async def test_other_requests_are_told_what_is_allowed_and_a_page_that_fails_says_nothing(
    request_: bytes, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: PageRequest) -> Page:
        raise ZeroDivisionError("a secret")

    found, _, body = await asked({**health_pages(list), "/broken": broken}, request_)

    assert found == status
    assert ("allowed: GET /healthz" in body) == (status != 500)
    assert "a secret" not in body + capsys.readouterr().err


async def test_head_is_answered_as_get_without_the_content() -> None:
    pages = health_pages(list)
    status, headers, body = await asked(pages, get("/healthz"))

    found = await asked(pages, get("/healthz").replace(b"GET", b"HEAD"))

    assert found == (status, headers, "")
    assert headers["Content-Length"] == str(len(body))
    assert (await asked(pages, b"HEAD /nothing HTTP/1.1\r\n\r\n"))[0] == 404


async def test_a_request_without_an_end_gets_no_answer_and_an_address_in_use_is_one_line() -> None:
    server, port = await serve_pages("127.0.0.1:0", health_pages(list))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\n" + b"X: " + b"y" * 20_000)
    with pytest.raises(MachineError, match=f"cannot listen on 127.0.0.1:{port}: "):
        await serve_pages(f"127.0.0.1:{port}", {})
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    server.close()


def open_files() -> int:
    """Return how many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_many_that_ask_nothing_do_not_keep_an_operator_out_nor_take_the_descriptors() -> None:
    server, port = await serve_pages("127.0.0.1:0", health_pages(list))
    before = open_files()
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
    for _, writer in silent[::2]:
        writer.write(b"GET /healthz HTTP/1.1\r\n")

    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(get("/healthz"))
    answer = await reader.read()
    # The server runs in this process: what is open beyond the clients' ends is its own.
    its_own = open_files() - before - len(silent) - 1

    for _, one in [*silent, (reader, writer)]:
        one.close()
    async with asyncio.timeout(30):
        while open_files() > before:
            await asyncio.sleep(0.01)
    server.close()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert its_own <= 64 + 17


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9411", 200),
        ("[::1]:9411", 200),
        ("10.0.0.7", 200),
        ("localhost:9411", 200),
        ("alpha:9411", 200),
        ("Alpha.example.org:9411", 200),
        ("evil.example:9411", 421),
        ("127.0.0.1.evil.example", 421),
        ("alpha.example.org.evil.example", 421),
    ],
)
async def test_a_name_that_others_may_point_here_is_not_answered(host: str, status: int) -> None:
    request = f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()

    found, headers, _ = await asked(health_pages(list), request, "alpha.example.org")

    assert found == status
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"

"""A channel goes where the configuration says: past every proxy of the environment, in plaintext to loopback alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from fleetcount_protocol.errors import UsageError
from fleetcount_transport.channels import open_channel

from tests.support.listening import listening

ROOT = Path(__file__).resolve().parents[2]
VARIABLES = ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY")


async def echo(request: bytes, _: object) -> bytes:
    return request


@asynccontextmanager
async def echoing() -> AsyncIterator[str]:
    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler("echo", {"Echo": grpc.unary_unary_rpc_method_handler(echo)})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def http_proxy(asked: list[bytes], target: str) -> AsyncIterator[str]:
    """Give the address of an HTTP proxy that connects everybody to `target`, and notes what it was asked."""

    async def pump(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await source.read(4096):
            to.write(data)
        to.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        host, port = target.split(":")
        upstream, downstream = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            await asyncio.gather(pump(reader, downstream), pump(upstream, writer), return_exceptions=True)
        finally:
            downstream.close()
            writer.close()

    async with listening(serve) as port:
        yield f"127.0.0.1:{port}"


@pytest.mark.parametrize("variable", VARIABLES)
async def test_a_call_to_this_machine_passes_the_proxy_of_the_environment(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    async with echoing() as server, echoing() as other, http_proxy(asked, other) as proxy:
        monkeypatch.setenv(variable, f"http://{proxy}")
        async with open_channel(server, None) as channel:
            answer = await channel.unary_unary("/echo/Echo")(b"63", timeout=20)  # type: ignore[arg-type]

    assert answer == b"63"
    assert asked == []


async def test_a_proxy_that_the_configuration_names_is_asked() -> None:
    asked: list[bytes] = []
    async with echoing() as server, http_proxy(asked, server) as proxy, open_channel(server, None, proxy=proxy) as way:
        answer = await way.unary_unary("/echo/Echo")(b"63", timeout=20)  # type: ignore[arg-type]

    assert answer == b"63"
    assert asked == [b"CONNECT %s HTTP/1.1" % server.encode()]


async def test_without_tls_only_this_machine_is_called() -> None:
    with pytest.raises(UsageError, match=r"example\.org:1 is not on this machine; allowed without TLS is loopback"):
        open_channel("example.org:1", None)
    await open_channel("example.org:1", None, plaintext_anywhere=True).close()
    await open_channel("localhost:1", None).close()


def test_nothing_else_makes_a_channel() -> None:
    rooms = [path for path in ROOT.glob("*/src/**/*.py") if "secure_channel(" in path.read_text(encoding="utf-8")]

    assert [path.name for path in rooms] == ["channels.py"]

"""A TLS handshake that breaks off is counted by kind and heard by the caller; each of its flights waits for a turn."""

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount_protocol.channel.certificates import CertificateAuthority, Purpose
from fleetcount_transport.admission.admission import AdmissionTable, Broken
from fleetcount_transport.admission.handshake_gate import HandshakeGate
from fleetcount_transport.channels import open_channel
from fleetcount_transport.key_files import TlsFiles
from fleetcount_transport.listening import bind, grpc_server
from fleetcount_transport.lost_reasons import call_reason
from structlog.testing import capture_logs

from tests.support.listening import unix_socket
from tests.support.pem import pem_pair
from tests.support.told_time import told_time, turns_until

HOST, SERVER = "127.0.0.1", "beta"


def pem(authority: CertificateAuthority) -> bytes:
    return authority.certificate.public_bytes(Encoding.PEM)


def files_of(authority: CertificateAuthority, trusted: CertificateAuthority, name: str) -> TlsFiles:
    key, certificate = pem_pair(authority.issue_new(Purpose.AGGREGATOR, name, [HOST]))
    return TlsFiles(authorities=pem(trusted), certificate=certificate, private_key=key)


@dataclass
class Here:
    """A gRPC server that takes callers of `authority` behind its gate, and what the gate counted."""

    authority: CertificateAuthority
    port: int = 0
    broken: Counter[Broken] = field(default_factory=Counter)

    async def call(self, credentials: grpc.ChannelCredentials, certificate: str = "") -> str:
        """Return what a caller hears: "" for an answer, else the reason."""
        async with open_channel(f"{HOST}:{self.port}", credentials, name=SERVER) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/echo/Echo")
            try:
                await call(b"", timeout=20)
            except grpc.aio.AioRpcError as error:
                return call_reason(error, certificate)
        return ""


async def echo(request: bytes, _: Any) -> bytes:
    return request


@asynccontextmanager
async def here() -> AsyncIterator[Here]:
    made = Here(CertificateAuthority.create("ours"))
    own = files_of(made.authority, made.authority, SERVER)
    handler = grpc.method_handlers_generic_handler("echo", {"Echo": grpc.unary_unary_rpc_method_handler(echo)})
    server = grpc_server(handler, 1 << 16, 10)
    behind = bind(server, own.to_clients(pem(made.authority)))
    await server.start()
    gate = HandshakeGate(
        AdmissionTable(handshake_s=4), 100, count_broken=lambda how: made.broken.update([how]), tls=True
    )
    made.port = gate.listen(f"{HOST}:0", behind)
    try:
        yield made
    finally:
        gate.close()
        await server.stop(0)


async def test_both_sides_learn_that_a_certificate_is_not_accepted() -> None:
    async with here() as it:
        foreign = files_of(CertificateAuthority.create("theirs"), it.authority, "car")
        said = await it.call(foreign.to_servers(), foreign.described())
        without = await it.call(grpc.ssl_channel_credentials(pem(it.authority)))

    hung_up = "unavailable (hung up during the handshake: it may not accept this certificate"
    assert said.startswith(f"{hung_up} (issuer CN=theirs, ends 20")
    assert without == f"{hung_up})"
    # Where a call lasts, gRPC begins another connection, and ends it with the channel.
    assert it.broken[Broken.CERTIFICATE] >= 2


async def test_a_caller_that_is_answered_and_one_that_says_nothing_break_nothing_off() -> None:
    async with here() as it:
        fine = await it.call(files_of(it.authority, it.authority, "car").to_servers())
        _, silent = await asyncio.open_connection(HOST, it.port)
        silent.close()
        await silent.wait_closed()

    assert fine == ""
    assert not it.broken


async def test_a_caller_that_does_not_accept_the_server_is_counted_as_such_and_says_so() -> None:
    async with here() as it:
        stranger = files_of(it.authority, CertificateAuthority.create("theirs"), "car")
        said = await it.call(stranger.to_servers())
        await turns_until(lambda: bool(it.broken))

    assert said == "unavailable (TLS failed: its certificate is not accepted here)"
    assert it.broken == {Broken.CALLER: 1}


async def test_the_log_has_one_line_of_them_a_minute_and_no_address() -> None:
    with capture_logs() as logs, told_time() as told:
        async with here() as it:
            for _ in range(2):
                reader, writer = await asyncio.open_connection(HOST, it.port)
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert await reader.read() == b""
                writer.close()
                told.passes(1)  # It looks once in that time.
                await turns_until(lambda: bool(logs))
            early = list(logs)
            told.passes(60)
            await turns_until(lambda: len(logs) == 2)

    line = {"event": "handshakes_failed", "log_level": "warning", "no_tls": 1}
    assert (early, logs) == ([line], [line, line])


class Counting(HandshakeGate):
    """A gate that counts the flights which wait for a turn."""

    turns = 0

    def on_hello(self, connection: Any) -> None:
        self.turns += 1
        super().on_hello(connection)


@pytest.mark.parametrize(("curve", "flights"), [("prime256v1", 3), (None, 2)])
async def test_each_flight_of_a_handshake_waits_for_a_turn_also_after_a_second_hello(
    tmp_path: Path, curve: str | None, flights: int
) -> None:
    """Python's client guesses X25519: a server without it asks for another hello (RFC 8446, section 4.1.4)."""
    authority = CertificateAuthority.create("ours")
    key, certificate = pem_pair(authority.issue_new(Purpose.AGGREGATOR, SERVER, [HOST]))
    pair = tmp_path / "pair.pem"
    pair.write_bytes(key + certificate)
    serving, calling = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        ssl.create_default_context(cadata=pem(authority).decode()),
    )
    serving.minimum_version = ssl.TLSVersion.TLSv1_3
    for context in (serving, calling):
        context.load_cert_chain(pair)
    serving.load_verify_locations(cadata=pem(authority).decode())
    serving.verify_mode = ssl.CERT_REQUIRED
    if curve is not None:
        serving.set_ecdh_curve(curve)
    calling.check_hostname = False

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5))
        await reader.read()
        writer.close()

    at, behind = unix_socket()
    server = await asyncio.start_unix_server(serve, sock=at, ssl=serving)
    gate = Counting(AdmissionTable(), 10, tls=True)
    port = gate.listen(f"{HOST}:0", behind)
    try:
        reader, writer = await asyncio.open_connection(HOST, port, ssl=calling)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()
    finally:
        gate.close()
        server.close()
        await server.wait_closed()

    assert gate.turns == flights

"""A certificate is renewed by putting another one in its place: new connections have it, and nobody restarts."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount_protocol.channel.certificates import CertificateAuthority, Credential, Purpose
from fleetcount_protocol.errors import UsageError
from fleetcount_transport.live_tls import LiveTls

from tests.support.pem import pem_pair

HOST = "127.0.0.1"
Serve = Callable[[LiveTls], Awaitable[int]]


@dataclass
class Party:
    """Files of an aggregator's TLS, and the clock by which they are looked at."""

    directory: Path
    authority: CertificateAuthority
    now: float = 0.0

    def write(self, credential: Credential, *, certificate: bool = True, key: bool = True) -> None:
        """Put files in place as an operator does, and let a second pass."""
        pem = pem_pair(credential)
        for name, data, wanted in (("own.key", pem[0], key), ("own.crt", pem[1], certificate)):
            if wanted:
                path = self.directory / f"{name}.new"
                path.write_bytes(data)
                path.chmod(0o600)
                path.replace(self.directory / name)
        self.now += 1

    def issue(self, purpose: Purpose = Purpose.AGGREGATOR) -> Credential:
        return self.authority.issue_new(purpose, "beta", [HOST])

    def live(self) -> LiveTls:
        (self.directory / "ca.crt").write_bytes(self.authority.certificate.public_bytes(Encoding.PEM))
        here = self.directory
        return LiveTls(
            here / "ca.crt", here / "own.crt", here / "own.key", Purpose.AGGREGATOR, elapsed=lambda: self.now
        )


@pytest.fixture
def party(tmp_path: Path) -> Party:
    made = Party(tmp_path, CertificateAuthority.create("aggregators"))
    made.write(made.issue())
    return made


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers: list[grpc.aio.Server] = []

    async def begin(live: LiveTls) -> int:
        server = grpc.aio.server()
        servers.append(server)
        port = server.add_secure_port(f"{HOST}:0", live.to_clients(live.authorities))
        await server.start()
        return int(port)

    yield begin
    for server in servers:
        await server.stop(0)


async def shown(party: Party, port: int) -> int:
    """Return the serial number of the certificate that a new connection is shown."""
    pair = party.directory / "alpha.pem"
    pair.write_bytes(b"".join(pem_pair(party.authority.issue_aggregator("alpha", [HOST]))))

    def look() -> int:
        context = ssl.create_default_context(cafile=str(party.directory / "ca.crt"))
        context.load_cert_chain(pair)
        context.set_alpn_protocols(["h2"])
        der = ssl_connect(context, port)
        return x509.load_der_x509_certificate(der).serial_number

    return await asyncio.to_thread(look)


def ssl_connect(context: ssl.SSLContext, port: int) -> bytes:
    with (
        socket.create_connection((HOST, port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as secure,
    ):
        return secure.getpeercert(binary_form=True) or b""


async def test_a_new_connection_is_shown_the_certificate_that_is_there_now(party: Party, serve: Serve) -> None:
    port = await serve(live := party.live())
    before = await shown(party, port)
    client = live.to_servers()
    renewed = party.issue()
    party.write(renewed)

    assert before != renewed.certificate.serial_number
    assert await shown(party, port) == renewed.certificate.serial_number
    assert live.to_servers() is not client
    assert live.to_servers() is live.to_servers()


@pytest.mark.parametrize(
    "broken", ["certificate alone", "key alone", "another purpose", "no certificate", "open to all"]
)
async def test_what_does_not_fit_is_not_taken_and_what_was_there_goes_on(
    party: Party, serve: Serve, broken: str
) -> None:
    port = await serve(live := party.live())
    before, client = await shown(party, port), live.to_servers()
    renewed = party.issue(Purpose.RELAY if broken == "another purpose" else Purpose.AGGREGATOR)
    party.write(renewed, certificate=broken != "key alone", key=broken != "certificate alone")
    if broken == "no certificate":
        (party.directory / "own.crt").unlink()
    if broken == "open to all":
        (party.directory / "own.key").chmod(0o644)
    party.now += 1

    assert await shown(party, port) == before
    assert live.to_servers() is client
    whole = party.issue()
    party.write(whole)
    assert await shown(party, port) == whole.certificate.serial_number


def test_the_first_pair_must_fit(party: Party) -> None:
    party.write(party.issue(), key=False)

    with pytest.raises(UsageError, match="is not the key of"):
        party.live()


def test_the_files_are_looked_at_once_a_second(party: Party) -> None:
    live = party.live()
    client = live.to_servers()
    party.write(party.issue())
    party.now -= 0.5

    assert live.to_servers() is client
    party.now += 0.5
    assert live.to_servers() is not client


def test_a_listener_is_given_a_certificate_once_and_not_at_each_handshake(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Callable[[], object]] = []
    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", lambda _first, ask, **_: asked.append(ask))
    live = party.live()
    live.to_clients(live.authorities)
    [ask] = asked

    before = [ask(), ask()]
    party.write(party.issue())

    assert before == [None, None]
    assert ask() is not None
    assert ask() is None

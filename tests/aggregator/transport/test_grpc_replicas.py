"""Calls between replicas of one aggregator, over mutual TLS whose certificate is renewed under way."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount_aggregator.host.metrics import Metrics
from fleetcount_aggregator.storage.instalment_run import DigestQuery
from fleetcount_aggregator.transport.grpc_replicas import ReplicaCalls, ReplicaShell, replica_server
from fleetcount_aggregator.transport.grpc_server import certified_peer
from fleetcount_protocol.channel.certificates import CertificateAuthority, Purpose
from fleetcount_protocol.ids import AggregatorId, Digest, WindowId
from fleetcount_transport.admission.admission import Admission
from fleetcount_transport.admission.identity import Identity
from fleetcount_transport.live_tls import LiveTls

from tests.support.relays import pem_pair

OWN = AggregatorId("alpha")


class _NoReports:
    """Nothing is stored."""

    async def add_instalments(self, runs: Sequence[object]) -> list[bytes]:
        return []

    async def stored(self, window_id: WindowId, round_number: int, report_ids: Sequence[bytes]) -> list[Digest | None]:
        return [None for _ in report_ids]


async def test_a_renewed_certificate_is_shown_to_the_owner_of_a_shard_without_a_restart(tmp_path: Path) -> None:
    authority, shown, elapsed = CertificateAuthority.create("aggregators"), list[int](), 0.0

    def renew() -> int:
        credential = authority.issue_new(Purpose.AGGREGATOR, OWN, ["127.0.0.1"])
        for name, data in zip(("own.key", "own.crt"), pem_pair(credential), strict=True):
            (tmp_path / name).write_bytes(data)
            (tmp_path / name).chmod(0o600)
        return int(credential.certificate.serial_number)

    def identify(context: Any) -> Identity:
        [pem] = context.auth_context()["x509_pem_cert"]
        shown.append(x509.load_pem_x509_certificate(pem).serial_number)
        return certified_peer([OWN])(context)

    (tmp_path / "ca.crt").write_bytes(authority.certificate.public_bytes(Encoding.PEM))
    serials = [renew()]
    files = (tmp_path / "ca.crt", tmp_path / "own.crt", tmp_path / "own.key")
    live = LiveTls(*files, Purpose.AGGREGATOR, elapsed=lambda: elapsed)
    server = replica_server(ReplicaShell(_NoReports(), Metrics(), identify, Admission()))
    port = server.add_secure_port("127.0.0.1:0", live.to_clients(live.authorities))
    calls = ReplicaCalls(OWN, timeout_s=30, credentials=live.to_servers)
    await server.start()
    try:
        query = DigestQuery(window_id=WindowId(bytes(32)), round=0, report_ids=bytes(16))
        for _ in range(2):
            assert await calls.find(f"127.0.0.1:{port}", query) == [None]
            assert await calls.find(f"127.0.0.1:{port}", query) == [None]
            serials.append(renew())
            elapsed += 10
    finally:
        await calls.close()
        await server.stop(0)

    assert shown == [serials[0], serials[0], serials[1], serials[1]]

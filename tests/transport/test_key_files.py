"""Files of keys and certificates as editors leave them: what one library takes, the others must not be the first to
refuse."""

from pathlib import Path

import grpc
import pytest
from fleetcount_protocol.channel.certificates import CertificateAuthority, save_certificates, save_credential
from fleetcount_transport.key_files import TlsFiles, read_authority_file, tls_context
from fleetcount_transport.toml_table import ConfigError

MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize("name", ["party.key", "party.crt", "ca.crt"])
async def test_a_byte_order_mark_before_a_pem_is_passed_over_by_every_transport(tmp_path: Path, name: str) -> None:
    authority = CertificateAuthority.create("ca")
    save_certificates(tmp_path / "ca.crt", [authority.certificate])
    save_credential(tmp_path, "party", authority.issue_aggregator("alpha", ["127.0.0.1"]))
    (tmp_path / name).write_bytes(MARK + (tmp_path / name).read_bytes())
    files = tmp_path / "ca.crt", tmp_path / "party.crt", tmp_path / "party.key"

    tls = TlsFiles.read(*files)
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", tls.to_clients(tls.authorities))
    await server.start()
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", tls.to_servers()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as answered:
            await channel.unary_unary("/nothing/Here")(b"", timeout=30)
    await server.stop(0)

    assert answered.value.code() is grpc.StatusCode.UNIMPLEMENTED, "a server that was reached"
    assert tls_context(*files) is not None


def test_grpc_is_given_every_authority_that_was_read_and_no_mark_between_them(tmp_path: Path) -> None:
    pems = []
    for name in ("one.crt", "other.crt"):
        save_certificates(tmp_path / name, [CertificateAuthority.create(name).certificate])
        pems.append((tmp_path / name).read_bytes())
    (tmp_path / "ca.crt").write_bytes(MARK + pems[0] + MARK + b"  " + pems[1].replace(b"\n", b"\r\n"))

    assert read_authority_file(tmp_path / "ca.crt") == b"".join(pems)


@pytest.mark.parametrize("authority", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA"])
def test_a_file_of_authorities_that_names_none_is_refused_before_anything_is_called(
    tmp_path: Path, authority: bytes
) -> None:
    save_credential(tmp_path, "party", CertificateAuthority.create("ca").issue_aggregator("alpha", ["127.0.0.1"]))
    (tmp_path / "ca.crt").write_bytes(authority)

    with pytest.raises(ConfigError, match=r"ca\.crt holds no readable certificate"):
        TlsFiles.read(tmp_path / "ca.crt", tmp_path / "party.crt", tmp_path / "party.key")

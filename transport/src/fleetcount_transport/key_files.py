"""Reads the files of keys and certificates of every party, and refuses private ones that others may read.

It must not show a private key. The caller decides about the use of a key.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.errors import UsageError

from fleetcount_transport.toml_table import ConfigError

if TYPE_CHECKING:  # Each transport loads its own library, a device only one of them.
    import ssl

    import grpc
    from cryptography import x509
    from fleetcount_protocol.channel.certificates import Purpose

_MAX_BYTES: Final = 16 * 1024
_MARK: Final = b"\xef\xbb\xbf"
"""A byte-order mark, which editors write before a text: gRPC takes no PEM behind one, though other libraries do."""


def read_secret(path: Path) -> bytes:
    """Return the bytes of a file that only its owner may read.

    Raises:
        UsageError: it is missing, no regular file, longer than 16 KiB, or readable by others (allowed: 0600 or 0400).
    """
    try:
        if not path.is_file():
            raise UsageError(f"{path} is not a file")
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise UsageError(f"{path} has mode {mode:04o}, allowed: 0600 (nobody else may read a private key)")
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > _MAX_BYTES:
        raise UsageError(f"{path} has more than {_MAX_BYTES} bytes, which is no key")
    return data


def read_public_file(path: Path) -> bytes:
    """Return the bytes of a file, without the byte-order mark that it may begin with.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return path.read_bytes().removeprefix(_MARK)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def read_authorities(path: Path) -> "tuple[x509.Certificate, ...]":
    """Return the certificates of a file of this deployment's authorities.

    Raises:
        ConfigError: the file cannot be read, or has no certificate or other contents.
    """
    from fleetcount_protocol.channel.certificates import load_authorities

    try:
        return load_authorities(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UsageError as error:
        raise ConfigError(str(error)) from None


def read_authority_file(path: Path) -> bytes:
    """Return `read_authorities` as PEM, for gRPC, which passes over one behind blanks or a mark of the byte order.

    Such a mark stands between two files that were joined. Raises ConfigError as it does.
    """
    from cryptography.hazmat.primitives.serialization import Encoding

    return b"".join(one.public_bytes(Encoding.PEM) for one in read_authorities(path))


def check_foreign_authorities(path: Path) -> None:
    """Refuse a file in which TLS finds no authority; one that others wrote may hold what an own one may not.

    Raises:
        ConfigError: it cannot be read, or is one.
    """
    import ssl

    text = read_public_file(path).decode("ascii", "backslashreplace")  # What is no certificate may be of any encoding.
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        raise ConfigError(f"{path} holds no readable certificate") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Mutual TLS, as PEM: the authorities of the far end, and the own certificate with its key."""

    authorities: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    private_key: bytes = field(repr=False)

    @classmethod
    def read(
        cls, ca_file: Path, certificate_file: Path, key_file: Path, purpose: "Purpose | None" = None
    ) -> "TlsFiles":
        """Return the content of the three files.

        Raises:
            ConfigError: one is missing or holds something else, the key is not the certificate's, or the certificate is
                for another purpose than the one given.
        """
        from fleetcount_protocol.channel.certificates import load_certificate, load_private_key

        authorities = read_authority_file(ca_file)
        try:
            certificate, key = load_certificate(certificate_file), load_private_key(key_file)
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error
        except UsageError as error:
            raise ConfigError(str(error)) from None
        if certificate.public_key() != key.public_key():
            raise ConfigError(f"{key_file} is not the key of {certificate_file}")
        if purpose is not None:
            check_purpose(certificate_file, certificate, purpose)
        return cls(
            authorities=authorities,
            certificate=read_public_file(certificate_file),
            private_key=read_secret(key_file).removeprefix(_MARK),
        )

    def described(self) -> str:
        """Return who issued the own certificate and its end: "issuer CN=devices, ends 2027-01-31T12:00:00Z"."""
        from cryptography import x509

        one = x509.load_pem_x509_certificate(self.certificate)
        return f"issuer {one.issuer.rfc4514_string()}, ends {utc_text(one.not_valid_after_utc.timestamp())}"

    def to_servers(self) -> "grpc.ChannelCredentials":
        """Return the credentials of a gRPC channel: the far end must be certified by the authorities."""
        import grpc

        return grpc.ssl_channel_credentials(self.authorities, self.private_key, self.certificate)

    def to_clients(self, authorities: bytes) -> "grpc.ServerCredentials":
        """Return the credentials of a gRPC listener: every caller must be certified by `authorities`."""
        import grpc

        pair = [(self.private_key, self.certificate)]
        return grpc.ssl_server_credentials(pair, root_certificates=authorities, require_client_auth=True)


def check_purpose(file: Path, certificate: "x509.Certificate", purpose: "Purpose") -> None:
    """Refuse a party's own certificate if it is for another purpose.

    Raises:
        ConfigError: it is; the message names the page that explains certificates.
    """
    from fleetcount_protocol.channel.certificates import purpose_of
    from fleetcount_protocol.errors import SignatureError

    try:
        found = purpose_of(certificate).label
    except SignatureError:
        found = "none"
    if found != purpose.label:
        raise ConfigError(
            f'{file} is for the purpose {found!r}, allowed: {purpose.label!r} (docs/operating-keys.md, "Certificates")'
        )


def tls_context(ca_file: Path | None, certificate_file: Path | None, key_file: Path | None) -> "ssl.SSLContext | None":
    """Return the context of a TLS client without gRPC, with a client certificate if one is given; None without
    `ca_file`.

    Raises:
        ConfigError: a file is missing or no PEM, or the key is not the certificate's.
    """
    import ssl

    if ca_file is None:
        return None
    try:
        context = ssl.create_default_context(cafile=str(ca_file))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"mqtt.ca_file {ca_file} cannot be used: {error}") from None
    try:
        if certificate_file is not None:
            context.load_cert_chain(certificate_file, key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{certificate_file} with the key {key_file} cannot be used: {error}") from None
    return context

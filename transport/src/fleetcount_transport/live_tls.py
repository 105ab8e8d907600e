"""A server's own certificate and key, read again when their files change, so that renewal needs no restart.

New connections use the present files; open connections stay. A pair that does not fit, for example while only one of
the two files is written, is refused, and the pair in use stays. The authorities of the far end are those of the start.
"""

import threading
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Final, cast

import grpc
from cryptography import x509
from fleetcount_protocol.channel.certificates import Purpose, key_digest
from fleetcount_protocol.errors import UsageError

from fleetcount_transport.key_files import TlsFiles
from fleetcount_transport.logs import log

_CHECK_S: Final = 1.0
"""Seconds between two checks of the files at least."""
_Seen = tuple[tuple[int, int, int], ...]


class LiveTls:
    """The TLS of one party with a certificate for a purpose; threads may share it.

    Raises:
        ConfigError, UsageError: at the start, as `TlsFiles.read`.
    """

    def __init__(
        self,
        ca_file: Path,
        certificate_file: Path,
        key_file: Path,
        purpose: Purpose,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places = ca_file, certificate_file, key_file
        self._purpose, self._elapsed = purpose, elapsed
        self._lock = threading.Lock()
        self._seen, self._checked_at = self._stamps(), elapsed()
        self._files = TlsFiles.read(*self._places, purpose)
        self._to_servers = self._files.to_servers()

    @property
    def authorities(self) -> bytes:
        """The authorities that certify the far end, as PEM."""
        return self._files.authorities

    def own_key(self) -> bytes:
        """Return the digest of the public key of the certificate in use (`key_digest`)."""
        return _digest_of(self._current().certificate)

    def _stamps(self) -> _Seen:
        """Return (mtime in ns, size, inode) of each file that exists, which change when a file is replaced."""
        found = []
        for path in self._places[1:]:
            try:
                now = path.stat()
            except OSError:
                continue
            found.append((now.st_mtime_ns, now.st_size, now.st_ino))
        return tuple(found)

    def _current(self) -> TlsFiles:
        """Return the pair to use now, after reading changed files."""
        with self._lock:
            if self._elapsed() - self._checked_at < _CHECK_S:
                return self._files
            self._checked_at = self._elapsed()
            seen = self._stamps()
            if seen == self._seen:
                return self._files
            self._seen = seen
            try:
                files = TlsFiles.read(*self._places, self._purpose)
            except UsageError as error:  # ConfigError is one.
                log.error("certificate_not_taken", reason=str(error))
                return self._files
            if (files.certificate, files.private_key) != (self._files.certificate, self._files.private_key):
                self._files, self._to_servers = files, files.to_servers()
                log.info("certificate_renewed", file=str(self._places[1]))
            return self._files

    def to_servers(self) -> grpc.ChannelCredentials:
        """Return the credentials of a gRPC channel; the same object until the certificate changes."""
        self._current()
        return self._to_servers

    def to_clients(self, authorities: bytes) -> grpc.ServerCredentials:
        """Return the credentials of a gRPC listener, which checks at each handshake whether they were renewed.

        Every caller must be certified by `authorities`.
        """

        def configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
            pair = (files.private_key, files.certificate)
            return grpc.ssl_server_certificate_configuration([pair], root_certificates=authorities)

        in_use, lock = self._current(), threading.Lock()

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            """Return new credentials for the listener, or None while its credentials are the present ones.

            None matters: gRPC replaces credentials while handshakes run in other threads, and crashes if it does so
            at every handshake.
            """
            nonlocal in_use
            files = self._current()
            with lock:
                if files is in_use:
                    return None
                in_use = files
            return configuration(files)

        # The library documents None as "unchanged"; its types do not have it.
        ask = cast("Callable[[], grpc.ServerCertificateConfiguration]", renewed)
        return grpc.dynamic_ssl_server_credentials(configuration(in_use), ask, require_client_authentication=True)


@lru_cache(maxsize=4)
def _digest_of(pem: bytes) -> bytes:
    return bytes(key_digest(x509.load_pem_x509_certificate(pem)))

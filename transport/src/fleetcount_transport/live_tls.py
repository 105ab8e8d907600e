"""A server's own certificate and key, taken again when their files change: renewed without a restart.

New connections are made with what the files hold now; those that are open go on. A pair that does not fit, because one
of the two files is not written yet or holds something else, is not taken, and what was in use stays. The authorities of
the far end are those of the start.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import grpc
from fleetcount_protocol.channel.certificates import Purpose
from fleetcount_protocol.errors import UsageError

from fleetcount_transport.key_files import TlsFiles
from fleetcount_transport.logs import log

_LOOK_S: Final = 1.0
"""The files are looked at no more often."""
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
        self._seen, self._looked = self._look(), elapsed()
        self._files = TlsFiles.read(*self._places, purpose)
        self._to_servers = self._files.to_servers()

    @property
    def authorities(self) -> bytes:
        """Who certifies the far end, as PEM."""
        return self._files.authorities

    def _look(self) -> _Seen:
        """Return what tells a file from the one that was there before; nothing for one that is missing."""
        found = []
        for path in self._places[1:]:
            try:
                now = path.stat()
            except OSError:
                continue
            found.append((now.st_mtime_ns, now.st_size, now.st_ino))
        return tuple(found)

    def _take(self) -> TlsFiles:
        """Return the files as they are to be used now."""
        with self._lock:
            if self._elapsed() - self._looked < _LOOK_S:
                return self._files
            self._looked = self._elapsed()
            seen = self._look()
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
        """Return the credentials of a gRPC channel; the same object until the certificate is another one."""
        self._take()
        return self._to_servers

    def to_clients(self, authorities: bytes) -> grpc.ServerCredentials:
        """Return the credentials of a gRPC listener, which asks at each handshake whether they were renewed.

        Every caller must be certified by `authorities`.
        """

        def told(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
            pair = (files.private_key, files.certificate)
            return grpc.ssl_server_certificate_configuration([pair], root_certificates=authorities)

        in_use, lock = self._take(), threading.Lock()

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            """Return what the listener is to use from now on; None while that is what it uses.

            The library puts new ones in place under handshakes of other threads, and does not survive that often.
            """
            nonlocal in_use
            files = self._take()
            with lock:
                if files is in_use:
                    return None
                in_use = files
            return told(files)

        # None is what the library's own documentation has for "unchanged"; its types do not know it.
        ask = cast("Callable[[], grpc.ServerCertificateConfiguration]", renewed)
        return grpc.dynamic_ssl_server_credentials(told(in_use), ask, require_client_authentication=True)

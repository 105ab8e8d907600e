"""The denied public keys: one signed deny list from a file or a URL, loaded again when it changes.

An older list never replaces a newer one, also after a restart where a copy is kept. A list from the future is not
taken from the source; the kept copy holds whatever the clock says, since it was not from the future when it was taken.
It must not decide which calls are refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

from cryptography import x509
from fleetcount_protocol.channel.deny_list import (
    MAX_DENY_LIST_BYTES,
    SignedDenyList,
    decode_signed_deny_list,
    verify_deny_list,
)
from fleetcount_protocol.clock import LARGEST_LEAD_S
from fleetcount_protocol.errors import PeerError, UsageError

from fleetcount_transport.durable_files import replace_file
from fleetcount_transport.logs import log
from fleetcount_transport.strangers import ask, in_daemon_thread
from fleetcount_transport.toml_table import ConfigError

FILE_POLL_S: Final = 1.0
"""Seconds between two checks of a file: the delay of a revocation, once the file is in place."""
URL_POLL_S: Final = 30.0
_FETCH_S: Final = 10.0
"""Seconds for a whole answer of a URL's server, to its last byte."""
_OK: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class DenySource:
    """The source of the list, a file or an http(s) URL; `kept` is the file for a copy of the newest list, or None."""

    file: Path | None = None
    url: str = ""
    kept: Path | None = None

    def read(self) -> bytes:
        """Return the source's bytes, at most one more than a list may have, which is enough to refuse it.

        Raises:
            UsageError: it cannot be read.
        """
        try:
            if self.file is not None:
                with self.file.open("rb") as file:
                    return file.read(MAX_DENY_LIST_BYTES + 1)
            answer = ask(self.url, total_s=_FETCH_S, most_bytes=MAX_DENY_LIST_BYTES + 1)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UsageError(f"the deny list {self.file or self.url} cannot be read: {reason}") from error
        if answer.status != _OK:
            raise UsageError(f"the deny list {self.url} cannot be read: its server answers {answer.status}")
        return answer.content

    def stamp(self) -> tuple[int, int, int] | None:
        """Return (mtime in ns, size, inode) of the file, which change with it; None for a URL or a missing file."""
        if self.file is None:
            return None
        try:
            status = self.file.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


class FutureListError(UsageError):
    """A list that was signed later than this clock allows, which may be late: it is tried again at each poll."""


class Denials:
    """The keys of the newest list. Without a source no key is denied, and `is_stale` is always False."""

    def __init__(
        self,
        source: DenySource | None = None,
        authorities: Sequence[x509.Certificate] = (),
        now: Callable[[], float] = lambda: inf,
    ) -> None:
        self._source = source
        self._now = now
        self._authorities = tuple(authorities)
        self._keys: frozenset[bytes] = frozenset()
        self._newest: SignedDenyList | None = None
        self._stamp: tuple[int, int, int] | None = None
        self._complaint = ""

    @classmethod
    def open(
        cls,
        source: DenySource | None,
        authorities: Sequence[x509.Certificate],
        now: Callable[[], float] = lambda: inf,
    ) -> "Denials":
        """Return the denials of a source, loaded once: the kept copy, then the source itself.

        `now` returns this party's time, Unix seconds; without it no list is from the future. The log says why a kept
        copy is not used (it is damaged, or of an authority that was replaced), or that its clock must be late.

        Raises:
            ConfigError: the file is missing, no list, older than the kept copy, or not signed by an authority. A URL
                that cannot be reached, and a list from the future, are no error: the kept copy is valid until another
                list is taken.
        """
        denials = cls(source, authorities, now)
        if source is None:
            return denials
        if source.kept is not None and source.kept.exists():
            denials._accept_kept(source.kept)
        try:
            stamp = source.stamp()
            denials._accept(source.read())
            denials._stamp = stamp
        except FutureListError as error:
            denials._complain(str(error))
        except (PeerError, UsageError) as error:
            if source.file is not None:
                raise ConfigError(f"tls.deny_list_file: {error}") from error
            denials._complain(str(error))
        return denials

    @property
    def keys(self) -> frozenset[bytes]:
        """The digests of all denied public keys."""
        return self._keys

    @property
    def poll_s(self) -> float:
        """Seconds between two calls of `poll`."""
        return FILE_POLL_S if self._source is None or self._source.file is not None else URL_POLL_S

    def denies(self, key: bytes) -> bool:
        """Return whether the public key with this digest is denied."""
        return key in self._keys

    def is_stale(self, now: float) -> bool:
        """Return whether there is a source, but no list that has not expired."""
        return self._source is not None and (self._newest is None or now >= self._newest.deny_list.expires)

    async def poll(self) -> None:
        """Load the list again if its file has changed, or from its URL; log a reason for refusing it once."""
        source = self._source
        if source is None:
            return
        stamp = source.stamp()
        if source.file is not None and stamp == self._stamp:
            return
        try:
            await in_daemon_thread(lambda: self._accept(source.read()))
            self._complaint = ""
        except FutureListError as error:
            self._complain(str(error))
            return
        except (PeerError, UsageError) as error:
            self._complain(str(error))
        self._stamp = stamp

    def _complain(self, reason: str) -> None:
        if reason != self._complaint:
            log.error("deny_list_refused", reason=reason)
        self._complaint = reason

    def _accept(self, data: bytes) -> None:
        """Replace the list by one that is signed by an authority, newer, whole and not from the future, and keep it.

        Raises:
            PeerError, UsageError: it is not, or is no list.
        """
        found = self._verified(data)
        newest = self._newest.deny_list if self._newest is not None else None
        if found.deny_list == newest:
            return
        if self._is_from_future(found):
            raise FutureListError(f"a deny list that was signed at {found.deny_list.issued_at}, which is in the future")
        if newest is not None and found.deny_list.number <= newest.number:
            raise UsageError(f"a deny list with number {found.deny_list.number}, allowed: above {newest.number}")
        if newest is not None and found.deny_list.authority == newest.authority:
            lost = len(self._keys - frozenset(map(bytes, found.deny_list.keys)))
            # Its authority lost a list, or went on from an old copy: whoever was revoked since would be let in again.
            if lost:
                raise UsageError(
                    f"a deny list with number {found.deny_list.number} that lacks {lost} of the {len(self._keys)} keys"
                    f" of number {newest.number}, and a revoked key stays revoked: put back the newest list where it is"
                    " signed, and revoke again what came after it"
                )
        self._take(found)
        self._keep(data)

    def _accept_kept(self, file: Path) -> None:
        """Take the list that was the newest before this start, also by a clock that is late now."""
        try:
            found = self._verified(DenySource(file=file).read())
        except (PeerError, UsageError) as error:
            log.error("kept_deny_list_refused", reason=str(error))
            return
        if self._is_from_future(found):
            log.error("kept_deny_list_from_the_future", issued_at=found.deny_list.issued_at, now=int(self._now()))
        self._take(found)

    def _verified(self, data: bytes) -> SignedDenyList:
        found = decode_signed_deny_list(data)
        verify_deny_list(found, self._authorities)
        return found

    def _is_from_future(self, found: SignedDenyList) -> bool:
        return found.deny_list.issued_at > self._now() + LARGEST_LEAD_S

    def _take(self, found: SignedDenyList) -> None:
        self._newest, self._keys = found, frozenset(map(bytes, found.deny_list.keys))
        log.info("deny_list_loaded", number=found.deny_list.number, expires=found.deny_list.expires)

    def _keep(self, data: bytes) -> None:
        kept = self._source.kept if self._source is not None else None
        if kept is None:
            return
        try:
            replace_file(kept, data)
        except OSError as error:
            log.error("deny_list_not_kept", reason=error.strerror)

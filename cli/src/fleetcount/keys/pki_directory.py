"""An operator's enrolment directory: two authorities, every certificate they issued, and the deny list.

Every file is replaced whole. A caller makes each change within `locked`; a change that a crash cut short is completed
by the same command (`renew`) or the next deny list (its copy for brokers). It must not see a party's private key.
"""

import contextlib
import fcntl
import ipaddress
import os
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount_protocol.channel.certificates import (
    CertificateAuthority,
    Purpose,
    aggregator_names,
    key_digest,
    load_certificate,
    load_private_key,
    public_key_digest,
    purpose_of,
    save_certificates,
    save_credential,
)
from fleetcount_protocol.channel.deny_list import DenyList, decode_signed_deny_list, sign_deny_list, verify_deny_list
from fleetcount_protocol.errors import PeerError, UsageError
from fleetcount_protocol.ids import Digest

from fleetcount.command.options import read_bytes, write_file
from fleetcount.keys.requests import new_directory

_AUTHORITIES: Final = ("devices", "aggregators")
_OF_DEVICES: Final = frozenset({Purpose.DEVICE, Purpose.READER})
"""What the devices' authority issues; the aggregators' issues the rest."""
_SLOT: Final = re.compile(r".+-slot[0-9]+")


@dataclass(frozen=True, kw_only=True)
class Issued:
    """One certificate of the register."""

    certificate: x509.Certificate

    @cached_property
    def purpose(self) -> Purpose:
        """Whose it is."""
        return purpose_of(self.certificate)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Its DNS names, the party's own first."""
        return aggregator_names(self.certificate)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Every name after the party's own, addresses included."""
        names = self.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return tuple(str(name.value) for name in names)[1:]

    @property
    def party(self) -> tuple[Purpose, tuple[str, ...], tuple[str, ...]]:
        """What all certificates of one party have in common."""
        return self.purpose, self.names, self.hosts

    @cached_property
    def key(self) -> Digest:
        """The digest of its public key: whom it counts as."""
        return key_digest(self.certificate)

    @property
    def ends(self) -> datetime:
        """Its last second, of which it is still valid (RFC 5280, section 4.1.2.5)."""
        return self.certificate.not_valid_after_utc


class PkiDirectory:
    """The directory of one operator; `now` is the moment every certificate and list is made at."""

    def __init__(self, root: Path, now: datetime | None = None) -> None:
        """Open a directory; raises UsageError if it is none."""
        self._root = root
        self._now = (now or datetime.now(UTC)).replace(microsecond=0)
        if not (root / "devices.crt").is_file():
            raise UsageError(f"{root} is no enrolment directory; `fleetcount pki init` makes one")

    @classmethod
    def create(cls, root: Path, deployment: str, *, validity: timedelta, list_validity: timedelta) -> "PkiDirectory":
        """Make the two authorities and an empty deny list in a new directory, mode 0700.

        Raises:
            UsageError: it is there and not empty, or cannot be written to.
            MachineError: the disk does not take it.
        """
        with new_directory(root) as stage:
            (stage / "issued").mkdir(mode=0o700)
            made = {
                name: CertificateAuthority.create(f"{deployment} {name}", validity=validity) for name in _AUTHORITIES
            }
            for name, authority in made.items():
                save_credential(stage, name, authority)
            # What a broker checks its clients by: devices and aggregators.
            save_certificates(stage / "clients.crt", [one.certificate for one in made.values()])
            cls(stage)._write_next(None, (), list_validity)
        return cls(root)

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """Keep every other change of the directory waiting.

        Raises:
            UsageError: the directory cannot be written to.
        """
        try:
            descriptor = os.open(self._root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"{self._root} cannot be written to: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def authority(self, name: str) -> CertificateAuthority:
        """Return the authority "devices" or "aggregators".

        Raises:
            UsageError: a file of it is missing, or open to others.
        """
        try:
            certificate = load_certificate(self._root / f"{name}.crt")
            return CertificateAuthority(
                certificate=certificate, private_key=load_private_key(self._root / f"{name}.key")
            )
        except OSError as error:
            raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from error

    def authorities(self) -> dict[str, x509.Certificate]:
        """Return the authorities' certificates by name."""
        return {name: load_certificate(self._root / f"{name}.crt") for name in _AUTHORITIES}

    # Certificates.

    def issued(self) -> list[Issued]:
        """Return every certificate that was issued here, the first to end first."""
        files = (self._root / "issued").glob("*.crt")
        return sorted(
            (Issued(certificate=load_certificate(file)) for file in files), key=lambda one: (one.ends, one.names)
        )

    def enrol(
        self,
        purpose: Purpose,
        key: ec.EllipticCurvePublicKey,
        name: str,
        hosts: Sequence[str],
        output: Path,
        *,
        validity: timedelta,
        is_slot: bool = False,
    ) -> Issued:
        """Issue a certificate for a key that has none yet, and write it to a new file.

        `is_slot`: it is that of an aggregator's slot, whose name `slot_name` gives.

        Raises:
            UsageError: the key is on the deny list, another party has the key or the name, a host is another party's
                name or the other way round, the name or a host is one of an aggregator's slots and this is none, or
                `output` exists or has no directory.
        """
        for wanted in (name, *hosts):
            if not is_slot and _SLOT.fullmatch(_folded(wanted)):
                raise UsageError(f"{wanted!r} is the name of an aggregator's slot, which `fleetcount pki slot` issues")
        known, denied = self.issued(), self._denied()
        digest = public_key_digest(key)
        _check_not_denied(digest, denied)
        if any(one.key == digest for one in known):
            raise UsageError("this key has a certificate already; `fleetcount pki renew` makes the next one")
        alive = [one for one in known if one.ends >= self._now and one.key not in denied]
        # One space for all: a client knows a server by any name in its certificate, in any spelling.
        names = {_folded(one.names[0]): one for one in alive}
        if _folded(name) in names:
            raise UsageError(f"the name {name!r} is taken; revoke its certificate first")
        for host in hosts:
            if (found := names.get(_folded(host))) is not None:
                raise UsageError(f"--host {host!r} is the name of {_article(found.purpose)}")
        for one in alive:
            if _folded(name) in map(_folded, one.hosts):
                raise UsageError(f"the name {name!r} is a host of the {one.purpose.label} {one.names[0]!r}")
        _check_new(output)
        issued = self._register(purpose, key, name, hosts, validity)
        try:
            self._hand_out(issued, output)
        except BaseException:
            self._entry(issued).unlink()
            raise
        return issued

    def renew(
        self,
        old: x509.Certificate,
        key: ec.EllipticCurvePublicKey | None,
        output: Path,
        *,
        validity: timedelta,
        list_validity: timedelta | None,
    ) -> Issued:
        """Issue the next certificate of a party, for the same key or (`key`) a new one, and write it to a new file.

        With a new key the old one goes onto the deny list before the certificate leaves: no party counts twice. The new
        certificate is in the register by then, so that after a crash in between the same call hands it out.

        Raises:
            UsageError: the old one was not issued here or is on the deny list, the new key is on it or has a
                certificate, or `output` exists or has no directory.
        """
        known, denied = self.issued(), self._denied()
        found = next((one for one in known if one.certificate == old), None)
        if found is None:
            raise UsageError("the certificate was not issued here")
        issued = None
        public = key or found.certificate.public_key()
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise UsageError("the certificate has no P-256 key")
        if key is not None:
            digest = public_key_digest(key)
            _check_not_denied(digest, denied)
            begun = [one for one in known if one.key == digest]
            if any(one.key == found.key or one.party != found.party for one in begun):
                raise UsageError("the new key has a certificate already")
            issued = next((one for one in reversed(begun) if one.ends >= self._now), None)
        if found.key in denied and issued is None:
            raise UsageError(f"the key of {found.names[0]!r} is on the deny list; enrol a new one")
        _check_new(output)
        issued = issued or self._register(found.purpose, public, found.names[0], found.hosts, validity)
        if key is not None and found.key not in denied:
            self.write_list([found.key], list_validity)
        self._hand_out(issued, output)
        return issued

    def _register(
        self,
        purpose: Purpose,
        key: ec.EllipticCurvePublicKey,
        name: str,
        hosts: Sequence[str],
        validity: timedelta,
    ) -> Issued:
        """Issue a certificate into the register alone: what is handed out later can always be found and revoked."""
        authority = self.authority("devices" if purpose in _OF_DEVICES else "aggregators")
        issued = Issued(certificate=authority.issue(purpose, key, name, hosts, validity=validity, now=self._now))
        write_file(self._entry(issued), issued.certificate.public_bytes(Encoding.PEM), overwrite=False)
        return issued

    def _entry(self, issued: Issued) -> Path:
        return self._root / "issued" / f"{issued.purpose.label}-{issued.certificate.serial_number:x}.crt"

    def _hand_out(self, issued: Issued, output: Path) -> None:
        write_file(output, issued.certificate.public_bytes(Encoding.PEM), overwrite=False)

    def _denied(self) -> frozenset[Digest]:
        return frozenset(self.deny_list().keys)

    # The deny list.

    def deny_list(self) -> DenyList:
        """Return the newest deny list.

        Raises:
            UsageError: it is missing, or not the devices' authority's; with where copies are.
        """
        path = self._root / "deny-list"
        try:
            signed = decode_signed_deny_list(read_bytes(path))
            verify_deny_list(signed, [load_certificate(self._root / "devices.crt")])
        except (PeerError, UsageError) as error:
            # No list is begun again in its place: one without its keys would be newer, and let all of them in.
            said = error if isinstance(error, UsageError) else f"{path}: {error}"
            raise UsageError(
                f"{said}; if it is lost, put back the newest copy: aggregators that read it keep one, deny-list in"
                " their state_directory"
            ) from None
        return signed.deny_list

    def write_list(self, keys: Sequence[Digest], validity: timedelta | None) -> DenyList:
        """Sign and write the next list: the keys of the last one, and these. `validity` None: as long as the last one.

        Raises:
            UsageError: more keys than a list holds, or no last one.
        """
        last = self.deny_list()
        return self._write_next(last, keys, validity or timedelta(seconds=last.expires - last.issued_at))

    def _write_next(self, last: DenyList | None, keys: Sequence[Digest], validity: timedelta) -> DenyList:
        issued_at = int(self._now.timestamp())
        signed = sign_deny_list(
            self.authority("devices"),
            [*(last.keys if last is not None else ()), *keys],
            # The first number is the time, so that a directory that is made again exceeds its predecessor. Later ones
            # only count on: a clock that was ahead once must not leave a number that nobody reaches for years.
            number=issued_at if last is None else last.number + 1,
            issued_at=issued_at,
            expires=issued_at + int(validity.total_seconds()),
        )
        write_file(self._root / "deny-list", signed.encode())
        lists = self.revocations().values()
        write_file(self._root / "clients.crl", b"".join(one.public_bytes(Encoding.PEM) for one in lists))
        return signed.deny_list

    def revocations(self) -> dict[str, x509.CertificateRevocationList]:
        """Return what a broker reads: of each authority, by its name, the certificates whose keys are denied."""
        denied = self._denied()
        revoked = [one.certificate for one in self.issued() if one.key in denied]
        authorities = {name: self.authority(name) for name in _AUTHORITIES}
        return {
            name: one.revocations(
                [its.serial_number for its in revoked if its.issuer == one.certificate.subject], self._now
            )
            for name, one in authorities.items()
        }


def _folded(name: str) -> str:
    """Return the one spelling by which two names of certificates are compared (RFC 4343; addresses as numbers)."""
    try:
        return str(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return name.lower()


def _article(purpose: Purpose) -> str:
    return f"an {purpose.label}" if purpose is Purpose.AGGREGATOR else f"a {purpose.label}"


def _check_not_denied(key: Digest, denied: frozenset[Digest]) -> None:
    if key in denied:
        raise UsageError("this key is on the deny list; make a new one")


def _check_new(output: Path) -> None:
    if output.exists():
        raise UsageError(f"{output} exists already; nothing was written")
    if not output.absolute().parent.is_dir():
        raise UsageError(f"{output.parent} is no directory; nothing was written")

"""The checks of `fleetcount doctor`, each a function from what it looks at to one finding.

They must not repair anything or show a secret.
"""

import asyncio
import ctypes
import os
import platform
import shutil
import ssl
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from cryptography import x509
from fleetcount_client.signals import Reading, SignalSource, fault_of, knowing, read_signal, unfit
from fleetcount_protocol.channel.certificates import (
    Purpose,
    key_digest,
    load_authorities,
    load_certificate,
    load_private_key,
    purpose_of,
    verify_chain,
)
from fleetcount_protocol.channel.deny_list import decode_signed_deny_list, verify_deny_list
from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.errors import FleetcountError
from fleetcount_protocol.ids import split_endpoint
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.window.signal import kind_of
from fleetcount_transport.denials import DenySource
from fleetcount_transport.server_config import MetricsTable

from fleetcount.run.health import ask_page

LEAST_FREE_BYTES: Final = 100 * 2**20
WISHED_FREE_BYTES: Final = 2**30
EXPIRY_WARNING: Final = timedelta(days=21)
CONNECT_S: Final = 5.0
HTTP2: Final = "h2"
"""The name of HTTP/2 in ALPN (RFC 9113, section 3.1), whose server speaks first."""
_TIME_ERROR: Final = 5


class Severity:
    """How a check ended, as it is printed."""

    OK: Final = "ok"
    NOTE: Final = "note"
    FAILED: Final = "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the doctor: the thing checked, its severity, and a text that says what to know or do."""

    what: str
    severity: str
    text: str


def ok(what: str, text: str) -> Finding:
    """Return that a check found nothing wrong."""
    return Finding(what=what, severity=Severity.OK, text=text)


def note(what: str, text: str) -> Finding:
    """Return what the operator should know, though it works."""
    return Finding(what=what, severity=Severity.NOTE, text=text)


def failed(what: str, text: str) -> Finding:
    """Return what does not work."""
    return Finding(what=what, severity=Severity.FAILED, text=text)


def guarded(what: str, check: Callable[[], Finding]) -> Finding:
    """Run a check; an error of ours or of the system is a failed finding with its message."""
    try:
        return check()
    except (FleetcountError, OSError) as error:
        return failed(what, str(error))


def check_versions() -> Finding:
    """Say which versions run here."""
    names = ("fleetcount", "cryptography", "protobuf", "grpcio", "aiomqtt")
    parts = [f"Python {platform.python_version()}"]
    for name in names:
        try:
            parts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            parts.append(f"{name} not installed")
    return ok("versions", ", ".join(parts))


def check_certificate(
    certificate_file: Path, key_file: Path, authorities: Sequence[x509.Certificate], purpose: Purpose, now: float
) -> Finding:
    """Check that key and certificate belong together, the chain, the purpose and the expiry.

    Raises:
        FleetcountError, OSError: a file that cannot be used.
    """
    what = f"certificate {certificate_file.name}"
    certificate, key = load_certificate(certificate_file), load_private_key(key_file)
    if certificate.public_key() != key.public_key():
        return failed(what, f"{key_file} is not its key")
    if authorities:
        verify_chain(certificate, authorities, now, purpose)
    if (found := purpose_of(certificate)) is not purpose:
        return failed(what, f"is for the purpose {found.label}, not {purpose.label}")
    fine = "chain and key fit" if authorities else "key fits"
    return _expiry(what, certificate, now, f"{fine}, purpose {purpose.label}")


def check_authority(path: Path, now: float) -> Finding:
    """Check that an authority's file holds certificates that are valid now.

    Raises:
        FleetcountError, OSError: a file that cannot be used.
    """
    what = f"authority {path.name}"
    findings = [_expiry(what, one, now, "readable") for one in load_authorities(path)]
    return next((one for one in findings if one.severity != Severity.OK), findings[0])


def _expiry(what: str, certificate: x509.Certificate, now: float, fine: str) -> Finding:
    moment = datetime.fromtimestamp(now, UTC)
    starts, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not starts <= moment <= ends:
        valid = f"valid from {utc_text(starts.timestamp())} to {utc_text(ends.timestamp())} only"
        return failed(what, f"{valid}, and it is {utc_text(now)}")
    left = ends - moment
    severity = Severity.NOTE if left < min(EXPIRY_WARNING, (ends - starts) / 3) else Severity.OK
    return Finding(what=what, severity=severity, text=f"{fine}, {left.days} days left")


def check_deny_list(source: DenySource | None, authority_file: Path, own: Path, now: float) -> Finding:
    """Check that the deny list is genuine, has not ended and does not have the `own` certificate; say how old it is.

    Raises:
        FleetcountError, OSError: it cannot be read, or is no list of this authority's.
    """
    what = "deny list"
    if source is None:
        return note(what, "none: a certificate is good until it ends")
    signed = decode_signed_deny_list(source.read())
    verify_deny_list(signed, load_authorities(authority_file))
    found = signed.deny_list
    text = f"number {found.number}, {len(found.keys)} keys, signed {_ago(now - found.issued_at)} ago"
    if now >= found.expires:
        return failed(what, f"{text}, ended: no party is served until the next")
    if key_digest(load_certificate(own)) in found.keys:
        return failed(what, f"{text}: the key of {own.name} is denied, and whoever has the list does not serve it")
    severity = Severity.NOTE if found.expires - now < (found.expires - found.issued_at) / 3 else Severity.OK
    return Finding(what=what, severity=severity, text=f"{text}, {_ago(found.expires - now)} left")


def _ago(seconds: float) -> str:
    return f"{seconds / 86_400:.1f} days"


def check_modes(private: Iterable[Path], directories: Iterable[Path]) -> Finding:
    """Check that private files and directories are open to their owner alone."""
    wrong = [f"{path} has mode {_mode(path):04o}, not 0600" for path in private if _mode(path) & 0o077]
    wrong += [f"{path} has mode {_mode(path):04o}, not 0700" for path in directories if _mode(path) & 0o022]
    if wrong:
        return failed("file modes", "; ".join(wrong))
    return ok("file modes", "private files are private")


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode) if path.exists() else 0


def check_disk(directory: Path) -> Finding:
    """Check that the state's disk has room."""
    place = next(one for one in (directory, *directory.absolute().parents) if one.exists())
    free = shutil.disk_usage(place).free
    text = f"{free / 2**30:.1f} GiB free at {place}"
    if free < LEAST_FREE_BYTES or not os.access(place, os.W_OK):
        why = text if free < LEAST_FREE_BYTES else f"{place} cannot be written to"
        return failed("disk", why)
    return Finding(what="disk", severity=Severity.OK if free >= WISHED_FREE_BYTES else Severity.NOTE, text=text)


def check_clock(now: float, certificates: Sequence[Path]) -> Finding:
    """Check the clock against the certificates' beginning and the kernel's word on synchronisation."""
    moment = datetime.fromtimestamp(now, UTC)
    latest = max((load_certificate(path).not_valid_before_utc for path in certificates), default=moment)
    text = utc_text(now)
    if moment < latest:
        return failed("clock", f"{text} is before the certificate's beginning, {utc_text(latest.timestamp())}")
    synchronised = _kernel_synchronised()
    if synchronised is False:
        return note("clock", f"{text}; the kernel says it is not synchronised")
    return ok("clock", text)


def _kernel_synchronised() -> bool | None:
    """Return what adjtimex(2) says, None where there is no such call."""
    try:
        # The structure is only written to; no kernel's is larger than this.
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        return None
    return None if answer < 0 else answer != _TIME_ERROR


async def check_port(
    what: str,
    endpoint: str,
    tls: Callable[[], ssl.SSLContext | None],
    name: str = "",
    *,
    needed: bool = True,
    takes: bool = True,
) -> Finding:
    """Check that who listens at "host:port" shows a certificate of `name`, or with "" of the host.

    `tls` makes the context of the handshake, None where the party is reached without TLS: then anything may listen.
    Where it agrees on `HTTP2`, who listens has to take this certificate too if it `takes` those of its kind, and then
    counts no handshake that broke off.
    """
    host, port = split_endpoint(endpoint)
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        severity = Severity.FAILED if needed else Severity.NOTE
        return Finding(what=what, severity=severity, text=f"{endpoint}: {_why(error)}")
    try:
        if (context := tls()) is None:
            return note(what, f"{endpoint} listens; without TLS it does not prove who it is")
        async with asyncio.timeout(CONNECT_S):
            await writer.start_tls(context, server_hostname=name or host)
            speaks_first = writer.get_extra_info("ssl_object").selected_alpn_protocol() == HTTP2
            if takes and speaks_first and not await _heard(reader):
                return failed(what, f"{endpoint}: hung up at this certificate, which it may not accept")
    except (FleetcountError, OSError, TimeoutError) as error:
        return failed(what, f"{endpoint}: what listens there does not prove that it is {name or host!r}: {_why(error)}")
    finally:
        writer.transport.abort()  # The goodbye of who listens would have to be waited for.
    return ok(what, f"{endpoint} listens, with the certificate of {name or host!r}")


async def _heard(reader: asyncio.StreamReader) -> bool:
    """Return whether anything comes before the end of a connection, or an alert in its place."""
    try:
        return bool(await reader.read(1))
    except OSError:
        return False


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer within {CONNECT_S:g} s"
    # OpenSSL's own words for a certificate are better than the name of its error.
    said = getattr(error, "verify_message", None) or getattr(error, "strerror", None) or str(error)
    return said.lower() if isinstance(error, OSError) and said else said or type(error).__name__


def check_running(metrics: MetricsTable | None) -> list[Finding]:
    """Return what the server says of itself, if it runs and has a page to say it on."""
    page = None if metrics is None else ask_page(metrics.listen, "/readyz", "checks")
    if page is None:
        return []
    wrong = [f"{one['name']}: {one['reason']}" for one in page["checks"] if not one["ok"]]
    return [failed("running server", "; ".join(wrong)) if wrong else ok("running server", "says that it is ready")]


async def check_signal(signals: Mapping[str, SignalSource], path: str, questions: Iterable[Question]) -> Finding:
    """Read a device's signal once and say what it is: of which kind, in which unit, how old, and what it answers.

    It must not say the value.
    """
    what = f"signal {path}"
    await knowing(signals.get(path)).learn()
    reading = await read_signal(signals, path)
    about = {one.name: part.domain for one in questions for part in one.parts if part.signal == path}
    faults = {name: unfit(signals, path, domain) or fault_of(reading, domain) for name, domain in about.items()}
    told = [f"never answers {name!r}: {why}" for name, why in faults.items() if why]
    told += [f"fits {name!r}" for name, why in faults.items() if not why]
    if reading.fault:
        return failed(what, "; ".join([f"no signal: {reading.fault}", *told]))
    if any(faults.values()):
        return failed(what, "; ".join([_found(reading), *told]))
    severity = Severity.NOTE if reading.value is None else Severity.OK
    return Finding(what=what, severity=severity, text="; ".join([_found(reading), *told]))


def _found(reading: Reading) -> str:
    age = "" if reading.age_s is None else f", {reading.age_s:.0f} s old"
    if reading.value is None:
        return f"no value{age}: {reading.why_none}"
    kind = kind_of(reading.value)
    found = "a set of names" if isinstance(reading.value, frozenset) else "nothing" if kind is None else kind.value
    unit = f" in {reading.unit}" if reading.unit else ""
    return f"found {found}{unit}{age}"

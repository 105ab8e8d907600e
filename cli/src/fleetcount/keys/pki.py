"""`fleetcount pki`: the operator's authorities, the certificates of all parties, and the deny list.

It writes certificates from requests and prints names and dates; it must not print or see another party's private key.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
from cryptography.hazmat.primitives.asymmetric import ec
from fleetcount_protocol.channel.certificates import Purpose, key_digest, key_pem, load_certificate, random_device_name
from fleetcount_protocol.channel.user_names import slot_name
from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.ids import AggregatorId

from fleetcount.command.base import StrictCommand
from fleetcount.command.options import PATH, Count, write_file
from fleetcount.keys.describing import check_names
from fleetcount.keys.pki_directory import Issued, PkiDirectory
from fleetcount.keys.requests import make_request, read_request

_Command = TypeVar("_Command", bound=Callable[..., Any])
_PKI = click.option("--pki", "root", required=True, type=PATH, metavar="DIR", help="The enrolment directory.")
_CSR = click.option("--csr", required=True, type=PATH, metavar="FILE", help="The party's signing request.")
_OUTPUT = click.option("--output", required=True, type=PATH, metavar="FILE.crt", help="The new certificate's file.")
_NAME = click.option("--name", required=True, help="The party's name: a DNS name; an aggregator's id.")
_HOST = click.option("--host", "hosts", multiple=True, required=True, help="Where it is reached; may be repeated.")
_LIST_DAYS = click.option(
    "--valid-days", type=Count(1, 100), help="How long the new deny list is good for (as long as the last was)."
)


def _days(default: int) -> Callable[[_Command], _Command]:
    return click.option("--days", type=Count(1, 3650), default=default, show_default=True, help="How long it is valid.")


@click.command("init", cls=StrictCommand)
@click.option("--output", required=True, type=PATH, metavar="DIR", help="A new or empty directory.")
@click.option("--deployment", required=True, help="Name: a-z, 0-9 and '-', at most 32.")
@click.option("--years", type=Count(1, 30), default=10, show_default=True, help="How long the authorities live.")
@click.option("--valid-days", type=Count(1, 100), default=7, show_default=True, help="How long a deny list is good.")
def init(output: Path, deployment: str, years: int, valid_days: int) -> None:
    """Make the authority of devices and readers, that of aggregators, relays and brokers, and an empty deny list.

    \b
    DIR/devices.crt       for device_ca_file of aggregators and relays
    DIR/aggregators.crt   for aggregator_ca_file, and ca_file of devices
    DIR/clients.crt       both: for a broker's cafile
    DIR/clients.crl       what they have revoked: for a broker's crlfile
    DIR/deny-list         for deny_list_file or deny_list_url
    """
    check_names(deployment, "127.0.0.1", "")
    PkiDirectory.create(
        output, deployment, validity=timedelta(days=365 * years), list_validity=timedelta(days=valid_days)
    )
    click.echo(f"{output}: two authorities of {deployment!r} for {years} years; keep {output}/*.key apart")


@click.command("request", cls=StrictCommand)
@click.option("--output", required=True, type=PATH, metavar="BASE", help="Writes BASE.key (mode 0600) and BASE.csr.")
def request(output: Path) -> None:
    """Make a P-256 key and a request for a certificate. The key stays here, the request goes to the operator."""
    key_file, csr_file = (output.with_name(f"{output.name}.{end}") for end in ("key", "csr"))
    for file in (key_file, csr_file):
        if file.exists():
            raise UsageError(f"{file} exists already; nothing was written")
    key = ec.generate_private_key(ec.SECP256R1())
    write_file(key_file, key_pem(key), mode=0o600, overwrite=False)
    try:
        write_file(csr_file, make_request(key, None, "", ()), overwrite=False)
    except BaseException:
        key_file.unlink()
        raise
    click.echo(f"{csr_file}: hand it to the operator; {key_file} stays where it is")


@click.command("enrol", cls=StrictCommand)
@_PKI
@_CSR
@_OUTPUT
@_days(90)
def enrol(root: Path, csr: Path, output: Path, days: int) -> None:
    """Issue a device's certificate, under a random name whatever the request says.

    Make it longer than a device's new ledger waits, 30 days by default.
    """
    _enrol(root, Purpose.DEVICE, csr, random_device_name(), (), output, days)


@click.command("reader", cls=StrictCommand)
@_PKI
@_CSR
@_NAME
@_OUTPUT
@_days(365)
def reader(root: Path, csr: Path, name: str, output: Path, days: int) -> None:
    """Issue a reader's certificate: it reads windows and releases, and reports nothing."""
    _enrol(root, Purpose.READER, csr, name, (), output, days)


def _listening(purpose: str, text: str) -> click.Command:
    """Return the command that issues certificates of a party that listens."""

    @click.command(purpose, cls=StrictCommand, help=text)
    @_PKI
    @_CSR
    @_NAME
    @_HOST
    @_OUTPUT
    @_days(365)
    def command(root: Path, csr: Path, name: str, hosts: tuple[str, ...], output: Path, days: int) -> None:
        _enrol(root, Purpose[purpose.upper()], csr, name, hosts, output, days)

    return command


aggregator = _listening(
    "aggregator", "Issue an aggregator's certificate. --name is its id, which peers and devices look for."
)


@click.command("slot", cls=StrictCommand)
@_PKI
@_CSR
@click.option("--name", required=True, help="The aggregator's id.")
@click.option(
    "--slot", required=True, type=Count(1, 15), help="Which connection; 0 has the aggregator's own certificate."
)
@_OUTPUT
@_days(365)
def slot(root: Path, csr: Path, name: str, slot: int, output: Path, days: int) -> None:
    """Issue the certificate of one of an aggregator's slots at the MQTT broker, under the name NAME-slotSLOT.

    A broker gives one certificate one connection: with slots = N in [mqtt], slots 1 to N - 1 have one of their own. The
    files lie beside those of certificate_file and key_file, with -slotSLOT before the ending.
    """
    try:
        user = slot_name(AggregatorId(name), slot)
    except DecodeError as error:
        raise UsageError(str(error)) from None
    directory, key = PkiDirectory(root), read_request(csr).key
    with directory.locked():
        issued = directory.enrol(Purpose.AGGREGATOR, key, user, (), output, validity=timedelta(days=days), is_slot=True)
    _say(output, issued)


relay = _listening("relay", "Issue a relay's certificate: it carries reports, and is no peer.")
broker = _listening(
    "broker", "Issue an MQTT broker's certificate: it listens under its hosts' names, and calls no party."
)


def _enrol(root: Path, purpose: Purpose, csr: Path, name: str, hosts: tuple[str, ...], output: Path, days: int) -> None:
    directory, key = PkiDirectory(root), read_request(csr).key
    with directory.locked():
        issued = directory.enrol(purpose, key, name, hosts, output, validity=timedelta(days=days))
    _say(output, issued)


def _say(output: Path, issued: Issued) -> None:
    click.echo(f"{output}: {issued.purpose.label} {issued.names[0]}, until {utc_text(issued.ends.timestamp())}")


@click.command("renew", cls=StrictCommand)
@_PKI
@click.option("--certificate", required=True, type=PATH, metavar="FILE.crt", help="The party's present certificate.")
@click.option("--csr", type=PATH, metavar="FILE", help="A request for a new key; the old key is denied at once.")
@_OUTPUT
@click.option("--days", type=Count(1, 3650), help="How long it is valid (as long as the present one).")
@_LIST_DAYS
def renew(
    root: Path, certificate: Path, csr: Path | None, output: Path, days: int | None, valid_days: int | None
) -> None:
    """Issue the next certificate, with the names and the purpose of the present one.

    With a new key the party is a new one to those who count: so that it does not count twice, its old key goes onto the
    deny list, and what it sent under it to windows that have not ended is left out.
    """
    directory, old = PkiDirectory(root), _certificate(certificate)
    key = None if csr is None else read_request(csr).key
    # One that ends before the present one is taken by no device.
    validity = old.not_valid_after_utc - old.not_valid_before_utc if days is None else timedelta(days=days)
    with directory.locked():
        issued = directory.renew(old, key, output, validity=validity, list_validity=_length(valid_days))
    _say(output, issued)


def _certificate(path: Path) -> Any:
    try:
        return load_certificate(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


@click.command("revoke", cls=StrictCommand)
@_PKI
@click.option("--certificate", type=PATH, metavar="FILE.crt", help="The party's certificate.")
@click.option("--name", help="Or the party's name, as `pki list` shows it.")
@_LIST_DAYS
def revoke(root: Path, certificate: Path | None, name: str | None, valid_days: int | None) -> None:
    """Put a party's public key onto the deny list and sign the next list, DIR/deny-list.

    Aggregators and relays take it within a second from the file their deny_list_file names, within 30 s from a URL.
    """
    if (certificate is None) == (name is None):
        raise UsageError("give --certificate or --name, exactly one of them")
    directory = PkiDirectory(root)
    wanted = None if certificate is None else _certificate(certificate)
    with directory.locked():
        found = [one.certificate for one in directory.issued() if one.certificate == wanted or one.names[0] == name]
        if not found:
            raise UsageError(f"{name or certificate} was not issued here; `fleetcount pki list` shows what was")
        _write_list(directory, found, valid_days)


@click.command("deny-list", cls=StrictCommand)
@_PKI
@_LIST_DAYS
def deny_list(root: Path, valid_days: int | None) -> None:
    """Sign the next deny list, with the same keys and a new end: under one that has ended no party is served."""
    directory = PkiDirectory(root)
    with directory.locked():
        _write_list(directory, [], valid_days)


def _length(days: int | None) -> timedelta | None:
    return None if days is None else timedelta(days=days)


def _write_list(directory: PkiDirectory, certificates: list[Any], valid_days: int | None) -> None:
    made = directory.write_list([key_digest(one) for one in certificates], _length(valid_days))
    click.echo(f"deny list {made.number}: {len(made.keys)} keys, until {utc_text(made.expires)}")


@click.command("list", cls=StrictCommand)
@_PKI
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of lines.")
def list_issued(root: Path, as_json: bool) -> None:
    """List authorities, deny list and certificates, the first to end first."""
    directory, now = PkiDirectory(root), datetime.now(UTC)
    denied = directory.deny_list()
    rows = [
        {
            "kind": "authority",
            "name": name,
            "state": _state(one.not_valid_after_utc, now),
            **_end(one.not_valid_after_utc, now),
        }
        for name, one in directory.authorities().items()
    ]
    end = datetime.fromtimestamp(denied.expires, UTC)
    rows.append(
        {
            "kind": "deny list",
            "name": f"{denied.number}, {len(denied.keys)} keys",
            "state": _state(end, now),
            **_end(end, now),
        }
    )
    for one in directory.issued():
        state = "revoked" if one.key in denied.keys else _state(one.ends, now)
        rows.append(
            {
                "kind": one.purpose.label,
                "name": one.names[0],
                "state": state,
                **_end(one.ends, now),
                "key": str(one.key),
            }
        )
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        click.echo(f"{row['kind']:<10} {row['state']:<7} {row['ends']}  {row['days_left']:>5} days  {row['name']}")


def _state(end: datetime, now: datetime) -> str:
    return "valid" if now <= end else "expired"


def _end(end: datetime, now: datetime) -> dict[str, Any]:
    return {"ends": utc_text(end.timestamp()), "days_left": (end - now).days}

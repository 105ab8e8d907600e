"""`fleetcount broker new` and `join`: mosquitto as the broker of some operators, and of one more.

A folder with a key and a request, what mosquitto is configured by, whom it lets in and to which topics. It must not
print a key, and it starts nothing.
"""

import contextlib
import os
import pwd
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from fleetcount_protocol.channel.certificates import Purpose, load_authorities
from fleetcount_protocol.errors import UsageError
from fleetcount_simulator.network.deployments import endpoint_of, hosts_of

from fleetcount.command.base import StrictCommand, one_line
from fleetcount.command.options import PATH, read_bytes, read_text, write_file
from fleetcount.keys.describing import host_and_port, listening_host
from fleetcount.keys.descriptors import authorities_pem, read_operators
from fleetcount.keys.joining import (
    FINGERPRINT,
    JOINED,
    Here,
    Joining,
    check_joining,
    confirm,
    read_joining,
    refuse_another,
)
from fleetcount.keys.requests import (
    DESCRIPTORS,
    HOST,
    OUTPUT,
    begin_party,
    check_file_name,
    sample,
    say_made,
)

_PORT: Final = 8883
_CONF: Final = "mosquitto.conf"
_ACL: Final = "mosquitto.acl"
_CLIENTS: Final = "clients.crt"
_REVOKED: Final = "clients.crl"
_LIST: Final = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----\n?", re.DOTALL)


@click.command("new", cls=StrictCommand)
@click.argument("name")
@DESCRIPTORS
@HOST
@OUTPUT
def new(name: str, descriptors: tuple[Path, ...], host: str, output: Path | None) -> None:
    """Make what an MQTT broker needs: NAME.key, which stays, NAME.request, and the files of mosquitto.

    It lets in whom the operators certify, each to its own topics, at port 8883 if --host names none. Run again it
    changes nothing; `fleetcount broker join` adds an operator that comes later.
    """
    check_file_name(name)
    where, port = host_and_port(host, _PORT)
    operators, output = read_operators(descriptors), output or Path(name)
    _check_place(endpoint_of(where, port), {one.aggregator.mqtt_broker for _, one, _ in operators})
    ids = [str(one.aggregator.aggregator_id) for _, one, _ in operators]
    clients = [one for _, _, added in operators for one in (added.device_authority, added.aggregator_authority)]
    lists = [one for _, _, added in operators for one in (added.device_revocations, added.aggregator_revocations)]
    files = {
        _CONF: "".join(_conf(name, output.absolute(), listening_host(where), port)).encode(),
        _ACL: "".join(_acl(operators[0][2].deployment, ids)).encode(),
        _CLIENTS: authorities_pem(clients),
        _REVOKED: authorities_pem(lists),
        **{f"{one}.descriptor.toml": path.read_bytes() for one, (path, _, _) in zip(ids, operators, strict=True)},
    }
    made = begin_party(output, Purpose.BROKER, name, hosts_of(where), files, _CONF)
    runs = f"for `mosquitto -c {output / _CONF}`, once it is admitted"
    say_made(output, name, made, [(str(output / _CONF), runs)])


def _check_place(place: str, known: set[str]) -> None:
    """Refuse a broker that is not where the operators' descriptors send devices and aggregators to."""
    if others := sorted(known - {"", place}):
        named = " and ".join(map(repr, others))
        raise UsageError(f"--host is {place!r}, but the descriptors name the broker {named}; it must be the same")


def _conf(name: str, place: Path, host: str, port: int) -> Iterator[str]:
    """Yield the lines of the shipped mosquitto.conf, with the files of this folder."""
    files = {"certfile": f"{name}.crt", "keyfile": f"{name}.key"}
    for line in sample(_CONF).splitlines(keepends=True):
        key, _, value = line.strip().partition(" ")
        if key == "listener":
            yield f"listener {port} {host}\n"
        elif key in {"cafile", "crlfile", "certfile", "keyfile", "acl_file"}:
            yield f"{key} {place / files.get(key, Path(value).name)}\n"
        elif key == "persistence_location":
            yield f"{key} {place}/\n"
        else:
            yield line
    # Begun by root, mosquitto would give up the rights to this folder. A user may have no name, as in a container.
    with contextlib.suppress(KeyError):
        owner = pwd.getpwuid(os.geteuid()).pw_name
        yield f"\n# Whose folder this is; of other users only root may become that one.\nuser {owner}\n"


def _acl(deployment: str, ids: list[str]) -> Iterator[str]:
    """Yield the lines of the shipped mosquitto.acl: those of all devices, and of each aggregator its own."""
    lines = sample(_ACL).replace("DEPLOYMENT", deployment).splitlines()
    yield "# Who may read and write what; by `fleetcount broker new`. Users are the names in certificates.\n"
    yield "# Mosquitto warns of the two lines without %u: they are for everybody with a certificate.\n\n"
    yield from (f"{line}\n" for line in lines if line.startswith("pattern "))
    for one in ids:
        yield _block(deployment, one)


def _block(deployment: str, name: str) -> str:
    """Return the rules of one aggregator, as the shipped mosquitto.acl has them of alpha, behind an empty line."""
    lines = sample(_ACL).replace("DEPLOYMENT", deployment).splitlines()
    start = lines.index("user alpha")
    block = lines[start : lines.index("", start)]
    return "\n" + "".join(f"{line.replace('alpha', name)}\n" for line in block)


# An operator that comes later.


@click.command("join", cls=StrictCommand)
@JOINED
@click.option("--directory", type=PATH, default=Path(), metavar="DIR", help="The broker's folder (this one).")
@FINGERPRINT
def join(descriptor: Path, directory: Path, fingerprint: str | None) -> None:
    """Let in whom another operator certifies, once the fingerprint that it reads to you is the one of its descriptor.

    Its authorities, their lists of revoked certificates and the rules of its aggregator come behind those that are
    there, which stay as they are. Mosquitto reads them at a reload (SIGHUP). Run again it changes nothing.
    """
    for file in (_CONF, _ACL, _CLIENTS, _REVOKED):
        if not (directory / file).is_file():
            raise UsageError(
                f"{directory / file} is not there; give --directory, the folder that `fleetcount broker new` made"
            )
    joining, known = read_joining(descriptor), _known(directory)
    before = known.pop(joining.name, None)
    files = dict(_added(directory, joining))
    if before is not None:
        _refuse_another(directory, before, joining)
        if not files:
            click.echo(f"{directory}: {joining.name!r} is let in already; nothing was changed")
            return
    else:
        files = {f"{joining.name}.descriptor.toml": descriptor.read_bytes(), **files}
    check_joining(joining, _here(directory, known))
    confirm(joining, fingerprint)
    for file, content in files.items():
        write_file(directory / file, content)
    click.echo(one_line(f"{directory}: added {joining.name!r} of {joining.operator!r}"))
    click.echo("next: a reload (SIGHUP), at which mosquitto reads it: systemctl reload mosquitto, or kill -HUP PID")


def _known(directory: Path) -> dict[str, Joining]:
    """Return the operators that have their rules here, by the id of their aggregators.

    The rules are written last: a descriptor without them is of a join that was cut short, or was put here to be joined.
    """
    files = {name: directory / f"{name}.descriptor.toml" for name in _users(read_text(directory / _ACL))}
    return {name: read_joining(path) for name, path in files.items() if path.is_file()}


def _users(acl: str) -> list[str]:
    return re.findall(r"^user (\S+)$", acl, re.MULTILINE)


def _here(directory: Path, known: dict[str, Joining]) -> Here:
    if not known:
        raise UsageError(f"{directory} has no descriptor of an operator; `fleetcount broker new` begins with two")
    return Here(
        who="broker",
        deployment=next(iter(known.values())).parts.deployment,
        broker=next((one.descriptor.aggregator.mqtt_broker for one in known.values()), ""),
        operators=[one.operator for one in known.values()],
        authorities=[
            authority
            for one in known.values()
            for authority in (one.parts.aggregator_authority, one.parts.device_authority)
        ],
    )


def _refuse_another(directory: Path, before: Joining, joining: Joining) -> None:
    one, other = before.descriptor.aggregator, joining.descriptor.aggregator
    same = {
        "signing_public_key": one.signing_public_key == other.signing_public_key,
        "operator": one.operator == other.operator,
        "aggregator_authority": before.parts.aggregator_authority == joining.parts.aggregator_authority,
        "device_authority": before.parts.device_authority == joining.parts.device_authority,
    }
    where = directory / f"{joining.name}.descriptor.toml"
    refuse_another(where, joining.name, same, "take its authorities and rules out by hand")


def _added(directory: Path, joining: Joining) -> Iterator[tuple[str, bytes]]:
    """Yield the files in which the operator is missing, with it, in the order in which they are written.

    A list comes before its authority, without which mosquitto would let nobody of it in; the rules come last. A list of
    the authority that is there stays: it may be a newer one.
    """
    parts = joining.parts
    pairs = (
        (parts.device_authority, parts.device_revocations),
        (parts.aggregator_authority, parts.aggregator_revocations),
    )
    pem = read_bytes(directory / _REVOKED)
    present = [x509.load_pem_x509_crl(one) for one in _LIST.findall(pem)]
    if lists := [given for authority, given in pairs if not any(_is_signed(one, authority) for one in present)]:
        yield _REVOKED, pem + authorities_pem(lists)
    trusted = load_authorities(directory / _CLIENTS)
    if fresh := [authority for authority, _ in pairs if authority not in trusted]:
        yield _CLIENTS, read_bytes(directory / _CLIENTS) + authorities_pem(fresh)
    acl = read_text(directory / _ACL)
    if joining.name not in _users(acl):
        yield _ACL, (acl + _block(parts.deployment, joining.name)).encode()


def _is_signed(found: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    public = authority.public_key()
    return isinstance(public, ec.EllipticCurvePublicKey) and found.is_signature_valid(public)

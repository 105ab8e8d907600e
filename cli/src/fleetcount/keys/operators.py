"""`fleetcount operator new`, `join` and `admit`: an operator's first hour, on its own machine, with nobody's help.

A folder with keys and authorities, the other operators, and the certificates of those who ask. It prints what was made,
what to hand to whom and what comes next; it must not print a key.
"""

import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click
from cryptography.hazmat.primitives.asymmetric import ec
from fleetcount_aggregator.config import AggregatorConfig, load_config
from fleetcount_aggregator.host.keys import load_signing_key
from fleetcount_protocol.channel.certificates import (
    Purpose,
    load_authorities,
    load_certificate,
    random_device_name,
    save_certificates,
)
from fleetcount_protocol.channel.user_names import slot_name
from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.errors import FleetcountError, UsageError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.window.fields import Aggregator, HpkeKey
from fleetcount_protocol.wire.topics import BUCKETS
from fleetcount_simulator.network.deployments import (
    HPKE_KEY_ID,
    AggregatorPlan,
    endpoint_of,
    hosts_of,
    listeners,
    own_tables,
    own_tls,
    peer_table,
    write_keys,
)
from fleetcount_transport.toml_table import ConfigError
from fleetcount_transport.toml_writing import toml_tables, toml_text

from fleetcount.command.base import RefusedByPolicyError, StrictCommand, one_line
from fleetcount.command.options import PATH, Count, read_text, write_file
from fleetcount.keys.describing import check_names, encode_descriptor, fingerprint_of, host_and_port, listening_host
from fleetcount.keys.descriptors import OperatorParts, authorities_pem, read_whole_descriptor
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
from fleetcount.keys.pki_directory import Issued, PkiDirectory
from fleetcount.keys.requests import MIN_BATCH, SHOWN_DIGITS, Request, new_directory, read_request

_CONFIG: Final = "aggregator.toml"
_DIRECTORY: Final = click.option(
    "--directory", type=PATH, default=Path(), metavar="DIR", help="The operator's folder (this one)."
)
_DEVICE_PORT: Final = 7411
_TO_PEER_PORT: Final = 10
_YEAR: Final = timedelta(days=365)
_LIST_VALIDITY: Final = timedelta(days=90)
_DEVICE_DAYS: Final = 90
"""Longer than the 30 days for which a device's new ledger waits by default."""
_DAYS: Final = 365


@click.command("new", cls=StrictCommand)
@click.argument("name")
@click.option("--host", required=True, metavar="HOST[:PORT]", help="Where all others reach it; port 7411 for devices.")
@click.option("--peer-port", type=Count(1, 65_535), metavar="N", help="The port for other operators (PORT + 10).")
@click.option("--output", type=PATH, metavar="DIR", help="A new folder (NAME).")
@click.option("--deployment", default="fleet", show_default=True, help="The same for all operators and devices.")
@click.option("--operator", metavar="TEXT", help="Who runs it, as questions name it ('Operator of NAME').")
@click.option("--broker", default="", metavar="HOST:PORT", help="The MQTT broker; without it no reports over MQTT.")
@MIN_BATCH
def new(**options: Any) -> None:
    """Make everything one operator needs: keys, authorities, certificate, configuration, descriptor.

    \b
    DIR/aggregator.toml         for `fleetcount aggregator serve --config`
    DIR/NAME.descriptor.toml    public: for the other operators and all who ask, answer or carry
    DIR/keys/, DIR/pki/         private keys, and the authority of this operator
    DIR/peers/, DIR/trusted/    what `fleetcount operator join` adds

    Private files get mode 0600 and never leave the folder. Run again it changes nothing.
    """
    request = _New(**options)
    host, port = host_and_port(request.host, _DEVICE_PORT)
    check_names(request.deployment, host, request.broker)
    plan = AggregatorPlan(
        aggregator_id=_id(request.name),
        operator=request.operator or f"Operator of {request.name}",
        host=host,
        device_port=port,
        peer_port=request.peer_port or port + _TO_PEER_PORT,
    )
    if not plan.device_port < 65_536 > plan.peer_port or plan.device_port == plan.peer_port:
        raise UsageError(f"--peer-port is {plan.peer_port}; it must be 1 to 65535 and not {port}, the devices'")
    root = request.output or Path(request.name)
    descriptor = root / f"{request.name}.descriptor.toml"
    if (root / _CONFIG).exists() and descriptor.exists():
        _refuse_another(root, descriptor, plan, request)
        click.echo(f"{root} was made before: nothing was changed")
    else:
        _make(root, descriptor.name, plan, request)
    _say_made(root, descriptor, plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class _New:
    """The options as click gives them."""

    name: str
    host: str
    peer_port: int | None
    output: Path | None
    deployment: str
    operator: str | None
    broker: str
    min_batch: int


def _id(name: str) -> AggregatorId:
    try:
        return AggregatorId(name)
    except FleetcountError as error:
        raise UsageError(f"NAME: {error}") from None


def _refuse_another(root: Path, descriptor: Path, plan: AggregatorPlan, request: _New) -> None:
    """Refuse a folder of another aggregator, of one that others reach elsewhere, or that counts other batches."""
    found, limits = read_whole_descriptor(descriptor), load_config(root / _CONFIG, {}).limits
    one, added = found.aggregator, found.operator_parts
    peers = "" if added is None else added.peer_endpoint
    said = {
        "NAME": (one.aggregator_id, plan.aggregator_id),
        "--operator": (one.operator, plan.operator),
        "--host": (one.grpc_endpoint, endpoint_of(plan.host, plan.device_port)),
        "--peer-port": (peers, endpoint_of(plan.host, plan.peer_port)),
        "--broker": (one.mqtt_broker, request.broker),
        "--deployment": ("" if added is None else added.deployment, request.deployment),
        "--min-batch": (str(limits.smallest_min_batch_size), str(request.min_batch)),
    }
    for option, (before, now) in said.items():
        if before != now:
            raise UsageError(f"{root} has {before!r}, {option} gives {now!r}; nothing was changed")


def _make(root: Path, descriptor: str, plan: AggregatorPlan, request: _New) -> None:
    name, tls_key = str(plan.aggregator_id), ec.generate_private_key(ec.SECP256R1())
    with new_directory(root) as stage:
        pki = PkiDirectory.create(
            stage / "pki", f"{request.deployment} {name}", validity=10 * _YEAR, list_validity=_LIST_VALIDITY
        )
        signing, sealing = write_keys(stage, tls_key)
        pki.enrol(
            Purpose.AGGREGATOR,
            tls_key.public_key(),
            name,
            hosts_of(plan.host),
            stage / "keys" / "aggregator.crt",
            validity=_YEAR,
        )
        for part in ("peers", "trusted"):
            (stage / part).mkdir(mode=0o700)
        for kind, certificate in pki.authorities().items():
            save_certificates(stage / "trusted" / f"{kind}.crt", [certificate])
        write_file(stage / _CONFIG, _aggregator_toml(plan, request).encode(), overwrite=False)
        public = Aggregator(
            aggregator_id=plan.aggregator_id,
            operator=plan.operator,
            grpc_endpoint=endpoint_of(plan.host, plan.device_port),
            mqtt_broker=request.broker,
            hpke_keys=(HpkeKey(key_id=HPKE_KEY_ID, public_key=sealing),),
            signing_public_key=signing,
        )
        added = OperatorParts(
            deployment=request.deployment,
            peer_endpoint=endpoint_of(plan.host, plan.peer_port),
            aggregator_authority=pki.authorities()["aggregators"],
            device_authority=pki.authorities()["devices"],
            aggregator_revocations=pki.revocations()["aggregators"],
            device_revocations=pki.revocations()["devices"],
        )
        write_file(stage / descriptor, encode_descriptor(public, added).encode(), overwrite=False)
        load_config(stage / _CONFIG, {})


def _aggregator_toml(plan: AggregatorPlan, request: _New) -> str:
    own, keys = own_tables(plan, request.deployment)
    rotation = {"rotate_s": "2592000         # a new sealing key every 30 days; old ones are erased"}
    tls = {**own_tls("pki/aggregators.crt", "trusted/devices.crt"), "deny_list_file": '"pki/deny-list"'}
    tables = [
        own,
        (keys[0], {**keys[1], **rotation}),
        ("[tls]", tls),
        ("[grpc]", listeners(plan, listening_host(plan.host))),
    ]
    if request.broker:
        rows = {
            "broker": toml_text(request.broker),
            "ca_file": '"trusted/aggregators.crt"',
            "certificate_file": '"keys/aggregator.crt"',
            "key_file": '"keys/aggregator.key"',
            "inflight": "1000            # what the broker of `fleetcount broker new` allows",
        }
        tables.append(("[mqtt]", rows))
    limits = {
        "largest_epsilon": '"4"      # of the questions that overlap on one signal, summed',
        "total_epsilon": '"40"       # of all questions on one signal within 30 days',
        "smallest_min_batch_size": f"{request.min_batch}",
    }
    comment = "One aggregator, by `fleetcount operator new`. Every path is relative to this file."
    return toml_tables(comment, [*tables, ("[limits]", limits)])


def _say_made(root: Path, descriptor: Path, plan: AggregatorPlan) -> None:
    ends = datetime.fromtimestamp(PkiDirectory(root / "pki").deny_list().expires, UTC)
    certificate = load_certificate(root / "keys" / "aggregator.crt").not_valid_after_utc
    rows = [
        (f"{root / _CONFIG}", f"aggregator {plan.aggregator_id!r} of {plan.operator!r}"),
        (f"{root / 'keys'}, {root / 'pki'}", "private: nothing of them leaves this folder"),
        (f"{descriptor}", "public: hand it to the other operators, and to all who ask, answer or carry"),
        ("fingerprint", f"{fingerprint_of(descriptor)} (read it to the other operators by voice)"),
        ("ends", f"certificate {certificate:%Y-%m-%d} (fleetcount pki renew), deny list {ends:%Y-%m-%d}"),
        ("next", f"fleetcount operator join PEER.descriptor.toml --directory {root}"),
    ]
    for what, text in rows:
        click.echo(one_line(f"{what}: {text}"))


# Another operator.


@click.command("join", cls=StrictCommand)
@JOINED
@_DIRECTORY
@FINGERPRINT
def join(descriptor: Path, directory: Path, fingerprint: str | None) -> None:
    """Trust another operator, once the fingerprint that it reads to you is the one of its descriptor.

    Its aggregator becomes one of [[peers]], whom its own authority alone certifies; devices and analysts that it admits
    are served here, and its relays may come. Run again it changes nothing.
    """
    config, joining = _config_of(directory), read_joining(descriptor)
    if _is_joined(directory, config, joining):
        click.echo(f"{directory / _CONFIG}: {joining.name!r} is a peer already; nothing was changed")
        return
    _check_peer(config, PkiDirectory(directory / "pki"), joining)
    confirm(joining, fingerprint)
    _add(directory, joining)
    click.echo(one_line(f"{directory / _CONFIG}: added {joining.name!r} of {joining.operator!r}"))
    click.echo(f"next: fleetcount aggregator serve --config {directory / _CONFIG}")


def _config_of(directory: Path) -> AggregatorConfig:
    path = directory / _CONFIG
    if not path.is_file():
        raise UsageError(f"{path} is not there; give --directory, the folder that `fleetcount operator new` made")
    return load_config(path, {})


def _is_joined(directory: Path, config: AggregatorConfig, joining: Joining) -> bool:
    """Return whether the configuration has this very peer.

    Raises:
        RefusedByPolicyError: it has one of this id that is somebody else, or is reached elsewhere.
    """
    one, added = joining.descriptor.aggregator, joining.parts
    peer = next((peer for peer in config.peers if peer.id == joining.name), None)
    if peer is None:
        return False
    same = {
        "signing_public_key": peer.signing_public_key == one.signing_public_key,
        "operator": peer.operator == one.operator,
        "endpoint": peer.endpoint == added.peer_endpoint,
        "ca_file": peer.ca_file is not None and load_authorities(peer.ca_file) == (added.aggregator_authority,),
    }
    refuse_another(directory / _CONFIG, joining.name, same, "take its [[peers]] out by hand")
    return True


def _check_peer(config: AggregatorConfig, pki: PkiDirectory, joining: Joining) -> None:
    own, signing = config.aggregator, load_signing_key(config.keys.signing_key_file).public_key().public_bytes_raw()
    if joining.name == own.id or joining.descriptor.aggregator.signing_public_key == signing:
        raise UsageError(
            f"{joining.path} describes this aggregator itself, {own.id!r}; give that of the other operator"
        )
    # Not what is in trusted/ already: a join that was cut short is finished.
    known = {
        *pki.authorities().values(),
        *(one for peer in config.peers if peer.ca_file is not None for one in load_authorities(peer.ca_file)),
    }
    here = Here(
        who="aggregator",
        deployment=own.deployment,
        broker="" if config.mqtt is None else config.mqtt.broker,
        operators=(own.operator, *(peer.operator for peer in config.peers)),
        authorities=known,
    )
    check_joining(joining, here)


def _add(directory: Path, joining: Joining) -> None:
    """Write the peer's files, and its [[peers]] last: what a crash leaves before is written again.

    Raises:
        UsageError: the configuration would be refused with this peer; then its authorities are not trusted either.
    """
    name, added = joining.name, joining.parts
    ca_file = f"peers/{name}.crt"
    heading, rows = peer_table(joining.descriptor.aggregator, added.peer_endpoint, ca_file)
    peer = toml_tables("", [(heading, rows)]).partition("\n")[2]
    text = read_text(directory / _CONFIG).rstrip("\n") + "\n" + peer
    candidate = directory / f".{_CONFIG}.next"
    write_file(candidate, text.encode())
    try:
        load_config(candidate, {})
        write_file(directory / ca_file, authorities_pem([added.aggregator_authority]))
        for kind, authority in (("aggregators", added.aggregator_authority), ("devices", added.device_authority)):
            trusted = directory / "trusted" / f"{kind}.crt"
            write_file(trusted, authorities_pem(list(dict.fromkeys((*load_authorities(trusted), authority)))))
        write_file(directory / f"{name}.descriptor.toml", joining.path.read_bytes())
        candidate.replace(directory / _CONFIG)
    except ConfigError as error:
        said = str(error).removeprefix(f"{candidate}: ")
        raise UsageError(f"{joining.path} cannot be a peer here: {said}; nothing was changed") from error
    finally:
        candidate.unlink(missing_ok=True)


# Those who ask, answer and carry.


@click.command("admit", cls=StrictCommand)
@click.argument("requests", metavar="NAME.request...", nargs=-1, required=True, type=PATH)
@_DIRECTORY
@click.option("--days", type=Count(1, 3650), help="How long the certificates are valid (90 for a device, else 365).")
@click.option("--yes", is_flag=True, help="Do not ask.")
def admit(requests: tuple[Path, ...], directory: Path, days: int | None, yes: bool) -> None:
    """Certify devices, analysts, relays and brokers that ask for it: NAME.crt beside each request, to hand back.

    One operator admits a party, and all serve it. A device gets a random name. Run again it changes nothing.
    """
    config, pki = _config_of(directory), PkiDirectory(directory / "pki")
    asked = [_checked(path, read_request(path), config) for path in requests]
    with pki.locked():
        known, denied = {one.key: one for one in pki.issued()}, pki.deny_list().keys
        for one in asked:
            if one.request.digest in denied:
                raise RefusedByPolicyError(f"{one.path}: this key is on the deny list; nothing was admitted")
        fresh = [one for one in asked if one.request.digest not in known]
        for one in fresh:
            click.echo(one_line(str(one)))
        if fresh and not yes and not _agreed(len(fresh)):
            raise UsageError("nothing was admitted")
        for one in asked:
            _reply(pki, one, known.get(one.request.digest), days)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A request that may be admitted, and its file."""

    path: Path
    request: Request
    purpose: Purpose

    def __str__(self) -> str:
        name = f" {self.request.name!r}" if self.request.name else ""
        hosts = f", at {', '.join(self.request.hosts)}" if self.request.hosts else ""
        return f"{self.path}: {self.purpose.label}{name}{hosts}, key {self.request.digest.hex()[:SHOWN_DIGITS]}"


def _checked(path: Path, request: Request, config: AggregatorConfig) -> _Asked:
    """Return a request that this operator may admit.

    Raises:
        UsageError: it is of an aggregator or does not say of whom, or it has a name or hosts that such a party has not.
        RefusedByPolicyError: it asks for the name of an aggregator.
    """
    purpose = request.purpose
    if purpose is None or purpose is Purpose.AGGREGATOR:
        said = "does not say what it is for" if purpose is None else "is of an aggregator"
        allowed = "that of a device, a reader (an analyst), a relay or a broker, by `fleetcount device new` and so on"
        raise UsageError(f"{path} {said}; allowed: {allowed}")
    if (purpose is Purpose.DEVICE) is bool(request.name):
        raise UsageError(f"{path} is of a {purpose.label} and {'has a' if request.name else 'has no'} name")
    if request.hosts and not purpose.listens:
        raise UsageError(f"{path} is of a {purpose.label}, which has no host; it names {request.hosts[0]!r}")
    ids = [config.aggregator.id, *(peer.id for peer in config.peers)]
    taken = {
        str(user_name) for one in ids for user_name in (one, *(slot_name(one, slot) for slot in range(1, BUCKETS)))
    }
    if found := sorted(taken & {request.name, *request.hosts}):
        raise RefusedByPolicyError(f"{path} asks for {found[0]!r}, the name of an aggregator; nothing was admitted")
    return _Asked(path=path, request=request, purpose=purpose)


def _agreed(count: int) -> bool:
    try:
        return click.confirm(f"Admit {'it' if count == 1 else f'these {count}'}?")
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise UsageError("nobody answered; give --yes to admit without being asked") from None


def _reply(pki: PkiDirectory, asked: _Asked, known: Issued | None, days: int | None) -> None:
    """Write the certificate of a party beside its request, a new one or the one it has."""
    reply, request = asked.path.with_suffix(".crt"), asked.request
    if known is None:
        length = timedelta(days=days or (_DEVICE_DAYS if asked.purpose is Purpose.DEVICE else _DAYS))
        name = request.name or random_device_name()
        issued = pki.enrol(asked.purpose, request.key, name, request.hosts, reply, validity=length)
        click.echo(
            one_line(f"{reply}: {issued.purpose.label}, until {utc_text(issued.ends.timestamp())}; hand it back")
        )
        return
    if known.ends <= datetime.now(UTC):
        raise UsageError(f"{asked.path} was admitted and ended {known.ends:%Y-%m-%d}; `fleetcount pki renew` goes on")
    if not reply.exists():
        write_file(reply, authorities_pem([known.certificate]), overwrite=False)
    click.echo(one_line(f"{reply}: admitted before, until {utc_text(known.ends.timestamp())}; nothing was changed"))

"""`fleetcount doctor`: what is wrong with a configuration, its keys, this machine or the way to the others.

It prints one line a check; it must not repair anything.
"""

import asyncio
import base64
import json
import os
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click
from fleetcount_aggregator.config import AggregatorConfig, MqttTable, load_config
from fleetcount_aggregator.host.keys import load_signing_key, load_store_key
from fleetcount_aggregator.storage.data_keys import StoreKeys
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.opening import reading
from fleetcount_aggregator.storage.schema import SQLITE, version_of
from fleetcount_aggregator.storage.store_check import check_key, examine_server
from fleetcount_aggregator.windows.status import read_store_state
from fleetcount_client.assembly import transport_of, trust_of
from fleetcount_client.config import DeviceSettings, load_settings
from fleetcount_client.contact import TrustStore
from fleetcount_client.subscriptions import KnownQuestion
from fleetcount_protocol.channel.certificates import Purpose, aggregator_names, load_authorities, load_certificate
from fleetcount_protocol.channel.user_names import certified_name, slot_name
from fleetcount_protocol.clock import LARGEST_LEAD_S
from fleetcount_protocol.errors import FleetcountError, UsageError
from fleetcount_protocol.ids import AggregatorId, QuestionId
from fleetcount_protocol.messages import QuestionOffer
from fleetcount_protocol.question.question import Question
from fleetcount_transport.key_files import tls_context
from fleetcount_transport.server_config import TlsTable
from fleetcount_transport.toml_table import read_toml

from fleetcount.command.base import CheckFailedError, StrictCommand, one_line
from fleetcount.command.options import config_option
from fleetcount.command.progress import duration_text
from fleetcount.read.asking import why_refused
from fleetcount.read.readers import Reader, read_reader
from fleetcount.read.states import ask_peer
from fleetcount.run.device import wait_of
from fleetcount.run.doctor_checks import (
    HTTP2,
    Finding,
    Severity,
    check_authority,
    check_certificate,
    check_clock,
    check_deny_list,
    check_disk,
    check_modes,
    check_port,
    check_running,
    check_signal,
    check_versions,
    failed,
    guarded,
    note,
    ok,
)

# What `fleetcount doctor` looks at of an aggregator: files, keys, store, peers, and its connections to the broker.
#
# It must not log in to the broker: a second connection of a certificate ends the first.


async def examine_aggregator(path: Path) -> list[Finding]:
    """Return every finding about an aggregator's configuration."""
    config = load_config(path, os.environ)
    findings = [ok("configuration", f"aggregator {config.aggregator.id!r} of {config.aggregator.operator!r}")]
    findings += _aggregator_files(config)
    findings.append(guarded("store", lambda: _store(config)))
    findings.append(guarded("disk", lambda: check_disk(config.aggregator.state_directory)))
    for port, listen in (("device", config.grpc.device_listen), ("peer", config.grpc.peer_listen)):
        own = _handshake(config.tls) if not config.grpc.insecure else lambda: None
        findings.append(await check_port(f"own {port} port", listen, own, config.aggregator.id, needed=False))
    if findings[-1].severity == Severity.OK:
        findings.append(await _own_clock(path, config))
    findings += await asyncio.gather(
        *(_peer(path, peer.id, peer.endpoint, config.limits.largest_skew_s) for peer in config.peers)
    )
    if not config.peers:
        text = "none: aggregators count together, `fleetcount operator join` adds another"
        findings.append(failed("peers", text))
    if config.mqtt is not None:
        findings += await _check_broker(config, config.mqtt, time.time())
    return findings + check_running(config.metrics)


def _handshake(tls: TlsTable) -> Callable[[], ssl.SSLContext | None]:
    def context() -> ssl.SSLContext | None:
        made = tls_context(tls.aggregator_ca_file, tls.certificate_file, tls.key_file)
        if made is not None:
            made.set_alpn_protocols([HTTP2])  # Without it gRPC hangs up, and counts a certificate that it refused.
        return made

    return context


def _aggregator_files(config: AggregatorConfig) -> list[Finding]:
    tls, now = config.tls, time.time()
    own = config.keys.store_key_file
    files = (config.keys.signing_key_file, tls.key_file, own)
    private = [one for one in files if isinstance(one, Path)]
    private += sorted(config.keys.hpke_key_directory.glob("*.key"))

    def name() -> Finding:
        names = aggregator_names(load_certificate(tls.certificate_file))
        severity = Severity.OK if config.aggregator.id in names else Severity.FAILED
        return Finding(what="certificate names", severity=severity, text=", ".join(names))

    def chain() -> Finding:
        authorities = load_authorities(tls.aggregator_ca_file)
        return check_certificate(tls.certificate_file, tls.key_file, authorities, Purpose.AGGREGATOR, now)

    return [
        guarded("signing key", lambda: _signing_key(config)),
        guarded("sealing keys", lambda: _sealing_keys(config)),
        guarded("store key", lambda: _store_key(config)),
        guarded("certificate", chain),
        guarded("certificate names", name),
        guarded("authority of aggregators", lambda: check_authority(tls.aggregator_ca_file, now)),
        *(
            guarded(f"authority of {peer.id}", partial(check_authority, peer.ca_file, now))
            for peer in config.peers
            if peer.ca_file is not None
        ),
        guarded("authority of devices", lambda: check_authority(tls.device_ca_file, now)),
        guarded("deny list", lambda: check_deny_list(tls.deny_source(), tls.device_ca_file, tls.certificate_file, now)),
        guarded("clock", lambda: check_clock(now, [tls.certificate_file])),
        check_modes(private, [config.aggregator.question_directory]),
        guarded("question directory", lambda: _question_directory(config)),
    ]


def _signing_key(config: AggregatorConfig) -> Finding:
    public = load_signing_key(config.keys.signing_key_file).public_key().public_bytes_raw()
    shown = base64.b64encode(public).decode()
    twin = [peer.id for peer in config.peers if peer.signing_public_key == public]
    if twin:
        return failed("signing key", f"peer {twin[0]!r} has the same key")
    return ok("signing key", f"public {shown}: the descriptor and every peer's [[peers]] must say the same")


def _sealing_keys(config: AggregatorConfig) -> Finding:
    key_ids = ", ".join(map(str, sorted(config.keys.key_ring().key_ids)))
    return ok("sealing keys", f"key ids {key_ids}" + (", wrapped by a token's key" if config.keys.wrapping_key else ""))


def _store_key(config: AggregatorConfig) -> Finding:
    if config.keys.store_key_file is None:
        text = "follows from the signing key, which cannot be replaced as long as it does (fleetcount keys store)"
        return note("store key", text)
    load_store_key(config.keys.store_key_file)
    return ok("store key", "the store has a key of its own")


def _question_directory(config: AggregatorConfig) -> Finding:
    config.aggregator.check_question_directory()
    return ok("question directory", str(config.aggregator.question_directory))


def _store(config: AggregatorConfig) -> Finding:
    """Return where the store lies, and, of a server, what it says.

    Raises:
        StoreError: it is in a file and cannot be served from there, or on a server that may not hold it, or holds
            another's, or lies under another key.
    """
    place = config.store_place
    if place.url is None:
        if place.file.exists():
            check_key(place, _store_keys(config))
            with reading(place) as database:
                found = version_of(place, database)
            if found < SQLITE.version:
                return ok("store", f"{place.name}, of version {found}: the next start brings it to {SQLITE.version}")
            if not_served := read_store_state(place):
                raise StoreError(not_served)
        return ok("store", f"{place.name}, of one process")
    state = examine_server(place, _store_keys(config))
    told = f"PostgreSQL {state.version // 10_000}, synchronous_commit {state.synchronous_commit}, fsync {state.fsync}"
    return ok("store", f"{place.name}: {told}, {state.standbys} standbys")


def _store_keys(config: AggregatorConfig) -> StoreKeys:
    files = config.keys
    return StoreKeys.load(files.signing_key_file, files.store_key_file, files.former_store_key_file)


async def _own_clock(path: Path, config: AggregatorConfig) -> Finding:
    """Ask the process that runs here for its clock, which does not follow that of the machine when it is set."""
    try:
        problem, skew = await ask_peer(path, config.aggregator.id, config.grpc.peer_listen)
    except FleetcountError as error:
        problem, skew = str(error), None
    what, largest = "clock of the running aggregator", config.limits.largest_skew_s
    if problem or skew is None:
        return note(what, f"it does not say: {problem}")
    if skew.certain_s > largest:
        text = f"{skew}, allowed: {largest:g} s ([limits] largest_skew_s); where the machine's is right, start it again"
        return failed(what, text)
    return ok(what, str(skew))


async def _peer(path: Path, name: str, endpoint: str, largest_skew_s: float) -> Finding:
    """Ask a peer about a window that does not exist: it must refuse by name, over TLS in both directions."""
    skew = None
    try:
        problem, skew = await ask_peer(path, name, endpoint)
    except FleetcountError as error:
        problem = str(error)
    what = f"peer {name}"
    if skew is not None and skew.certain_s > largest_skew_s:
        problem = problem or f"its clock is {skew}, allowed: {largest_skew_s:g} s ([limits] largest_skew_s)"
    if problem:
        return failed(what, f"{endpoint}: {problem}")
    clock = "" if skew is None else f"; its clock is {skew}"
    return ok(what, f"{endpoint} answers with its certificate{clock}")


async def _check_broker(config: AggregatorConfig, table: MqttTable, now: float) -> list[Finding]:
    """Return what is right or wrong with the broker's port, each slot's certificate, and the slots of processes."""
    own = partial(tls_context, table.ca_file, table.certificate_file, table.key_file)
    findings = [await check_port("MQTT broker", table.broker, own)]
    if table.certificate_file not in (None, config.tls.certificate_file):
        findings.append(_certificate(config, table, 0, now))
    if table.certificate_file is not None:
        findings += [_certificate(config, table, slot, now) for slot in range(1, table.slots)]
    if config.store.url is not None:
        findings.append(guarded("slots at the broker", lambda: _slots(config, table)))
    return findings


def _certificate(config: AggregatorConfig, table: MqttTable, slot: int, now: float) -> Finding:
    certificate, key = table.credential(slot)
    what = f"certificate of slot {slot}"
    if certificate is None or key is None:
        return failed(what, "mqtt.key_file is missing")
    missing = [str(one) for one in (certificate, key) if not one.is_file()]
    if missing:
        text = f"{' and '.join(missing)} missing; made by `fleetcount pki request` and `fleetcount pki slot`"
        return failed(what, text)

    def check() -> Finding:
        found, wanted = certified_name(load_certificate(certificate)), slot_name(config.aggregator.id, slot)
        if found != wanted:
            text = f"{certificate.name} names {found!r}, needed: {wanted!r}, by which the broker's rules know the slot"
            return failed(what, text)
        authorities = load_authorities(config.tls.aggregator_ca_file)
        return check_certificate(certificate, key, authorities, Purpose.AGGREGATOR, now)

    return guarded(what, check)


def _slots(config: AggregatorConfig, table: MqttTable) -> Finding:
    """Return which process has which slot, by the address from which it has come to the server."""
    with reading(config.store_place) as database:
        from fleetcount_aggregator.storage.slot_locks import slot_holders  # As above.

        holders = slot_holders(database)
    told = "; ".join(f"{slot}: {holders.get(slot, 'nobody')}" for slot in range(table.slots))
    free = [slot for slot in range(table.slots) if slot not in holders]
    severity = Severity.NOTE if free else Severity.OK
    hint = " (an intake that runs takes what is free within a second)" if free else ""
    return Finding(what="slots at the broker", severity=severity, text=f"{told}{hint}")


@click.command(cls=StrictCommand)
@config_option("An aggregator's, a relay's, a device's or an analyst's configuration.", "path")
@click.option("--json", "as_json", is_flag=True, help="For programs: a JSON list with what, severity and text.")
def doctor(path: Path, as_json: bool) -> None:
    """Check a configuration file and everything it names.

    Configuration, versions, keys, certificate chain and expiry, file modes, clock, disk room, whether the other
    parties answer, and what a running aggregator or relay says of itself. A device's signals are each read once: found,
    type, unit, age, and whether they fit the questions on offer; never a value. Prints one line a check: ok, note or
    FAILED. Exit code 1 when a check failed.
    """
    findings = asyncio.run(_examine(path))
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            click.echo(f"{finding.severity:<7} {one_line(f'{finding.what}: {finding.text}')}")
    failed = [finding.what for finding in findings if finding.severity == "FAILED"]
    if failed:
        raise CheckFailedError(f"{len(failed)} of {len(findings)} checks failed: {', '.join(failed)}")


async def _examine(path: Path) -> list[Finding]:
    root = read_toml(path)
    try:
        if root.has("aggregator"):
            # Each party has its own packages: those of an aggregator and of a relay are not on a device.
            from fleetcount.run.doctor import examine_aggregator

            findings = await examine_aggregator(path)
        elif root.has("relay"):
            findings = await _relay(path)
        elif root.has("device"):
            findings = await _device(path)
        elif root.has("reader"):
            findings = await _reader(path)
        else:
            raise UsageError(
                f"{path} has none of [aggregator], [relay], [device], [reader]; it is no configuration of fleetcount"
            )
    except UsageError as error:
        findings = [failed("configuration", str(error))]
    return [check_versions(), *findings]


async def _relay(path: Path) -> list[Finding]:
    from fleetcount_relay.config import load_relay_config  # As those of an aggregator.

    config, now = load_relay_config(path), time.time()
    tls = config.tls
    certificate, key = tls.certificate_file, tls.key_file
    own, name = _handshake(tls), ""
    with suppress(FleetcountError, OSError):  # What the check of the certificate says.
        name = next(iter(aggregator_names(load_certificate(certificate))), "")

    def chain() -> Finding:
        return check_certificate(certificate, key, load_authorities(tls.aggregator_ca_file), Purpose.RELAY, now)

    return [
        ok("configuration", f"relay to {', '.join(one.id for one in config.aggregators)}"),
        guarded("certificate", chain),
        guarded("authority of aggregators", lambda: check_authority(tls.aggregator_ca_file, now)),
        guarded("authority of devices", lambda: check_authority(tls.device_ca_file, now)),
        guarded("deny list", lambda: check_deny_list(tls.deny_source(), tls.device_ca_file, certificate, now)),
        guarded("clock", lambda: check_clock(now, [certificate])),
        check_modes([key], []),
        # That port takes certificates of devices alone, not this one.
        await check_port("own device port", config.relay.listen, own, name, needed=False, takes=False),
        *await asyncio.gather(
            *(check_port(f"aggregator {one.id}", one.endpoint, own, one.id) for one in config.aggregators)
        ),
        *check_running(config.metrics),
    ]


async def _device(path: Path) -> list[Finding]:
    settings, now = load_settings(path), time.time()
    certificate, key = settings.certificate_file, settings.key_file
    findings = [
        ok("configuration", f"device of deployment {settings.deployment!r}"),
        guarded("certificate", lambda: check_certificate(certificate, key, (), Purpose.DEVICE, now)),
        guarded("clock", lambda: check_clock(now, [certificate])),
        check_modes([key, settings.state_file], []),
        guarded("disk", lambda: check_disk(settings.state_file.parent)),
        guarded("new ledger", lambda: _wait(settings, now)),
    ]
    authority = settings.grpc.ca_file if settings.grpc is not None else None
    if authority is not None:
        findings.append(guarded("authority of aggregators", lambda: check_authority(authority, now)))
    offered, questions = await _offer(settings)
    signals = await asyncio.gather(*(check_signal(settings.signals, path, questions) for path in settings.signals))
    return [*findings, *offered, *signals]


def _wait(settings: DeviceSettings, now: float) -> Finding:
    certificate = load_certificate(settings.certificate_file)
    text = wait_of(settings, certificate, now)
    if not text:
        return ok("new ledger", "waits for nothing any more")
    return note("new ledger", text)


async def _offer(settings: DeviceSettings) -> tuple[list[Finding], tuple[Question, ...]]:
    """Ask for the questions on offer, as the device itself would; an answer counts only where all can be reached."""
    heard: dict[str, str] = {}
    transport = transport_of(settings, heard.__setitem__)
    try:
        offers = await transport.list_questions()
    except FleetcountError as error:
        return [failed("aggregators", str(error))], ()
    finally:
        await transport.close()
    questions = {offer.signed.question.question_id: offer.signed.question for offer in offers}
    offered = guarded("aggregators", lambda: judge_offers(offers, time.time(), trust_of(settings)))
    silent = [failed(f"aggregator {party}", trouble) for party, trouble in heard.items() if trouble]
    return [offered, *silent], tuple(questions.values())


def judge_offers(offers: Sequence[QuestionOffer], now: float, trust: TrustStore) -> Finding:
    """Return how many questions are on offer, that one is over by this clock (aggregators offer none that is), or that
    the device does not take some, because not all that it trusts have signed them: a fault where it takes none.

    Raises:
        QuestionError: an offer's start is not one of its question.
    """
    ends = {one.question_id: one for one in (KnownQuestion(offer=offer).asked.at_latest() for offer in offers)}
    for question in ends.values():
        if (late_s := now - question.schedule.end) > LARGEST_LEAD_S:
            text = f"{question.name!r} is on offer, and by this clock it was over {duration_text(late_s)} ago"
            hint = "this clock is ahead, or the aggregators have stopped"
            return failed("aggregators", f"{text}: {hint}")
    strange: dict[QuestionId, str] = {}
    for signed in (offer.signed for offer in offers):
        try:
            trust.check_question(signed)
        except FleetcountError as error:
            strange[signed.question.question_id] = f"{signed.question.name!r}: {error}"
    if not strange:
        return ok("aggregators", f"{len(ends)} questions on offer")
    text = f"{len(strange)} of {len(ends)} questions on offer are not taken, {next(iter(strange.values()))}"
    return (failed if len(strange) == len(ends) else note)("aggregators", text)


async def _reader(path: Path) -> list[Finding]:
    reader, now = read_reader(path), time.time()
    findings = [ok("configuration", f"analyst, trusts {', '.join(reader.trusted)}")]
    if reader.tls_files is None:
        return findings
    authority, certificate, key = reader.tls_files
    return [
        *findings,
        guarded("certificate", lambda: check_certificate(certificate, key, (), Purpose.READER, now)),
        guarded("authority of aggregators", lambda: check_authority(authority, now)),
        guarded("clock", lambda: check_clock(now, [certificate])),
        check_modes([key], []),
        *await asyncio.gather(*(_asked(reader, one, reader.endpoints.get(one, "")) for one in reader.trusted)),
    ]


async def _asked(reader: Reader, aggregator: AggregatorId, endpoint: str) -> Finding:
    """Ask an aggregator as the analyst will, over TLS in both directions."""
    what = f"aggregator {aggregator}"
    if not endpoint:
        return note(what, "not asked: the file has no grpc_endpoint of it")
    try:
        problem = await why_refused(reader, aggregator, endpoint)
    except FleetcountError as error:
        problem = str(error)
    if problem:
        return failed(what, f"{endpoint}: {problem}")
    return ok(what, f"{endpoint} answers this certificate")

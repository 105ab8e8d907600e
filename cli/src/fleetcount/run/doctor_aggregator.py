"""What `fleetcount doctor` looks at of an aggregator: files, keys, store, peers, and its connections to the broker.

It must not log in to the broker: a second connection of a certificate ends the first.
"""

import asyncio
import base64
import os
import time
from contextlib import closing
from pathlib import Path

from fleetcount_aggregator.config import AggregatorConfig, MqttTable, load_config
from fleetcount_aggregator.host.keys import load_signing_key, load_store_key
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.leases import slot_holders
from fleetcount_aggregator.storage.opening import reading, server_of
from fleetcount_aggregator.storage.schema import SQLITE, version_of
from fleetcount_aggregator.windows.status import read_standing
from fleetcount_protocol.channel.certificates import Purpose, aggregator_names, load_authorities, load_certificate
from fleetcount_protocol.channel.user_names import certified_name, slot_name
from fleetcount_protocol.errors import FleetcountError

from fleetcount.read.states import ask_peer
from fleetcount.run.doctor_checks import (
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
    guarded,
    ok,
)


async def examine_aggregator(path: Path) -> list[Finding]:
    """Return every finding about an aggregator's configuration."""
    config = load_config(path, os.environ)
    findings = [ok("configuration", f"aggregator {config.aggregator.id!r} of {config.aggregator.operator!r}")]
    findings += _aggregator_files(config)
    findings.append(guarded("store", lambda: _store(config)))
    findings.append(guarded("disk", lambda: check_disk(config.aggregator.state_directory)))
    findings.append(await check_port("own device port", config.grpc.device_listen, needed=False))
    findings += await asyncio.gather(
        *(_peer(path, peer.id, peer.endpoint, config.limits.largest_skew_s) for peer in config.peers)
    )
    if config.mqtt is not None:
        findings += await _check_broker(config, config.mqtt, time.time())
    return findings + check_running(config.metrics)


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
        guarded("authority of devices", lambda: check_authority(tls.device_ca_file, now)),
        guarded("deny list", lambda: check_deny_list(tls.deny_source(), tls.device_ca_file, now)),
        guarded("clock", lambda: check_clock(now, [tls.certificate_file])),
        check_modes(private, [config.aggregator.question_directory]),
    ]


def _signing_key(config: AggregatorConfig) -> Finding:
    public = load_signing_key(config.keys.signing_key_file).public_key().public_bytes_raw()
    shown = base64.b64encode(public).decode()
    twin = [peer.id for peer in config.peers if peer.signing_public_key == public]
    if twin:
        return Finding(what="signing key", severity=Severity.FAILED, text=f"peer {twin[0]!r} has the same key")
    return ok("signing key", f"public {shown}: the descriptor and every peer's [[peers]] must say the same")


def _sealing_keys(config: AggregatorConfig) -> Finding:
    key_ids = ", ".join(map(str, sorted(config.keys.key_ring().key_ids)))
    return ok("sealing keys", f"key ids {key_ids}" + (", wrapped by a token's key" if config.keys.wrapping_key else ""))


def _store_key(config: AggregatorConfig) -> Finding:
    if config.keys.store_key_file is None:
        text = "follows from the signing key, which cannot be replaced as long as it does (fleetcount keys store)"
        return Finding(what="store key", severity=Severity.NOTE, text=text)
    load_store_key(config.keys.store_key_file)
    return ok("store key", "the store has a key of its own")


def _store(config: AggregatorConfig) -> Finding:
    """Return where the store lies, and, of a server, what it says.

    Raises:
        StoreError: it is in a file and cannot be served from there, or on a server that may lose what it committed.
    """
    place = config.store_place
    if place.url is None:
        if place.file.exists():
            with reading(place) as database:
                found = version_of(place, database)
            if found < SQLITE.version:
                return ok("store", f"{place.name}, of version {found}: the next start brings it to {SQLITE.version}")
            if not_served := read_standing(place):
                raise StoreError(not_served)
        return ok("store", f"{place.name}, of one process")
    server = server_of(place)
    from fleetcount_aggregator.storage.postgres import ServerState  # Only where there is its client.

    with closing(server.connect()) as connection:
        state = ServerState.of(connection)
    told = f"PostgreSQL {state.version // 10_000}, synchronous_commit {state.synchronous_commit}, fsync {state.fsync}"
    return ok("store", f"{place.name}: {told}, {state.standbys} standbys")


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
        return Finding(what=what, severity=Severity.FAILED, text=f"{endpoint}: {problem}")
    clock = "" if skew is None else f"; its clock is {skew}"
    return ok(what, f"{endpoint} answers with its certificate{clock}")


async def _check_broker(config: AggregatorConfig, table: MqttTable, now: float) -> list[Finding]:
    """Return what is right or wrong with the broker's port, each slot's certificate, and the slots of processes."""
    findings = [await check_port("MQTT broker", table.broker)]
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
        return Finding(what=what, severity=Severity.FAILED, text="mqtt.key_file is missing")
    missing = [str(one) for one in (certificate, key) if not one.is_file()]
    if missing:
        text = f"{' and '.join(missing)} missing; made by `fleetcount pki request` and `fleetcount pki slot`"
        return Finding(what=what, severity=Severity.FAILED, text=text)

    def check() -> Finding:
        found, wanted = certified_name(load_certificate(certificate)), slot_name(config.aggregator.id, slot)
        if found != wanted:
            text = f"{certificate.name} names {found!r}, needed: {wanted!r}, by which the broker's rules know the slot"
            return Finding(what=what, severity=Severity.FAILED, text=text)
        authorities = load_authorities(config.tls.aggregator_ca_file)
        return check_certificate(certificate, key, authorities, Purpose.AGGREGATOR, now)

    return guarded(what, check)


def _slots(config: AggregatorConfig, table: MqttTable) -> Finding:
    """Return which process has which slot, by the address at which the others reach it."""
    with reading(config.store_place) as database:
        holders = slot_holders(database)
    told = "; ".join(f"{slot}: {holders.get(slot, 'nobody')}" for slot in range(table.slots))
    free = [slot for slot in range(table.slots) if slot not in holders]
    severity = Severity.NOTE if free else Severity.OK
    hint = " (an intake that runs takes what is free within its lease)" if free else ""
    return Finding(what="slots at the broker", severity=severity, text=f"{told}{hint}")

"""What `fleetcount doctor` looks at of an aggregator's connections to the MQTT broker: certificates, and who has them.

It must not log in to the broker: a second connection of a certificate ends the first.
"""

from typing import TYPE_CHECKING

from fleetcount.run.doctor_checks import Finding, Severity, check_certificate, check_port, guarded

if TYPE_CHECKING:
    from fleetcount_aggregator.config import AggregatorConfig, MqttTable


async def check_broker(config: "AggregatorConfig", table: "MqttTable", now: float) -> list[Finding]:
    """Return what is right or wrong with the broker's port, each slot's certificate, and the slots of processes."""
    findings = [await check_port("MQTT broker", table.broker)]
    if table.certificate_file not in (None, config.tls.certificate_file):
        findings.append(_certificate(config, table, 0, now))
    if table.certificate_file is not None:
        findings += [_certificate(config, table, slot, now) for slot in range(1, table.slots)]
    if config.store.url is not None:
        findings.append(guarded("slots at the broker", lambda: _slots(config, table)))
    return findings


def _certificate(config: "AggregatorConfig", table: "MqttTable", slot: int, now: float) -> Finding:
    from fleetcount_protocol.channel.certificates import Purpose, load_authorities, load_certificate
    from fleetcount_protocol.channel.user_names import certified_name, slot_name

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


def _slots(config: "AggregatorConfig", table: "MqttTable") -> Finding:
    """Return which process has which slot, by the address at which the others reach it."""
    from fleetcount_aggregator.storage.opening import reading
    from fleetcount_aggregator.storage.slot_holders import slot_holders

    with reading(config.store_place) as database:
        holders = slot_holders(database)
    told = "; ".join(f"{slot}: {holders.get(slot, 'nobody')}" for slot in range(table.slots))
    free = [slot for slot in range(table.slots) if slot not in holders]
    severity = Severity.NOTE if free else Severity.OK
    hint = " (an intake that runs takes what is free within its lease)" if free else ""
    return Finding(what="slots at the broker", severity=severity, text=f"{told}{hint}")

"""`fleetcount doctor`: what is wrong with a configuration, its keys, this machine or the way to the others.

It prints one line a check; it must not repair anything.
"""

import asyncio
import json
import time
from dataclasses import asdict
from pathlib import Path

import click
from fleetcount_client.assembly import transport_of
from fleetcount_client.config import DeviceSettings, load_settings
from fleetcount_protocol.channel.certificates import Purpose, load_authorities
from fleetcount_protocol.errors import FleetcountError, UsageError
from fleetcount_transport.toml_table import read_toml

from fleetcount.command.exits import CheckFailedError, one_line
from fleetcount.command.lazy import StrictCommand
from fleetcount.read.readers import read_reader
from fleetcount.run.doctor_checks import (
    Finding,
    Severity,
    check_authority,
    check_certificate,
    check_clock,
    check_deny_list,
    check_disk,
    check_modes,
    check_running,
    check_versions,
    guarded,
    ok,
)


@click.command(cls=StrictCommand)
@click.option(
    "--config",
    "path",
    required=True,
    metavar="FILE.toml",
    type=click.Path(path_type=Path),
    help="An aggregator's, a relay's, a device's or an analyst's configuration.",
)
@click.option("--json", "as_json", is_flag=True, help="For programs: a JSON list with what, severity and text.")
def doctor(path: Path, as_json: bool) -> None:
    """Check a configuration file and everything it names.

    Configuration, versions, keys, certificate chain and expiry, file modes, clock, disk room, whether the other
    parties answer, and what a running aggregator or relay says of itself. Prints one line a check: ok, note or
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
            from fleetcount.run.doctor_aggregator import examine_aggregator

            findings = await examine_aggregator(path)
        elif root.has("relay"):
            findings = _relay(path)
        elif root.has("device"):
            findings = await _device(path)
        elif root.has("reader"):
            findings = _reader(path)
        else:
            raise UsageError(
                f"{path} has none of [aggregator], [relay], [device], [reader]; it is no configuration of fleetcount"
            )
    except UsageError as error:
        findings = [Finding(what="configuration", severity=Severity.FAILED, text=str(error))]
    return [check_versions(), *findings]


def _relay(path: Path) -> list[Finding]:
    from fleetcount_relay.config import load_relay_config  # As those of an aggregator.

    config, now = load_relay_config(path), time.time()
    tls = config.tls
    certificate, key = tls.certificate_file, tls.key_file

    def chain() -> Finding:
        return check_certificate(certificate, key, load_authorities(tls.aggregator_ca_file), Purpose.RELAY, now)

    return [
        ok("configuration", f"relay to {', '.join(one.id for one in config.aggregators)}"),
        guarded("certificate", chain),
        guarded("authority of aggregators", lambda: check_authority(tls.aggregator_ca_file, now)),
        guarded("authority of devices", lambda: check_authority(tls.device_ca_file, now)),
        guarded("deny list", lambda: check_deny_list(tls.deny_source(), tls.device_ca_file, now)),
        guarded("clock", lambda: check_clock(now, [certificate])),
        check_modes([key], []),
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
    ]
    authority = settings.grpc.ca_file if settings.grpc is not None else None
    if authority is not None:
        findings.append(guarded("authority of aggregators", lambda: check_authority(authority, now)))
    findings.append(await _offer(settings))
    return findings


async def _offer(settings: DeviceSettings) -> Finding:
    """Ask for the questions on offer, as the device itself would."""
    transport = transport_of(settings)
    try:
        offers = await transport.list_questions()
    except FleetcountError as error:
        return Finding(what="aggregators", severity=Severity.FAILED, text=str(error))
    finally:
        await transport.close()
    questions = {offer.signed.question.question_id for offer in offers}
    return ok("aggregators", f"{len(questions)} questions on offer")


def _reader(path: Path) -> list[Finding]:
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
    ]

"""Devices in a process of their own, which may be killed and started again.

`python -m tests.campaign.devices DIRECTORY`, which has a fleet.json (`Spec`) and the offers of questions of one window,
WINDOW.offer; what the devices keep, keys and spool, is there too.
A window that has ended for all devices has its WINDOW.ends: for each device how, and why. Ends after the last.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from fleetcount_client.contact import Outcome
from fleetcount_client.transport import Transport
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.channel.certificates import (
    CertificateAuthority,
    load_certificate,
    load_private_key,
    save_certificates,
    save_private_key,
)
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.messages import QuestionOffer
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.window.window import Window
from fleetcount_protocol.wire.question import QUESTION_OFFER
from fleetcount_simulator.network.deployments import Authorities, Deployment
from fleetcount_transport.durable_files import replace_file

from tests.support.fleet import Fleet, LiveDevice, authorities_of, coins_of
from tests.support.live_relay import transport_through
from tests.support.processes import pace

KINDS: Final = ("grpc", "mqtt", "relay")
"""How devices report: a third each."""
DEVICES: Final = 9
_SPREAD: Final = Fraction(1, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a process of devices is told: where the deployment lies, its name, the relay, the seed of all coins."""

    root: str
    name: str
    broker: str
    relay: str
    seed: int
    timeout_s: float = 2.0


@dataclass(frozen=True, slots=True)
class _Here:
    """The deployment, of which another process has the rest."""

    written: Deployment


def write_spec(directory: Path, spec: Spec, offers: Sequence[QuestionOffer]) -> None:
    """Write what the process reads."""
    directory.mkdir()
    (directory / "fleet.json").write_text(json.dumps(asdict(spec)))
    for offer in offers:
        window = window_at(offer.signed.question, 0)
        (directory / f"{window.window_id.hex()}.offer").write_bytes(QUESTION_OFFER.encode(offer))


def rounds_of(die: SamplingDie, number: int, seed: int) -> tuple[int, int]:
    """Return what the coins of a device say, whose truth is its number."""
    return coins_of(die, number, len(KINDS), seed).rounds(number)


def certificate_of(directory: Path, number: int) -> Path:
    """Return where a device's certificate lies."""
    return directory / f"device-{number}.crt"


def ends_of(directory: Path, window: Window) -> Path:
    """Return where it stands how a window ended for its devices: {number: [kind, reason]}."""
    return directory / f"{window.window_id.hex()}.ends"


def _fleet(directory: Path, spec: Spec, offers: Sequence[QuestionOffer]) -> Fleet:
    root, window = Path(spec.root), window_at(offers[0].signed.question, 0)
    devices = CertificateAuthority(
        certificate=load_certificate(root / "ca" / "devices.crt"),
        private_key=load_private_key(root / "ca" / "devices.key"),
    )
    deployment = Deployment(
        root=root,
        name=spec.name,
        authorities=Authorities(aggregators=devices, devices=devices),  # Nobody here enrols an aggregator.
        plans=(),
        aggregators=window.aggregators,
        mqtt_broker=spec.broker,
    )
    written = _Here(deployment)
    identities = {number: _identity(directory, number, devices) for number in range(1, DEVICES + 1)}

    def way(inner: Transport, number: int) -> Transport:
        if KINDS[number % len(KINDS)] != "relay":
            return inner
        return transport_through(
            spec.relay,
            window.aggregators,
            identities[number],
            deployment=spec.name,
            authorities=authorities_of(written),
            timeout_s=spec.timeout_s,
        )

    assert isinstance(window.mechanism, SamplingDie)
    return Fleet(
        written,
        directory,
        window.mechanism,
        KINDS,
        devices=DEVICES,
        seed=spec.seed,
        spread=_SPREAD,
        timeout_s=spec.timeout_s,
        wrap=way,
        identities=identities.__getitem__,
    )


def _identity(directory: Path, number: int, authority: CertificateAuthority) -> DeviceIdentity:
    """Return the keys of a device, made by its first life; the certificate comes last."""
    certificate, key = certificate_of(directory, number), directory / f"device-{number}.key"
    if not certificate.exists():
        key.unlink(missing_ok=True)
        made = DeviceIdentity.generate(authority)
        save_private_key(key, made.private_key)
        whole = certificate.with_suffix(".new")
        whole.unlink(missing_ok=True)
        save_certificates(whole, [made.certificate])
        whole.rename(certificate)
    return DeviceIdentity.load(certificate, key)


async def _answered(fleet: Fleet, offer: QuestionOffer, directory: Path) -> None:
    """Let all devices answer one question, and write how it ended for each."""
    outcomes: dict[int, Outcome] = {}
    window = window_at(offer.signed.question, 0)

    async def one(live: LiveDevice) -> None:
        for outcome in await live.device.answer_question(offer):
            outcomes[live.truth] = outcome

    async with asyncio.timeout(max(0.0, window.round_two_closes - time.time()) + 20 * pace()):
        await asyncio.gather(*(one(live) for live in fleet.devices))
    ends = {number: [outcome.kind.value, outcome.reason] for number, outcome in sorted(outcomes.items())}
    replace_file(ends_of(directory, window), json.dumps(ends).encode())


async def _run(directory: Path) -> None:
    spec = Spec(**json.loads((directory / "fleet.json").read_text()))
    offers = [QUESTION_OFFER.decode(path.read_bytes()) for path in sorted(directory.glob("*.offer"))]
    fleet = _fleet(directory, spec, offers)
    print(json.dumps({"event": "ready"}), flush=True)
    try:
        await asyncio.gather(*(_answered(fleet, offer, directory) for offer in offers))
    finally:
        for live in fleet.devices:
            await live.device.close()


if __name__ == "__main__":
    asyncio.run(_run(Path(sys.argv[1])))

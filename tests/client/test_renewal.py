"""A device goes on under its next certificate by itself, and takes none that is not its own."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from fleetcount_client.contact import OutcomeKind
from fleetcount_client.renewal import Renewal, RenewalSettings, check_next, command_of, next_file
from fleetcount_protocol.channel.certificates import (
    CertificateAuthority,
    Purpose,
    load_certificate,
    save_certificates,
)
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.errors import UsageError

from tests.client.deployment import START, Deployment

NOW = datetime.fromtimestamp(START, UTC)
DAY = timedelta(days=1)


def certified(
    authority: CertificateAuthority,
    key: ec.EllipticCurvePrivateKey,
    days: float,
    *,
    purpose: Purpose = Purpose.DEVICE,
    starts: datetime = NOW,
) -> x509.Certificate:
    return authority.issue(
        purpose, key.public_key(), "d-1", validity=timedelta(days=days) + timedelta(minutes=5), now=starts
    )


@pytest.fixture
def world() -> Deployment:
    return Deployment(authority=CertificateAuthority.create("test devices", NOW))


@pytest.fixture
def present(world: Deployment, tmp_path: Path) -> DeviceIdentity:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = certified(world.authority, key, 1)
    save_certificates(tmp_path / "device.crt", [certificate])
    return DeviceIdentity(certificate=certificate, private_key=key)


async def test_a_new_certificate_is_taken_while_the_device_runs_and_its_sessions_end_later(
    world: Deployment, present: DeviceIdentity, tmp_path: Path
) -> None:
    world.ask()
    device = world.device(tmp_path / "device.db", world.transport(), identity=present)
    device._renewal = Renewal(certificate_file=tmp_path / "device.crt")
    [before] = await device.answer()
    world.ask(START + 90_000, name="a day later")
    fresh = certified(world.authority, present.private_key, 3)
    save_certificates(tmp_path / "device.crt.new", [fresh])

    [after] = await device.answer()

    assert (before.kind, after.kind) == (OutcomeKind.DELIVERED, OutcomeKind.DELIVERED), after
    assert load_certificate(tmp_path / "device.crt") == fresh
    assert not (tmp_path / "device.crt.new").exists()


async def test_without_the_next_certificate_a_window_beyond_the_end_is_not_begun(
    world: Deployment, present: DeviceIdentity, tmp_path: Path
) -> None:
    world.ask(START + 90_000)
    device = world.device(tmp_path / "device.db", world.transport(), identity=present)

    [outcome] = await device.answer()

    assert outcome.kind is OutcomeKind.REJECTED
    assert "bad_certificate" in outcome.reason
    assert device.spool.charges() == ()


BAD: dict[str, tuple[Callable[[CertificateAuthority, ec.EllipticCurvePrivateKey], x509.Certificate], str]] = {
    "another key": (
        lambda authority, _: certified(authority, ec.generate_private_key(ec.SECP256R1()), 3),
        "is for another key than the device's",
    ),
    "a reader's": (lambda authority, key: certified(authority, key, 3, purpose=Purpose.READER), "purpose reader"),
    "no longer": (lambda authority, key: certified(authority, key, 1), "ends no later"),
    "not yet": (lambda authority, key: certified(authority, key, 3, starts=NOW + DAY), "its certificate begins 20"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_certificate_that_does_not_fit_stays_where_it_is_and_changes_nothing(
    world: Deployment, present: DeviceIdentity, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, said = BAD[name]
    waiting = next_file(tmp_path / "device.crt")
    save_certificates(waiting, [make(world.authority, present.private_key)])
    renewal = Renewal(certificate_file=tmp_path / "device.crt")

    for _ in range(3):
        assert await renewal.look(present, START) is present

    with pytest.raises(UsageError, match=said):
        check_next(present, waiting, START)
    assert load_certificate(tmp_path / "device.crt") == present.certificate
    assert waiting.exists()
    assert sum(said in record.getMessage() for record in caplog.records) == 1


async def test_something_that_is_no_certificate_changes_nothing(present: DeviceIdentity, tmp_path: Path) -> None:
    next_file(tmp_path / "device.crt").write_bytes(b"half a certif")

    assert await Renewal(certificate_file=tmp_path / "device.crt").look(present, START) is present


async def test_it_asks_when_the_end_comes_near_and_again_after_a_while(present: DeviceIdentity, tmp_path: Path) -> None:
    asked: list[float] = []
    now = [0.0]

    async def ask() -> None:
        asked.append(now[0])
        raise UsageError("nobody there")

    ends = present.certificate.not_valid_after_utc.timestamp()
    settings = RenewalSettings(before_s=1000, retry_s=100)
    renewal = Renewal(certificate_file=tmp_path / "device.crt", settings=settings, ask=ask)
    for second in range(-1200, -700, 10):
        now[0] = ends + second
        assert await renewal.look(present, now[0]) is present

    assert [moment - ends for moment in asked] == [-1000, -900, -800]


@pytest.mark.processes
async def test_the_owner_s_command_makes_the_next_certificate_appear(
    world: Deployment, present: DeviceIdentity, tmp_path: Path
) -> None:
    fresh = certified(world.authority, present.private_key, 3)
    save_certificates(tmp_path / "from the operator.crt", [fresh])
    program = "import os, shutil, sys; shutil.copy(sys.argv[1], os.environ['FLEETCOUNT_NEXT_CERTIFICATE'])"
    command = (sys.executable, "-c", program, str(tmp_path / "from the operator.crt"))
    renewal = Renewal(certificate_file=tmp_path / "device.crt", settings=RenewalSettings(command=command))

    found = await renewal.look(present, START)

    assert found.certificate == fresh
    assert found.private_key is present.private_key
    assert load_certificate(tmp_path / "device.crt") == fresh


@pytest.mark.processes
async def test_a_command_that_fails_is_said_and_tried_later(
    present: DeviceIdentity, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for command in ((sys.executable, "-c", "raise SystemExit(7)"), (str(tmp_path / "no such program"),)):
        renewal = Renewal(certificate_file=tmp_path / "device.crt", settings=RenewalSettings(command=command))
        assert await renewal.look(present, START) is present

    assert "ended with code 7" in caplog.text
    assert "could not be asked for" in caplog.text
    assert command_of((), tmp_path) is None

"""The enrolment directory: certificates for one purpose each, from requests; what does not fit is refused whole."""

import asyncio
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from fleetcount.keys import pki_directory
from fleetcount.keys.pki_directory import PkiDirectory
from fleetcount.keys.requests import read_request
from fleetcount_protocol.channel.certificates import (
    Purpose,
    aggregator_names,
    key_digest,
    load_authorities,
    load_certificate,
    load_private_key,
    verify_chain,
)
from fleetcount_protocol.channel.deny_list import decode_signed_deny_list, verify_deny_list
from fleetcount_protocol.channel.user_names import certified_name, slot_name
from fleetcount_protocol.ids import AggregatorId
from fleetcount_transport.denials import Denials, DenySource


@pytest.fixture
def made(fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert fleetcount("pki", "init", "--output", "PKI", "--deployment", "test").code == 0
    return tmp_path


def tree(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def ask(fleetcount: Callable, name: str) -> None:
    assert fleetcount("pki", "request", "--output", name).code == 0


def enrol(fleetcount: Callable, name: str, *options: str) -> x509.Certificate:
    ask(fleetcount, name)
    ran = fleetcount("pki", "enrol", "--pki", "PKI", "--csr", f"{name}.csr", "--output", f"{name}.crt", *options)
    assert ran.code == 0, ran.err
    return load_certificate(Path(f"{name}.crt"))


def test_private_files_are_private_and_nothing_else_holds_a_key(made: Path) -> None:
    files = tree(made)

    assert (made / "PKI").stat().st_mode & 0o777 == 0o700
    for name, content in files.items():
        assert (b"PRIVATE" in content) == name.endswith(".key")
        assert not name.endswith(".key") or (made / name).stat().st_mode & 0o777 == 0o600
    assert [name for name in files if name.endswith(".key")] != []


@pytest.mark.parametrize(
    ("command", "authority", "options"),
    [
        ("enrol", "devices", ()),
        ("reader", "devices", ("--name", "ann")),
        ("relay", "aggregators", ("--name", "relay-1", "--host", "127.0.0.1")),
        ("broker", "aggregators", ("--name", "broker", "--host", "localhost")),
        ("aggregator", "aggregators", ("--name", "alpha", "--host", "a.example.org", "--host", "::1")),
    ],
)
def test_every_party_gets_a_certificate_for_its_purpose_and_its_key(
    fleetcount: Callable, made: Path, command: str, authority: str, options: tuple[str, ...]
) -> None:
    ask(fleetcount, "one")
    ran = fleetcount("pki", command, "--pki", "PKI", "--csr", "one.csr", *options, "--output", "one.crt", "--days", 9)
    certificate = load_certificate(Path("one.crt"))
    purpose = Purpose.DEVICE if command == "enrol" else Purpose[command.upper()]

    assert ran.code == 0, ran.err
    assert f"one.crt: {purpose.label} " in ran.out
    now = datetime.now(UTC)
    verify_chain(certificate, load_authorities(made / "PKI" / f"{authority}.crt"), now.timestamp(), purpose)
    assert certificate.public_key() == load_private_key(Path("one.key")).public_key()
    assert timedelta(days=8, hours=23) < certificate.not_valid_after_utc - now < timedelta(days=9)


def test_a_slot_goes_by_a_name_of_its_own_and_listens_nowhere(fleetcount: Callable, made: Path) -> None:
    ask(fleetcount, "alpha-slot1")
    options = ("--pki", "PKI", "--csr", "alpha-slot1.csr", "--name", "alpha", "--output", "alpha-slot1.crt")
    refused = fleetcount("pki", "slot", *options, "--slot", 16)

    ran = fleetcount("pki", "slot", *options, "--slot", 1)

    assert (refused.code, ran.code) == (2, 0), ran.err
    certificate = load_certificate(Path("alpha-slot1.crt"))
    assert certified_name(certificate) == slot_name(AggregatorId("alpha"), 1) == "alpha-slot1"
    assert aggregator_names(certificate) == ("alpha-slot1",), "it is no peer under the name of the aggregator"
    now = datetime.now(UTC).timestamp()
    verify_chain(certificate, load_authorities(made / "PKI" / "aggregators.crt"), now, Purpose.AGGREGATOR)


def test_a_device_s_name_is_random_whatever_its_request_says(fleetcount: Callable, made: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    plate = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "BO 123 XY")])
    request = x509.CertificateSigningRequestBuilder().subject_name(plate).sign(key, hashes.SHA256())
    Path("car.csr").write_bytes(request.public_bytes(Encoding.PEM))

    fleetcount("pki", "enrol", "--pki", "PKI", "--csr", "car.csr", "--output", "car.crt")

    assert load_certificate(Path("car.crt")).subject.rfc4514_string().startswith("CN=d-")


def test_a_renewed_certificate_is_for_the_same_key_name_and_purpose(fleetcount: Callable, made: Path) -> None:
    ask(fleetcount, "relay")
    options = ("--pki", "PKI", "--csr", "relay.csr", "--name", "relay-1", "--host", "127.0.0.1", "--host", "r.org")
    fleetcount("pki", "relay", *options, "--output", "relay.crt")
    ran = fleetcount("pki", "renew", "--pki", "PKI", "--certificate", "relay.crt", "--days", 90, "--output", "next.crt")
    old, new = load_certificate(Path("relay.crt")), load_certificate(Path("next.crt"))

    assert ran.code == 0, ran.err
    assert key_digest(old) == key_digest(new)
    for kind in (x509.SubjectAlternativeName, x509.ExtendedKeyUsage):
        assert old.extensions.get_extension_for_class(kind) == new.extensions.get_extension_for_class(kind)
    assert PkiDirectory(made / "PKI").deny_list().keys == ()


def test_a_certificate_is_renewed_for_as_long_as_the_present_one(fleetcount: Callable, made: Path) -> None:
    old = enrol(fleetcount, "car")
    renewed = ("pki", "renew", "--pki", "PKI", "--certificate", "car.crt", "--output")

    assert (fleetcount(*renewed, "next.crt").code, fleetcount(*renewed, "short.crt", "--days", 3).code) == (0, 0)

    def valid(one: x509.Certificate) -> timedelta:
        return one.not_valid_after_utc - one.not_valid_before_utc

    assert (valid(old), valid(load_certificate(Path("next.crt")))) == (timedelta(days=90), timedelta(days=90))
    assert valid(load_certificate(Path("short.crt"))) == timedelta(days=3)


def test_renewing_for_a_new_key_denies_the_old_one_at_once(fleetcount: Callable, made: Path) -> None:
    old = enrol(fleetcount, "car")
    ask(fleetcount, "new")
    options = ("--pki", "PKI", "--certificate", "car.crt", "--csr", "new.csr")
    ran = fleetcount("pki", "renew", *options, "--output", "new.crt")

    assert ran.code == 0, ran.err
    assert PkiDirectory(made / "PKI").deny_list().keys == (key_digest(old),)
    assert load_certificate(Path("new.crt")).subject == old.subject
    assert key_digest(load_certificate(Path("new.crt"))) != key_digest(old)


def test_a_renewal_that_cannot_be_handed_out_denies_nothing(fleetcount: Callable, made: Path) -> None:
    enrol(fleetcount, "car")
    ask(fleetcount, "new")
    before = {path: path.read_bytes() for path in Path("PKI").rglob("*") if path.is_file()}
    options = ("--pki", "PKI", "--certificate", "car.crt", "--csr", "new.csr")

    refused = fleetcount("pki", "renew", *options, "--output", "nowhere/new.crt")

    assert (refused.code, "nowhere is no directory; nothing was written" in refused.error_line) == (2, True)
    assert {path: path.read_bytes() for path in Path("PKI").rglob("*") if path.is_file()} == before
    assert fleetcount("pki", "renew", *options, "--output", "new.crt").code == 0


@pytest.mark.parametrize("writes", range(4))
def test_a_renewal_that_was_killed_leaves_a_certificate_that_works_and_is_completed_by_the_same_command(
    fleetcount: Callable, made: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    class Killed(BaseException):
        pass

    old = enrol(fleetcount, "car")
    ask(fleetcount, "new")
    directory, key = PkiDirectory(made / "PKI"), read_request(Path("new.csr")).key
    left = iter(range(writes))
    really = pki_directory.write_file

    def write(*args: Any, **how: Any) -> None:
        if next(left, None) is None:
            raise Killed
        really(*args, **how)

    monkeypatch.setattr(pki_directory, "write_file", write)
    with pytest.raises(Killed):
        directory.renew(old, key, Path("new.crt"), validity=timedelta(days=1), list_validity=None)
    monkeypatch.undo()
    monkeypatch.chdir(made)

    denied = directory.deny_list().keys
    assert [one.key for one in directory.issued() if one.key not in denied], "one of the party's works"
    assert not Path("new.crt").exists(), "never one that counts beside the old one"
    options = ("--pki", "PKI", "--certificate", "car.crt", "--csr", "new.csr")
    ran = fleetcount("pki", "renew", *options, "--output", "new.crt")
    assert ran.code == 0, ran.err
    assert directory.deny_list().keys == (key_digest(old),)
    assert load_certificate(Path("new.crt")) in [one.certificate for one in directory.issued()]
    assert len(directory.issued()) == 2


def test_revoking_by_file_and_by_name_adds_to_a_signed_list_with_rising_numbers(
    fleetcount: Callable, made: Path
) -> None:
    one, two = enrol(fleetcount, "one"), enrol(fleetcount, "two")
    numbers = [PkiDirectory(made / "PKI").deny_list().number]
    name = two.subject.rfc4514_string().removeprefix("CN=")
    for options in (("--certificate", "one.crt"), ("--name", name)):
        assert fleetcount("pki", "revoke", "--pki", "PKI", *options).code == 0
        numbers.append(PkiDirectory(made / "PKI").deny_list().number)
    assert fleetcount("pki", "deny-list", "--pki", "PKI", "--valid-days", "1").code == 0

    signed = decode_signed_deny_list((made / "PKI" / "deny-list").read_bytes())
    verify_deny_list(signed, load_authorities(made / "PKI" / "devices.crt"))
    assert set(signed.deny_list.keys) == {key_digest(one), key_digest(two)}
    assert signed.deny_list.expires - signed.deny_list.issued_at == 86_400
    numbers.append(signed.deny_list.number)
    assert numbers == sorted(set(numbers))


def test_a_lost_deny_list_denies_nobody_anew_until_a_copy_that_an_aggregator_keeps_is_put_back(
    fleetcount: Callable, made: Path
) -> None:
    old, _ = enrol(fleetcount, "one"), enrol(fleetcount, "two")
    assert fleetcount("pki", "revoke", "--pki", "PKI", "--certificate", "one.crt").code == 0
    lost = made / "PKI" / "deny-list"
    signed = lost.read_bytes()

    source = DenySource(file=lost, kept=made / "kept")
    Denials.open(source, load_authorities(made / "PKI" / "devices.crt"), time.time)
    for broken in (None, b"", signed[:-1]):
        lost.unlink()
        if broken is not None:
            lost.write_bytes(broken)
        before = tree(made / "PKI")
        for command in (("deny-list",), ("revoke", "--certificate", "two.crt"), ("list",)):
            options = () if command == ("list",) else ("--valid-days", "7")
            ran = fleetcount("pki", *command, "--pki", "PKI", *options)
            assert (ran.code, tree(made / "PKI")) == (2, before)
            assert "deny-list" in ran.err
            assert "if it is lost, put back the newest copy: aggregators that read it keep one" in ran.err
        lost.touch()

    lost.write_bytes((made / "kept").read_bytes())
    assert fleetcount("pki", "revoke", "--pki", "PKI", "--certificate", "two.crt", "--valid-days", "7").code == 0
    assert key_digest(old) in PkiDirectory(made / "PKI").deny_list().keys
    assert len(PkiDirectory(made / "PKI").deny_list().keys) == 2


@pytest.mark.parametrize("wrong", [timedelta(hours=1), timedelta(days=400), timedelta(days=-400)])
def test_a_list_that_a_wrong_clock_signs_leaves_no_number_that_a_later_one_cannot_pass(
    fleetcount: Callable, made: Path, wrong: timedelta
) -> None:
    first, now = PkiDirectory(made / "PKI").deny_list(), datetime.now(UTC)
    held = Denials.open(
        DenySource(file=made / "PKI" / "deny-list"), load_authorities(made / "PKI" / "devices.crt"), time.time
    )
    signed = PkiDirectory(made / "PKI", now + wrong).write_list([], timedelta(days=1))
    asyncio.run(held.poll())
    assert held.is_stale(time.time()) == (wrong < timedelta())
    again = PkiDirectory(made / "PKI", now).write_list([], timedelta(days=1))
    asyncio.run(held.poll())

    assert [signed.number, again.number] == [first.number + 1, first.number + 2]
    assert not held.is_stale(time.time() + 80_000)
    assert held.is_stale(time.time() + 90_000)


def test_the_list_says_what_ends_when_and_what_is_revoked(fleetcount: Callable, made: Path) -> None:
    enrol(fleetcount, "long", "--days", "60")
    enrol(fleetcount, "short", "--days", "3")
    fleetcount("pki", "revoke", "--pki", "PKI", "--certificate", "short.crt")

    rows = json.loads(fleetcount("pki", "list", "--pki", "PKI", "--json").out)
    lines = fleetcount("pki", "list", "--pki", "PKI").out.splitlines()

    assert [(row["kind"], row["state"], row["days_left"]) for row in rows] == [
        ("authority", "valid", 3649),
        ("authority", "valid", 3649),
        ("deny list", "valid", 6),
        ("device", "revoked", 2),
        ("device", "valid", 59),
    ]
    assert len(lines) == len(rows)
    assert "revoked" in lines[3]


REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "the same key twice": (("enrol", "--csr", "car.csr", "--output", "x.crt"), "this key has a certificate already"),
    "an output that is there": (("enrol", "--csr", "new.csr", "--output", "car.crt"), "car.crt exists already"),
    "no request": (("enrol", "--csr", "car.crt", "--output", "x.crt"), "holds no readable signing request"),
    "an RSA key": (("enrol", "--csr", "rsa.csr", "--output", "x.crt"), "allowed: a P-256 key"),
    "a request somebody changed": (("enrol", "--csr", "bad.csr", "--output", "x.crt"), "is not signed by the key"),
    "a name that is taken": (
        ("relay", "--csr", "new.csr", "--name", "alpha", "--host", "r.org", "--output", "x.crt"),
        "the name 'alpha' is taken",
    ),
    "an aggregator's name as a host": (
        ("broker", "--csr", "new.csr", "--name", "broker", "--host", "alpha", "--output", "x.crt"),
        "--host 'alpha' is the name of an aggregator",
    ),
    "an aggregator's name in another spelling": (
        ("relay", "--csr", "new.csr", "--name", "relay", "--host", "ALPHA", "--output", "x.crt"),
        "--host 'ALPHA' is the name of an aggregator",
    ),
    "a name in another spelling": (
        ("reader", "--csr", "new.csr", "--name", "Alpha", "--output", "x.crt"),
        "the name 'Alpha' is taken",
    ),
    "a name that is a host": (
        ("aggregator", "--csr", "new.csr", "--name", "A.org", "--host", "b.org", "--output", "x.crt"),
        "the name 'A.org' is a host of the aggregator 'alpha'",
    ),
    "a slot's name": (
        ("reader", "--csr", "new.csr", "--name", "alpha-slot2", "--output", "x.crt"),
        "'alpha-slot2' is the name of an aggregator's slot",
    ),
    "a slot's name of an aggregator to come": (
        ("aggregator", "--csr", "new.csr", "--name", "gamma-SLOT3", "--host", "g.org", "--output", "x.crt"),
        "'gamma-SLOT3' is the name of an aggregator's slot",
    ),
    "a slot's name as a host": (
        ("relay", "--csr", "new.csr", "--name", "relay", "--host", "alpha-slot2", "--output", "x.crt"),
        "'alpha-slot2' is the name of an aggregator's slot",
    ),
    "a name that is none": (
        ("reader", "--csr", "new.csr", "--name", "Ann B", "--output", "x.crt"),
        "'Ann B' is neither a DNS name nor an address",
    ),
    "no days": (("enrol", "--csr", "new.csr", "--output", "x.crt", "--days", "0"), "--days"),
    "renewing a stranger's": (("renew", "--certificate", "stranger.crt", "--output", "x.crt"), "was not issued here"),
    "renewing a revoked one": (("renew", "--certificate", "gone.crt", "--output", "x.crt"), "is on the deny list"),
    "renewing for a revoked key": (
        ("renew", "--certificate", "car.crt", "--csr", "gone.csr", "--output", "x.crt"),
        "this key is on the deny list",
    ),
    "renewing for the key that it has": (
        ("renew", "--certificate", "car.crt", "--csr", "car.csr", "--output", "x.crt"),
        "the new key has a certificate already",
    ),
    "renewing for another's key": (
        ("renew", "--certificate", "car.crt", "--csr", "alpha.csr", "--output", "x.crt"),
        "the new key has a certificate already",
    ),
    "enrolling a revoked key": (("enrol", "--csr", "gone.csr", "--output", "x.crt"), "this key is on the deny list"),
    "revoking nobody": (("revoke",), "give --certificate or --name"),
    "revoking a stranger": (("revoke", "--certificate", "stranger.crt"), "was not issued here"),
    "a list for ever": (("deny-list", "--valid-days", "101"), "--valid-days"),
}


def test_what_does_not_fit_is_refused_in_one_line_and_changes_nothing(fleetcount: Callable, made: Path) -> None:
    from fleetcount_protocol.channel.certificates import CertificateAuthority, save_certificates

    enrol(fleetcount, "car")
    enrol(fleetcount, "gone")
    fleetcount("pki", "revoke", "--pki", "PKI", "--certificate", "gone.crt")
    for one in ("alpha", "new"):
        ask(fleetcount, one)
    fleetcount("pki", "aggregator", "--pki", "PKI", "--csr", "alpha.csr", "--name", "alpha", "--host", "a.org",
               "--output", "alpha.crt")  # fmt: skip
    save_certificates(Path("stranger.crt"), [CertificateAuthority.create("x").issue_device().certificate])
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    of_rsa = builder.sign(rsa.generate_private_key(65537, 2048), hashes.SHA256())
    Path("rsa.csr").write_bytes(of_rsa.public_bytes(Encoding.PEM))
    der = bytearray(builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()).public_bytes(Encoding.DER))
    der[-1] ^= 1
    Path("bad.csr").write_bytes(x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM))
    before = tree(made)

    for name, ((command, *options), said) in REFUSED.items():
        ran = fleetcount("pki", command, "--pki", "PKI", *options)

        assert ran.code == 2, name
        assert said in ran.error_line, name
        assert tree(made) == before, name


def test_an_authority_is_never_overwritten_and_another_directory_is_none(fleetcount: Callable, made: Path) -> None:
    before = tree(made)

    again = fleetcount("pki", "init", "--output", "PKI", "--deployment", "test")
    nowhere = fleetcount("pki", "list", "--pki", ".")

    assert "is not empty" in again.error_line
    assert "is no enrolment directory" in nowhere.error_line
    assert tree(made) == before


def test_a_key_that_others_may_read_signs_nothing(fleetcount: Callable, made: Path) -> None:
    ask(fleetcount, "car")
    (made / "PKI" / "devices.key").chmod(0o644)

    ran = fleetcount("pki", "enrol", "--pki", "PKI", "--csr", "car.csr", "--output", "car.crt")

    assert "mode 0644, allowed: 0600" in ran.error_line
    assert not Path("car.crt").exists()


def revoked(root: Path) -> dict[str, list[int]]:
    """Return what a broker reads of revoked certificates: by authority their numbers, every list genuine and valid."""
    parts = (root / "clients.crl").read_bytes().split(b"-----END X509 CRL-----\n")[:-1]
    found: dict[str, list[int]] = {}
    for part, name in zip(parts, ("devices", "aggregators"), strict=True):
        listed = x509.load_pem_x509_crl(part + b"-----END X509 CRL-----\n")
        authority = load_certificate(root / f"{name}.crt")
        assert listed.is_signature_valid(authority.public_key())  # type: ignore[arg-type] # Of P-256.
        assert listed.issuer == authority.subject
        assert listed.next_update_utc == authority.not_valid_after_utc
        found[name] = [one.serial_number for one in listed]
    return found


def test_a_broker_s_list_has_every_certificate_of_a_key_that_is_denied_and_is_there_from_the_start(
    fleetcount: Callable, made: Path
) -> None:
    assert revoked(made / "PKI") == {"devices": [], "aggregators": []}
    first, other = enrol(fleetcount, "car"), enrol(fleetcount, "other")
    assert fleetcount("pki", "renew", "--pki", "PKI", "--certificate", "car.crt", "--output", "car-2.crt").code == 0
    second = load_certificate(Path("car-2.crt"))
    assert fleetcount("pki", "revoke", "--pki", "PKI", "--certificate", "car.crt").code == 0

    assert revoked(made / "PKI") == {
        "devices": sorted([first.serial_number, second.serial_number]),
        "aggregators": [],
    }
    assert other.serial_number not in revoked(made / "PKI")["devices"]

"""Only leaves of our authorities, valid now, for this purpose, are accepted; every other one is refused by name."""

import ipaddress
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from fleetcount_protocol.channel import certificates
from fleetcount_protocol.channel.certificates import CertificateAuthority, Purpose, verify_chain
from fleetcount_protocol.channel.user_names import certified_name, is_user, key_name
from fleetcount_protocol.errors import SignatureError, UsageError
from fleetcount_protocol.ids import UserName

from tests.support.cases import places_of_bits

NOW = datetime(2027, 1, 15, tzinfo=UTC)
TIME = NOW.timestamp()
FLEET = CertificateAuthority.create("Fleet", NOW)
P256 = ec.generate_private_key(ec.SECP256R1())
CLIENT = [*Purpose.DEVICE.usages]
SERVER = [*Purpose.AGGREGATOR.usages]
YEAR = timedelta(days=365)


def name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def leaf(
    *,
    authority: CertificateAuthority = FLEET,
    key: Any = P256,
    usages: list[x509.ObjectIdentifier] | None = None,
    names: list[x509.GeneralName] | None = None,
    starts: datetime = NOW - timedelta(days=1),
    ends: datetime = NOW + YEAR,
    signer: Any = None,
    algorithm: Any = None,
    is_authority: bool = False,
    extra: Callable[[x509.CertificateBuilder], x509.CertificateBuilder] = lambda builder: builder,
) -> x509.Certificate:
    """Return a device's certificate with one thing changed."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(name("d-1"))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(starts)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.private_key.public_key()), critical=False
        )
    )
    if names != []:
        builder = builder.add_extension(x509.SubjectAlternativeName(names or [x509.DNSName("d-1")]), critical=False)
    if usages != []:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages or CLIENT), critical=False)
    return extra(builder).sign(signer or authority.private_key, algorithm or hashes.SHA256())


def refused(certificate: x509.Certificate, why: str, purpose: Purpose = Purpose.DEVICE, now: float = TIME) -> None:
    with pytest.raises(SignatureError, match=why):
        verify_chain(certificate, [FLEET.certificate], now, purpose)


def test_issued_certificates_are_accepted_for_their_purpose() -> None:
    device = FLEET.issue_device(now=NOW).certificate
    aggregator = FLEET.issue_aggregator("alpha", ["localhost", "127.0.0.1", "::1"], NOW).certificate

    verify_chain(leaf(), [FLEET.certificate], TIME, Purpose.DEVICE)
    verify_chain(device, [FLEET.certificate], TIME, Purpose.DEVICE)
    verify_chain(aggregator, [FLEET.certificate], TIME, Purpose.AGGREGATOR)
    refused(device, "EKU", Purpose.AGGREGATOR)


@pytest.mark.parametrize("purpose", Purpose)
@pytest.mark.parametrize("wanted", Purpose)
def test_a_certificate_serves_the_one_purpose_it_was_issued_for(purpose: Purpose, wanted: Purpose) -> None:
    certificate = FLEET.issue_new(purpose, "somebody", now=NOW).certificate

    assert certificates.purpose_of(certificate) is purpose
    if purpose is wanted:
        verify_chain(certificate, [FLEET.certificate], TIME, wanted)
    else:
        refused(certificate, "not accepted|for the purpose", wanted)


def test_a_certificate_of_no_purpose_or_of_two_has_none() -> None:
    refused(leaf(usages=[ExtendedKeyUsageOID.CLIENT_AUTH]), "exactly one purpose of this project; it names none")
    refused(leaf(usages=[*CLIENT, Purpose.READER.value]), "it names device, reader")


def test_a_leaf_ends_with_its_authority_at_the_latest() -> None:
    short = CertificateAuthority.create("short", NOW, validity=timedelta(days=10))
    leaf = short.issue(Purpose.DEVICE, P256.public_key(), "d-1", validity=timedelta(days=30), now=NOW)

    assert leaf.not_valid_after_utc == short.certificate.not_valid_after_utc
    with pytest.raises(UsageError, match="the authority expired"):
        short.issue(Purpose.DEVICE, P256.public_key(), "d-1", validity=timedelta(days=30), now=NOW + timedelta(days=10))


def test_one_of_several_authorities_is_enough() -> None:
    others = [CertificateAuthority.create(f"Other {number}", NOW).certificate for number in range(3)]

    verify_chain(leaf(), [*others, FLEET.certificate], TIME, Purpose.DEVICE)
    with pytest.raises(SignatureError, match="not accepted"):
        verify_chain(leaf(), others, TIME, Purpose.DEVICE)
    with pytest.raises(SignatureError, match="not accepted"):
        verify_chain(leaf(), [], TIME, Purpose.DEVICE)


def test_authority_of_the_same_name_with_another_key_is_refused() -> None:
    impostor = CertificateAuthority.create("Fleet", NOW)

    refused(leaf(authority=impostor), "not accepted")
    refused(leaf(signer=impostor.private_key), "not accepted")


def test_self_signed_leaf_is_refused() -> None:
    refused(leaf(signer=P256), "not accepted")


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (TIME - 2 * 86_400, "not yet valid"),
        (TIME - 86_401, "not yet valid"),
        (TIME + 366 * 86_400, "expired"),
        (TIME + 365 * 86_400 + 1, "expired"),
    ],
)
def test_validity_is_judged_to_the_second(now: float, why: str) -> None:
    refused(leaf(), why, now=now)


@pytest.mark.parametrize("now", [TIME - 300, TIME + 364 * 86_400])
def test_edges_of_the_validity_are_inside(now: float) -> None:
    # The authority is the shorter: it begins five minutes before it was made and lasts a year.
    verify_chain(leaf(), [FLEET.certificate], now, Purpose.DEVICE)


def test_leaf_of_an_expired_authority_is_refused() -> None:
    refused(leaf(ends=NOW + 3 * YEAR), "not accepted", now=TIME + 2 * 365 * 86_400)


@pytest.mark.parametrize("now", [float("nan"), float("inf"), -1e20, 1e20])
def test_impossible_times_are_refused(now: float) -> None:
    with pytest.raises(SignatureError):
        verify_chain(leaf(), [FLEET.certificate], now, Purpose.DEVICE)


@pytest.mark.parametrize("usages", [[ExtendedKeyUsageOID.CODE_SIGNING], SERVER, [ExtendedKeyUsageOID.EMAIL_PROTECTION]])
def test_other_usages_are_refused(usages: list[x509.ObjectIdentifier]) -> None:
    refused(leaf(usages=usages), "not accepted|for the purpose aggregator")


def test_common_name_alone_is_no_name() -> None:
    refused(leaf(names=[]), "alternative name")
    refused(
        leaf(names=[x509.IPAddress(ipaddress.ip_address("127.0.0.1"))], usages=SERVER), "DNS name", Purpose.AGGREGATOR
    )


@pytest.mark.parametrize("wildcard", ["*.example", "*"])
def test_wildcards_are_refused(wildcard: str) -> None:
    refused(leaf(names=[x509.DNSName("d-1"), x509.DNSName(wildcard)]), "wildcard")


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (rsa.generate_private_key(65_537, 1024), "P-256"),
        (rsa.generate_private_key(65_537, 2048), "P-256"),
        (ec.generate_private_key(ec.SECP384R1()), "P-256"),
        (ec.generate_private_key(ec.SECP256K1()), "P-256"),
        (ed25519.Ed25519PrivateKey.generate(), "P-256"),
    ],
)
def test_other_kinds_of_keys_are_refused(key: Any, why: str) -> None:
    refused(leaf(key=key), why)


@pytest.mark.parametrize("algorithm", [hashes.SHA224(), hashes.SHA384(), hashes.SHA512()])
def test_other_hashes_are_refused(algorithm: hashes.HashAlgorithm) -> None:
    refused(leaf(algorithm=algorithm), "SHA-256")


def test_sha_1_signature_is_refused() -> None:
    # The library no longer makes such a certificate, so its algorithm identifier is put in place of SHA-256's.
    der = certificates.certificate_der(leaf())
    sha256, sha1 = bytes.fromhex("06082a8648ce3d040302"), bytes.fromhex("06072a8648ce3d0401")
    assert der.count(sha256) == 2
    patched = x509.load_der_x509_certificate(_replaced(der, sha256, sha1))

    refused(patched, "SHA-256|cannot be read")


def _replaced(der: bytes, old: bytes, new: bytes) -> bytes:
    # Certificate ::= SEQUENCE { SEQUENCE tbs, SEQUENCE algorithm, BIT STRING }; both outer lengths take two bytes.
    tbs_length = int.from_bytes(der[6:8]) + 4
    tbs, rest = der[4 : 4 + tbs_length], der[4 + tbs_length :]
    algorithm = b"\x30" + bytes([len(old)]) + old
    shorter = b"\x30" + bytes([len(new)]) + new
    tbs = tbs.replace(algorithm, shorter)
    tbs = tbs[:2] + (len(tbs) - 4).to_bytes(2) + tbs[4:]
    content = tbs + rest.replace(algorithm, shorter)
    return b"\x30\x82" + len(content).to_bytes(2) + content


def test_an_authority_is_no_device() -> None:
    refused(FLEET.certificate, "alternative name")
    refused(leaf(is_authority=True), "not accepted")


def test_leaf_below_a_leaf_is_refused() -> None:
    device = FLEET.issue_device(now=NOW)
    below = CertificateAuthority(certificate=device.certificate, private_key=device.private_key)

    refused(leaf(authority=below), "not accepted")


def test_leaf_of_an_intermediate_authority_is_refused() -> None:
    usage = certificates._key_usage(signs_certificates=True)
    key = ec.generate_private_key(ec.SECP256R1())
    middle = CertificateAuthority(
        certificate=leaf(key=key, is_authority=True, extra=lambda builder: builder.add_extension(usage, critical=True)),
        private_key=key,
    )

    refused(leaf(authority=middle), "not accepted")


def test_unknown_critical_extension_is_refused() -> None:
    odd = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4.5"), b"\x05\x00")

    refused(leaf(extra=lambda builder: builder.add_extension(odd, critical=True)), "not accepted")


def test_every_flipped_bit_of_a_certificate_is_refused() -> None:
    der = certificates.certificate_der(leaf())
    for bit in places_of_bits(der):
        flipped = bytearray(der)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SignatureError):
            verify_chain(certificates.parse_certificate(bytes(flipped)), [FLEET.certificate], TIME, Purpose.DEVICE)


def test_a_signature_said_to_have_unused_bits_is_refused() -> None:
    # A parser takes one unused bit where the last bit is zero, as in every other signature.
    certificate = next(one for one in iter(leaf, None) if one.signature[-1] % 2 == 0)
    spelled = bytearray(certificates.certificate_der(certificate))
    spelled[-len(certificate.signature) - 1] = 1

    with pytest.raises(SignatureError):
        certificates.parse_certificate(bytes(spelled))


def test_truncated_and_padded_certificates_are_refused() -> None:
    der = certificates.certificate_der(leaf())
    for data in (*(der[:end] for end in range(0, len(der), 7)), der + b"\0", b"\x30\x80" + der[4:] + b"\0\0"):
        with pytest.raises(SignatureError):
            certificates.parse_certificate(data)


def test_large_certificate_is_refused() -> None:
    names: list[x509.GeneralName] = [x509.DNSName(f"d-{number}.example") for number in range(300)]

    refused(leaf(names=names), "more than 4096")


def test_identity_is_the_key_not_the_certificate() -> None:
    first, second = leaf(), leaf()

    assert first != second
    assert certificates.key_digest(first) == certificates.key_digest(second)
    assert certificates.key_digest(first) != certificates.key_digest(leaf(key=ec.generate_private_key(ec.SECP256R1())))


# Issuing.


def test_device_certificate_names_no_vehicle() -> None:
    subjects = {FLEET.issue_device(now=NOW).certificate.subject.rfc4514_string() for _ in range(5)}

    assert len(subjects) == 5
    assert all(subject.startswith("CN=d-") and len(subject) == 29 for subject in subjects)


def test_aggregator_certificate_begins_with_its_id() -> None:
    certificate = FLEET.issue_aggregator("alpha", ["localhost", "alpha", "10.0.0.1", "[::1]"], NOW).certificate
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value

    assert certificates.aggregator_names(certificate) == ("alpha", "localhost")
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "::1"]


@pytest.mark.parametrize("host", ["", "a b", "*.example", "ä.de", "a..b", "-a", "a" * 64, "a\0b", "a/b"])
def test_impossible_hosts_are_refused(host: str) -> None:
    with pytest.raises(UsageError, match="neither a DNS name nor an address"):
        FLEET.issue_aggregator("alpha", [host], NOW)


def test_aggregator_id_must_be_a_dns_name() -> None:
    with pytest.raises(UsageError, match="cannot be a DNS name in a certificate"):
        FLEET.issue_aggregator("127.0.0.1", [], NOW)


def test_authority_signs_leaves_only() -> None:
    constraints = FLEET.certificate.extensions.get_extension_for_class(x509.BasicConstraints)

    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)
    assert "private" not in repr(FLEET)


# Files.


def test_files_return_and_are_private(tmp_path: Path) -> None:
    device = FLEET.issue_device(now=NOW)
    key_file, certificate_file, bundle = tmp_path / "key", tmp_path / "certificate", tmp_path / "bundle"
    certificates.save_private_key(key_file, device.private_key)
    certificates.save_certificates(certificate_file, [device.certificate])
    certificates.save_certificates(bundle, [FLEET.certificate, device.certificate])

    assert key_file.stat().st_mode & 0o777 == 0o600
    assert certificates.load_private_key(key_file).private_numbers() == device.private_key.private_numbers()
    assert certificates.load_certificate(certificate_file) == device.certificate
    assert certificates.load_authorities(bundle) == (FLEET.certificate, device.certificate)
    with pytest.raises(UsageError, match="2 certificates"):
        certificates.load_certificate(bundle)
    for save in (
        lambda: certificates.save_private_key(key_file, device.private_key),
        lambda: certificates.save_certificates(bundle, []),
    ):
        with pytest.raises(FileExistsError):
            save()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_key_file_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "device.key"
    certificates.save_private_key(path, P256)
    path.chmod(mode)

    with pytest.raises(UsageError, match=f"^{re.escape(str(path))} has mode {mode:04o}, allowed: 0600"):
        certificates.load_private_key(path)


def pem(key: Any, encryption: Any = None) -> bytes:
    encryption = encryption or serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"junk",
        b"\xff\xfe",
        pem(P256)[:-40],
        pem(P256) * 2,
        pem(ed25519.Ed25519PrivateKey.generate()),
        pem(ec.generate_private_key(ec.SECP384R1())),
        pem(P256, serialization.BestAvailableEncryption(b"password")),
        FLEET.certificate.public_bytes(serialization.Encoding.PEM),
        b"x" * 300_000,
    ],
)
def test_key_files_with_anything_else_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "device.key"
    path.write_bytes(content)
    path.chmod(0o600)

    with pytest.raises(UsageError, match=f"^{re.escape(str(path))} "):
        certificates.load_private_key(path)


@pytest.mark.parametrize(
    "content", [b"", b"junk", pem(P256), b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_certificate_files_with_anything_else_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "device.crt"
    path.write_bytes(content)

    with pytest.raises(UsageError, match=f"^{re.escape(str(path))} "):
        certificates.load_certificate(path)


def test_a_directory_is_no_key_file(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)

    with pytest.raises(UsageError, match="not a regular file"):
        certificates.load_private_key(folder)
    with pytest.raises(UsageError, match="not a regular file"):
        certificates.load_certificate(folder)


@pytest.mark.parametrize("given", ["a" * 63 + ".b", "a." * 32 + "b"])
def test_a_name_that_brokers_would_cut_short_is_in_no_certificate(given: str) -> None:
    with pytest.raises(UsageError, match="user name"):
        FLEET.issue_new(Purpose.DEVICE, given)


def test_a_broker_knows_the_holder_by_the_common_name_or_by_the_key() -> None:
    certificate = FLEET.issue_device("d-1").certificate
    other = FLEET.issue_device("d-2").certificate

    assert certified_name(certificate) == "d-1"
    assert key_name(certificate) == certificates.key_digest(certificate).hex()
    assert [is_user(certificate, one) for one in (UserName("d-1"), key_name(certificate))] == [True, True]
    assert [is_user(certificate, one) for one in (UserName("d-2"), key_name(other), UserName("D-1"))] == [False] * 3


@pytest.mark.parametrize(
    "subject",
    [
        [],
        ["d-1", "d-2"],
        *([one] for one in ("d/1", "+", "#", "$SYS", "%u", "d 1", "d-1\n", "dä", "-d", "a b")),
    ],
)
def test_a_common_name_that_cannot_stand_in_a_topic_is_nobody_s(subject: list[str]) -> None:
    names = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one) for one in subject])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(names)
        .issuer_name(names)
        .public_key(P256.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + YEAR)
        .sign(P256, hashes.SHA256())
    )

    with pytest.raises(SignatureError, match="common name"):
        certified_name(certificate)
    assert is_user(certificate, key_name(certificate))
    assert not is_user(certificate, UserName("d-1"))

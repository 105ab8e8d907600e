"""What a caller may do follows from the purpose and the end of its certificate; two certificates for a key are one."""

from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from fleetcount_protocol.channel.certificates import CertificateAuthority, Purpose
from fleetcount_transport.callers import Caller, caller_of

from tests.support.twins import twin_of

AUTHORITY = CertificateAuthority.create("devices")
DEVICES = frozenset({Purpose.DEVICE})


def called_with(certificate: x509.Certificate | None) -> Caller:
    pem = [] if certificate is None else [certificate.public_bytes(serialization.Encoding.PEM)]
    names = {"x509_pem_cert": pem} if pem else {}
    return caller_of(SimpleNamespace(auth_context=lambda: names, peer=lambda: "ipv4:127.0.0.1:7"))


@pytest.mark.parametrize("purpose", Purpose)
def test_a_caller_may_what_its_purpose_may_until_its_certificate_ends(purpose: Purpose) -> None:
    certificate = AUTHORITY.issue_new(purpose, "somebody").certificate
    caller, end = called_with(certificate), certificate.not_valid_after_utc.timestamp()

    assert caller.may(DEVICES, end) == (purpose is Purpose.DEVICE)
    assert not caller.may(DEVICES, end + 1)


def test_a_certificate_without_a_purpose_may_nothing_and_a_connection_without_tls_is_not_asked() -> None:
    plain = called_with(AUTHORITY.certificate)
    local = called_with(None)

    assert not plain.may(frozenset(Purpose), 0)
    assert local.may(DEVICES, 1e12)
    assert local.key == b"ipv4:127.0.0.1:7"


def test_a_second_certificate_for_the_same_key_is_the_same_caller() -> None:
    certificate = AUTHORITY.issue_device().certificate

    assert called_with(certificate).key == called_with(twin_of(certificate)).key
    assert called_with(certificate).key != called_with(AUTHORITY.issue_device().certificate).key

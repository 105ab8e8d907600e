"""A second certificate for the same key, which its holder makes without the authority."""

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from fleetcount_protocol.channel import certificates

_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def twin_of(certificate: x509.Certificate) -> x509.Certificate:
    """Return the certificate with (r, n - s) for its signature: ECDSA verifies one wherever it verifies the other."""
    r, s = decode_dss_signature(certificate.signature)
    new = encode_dss_signature(r, _ORDER - s)
    # Certificate ::= SEQUENCE { tbs, algorithm, BIT STRING (0 unused bits || signature) }, lengths in two bytes.
    der = certificates.certificate_der(certificate)
    content = der[4 : -len(certificate.signature) - 3] + b"\x03" + bytes([len(new) + 1, 0]) + new
    return certificates.parse_certificate(b"\x30\x82" + len(content).to_bytes(2) + content)

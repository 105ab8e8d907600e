"""The names by which brokers know parties: read from certificates, never from a party's own claim.

It must not verify a certificate: code that accepts one from a peer does (`certificates.verify_chain`).
"""

from cryptography import x509
from cryptography.x509.oid import NameOID

from fleetcount_protocol.channel.certificates import key_digest
from fleetcount_protocol.errors import DecodeError, SignatureError
from fleetcount_protocol.ids import AggregatorId, UserName


def certified_name(certificate: x509.Certificate) -> UserName:
    """Return the name by which a broker that checks certificates knows the holder: the only common name.

    Raises:
        SignatureError: no common name, more than one, or one that is not a `UserName`.
    """
    try:
        names = [one.value for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    except ValueError:
        names = []
    if len(names) != 1 or not isinstance(names[0], str):
        raise SignatureError(f"certificate has {len(names)} common names, allowed: one")
    try:
        return UserName(names[0])
    except DecodeError as error:
        raise SignatureError(f"certificate's common name: {error}") from None


def key_name(certificate: x509.Certificate) -> UserName:
    """Return the holder's name at a broker that checks no certificates: its key's digest, 64 hexadecimal digits."""
    return UserName(key_digest(certificate).hex())


def slot_name(aggregator_id: AggregatorId, slot: int) -> UserName:
    """Return the name in the certificate of a slot of an aggregator; slot 0 has the aggregator's own id."""
    return UserName(f"{aggregator_id}-slot{slot}" if slot else aggregator_id)


def is_user(certificate: x509.Certificate, user: UserName) -> bool:
    """Return whether this is the holder's name at a broker of either kind."""
    if user == key_name(certificate):
        return True
    try:
        return user == certified_name(certificate)
    except SignatureError:
        return False

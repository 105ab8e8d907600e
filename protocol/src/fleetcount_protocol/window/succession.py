"""The succession of a signing key: the old key signs the new one, and for a while both are valid.

For planned replacement. A stolen key can sign a successor too: after a theft, every party replaces the key in its
configuration. This module must not read files or clocks.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fleetcount_protocol.errors import DecodeError, QuestionError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.layout import Reader, text_bytes, uint
from fleetcount_protocol.limits import MAX_UNIX_TIME
from fleetcount_protocol.window.keys import check_signing_public_key, encode_with_signature, read_with_signature
from fleetcount_protocol.window.signing import SuccessorKey, TrustedAggregator, verify_ed25519
from fleetcount_protocol.window.window import check_range, require

SUCCESSION_LABEL: Final = b"FCSUCC01"
MAX_SUCCESSION_BYTES: Final = 8 + 2 + 32 + 2 * 32 + 2 * 8
MAX_SUCCESSION_FILE_BYTES: Final = 4 + MAX_SUCCESSION_BYTES + 64
_KEY_BYTES: Final = 32


@dataclass(frozen=True, kw_only=True)
class Succession:
    """An aggregator's old and new Ed25519 key, 32 bytes each; both are valid from `not_before` on, before `not_after`.

    Unix seconds. Before that only the old key is valid, afterwards only the new one.

    Raises:
        QuestionError: equal keys, bytes that are not a key, or times out of order.
    """

    aggregator_id: AggregatorId
    old_key: bytes
    new_key: bytes
    not_before: int
    not_after: int

    def __post_init__(self) -> None:
        try:
            for key in (self.old_key, self.new_key):
                check_signing_public_key(key)
        except ValueError as error:
            raise QuestionError(f"succession of {self.aggregator_id}: {error}") from error
        require(self.old_key != self.new_key, "the new signing key is the old one")
        check_range("not_before of the succession", self.not_before, 0, MAX_UNIX_TIME - 1)
        check_range("not_after of the succession", self.not_after, self.not_before + 1, MAX_UNIX_TIME)

    @cached_property
    def canonical(self) -> bytes:
        """The bytes that the old key signs (docs/wire.md, "Succession")."""
        head = SUCCESSION_LABEL + text_bytes(self.aggregator_id) + self.old_key + self.new_key
        return head + uint(self.not_before, 8) + uint(self.not_after, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedSuccession:
    """A succession with the old key's Ed25519 signature, 64 bytes, which is not verified yet."""

    succession: Succession
    signature: bytes


def sign_succession(succession: Succession, old_key: Ed25519PrivateKey) -> SignedSuccession:
    """Return the succession with the signature of the old key (RFC 8032, pure) over the canonical bytes.

    Raises:
        QuestionError: `old_key` is not the old key of the succession.
    """
    require(old_key.public_key().public_bytes_raw() == succession.old_key, "the signing key is not the old key")
    return SignedSuccession(succession=succession, signature=old_key.sign(succession.canonical))


def encode_signed_succession(signed: SignedSuccession) -> bytes:
    """Return a succession and its signature as one file."""
    return encode_with_signature(signed.succession.canonical, signed.signature)


def decode_signed_succession(data: bytes) -> SignedSuccession:
    """Return the succession that `encode_signed_succession` wrote; the signature is not verified here.

    Raises:
        DecodeError: the bytes are not such a file.
    """
    canonical, signature = read_with_signature(data, "succession", SUCCESSION_LABEL, MAX_SUCCESSION_BYTES)
    reader = Reader(canonical, "succession", MAX_SUCCESSION_BYTES)
    reader.expect(SUCCESSION_LABEL)
    name, old, new = AggregatorId(reader.text(1, 32)), reader.take(_KEY_BYTES), reader.take(_KEY_BYTES)
    begins, ends = reader.uint(8), reader.uint(8)
    reader.finish()
    try:
        succession = Succession(aggregator_id=name, old_key=old, new_key=new, not_before=begins, not_after=ends)
    except QuestionError as error:
        raise DecodeError(f"succession that cannot be: {error}") from error
    return SignedSuccession(succession=succession, signature=signature)


def with_successions(trusted: TrustedAggregator, signed: Iterable[SignedSuccession]) -> TrustedAggregator:
    """Return the trusted aggregator with the successors of its key, each signed by the key before it.

    Raises:
        QuestionError: a succession of another aggregator or of another key, one that begins before the last one has
            ended, or a new key that the aggregator had before.
        SignatureError: a signature that does not verify under the key before.
    """
    for one in signed:
        succession, keys = one.succession, trusted.keys
        what = f"succession of {succession.aggregator_id}"
        require(succession.aggregator_id == trusted.aggregator_id, f"{what} in the place of {trusted.aggregator_id}")
        require(succession.old_key == keys[-1], f"{what} is about another signing key than the one trusted before it")
        require(succession.new_key not in keys, f"{what} comes back to a signing key of before")
        earliest = max((known.former_until for known in trusted.successors), default=0)
        begins = succession.not_before
        require(begins >= earliest, f"{what} begins at {begins}, allowed: from {earliest}")
        verify_ed25519(succession.old_key, one.signature, succession.canonical, f"signature under the {what}")
        following = SuccessorKey(
            key=succession.new_key, not_before=succession.not_before, former_until=succession.not_after
        )
        trusted = replace(trusted, successors=(*trusted.successors, following))
    return trusted

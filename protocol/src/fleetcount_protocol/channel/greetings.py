"""Greetings: the metadata of every call between aggregators: the sender's time and its start epoch, signed.

A greeting proves that its sender holds the signing key of an aggregator: it is signed for one call, whose challenge the
caller chose, and for the key of the caller's TLS certificate, so that nobody between the two can use it. Each start of
an aggregator has an epoch: a number that increases, and random bytes that distinguish two starts with one number. A
peer that knows a newer epoch can prove to an older process that it is outdated; the signature prevents forged epochs.
It must not read clocks, files or headers, nor decide about a call (docs/wire.md, "Greetings").
"""

from dataclasses import dataclass, replace
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fleetcount_protocol.errors import DecodeError, SignatureError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.layout import Reader, text_bytes, uint
from fleetcount_protocol.limits import ED25519_SIGNATURE_BYTES, MAX_TERM, MAX_UNIX_TIME
from fleetcount_protocol.window.signing import TrustedAggregator, verify_ed25519

EPOCH_LABEL: Final = b"FCEPOC01"
GREETING_LABEL: Final = b"FCGREE01"
TAG_BYTES: Final = 8
CHALLENGE_BYTES: Final = 16
_EPOCH_BYTES: Final = 8 + TAG_BYTES + ED25519_SIGNATURE_BYTES
_LARGEST: Final = 8 + 2 * (1 + _EPOCH_BYTES) + CHALLENGE_BYTES + ED25519_SIGNATURE_BYTES
_NO_CHALLENGE: Final = bytes(CHALLENGE_BYTES)
_NO_SIGNATURE: Final = bytes(ED25519_SIGNATURE_BYTES)


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """One start of an aggregator, `number` from 1, with an Ed25519 signature that is not verified yet.

    Of two epochs of one aggregator the greater is the newer: by number, then by `tag` (8 random bytes).

    Raises:
        DecodeError: a number outside 1..2^63 - 1, or a tag of another size.
    """

    number: int
    tag: bytes
    signature: bytes

    def __post_init__(self) -> None:
        if not 1 <= self.number <= MAX_TERM or len(self.tag) != TAG_BYTES:
            raise DecodeError(f"epoch {self.number} with a tag of {len(self.tag)} bytes; allowed: 1 to 2^63 - 1, and 8")

    def encode(self) -> bytes:
        """Return its 80 bytes."""
        return uint(self.number, 8) + self.tag + self.signature


def _signed_bytes(aggregator_id: AggregatorId, number: int, tag: bytes) -> bytes:
    return EPOCH_LABEL + text_bytes(aggregator_id) + uint(number, 8) + tag


def sign_epoch(aggregator_id: AggregatorId, number: int, tag: bytes, key: Ed25519PrivateKey) -> Epoch:
    """Return a new epoch of an aggregator, signed with its key; run by this aggregator, once at each start."""
    return Epoch(number, tag, key.sign(_signed_bytes(aggregator_id, number, tag)))


def verify_epoch(epoch: Epoch, of: TrustedAggregator) -> None:
    """Accept an epoch that the aggregator has signed with one of its present or former keys.

    Raises:
        SignatureError: the signature verifies under no such key.
    """
    message = _signed_bytes(of.aggregator_id, epoch.number, epoch.tag)
    _verify(of, epoch.signature, message, f"signature under epoch {epoch.number}")


def _verify(of: TrustedAggregator, signature: bytes, message: bytes, what: str) -> None:
    for key in of.keys[:-1]:
        try:
            verify_ed25519(key, signature, message, what)
        except SignatureError:
            continue
        return
    verify_ed25519(of.keys[-1], signature, message, what)


def decode_epoch(data: bytes) -> Epoch:
    """Return the epoch that `Epoch.encode` wrote.

    Raises:
        DecodeError: the bytes are not an epoch.
    """
    reader = Reader(data, "epoch", _EPOCH_BYTES)
    epoch = Epoch(reader.uint(8), reader.take(TAG_BYTES), reader.take(ED25519_SIGNATURE_BYTES))
    reader.finish()
    return epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """One call between two aggregators, which the greetings with it and with its answer are signed for.

    `tls_key` is the digest of the caller's public key in TLS (`key_digest`), as each of the two sees it; empty without
    TLS.
    """

    caller: AggregatorId
    callee: AggregatorId
    tls_key: bytes

    def signed_bytes(self, greeting: "Greeting", *, is_answer: bool) -> bytes:
        """Return what the sender of a greeting signs: the callee's with its answer, else the caller's."""
        return (
            GREETING_LABEL
            + uint(int(is_answer), 1)
            + text_bytes(self.caller)
            + text_bytes(self.callee)
            + uint(len(self.tls_key), 1)
            + self.tls_key
            + greeting.encode()[:-ED25519_SIGNATURE_BYTES]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """The sender's time in milliseconds since the Unix epoch (1970), its own start epoch, and its signature.

    `known` is the newest start epoch of the receiver that the sender knows, None if it knows none. `challenge` is 16
    random bytes of the caller's, which an answer repeats; `signature` is over the `Meeting`, not verified yet.
    """

    time_ms: int
    epoch: Epoch
    known: Epoch | None = None
    challenge: bytes = _NO_CHALLENGE
    signature: bytes = _NO_SIGNATURE

    def encode(self) -> bytes:
        """Return its bytes, at most 250."""
        known = b"" if self.known is None else self.known.encode()
        own = self.epoch.encode()
        said = uint(self.time_ms, 8) + uint(len(own), 1) + own + uint(len(known), 1) + known
        return said + self.challenge + self.signature


def sign_greeting(greeting: Greeting, meeting: Meeting, key: Ed25519PrivateKey, *, is_answer: bool) -> Greeting:
    """Return the greeting with its sender's signature for a call."""
    return replace(greeting, signature=key.sign(meeting.signed_bytes(greeting, is_answer=is_answer)))


def verify_greeting(greeting: Greeting, meeting: Meeting, of: TrustedAggregator, *, is_answer: bool) -> None:
    """Accept a greeting that its sender has signed for this call with one of its present or former keys.

    Raises:
        SignatureError: the signature verifies under no such key.
    """
    _verify(of, greeting.signature, meeting.signed_bytes(greeting, is_answer=is_answer), "signature under a greeting")


def decode_greeting(data: bytes) -> Greeting:
    """Return the greeting that these bytes encode.

    Raises:
        DecodeError: the bytes are not the one encoding of a greeting.
    """
    reader = Reader(data, "greeting", _LARGEST)
    time_ms = reader.count(8, 0, 1000 * MAX_UNIX_TIME)
    epoch = decode_epoch(reader.sized(1, _EPOCH_BYTES, _EPOCH_BYTES))
    known = reader.sized(1, 0, _EPOCH_BYTES)
    challenge, signature = reader.take(CHALLENGE_BYTES), reader.take(ED25519_SIGNATURE_BYTES)
    reader.finish()
    return Greeting(
        time_ms=time_ms,
        epoch=epoch,
        known=decode_epoch(known) if known else None,
        challenge=challenge,
        signature=signature,
    )

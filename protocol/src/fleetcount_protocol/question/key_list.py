"""The signed list of an aggregator's sealing keys with their validity; a window's keys are chosen from such lists.

It must not have a private key, and it neither seals nor opens.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fleetcount_protocol.clock import LARGEST_LEAD_S
from fleetcount_protocol.errors import DecodeError, QuestionError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.layout import Reader, text_bytes, uint
from fleetcount_protocol.limits import MAX_KEY_LIST_BYTES, MAX_LISTED_KEYS, MAX_UNIX_TIME
from fleetcount_protocol.window.codec import encode_key, read_key
from fleetcount_protocol.window.fields import Aggregator, HpkeKey
from fleetcount_protocol.window.keys import encode_with_signature, read_with_signature
from fleetcount_protocol.window.signing import TrustedAggregator, verify_by
from fleetcount_protocol.window.window import check_range, check_sealing_keys, require

KEY_LIST_LABEL: Final = b"FCKEYS01"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedKey:
    """A sealing key that is valid from `not_before` on, before `not_after`, Unix seconds."""

    key: HpkeKey
    not_before: int
    not_after: int


@dataclass(frozen=True, kw_only=True)
class KeyList:
    """The sealing keys of an aggregator, 1 to 32, ascending by key id; of two lists the one issued later is valid.

    Raises:
        QuestionError: another number of keys, keys out of order, twice or of small order, or times out of order.
    """

    aggregator_id: AggregatorId
    issued_at: int
    keys: tuple[ListedKey, ...]

    def __post_init__(self) -> None:
        check_range("issued_at", self.issued_at, 0, MAX_UNIX_TIME)
        check_range("number of listed keys", len(self.keys), 1, MAX_LISTED_KEYS)
        check_sealing_keys(self.aggregator_id, [one.key for one in self.keys])
        ids = [one.key.key_id for one in self.keys]
        require(ids == sorted(ids), f"key ids are {ids}, allowed: ascending")
        require(len({one.key.public_key for one in self.keys}) == len(ids), "a listed key is given twice")
        for one in self.keys:
            what = f"of key {one.key.key_id}"
            check_range(f"not_before {what}", one.not_before, 0, MAX_UNIX_TIME)
            check_range(f"not_after {what}", one.not_after, one.not_before + 1, MAX_UNIX_TIME)

    @cached_property
    def canonical(self) -> bytes:
        """The bytes that the aggregator signs (docs/wire.md, "Key list")."""
        keys = b"".join(encode_key(one.key) + uint(one.not_before, 8) + uint(one.not_after, 8) for one in self.keys)
        head = KEY_LIST_LABEL + text_bytes(self.aggregator_id) + uint(self.issued_at, 8)
        return head + uint(len(self.keys), 1) + keys


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedKeyList:
    """A key list with its aggregator's Ed25519 signature, 64 bytes, which is not verified yet."""

    key_list: KeyList
    signature: bytes


def decode_key_list(data: bytes) -> KeyList:
    """Return the key list whose canonical bytes these are.

    Raises:
        DecodeError: they are not the canonical bytes of a key list.
    """
    reader = Reader(data, "key list", MAX_KEY_LIST_BYTES)
    reader.expect(KEY_LIST_LABEL)
    aggregator_id, issued_at = AggregatorId(reader.text(1, 32)), reader.uint(8)
    keys = tuple(
        ListedKey(key=read_key(reader), not_before=reader.uint(8), not_after=reader.uint(8))
        for _ in range(reader.count(1, 1, MAX_LISTED_KEYS))
    )
    reader.finish()
    try:
        return KeyList(aggregator_id=aggregator_id, issued_at=issued_at, keys=keys)
    except QuestionError as error:
        raise DecodeError(f"key list that cannot be: {error}") from error


def encode_signed_key_list(signed: SignedKeyList) -> bytes:
    """Return a key list and its signature as one file."""
    return encode_with_signature(signed.key_list.canonical, signed.signature)


def decode_signed_key_list(data: bytes) -> SignedKeyList:
    """Return the key list that `encode_signed_key_list` wrote; the signature is not verified here.

    Raises:
        DecodeError: the bytes are not such a file.
    """
    canonical, signature = read_with_signature(data, "key list", KEY_LIST_LABEL, MAX_KEY_LIST_BYTES)
    return SignedKeyList(key_list=decode_key_list(canonical), signature=signature)


def sign_key_list(key_list: KeyList, key: Ed25519PrivateKey) -> SignedKeyList:
    """Return the list with the signature of its aggregator's signing key (RFC 8032, pure) over the canonical bytes."""
    return SignedKeyList(key_list=key_list, signature=key.sign(key_list.canonical))


def verify_key_list(signed: SignedKeyList, aggregator: Aggregator, trusted: TrustedAggregator | None = None) -> None:
    """Accept a key list only if the aggregator whose keys it lists has signed it with its key in a verified question.

    With `trusted` also with a successor of that key that was valid when the list was issued.

    Raises:
        QuestionError: the list is another aggregator's.
        SignatureError: the signature is missing or does not verify.
    """
    listed = signed.key_list.aggregator_id
    if listed != aggregator.aggregator_id:
        raise QuestionError(f"key list of {listed} in the place of {aggregator.aggregator_id}")
    what = f"signature of {listed} under its key list"
    issued_at = signed.key_list.issued_at
    verify_by(aggregator, trusted, signed.signature, signed.key_list.canonical, what, issued_at)


def replaces(listed: KeyList, held: KeyList | None, now: float) -> bool:
    """Return whether a list replaces the one that is held of its aggregator: the later one counts.

    One from the future counts never, and gives way if it is held: else a list that was signed under a wrong clock
    could not be replaced. `now` is this party's clock, Unix seconds.
    """
    latest = now + LARGEST_LEAD_S
    return listed.issued_at <= latest and (held is None or not listed.issued_at <= held.issued_at <= latest)


def check_distinct_keys(lists: Iterable[KeyList]) -> None:
    """Refuse a sealing key that two aggregators of one question list: only one of them may open a part.

    Raises:
        QuestionError: with the two aggregators.
    """
    owners: dict[bytes, AggregatorId] = {}
    for key_list in lists:
        for one in key_list.keys:
            owner = owners.setdefault(one.key.public_key, key_list.aggregator_id)
            require(
                owner == key_list.aggregator_id,
                f"{owner} and {key_list.aggregator_id} list the same sealing key, allowed: different ones",
            )


def key_for(key_list: KeyList, opens: int, closes: int) -> HpkeKey:
    """Return the key to which devices seal for a window: the newest key that is valid while the window is open.

    `opens` is the time of the window's first round, `closes` the end of its last, Unix seconds. Of keys that begin at
    the same time the one with the larger id is chosen.

    Raises:
        QuestionError: no key is valid from `opens` until `closes`.
    """
    fitting = [one for one in key_list.keys if one.not_before <= opens and closes <= one.not_after]
    if not fitting:
        last = max(one.not_after for one in key_list.keys)
        raise QuestionError(
            f"{key_list.aggregator_id} lists no sealing key valid for the window from {opens} until {closes}; the last "
            f"of its keys is valid until {last}"
        )
    return max(fitting, key=lambda one: (one.not_before, one.key.key_id)).key

"""The one-way chain of a session's keys: one key for each window; earlier keys cannot be derived from later ones.

A device uses the keys in order and advances with each; an aggregator needs them in any order and advances when windows
end (docs/wire.md, "Window keys"). Callers that store a chain overwrite the one before.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from fleetcount_protocol.errors import DecodeError, UsageError
from fleetcount_protocol.ids import SessionId
from fleetcount_protocol.layout import uint
from fleetcount_protocol.limits import MAX_KEPT_WINDOW_KEYS, MAX_KEY_NUMBER, MAX_KEYS_AHEAD, SESSION_SECRET_BYTES

WINDOW_KEY_LABEL: Final = b"fleetcount v1 window key"
NEXT_KEY_LABEL: Final = b"fleetcount v1 next key"
_NUMBER_BYTES: Final = 4
_ENTRY_BYTES: Final = _NUMBER_BYTES + SESSION_SECRET_BYTES


def expand(secret: bytes, info: bytes, size: int = SESSION_SECRET_BYTES) -> bytes:
    """Return `size` bytes of HKDF-Expand with SHA-256.

    The secret is 32 uniform bytes, so no extract step is needed (RFC 5869, sections 2.3 and 3.3).
    """
    # Not hmac.digest, which lets other threads run at each hash: waiting for them costs more.
    return HKDFExpand(SHA256(), size, info).derive(secret)


def window_key(chain_key: bytes) -> bytes:
    """Return the 32-byte key of one window's reports from the chain key of its number."""
    return expand(chain_key, WINDOW_KEY_LABEL)


def next_key(chain_key: bytes) -> bytes:
    """Return the chain key of the next number, 32 bytes; it reveals nothing about earlier ones."""
    return expand(chain_key, NEXT_KEY_LABEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowKey:
    """The 32-byte key under which a device's report in one window travels to one aggregator, and its number, 1..65,535.

    Raises:
        UsageError: a key of another size or a number out of range.
    """

    session_id: SessionId
    number: int
    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.key) != SESSION_SECRET_BYTES:
            raise UsageError(f"a window key has {SESSION_SECRET_BYTES} bytes, not {len(self.key)}")
        if not 1 <= self.number <= MAX_KEY_NUMBER:
            raise UsageError(f"the number of a window key is {self.number}, not 1 to {MAX_KEY_NUMBER}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChain:
    """An aggregator's keys of a session: the chain key of `number`, and window keys of lower numbers still in use.

    `kept` are (number, 32-byte window key), by ascending number, at most `MAX_KEPT_WINDOW_KEYS`.
    """

    number: int
    key: bytes = field(repr=False)
    kept: tuple[tuple[int, bytes], ...] = field(default=(), repr=False)

    def window_key(self, number: int) -> bytes | None:
        """Return the 32-byte window key of a number; None if it is erased or more than `MAX_KEYS_AHEAD` ahead."""
        if number < self.number:
            return dict(self.kept).get(number)
        if number - self.number > MAX_KEYS_AHEAD or number > MAX_KEY_NUMBER:
            return None
        key = self.key
        for _ in range(number - self.number):
            key = next_key(key)
        return window_key(key)

    def without(self, numbers: Collection[int]) -> "KeyChain":
        """Return the chain advanced so far that the window keys of these numbers cannot be derived from it.

        The keys of skipped numbers are kept, the highest `MAX_KEPT_WINDOW_KEYS` of them: their reports may still
        arrive.
        """
        erased = {number for number in numbers if number - self.number <= MAX_KEYS_AHEAD and number <= MAX_KEY_NUMBER}
        kept = [(number, key) for number, key in self.kept if number not in erased]
        number, key = self.number, self.key
        while number <= max(erased, default=0):
            if number not in erased:
                kept.append((number, window_key(key)))
            number, key = number + 1, next_key(key)
        return KeyChain(number=number, key=key, kept=tuple(kept[-MAX_KEPT_WINDOW_KEYS:]))

    def encode(self) -> bytes:
        """Return the chain as bytes for the aggregator's own store, which seals them."""
        return b"".join(uint(number, _NUMBER_BYTES) + key for number, key in ((self.number, self.key), *self.kept))

    @classmethod
    def decode(cls, encoded: bytes) -> "KeyChain":
        """Return the chain that `encode` wrote.

        Raises:
            DecodeError: bytes of another size.
        """
        if not encoded or len(encoded) % _ENTRY_BYTES:
            raise DecodeError(f"a stored key chain has {len(encoded)} bytes, no multiple of {_ENTRY_BYTES}")
        cut = [encoded[at : at + _ENTRY_BYTES] for at in range(0, len(encoded), _ENTRY_BYTES)]
        (number, key), *kept = ((int.from_bytes(one[:_NUMBER_BYTES]), one[_NUMBER_BYTES:]) for one in cut)
        return cls(number=number, key=key, kept=tuple(kept))

"""Sessions as an aggregator holds them: packed in memory, their chains of keys sealed at rest, moved on to erase keys.

The chain in the store is the only way to a session's window keys: what `Store.erase_window_keys` has taken out of it is
gone.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from fleetcount_protocol.channel.chain import KeyChain
from fleetcount_protocol.ids import Digest
from fleetcount_transport.logs import log

from fleetcount_aggregator.storage.data_keys import ChainSeal
from fleetcount_aggregator.storage.errors import StoreError

_EXPIRY_BYTES: Final = 8
_CHAIN_AT: Final = 96 + _EXPIRY_BYTES
_NUMBER: Final = slice(_CHAIN_AT + 2, _CHAIN_AT + 4)
"""The low bytes of the chain's number, as instalments spell it."""


class PackedSession(bytes):
    """A session in 140 bytes: the window key whose turn it is, receipt key, digest of the device's key, expiry, chain.

    36 bytes more for each window key that is still open below it. Never shown.
    """

    __slots__ = ()

    @classmethod
    def of(cls, chain: KeyChain, receipt_key: bytes, certificate: Digest, expiry: int) -> "PackedSession":
        """Return a session packed."""
        key = chain.window_key(chain.number) or bytes(len(chain.key))  # None once the chain has come to its end.
        return cls(key + receipt_key + certificate + expiry.to_bytes(_EXPIRY_BYTES) + chain.encode())

    def __repr__(self) -> str:
        return "PackedSession(…)"

    def window_key(self, number: bytes) -> bytes | None:
        """Return the 32-byte window key of a number in two bytes; None if it is erased or too far ahead."""
        if self[_NUMBER] == number:
            return self[:32]
        return self.chain.window_key(int.from_bytes(number))

    @property
    def chain(self) -> KeyChain:
        """The chain of keys."""
        return KeyChain.decode(self[_CHAIN_AT:])

    @property
    def receipt_key(self) -> bytes:
        """The 32-byte key of receipts."""
        return self[32:64]

    @property
    def certificate(self) -> Digest:
        """The device, as it is counted."""
        return Digest(self.certificate_bytes)

    @property
    def certificate_bytes(self) -> bytes:
        """The 32 bytes of `certificate`, without making an object, for thousands at a time."""
        return self[64:96]

    @property
    def expiry(self) -> int:
        """Unix seconds."""
        return int.from_bytes(self[96:_CHAIN_AT])

    def with_chain(self, chain: KeyChain) -> "PackedSession":
        """Return the session with another chain."""
        return self.of(chain, self.receipt_key, self.certificate, self.expiry)


def moved_on(
    seal: ChainSeal, found: Sequence[tuple[bytes, bytes]], numbers: Mapping[bytes, Sequence[int]]
) -> list[tuple[bytes, bytes, KeyChain | None]]:
    """Return the chains from which some numbers are to be erased and are not yet: without them, sealed and open.

    Of one that is damaged nothing is left, sealed b"" and open None: its session is of no use here, and what has a
    wrong tag alone would still show its keys to who has the store's.
    """
    moved: list[tuple[bytes, bytes, KeyChain | None]] = []
    for session_id, sealed in found:
        if not sealed:
            continue
        try:
            receipt_key, chain = seal.open(session_id, sealed)
        except StoreError as error:
            log.error("session_damaged", reason=str(error))
            moved.append((session_id, b"", None))
            continue
        after = chain.without(numbers[session_id])
        if after != chain:
            moved.append((session_id, seal.seal(session_id, receipt_key, after), after))
    return moved

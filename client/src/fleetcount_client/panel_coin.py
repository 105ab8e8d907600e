"""The sampling coin of a unit of a question: the same for all its windows, derived and never stored.

It follows from a secret of the device and the unit's name, so that leaving and joining again, a crash or a lost row
toss nothing anew. It must not be shown, logged or kept; only the device's own secret is.
"""

import hashlib
from fractions import Fraction
from typing import Final

from fleetcount_mechanisms.randomness import uniform_below
from fleetcount_protocol.ids import QuestionId
from fleetcount_protocol.layout import uint

COIN_SECRET_BYTES: Final = 32
_UNIT_LABEL: Final = b"fleetcount device unit v1"
_COIN_LABEL: Final = b"fleetcount device coin v1"
_BLOCK_BYTES: Final = 64


class _DerivedBytes:
    """The stream SHAKE-256(label || secret || unit || i), block after block: uniform to who lacks the secret."""

    __slots__ = ("_count", "_left", "_seed")

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._count = 0
        self._left = b""

    def random_bytes(self, count: int, /) -> bytes:
        """Return the next bytes of the stream."""
        while len(self._left) < count:
            self._left += hashlib.shake_256(self._seed + uint(self._count, 8)).digest(_BLOCK_BYTES)
            self._count += 1
        found, self._left = self._left[:count], self._left[count:]
        return found


def unit_id(question_id: QuestionId, unit: int) -> bytes:
    """Return the 32-byte name of a unit, under which the ledger charges it: SHA-256(label || question || unit)."""
    return hashlib.sha256(_UNIT_LABEL + question_id + uint(unit, 8)).digest()


def coin_of(secret: bytes, unit: bytes, rate: Fraction) -> bool:
    """Return whether the device is in the sample for a unit: true with probability exactly `rate`, by rejection."""
    number = uniform_below(_DerivedBytes(_COIN_LABEL + secret + unit), rate.denominator)
    return number < rate.numerator

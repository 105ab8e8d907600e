"""The sealed set by position as a store keeps it: a bit a report, and in stores of before a byte.

Above a store a sealed set is a byte a report, 1 if it is in the set. Knows no ids.
"""

from typing import Final

import numpy as np
from fleetcount_protocol.layout import uint

from fleetcount_aggregator.storage.store import StoreError

__all__ = ["chosen_of", "kept_chosen"]

_BITS: Final = b"\x02"
"""What a set of bits begins with; a set of bytes begins with 0 or 1, or is empty."""
_COUNT_BYTES: Final = 8


def kept_chosen(chosen: bytes) -> bytes:
    """Return a sealed set as it is kept: a byte 2, the number of reports (8 bytes), a bit each, the highest first."""
    return _BITS + uint(len(chosen), _COUNT_BYTES) + np.packbits(np.frombuffer(chosen, dtype=np.uint8)).tobytes()


def chosen_of(kept: bytes) -> bytes:
    """Return a sealed set, 1 or 0 a report, as `kept_chosen` gave it, or a store of before: then it is these bytes.

    Raises:
        StoreError: it is damaged.
    """
    if not kept.startswith(_BITS):
        if kept.translate(None, b"\0\1"):
            raise StoreError("a sealed set is neither of bits nor of bytes 0 and 1")
        return kept
    start = len(_BITS) + _COUNT_BYTES
    count = int.from_bytes(kept[len(_BITS) : start])
    if len(kept) != start + -(-count // 8):
        raise StoreError("a sealed set has not as many bits as it has reports")  # How many that are nobody learns.
    return np.unpackbits(np.frombuffer(kept, dtype=np.uint8)[start:], count=count).tobytes()

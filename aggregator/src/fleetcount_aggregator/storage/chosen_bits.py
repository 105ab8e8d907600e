"""The sealed set by position as a store keeps it: the number of reports, and a bit each.

Above a store a sealed set is a byte a report, 1 if it is in the set. Knows no ids.
"""

from typing import Final

import numpy as np
from fleetcount_protocol.layout import uint

from fleetcount_aggregator.storage.errors import StoreError

_COUNT_BYTES: Final = 8


def kept_chosen(chosen: bytes) -> bytes:
    """Return a sealed set as it is kept: the number of reports (8 bytes), then a bit each, the highest first."""
    return uint(len(chosen), _COUNT_BYTES) + np.packbits(np.frombuffer(chosen, dtype=np.uint8)).tobytes()


def chosen_of(kept: bytes) -> bytes:
    """Return a sealed set, 1 or 0 a report, as `kept_chosen` gave it.

    Raises:
        StoreError: it is damaged.
    """
    count = int.from_bytes(kept[:_COUNT_BYTES])
    if len(kept) != _COUNT_BYTES + -(-count // 8):
        raise StoreError("a sealed set has not as many bits as it has reports")  # How many that are nobody learns.
    return np.unpackbits(np.frombuffer(kept, dtype=np.uint8)[_COUNT_BYTES:], count=count).tobytes()

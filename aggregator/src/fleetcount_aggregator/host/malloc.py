"""Makes the C library give the memory of large arrays back to the system as soon as they are freed, where it can.

By default glibc raises its bound with the first large array that is freed, and keeps what comes after in its heaps: an
aggregator of a million devices would hold a hundred megabytes of nothing. A worker, whose arrays come and go with every
batch, would have the system clear the same pages again each time. Frees nothing itself.
"""

import ctypes
from typing import Final

__all__ = ["return_large_arrays"]

_MMAP_THRESHOLD: Final = -3
_TRIM_THRESHOLD: Final = -1
_LARGE_BYTES: Final = 2 * 1024 * 1024
"""Arrays of a batch are smaller, so that they are not given back and fetched again with every batch."""
_KEPT_BYTES: Final = 16 * 1024 * 1024


def return_large_arrays() -> bool:
    """Tell the C library; return False where it cannot be told, which costs memory and nothing else."""
    try:
        tell = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(tell(_MMAP_THRESHOLD, _LARGE_BYTES)) and bool(tell(_TRIM_THRESHOLD, _KEPT_BYTES))

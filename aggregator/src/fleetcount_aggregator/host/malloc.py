"""Tells the C library which freed memory to keep and which to return to the system, where the library allows it.

By default glibc raises its threshold with the first large array that is freed, and keeps later arrays in its heaps: an
aggregator of a million devices would keep a hundred megabytes of free memory. In a worker the opposite is needed: its
arrays are freed and allocated with every batch, and the system would clear the same pages each time, which takes a
quarter of the CPU. It frees no memory that is in use.
"""

import ctypes
from contextlib import suppress
from typing import Final

_MMAP_THRESHOLD: Final = -3
_TRIM_THRESHOLD: Final = -1
_LARGE_BYTES: Final = 2 * 1024 * 1024
_KEPT_BYTES: Final = 16 * 1024 * 1024
_BATCH_BYTES: Final = 32 * 1024 * 1024
"""No array of a batch is larger, and some C libraries accept no larger threshold."""
_BATCHES_BYTES: Final = 128 * 1024 * 1024


def give_back() -> None:
    """Return free memory between used blocks to the system; for use after a large one-time computation."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def return_large_arrays() -> bool:
    """Return freed large arrays to the system at once; False where that cannot be set, which costs only memory."""
    return _tell(_LARGE_BYTES, _KEPT_BYTES)


def keep_batches() -> bool:
    """Keep the memory of one batch for the next; return False where that cannot be set, which costs only time."""
    return _tell(_BATCH_BYTES, _BATCHES_BYTES)


def _tell(large_bytes: int, kept_bytes: int) -> bool:
    try:
        tell = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(tell(_MMAP_THRESHOLD, large_bytes)) and bool(tell(_TRIM_THRESHOLD, kept_bytes))

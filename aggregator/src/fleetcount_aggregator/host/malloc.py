"""Tells the C library which freed memory to keep and which to give back to the system, where it can be told.

By default glibc raises its bound with the first large array that is freed, and keeps what comes after in its heaps: an
aggregator of a million devices would hold a hundred megabytes of nothing. A worker is the opposite: its arrays come and
go with every batch, and the system would clear the same pages again each time, a quarter of its CPU. Frees nothing of a
program's own.
"""

import ctypes
from contextlib import suppress
from typing import Final

_MMAP_THRESHOLD: Final = -3
_TRIM_THRESHOLD: Final = -1
_LARGE_BYTES: Final = 2 * 1024 * 1024
_KEPT_BYTES: Final = 16 * 1024 * 1024
_BATCH_BYTES: Final = 32 * 1024 * 1024
"""No array of a batch is larger; nor does every C library take a larger bound."""
_BATCHES_BYTES: Final = 128 * 1024 * 1024


def give_back() -> None:
    """Give back what is free between what is used: after something large was looked through once."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def return_large_arrays() -> bool:
    """Give large arrays back at once; return False where the library cannot be told, which costs memory alone."""
    return _tell(_LARGE_BYTES, _KEPT_BYTES)


def keep_batches() -> bool:
    """Keep the memory of one batch for the next; return False where the library cannot be told: it costs time alone."""
    return _tell(_BATCH_BYTES, _BATCHES_BYTES)


def _tell(large_bytes: int, kept_bytes: int) -> bool:
    try:
        tell = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(tell(_MMAP_THRESHOLD, large_bytes)) and bool(tell(_TRIM_THRESHOLD, kept_bytes))

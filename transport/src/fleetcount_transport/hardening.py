"""Hardening of a process before it reads keys and shares: a crash must not write its memory to disk.

For whole programs, which call it first; an embedded library must not change its process.
"""

import ctypes
import resource
import sys
from typing import Final

_PR_SET_DUMPABLE: Final = 4


def keep_out_of_dumps() -> None:
    """Set the soft and hard limit of core files to 0; on Linux also keep other processes of this user from the memory.

    exec resets the second, so every started program calls this again (prctl(2), PR_SET_DUMPABLE).
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)

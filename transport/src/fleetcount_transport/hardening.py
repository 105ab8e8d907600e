"""What a process that will hold keys and shares does before it reads any: nothing of its memory gets out by a crash.

For whole programs, which call it first; a library that is embedded leaves its process alone.
"""

import ctypes
import resource
import sys
from typing import Final

_PR_SET_DUMPABLE: Final = 4


def keep_out_of_dumps() -> None:
    """Set the limit of core files to 0 for good, and on Linux let no other process of this user read the memory.

    The second ends with exec: every program that is started calls this again (prctl(2), PR_SET_DUMPABLE).
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)

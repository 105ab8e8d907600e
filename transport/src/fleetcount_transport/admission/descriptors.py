"""How many connections this process may have, so that its files can always be opened.

Raises the limit of open files as far as the machine allows; it must not open anything.
"""

import resource
from pathlib import Path
from typing import Final

from fleetcount_transport.logs import log

_RESERVED: Final = 256
"""Descriptors that no connection gets: the store and its logs, workers, connections to others, metrics, and what is
accepted and not counted yet."""
_EACH: Final = 3
"""Of a connection: the client's socket, and both ends of the way to the server behind it."""
_FEWEST: Final = 16
_LARGEST: Final = 1 << 20
"""Some machines allow a billion; tables of such a size are of no use."""


def raise_descriptors() -> int:
    """Raise the limit of open files to the highest that this process may have, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _LARGEST if hard == resource.RLIM_INFINITY else min(hard, _LARGEST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return _LARGEST if soft == resource.RLIM_INFINITY else soft


def connections_allowed(wanted: int) -> int:
    """Return how many connections there may be at once, `wanted` at most; a limit too low for them is logged."""
    limit = raise_descriptors()
    allowed = max(_FEWEST, (limit - _RESERVED - _open_files()) // _EACH)
    if allowed < wanted:
        log.warning("connections_limited", connections=allowed, wanted=wanted, open_files_limit=limit)
    return min(wanted, allowed)


def _open_files() -> int:
    try:
        return len(list(Path("/proc/self/fd").iterdir()))
    except OSError:
        return 0

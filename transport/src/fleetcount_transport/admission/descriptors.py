"""The number of connections of this process, such that descriptors for its files are always left.

It raises the limit of open files as far as the machine allows, and must not open anything.
"""

import resource
from pathlib import Path
from typing import Final

from fleetcount_transport.logs import log

_RESERVED: Final = 256
"""Descriptors that are not for connections of clients: the store and its logs, workers, connections to others, metrics,
and sockets that are accepted and not counted yet."""
_EACH: Final = 3
"""Descriptors per connection: the client's socket, and both ends of the connection to the gRPC server behind."""
_FEWEST: Final = 16
_LARGEST: Final = 1 << 20
"""The largest limit to ask for: some machines allow a billion, and the kernel's table would be huge."""


def raise_descriptors() -> int:
    """Raise the limit of open files to the highest that this process may have, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _LARGEST if hard == resource.RLIM_INFINITY else min(hard, _LARGEST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return _LARGEST if soft == resource.RLIM_INFINITY else soft


def connections_allowed(wanted: int) -> int:
    """Return the most connections at once, `wanted` or fewer; it logs a limit that is too low for them."""
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

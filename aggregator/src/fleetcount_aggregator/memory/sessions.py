"""A cache of sessions and the encryption of their chains of keys; the store has all sessions.

It must not decide which sessions are opened, or for whom (`intake.sessions`).
"""

from collections.abc import Generator, Iterable, Sequence, Set
from contextlib import contextmanager
from itertools import islice
from typing import Final

from fleetcount_mechanisms.randomness import RandomSource

from fleetcount_aggregator.storage.data_keys import ChainSeal
from fleetcount_aggregator.storage.session_chains import PackedSession
from fleetcount_aggregator.storage.store import Store

CACHED: Final = 2**20
"""The size of the cache, about 340 bytes a session; the oldest beyond it are evicted."""


class SessionCache:
    """At most `CACHED` sessions in memory, none with a key that the store has erased."""

    def __init__(self, store: Store, source: RandomSource) -> None:
        self.chain_seal = ChainSeal(store.data_keys.chain_keys, source)
        self.live: dict[bytes, PackedSession] = {}
        """The sessions by id, the next to be evicted first."""
        self._reading: list[tuple[Sequence[bytes], set[bytes]]] = []

    def __repr__(self) -> str:
        return f"SessionCache({len(self.live)} sessions)"  # No log may contain their keys.

    def keep(self, session_id: bytes, session: PackedSession) -> None:
        """Add a session; if the cache is full, evict the oldest sixteenth."""
        if len(self.live) >= CACHED:
            for oldest in list(islice(self.live, CACHED // 16)):
                del self.live[oldest]
        self.live[bytes(session_id)] = session

    def forget(self, session_ids: Iterable[bytes] | None = None) -> None:
        """Evict sessions whose keys another process may have erased, also while they are read; None for all."""
        named = None if session_ids is None else list(session_ids)
        for session_id in list(self.live) if named is None else named:
            self.live.pop(session_id, None)
        for asked, forgotten in self._reading:
            forgotten.update(asked if named is None else named)

    @contextmanager
    def reading(self, session_ids: Sequence[bytes]) -> Generator[Set[bytes]]:
        """Yield, while sessions are read from the store, the set of those that `forget` names in the meantime."""
        reading: tuple[Sequence[bytes], set[bytes]] = (session_ids, set())
        self._reading.append(reading)
        try:
            yield reading[1]
        finally:
            self._reading.remove(reading)

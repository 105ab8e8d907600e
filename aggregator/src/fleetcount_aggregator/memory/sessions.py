"""The sessions in memory and the seal of their chains; the store has them all.

Which sessions are opened, and for whom, is the intake's.
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
"""Sessions held in memory, about 340 bytes each; those beyond are read again from the store, oldest first."""


class SessionCache:
    """The sessions in memory, `CACHED` at most: one whose keys were erased in the store is not read back into it."""

    def __init__(self, store: Store, source: RandomSource) -> None:
        self.chain_seal = ChainSeal(store.data_keys.chain_keys, source)
        self.live: dict[bytes, PackedSession] = {}
        """The sessions by id, the first to leave first."""
        self._reading: list[tuple[Sequence[bytes], set[bytes]]] = []

    def __repr__(self) -> str:
        return f"SessionCache({len(self.live)} sessions)"  # Their keys go into no log.

    def keep(self, session_id: bytes, session: PackedSession) -> None:
        """Hold a session; where there is no room, the oldest leave."""
        if len(self.live) >= CACHED:
            for oldest in list(islice(self.live, CACHED // 16)):
                del self.live[oldest]
        self.live[bytes(session_id)] = session

    def forget(self, session_ids: Iterable[bytes] | None = None) -> None:
        """Forget sessions whose keys another process may have erased, None: all; those being read now as well."""
        named = None if session_ids is None else list(session_ids)
        for session_id in list(self.live) if named is None else named:
            self.live.pop(session_id, None)
        for asked, forgotten in self._reading:
            forgotten.update(asked if named is None else named)

    @contextmanager
    def reading(self, session_ids: Sequence[bytes]) -> Generator[Set[bytes]]:
        """While sessions are read from the store: the set of those that are to be forgotten meanwhile."""
        reading: tuple[Sequence[bytes], set[bytes]] = (session_ids, set())
        self._reading.append(reading)
        try:
            yield reading[1]
        finally:
            self._reading.remove(reading)

"""Brings opened instalments to who decides about them: this process, or the owner of their shard on another machine.

An owner that is gone makes them "busy", and the device comes again. It must not decide about an instalment.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np
from fleetcount_protocol.ids import Digest, ReportId, WindowId
from numpy.typing import NDArray

from fleetcount_aggregator.intake.shard_keeper import ShardKeeper, ShardLogs
from fleetcount_aggregator.storage.errors import StoreBusyError, StoreError
from fleetcount_aggregator.storage.instalment_run import DigestQuery, InstalmentRun, StoreOutcome
from fleetcount_aggregator.storage.shard_leases import ShardLeases
from fleetcount_aggregator.storage.store import Store

_VALUES: Final = 256
"""Of the first byte of a report id, whose ranges are the shards."""


class Reports(Protocol):
    """Who decides about opened instalments."""

    async def add_instalments(self, runs: Sequence[InstalmentRun]) -> Sequence[bytes]:
        """See `Store.add_instalments`; BUSY is what nobody decides about at present."""
        ...

    async def stored(self, window_id: WindowId, round_number: int, report_ids: Sequence[bytes]) -> list[Digest | None]:
        """Return the digests of stored instalments, in order, None for each that is not stored."""
        ...


class OwnReports:
    """Implements `Reports` where one process has them all."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add_instalments(self, runs: Sequence[InstalmentRun]) -> Sequence[bytes]:
        """See `Reports.add_instalments`."""
        return await self._store.add_instalments(runs)

    async def stored(self, window_id: WindowId, round_number: int, report_ids: Sequence[bytes]) -> list[Digest | None]:
        """See `Reports.stored`."""
        return [
            await self._store.instalment_digest(window_id, ReportId(report_id), round_number)
            for report_id in report_ids
        ]


class Forward(Protocol):
    """Calls the owner of shards at an address; both raise StoreError (`transport.grpc_replicas`)."""

    async def append(self, address: str, runs: Sequence[InstalmentRun]) -> Sequence[bytes]:
        """Have it store runs; return what became of each."""
        ...

    async def find(self, address: str, query: DigestQuery) -> list[Digest | None]:
        """Ask it for the digests of stored instalments."""
        ...


class _Piece:
    """What of a run goes to one shard, and where in the run it lay."""

    __slots__ = ("number", "places", "run")

    def __init__(self, number: int, places: NDArray[np.int64], run: InstalmentRun) -> None:
        self.number = number
        self.places = places
        self.run = run


class RoutedReports:
    """Implements `Reports` over many owners. `is_open` says which windows take instalments, as far as is known here."""

    def __init__(
        self,
        store: Store,
        logs: ShardLogs,
        keeper: ShardKeeper,
        leases: ShardLeases,
        forward: Forward,
        is_open: Callable[[WindowId], bool],
    ) -> None:
        self._store = store
        self._logs = logs
        self._keeper = keeper
        self._leases = leases
        self._forward = forward
        self._is_open = is_open

    async def add_instalments(self, runs: Sequence[InstalmentRun]) -> list[bytes]:
        """See `Store.add_instalments`; what no owner takes at present is BUSY."""
        places: dict[str | None, list[_Piece]] = {}
        for number, run in enumerate(runs):
            for piece_places, shard in await self._cut(run):
                address = await self._address(run.window_id, shard)
                places.setdefault(address, []).append(_Piece(number, piece_places, run.only(piece_places)))
        outcomes = [np.full(len(run), StoreOutcome.BUSY, dtype=np.uint8) for run in runs]
        answers = await asyncio.gather(*(self._send(address, pieces) for address, pieces in places.items()))
        for pieces, answered in zip(places.values(), answers, strict=True):
            for piece, outcome in zip(pieces, answered, strict=True):
                outcomes[piece.number][piece.places] = np.frombuffer(outcome, dtype=np.uint8)
        return [one.tobytes() for one in outcomes]

    async def stored(self, window_id: WindowId, round_number: int, report_ids: Sequence[bytes]) -> list[Digest | None]:
        """See `Reports.stored`: asked of each shard's owner, or read here where none is left."""
        count, found = await self._shard_count(window_id), dict[bytes, Digest | None]()
        by_address: dict[str, list[bytes]] = {}
        for report_id in report_ids:
            address = await self._address(window_id, report_id[0] // (_VALUES // count))
            if address is None and self._is_open(window_id):
                raise StoreBusyError("the shard of a report has no owner at present")
            by_address.setdefault(address or "", []).append(report_id)
        for address, asked in by_address.items():
            query = DigestQuery(window_id=window_id, round=round_number, report_ids=b"".join(asked))
            own = OwnReports(self._store)
            digests = await (
                self._forward.find(address, query) if address else own.stored(window_id, round_number, asked)
            )
            found.update(zip(asked, digests, strict=True))
        return [found[report_id] for report_id in report_ids]

    async def _shard_count(self, window_id: WindowId) -> int:
        return await asyncio.to_thread(self._logs.shard_count, window_id)

    async def _cut(self, run: InstalmentRun) -> list[tuple[NDArray[np.int64], int]]:
        count = await self._shard_count(run.window_id)
        if count == 1:
            return [(np.arange(len(run)), 0)]
        shards = np.frombuffer(run.report_ids, dtype=np.uint8)[:: ReportId.SIZE] // (_VALUES // count)
        return [(np.flatnonzero(shards == shard), int(shard)) for shard in np.unique(shards).tolist()]

    async def _address(self, window_id: WindowId, shard: int) -> str | None:
        """Return where a shard is written: "" here, None nowhere at present."""
        if self._keeper.owns(window_id, shard):
            return ""
        address = await self._leases.address(window_id, shard)
        if address is None:
            self._keeper.look()
        return address

    async def _send(self, address: str | None, pieces: Sequence[_Piece]) -> Sequence[bytes]:
        runs = [piece.run for piece in pieces]
        busy = [bytes((StoreOutcome.BUSY,)) * len(run) for run in runs]
        if address is None:
            return busy
        try:
            return await (self._store.add_instalments(runs) if not address else self._forward.append(address, runs))
        except StoreError:
            return busy

"""Instalments one by one, as tests speak of them, for a store that takes them in columns."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from fleetcount_aggregator.storage.instalment_run import InstalmentRun, StoreOutcome
from fleetcount_aggregator.storage.store import Store
from fleetcount_protocol.ids import Digest, ReportId, WindowId


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredInstalment:
    """One row of an `InstalmentRun`."""

    window_id: WindowId
    report_id: ReportId
    round: int
    certificate: Digest
    digest: Digest
    public_share: bytes = field(repr=False)
    part: bytes = field(repr=False)
    expected: int


def runs_of(rows: Sequence[StoredInstalment]) -> list[InstalmentRun]:
    """Return instalments in runs, in order."""
    return [
        InstalmentRun(
            window_id=run[0].window_id,
            round=run[0].round,
            expected=run[0].expected,
            report_ids=b"".join(row.report_id for row in run),
            certificates=b"".join(row.certificate for row in run),
            digests=b"".join(row.digest for row in run),
            public_shares=b"".join(row.public_share for row in run),
            parts=b"".join(row.part for row in run),
        )
        for run in (list(alike) for _, alike in groupby(rows, _shape))
    ]


def _shape(row: StoredInstalment) -> tuple[WindowId, int, int, int]:
    return row.window_id, row.round, len(row.public_share), len(row.part)


def outcomes_of(runs: Sequence[bytes]) -> list[StoreOutcome]:
    """Return outcomes of runs one by one."""
    return [StoreOutcome(one) for run in runs for one in run]


async def add(store: Store, rows: Sequence[StoredInstalment]) -> list[StoreOutcome]:
    """Store instalments; one outcome each."""
    return outcomes_of(await store.add_instalments(runs_of(rows)))

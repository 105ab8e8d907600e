"""Verifies batches of complete reports in the workers, and encrypts a batch's sum and seeds for the store.

A report enters a sum only if it passed here and its whole proof is valid (agreement). Verification is deterministic: a
repetition after a crash gives the same bytes. It must not combine shares or decide about a report alone.
"""

import hmac
from dataclasses import replace
from typing import Final

import numpy as np
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.vdaf.field import FIELD64, SEED_SIZE
from fleetcount_transport.admission.turns import FairQueue
from fleetcount_transport.failpoints import Failpoints
from fleetcount_transport.logs import log
from numpy.typing import NDArray

from fleetcount_aggregator.memory.installed import InstalledWindow
from fleetcount_aggregator.storage.log_slice import CompleteReports
from fleetcount_aggregator.storage.row_types import BatchRow
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.verification.share_arithmetic import ProofSetting, VerifiedReports, verify_reports
from fleetcount_aggregator.verification.workers import Workers

_NUMBER_BYTES: Final = 4
_WORTH_COMPILING: Final = 6_000_000
"""Elements of measurements that NumPy verifies in about the seconds that loading compiled code takes."""


class Verification:
    """Runs the first step of verification over reports of a closed window.

    NumPy verifies until the verifications of this process, or those of one window, have taken as long as loading
    compiled code would: so no fleet pays more than twice for the choice, and a small one never waits for the code.

    Each worker has one batch under way and one waiting; of further ones each leader gets its turn in rotation.
    """

    def __init__(self, workers: Workers, failpoints: Failpoints) -> None:
        self._workers = workers
        self._failpoints = failpoints
        self._queue = FairQueue(2 * workers.count)
        self._elements = 0

    def setting(self, window: InstalledWindow, reports: CompleteReports) -> ProofSetting:
        """Return the setting of a window with the verifier that its reports are worth."""
        worth = max(self._elements, len(reports.ids) * window.prio3.circuit.measurement_length)
        return replace(window.setting, prefer="arrays" if worth < _WORTH_COMPILING else "auto")

    async def verify(
        self, window: InstalledWindow, reports: CompleteReports, positions: NDArray[np.int64]
    ) -> VerifiedReports:
        """Return the verification of the reports at these positions, in their order."""
        async with self._queue.of(window.leader_id):
            setting = self.setting(window, reports)
            self._elements += len(positions) * window.prio3.circuit.measurement_length
            verified = await self._workers.run(verify_reports, setting, reports.source(positions))
        if verified.damaged:
            log.error("reports_damaged", window=str(window.window_id), count=len(verified.damaged))
        self._failpoints.hit("verification.before_store")
        return verified


def matching(seeds: bytes, messages: bytes) -> bytes:
    """Return for each pair of 32 bytes whether a verifier message is this aggregator's own seed: one byte of 0 or 1.

    The draft's `verify_next` (section 7.2.2), of which only this comparison remains, because outputs are added up
    before.
    """
    starts = range(0, len(seeds), SEED_SIZE)
    return bytes(hmac.compare_digest(seeds[at : at + SEED_SIZE], messages[at : at + SEED_SIZE]) for at in starts)


# The stored secrets of a batch: the sum of the verified output shares and, at a helper, the seeds.


def _sum_bytes(window: InstalledWindow) -> int:
    return FIELD64.encoded_size * window.asked.design.summed_count


def _place(window_id: WindowId, number: int) -> tuple[bytes, ...]:
    return (b"batch", window_id, number.to_bytes(_NUMBER_BYTES))


def seal_kept(store: Store, window: InstalledWindow, number: int, output_sum: bytes, seeds: bytes = b"") -> bytes:
    """Return `BatchRow.kept`: the sum and the seeds, encrypted under the window's data key."""
    return store.data_keys.of(window.window_id).seal(output_sum + seeds, *_place(window.window_id, number))


def kept_sum(store: Store, window: InstalledWindow, row: BatchRow) -> bytes:
    """Return the sum of a batch's verified output shares; raises StoreError if it is damaged."""
    return store.data_keys.of(window.window_id).open(row.kept, *_place(window.window_id, row.number))[
        : _sum_bytes(window)
    ]


def kept_seeds(store: Store, window: InstalledWindow, row: BatchRow) -> bytes:
    """Return the seeds of a helper's batch, n x 32; raises StoreError if they are damaged."""
    return store.data_keys.of(window.window_id).open(row.kept, *_place(window.window_id, row.number))[
        _sum_bytes(window) :
    ]

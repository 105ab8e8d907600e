"""The share an aggregator opens: its sum over the sealed set, and the noise it adds before anyone sees it.

The sum is that of the batches minus the few reports that the set leaves out. Apart from the encrypted sums of batches
in the store, a sum without noise exists here alone: it must not be stored, logged or shown. Each aggregator adds the
noise at full strength, drawn exactly from the system's randomness; `release.steps` decides when, and ensures that a
window's noise is drawn once.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from fleetcount_kernel.proofs import add_vectors, subtract_vectors
from fleetcount_mechanisms.noise import NoiseLaw
from fleetcount_mechanisms.noise_draws import draw_noise
from fleetcount_mechanisms.randomness import RandomSource
from fleetcount_protocol.vdaf.field import FIELD64
from numpy.typing import NDArray

from fleetcount_aggregator.agreement.verification import kept_sum
from fleetcount_aggregator.memory.installed import InstalledWindow
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.row_types import ReportVerdict
from fleetcount_aggregator.storage.rows import read_included
from fleetcount_aggregator.storage.store import Store, every_batch
from fleetcount_aggregator.verification.share_arithmetic import sum_reports
from fleetcount_aggregator.verification.workers import Workers

_BLOCK: Final = 4096
"""Reports subtracted from a sum at once."""


class SystemNoise:
    """The laws of `fleetcount_mechanisms.noise`, drawn exactly (docs/privacy.md)."""

    def __init__(self, source: RandomSource) -> None:
        self._source = source

    def draw(self, law: NoiseLaw, count: int) -> list[int]:
        """See `NoiseSource.draw`."""
        return draw_noise(law, self._source, count)


def noised_share(total: Sequence[int], noise: Sequence[int]) -> bytes:
    """Return the encoded vector an aggregator opens: its sum of shares plus its noise, number by number, modulo p.

    Every aggregator calls it once per release; `total` has elements of Field64, `noise` one draw for each.

    Raises:
        ValueError: the lengths differ.
    """
    return FIELD64.encode_vector([(share + one) % FIELD64.modulus for share, one in zip(total, noise, strict=True)])


async def set_sum(store: Store, workers: Workers, window: InstalledWindow) -> list[int]:
    """Return the sums to noise and open over the sealed set, without noise: `output_count` field elements.

    A share of a larger square or of the total is the sum of the shares of the cells inside it: it is linear, so each
    aggregator computes it alone.

    Raises:
        StoreError: no set is sealed, a stored sum is damaged, or a report of the set is not in exactly one sum.
    """
    included = await store.read(read_included, window.window_id)
    if included is None:
        raise StoreError("the set of the window is not stored")
    wanted = np.frombuffer(included, dtype=np.uint8) != 0
    summed = np.zeros(len(wanted), dtype=np.int32)
    design = window.asked.design
    total = bytes(FIELD64.encoded_size * design.summed_count)
    async for row in every_batch(store, window.window_id):
        verified = row.positions[np.frombuffer(row.verdicts, dtype=np.uint8) != ReportVerdict.REFUSED]
        summed[verified] += 1
        # The stored sum has every report verified in the batch; those that the set leaves out are subtracted.
        total = add_vectors(total, kept_sum(store, window, row))
        total = subtract_vectors(total, await _sum_of(store, workers, window, verified[~wanted[verified]]))
    # A report in two batches would count twice, one in no batch would be missing: each must be in exactly one.
    if (summed[wanted] != 1).any():
        raise StoreError("a report of the set is not in exactly one batch")
    return [one % FIELD64.modulus for one in design.opened_sums(FIELD64.decode_vector(total, design.summed_count))]


async def _sum_of(store: Store, workers: Workers, window: InstalledWindow, positions: NDArray[np.int64]) -> bytes:
    """Return the sum of single reports, which were left out after they were verified."""
    total = bytes(FIELD64.encoded_size * window.asked.design.summed_count)
    if not len(positions):
        return total
    reports, setting = await store.complete_reports(window.window_id), replace(window.setting, prefer="arrays")
    for start in range(0, len(positions), _BLOCK):
        source = reports.source(positions[start : start + _BLOCK])
        total = add_vectors(total, await workers.run(sum_reports, setting, source))
    return total

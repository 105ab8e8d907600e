"""Opens instalments: a few at once on the event loop, many in a worker process.

Decides only where; `fleetcount_protocol.wire.device_unsealing` does it. Stores nothing.
"""

from typing import Final

from fleetcount_protocol.wire.device_columns import InstalmentColumns
from fleetcount_protocol.wire.device_unsealing import SessionKeys, UnsealedColumns, unseal_columns

from fleetcount_aggregator.verification.spare_workers import SpareWorkers

WORTH_A_PROCESS: Final = 128
"""Instalments from which the way to a worker and back (0.2 ms of CPU here) costs less than a quarter of opening them
(6 to 8 us each)."""


async def unseal_somewhere(
    workers: SpareWorkers, keys: SessionKeys, position: int, columns: InstalmentColumns
) -> UnsealedColumns:
    """Return what `unseal_columns` returns."""
    if len(columns) < WORTH_A_PROCESS:
        return unseal_columns(keys, position, columns)
    return await workers.run(unseal_columns, keys, position, columns)

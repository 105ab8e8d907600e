"""The finished records of this aggregator's store: how one lies there, and which record stands for a window.

It must not check a record: `release.steps` does before it stores one.
"""

from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.layout import Reader, sized, uint
from fleetcount_protocol.limits import (
    ED25519_SIGNATURE_BYTES,
    MAX_AGGREGATORS,
    MAX_PEER_MESSAGE_BYTES,
    MAX_RECORD_BYTES,
)
from fleetcount_protocol.messages import FinishedRecord

from fleetcount_aggregator.context import Context
from fleetcount_aggregator.journal import Step, taken


def finished_bytes(finished: FinishedRecord) -> bytes:
    """Return a record and its signatures as the step RELEASE keeps them."""
    parts = [sized(finished.record, 4), uint(len(finished.signatures), 1)]
    return b"".join([*parts, *(sized(one, 1) for one in finished.signatures)])


async def released_here(context: Context, window_id: WindowId) -> FinishedRecord | None:
    """Return the stored record and its signatures, or None before the release; always the same bytes."""
    step = await taken(context, window_id, Step.RELEASE)
    if step is None:
        return None
    reader = Reader(step.answer, "stored record", MAX_PEER_MESSAGE_BYTES)
    record, size = reader.sized(4, 1, MAX_RECORD_BYTES), ED25519_SIGNATURE_BYTES
    signatures = tuple(reader.sized(1, size, size) for _ in range(reader.count(1, 1, MAX_AGGREGATORS)))
    reader.finish()
    return FinishedRecord(window_id=window_id, record=record, signatures=signatures)


async def record_here(context: Context, window_id: WindowId) -> bytes | None:
    """Return the record that is released here, which may have been adopted, or else the one signed here; None: neither.

    One that was signed here may not have been delivered yet.
    """
    finished = await released_here(context, window_id)
    if finished is not None:
        return finished.record
    signed = await taken(context, window_id, Step.SIGN)
    return None if signed is None else signed.request

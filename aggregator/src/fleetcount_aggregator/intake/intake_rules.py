"""Whether instalments may be stored: windows, rounds and sizes, decided from values alone, the cheapest check first.

Opens no seal, reads no clock and no store (intake).
"""

from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.limits import AES_GCM_TAG_BYTES
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.wire.device_columns import InstalmentColumns

from fleetcount_aggregator.host.moment import Moment
from fleetcount_aggregator.memory.installed import InstalledWindow
from fleetcount_aggregator.storage.instalment_run import StoreOutcome

OPEN_STATES = frozenset({WindowState.ANNOUNCED, WindowState.COLLECTING})

LATE = frozenset({RejectReason.TOO_LATE, RejectReason.WINDOW_CLOSED})
"""Refusals that do not hold for bytes that are stored already: their receipt is given again at any time."""

OUTCOME_REASONS = {
    StoreOutcome.OTHER_BYTES: RejectReason.DUPLICATE_OTHER_BYTES,
    StoreOutcome.SECOND_REPORT: RejectReason.OVER_QUOTA,
    StoreOutcome.CLOSED: RejectReason.WINDOW_CLOSED,
    StoreOutcome.FULL: RejectReason.WINDOW_CLOSED,
}

RECEIPTED = bytes((StoreOutcome.STORED, StoreOutcome.SAME))
"""Outcomes after which a receipt is due."""


def check_shape(
    window: InstalledWindow, state: WindowState, columns: InstalmentColumns, moment: Moment, leeway_s: float = 0.0
) -> RejectReason | None:
    """Return why instalments of one shape are refused before a seal is opened, or None (docs/wire.md, "Refusals").

    `moment` is by this aggregator's clock: rounds are decided here. A round is over `leeway_s` after it closes, for
    devices whose clock is late and for what was under way, once the clock is confirmed: a device that hears "too late"
    does not come again. None opens early, since what is too early may come again.
    """
    taken = window.rounds.get(columns.round)
    if taken is None:
        return RejectReason.WRONG_ROUND
    if columns.public_share_size != window.public_share_size(columns.round):
        return RejectReason.MALFORMED
    if columns.ciphertext_size != window.part_sizes[columns.round] + AES_GCM_TAG_BYTES:
        return RejectReason.MALFORMED
    if moment.now < taken.opens:
        return RejectReason.TOO_EARLY
    if moment.is_past(taken.closes + leeway_s):
        return RejectReason.TOO_LATE
    return None if state in OPEN_STATES else RejectReason.WINDOW_CLOSED

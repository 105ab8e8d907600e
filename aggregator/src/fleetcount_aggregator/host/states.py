"""The states of a window at one aggregator and the one table of allowed moves.

It decides which state may follow which, but not when (leader, helper) nor how it is stored (store).
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fleetcount_protocol.errors import FleetcountError
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.release.walk import WalkEnd


class AbortReason(enum.Enum):
    """Why a window ended without a release: the closed, public list."""

    TOO_FEW_REPORTS = "too_few_reports"
    PEER_UNREACHABLE = "peer_unreachable"
    PEER_ABORTED = "peer_aborted"
    PEER_REFUSED = "peer_refused"
    SET_DISAGREEMENT = "set_disagreement"
    RECORD_DISAGREEMENT = "record_disagreement"
    OUT_OF_RANGE = "out_of_range"
    POSTERIOR_TOO_LARGE = "posterior_too_large"
    RESTORED_BACKUP = "restored_backup"
    LEADER_SILENT = "leader_silent"
    LEADER_SLOW = "leader_slow"
    OUTCOME_UNKNOWN = "outcome_unknown"
    INSTALL_FAILED = "install_failed"
    LOG_LOST = "log_lost"
    DAMAGED = "damaged"


class MissingReason(enum.Enum):
    """Why a window was not opened at an aggregator: the closed, public list."""

    MISSED = "missed"
    """The aggregator was down until after round one."""
    PAUSED = "paused"
    STOPPED = "stopped"
    NO_SEALING_KEY = "no_sealing_key"
    WALK_ENDED = WalkEnd.WALK_ENDED.value
    NOTHING_SURVIVED = WalkEnd.NOTHING_SURVIVED.value
    RECORD_LATE = WalkEnd.RECORD_LATE.value


TRANSITIONS: Final[Mapping[WindowState, frozenset[WindowState]]] = MappingProxyType(
    {
        WindowState.ANNOUNCED: frozenset({WindowState.COLLECTING, WindowState.AGREEING, WindowState.ABORTED}),
        WindowState.COLLECTING: frozenset({WindowState.AGREEING, WindowState.ABORTED}),
        WindowState.AGREEING: frozenset({WindowState.RELEASING, WindowState.RELEASED, WindowState.ABORTED}),
        WindowState.RELEASING: frozenset({WindowState.RELEASED, WindowState.ABORTED}),
        WindowState.RELEASED: frozenset(),
        WindowState.ABORTED: frozenset({WindowState.RELEASED}),
    }
)
"""Every move a window can make.

Announced: decided and stored, no report accepted yet. Collecting: intake is open. Agreeing: intake is closed for good,
and the aggregators determine which reports all of them have and accept. Releasing: the one set is sealed; noised shares
are committed to and opened, and every aggregator recomputes the record. Released: the record has every signature.
Aborted: this aggregator makes no record; the reason is public. An aggregator that was down during the rounds goes from
announced to agreeing directly. A record with all signatures is valid by itself: an aggregator that gets one moves to
released from any state from agreeing on, even after an abort (`release.steps`)."""

FINAL_STATES: Final = frozenset({WindowState.RELEASED, WindowState.ABORTED})
"""The states in which no work is left for a window, and its secrets are deleted."""
UNFINISHED: Final = frozenset(WindowState) - FINAL_STATES


class StateConflictError(FleetcountError):
    """The table does not allow a move from the window's present state, which is `state`."""

    def __init__(self, state: WindowState, wanted: str) -> None:
        super().__init__(f"the window is {state.value}: {wanted} is not possible")
        self.state = state


def check_move(old: WindowState, new: WindowState) -> None:
    """Check that the table allows the move.

    Raises:
        StateConflictError: it does not.
    """
    if new not in TRANSITIONS[old]:
        raise StateConflictError(old, f"moving to {new.value}")

"""How a window ended for a device: what the program that embeds it gets to know, and nothing about the answer."""

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from fleetcount_protocol.ids import WindowId

if TYPE_CHECKING:
    from fleetcount_protocol.window.window import Window


class OutcomeKind(enum.Enum):
    """How a window ended for this device."""

    DELIVERED = "delivered"
    """Every aggregator holds everything, durably."""
    REFUSED = "refused"
    """The owner's policy, the budget or the trust settings refused; nothing was sent, nothing charged."""
    REJECTED = "rejected"
    """An aggregator refused for good."""
    GIVEN_UP = "given_up"
    """A window closed before every receipt was there."""
    MISSED = "missed"
    """The window was first seen after its first window; nothing was sent, nothing charged."""
    FAILED = "failed"
    """This machine failed (disk, store); what was stored is taken up again next time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one window ended, and why; holds nothing about the answer.

    `fault` says why what the signal's source said can never be a value of the question; the answer was "none of them".
    """

    window_id: WindowId
    name: str
    kind: OutcomeKind
    reason: str = ""
    rule: str = ""
    fault: str = ""

    @classmethod
    def of(cls, window: "Window", kind: OutcomeKind, reason: str, rule: str = "") -> Self:
        """Return how this window ended."""
        return cls(window_id=window.window_id, name=window.name, kind=kind, reason=reason, rule=rule)

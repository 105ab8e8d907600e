"""A joined device's part in one window of a question: what the book hands to the rounds.

Values only.
"""

from dataclasses import dataclass, field

from fleetcount_protocol.window.fields import Aggregator
from fleetcount_protocol.window.window import Window

from fleetcount_client.charges import Charge


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAssignment:
    """The window, the charge it is paid by, the unit's coin, and the aggregators with the keys of the time.

    `sampled` is None where the mode has no sampling coin.
    """

    window: Window
    charge: Charge
    sampled: bool | None = field(repr=False)
    aggregators: tuple[Aggregator, ...]

"""Named places where a test can end the process as a power cut would.

Inert unless FLEETCOUNT_TESTING=1 and FLEETCOUNT_FAILPOINT names a place; never used for anything but tests.
"""

import os
from typing import Final

__all__ = ["FAILPOINTS", "reach"]

FAILPOINTS: Final = (
    "before_charge",
    "after_charge",
    "after_round_one_sent",
    "after_round_one_receipts",
    "after_round_two_formed",
    "after_round_two_sent",
    "after_round_two_receipts",
)
"""Every place, in the order an answer passes them."""

_KILLED: Final = 137


def reach(name: str) -> None:
    """End the process at once, without any clean-up, when the test asked for it here; otherwise do nothing."""
    if os.environ.get("FLEETCOUNT_TESTING") == "1" and os.environ.get("FLEETCOUNT_FAILPOINT") == name:
        os._exit(_KILLED)

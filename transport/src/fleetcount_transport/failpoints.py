"""Named places where a test may kill the process, to prove that recovery from every crash gives the same result.

Does nothing in production: the environment variable has an effect only together with FLEETCOUNT_TESTING=1.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final

from fleetcount_protocol.errors import UsageError

AGGREGATOR_FAILPOINTS: Final = (
    "intake.before_commit",
    "intake.after_commit",
    "verification.before_store",
    "leader.after_close",
    "leader.after_proposals",
    "leader.after_combine",
    "leader.after_finish",
    "leader.after_batch",
    "leader.after_seal",
    "leader.after_helpers_sealed",
    "leader.after_commitments",
    "leader.after_open",
    "leader.before_release",
    "leader.after_release",
    "helper.before_propose_store",
    "helper.after_propose_store",
    "helper.before_finish_store",
    "helper.after_finish_store",
    "helper.before_seal_store",
    "helper.after_seal_store",
    "helper.after_open_store",
    "helper.before_sign_store",
    "helper.after_sign_store",
    "helper.before_deliver_store",
    "helper.after_deliver_store",
    "release.after_draw",
    "release.after_draw_store",
)
"""Every name of an aggregator, in the order of a window's life (docs/operating-trouble.md, "Fail points")."""
AGGREGATOR_QUESTION_FAILPOINTS: Final = (
    "question.after_install_store",
    "question.before_window_store",
    "question.after_window_store",
    "question.after_order_store",
    "question.after_hand_over",
)
"""Names of an aggregator that only the work on a question reaches."""
DEVICE_FAILPOINTS: Final = (
    "before_charge",
    "after_charge",
    "after_round_one_sent",
    "after_round_one_receipts",
    "after_round_two_formed",
    "after_round_two_sent",
    "after_round_two_receipts",
)
"""Every name of a device, in the order of an answer's life."""
QUESTION_FAILPOINTS: Final = ("before_reserve", "after_reserve", "before_free", "after_free")
"""Every name of a device around joining and leaving a question."""
_KILLED: Final = 137


class Failpoints:
    """The fail points of one party: `hit` runs `action` when the armed name is reached.

    Raises:
        UsageError: the armed name is not among `known`.
    """

    def __init__(
        self,
        armed: str = "",
        action: Callable[[str], None] = lambda _: None,
        known: Sequence[str] = (*AGGREGATOR_FAILPOINTS, *AGGREGATOR_QUESTION_FAILPOINTS),
    ) -> None:
        if armed and armed not in known:
            raise UsageError(f"fail point {armed!r} is not one of: {', '.join(known)}")
        self.armed = armed
        self._action = action
        self.tripped = False

    def hit(self, name: str) -> None:
        """Run the action if `name` is armed."""
        if name == self.armed:
            self.tripped = True
            self._action(name)


def failpoints_from_environment(
    environment: Mapping[str, str], known: Sequence[str] = (*AGGREGATOR_FAILPOINTS, *AGGREGATOR_QUESTION_FAILPOINTS)
) -> Failpoints:
    """Return fail points armed by FLEETCOUNT_FAILPOINT, or unarmed ones unless FLEETCOUNT_TESTING is "1".

    Raises:
        UsageError: the name is not among the `known`.
    """
    if environment.get("FLEETCOUNT_TESTING") != "1":
        return Failpoints()
    return Failpoints(environment.get("FLEETCOUNT_FAILPOINT", ""), _die, known)


def reach(name: str) -> None:
    """End a device's process at once, without any clean-up, if this fail point is armed; otherwise do nothing.

    Raises:
        UsageError: the armed name is not one of a device's fail points.
    """
    _of_device().hit(name)


@cache
def _of_device() -> Failpoints:
    return failpoints_from_environment(os.environ, DEVICE_FAILPOINTS + QUESTION_FAILPOINTS)


def _die(_: str) -> None:
    os._exit(_KILLED)

"""The windows of this aggregator with what follows from each: algorithm, rounds, sizes, share number.

Pure values; where a window stands is the store's knowledge, who may install one is installation's.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_protocol.vdaf.prio3 import Prio3
from fleetcount_protocol.vdaf.two_round import first_instalment_size, second_instalment_size
from fleetcount_protocol.window.window import Window, context_of, prio3_for

from fleetcount_aggregator.verification.workers import ProofSetting

WHOLE: Final = 0
"""Round number of a report that travels in one piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """When the instalments of one round are taken: from `opens` to before `closes`, Unix seconds of this aggregator."""

    opens: int
    closes: int


@dataclass(frozen=True, kw_only=True)
class InstalledWindow:
    """A window this aggregator has checked and stored, and its secret verify key."""

    asked: Window
    verify_key: bytes = field(repr=False)
    position: int

    @property
    def window_id(self) -> WindowId:
        """The window's name."""
        return self.asked.window_id

    @property
    def is_leader(self) -> bool:
        """Whether this aggregator drives the window."""
        return self.position == 0

    @property
    def leader_id(self) -> AggregatorId:
        """Who drives the window."""
        return self.asked.leader.aggregator_id

    @cached_property
    def prio3(self) -> Prio3:
        """The window's algorithm."""
        return prio3_for(self.asked)

    @cached_property
    def context(self) -> bytes:
        """The context string of every share and proof."""
        return context_of(self.asked)

    @cached_property
    def setting(self) -> ProofSetting:
        """What the workers need."""
        return ProofSetting(window=self.asked.canonical, verify_key=self.verify_key, position=self.position)

    @cached_property
    def rounds(self) -> dict[int, Interval]:
        """When the rounds that the window has are open: rounds 1 and 2, or 0 when reports travel whole."""
        window = self.asked
        if window.two_instalments:
            return {
                1: Interval(opens=window.round_one_opens, closes=window.round_one_closes),
                2: Interval(opens=window.round_one_closes, closes=window.round_two_closes),
            }
        return {WHOLE: Interval(opens=window.round_one_opens, closes=window.round_one_closes)}

    @cached_property
    def closes(self) -> int:
        """When the last round closes, Unix seconds."""
        return max(one.closes for one in self.rounds.values())

    @cached_property
    def shortest_round_s(self) -> int:
        """How long the shorter of its rounds is open."""
        return min(one.closes - one.opens for one in self.rounds.values())

    @cached_property
    def part_sizes(self) -> dict[int, int]:
        """Bytes of this aggregator's share part, by round."""
        if WHOLE in self.rounds:
            return {WHOLE: self.prio3.input_share_size(self.position)}
        return {
            1: first_instalment_size(self.prio3, self.position),
            2: second_instalment_size(self.prio3, self.position),
        }

    def public_share_size(self, round_number: int) -> int:
        """Bytes of the public share in an instalment of this round; round one carries none."""
        return 0 if round_number == 1 else self.prio3.public_share_size

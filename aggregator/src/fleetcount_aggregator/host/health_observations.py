"""What an aggregator's process has noticed of its store, its peers, its broker and its own background work."""

import enum

from fleetcount_transport.watching import Conditions


class Dependency(enum.StrEnum):
    """What may be well or not; peers and background work by name."""

    STORE = "store"
    PEER = "peer"
    BROKER = "broker"
    BACKGROUND = "background"


class HealthObservations(Conditions):
    """The conditions of one process. `skew_s` is how far each peer's clock is ahead of ours, seconds, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.skew_s: dict[str, float] = {}

    def skew_of(self, peer: str, seconds: float) -> None:
        """Note how far a peer's clock is ahead of ours."""
        self.skew_s[peer] = seconds

"""The health of an aggregator's store, peers, broker and background work, as its process has observed it."""

import enum

from fleetcount_transport.watching import Conditions


class Dependency(enum.StrEnum):
    """The kinds of dependencies; peers and background work have names."""

    STORE = "store"
    PEER = "peer"
    BROKER = "broker"
    BACKGROUND = "background"


class HealthObservations(Conditions):
    """The observations of one process. `skew_s` is how far each peer's clock is ahead of this one, seconds, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.skew_s: dict[str, float] = {}

    def skew_of(self, peer: str, seconds: float) -> None:
        """Note by how many seconds a peer's clock is ahead of this one."""
        self.skew_s[peer] = seconds

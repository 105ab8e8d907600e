"""The parts of one aggregator that its rules share, wired over one store.

A rule takes the one part that it needs; only what joins several takes all. It must not decide anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from fleetcount_protocol.ids import AggregatorId

from fleetcount_aggregator.greetings import Greetings
from fleetcount_aggregator.host.host import Host
from fleetcount_aggregator.memory.peers import Peers
from fleetcount_aggregator.memory.questions import Questions
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.peers import Peer
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.verification.workers import Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One aggregator, as its rules see it."""

    host: Host
    store: Store
    workers: Workers
    windows: Windows
    questions: Questions
    peers: Peers

    @classmethod
    def over(cls, host: Host, store: Store, workers: Workers, peers: Mapping[AggregatorId, Peer] | None = None) -> Self:
        """Return an aggregator over a store, with nothing in memory yet; see `Questions.load` and `Windows.load`."""
        greetings = Greetings(host.aggregator_id, host.identity.trusted, store, host.moments)
        greetings.on_skew = host.health.skew_of
        return cls(
            host=host,
            store=store,
            workers=workers,
            windows=Windows(host, store),
            questions=Questions(host, store),
            peers=Peers(host, store, {} if peers is None else peers, greetings),
        )

"""A slot reads what is its users' own, whatever the broker has kept of a time with another number of slots."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import pytest
from fleetcount_aggregator.host.broker_connection import BrokerConnection
from fleetcount_aggregator.transport import mqtt_subscribing
from fleetcount_aggregator.transport.mqtt_subscribing import Subscribing
from fleetcount_protocol.wire.topics import report_filters, session_filters

from tests.support.aggregators import Network

if TYPE_CHECKING:
    from fleetcount_transport.mqtt_connection import MqttConnection


class Session:
    """The subscriptions that a broker keeps of one client id."""

    def __init__(self, kept: Sequence[str] = ()) -> None:
        self.is_resumed = bool(kept)
        self.filters = set(kept)
        self.packets = 0

    async def subscribe(self, topics: list[tuple[str, int]]) -> None:
        """Add filters."""
        assert {qos for _, qos in topics} <= {1}
        self.filters.update(topic for topic, _ in topics)
        self.packets += 1

    async def unsubscribe(self, topics: list[str]) -> None:
        """Take filters away; those that are not there are no error."""
        assert topics
        self.filters.difference_update(topics)
        self.packets += 1


def subscribing(network: Network, session: Session, *share: int) -> Subscribing:
    return Subscribing(network.core(0).context.windows, cast("MqttConnection", session), BrokerConnection(*share))


@pytest.mark.parametrize(("before", "now"), [((0, 1), (0, 2)), ((1, 2), (1, 3)), ((3, 16), (3, 5)), ((0, 4), (0, 1))])
async def test_a_lasting_session_reads_the_present_share_alone(before: tuple[int, int], now: tuple[int, int]) -> None:
    network = Network(2)
    await network.start_all()
    window = await network.ask()
    place = network.core(0).context.host.identity.deployment, network.core(0).context.host.aggregator_id
    kept = session_filters(*place, *before) + report_filters(*place, window.window_id, *before)
    session = Session(kept)
    reading = subscribing(network, session, *now)

    await reading.begin()
    await reading.follow()

    own = {*session_filters(*place, *now), *report_filters(*place, window.window_id, *now)}
    assert session.filters == own
    packets = session.packets
    await reading.follow()
    assert session.packets == packets, "nothing is asked twice"
    await network.run_to_the_end(window)
    await reading.follow()
    assert session.filters == set(session_filters(*place, *now))
    await network.stop_all()


async def test_many_topics_are_asked_for_in_packets_of_a_bounded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt_subscribing, "_AT_ONCE", 3)
    network = Network(2)
    await network.start_all()
    window = await network.ask()
    session = Session()
    place = network.core(0).context.host.identity.deployment, network.core(0).context.host.aggregator_id

    await subscribing(network, session, 1, 4).follow()

    assert session.filters == set(report_filters(*place, window.window_id, 1, 4))
    assert session.packets == 2, "four filters, and a new session has nothing to leave"
    await network.stop_all()

"""What is counted of the calls to other aggregators tells nobody how many reports there are."""

from collections.abc import Mapping

import pytest

from tests.support.aggregators import Network, answer_all


async def counted(devices: int) -> Mapping[str, float]:
    """Return the counts of calls after a window of some devices, with a batch a report."""
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=2)
    await answer_all(network, window, [(0, 1)] * devices)
    await network.run_to_the_end(window)
    metrics = [
        one for one in network.core(0).context.host.metrics.registry.collect() if one.name == "fleetcount_peer_calls"
    ]
    found = {str(row.labels): row.value for one in metrics for row in one.samples if row.name.endswith("_total")}
    await network.stop_all()
    return found


async def test_the_number_of_calls_does_not_grow_with_that_of_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetcount_aggregator.agreement.leader_batches.batch_size", lambda _: 1)

    few, many = await counted(2), await counted(5)

    assert few
    assert few == many

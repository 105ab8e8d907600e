"""A whole count through a relay: real devices, real aggregators, and a relay that dies in the middle of each round."""

import asyncio
from pathlib import Path

import pytest
from fleetcount_client.transport import Transport

from tests.support.deployment import Deployed
from tests.support.fleet import Fleet, authorities_of, identity_of, offer_of
from tests.support.live_relay import LiveRelay, transport_through
from tests.support.oracle import check_release

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


async def test_a_count_through_a_relay_that_is_killed_in_each_round_is_exact(pair: Deployed, tmp_path: Path) -> None:
    relay = LiveRelay(pair, tmp_path)
    await relay.start()

    def through(_: Transport, __: int) -> Transport:
        return transport_through(
            relay.address,
            pair.written.aggregators,
            identity_of(pair),
            deployment=pair.written.name,
            authorities=authorities_of(pair),
            timeout_s=1.5,
        )

    try:
        window = pair.ask(20, windows_s=(8.0, 8.0))
        fleet = Fleet(pair, tmp_path, window.mechanism, ["grpc"], wrap=through, timeout_s=1.5)
        offer = await offer_of(pair, window)
        await asyncio.gather(
            fleet.answer(offer),
            relay.die_at(window.round_one_opens + 0.5),
            relay.die_at(window.round_one_closes + 0.5),
        )
        counted = await check_release(pair, window, fleet)
        relay.child.terminate()
        code = await asyncio.to_thread(relay.child.ended)
    finally:
        relay.child.reap()

    assert len(counted) >= 16, fleet.failures
    assert code == 0
    assert "Traceback" not in relay.child.last_lines(1000)

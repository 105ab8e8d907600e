"""One device a cell and fixed coins: every released difference must be 0 or 1 and equal what the coins say."""

import pytest
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.release.record import ReleaseRecord, decode_record, verify_record_signatures
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import Network, answer_all

COINS = [(0, 1), (0, 2), (3, 3), (0, 0), (0, 5), (6, 6), (0, 7), (8, 8)]
"""Sampled devices in cells 1, 2, 5, 7; unsampled ones on faces 3, 6, 8 and 0."""
DIFFERENCE = [1, 1, 0, 0, 1, 0, 1, 0]


async def run_to_the_end(network: Network, window: Window) -> None:
    await network.advance_to(window.round_two_closes)
    await network.look_after_all()


async def record_of(network: Network, window: Window, position: int) -> ReleaseRecord:
    answer = await network.core(position).service.release(window.window_id)
    assert answer.state is WindowState.RELEASED, answer
    record = decode_record(answer.record)
    verify_record_signatures(record, answer.signatures)
    return record


@pytest.mark.parametrize("count", [2, 3])
async def test_every_cell_is_what_the_coins_say(count: int) -> None:
    network = Network(count)
    await network.start_all()
    window = await network.ask()

    await answer_all(network, window, COINS)
    await run_to_the_end(network, window)

    records = [await record_of(network, window, position) for position in range(count)]
    assert [cell.raw for cell in records[0].cells] == DIFFERENCE
    assert len({record.canonical for record in records}) == 1
    await network.stop_all()

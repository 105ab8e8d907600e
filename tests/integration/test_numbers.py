"""Real devices round their numbers to points, and real aggregators open what the roundings and the coins say."""

from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.window.domain import Numbers, value_of

from tests.support.deployment import Deployed
from tests.support.fleet import Fleet, offer_of
from tests.support.oracle import expected_difference, raw_cells

pytestmark = pytest.mark.processes
SPEEDS = Numbers(low=Fraction(0), high=Fraction(130), values=14, unit="km/h")


def reading_of(number: int) -> float:
    """Return the speed of a device: the last are faster than the last point."""
    return 12 * number - 5.3


async def test_numbers_are_opened_as_devices_rounded_them(pair: Deployed, tmp_path: Path) -> None:
    die = SamplingDie.uniform(Fraction(1, 3), SPEEDS.values)
    window = pair.ask(SPEEDS.values, domain=SPEEDS, mechanism=die)
    fleet = Fleet(pair, tmp_path, die, ["grpc", "mqtt"], reading=reading_of)

    await fleet.answer(await offer_of(pair, window))

    assert fleet.failures == []
    rounded = {live.truth: value_of(SPEEDS, reading_of(live.truth), live.coins) for live in fleet.devices}
    assert {value - int(SPEEDS.place_of(reading_of(number))) for number, value in rounded.items()} == {0, 1}
    await pair.ended(window)
    record = (await pair.release(window, 0)).record
    said = [live.coins.rounds(rounded[live.truth]) for live in fleet.devices]
    assert raw_cells(record) == expected_difference(SPEEDS.values, said)

"""Counts of sets: every category by itself, and the number of vehicles that have any, which is no sum of them."""

from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.answers.combinations import everybody, total, window_totals
from fleetcount_analysis.answers.levels import one_level, table_numbers
from fleetcount_analysis.answers.table import Region, each_alone
from fleetcount_analysis.reading import read
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import GaussianNoise

from tests.analysis.answers.samples import LEVEL, table_of

DESIGN = Design(
    answer=Truth(4, 2),
    noise=GaussianNoise(Fraction(400)),
    values=4,
    aggregators=2,
    levels=Levels(4, most=2, total=True),
    coarser=(GaussianNoise(Fraction(200)),),
)
OUTPUTS = [[900, 700, 300, 100, 1200], [910, 690, 310, 90, 1190]]


def test_the_number_of_holders_stands_for_itself() -> None:
    table = table_of(DESIGN, OUTPUTS)
    holders = each_alone(table, 1)

    assert table.estimates.tolist() == [row[:4] for row in OUTPUTS]
    assert holders.estimates.tolist() == [[1200], [1190]]
    assert holders.labels == ("vehicles that told any",)
    # Codes told, not vehicles: the sum of the categories is more than the vehicles that have any.
    assert total(table, Region.of([1, 2, 3, 4], 0)).estimate == 2000
    assert (everybody(table, 0).estimate, everybody(table, [0, 1]).estimate) == (1200, 2390)
    assert window_totals(table)[0].tolist() == [1200, 1190]
    ends = [one.tolist() for one in window_totals(table)[1:]]
    assert ends == [one[:, 0].tolist() for one in (holders.low, holders.high)]
    assert table_numbers(DESIGN, OUTPUTS[0], 0) == tuple(OUTPUTS[0])


def test_every_number_is_read_with_its_own_noise() -> None:
    reading = read(DESIGN, OUTPUTS[0], LEVEL)

    errors = [(2 * law.draw_variance) ** 0.5 for law in (DESIGN.noise,) * 4 + DESIGN.coarser]
    assert np.allclose(reading.standard_errors, errors)
    assert reading.high[4] - reading.low[4] < reading.high[0] - reading.low[0]
    assert one_level(DESIGN, 1).noise == GaussianNoise(Fraction(200))
    assert reading.estimates.tolist() == pytest.approx(OUTPUTS[0])

"""Drawn walks over codes: what epsilon 1 finds, whatever the fleet, and the protocol's rule for texts."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.answers.drill_down import find_chance, least_threshold, smallest_found
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.noise import TwoSidedNoise
from fleetcount_protocol.question.fields import DrillDown
from fleetcount_protocol.window.codes import CodeForm, Codes
from fleetcount_protocol.window.domain import Prefixes
from fleetcount_simulator.engines.walks import draw_walks, told_codes
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.network.question import reading_of
from scipy import stats

from tests.simulator.engines.test_walks import SILENT, by_the_protocol

DTC = Codes(form=CodeForm.DTC)
TEXT = Codes(form=CodeForm.TEXT, alphabet="ABCDE", length=3)


def at_epsilon_one(levels: int) -> Design:
    """Return direct answers under the noise that makes a walk cost 1: another value changes two cells a level."""
    noise = TwoSidedNoise(Fraction(1, 2 * levels))
    return Design(answer=Truth(256), noise=noise, values=256, aggregators=2)


FEW = DrillDown(levels=(8, 16), threshold=44, most_survivors=15)
"""Where at most 15 first bytes have as many vehicles as the threshold."""
MANY = DrillDown(levels=(6, 11, 16), threshold=54, most_survivors=127)


def generator() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize(
    ("walk", "candidates", "false", "found"),
    [(FEW, 4 * 256, Fraction(1, 16), 60), (MANY, 4 * 32, Fraction(1, 20), 81)],
)
def test_at_epsilon_one_a_code_of_so_many_vehicles_is_found(
    walk: DrillDown, candidates: int, false: Fraction, found: int
) -> None:
    design, levels = at_epsilon_one(len(walk.levels)), len(walk.levels)

    assert least_threshold(design, candidates, false) == walk.threshold
    assert smallest_found(design, walk.threshold, levels) == found
    assert find_chance(design, walk.threshold, levels, found) > 0.95


@pytest.mark.parametrize("runs", [100, pytest.param(1_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("walk", "least", "rare"), [(FEW, 61, 0), (FEW, 61, 3), (MANY, 81, 3), (MANY, 81, 400)])
def test_drawn_walks_find_it_whatever_the_fleet(runs: int, walk: DrillDown, least: int, rare: int) -> None:
    # Fourteen codes, each alone in its first byte, a common one, and the rest of the fleet with any codes.
    fleet = Counter({(17 * place << 8) + 5 * place: least + place // 5 * 40 for place in range(14)})
    fleet[0x0420] += 1_000 * (1 + rare)
    fleet.update(generator().integers(0, 1 << 16, 50 * rare).tolist())
    design = at_epsilon_one(len(walk.levels))

    drawn = draw_walks(design, walk, fleet, runs, generator(), DTC)

    looked_for = drawn.devices >= least
    assert int(looked_for.sum()) == 15
    for share, devices in zip(drawn.found[looked_for].tolist(), drawn.devices[looked_for].tolist(), strict=True):
        chance = find_chance(design, walk.threshold, len(walk.levels), devices)
        assert chance > 0.95
        # Six standard deviations and, where nearly all are found, three walks; others in its prefixes only add.
        assert share > chance - 6 * (chance * (1 - chance) / runs) ** 0.5 - 3 / runs


def test_texts_are_asked_as_the_protocol_asks_them() -> None:
    walk = DrillDown(levels=(3, 6, 9), threshold=3, most_survivors=5)
    words = {"A": 5, "AB": 4, "ABC": 9, "ABD": 2, "CDE": 7, "E": 3, "EEE": 6}
    fleet = {number: count for word, count in words.items() if (number := TEXT.number_of(word)) is not None}

    drawn = draw_walks(SILENT, walk, fleet, 1, generator(), TEXT)

    assert sorted(drawn.places[drawn.found == 1].tolist()) == by_the_protocol(walk, fleet, TEXT)
    assert [TEXT.label(int(one), 9) for one in drawn.places[drawn.found == 1]] == ["A", "AB", "ABC", "CDE", "E", "EEE"]
    # Five letters at first; behind "A", "C" and "E" five letters and the end, and so on.
    assert drawn.asked.tolist() == [5 + 3 * 6 + (1 + 6 + 6 + 1 + 6)]
    with pytest.raises(ScenarioError, match=r"whole numbers below 2\*\*9"):
        draw_walks(SILENT, walk, {1 << 9: 3}, 1, generator(), TEXT)
    with pytest.raises(ScenarioError, match="the last level has 16 bits, allowed: at most 9"):
        draw_walks(SILENT, FEW, fleet, 1, generator(), TEXT)


def test_each_vehicle_tells_one_of_its_codes() -> None:
    fleet = [{"P0301", "P0302", "U0100"}] * 3_000 + [{"P0301"}] * 50 + [set[str]()] * 20 + [{"no code", "P0302"}]

    told, had = told_codes(fleet, DTC, generator())

    numbers = [DTC.number_of(code) or 0 for code in ("P0301", "P0302", "U0100")]
    assert [had[number] for number in numbers] == [3_050, 3_001, 3_000]
    assert told.total() == 3_051
    assert stats.chisquare([told[numbers[0]] - 50, told[numbers[1]] - 1, told[numbers[2]]]).pvalue > 1e-9


@pytest.mark.parametrize("codes", [DTC, TEXT])
def test_a_simulated_device_reads_a_code_of_its_value(codes: Codes) -> None:
    domain = Prefixes(bits=7, cells=tuple(cell for cell in range(40, 128) if codes.begins(cell, 7)), codes=codes)

    assert [domain.value_of(reading_of(domain, value)) for value in range(domain.values + 1)] == list(
        range(domain.values + 1)
    )

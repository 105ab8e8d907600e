"""Drawn walks find what the exact law of one place says, and keep the protocol's own rule of survivors."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from fleetcount_analysis.answers.drill_down import find_chance
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.noise import GaussianNoise, TwoSidedNoise
from fleetcount_mechanisms.responses import KaryResponse
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.question.fields import DrillDown, candidates, surviving_cells
from fleetcount_protocol.window.codes import Codes
from fleetcount_protocol.window.domain import all_prefixes
from fleetcount_simulator.demo_scenarios import bologna_place, find_bologna
from fleetcount_simulator.engines.walks import draw_walks
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.populations.bologna import read_traces

WALK = DrillDown(levels=(4, 8, 12), threshold=25, most_survivors=8)
DIRECT = Design(answer=Truth(128), noise=TwoSidedNoise(Fraction(1, 3)), values=128, aggregators=2)
SAMPLED = replace(DIRECT, answer=SamplingDie.uniform(Fraction(1, 4), 128), noise=TwoSidedNoise(Fraction(1)))
GAUSSIAN = replace(DIRECT, noise=GaussianNoise(Fraction(20)))
SILENT = replace(DIRECT, noise=TwoSidedNoise(Fraction(100)))
"""Noise that is not 0 once in 10^43 draws."""
WALKS = 4000


def generator() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.mark.parametrize(
    "design",
    [pytest.param(DIRECT, marks=pytest.mark.nightly), SAMPLED, pytest.param(GAUSSIAN, marks=pytest.mark.nightly)],
)
def test_a_place_alone_in_its_squares_is_found_as_often_as_its_exact_chance_says(design: Design) -> None:
    places = {0x10000000: 22, 0x50000000: 28, 0x90000000: 34, 0xD0000000: 41}

    drawn = draw_walks(design, WALK, places, WALKS, generator())

    assert drawn.devices.tolist() == list(places.values())
    for share, devices in zip(drawn.found.tolist(), places.values(), strict=True):
        chance = find_chance(design, WALK.threshold, 3, devices)
        # Six standard deviations and, where nearly all or none are found, three walks.
        assert abs(share - chance) < 6 * (chance * (1 - chance) / WALKS) ** 0.5 + 3 / WALKS
    assert drawn.share_found(34) == pytest.approx((drawn.found[2] + drawn.found[3]) / 2)
    assert drawn.share_found(100) == 0


@pytest.mark.parametrize("most", [1, 2, 5])
def test_survivors_are_those_of_the_protocol(most: int) -> None:
    walk = DrillDown(levels=(4, 8, 12), threshold=3, most_survivors=most)
    places = {int(place): count for count, place in enumerate(generator().integers(0, 2**32, 40))}

    found = draw_walks(SILENT, walk, places, 1, generator())

    expected = by_the_protocol(walk, places)
    assert expected
    assert sorted(found.places[found.found == 1].tolist()) == expected
    assert found.others.tolist() == [0]


def by_the_protocol(walk: DrillDown, places: Mapping[int, int], codes: Codes | None = None) -> list[int]:
    """Return what a walk without noise finds by the functions that every party runs."""
    domain = all_prefixes(walk.levels[0], codes)
    for step in range(len(walk.levels)):
        counts = [
            Fraction(sum(count for place, count in places.items() if domain.holder_of(place) == value))
            for value in range(1, domain.values + 1)
        ]
        if step + 1 == len(walk.levels):
            return [cell for cell, count in zip(domain.cells, counts, strict=True) if count >= walk.threshold]
        survivors = surviving_cells(domain, counts, walk)
        if not survivors:
            return []
        domain = candidates(survivors, walk, step + 1, codes)
    return []


def test_empty_places_pass_as_rarely_as_their_chance_says() -> None:
    walk = DrillDown(levels=(4, 8), threshold=9, most_survivors=4)

    drawn = draw_walks(DIRECT, walk, {0x10000000: 100}, WALKS, generator())

    # All of the first square's sixteen parts but one are empty, whatever empty square survives beside it.
    least = 15 * find_chance(DIRECT, 9, 1, 0)
    assert drawn.others.mean() > least - 6 * (least / WALKS) ** 0.5
    assert drawn.asked.min() >= 16
    assert drawn.asked.max() <= 16 + 4 * 16


def test_the_page_says_what_walks_over_the_morning_find() -> None:
    # docs/answers.md, "Places found by a drill-down": the second row, epsilon 4. The noise was solved for that promise.
    scenario = bologna_place(read_traces(find_bologna()), 2000, 1, 8)
    truths = Counter(int(place) for place in scenario.readings[0] if isinstance(place, int))
    design = Design(answer=Truth(1024), noise=TwoSidedNoise(Fraction(1, 2)), values=1024, aggregators=2)

    drawn = draw_walks(
        design, DrillDown(levels=(8, 16, 24, 32), threshold=23, most_survivors=4), truths, 500, generator()
    )

    busiest = np.argsort(-drawn.devices, kind="stable")[:20]
    assert [int(drawn.devices[busiest[at]]) for at in (0, -1)] == [61, 15]
    assert float(drawn.found[busiest].sum()) == pytest.approx(11.3, abs=0.3)
    assert float(drawn.others.mean()) < 1 / 20


@pytest.mark.parametrize(
    ("design", "places", "walks", "named"),
    [
        (replace(DIRECT, answer=KaryResponse(Fraction(1, 2), 128)), {1: 1}, 1, "allowed: direct or sampling"),
        (DIRECT, {2**32: 1}, 1, "whole numbers below"),
        (DIRECT, {1: 1}, 0, "at least 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(design: Design, places: dict[int, int], walks: int, named: str) -> None:
    with pytest.raises(ScenarioError, match=named):
        draw_walks(design, WALK, places, walks, generator())


def test_without_devices_nothing_is_found_but_by_noise() -> None:
    drawn = draw_walks(SILENT, WALK, {}, 3, generator())

    assert (drawn.places.size, drawn.others.tolist(), drawn.asked.tolist()) == (0, [0, 0, 0], [16] * 3)

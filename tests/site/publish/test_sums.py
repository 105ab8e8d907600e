"""A reader's own region: its interval in the browser is the one that Python computes, to the last device."""

import base64
import json
import random
import zlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from fleetcount_analysis.answers import Region, WindowCounts, question_table, total
from fleetcount_analysis.answers.ends import Sums, estimates_of, sum_ends
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.levels import Levels
from fleetcount_mechanisms.noise import GaussianNoise, NoNoise, OneSidedNoise, TwoSidedNoise
from fleetcount_mechanisms.planned_noise import Spread
from fleetcount_mechanisms.responses import KaryResponse
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.release.record_json import decimal_text
from fleetcount_site.pages import page
from fleetcount_site.publish.count_law import law_of
from fleetcount_site.publish.entry import number_scripts
from playwright.sync_api import Browser, Page

from tests.site.conftest import Visit

pytestmark = [pytest.mark.nightly, pytest.mark.processes]
"""A browser each: what every run asks of one is in tests/site/test_walk.py."""

LEVEL = Fraction(19, 20)
DIE = SamplingDie.uniform(Fraction(9, 20), 400)
DESIGNS = {
    "direct geometric": Design(answer=Truth(400), noise=TwoSidedNoise(Fraction(1, 2)), values=400, aggregators=2),
    "direct gaussian": Design(answer=Truth(400), noise=GaussianNoise(Fraction(42)), values=400, aggregators=3),
    "narrow gaussian": Design(answer=Truth(400), noise=GaussianNoise(Fraction(1, 3)), values=400, aggregators=2),
    "one-sided up": Design(answer=Truth(400), noise=OneSidedNoise(Fraction(1, 10)), values=400, aggregators=2),
    "one-sided down": Design(answer=Truth(400), noise=OneSidedNoise(Fraction(1), "down"), values=400, aggregators=2),
    "sampled geometric": Design(answer=DIE, noise=TwoSidedNoise(Fraction(1, 20)), values=400, aggregators=2),
    "sampled gaussian": Design(answer=DIE, noise=GaussianNoise(Fraction(1321, 2)), values=400, aggregators=2),
    "sampled exact": Design(answer=DIE, noise=NoNoise(), values=400, aggregators=2),
}


@pytest.fixture(scope="module")
def adding(browser: Browser, assets_folder: Path) -> Iterator[Page]:
    """Return a page that has the script of sums."""
    (assets_folder / "sums.html").write_text(page("s", "<h1>s</h1>", scripts=["sums.js", "tables.js"]))
    visit = Visit(browser, (assets_folder / "sums.html").as_uri())
    yield visit.page
    assert visit.complaints == []
    visit.close()


def test_a_page_rounds_a_number_as_a_terminal_does(adding: Page) -> None:
    estimates = [Fraction(raw, 4) for raw in (9, -9, 19, 49, 150, 0)]

    shown = adding.evaluate("numbers => numbers.map(fleetcount.shown)", [float(one) for one in estimates])

    assert [one.removesuffix(".0") for one in shown] == [decimal_text(one, 1) for one in estimates]


def test_a_page_rounds_the_ends_of_an_interval_outwards(adding: Page) -> None:
    found = adding.evaluate(
        """() => [[-0.04, 0.04, 0], [36.55, 47.4, 40], [123.4, 1000.2, 400], [0, 0, -1], [-2.31, -1.19, -2],
          [9007199254740993n, 9007199254740995n, 9007199254740994]].map((one) => fleetcount.interval(...one))"""
    )

    assert found == [
        "-0.1 to 0.1",
        "36.5 to 47.4",
        "123 to 1,001",
        "0, below noise",
        "-2.4 to -1.1",
        "9,007,199,254,740,993 to 9,007,199,254,740,995",
    ]


def test_an_estimate_of_a_page_is_not_rounded_twice() -> None:
    design = Design(answer=SamplingDie.uniform(Fraction(1234, 10**4), 2), noise=NoNoise(), values=2, aggregators=2)
    table = question_table(design, LEVEL, ["a", "b"], (), [WindowCounts(index=0, opens=0, unit=0, outputs=(131, 7))])

    [(_, script)] = number_scripts(table)

    held = json.loads(zlib.decompress(base64.b64decode(script.rpartition('"')[0].rpartition('"')[2])))
    assert [held["estimate"][place] for place in held["rows"][0]] == pytest.approx(table.estimates[0], abs=1e-8)


def test_the_interval_of_a_sum_is_that_of_python(adding: Page) -> None:
    for name, design in DESIGNS.items():
        chosen = random.Random(name)
        shapes = [(1, 1, 1), (7, 1, 1), (400, 1, 1), (3, 24, 24 if "sampled" in name else 1), (40, 12, 4)]
        cases = [(value, *shape) for shape in shapes for value in (0, -30, chosen.randrange(1000), 12_345)]

        found = adding.evaluate(
            "([law, cases]) => cases.map(c => { const r = fleetcount.sumInterval(law, ...c); "
            "return [r.estimate, r.low, r.high]; })",
            [law_of(design, LEVEL), cases],
        )

        for (value, cells, windows, together), (estimate, low, high) in zip(cases, found, strict=True):
            sums = Sums(values=np.array([value]), cells=cells, windows=windows, together=together)
            expected = sum_ends(design, sums, LEVEL)
            place = (name, value, cells, windows, together)
            assert (low, high) == (int(expected[0][0]), int(expected[1][0])), place
            assert estimate == pytest.approx(float(estimates_of(design, sums)[0])), place


JOINED = {
    "direct gaussian": (Design(answer=Truth(72), noise=GaussianNoise(Fraction(660)), values=72, aggregators=2), 1),
    "direct geometric": (Design(answer=Truth(9), noise=TwoSidedNoise(Fraction(1, 8)), values=9, aggregators=3), 1),
    "two categories": (Design(answer=Truth(2), noise=GaussianNoise(Fraction(42)), values=2, aggregators=2), 1),
    "sampled": (
        Design(
            answer=SamplingDie.uniform(Fraction(1, 4), 72),
            noise=GaussianNoise(Fraction("41.54")),
            values=72,
            aggregators=2,
        ),
        4,
    ),
    "sampled rarely": (
        Design(
            answer=SamplingDie.uniform(Fraction(1, 10), 9), noise=GaussianNoise(Fraction(7)), values=9, aggregators=2
        ),
        8,
    ),
}


@pytest.mark.parametrize("name", JOINED)
def test_the_interval_of_a_sum_joined_with_a_total_is_that_of_python(adding: Page, name: str) -> None:
    cells, ratio = JOINED[name]
    spread = Spread(levels=Levels(cells.values, total=True), ratios=(Fraction(ratio),))
    sizes = sorted({1, cells.values // 2 or 1, cells.values - 1, cells.values})

    compared(adding, spread.design(cells.answer, cells.noise, cells.aggregators), [range(1, 1 + one) for one in sizes])


TABLES = {
    "two signals": (Levels(15, margins=(3, 5), total=True), ("2", "1/2", "3"), GaussianNoise(Fraction(660)), 2),
    "margins alone": (Levels(12, margins=(4, 3)), ("1", "3/4"), GaussianNoise(Fraction(90)), 3),
    "three signals": (Levels(24, margins=(2, 3, 4), total=True), (), GaussianNoise(Fraction(42)), 2),
    "geometric": (Levels(8, margins=(2, 4), total=True), ("1", "2", "1"), TwoSidedNoise(Fraction(1, 9)), 2),
    "many cells": (Levels(1024, margins=(32, 32), total=True), (), GaussianNoise(Fraction(300)), 2),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_interval_of_a_sum_joined_with_margins_is_that_of_python(adding: Page, name: str) -> None:
    levels, ratios, noise, aggregators = TABLES[name]
    spread = Spread(levels=levels, ratios=tuple(Fraction(one) for one in ratios))
    everything, last = range(1, levels.values + 1), levels.margins[-1]
    chosen = random.Random(name).sample(everything, levels.values // 3)
    regions = [[2], everything[:last], everything[::last], chosen, everything[:-1], everything]

    compared(adding, spread.design(Truth(levels.values), noise, aggregators), regions)


def compared(adding: Page, design: Design, regions: Sequence[Sequence[int]]) -> None:
    """Hold sums of these regions in a page against Python's: of one window and of three."""
    chosen, values, rate = np.random.default_rng(7), design.values, float(design.channel[0])
    counted = [chosen.integers(-9, 400 * rate, values).tolist() for _ in range(3)]
    outputs = [tuple(int(one + chosen.integers(-40, 40)) for one in design.levels.all_sums(row)) for row in counted]
    counts = [WindowCounts(index=i, opens=i, unit=i, outputs=one) for i, one in enumerate(outputs)]
    table = question_table(design, LEVEL, [str(one) for one in range(values)], (), counts)
    law = law_of(design, LEVEL)

    for windows in ([0], [1], [0, 1, 2]):
        for region in regions:
            opened = [outputs[window] for window in windows]
            found = adding.evaluate(
                "([law, cells, opened, chosen]) => { const excess = opened.map((one) => "
                "fleetcount.excessOf(law.joined, one.slice(0, cells), one.slice(cells))); const sum = { chosen, "
                "value: opened.flatMap((one) => chosen.map((cell) => one[cell - 1])).reduce((a, b) => a + b, 0), "
                "excess: excess[0].map((_, at) => excess.reduce((all, one) => all + one[at], 0)) }; "
                "return fleetcount.sumInterval(law, sum, chosen.length, opened.length, 1); }",
                [law, values, opened, list(region)],
            )
            expected = total(table, Region.of(region, windows))
            assert (found["low"], found["high"]) == (expected.low, expected.high), (region, windows)
            assert found["estimate"] == pytest.approx(expected.estimate)


def test_sums_of_randomized_answers_and_laws_too_wide_are_refused(adding: Page) -> None:
    keep = Design(answer=KaryResponse(Fraction(1, 2), 3), noise=TwoSidedNoise(Fraction(1)), values=3, aggregators=2)
    wide = Design(answer=Truth(3), noise=TwoSidedNoise(Fraction(1, 10**6)), values=3, aggregators=2)

    for design in (keep, wide):
        said = adding.evaluate(
            "law => { try { fleetcount.sumInterval(law, 10, 1, 1, 1); } catch (e) { "
            "if (!(e instanceof fleetcount.TooLargeError)) throw e; return e.message; } }",
            law_of(design, LEVEL),
        )

        assert said

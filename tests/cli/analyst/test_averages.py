"""Means, shares and quantiles in Python and under the table of a release, in the unit of the question."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import fleetcount as fc
import pytest
from fleetcount.read.averages import OpenedNumbers
from fleetcount.read.report import release_json, table_lines
from fleetcount_analysis.answers.averages import mean, quantile
from fleetcount_mechanisms.answers import Truth
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.noise import GaussianNoise
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.question.fields import Coin, Participants
from fleetcount_protocol.window.domain import Bins, Categories, ValueDomain
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.window.window import Window

from tests.cli.analyst.test_releases import save, true_record, trusted_toml
from tests.cli.test_question_export import RELEASED, Records, raw
from tests.support.protocol_samples import at_zooms, every_window, one_round_window, record, sampling_window, with_total
from tests.support.question_samples import GAUSSIAN, one_round_question, sampling_question

EIGHT = Bins(edges=tuple(map(Fraction, range(0, 90, 10))), open_above=False, unit="km/h")
CELLS = [150, 600, 1180, 2130, 3220, 1900, 770, 110]


def opened(cells: list[int]) -> list[int]:
    """Return the numbers of bins, of two and of four together and of all, without noise."""
    twos = [low + high for low, high in zip(cells[::2], cells[1::2], strict=True)]
    return [*cells, *twos, twos[0] + twos[1], twos[2] + twos[3], sum(cells)]


def window_of(domain: ValueDomain = EIGHT) -> Window:
    return one_round_window(
        Mode.DIRECT, domain=domain, release=with_total(at_zooms(every_window()["direct_gaussian"].release, 3))
    )


@pytest.fixture
def keys(tmp_path: Path) -> fc.Keys:
    (tmp_path / "trusted.toml").write_text(trusted_toml(sampling_window()))
    return fc.read_keys(tmp_path / "trusted.toml")


def read(window: Window, numbers: list[int], keys: fc.Keys, path: Path) -> fc.VerifiedRelease:
    return fc.read_release(save(true_record(window, numbers), path / "release.json")).verify(keys)


def test_a_release_of_bins_has_quantiles_a_mean_and_shares(keys: fc.Keys, tmp_path: Path) -> None:
    release = read(window_of(), opened(CELLS), keys, tmp_path)

    median, mean_speed = release.quantile(0.5), release.mean()
    assert (median.low, median.high, median.unit, median.estimate) == (40, 50, "km/h", "[40, 50) km/h")
    assert str(median) == "40 to 50 km/h (90 % interval, estimate [40, 50) km/h)"
    assert release.quantile("9/10").low >= 50
    below = sum(10 * place * cell for place, cell in enumerate(CELLS)) / sum(CELLS)
    assert mean_speed.estimate == pytest.approx(below + 5)
    assert below - 1 < mean_speed.low < below < below + 10 < mean_speed.high < below + 11
    faster = release.share_above(50)
    assert faster == release.share(["[50, 60) km/h", "[60, 70) km/h", "[70, 80) km/h"]) == release.share([6, 7, 8])
    assert faster.low < sum(CELLS[5:]) / sum(CELLS) < faster.high


NUMBERS = every_window()["direct_mean"]


def test_a_release_for_a_mean_has_a_mean_and_a_sum_and_shows_no_weighted_sum(keys: fc.Keys, tmp_path: Path) -> None:
    counts = [100, 200, 300, 400, 500, 400, 300, 200, 100]
    numbers = NUMBERS.design.opened_sums(counts)
    # The weighted sum says a little more than the cells do, which have each more noise.
    numbers[-2] += 100
    release = read(NUMBERS, numbers, keys, tmp_path)
    middle, step = 30.5 / 2, 30.5 / 8

    average, summed = release.mean(), release.total_of_numbers()
    assert average.estimate == pytest.approx(middle + step * 100 / 2 / 2500, rel=0.01)
    assert average.low < middle < average.high
    assert average.high - average.low < 2
    assert summed.estimate == pytest.approx(2500 * middle, rel=0.01)
    assert summed.low < 2500 * middle < summed.high
    made = true_record(NUMBERS, numbers)
    lines = table_lines(made)
    assert not any("weighted" in line for line in lines)
    assert any("of those with a value: median" in line and "sum 3" in line for line in lines)
    shown = release_json(made)
    assert shown["sum"]["estimate"] == summed.estimate
    assert shown["cells"][9] | {"low": 0, "high": 0} == {
        "cell": 10,
        "label": "weighted sum",
        "low": 0,
        "high": 0,
        "readable": 100,
        "estimate": 100.0,
        "raw": 100,
    }
    assert shown["cells"][9]["low"] < 0
    with pytest.raises(fc.UsageError, match=r"the weighted sum counts no devices; mean\(\) and total_of_numbers\(\)"):
        release.sum("weighted sum")
    assert release.total().estimate == pytest.approx(2500)
    with pytest.raises(fc.UsageError, match="asks for bins; the sum of numbers is of a number asked at points"):
        read(window_of(), opened(CELLS), keys, tmp_path).total_of_numbers()


def test_the_last_bin_may_have_no_end(keys: fc.Keys, tmp_path: Path) -> None:
    release = read(window_of(replace(EIGHT, edges=EIGHT.edges[:-1], open_above=True)), opened(CELLS), keys, tmp_path)

    assert release.quantile(0.999).high == math.inf
    assert str(release.quantile(0.999)).startswith("60 to ∞ km/h") or str(release.quantile(0.999)).startswith("70 to ∞")
    with pytest.raises(fc.UsageError, match=r"has a last bin '\[70, ∞\) km/h', so that no mean is known"):
        release.mean()


def test_what_is_asked_wrongly_is_refused_by_name(keys: fc.Keys, tmp_path: Path) -> None:
    release = read(window_of(), opened(CELLS), keys, tmp_path)
    letters = Categories(names=tuple("abcdefgh"))
    named = one_round_window(Mode.DIRECT, domain=letters, release=with_total(GAUSSIAN))
    names = read(named, [*CELLS, sum(CELLS)], keys, tmp_path)

    for q in (0, 1, 1.5, "x"):
        with pytest.raises(fc.UsageError, match=r"q: .* must be above 0 and below 1"):
            release.quantile(q)
    with pytest.raises(fc.UsageError, match=r"47 is no edge of the bins of .*; allowed: an edge, 0 to 70"):
        release.share_above(47)
    with pytest.raises(fc.UsageError, match="80 is no edge"):
        release.share_above(80)
    with pytest.raises(fc.UsageError, match=r"no cell has the label '\[0, 40\) km/h'"):
        release.share("[0, 40) km/h")
    for ask in (names.mean, lambda: names.quantile(0.5)):
        with pytest.raises(fc.UsageError, match="asks for no numbers; a mean and quantiles are of bins and points"):
            ask()
    with pytest.raises(fc.UsageError, match="asks for no bins; the share above a number is known of bins alone"):
        names.share_above(3)
    assert names.share(["a", "b"]).estimate == pytest.approx((150 + 600) / sum(CELLS), rel=1e-3)


def test_the_table_of_a_release_ends_with_median_and_mean() -> None:
    released = true_record(window_of(), opened(CELLS))
    numbers = table_lines(released)[-1]
    found = release_json(released)

    assert numbers.startswith("of those with a value: median 40 to 50 km/h, mean ")
    assert numbers.endswith(" km/h; 90 % intervals, each alone")
    assert (found["median"]["low"], found["median"]["high"], found["median"]["estimate"]) == (40, 50, "[40, 50) km/h")
    assert found["mean"]["low"] < found["mean"]["estimate"] < found["mean"]["high"]
    for name in ("direct_total", "k_ary", "mangat", "one_sided", "sampling_exact"):
        made = record(every_window()[name])
        assert not any("with a value" in line for line in table_lines(made))
        assert "median" not in release_json(made)
    # A last bin without an end has a median and no mean.
    half = release_json(
        true_record(window_of(replace(EIGHT, edges=EIGHT.edges[:-1], open_above=True)), opened([1] * 7 + [9000]))
    )
    assert (half["median"]["low"], half["median"]["high"], "mean" in half) == (70, None, False)


# Many windows.


def test_windows_are_read_together(tmp_path: Path, keys: fc.Keys) -> None:
    changes = {"domain": EIGHT, "release": at_zooms(GAUSSIAN, 3), "participants": Participants.NOISED}
    records = Records(tmp_path / "got", one_round_question(Mode.DIRECT, **changes))
    records.add(RELEASED)
    question, coarser = (fc.read_releases(records.directory, zoom=zoom) for zoom in (0, 1))
    design, edges = question.asked.design, EIGHT.edges

    rows = [[raw(window, value) for value in range(1, 15)] for window in question.windows]
    found = quantile(design, rows, Fraction(1, 4), question.level)
    for asked in (question, coarser):
        quarter = asked.quantile(0.25)
        assert (quarter.low, quarter.high) == (edges[found.first - 1], edges[found.last])
    one = question.mean(windows=question.windows[-1])
    assert (one.low, one.high) != (question.mean().low, question.mean().high)
    assert (one.low, one.high) == (question[-1].mean().low, question[-1].mean().high)
    assert question.share_above(40, windows=[question.windows[0]]).estimate == question[0].share_above(40).estimate
    with pytest.raises(fc.UsageError, match="zoom is 1; a share is of cells of zoom 0"):
        coarser.share([1])
    with pytest.raises(fc.AnalysisError, match="window is 99; allowed is a released window"):
        question.mean(windows=[99])


def test_an_export_prints_quantiles_and_the_mean(fleetcount: Callable, tmp_path: Path) -> None:
    changes = {"domain": EIGHT, "release": at_zooms(GAUSSIAN, 3), "participants": Participants.NOISED}
    records = Records(tmp_path / "got", one_round_question(Mode.DIRECT, **changes))
    records.add(RELEASED)
    question = fc.read_releases(records.directory)
    export = ("question", "export", "--records", records.directory)

    ran = fleetcount(*export, "--quantile", "0.25,9/10", "--mean")
    rows = json.loads(fleetcount(*export, "--quantile", "0.25", "--mean", "--windows", "1", "--json").out)["answers"]

    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].startswith("quantile 0.25 over ")
    assert lines[0].endswith(f", of the devices with a value: {question.quantile(0.25)}")
    assert lines[1].endswith(str(question.quantile(0.9)))
    assert fleetcount(*export, "--quantile", "0.999999999").out.startswith("quantile 0.999999999 over ")
    assert lines[2].endswith(f", of the devices with a value, in km/h: {question.mean()}")
    assert [(one["question"], one["low"]) for one in rows] == [
        ("quantile", question.quantile(0.25, 1).low),
        ("mean", question.mean(1).low),
    ]
    refused = fleetcount(*export, "--quantile", "1.5")
    assert (refused.code, "--quantile" in refused.error_line) == (2, True)


def test_sampled_windows_of_one_toss_are_not_added_up(tmp_path: Path) -> None:
    domain = replace(EIGHT, edges=EIGHT.edges[:7])
    die = SamplingDie.uniform(Fraction(1, 4), 6)
    changes = {"domain": domain, "mechanism": die, "participants": Participants.NOISED, "release": GAUSSIAN}
    records = Records(tmp_path / "got", sampling_question(coin=Coin.DAY, **changes))
    records.add([0, 1])
    question = fc.read_releases(records.directory)

    with pytest.raises(fc.UsageError, match=r"windows 0 to 1 of .* share a toss of the coin"):
        question.mean()
    assert question.mean(windows=1).low >= 0


# Points, to which devices round.


@dataclass(frozen=True)
class Fifths:
    """Five points from 0 to 2 volts."""

    unit: str = "V"
    points: tuple[Fraction, ...] = tuple(Fraction(place, 2) for place in range(5))

    def label(self, value: int) -> str:
        return f"{float(self.points[value - 1]):g} V"


def test_points_to_which_devices_round_have_a_mean_and_quantiles_a_step_wider() -> None:
    design = Design(answer=Truth(5), noise=GaussianNoise(Fraction(9)), values=5, aggregators=2)
    row, level = [300, 400, 500, 400, 400], Fraction(19, 20)
    numbers = OpenedNumbers(name="Voltage?", domain=Fifths(), design=design, rows=[row], level=level)  # type: ignore[arg-type] # the domain of numbers is like it

    assert numbers.mean() == mean(design, row, Fifths().points, level, rounded=True)
    assert quantile(design, row, Fraction(1, 2), level).first == quantile(design, row, Fraction(1, 2), level).last == 3
    # Who rounds to 1 V has more than half a volt and less than one and a half.
    median, lowest = numbers.quantile(Fraction(1, 2)), numbers.quantile(Fraction(1, 100))
    assert (median.estimate, median.low, median.high, lowest.low) == ("1 V", 0.5, 1.5, 0)
    with pytest.raises(fc.UsageError, match="asks for no bins"):
        numbers.share_above(Fraction(1))

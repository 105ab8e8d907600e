"""`fleetcount plan`: table, files and picture of a plan; one line for bad input."""

import csv
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount.analyst.planning import plan_rows
from fleetcount_mechanisms.statement import views_of
from fleetcount_mechanisms.statement_words import plain_sentences

from tests.support.plans import plan_sampling

GOOD = ("plan", "--devices", "100000", "--values", "4", "--epsilon", "1")


def test_a_plan_shows_error_smallest_count_and_every_adversary(fleetcount: Callable) -> None:
    ran, short = fleetcount(*GOOD, "--explain"), fleetcount(*GOOD)

    planned = plan_sampling(100_000, 4, Fraction(1))
    views = views_of(planned.design)
    assert not any(view.sentence in short.out for view in views)
    assert all(sentence in short.out for sentence in plain_sentences(planned.design, views))
    assert ran.code == 0
    assert f"told apart from 0 (95 % both ways): {planned.smallest_count_seen}" in ran.out
    assert all(f"{view.audience}: {view.sentence}" in ran.out for view in views)
    numbers = [line.split() for line in ran.out.splitlines() if line.strip().startswith("1,000 ")]
    assert numbers == [["1,000", "54.9", "896", "1,114", "218", "21.8"]]
    direct = fleetcount(*GOOD, "--mechanism", "direct").out.splitlines()
    [last] = [line.split() for line in direct if line.lstrip().startswith("100,000  ")]
    assert float(last[5]) == pytest.approx(int(last[4]) / 1000, rel=1e-3), "a width is not 0 %"


NUMBER = ("plan", "--devices", "1000", "--mechanism", "direct", "--epsilon", "1")


def test_a_plan_of_a_number_says_how_far_its_mean_errs(fleetcount: Callable) -> None:
    ran = fleetcount(*NUMBER, "--values", "33", "--noise", "gaussian", "--show", "mean")

    assert ran.code == 0
    assert "epsilon 1.00000 (delta 0.000000001) of a release" in ran.out
    (line,) = [line for line in ran.out.splitlines() if line.startswith("The mean of numbers from 0 to 1")]
    assert line.endswith("a sum of its own: error 0.041 of 200, 0.0083 of 1,000, 9.2e-05 of 100,000")
    planned = json.loads(fleetcount(*NUMBER, "--values", "33", "--show", "mean", "--json").out)
    assert planned["mean_standard_errors"]["1000"] == pytest.approx(0.0021, abs=0.00005)
    zoomed = fleetcount(*NUMBER, "--values", "64", "--show", "quantiles").out
    assert "6 zooms of 64 values in order in one report" in zoomed
    assert "The mean of numbers" not in zoomed
    assert "median of numbers spread evenly from 0 to 1: error 0.11 of 200, 0.023 of 1,000, 0.0046 of" in zoomed


def test_the_ways_to_ask_for_a_mean_say_what_so_many_numbers_give_in_every_window(fleetcount: Callable) -> None:
    words = ("plan", "--devices", "1000", "--epsilon", "10", "--windows", "720")

    of_mean = fleetcount(*words, "--values", "33", "--show", "mean", "--threat", "one-honest")
    of_median = fleetcount(*words, "--values", "64", "--show", "quantiles", "--json")

    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in of_mean.out.splitlines() if line[:1] == "|"]
    # Under the noise of the README's month, 36 devices on a cell that had all of the budget.
    assert rows[0][:4] == ["way", "of 200", "of 1,000", "of 100,000"]
    assert [row[:4] for row in rows[2:]] == [
        ["direct, Gaussian", "0.13", "0.026", "0.00026"],
        ["direct, geometric", "0.18", "0.036", "0.00036"],
    ]
    assert "take 'direct, Gaussian'" in of_mean.out.splitlines()[-1]
    gaussian, geometric = json.loads(of_median.out)
    assert gaussian["median_standard_errors"]["1000"] == pytest.approx(0.085, abs=0.0005)
    assert geometric["median_standard_errors"]["1000"] > gaussian["median_standard_errors"]["1000"]
    assert "unknown" in fleetcount(*words, "--values", "64", "--show", "quantiles").out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--values", "33", "--show", "median"), "'mean'"),
        (("--values", "1", "--show", "mean"), "show is 'mean' of 1 value, allowed: 2 points or more"),
        (
            ("--values", "33", "--show", "mean", "--no-total"),
            "levels of its own; allowed without zooms, shares, an aim and no total",
        ),
        (("--values", "64", "--show", "quantiles", "--zooms", "1,8", "--in-order"), "allowed without zooms"),
        (
            ("--values", "64", "--show", "mean", "--windows", "2", "--threat", "all-collude"),
            "--threat is 'all-collude' with --show, allowed: one-honest",
        ),
        (("--values", "1", "--show", "mean", "--windows", "2"), "show is 'mean' of 1 value, allowed: 2 points or more"),
        (("--values", "64", "--show", "quantiles", "--windows", "2", "--zooms", "2"), "allowed without zooms"),
        (("--values", "64", "--show", "mean", "--windows", "2", "--no-total"), "allowed without zooms"),
        (
            ("--values", "64", "--show", "mean", "--windows", "2", "--level", "0.9"),
            "--level is of intervals, allowed: without --windows or without --show",
        ),
        (("--values", "64", "--at-once", "2", "--flips", "up"), "flips is given, allowed: of answers that are sampled"),
        (
            ("--values", "64", "--show", "mean", "--levels", "2,4"),
            "--show is about a number, allowed: without --levels",
        ),
    ],
)
def test_what_does_not_go_with_a_number_is_refused(fleetcount: Callable, options: tuple[str, ...], said: str) -> None:
    ran = fleetcount(*NUMBER, *options)

    assert (ran.code, ran.out) == (2, "")
    assert said in ran.error_line


def test_a_mean_is_planned_of_direct_answers_alone(fleetcount: Callable) -> None:
    ran = fleetcount(*GOOD, "--show", "mean")

    assert ran.error_line == ("fleetcount plan: show is 'mean' of sampling answers, allowed: of direct ones")


def test_a_plan_shows_what_a_ledger_is_charged_which_for_bits_is_more_than_is_published(fleetcount: Callable) -> None:
    ran = fleetcount(
        "plan", "--devices", "2000", "--values", "3", "--mechanism", "mangat-vector", "--epsilon", "1",
        "--epsilon-local", "2",
    )  # fmt: skip

    assert "epsilon 0.99968 of a release" in ran.out
    assert "A ledger is charged epsilon 1.85560 (any-value) for one answer." in ran.out


def test_a_plan_shows_when_a_limit_on_what_a_record_tells_would_refuse_it(fleetcount: Callable) -> None:
    direct = fleetcount(*GOOD, "--mechanism", "direct", "--largest-posterior", "0.9").out.splitlines()[-1]
    sampled = fleetcount(*GOOD, "--largest-posterior", "0.9").out.splitlines()[-1]

    def size(line: str) -> int:
        begin = "With largest_posterior 0.9 a typical record with 19 in 20 devices in one cell is refused from "
        assert line.startswith(begin)
        return int(line.removeprefix(begin).removesuffix(" devices on.").replace(",", ""))

    assert all(20 < size(line) < 200 for line in (direct, sampled))
    assert "0.99 no typical record" in fleetcount(*GOOD, "--largest-posterior", "0.99").out.splitlines()[-1]
    assert "allowed: without --windows" in fleetcount(*GOOD, "--largest-posterior", "0.9", "--windows", "9").error_line
    assert "--largest-posterior" in fleetcount(*GOOD, "--largest-posterior", "1").error_line
    direct_to_four = ["plan", "--devices", "2000", "--values", "4", "--mechanism", "direct", "--epsilon", "1"]
    for rows in (("--at-once", "2"), ("--cross", "2,2"), ("--show", "mean")):
        assert 20 < size(fleetcount(*direct_to_four, *rows, "--largest-posterior", "0.9").out.splitlines()[-1]) < 500


def test_the_interval_of_a_plan_is_the_exact_one() -> None:
    planned = plan_sampling(1000, 4, Fraction(1))

    rows = plan_rows(planned, [0, 100, 1000])

    assert [row[0] for row in rows] == [0, 100, 1000]
    assert rows[2][1] == planned.sd(1000)
    low, high = planned.interval(1000)
    assert abs(rows[2][2] - low) < 6
    assert abs(rows[2][3] - high) < 6


def test_the_files_hold_the_plan(fleetcount: Callable, tmp_path: Path) -> None:
    output = tmp_path / "plan"

    ran = fleetcount(*GOOD, "--sampling-rate", "0.2", "--aggregators", "3", "--level", "0.9", "--output", output)

    assert ran.code == 0
    assert sorted(path.name for path in output.iterdir()) == ["plan.csv", "plan.json", "plan.png", "plan.svg"]
    record = json.loads((output / "plan.json").read_text())
    assert (record["sampling_rate"], record["aggregators"], record["level"]) == ("1/5", 3, "9/10")
    assert record["adversaries"][0]["adversary"] == "public_and_broker"
    rows = list(csv.DictReader((output / "plan.csv").read_text().splitlines()))
    assert rows[0]["true_count"] == "0"
    assert rows[-1]["true_count"] == "100000"


def test_a_plan_with_gaussian_noise_shows_its_sd_and_epsilon_at_delta(fleetcount: Callable, tmp_path: Path) -> None:
    words = ("plan", "--devices", "1000", "--values", "4", "--mechanism", "direct", "--noise", "gaussian")

    ran = fleetcount(*words, "--epsilon", "0.304", "--explain", "--output", tmp_path / "plan")
    refused = fleetcount("plan", *words[1:6], "one-sided", *words[7:], "--epsilon", "1")

    assert ran.code == 0, ran.err
    assert "epsilon 0.30400 (delta 0.000000001) of a release" in ran.out
    assert "each aggregator's noise: discrete Gaussian, variance 660.09 (sd 25.69)" in ran.out
    assert "epsilon 0.30400, delta 0.000000001, for a two-cell change" in ran.out
    record = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert (record["noise"], record["noise_variance"], record["noise_epsilon"]) == (
        "discrete Gaussian",
        "66009/100",
        None,
    )
    assert refused.code == 2
    assert "noise is 'gaussian', which has two sides" in refused.error_line


def test_a_plan_that_sees_nothing_says_so(fleetcount: Callable) -> None:
    ran = fleetcount("plan", "--devices", "10", "--values", "1", "--epsilon", "0.01")

    assert ran.code == 0
    assert "No count among 10 devices is told apart from 0" in ran.out
    assert "Warning: no count" in ran.out


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (("--devices", "0"), "it must be 1 to 1000000000"),
        (("--devices", "1e12"), "'1e12' is not a whole number"),
        (("--values", "4096"), "it must be 1 to 4095"),
        (("--epsilon", "0"), "at least 0.001 and at most 10"),
        (("--epsilon", "nan"), "'nan' is not a number"),
        (("--epsilon", "1,5"), "'1,5' is not a number"),
        (("--sampling-rate", "0.5"), "at least 1e-06 and below 0.5"),
        (("--aggregators", "1"), "it must be 2 to 5"),
        (("--level", "1"), "at most 0.999999"),
    ],
)
def test_bad_numbers_are_refused_with_value_and_range(
    fleetcount: Callable, changed: tuple[str, str], named: str
) -> None:
    arguments = dict(zip(GOOD[1::2], GOOD[2::2], strict=True)) | dict([changed])

    ran = fleetcount("plan", *(part for pair in arguments.items() for part in pair))

    assert ran.code == 2
    assert named in ran.error_line
    assert ran.out == ""


def test_an_output_that_is_a_file_is_refused_before_the_work(fleetcount: Callable, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")

    ran = fleetcount(*GOOD, "--output", tmp_path / "taken")

    assert ran.code == 2
    assert "is not a directory" in ran.error_line
    assert (tmp_path / "taken").read_text() == "mine"


def test_the_readme_shows_what_the_comparison_of_a_month_prints(fleetcount: Callable) -> None:
    ran = fleetcount("plan", "--devices", "100000", "--values", "72", "--epsilon", "10", "--windows", "720")

    table = [line for line in ran.out.splitlines() if line.startswith("|")]
    assert ran.code == 0
    assert len(table) == 2 + 10
    assert "\n".join(table) in (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    errors = {line.split("|")[1].strip(): float(line.split("|")[2].replace(",", "")) for line in table[2:]}
    assert errors["direct, Gaussian"] <= 36.4
    assert errors["sampling 1/2, a coin a window"] <= 37


@pytest.mark.parametrize(
    ("windows", "way", "coins"),
    [
        (1, "sampling 1/4", {"window"}),
        pytest.param(3, "sampling 1/2, a coin a window", {"window", "day", "question"}, marks=pytest.mark.nightly),
    ],
)
def test_a_threat_recommends_the_way_that_answers_it(
    fleetcount: Callable, tmp_path: Path, windows: int, way: str, coins: set[str]
) -> None:
    output = tmp_path / "plan"
    words = ["plan", "--devices", "5000", "--values", "3", "--epsilon", "2", "--windows", windows, "--every", "8 h"]

    ran = fleetcount(*words, "--threat", "all-collude", "--output", output)

    assert f"All operators may collude: take '{way}'" in ran.out
    rows = json.loads((output / "plan.json").read_text())
    assert {row["threat"] for row in rows} == {"all-collude"}
    assert {row["coin"] for row in rows} == coins


@pytest.mark.parametrize("kind", [("--windows", "2"), ("--levels", "4,6")])
def test_the_promise_of_a_comparison_is_never_shown_better_than_it_is(
    fleetcount: Callable, kind: tuple[str, str]
) -> None:
    words = ("--devices", "5000", "--values", "64", "--epsilon", "2.0000004", "--delta", "1.4321e-9")

    ran = fleetcount("plan", *words, *kind)

    assert "epsilon 2.001 at delta 1.433e-9 for all" in " ".join(ran.out.split()), ran.out


def test_a_single_window_is_compared_too(fleetcount: Callable) -> None:
    ran = fleetcount("plan", "--devices", "5000", "--values", "1", "--epsilon", "1", "--windows", "1")

    assert "direct, geometric" in ran.out
    assert "each answer is seen with chance 9/20" in ran.out
    assert "the promise holds" in ran.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--windows", "0"], "must be 1 to 65536"),
        (["--windows", "3", "--every", "1hour"], "'1hour' is not a length of time"),
        (["--windows", "3", "--delta", "0"], "above 0 and at most 0.001"),
        (["--threat", "all-collude"], "allowed with --windows"),
        (["--delta", "1e-5"], "--delta is about a question of several windows, allowed: with --windows or --levels"),
        (["--every", "1 d"], "--every is about a question of several windows"),
        (
            ["--mechanism", "direct", "--epsilon-local", "1"],
            "epsilon_local is given to direct, allowed: to answers that",
        ),
        (["--epsilon-local", "1"], "epsilon_local is given to sampling"),
        *(
            ([*many, *words], f"{words[0]} is about one release, allowed: without --windows, --levels")
            for many in (("--windows", "3"), ("--levels", "1,2"))
            for words in (
                ("--mechanism", "sampling"),
                ("--noise", "geometric"),
                ("--sampling-rate", "0.1"),
                ("--flips", "up"),
                ("--direction", "down"),
                ("--explain",),
            )
        ),
        (["--levels", "1,2", "--level", "0.9"], "--level changes no walk, allowed: without --levels"),
        (["--levels", "1,2", "--no-total"], "--no-total changes no walk"),
        (["--levels", "1,2", "--every", "2 h"], "--every changes no walk"),
        (["--windows", "401", "--every", "1 d"], "--windows is 401, allowed so far apart: 1 to 400, within 400 days"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused(fleetcount: Callable, words: list[str], said: str) -> None:
    ran = fleetcount("plan", "--devices", "100", "--values", "2", "--epsilon", "1", *words)

    assert ran.code != 0
    assert said in ran.error_line

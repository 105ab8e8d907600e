"""What is read out of releases: the numbers of the analysis, run by run, and the statement that belongs to them."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from fleetcount_analysis import intervals
from fleetcount_analysis.answers.ends import Sums, sum_ends
from fleetcount_analysis.reading import exact_estimates
from fleetcount_mechanisms.accounting.question_losses import question_losses
from fleetcount_mechanisms.responses import MangatVector
from fleetcount_protocol.question.fields import Coin
from fleetcount_simulator.errors import ScenarioError
from fleetcount_simulator.model import Case, CaseOutcome, Epochs, Integers, Mechanism
from fleetcount_simulator.study.readings import PARTICIPATION, read_releases
from fleetcount_simulator.study.scores import score_cells, score_releases
from fleetcount_simulator.study.statements import statement_of

from tests.simulator.scenario_doubles import EvenPopulation
from tests.simulator.test_standing import question

LEVEL = Fraction(95, 100)
ONE = Fraction(1)
ONCE = Epochs()


def case_of(kind: Any, *, values: int = 3, devices: int = 400, epochs: Epochs = ONCE, **settings: Any) -> Case:
    mechanism = Mechanism(name=kind, kind=kind, **settings)
    return Case(index=0, point={}, population=EvenPopulation(devices, values), mechanism=mechanism, epochs=epochs)


def outcome_of(case: Case, outputs: Any, **tallies: Integers) -> CaseOutcome:
    made = np.asarray(outputs, dtype=np.int64)
    counted = np.tile(case.population.histogram(0), (len(made), 1))
    return CaseOutcome(outputs=made, released=np.ones(len(made), dtype=np.bool_), counted=counted, tallies=tallies)


def pairs(case: Case, outcome: CaseOutcome) -> list[list[tuple[int, int]]]:
    reading = read_releases(case, outcome)
    return [list(zip(*ends, strict=True)) for ends in zip(reading.low.tolist(), reading.high.tolist(), strict=True)]


def test_sampling_is_read_as_the_analysis_reads_it() -> None:
    case = case_of("sampling", sampling_rate=Fraction(1, 4), noise_epsilon=ONE)
    outputs = [[20, -3, 31], [25, 25, 0]]
    outcome = outcome_of(case, outputs)

    np.testing.assert_allclose(read_releases(case, outcome).estimates, 4.0 * np.array(outputs))
    assert pairs(case, outcome) == [intervals.sampling_intervals(row, Fraction(1, 4), ONE, 2, LEVEL) for row in outputs]


def test_direct_is_read_as_the_analysis_reads_it() -> None:
    case = case_of("direct", noise_epsilon=ONE)
    outputs = [[20, -3, 31], [25, 25, 0]]
    outcome = outcome_of(case, outputs)

    np.testing.assert_allclose(read_releases(case, outcome).estimates, outputs)
    assert pairs(case, outcome) == [intervals.direct_intervals(row, ONE, 2, LEVEL) for row in outputs]


@pytest.mark.parametrize("kind", ["sampling", "direct"])
def test_gaussian_counts_are_read_as_sums_of_one_cell(kind: str) -> None:
    rate = Fraction(1, 4) if kind == "sampling" else None
    case = case_of(kind, sampling_rate=rate, noise_variance=Fraction(9))
    outputs = np.array([[20, -3, 31], [25, 25, 0]])
    outcome = outcome_of(case, outputs)
    reading = read_releases(case, outcome)

    np.testing.assert_allclose(reading.estimates, outputs / float(rate or 1))
    for row in range(2):
        sums = Sums(values=outputs[row], cells=1, windows=1)
        low, high = sum_ends(case.design, sums, LEVEL)
        assert (reading.low[row].tolist(), reading.high[row].tolist()) == (low.tolist(), high.tolist())
    empty = (2 * 9) ** 0.5 / float(rate or 1)
    assert reading.standard_errors[0, 1] == pytest.approx(empty, rel=1e-6)


@pytest.mark.parametrize("coin", list(Coin))
def test_a_question_has_the_statement_of_its_coin(coin: Coin) -> None:
    one = question(coin, 4)
    case = case_of("sampling", epochs=Epochs(count=4, question=one), sampling_rate=Fraction(1, 4), noise_epsilon=ONE)
    found = {each.adversary: each for each in statement_of(case)}
    public, everybody = found["public_and_broker"], found["all_aggregators"]
    losses = question_losses(case.design, one.shape, one.delta)

    assert public.text.count("epsilon") == 3
    assert [public.text.find(what) >= 0 for what in ("One answer: ", "One day: ", "All windows: ")] == [True] * 3
    assert Fraction(public.epsilon or 0) >= losses.one_answer
    assert Fraction(public.total_epsilon or 0) >= losses.whole_question > losses.one_answer
    assert public.releases == 4
    chance = 1 - Fraction(3, 4) ** (4 if coin is Coin.WINDOW else 1)
    assert abs(Fraction(everybody.total_delta) - chance) < Fraction(1, 10**4)


@pytest.mark.parametrize("noise", [None, ONE])
@pytest.mark.parametrize("devices", [400, 40_000])
def test_responses_are_read_as_the_analysis_reads_them(noise: Fraction | None, devices: int) -> None:
    case = case_of("k-ary", epsilon_local=ONE, noise_epsilon=noise, devices=devices)
    part = devices // 8
    outputs = [[part, 2 * part, 2 * part, 3 * part], [3 * part, part, 2 * part, 2 * part], [part, part, part, part]]
    law = case.design.answer
    outcome = outcome_of(case, outputs)

    expected = [intervals.response_intervals(row, law, noise, 2, LEVEL) for row in outputs]  # type: ignore[arg-type] # a response
    exact = [exact_estimates(case.design, row) for row in outputs]
    assert pairs(case, outcome) == expected
    np.testing.assert_allclose(read_releases(case, outcome).estimates, np.array(exact, dtype=np.float64), rtol=1e-9)


@pytest.mark.parametrize("noise", [None, ONE])
def test_bits_use_the_number_of_devices_that_was_opened(noise: Fraction | None) -> None:
    case = case_of("mangat-vector", epsilon_local=ONE, noise_epsilon=noise)
    bits, opened = [[200, 210, 190], [205, 205, 205]], [398, 405]
    law = case.design.answer
    assert isinstance(law, MangatVector)
    tallied = outcome_of(case, bits, **{PARTICIPATION: np.array(opened)})
    beside = outcome_of(case, [[total, *row] for total, row in zip(opened, bits, strict=True)])

    ends = intervals.unary_ends(np.array(bits), np.array(opened)[:, None], ONE, law.flip, noise, 2, LEVEL)
    expected = [list(zip(low, high, strict=True)) for low, high in zip(*(one.tolist() for one in ends), strict=True)]
    assert pairs(case, tallied) == pairs(case, beside) == expected
    exact = [
        [(bit - law.flip * total) / (1 - law.flip) for bit in row] for row, total in zip(bits, opened, strict=True)
    ]
    np.testing.assert_allclose(read_releases(case, tallied).estimates, np.array(exact, dtype=np.float64))


def test_bits_without_a_count_of_devices_use_those_in_the_set() -> None:
    case = case_of("unary", epsilon_local=ONE)
    bits = outcome_of(case, [[150, 150, 150]])
    tallied = outcome_of(case, [[150, 150, 150]], **{PARTICIPATION: np.array([400])})

    assert pairs(case, bits) == pairs(case, tallied)


def test_one_sided_noise_leaves_the_truth_on_its_side() -> None:
    up = case_of("one-sided", noise_epsilon=ONE, direction="up")
    down = case_of("one-sided", noise_epsilon=ONE, direction="down")
    outputs = [[100, 1, 50]]

    [(low, high), *_] = pairs(up, outcome_of(up, outputs))[0]
    [(mirrored_low, mirrored_high), *_] = pairs(down, outcome_of(down, outputs))[0]

    assert high == 100 == mirrored_low
    assert 100 - low == mirrored_high - 100 > 0
    mean = 2 / (np.e - 1)
    np.testing.assert_allclose(read_releases(up, outcome_of(up, outputs)).estimates[0], np.array(outputs[0]) - mean)
    np.testing.assert_allclose(read_releases(down, outcome_of(down, outputs)).estimates[0], np.array(outputs[0]) + mean)


def test_scores_tell_the_devices_counted_from_the_whole_fleet() -> None:
    case = case_of("direct", noise_epsilon=Fraction(100))
    outcome = outcome_of(case, [[90, 80, 100]])
    outcome.counted[:] = [50, 90, 80, 100]
    truth = np.array([100, 100, 100])
    row = score_releases(read_releases(case, outcome), outcome, truth, 0, [7])

    assert row["run"].tolist() == [7]
    assert row["participants"].tolist() == [320]
    assert row["rmse"][0] == row["bias"][0] == 0
    assert row["bias_fleet"][0] == pytest.approx(-10)
    assert row["rmse_fleet"][0] == pytest.approx(np.sqrt(500 / 3))
    assert row["coverage"][0] == 1
    assert row["coverage_fleet"][0] == pytest.approx(1 / 3)


def test_runs_without_a_release_count_for_nothing() -> None:
    case = case_of("direct", noise_epsilon=ONE)
    outcome = outcome_of(case, [[100, 100, 100], [0, 0, 0]])
    outcome.released[1] = False
    reading, truth = read_releases(case, outcome), case.population.histogram(0)[1:]
    row, cells = score_releases(reading, outcome, truth, 0, [0, 1]), score_cells(reading, outcome, truth, first=True)

    assert np.isnan(row["rmse"]).tolist() == [False, True]
    assert cells.releases.tolist() == [1]
    assert cells.inside.tolist() == [1, 1, 1]
    assert cells.deviation.tolist() == cells.squares.tolist() == [0, 0, 0]


def test_losses_add_up_over_epochs_and_exposure_grows() -> None:
    case = case_of("sampling", sampling_rate=Fraction(1, 4), noise_epsilon=ONE, epochs=Epochs(count=3))
    by_name = {one.adversary: one for one in statement_of(case)}
    public, colluding = by_name["public_and_broker"], by_name["all_aggregators"]

    assert public.epsilon is not None
    assert public.total_epsilon == 3 * public.epsilon
    assert (public.delta, public.total_delta, public.releases) == (0, 0, 3)
    assert colluding.epsilon is colluding.total_epsilon is None
    assert colluding.total_delta == Decimal("0.57813")  # 1 - (3/4)^3 = 0.578125, rounded up
    assert "All 3 releases together: epsilon" in public.text


def test_a_ledger_ends_the_answers() -> None:
    epochs = Epochs(count=10, device_epsilon=Fraction(1))
    case = case_of("direct", noise_epsilon=Fraction(1, 8), epochs=epochs)
    public = statement_of(case)[0]

    assert public.epsilon == Decimal("0.25")
    assert public.releases == 4
    assert public.total_epsilon == 1


def test_losses_with_a_delta_add_up_with_it_and_no_ledger_of_pure_losses_takes_them() -> None:
    gaussian: dict[str, Any] = {"noise_variance": Fraction(662)}
    public = statement_of(case_of("direct", **gaussian, epochs=Epochs(count=3)))[0]

    assert (public.epsilon, public.delta) == (Decimal("0.30355"), Decimal("1E-9"))
    assert (public.total_epsilon, public.total_delta) == (Decimal("0.91065"), Decimal("3E-9"))
    assert "All 3 releases together: epsilon 0.91065, delta 0.000000003." in public.text
    with pytest.raises(ScenarioError, match=r"device_epsilon adds up losses of delta 0; 'direct' loses 0\.30355 at"):
        statement_of(case_of("direct", **gaussian, epochs=Epochs(count=3, device_epsilon=Fraction(5))))


@pytest.mark.parametrize(
    ("settings", "epsilon"),
    [
        ({"kind": "unary", "epsilon_local": ONE}, Decimal("1.00000")),
        ({"kind": "k-ary", "epsilon_local": ONE}, Decimal("1.00000")),
        ({"kind": "mangat-vector", "epsilon_local": ONE}, Decimal("1.00000")),
        ({"kind": "one-sided", "noise_epsilon": Fraction(1, 3), "direction": "down"}, Decimal("0.33334")),
        ({"kind": "sampling", "sampling_rate": Fraction(1, 4)}, None),
    ],
)
def test_every_kind_has_a_statement(settings: dict[str, Any], epsilon: Decimal | None) -> None:
    statement = statement_of(case_of(**settings))

    assert statement[0].adversary == "public_and_broker"
    assert statement[0].epsilon == epsilon
    assert all(one.text and one.audience for one in statement)
    assert {"one_aggregator", "all_but_one_aggregators", "all_aggregators"} < {one.adversary for one in statement}

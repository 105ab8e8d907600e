"""The table of rules: the numbers of docs/privacy.md's question, and the order that the rules always keep."""

from fractions import Fraction

import pytest
from fleetcount_mechanisms.noise import TwoSidedNoise
from fleetcount_protocol.question.fields import Coin
from fleetcount_simulator.model import Epochs
from fleetcount_simulator.study import rules
from fleetcount_simulator.study.rules import rule_rows

from tests.simulator.fleets import SAMPLING, case, fleet
from tests.simulator.test_standing import question


def sds(windows: int, epsilon: int = 10) -> dict[tuple[str, int], float]:
    one = question(Coin.DAY, windows, epsilon=Fraction(epsilon))
    rows = rule_rows(case(fleet((3, 2, 1)), SAMPLING, epochs=Epochs(count=windows, question=one)))
    return {(str(row["rule"]), int(row["windows"])): float(row["sd"]) for row in rows}


def test_a_question_is_compared_at_a_few_numbers_of_windows_up_to_its_own() -> None:
    assert rules._counts(24) == [1, 2, 5, 11, 24]
    assert rules._counts(1) == [1]


def test_losses_that_are_added_up_reckon_with_both_cells_of_a_changed_truth() -> None:
    made = rules._direct("basic", 24, 3, Fraction(10), Fraction(1, 10**9))

    assert made is not None
    assert made[1] == TwoSidedNoise(Fraction(10, 48))


@pytest.mark.nightly
def test_a_day_of_maps_needs_the_noise_of_each_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_POINTS", 2)
    found = sds(24)
    last = {rule: sd for (rule, windows), sd in found.items() if windows == 24}

    assert sorted({windows for _, windows in found}) == [1, 24]
    assert last["geometric, added up"] == pytest.approx(9.59, abs=0.02)  # e1 = 10/48.
    assert last["geometric, exact"] < last["geometric, added up"]
    for rate in ("1/2", "1/4"):
        window, day, whole = (last[f"p = {rate}, coin a {coin}"] for coin in ("window", "day", "question"))
        assert last["Gaussian"] < 1.013 * window < 1.013 * day
        assert day == whole
    assert len(last) == 9


@pytest.mark.nightly
def test_a_month_of_maps_needs_what_the_page_on_privacy_says() -> None:
    last = {rule: sd for (rule, windows), sd in sds(720).items() if windows == 720}

    assert last["geometric, added up"] == pytest.approx(288, abs=0.1)
    assert last["geometric, exact"] == pytest.approx(49.2, abs=0.05)
    assert last["Gaussian"] == pytest.approx(36.365, abs=0.01)
    expected = {"1/2": (36.4, 36.8, 49.6), "1/4": (36.5, 41.7, 90.7)}
    for rate, sizes in expected.items():
        found = [last[f"p = {rate}, coin a {coin}"] for coin in ("window", "day", "question")]
        assert found == pytest.approx(sizes, rel=0.013)  # The grid rounds up by at most 1.2 %.


def test_what_promises_nothing_has_no_rules() -> None:
    assert rule_rows(case(fleet((3, 2)), SAMPLING)) == []
    assert rule_rows(case(fleet((3, 2)), SAMPLING, epochs=Epochs(count=3, question=question(Coin.DAY, 3)))) == []

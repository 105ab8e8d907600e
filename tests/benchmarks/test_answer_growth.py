"""benchmarks/answer_growth.py: an answer costs what more vehicles took more, and growth beyond a tenth is told."""

import pytest
from answer_growth import beyond, growth, least, options
from compare_answers import Cost


def cost(aggregators_s: float, devices_s: float) -> Cost:
    """Return what a run took."""
    return Cost(1.0, {"aggregator": aggregators_s, "device": devices_s, "relay": 0.0, "broker": 0.0, "other": 9.0})


def test_an_answer_costs_what_more_vehicles_took_more_and_growth_is_told() -> None:
    # 10 s of starting each; 4 ms an answer of both aggregators, 5 ms of the devices; then 5 ms and 5 ms.
    found = {(0, 1000): cost(14.0, 15.0), (0, 3000): cost(22.0, 25.0), (0, 5000): cost(32.0, 35.0)}

    assert [" ".join(row.split()) for row in growth(found)] == [
        "1,000 to 3,000 vehicles 2.00 5.00",
        "3,000 to 5,000 vehicles 2.50 5.00",
        "3,000 to 5,000 vehicles, times that of 1,000 to 3,000 vehicles 1.25 1.00 above 1.1",
    ]


def test_open_questions_are_compared_with_the_same_fleets_without_them() -> None:
    found = {
        (0, 1000): cost(14.0, 15.0),
        (0, 3000): cost(22.0, 25.0),
        (50, 1000): cost(30.0, 15.0),
        (50, 3000): cost(38.4, 26.0),
    }

    assert [" ".join(row.split()) for row in growth(found)] == [
        "1,000 to 3,000 vehicles 2.00 5.00",
        "1,000 to 3,000 vehicles, 50 questions open 2.10 5.50",
        "1,000 to 3,000 vehicles, 50 questions open, times that of 1,000 to 3,000 vehicles 1.05 1.10",
    ]


def test_of_several_runs_the_least_of_each_kind_counts() -> None:
    assert least([cost(4.0, 9.0), cost(5.0, 8.0)]) == cost(4.0, 8.0)


def test_what_is_taken_at_rest_is_no_cost_of_an_answer() -> None:
    # 20 s of starting; then 0.1 s a second, so 10 in 100 s; beyond that 7.
    resting = Cost(10.0, {"aggregator": 21.0, "device": 0.0})
    whole = Cost(100.0, {"aggregator": 37.0, "device": 4.0})

    assert beyond({"aggregator": 20.0, "device": 0.0}, resting, whole) == Cost(90.0, {"aggregator": 7.0, "device": 4.0})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fleets", "300"], "--fleets is [300], allowed: two or more numbers, the fewest first"),
        (["--fleets", "300,100"], "--fleets is [300, 100], allowed"),
        (["--open-questions", "16384"], "--open-questions is 16384, allowed: 0 to 16383"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["answer_growth.py", *arguments])

    with pytest.raises(SystemExit, match="2"):
        options()
    assert message in capsys.readouterr().err

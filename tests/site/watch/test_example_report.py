"""One report as each party sees it: one answer, other shares every time, and what all shares together say."""

from collections import Counter
from typing import Any

import pytest
from fleetcount_mechanisms.randomness import SeededRandom, SystemRandom
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.window.window import Window, report_bytes
from fleetcount_site.watch.example_report import ExampleReport

from tests.support.protocol_samples import one_round_window, sampling_window

INSIDE = (10.0, 10.0)
"""In value 1, square 0,0."""


def answers(window: Window, reading: Any, times: int) -> Counter[tuple[tuple[int, str], ...]]:
    """Return what all aggregators together see of so many vehicles."""
    seen = (ExampleReport(window, reading, SeededRandom(seed)).seen()["together"]["places"] for seed in range(times))
    return Counter(tuple((place, label) for place, label in one) for one in seen)


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_shares_change_every_time_and_the_answer_stays(parties: int) -> None:
    report = ExampleReport(sampling_window(parties), INSIDE, SystemRandom())

    first, second = report.seen(), report.seen()

    assert first["together"] == second["together"]
    for one, other in zip([*first["parties"], first["broker"]], [*second["parties"], second["broker"]], strict=True):
        assert one["hex"] != other["hex"]
        assert one["shades"] != other["shades"]
        assert one["bytes"] == other["bytes"]
    public = 32 * parties  # Each aggregator also gets every part of the public share.
    assert (
        sum(one["bytes"] for one in first["parties"])
        == report_bytes(sampling_window(parties).design) - parties * public
    )


def test_each_share_alone_is_as_random_whatever_the_answer_is() -> None:
    shades: dict[str, Counter[int]] = {}
    for reading in (INSIDE, (300.0, 300.0)):
        report = ExampleReport(sampling_window(), reading, SystemRandom())
        for _ in range(25):
            for one in report.seen()["parties"]:
                for vector in one["shades"]:
                    shades.setdefault(one["id"], Counter()).update(shade // 64 for shade in vector)

    for counts in shades.values():
        # 600 shades in four quarters; five deviations of a quarter's count are 53.
        assert sum(counts.values()) == 600
        assert all(abs(counts[quarter] - 150) < 53 for quarter in range(4))


def test_together_they_see_the_truth_with_chance_p_and_else_a_face_of_the_die() -> None:
    seen = answers(sampling_window(), INSIDE, 120)

    truth = seen.pop(((0, "none of them"), (1, "0,0")))
    assert abs(truth - 30) < 5 * (120 * 0.25 * 0.75) ** 0.5
    assert {places[0] for places in seen} == {places[1] for places in seen}
    assert all(len(set(places)) == 1 for places in seen)
    assert len(seen) == 7


def test_sentences_say_what_the_answer_tells() -> None:
    sampled = {
        "this vehicle was in the sample, it is the truth",
        "was not in the sample",
        "as of any vehicle outside all cells",
    }
    for seed in range(40):
        together = ExampleReport(sampling_window(), INSIDE, SeededRandom(seed)).seen()["together"]
        sampled -= {words for words in sampled if words in together["sentence"]}
        assert together["truth"] == "0,0"
        assert "p = 1/4." in together["sentence"]
    assert sampled == set()

    direct = ExampleReport(one_round_window(Mode.DIRECT), 80.0, SystemRandom()).seen()["together"]
    assert "no coins protect it" in direct["sentence"]
    response = one_round_window(Mode.RESPONSE)
    said = ExampleReport(response, 80.0, SystemRandom()).seen()["together"]["sentence"]
    assert "coins may have changed" in said
    assert "p = 2/3." in said

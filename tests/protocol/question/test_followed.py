"""What a period touches of questions that follow one another without a pause, against a count of every period."""

import random
from collections import Counter

import pytest
from fleetcount_protocol.question.fields import DAY_S, Coin, Schedule

PERIOD = 30 * DAY_S


def schedule(every_s: int, windows: int, round_one_s: int = 600, first: int = 20_000 * DAY_S) -> Schedule:
    return Schedule(
        first=first, every_s=every_s, windows=windows, round_one_s=round_one_s, round_two_s=0, expiry_s=DAY_S
    )


@pytest.mark.parametrize(
    ("coin", "asked", "touched"),
    [
        (Coin.WINDOW, schedule(3600, 720), {1: 720}),
        (Coin.WINDOW, schedule(DAY_S, 7), {1: 30}),
        (Coin.WINDOW, schedule(3600, 24), {1: 720}),
        (Coin.QUESTION, schedule(3600, 720), {720: 2}),
        (Coin.QUESTION, schedule(3600, 168), {168: 6}),
        (Coin.DAY, schedule(3600, 720), {24: 31}),
        (Coin.DAY, schedule(3600, 24), {24: 31}),
    ],
)
def test_the_units_of_a_period(coin: Coin, asked: Schedule, touched: dict[int, int]) -> None:
    assert asked.followed(coin, PERIOD) == (Counter(touched),)


@pytest.mark.parametrize("seed", range(12))
def test_no_period_touches_more_units_than_are_counted_and_one_touches_as_many(seed: int) -> None:
    rng = random.Random(seed)
    every_s, windows, period = (
        rng.choice([3600, 7200, 43_200]),
        rng.choice([3, 12, 24, 36]),
        rng.choice([DAY_S, 100_000]),
    )
    coin, first = rng.choice(list(Coin)), 20_000 * DAY_S + rng.choice([0, 3600 * 9])
    asked = schedule(every_s, windows, rng.choice([1, 600, 3600]), first)

    found = asked.followed(coin, period)

    spans = list[tuple[int, int, int]]()
    for turn in range(4 + 4 * period // (windows * every_s)):
        shift = turn * windows * every_s
        for members in asked.units(coin).values():
            opens, last = (asked.opens(members[place]) + shift for place in (0, -1))
            spans.append((opens, opens if len(members) == 1 else last + asked.round_one_s, len(members)))
    starts = {
        end - shift for begin, last, _ in spans for end in (begin, last) for shift in (-1, 0, 1, period, period - 1)
    }
    held = [
        Counter(size for begin, last, size in spans if begin < start + period and last >= start)
        for start in starts
        if first <= start <= first + windows * every_s
    ]
    assert all(any(one <= most for most in found) for one in held)
    assert all(any(most <= one for one in held) for most in found)

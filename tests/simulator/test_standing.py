"""A standing question: its units, and when devices join, leave and are missed."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from fleetcount_protocol.question.fields import Coin
from fleetcount_simulator.standing import StandingQuestion, membership_windows, schedule_of


def question(coin: Coin = Coin.WINDOW, windows: int = 72, **more: Any) -> StandingQuestion:
    settings: dict[str, Any] = {"epsilon": None, "delta": Fraction(1, 10**9)}
    schedule = schedule_of(windows, 3600, more.pop("start_s", 0))
    return StandingQuestion(schedule=schedule, coin=coin, **(settings | more))


@pytest.mark.parametrize(("coin", "units"), [(Coin.WINDOW, (1,) * 30), (Coin.DAY, (18, 12)), (Coin.QUESTION, (30,))])
def test_a_coin_holds_for_its_unit(coin: Coin, units: tuple[int, ...]) -> None:
    one = question(coin, 30, start_s=6 * 3600)

    assert one.shape.units == units
    assert one.shape.days == (18, 12)
    assert (one.unit(17) == one.unit(18)) == (coin is Coin.QUESTION)


def test_a_window_in_an_outage_is_missing() -> None:
    missing = [t for t in range(72) if question(outages=((3, 5), (70, 71))).is_missing(t)]

    assert missing == [3, 4, 5, 70, 71]


def test_devices_that_neither_join_nor_leave_are_there_throughout() -> None:
    came, gone = membership_windows(question(), 5, 9)

    assert came.tolist() == [0] * 4
    assert gone.tolist() == [72] * 4


def test_shares_of_devices_join_and_leave_at_any_window() -> None:
    came, gone = membership_windows(question(joins=Fraction(1, 4), leaves=Fraction(1, 2)), 0, 100_000)

    # Fixed by the devices' numbers: three standard deviations of a share are 0.005.
    assert abs(float((came > 0).mean()) - 0.25) < 0.005
    assert abs(float((gone < 72).mean()) - 0.5) < 0.01
    assert (came < gone).all()
    late = np.bincount(came[came > 0], minlength=72)[1:]
    assert late.min() > 0.7 * late.mean()
    assert np.bincount(gone[gone < 72]).size == 72


def test_a_devices_stay_does_not_depend_on_who_else_is_asked_about() -> None:
    one = question(joins=Fraction(1, 4), leaves=Fraction(1, 2))
    whole = np.stack(membership_windows(one, 0, 1000))

    assert np.array_equal(np.stack(membership_windows(one, 300, 400)), whole[:, 300:400])

"""What comes one after the other on one signal adds up, whatever it is called and whether it is a question."""

from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.windows.budget import (
    Charge,
    PeriodCharge,
    Unit,
    check_alone,
    check_budget,
    check_period,
    debit_row,
    order_for,
    question_charge,
    spent_from,
)
from fleetcount_aggregator.windows.question_install import install_question
from fleetcount_aggregator.windows.status import read_spent
from fleetcount_mechanisms.accounting.solving import noise_for_promise
from fleetcount_mechanisms.answers import Relation
from fleetcount_mechanisms.design import LedgerLoss
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.question.fields import Coin, Schedule
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.fields import Mode, Release, ReleaseKind
from fleetcount_protocol.window.signal import normal_signal
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import START, Network
from tests.support.protocol_samples import one_round_window, sampling_window
from tests.support.question_samples import HOURLY, every_question, one_round_question, sampling_question

DAY_S = 86_400


def direct(epsilon: str) -> Release:
    """Noise with which one direct answer among several values loses `epsilon`."""
    return Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(epsilon) / 2, level=Fraction(19, 20))


def question(number: int, epsilon: str = "4", every_s: int = 600, **changes: object) -> Window:
    """The question of a fixed loss, asked again `number` times `every_s` seconds later."""
    window = one_round_window(Mode.DIRECT, domain=Categories(names=("a", "b", "c")), release=direct(epsilon))
    later = number * every_s
    times = {
        name: getattr(window, name) + later for name in ("round_one_opens", "round_one_closes", "round_two_closes")
    }
    return replace(window, **times, expiry=window.expiry + later, **changes)  # type: ignore[arg-type]  # fields of Window.


def period_charge(window: Window) -> PeriodCharge:
    """Return what a question of one window is charged."""
    unit = Unit(window.round_one_opens, max(window.round_one_closes, window.round_two_closes) - 1, 1)
    return PeriodCharge(signals=(normal_signal(window.signal),), design=window.design, units=(unit,))


def test_five_hundred_questions_one_after_the_other_are_refused_with_sum_and_limit() -> None:
    charges = [period_charge(question(number)) for number in range(500)]
    taken, said = 0, ""

    try:
        for taken, charge in enumerate(charges):
            check_period(charge, charges[:taken], Limits())
            assert taken < 12
    except QuestionError as error:
        said = str(error)

    assert taken >= 10
    assert "'vehicle.speed' lose epsilon" in said
    assert said.endswith("allowed: at most 40")
    assert 40 < float(said.split("lose epsilon ")[1].split(maxsplit=1)[0]) <= 48


def test_questions_of_a_tenth_fill_a_limit_of_three_tenths_and_no_more() -> None:
    charges = [period_charge(question(number, "0.1")) for number in range(4)]
    limits = Limits(total_epsilon=Decimal("0.3"))

    check_period(charges[2], charges[:2], limits)

    with pytest.raises(QuestionError, match=r"lose epsilon 0\.4 at delta 1e-09 .* at most 0\.3$"):
        check_period(charges[3], charges[:3], limits)


def test_a_renamed_question_and_another_spelling_of_the_signal_are_the_same() -> None:
    limits = Limits(total_epsilon=Decimal(4))
    first = period_charge(question(0))

    changed: list[dict[str, Any]] = [{"name": "another"}, {"signal": question(0).signal.upper()}]
    for changes in changed:
        with pytest.raises(QuestionError, match="lose epsilon 8 at delta 1e-09 within 2592000 s, allowed: at most 4"):
            check_period(period_charge(question(1, **changes)), [first], limits)
    check_period(period_charge(question(1, signal="Vehicle.Other")), [first], limits)


@pytest.mark.parametrize(("days", "fits"), [(29, False), (31, True)])
def test_a_period_forgets_what_is_longer_ago(days: int, fits: bool) -> None:
    limits = Limits(total_epsilon=Decimal(4))
    first, second = (period_charge(question(number, every_s=days * DAY_S)) for number in (0, 1))

    for new, old in ((second, first), (first, second)):
        if fits:
            check_period(new, [old], limits)
        else:
            with pytest.raises(QuestionError, match="lose epsilon 8"):
                check_period(new, [old], limits)


def test_what_is_spent_is_that_of_the_fullest_period_from_a_moment_on() -> None:
    other = period_charge(question(0, epsilon="1", signal="Vehicle.Other"))
    charges = [period_charge(question(number, every_s=20 * DAY_S)) for number in (0, 1, 3)] + [other]
    first, last = (charges[place].units[0].last for place in (0, 2))

    def spent(moment: int) -> dict[str, float]:
        return {signal: float(one) for signal, one in spent_from(moment, charges, Limits()).items()}

    speed, others = charges[0].signals[0], other.signals[0]
    assert spent(first - 90 * DAY_S) == {speed: 8, others: 1}
    assert spent(first + 29 * DAY_S) == {speed: 8, others: 1}
    # The first is over, and no 30 days hold both others.
    assert spent(first + 31 * DAY_S) == {speed: 4}
    assert spent(last + 31 * DAY_S) == {}


def test_a_month_of_hourly_maps_is_one_charge_and_the_next_month_is_another() -> None:
    limits = Limits(total_epsilon=Decimal(10))
    release = Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction("0.0389"), level=Fraction(19, 20))
    month = one_round_question(Mode.DIRECT, release=release, schedule=replace(HOURLY, round_two_s=0))
    following = replace(month, schedule=replace(HOURLY, round_two_s=0, first=HOURLY.first + 720 * 3600))
    charge = question_charge(month)

    check_period(charge, [], limits)
    check_period(question_charge(following), [charge], limits)
    with pytest.raises(QuestionError, match="allowed: at most 10"):
        check_period(question_charge(replace(month, name="again")), [charge], limits)


async def test_months_follow_one_another_under_a_total_that_is_their_own_epsilon(tmp_path: Path) -> None:
    """Under a coin a question the usual order says 10.4 of two of them, whose noise was solved for 10."""
    limits = Limits(smallest_min_batch_size=2, largest_epsilon=Decimal(10), total_epsilon=Decimal(10))
    network = Network(2, directory=tmp_path, limits=limits)
    network.seats[0].store_path = tmp_path / "aggregator.db"
    await network.start_all()
    die = SamplingDie.uniform(Fraction(1, 4), 4)
    times = Schedule(first=START + DAY_S, every_s=3600, windows=720, round_one_s=600, round_two_s=600, expiry_s=60)
    units = times.followed(Coin.QUESTION, limits.budget_period_s)
    noise = noise_for_promise(die, times.shape(Coin.QUESTION), Fraction(10), limits.total_delta, periods=units)
    changes: dict[str, Any] = {
        "values": 4,
        "mechanism": die,
        "coin": Coin.QUESTION,
        "release": replace(direct("1"), kind=ReleaseKind.GAUSSIAN, noise_epsilon=None, noise_variance=noise.variance),
    }

    def month(number: int, **other: Any) -> Any:
        later = replace(times, first=times.opens(0) + number * 720 * 3600)
        return network.question(**{"name": f"month {number}", "schedule": later} | changes | other)

    for number in range(3):
        core = network.core(0)
        installed = await install_question(core.context, *month(number))
        check_alone(installed.asked, limits)
        assert installed.order is not None
        # What was counted at an order stays so, also for another process.
        await network.stop(0)
        await network.start(0)
        assert network.core(0).context.questions[installed.question_id].order == installed.order
    spent = [*read_spent(StorePlace(directory=tmp_path), limits, network.clock.now()).values()]
    assert len(spent) == 1
    assert 9.9 < spent[0] <= 10
    # Something small has no room beside them, and is counted as they are; once they are over, as usual.
    for number, error in ((1, "lose epsilon 10"), (5, "")):
        small = {"coin": Coin.WINDOW, "release": direct("1"), "mechanism": die, "name": "small"}
        schedule = replace(times, first=times.opens(0) + number * 720 * 3600, windows=1)
        with pytest.raises(QuestionError, match=error) if error else nullcontext():
            last = await install_question(network.core(0).context, *month(number, **small, schedule=schedule))
    assert last.order is None
    await network.stop_all()


def test_a_question_between_two_that_are_counted_differently_is_refused() -> None:
    def asked(day: int) -> Question:
        times = replace(HOURLY, first=HOURLY.first + day * DAY_S, windows=1, round_two_s=0)
        return one_round_question(Mode.DIRECT, schedule=times)

    usual, other = question_charge(asked(0)), question_charge(asked(40), order=4)

    assert order_for(asked(-20), [usual, other], Limits()) is None
    assert order_for(asked(60), [usual, other], Limits()) == 4
    elsewhere = replace(other, signals=("vehicle.other",))
    assert order_for(asked(20), [usual, elsewhere], Limits()) is None
    with pytest.raises(QuestionError, match="counted at 2 Renyi orders, allowed: one"):
        order_for(asked(20), [usual, other], Limits())


def test_what_a_stop_leaves_is_free_again_and_a_unit_that_began_is_not() -> None:
    schedule = Schedule(first=HOURLY.first, every_s=3600, windows=48, round_one_s=600, round_two_s=600, expiry_s=DAY_S)
    question = sampling_question(coin=Coin.DAY, schedule=schedule)

    assert [unit.windows for unit in question_charge(question).units] == [24, 24]
    assert [unit.windows for unit in question_charge(question, 24).units] == [24]
    assert [unit.windows for unit in question_charge(question, 25).units] == [24, 24]
    assert question_charge(question, 0).units == ()
    # Of one window in several each device has one answer a cycle, which counts whole while the cycle lasts.
    rotated = every_question()["one_in"]
    opens = rotated.schedule.opens
    assert question_charge(rotated).units == ((opens(0), opens(29), 1), (opens(30), opens(59), 1))
    assert question_charge(rotated, 30).units == ((opens(0), opens(29), 1),)


def test_exact_releases_have_a_switch_of_their_own() -> None:
    exact = Release(kind=ReleaseKind.EXACT, noise_epsilon=None, level=Fraction(19, 20))

    check_period(period_charge(sampling_window(release=exact)), [], Limits(total_epsilon=Decimal("0.001")))


async def test_the_aggregator_applies_it_to_windows_and_question_alike() -> None:
    network = Network(2, limits=Limits(smallest_min_batch_size=2, total_epsilon=Decimal(2)))
    await network.start_all()
    await network.ask(values=4)
    signed, seed = network.question(values=4)

    with pytest.raises(QuestionError, match=r"lose epsilon \d.* at delta 1e-09 within 2592000 s, allowed: at most 2"):
        await install_question(network.core(0).context, signed, seed)
    network.core(0).context.host.limits = Limits(smallest_min_batch_size=2)
    await install_question(network.core(0).context, signed, seed)
    network.core(0).context.host.limits = Limits(smallest_min_batch_size=2, total_epsilon=Decimal(2))
    late = {"round_one_opens": START + 9000, "round_one_closes": START + 9010, "round_two_closes": START + 9020}
    with pytest.raises(QuestionError, match="lose epsilon"):
        await network.ask(values=4, **late)


def of_two(number: int, signals: tuple[str, str], epsilon: str = "4") -> PeriodCharge:
    """Return what a question for two signals at once is charged."""
    return replace(period_charge(question(number, epsilon)), signals=tuple(map(normal_signal, signals)))


def test_a_question_for_two_signals_is_charged_whole_on_both() -> None:
    limits = Limits(total_epsilon=Decimal(4))
    both = of_two(0, ("Vehicle.A", "Vehicle.B"))

    for signals in (("Vehicle.A", "Vehicle.C"), ("Vehicle.C", "vehicle.b")):
        with pytest.raises(QuestionError, match=r"on 'vehicle\.[ab]' lose epsilon 8 at delta"):
            check_period(of_two(1, signals), [both], limits)
    with pytest.raises(QuestionError, match=r"on 'vehicle\.b' lose epsilon 8"):
        check_period(both, [period_charge(question(1, signal="Vehicle.B"))], limits)
    check_period(of_two(1, ("Vehicle.C", "Vehicle.D")), [both], limits)
    # A and B lose what each takes part in, not the sum of both.
    check_period(both, [period_charge(question(1, signal="Vehicle.C"))], limits)
    assert {*spent_from(0, [both], limits)} == {"vehicle.a", "vehicle.b"}


def test_a_question_for_two_signals_is_installed_with_both() -> None:
    asked = every_question()["cross"]

    assert question_charge(asked).signals == ("vehicle.speed", "vehicle.category")
    assert debit_row(window_at(asked, 0), 0).signal == "Vehicle.Speed x Vehicle.Category"


def test_windows_that_overlap_add_up_on_each_signal_alone() -> None:
    loss = LedgerLoss(epsilon=Decimal(2), relation=Relation.ANY_VALUE)
    a, b, both = (Charge(signals=signals, opens=0, closes=10, loss=loss) for signals in (("a",), ("b",), ("a", "b")))
    limits = Limits(largest_epsilon=Decimal(4))

    check_budget(both, [a, b], limits)
    for other in (a, b):
        with pytest.raises(QuestionError, match="sum to 6, allowed: at most 4"):
            check_budget(both, [other, both], limits)

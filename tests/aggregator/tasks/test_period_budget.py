"""What comes one after the other on one signal adds up, whatever it is called and whether it is a series."""

import gc
import hashlib
import tracemalloc
from collections.abc import Container, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from fleetcount_aggregator.context import Context, Limits
from fleetcount_aggregator.host.states import State
from fleetcount_aggregator.storage.store import TaskRow
from fleetcount_aggregator.tasks import install
from fleetcount_aggregator.tasks.budget import charge_of
from fleetcount_aggregator.tasks.period_budget import check_period, period_charge, series_charge, spent_from
from fleetcount_aggregator.tasks.series_install import install_series
from fleetcount_protocol.errors import TaskError
from fleetcount_protocol.ids import TaskId
from fleetcount_protocol.series.fields import Coin, Schedule
from fleetcount_protocol.task.domain import Categories
from fleetcount_protocol.task.signed_file import encode_signed_task
from fleetcount_protocol.task.task import Mode, Release, ReleaseKind, SignedTask, Task

from tests.support.aggregators import START, Network
from tests.support.protocol_samples import one_round_task, sampling_task
from tests.support.series_samples import HOURLY, one_round_series, sampling_series

DAY_S = 86_400


def direct(epsilon: str) -> Release:
    """Noise with which one direct answer among several values loses `epsilon`."""
    return Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(epsilon) / 2, level=Fraction(19, 20))


def question(number: int, epsilon: str = "4", every_s: int = 600, **changes: object) -> Task:
    """The question of a fixed loss, asked again `number` times `every_s` seconds later."""
    task = one_round_task(Mode.DIRECT, domain=Categories(names=("a", "b", "c")), release=direct(epsilon))
    later = number * every_s
    times = {name: getattr(task, name) + later for name in ("round_one_opens", "round_one_closes", "round_two_closes")}
    return replace(task, **times, expiry=task.expiry + later, **changes)  # type: ignore[arg-type]  # fields of Task.


def test_five_hundred_questions_one_after_the_other_are_refused_with_sum_and_limit() -> None:
    charges = [period_charge(question(number)) for number in range(500)]
    taken, said = 0, ""

    try:
        for taken, charge in enumerate(charges):
            check_period(charge, charges[:taken], Limits())
            assert taken < 12
    except TaskError as error:
        said = str(error)

    assert taken >= 10
    assert "'vehicle.speed' lose epsilon" in said
    assert said.endswith("allowed: at most 40")
    assert 40 < float(said.split("lose epsilon ")[1].split(maxsplit=1)[0]) <= 48


def stored(task: Task, signed: bytes) -> TaskRow:
    """Return a released task as it is stored."""
    return TaskRow(
        task_id=TaskId(hashlib.sha256(signed).digest()),
        signed=signed,
        verify_key=b"",
        state=State.RELEASED,
        abort_reason="",
        installed_at=task.round_one_opens,
    )


async def holding(rows: list[TaskRow], monkeypatch: pytest.MonkeyPatch) -> Context:
    """Return an aggregator whose store says that these tasks were debited."""

    async def charged_on(
        signal: str, since: int, known: Container[TaskId]
    ) -> tuple[Sequence[TaskId], Sequence[TaskRow]]:
        return [row.task_id for row in rows], [row for row in rows if row.task_id not in known]

    network = Network(2)
    await network.start_all()
    context = network.core(0).context
    monkeypatch.setattr(context.store, "charged_on", charged_on)
    monkeypatch.setattr(install, "_CHARGES", {})
    return context


async def test_what_was_debited_is_read_once_however_many_tasks_a_period_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a thousand remembered each task after the thousandth had all of them decoded again: a second and more.

    They are let go of when no period of a new task holds them any more.
    """
    task, new, read = question(0, epsilon="0.01"), question(1, epsilon="0.01"), list[bytes]()
    rows = [stored(task, b"stands for task %d" % number) for number in range(1100)]
    context = await holding(rows, monkeypatch)

    def decode(signed: bytes) -> SignedTask:
        read.append(signed)
        return SignedTask(task=task, signatures=())

    monkeypatch.setattr(install, "decode_signed_task", decode)
    for _ in range(2):
        await install.check_budgets(context, charge_of(new), period_charge(new))

    assert len(read) == len(rows)
    later = question(10**6, epsilon="0.01")
    rows.clear()
    await install.check_budgets(context, charge_of(later), period_charge(later))
    assert not install._CHARGES


async def test_what_is_remembered_of_a_debited_task_is_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charges that each had a design of their own, with all that follows from it, took 3 kB a task and more."""
    tasks = [question(number, epsilon="0.01") for number in range(60)]
    whole = [SignedTask(task=task, signatures=(bytes(64),) * len(task.aggregators)) for task in tasks]
    rows = [stored(one.task, encode_signed_task(one)) for one in whole]
    held = rows[:20]
    context, new = await holding(held, monkeypatch), question(200, epsilon="0.01")
    await install.check_budgets(context, charge_of(new), period_charge(new))
    gc.collect()
    tracemalloc.start()
    try:
        held[:] = [replace(row, signed=bytes(bytearray(row.signed))) for row in rows]
        await install.check_budgets(context, charge_of(new), period_charge(new))
        held.clear()
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert taken / 40 < 2_000


def test_a_renamed_question_and_another_spelling_of_the_signal_are_the_same() -> None:
    limits = Limits(total_epsilon=Decimal(4))
    first = period_charge(question(0))

    changed: list[dict[str, Any]] = [{"name": "another"}, {"signal": question(0).signal.upper()}]
    for changes in changed:
        with pytest.raises(TaskError, match="lose epsilon 8 at delta 1e-09 within 2592000 s, allowed: at most 4"):
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
            with pytest.raises(TaskError, match="lose epsilon 8"):
                check_period(new, [old], limits)


def test_what_is_spent_is_that_of_the_fullest_period_from_a_moment_on() -> None:
    other = period_charge(question(0, epsilon="1", signal="Vehicle.Other"))
    charges = [period_charge(question(number, every_s=20 * DAY_S)) for number in (0, 1, 3)] + [other]
    first, last = (charges[place].units[0].last for place in (0, 2))

    def spent(moment: int) -> dict[str, float]:
        return {signal: float(one) for signal, one in spent_from(moment, charges, Limits()).items()}

    speed, others = charges[0].signal, other.signal
    assert spent(first - 90 * DAY_S) == {speed: 8, others: 1}
    assert spent(first + 29 * DAY_S) == {speed: 8, others: 1}
    # The first is over, and no 30 days hold both others.
    assert spent(first + 31 * DAY_S) == {speed: 4}
    assert spent(last + 31 * DAY_S) == {}


def test_a_month_of_hourly_maps_is_one_charge_and_the_next_month_is_another() -> None:
    limits = Limits(total_epsilon=Decimal(10))
    release = Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction("0.0389"), level=Fraction(19, 20))
    month = one_round_series(Mode.DIRECT, release=release, schedule=replace(HOURLY, round_two_s=0))
    following = replace(month, schedule=replace(HOURLY, round_two_s=0, first=HOURLY.first + 720 * 3600))
    charge = series_charge(month)

    check_period(charge, [], limits)
    check_period(series_charge(following), [charge], limits)
    with pytest.raises(TaskError, match="allowed: at most 10"):
        check_period(series_charge(replace(month, name="again")), [charge], limits)


def test_what_a_stop_leaves_is_free_again_and_a_unit_that_began_is_not() -> None:
    schedule = Schedule(first=HOURLY.first, every_s=3600, windows=48, round_one_s=600, round_two_s=600, expiry_s=DAY_S)
    series = sampling_series(coin=Coin.DAY, schedule=schedule)

    assert [unit.windows for unit in series_charge(series).units] == [24, 24]
    assert [unit.windows for unit in series_charge(series, 24).units] == [24]
    assert [unit.windows for unit in series_charge(series, 25).units] == [24, 24]
    assert series_charge(series, 0).units == ()


def test_exact_releases_have_a_switch_of_their_own() -> None:
    exact = Release(kind=ReleaseKind.EXACT, noise_epsilon=None, level=Fraction(19, 20))

    check_period(period_charge(sampling_task(release=exact)), [], Limits(total_epsilon=Decimal("0.001")))


async def test_the_aggregator_applies_it_to_tasks_and_series_alike() -> None:
    network = Network(2, limits=Limits(smallest_min_batch_size=2, total_epsilon=Decimal(2)))
    await network.start_all()
    await network.ask(values=4)
    signed, seed = network.series(values=4)

    with pytest.raises(TaskError, match=r"lose epsilon \d.* at delta 1e-09 within 2592000 s, allowed: at most 2"):
        await install_series(network.core(0).context, signed, seed)
    network.core(0).context.limits = Limits(smallest_min_batch_size=2)
    await install_series(network.core(0).context, signed, seed)
    network.core(0).context.limits = Limits(smallest_min_batch_size=2, total_epsilon=Decimal(2))
    late = {"round_one_opens": START + 9000, "round_one_closes": START + 9010, "round_two_closes": START + 9020}
    with pytest.raises(TaskError, match="lose epsilon"):
        await network.ask(values=4, **late)

"""Drill-down at aggregators: a step follows from the record of the step before, the same everywhere, or is missing."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.windows.question_install import install_question
from fleetcount_aggregator.windows.question_orders import take_own_order
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.fields import DrillDown
from fleetcount_protocol.question.orders import OrderAction, QuestionOrder, sign_order
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.release.record import ReleaseRecord, decode_record
from fleetcount_protocol.window.domain import Prefixes
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import Network, answer_all

LEVELS = (3, 5, 8)
PLACES = (0b101_10_011, 0b101_10_011, 0b101_10_011, 0b001_00_000)
"""What the sampled devices of a step say: a busy place of eight bits, and one alone."""


async def walking(network: Network, windows: int = 6, every_s: int = 60, **changes: object) -> Question:
    """Start everybody and install two walks over three levels; two sampled devices make a cell survive."""
    await network.start_all()
    walk = DrillDown(levels=LEVELS, threshold=8, most_survivors=2)
    fields: dict[str, object] = {
        "domain": Prefixes(bits=3, cells=tuple(range(8))),
        "mechanism": SamplingDie.uniform(Fraction(1, 4), 8),
        "drill_down": walk,
        "schedule": replace(network.question()[0].question.schedule, windows=windows, every_s=every_s),
    }
    signed, seed = network.question(**(fields | changes))
    for position in range(len(network.seats)):
        await install_question(network.core(position).context, signed, seed)
    return signed.question


def coins(window: Window) -> list[tuple[int, int]]:
    """Return one pair of coins a sampled device: its answer in round two, none in round one."""
    assert isinstance(window.domain, Prefixes)
    return [(0, window.domain.value_of(place << 24)) for place in PLACES]


async def step(network: Network, window: Window, offset: int, count: int = len(PLACES)) -> None:
    """Let devices answer a window that everybody has, and everybody bring it to its end."""
    await network.advance_to(window.round_one_opens)
    await network.look_after_all()
    await answer_all(network, window, coins(window)[:count], offset=offset)
    await network.run_to_the_end(window)


async def record_of(network: Network, window: Window, position: int = 0) -> ReleaseRecord:
    answer = await network.core(position).service.release(window.window_id)
    assert answer.state is WindowState.RELEASED
    return decode_record(answer.record)


async def decided(network: Network, question: Question) -> list[list[str]]:
    """Return what every aggregator decided about each window."""
    return [await network.decided(question, position) for position in range(len(network.seats))]


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.nightly)])
async def test_walks_lead_everybody_from_record_to_record_to_the_busy_place(count: int) -> None:
    network = Network(count)
    question = await walking(network)
    cells = ((), (0b101,), (0b10110,)) * 2
    before = None

    for index, survivors in enumerate(cells):
        window = window_at(question, index, survivors)
        await step(network, window, 10 * index)
        records = [await record_of(network, window, position) for position in range(count)]
        assert all(one.canonical == records[0].canonical for one in records)
        assert records[0].chain is not None
        assert (records[0].chain.previous, records[0].chain.missing) == (before, ())
        before = records[0].digest
        if index % 3 == 2:
            busy = [one.label for one in records[0].cells if one.estimate >= 8]
            assert busy == [f"{0b10110011 << 24}/8"]
    assert await decided(network, question) == [["window"] * 6] * count


async def test_steps_of_a_walk_are_not_added_up_where_a_limit_looks_at_two_records() -> None:
    limits = Limits(smallest_min_batch_size=2, largest_posterior=Fraction(99, 100))
    network = Network(2, limits=limits)
    question = await walking(network)

    for index, survivors in enumerate(((), (0b101,), (0b10110,))):
        window = window_at(question, index, survivors)
        await step(network, window, 10 * index)
        assert (await record_of(network, window)).window.values == (8, 4, 8)[index]


async def test_where_nothing_survives_the_rest_of_the_walk_is_not_asked_and_the_next_begins_anew() -> None:
    network = Network(2)
    question = await walking(network)
    await step(network, window_at(question, 0), 0, count=0 + 2)  # Two are there, and survive.
    await network.advance_to(question.schedule.opens(1) - 30)
    await network.look_after_all()
    second = window_at(question, 1, (0b101,))
    await network.advance_to(second.round_one_opens)
    await answer_all(network, second, [(0, 0), (0, 0)], offset=20)
    await network.run_to_the_end(second)

    third = window_at(question, 3)
    await step(network, third, 30)

    assert (await decided(network, question))[0][:4] == (await decided(network, question))[1][:4]
    assert (await decided(network, question))[0][:4] == ["window", "window", "nothing_survived", "window"]
    chain = (await record_of(network, third)).chain
    assert chain is not None
    assert [(one.index, one.reason) for one in chain.missing] == [(2, "nothing_survived")]


async def test_without_the_record_before_the_rest_of_the_walk_has_ended() -> None:
    network = Network(2)
    question = await walking(network)
    first = window_at(question, 0)
    await step(network, first, 0, count=1)
    assert network.core(0).context.windows.states[first.window_id] is WindowState.ABORTED

    third = window_at(question, 3)
    await step(network, third, 30)

    assert [one[:4] for one in await decided(network, question)] == [
        ["window", "walk_ended", "walk_ended", "window"]
    ] * 2
    chain = (await record_of(network, third)).chain
    assert chain is not None
    assert [one.reason for one in chain.missing] == ["too_few_reports", "walk_ended", "walk_ended"]


async def test_a_pause_in_a_walk_ends_it() -> None:
    network = Network(2)
    question = await walking(network)
    for number, (action, window) in enumerate(((OrderAction.PAUSE, 1), (OrderAction.RESUME, 2)), start=1):
        order = QuestionOrder(
            question_id=question.question_id,
            number=number,
            action=action,
            aggregator_id=network.seats[0].aggregator_id,
            from_window=window,
        )
        await take_own_order(network.core(0).context.questions, sign_order(order, network.seats[0].signing_key))
    await network.look_after_all()
    await step(network, window_at(question, 0), 0)

    await network.advance_to(question.schedule.opens(3))
    await network.look_after_all()

    assert [one[:4] for one in await decided(network, question)] == [["window", "paused", "walk_ended", "window"]] * 2


async def test_a_step_whose_record_before_is_late_is_not_asked() -> None:
    network = Network(2)
    question = await walking(network)
    first = window_at(question, 0)
    await network.advance_to(first.round_one_opens)
    await network.look_after_all()
    await answer_all(network, first, coins(first))
    await network.advance_to(question.schedule.opens(1) + 1)
    await network.look_after_all()
    record = await record_of(network, first)
    assert record.released_at > question.schedule.opens(1)

    await network.advance_to(question.schedule.opens(1) + 3)
    await network.look_after_all()

    assert [one[:3] for one in await decided(network, question)] == [["window", "record_late", "walk_ended"]] * 2


async def test_a_helper_that_gets_the_record_late_waits_for_it_until_round_one_closes() -> None:
    network = Network(2)
    question = await walking(network)
    first = window_at(question, 0)
    await network.advance_to(first.round_one_opens)
    await network.look_after_all()
    await answer_all(network, first, coins(first))
    await network.stop(0)
    await network.advance_to(question.schedule.opens(1) + 5)
    await network.look_after_all()
    helper = network.core(1).context.questions[question.question_id]
    assert helper.following == 1

    await network.advance_to(question.schedule.opens(1) + question.schedule.round_one_s)
    await network.look_after_all()

    assert await network.missing(question, 1) == {1: "record_late", 2: "walk_ended"}


@pytest.mark.parametrize(
    "name",
    [
        "release.after_draw_store",
        pytest.param("question.before_window_store", marks=pytest.mark.nightly),
        pytest.param("question.after_window_store", marks=pytest.mark.nightly),
    ],
)
async def test_a_kill_between_steps_changes_neither_records_nor_steps(tmp_path: Path, name: str) -> None:
    network = Network(2, directory=tmp_path)
    question = await walking(network, windows=3, every_s=600)
    await step(network, window_at(question, 0), 0)
    for position in (0, 1):
        await network.stop(position)
        await network.start(position, name)

    for index, survivors in ((1, (0b101,)), (2, (0b10110,))):
        window = window_at(question, index, survivors)
        await network.advance_to(window.round_one_opens)
        await network.look_after_all()
        await network.start_crashed()
        await network.look_after_all()
        await answer_all(network, window, coins(window), offset=10 * index)
        await network.run_to_the_end(window)
        assert (await record_of(network, window)).canonical == (await record_of(network, window, 1)).canonical

    assert await decided(network, question) == [["window"] * 3] * 2
    await network.stop_all()


async def test_what_was_decided_about_a_walk_survives_a_start(tmp_path: Path) -> None:
    network = Network(2, directory=tmp_path)
    question = await walking(network)
    await step(network, window_at(question, 0), 0, count=1)
    await network.advance_to(question.schedule.opens(2))
    await network.look_after_all()
    known = await decided(network, question)

    for position in range(2):
        await network.stop(position)
        await network.start(position)

    assert await decided(network, question) == known
    assert known[0][:3] == ["window", "walk_ended", "walk_ended"]
    third = window_at(question, 3)
    await step(network, third, 30)
    assert (await record_of(network, third)).chain is not None
    await network.stop_all()

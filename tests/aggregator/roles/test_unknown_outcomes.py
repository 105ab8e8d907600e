"""A write that the store has done and answered with an error: whoever asks again goes on from what is stored."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from fleetcount_aggregator.storage.errors import StoreAwayError, StoreError
from fleetcount_aggregator.storage.question_rows import install_question as install_stored_question
from fleetcount_aggregator.storage.row_types import DecidedWindow, WindowChange, WindowRow
from fleetcount_aggregator.storage.rows import read_ledger
from fleetcount_aggregator.windows.question_install import install_question
from fleetcount_protocol.errors import QuestionError
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import START, Network, answer_all

COINS = [(0, 1), (0, 2), (3, 3), (0, 0), (0, 5)]


def lose_answers(network: Network, position: int, which: Callable[[WindowChange], bool]) -> list[WindowChange]:
    """Let an aggregator's store do the first such change, and say that it is away; returns what was lost."""
    store, lost = network.core(position).context.store, list[WindowChange]()
    apply = store.apply

    async def without_answer(change: WindowChange) -> Any:
        done = await apply(change)
        if not lost and which(change):
            lost.append(change)
            raise StoreAwayError("the database has not said what became of it")
        return done

    store.apply = without_answer  # type: ignore[method-assign]
    return lost


async def run(network: Network, window: Window) -> None:
    """Let everybody work until the window has ended, though a store fails in between."""
    await network.advance_to(window.round_two_closes)
    for _ in range(4):
        with suppress(StoreError):
            await network.look_after_all()


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("state", [WindowState.AGREEING, WindowState.RELEASING, WindowState.RELEASED])
async def test_a_move_without_an_answer_is_known_when_it_is_asked_for_again(position: int, state: WindowState) -> None:
    network = Network(2)
    await network.start_all()
    window = await network.ask()
    await answer_all(network, window, COINS)
    lost = lose_answers(network, position, lambda change: change.new_state is state)

    await run(network, window)

    assert len(lost) == 1
    assert [network.core(one).context.windows.states[window.window_id] for one in range(2)] == 2 * [
        WindowState.RELEASED
    ]
    assert [len(await network.core(one).context.store.read(read_ledger)) for one in range(2)] == [1, 1]
    assert [list(network.core(one).context.windows.live) for one in range(2)] == [[], []]


@pytest.mark.parametrize("position", [0, 1])
async def test_windows_decided_without_an_answer_are_taken_up_and_the_next_ones_follow(position: int) -> None:
    network = Network(2)
    await network.start_all()
    question = await network.stand()
    store, lost = network.core(position).context.store, list[int]()
    decide = store.decide_windows

    async def without_answer(rows: Sequence[DecidedWindow], window: WindowRow | None = None) -> None:
        await decide(rows, window)
        if not lost:
            lost.extend(row.index for row in rows)
            raise StoreAwayError("the database has not said what became of it")

    store.decide_windows = without_answer  # type: ignore[method-assign]
    for index in range(2):
        window = window_at(question, index)
        await network.advance_to(window.round_one_opens)
        for _ in range(3):
            with suppress(StoreError):
                await network.look_after_all()
            network.clock.advance(1)
        await answer_all(network, window, COINS, offset=10 * index)
        await network.run_to_the_end(window)
        answers = [await network.core(one).service.release(window.window_id) for one in range(2)]
        assert [one.state for one in answers] == 2 * [WindowState.RELEASED]
    assert lost == [0]


async def test_what_was_installed_without_an_answer_is_charged_for_before_anything_else_is() -> None:
    network = Network(2)
    network.limits = replace(network.limits, largest_epsilon=Decimal("0.8"))
    await network.start_all()
    context = network.core(0).context
    write = context.store.write

    async def without_answer(work: Any, *args: Any) -> Any:
        done = await write(work, *args)
        if work is install_stored_question:
            raise StoreAwayError("the database has not said what became of it")
        return done

    question = network.question()
    other = network.once(round_one_opens=START + 130, round_one_closes=START + 140, round_two_closes=START + 150)
    setattr(context.store, "write", without_answer)  # noqa: B010 - a method of an instance
    with pytest.raises(StoreAwayError):
        await install_question(context, *question)
    setattr(context.store, "write", write)  # noqa: B010 - as above

    with pytest.raises(QuestionError, match="sum to"):
        await install_question(context, *other)
    assert len(context.questions) == 1
    await install_question(context, *question)

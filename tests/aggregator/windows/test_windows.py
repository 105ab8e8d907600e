"""Windows of a question: decided about once, each at its time, and the same window at every aggregator."""

from pathlib import Path

import pytest
from fleetcount_aggregator.host.keys import KeyRing, Validity
from fleetcount_aggregator.host.moment import Skew
from fleetcount_aggregator.storage.ended import read_active
from fleetcount_aggregator.storage.rows import read_ledger
from fleetcount_aggregator.windows.question_install import install_question
from fleetcount_protocol.channel.hpke import HpkeKeyPair
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.question import Question, window_at, window_verify_key

from tests.support.aggregators import Network, answer_all

COINS = [(0, 1), (0, 2), (3, 3), (0, 0), (0, 5)]


async def standing(network: Network, **changes: object) -> Question:
    """Start everybody and install a question everywhere."""
    await network.start_all()
    signed, seed = network.question(**changes)
    for position in range(len(network.seats)):
        await install_question(network.core(position).context, signed, seed)
    return signed.question


async def test_a_window_is_made_shortly_before_it_opens_and_the_same_everywhere() -> None:
    network = Network(2)
    question = await standing(network)
    seed = network.question()[1]
    lead = 60

    await network.advance_to(question.schedule.opens(0) - lead - 1)
    await network.look_after_all()
    before = [len(network.core(position).context.windows) for position in range(2)]
    await network.advance_to(question.schedule.opens(0) - lead)
    await network.look_after_all()

    assert before == [0, 0]
    expected = window_at(question, 0)
    for position in range(2):
        [window] = network.core(position).context.windows.values()
        assert window.asked.canonical == expected.canonical
        assert window.verify_key == window_verify_key(seed, expected.window_id)
        assert list(await network.core(position).context.store.read(read_active)) == [expected.window_id]


async def test_every_window_is_released_in_its_turn() -> None:
    network = Network(2)
    question = await standing(network)

    for index in range(question.schedule.windows):
        window = window_at(question, index)
        await network.advance_to(window.round_one_opens)
        await network.look_after_all()
        await answer_all(network, window, COINS, offset=10 * index)
        await network.run_to_the_end(window)

    for position in range(2):
        core = network.core(position)
        for index in range(question.schedule.windows):
            answer = await core.service.release(window_at(question, index).window_id)
            assert answer.state is WindowState.RELEASED
        assert len(await core.context.store.read(read_ledger)) == question.schedule.windows


async def test_windows_that_pass_while_an_aggregator_is_down_are_missed(tmp_path: Path) -> None:
    network = Network(2, directory=tmp_path)
    question = await standing(network)
    await network.advance_to(question.schedule.opens(0))
    await network.look_after_all()
    await network.stop(0)
    await network.advance_to(question.schedule.opens(3) + 5)

    core = await network.start(0)
    assert core.context.questions[question.question_id].following == 2, (
        "what is decided is known before anything is decided"
    )
    await network.look_after_all()

    assert await network.decided(question) == ["window", "window", "missed", "window", "window"]
    await network.stop_all()


async def test_windows_are_not_missed_by_a_clock_that_a_peer_contradicts(tmp_path: Path) -> None:
    network = Network(2, directory=tmp_path)
    question = await standing(network)
    peer = question.aggregators[1].aggregator_id
    await network.stop(0)
    await network.advance_to(question.schedule.opens(3) + 5)
    await network.start(0)
    skews = network.core(0).context.peers.greetings.skews

    # By the clock of its peer, which is two hours late, no window has opened; then both agree.
    skews[peer] = Skew(-7200, 0.1)
    await network.look_after_all()
    contradicted = await network.decided(question)
    skews[peer] = Skew(-20, 0.1)
    await network.advance_to(question.schedule.opens(3) + 7)
    await network.look_after_all()

    assert contradicted == []
    assert await network.decided(question) == ["missed", "missed", "missed", "window", "window"]
    await network.stop_all()


async def test_windows_are_missed_if_the_peer_whose_clock_differs_says_so_too(tmp_path: Path) -> None:
    network = Network(2, directory=tmp_path)
    question = await standing(network)
    await network.stop(0)
    await network.advance_to(question.schedule.opens(3) + 5)
    await network.start(0)

    network.core(0).context.peers.greetings.skews[question.aggregators[1].aggregator_id] = Skew(7200, 0.1)
    await network.look_after_all()

    assert await network.decided(question) == ["missed", "missed", "missed", "window", "window"]
    await network.stop_all()


@pytest.mark.parametrize("name", ["question.before_window_store", "question.after_window_store"])
async def test_a_crash_while_a_window_is_made_leaves_it_made_once(tmp_path: Path, name: str) -> None:
    network = Network(2, directory=tmp_path)
    question = await standing(network)
    await network.stop(0)
    await network.start(0, name)
    await network.advance_to(question.schedule.opens(0) - 30)

    await network.look_after_all()
    await network.start_crashed()
    await network.look_after_all()

    assert await network.decided(question) == await network.decided(question, 1) == ["window"]
    assert list(await network.core(0).context.store.read(read_active)) == [window_at(question, 0).window_id]
    await network.stop_all()


async def test_a_window_without_a_sealing_key_is_skipped_and_a_new_key_takes_the_next() -> None:
    network = Network(2)
    keys = {1: HpkeKeyPair.generate(1)}
    question = network.question()[0].question
    expires = question.schedule.closes(0)
    network.seats[0].keys = KeyRing(keys, validities={1: Validity(0, expires)})
    question = await standing(network)
    await network.advance_to(question.schedule.opens(0))
    await network.look_after_all()
    known = await network.decided(question)
    assert known == ["window", "no_sealing_key"]

    network.core(0).context.host.keys = KeyRing(
        {**keys, 2: HpkeKeyPair.generate(2)}, validities={1: Validity(0, expires)}
    )
    await network.advance_to(question.schedule.opens(1))
    await network.look_after_all()

    assert await network.decided(question) == [*known, "window"]

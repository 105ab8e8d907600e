"""The records of a question: each names the one before, and every window between with the reason why it has none."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_aggregator.host.host import Limits, NoiseSource
from fleetcount_aggregator.host.states import AbortReason
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.release.chain import chain_link, check_link
from fleetcount_aggregator.storage.rows import read_ledger, read_step
from fleetcount_mechanisms.answers import Side
from fleetcount_mechanisms.noise import NoiseLaw
from fleetcount_protocol.errors import PeerProblem, QuestionError
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.question.fields import Participants, Schedule
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.release.chain import ChainLink, MissingWindow
from fleetcount_protocol.release.record import ReleaseRecord, decode_record
from fleetcount_protocol.window.fields import Mode, Release, ReleaseKind

from tests.support.aggregators import START, Network, TestDevice, answer_all, system_noise

COINS = [(0, 1), (0, 2), (3, 3), (0, 0), (0, 5)]
DIFFERENCE = [1, 1, 0, 0, 1, 0, 0, 0]
SLOW = Schedule(first=START + 1200, every_s=1200, windows=3, round_one_s=10, round_two_s=10, expiry_s=86_400)
"""Room between the windows for an aggregator that is down for a while."""


async def standing(
    count: int = 2, directory: Path | None = None, noise: NoiseSource | None = None, **changes: object
) -> tuple[Network, Question]:
    network = Network(count, directory=directory, noise=noise)
    await network.start_all()
    return network, await network.stand(**changes)


async def run_window(network: Network, question: Question, index: int, *, answered: bool = True) -> None:
    """Let a window pass, with reports or without, until it has ended everywhere."""
    window = window_at(question, index)
    await network.advance_to(window.round_one_opens - 5)
    await network.look_after_all()
    await network.start_crashed()
    await network.look_after_all()
    if answered:
        await answer_all(network, window, COINS, offset=10 * index)
    await network.run_to_the_end(window)


async def records(network: Network, question: Question) -> dict[int, ReleaseRecord]:
    """Return the records by window, after checking that everybody has the same bytes."""
    found: dict[int, ReleaseRecord] = {}
    for index in range(question.schedule.windows):
        window_id = window_at(question, index).window_id
        if await network.core(0).context.windows.state_of(window_id) is not WindowState.RELEASED:
            continue
        answers = [await network.core(position).service.release(window_id) for position in range(len(network.seats))]
        assert len({(answer.state, answer.record, answer.signatures) for answer in answers}) == 1
        found[index] = decode_record(answers[0].record)
    return found


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.nightly)])
async def test_every_record_names_the_one_before_and_what_is_missing(count: int) -> None:
    network, question = await standing(count)
    for index in range(5):
        await run_window(network, question, index, answered=index not in (1, 2))

    found = await records(network, question)

    assert list(found) == [0, 3, 4]
    assert found[0].chain == ChainLink(previous=None, previous_index=None, missing=())
    too_few = tuple(MissingWindow(index=index, reason="too_few_reports") for index in (1, 2))
    assert found[3].chain == ChainLink(previous=found[0].digest, previous_index=0, missing=too_few)
    assert found[4].chain == ChainLink(previous=found[3].digest, previous_index=3, missing=())
    assert all([cell.raw for cell in record.cells] == DIFFERENCE for record in found.values())


async def test_the_record_of_a_window_states_what_the_whole_question_may_lose() -> None:
    network, question = await standing()
    await run_window(network, question, 0)

    [record] = (await records(network, question)).values()

    assert {view.neighbours for view in record.statement} == {"one-answer", "one-day", "whole-question"}


async def test_a_one_sided_question_is_taken_where_the_operator_says_so_and_its_records_show_sides() -> None:
    one_sided = {
        "mode": Mode.DIRECT,
        "mechanism": None,
        "values": 2,
        "schedule": Schedule(first=START + 120, every_s=60, windows=2, round_one_s=10, round_two_s=0, expiry_s=86_400),
        "release": Release(
            kind=ReleaseKind.ONE_SIDED, noise_epsilon=Fraction(3, 2), level=Fraction(3, 4), thresholds=(1, 1)
        ),
    }
    with pytest.raises(QuestionError, match=r"allowed only with .* allow_one_sided = true"):
        await standing(**one_sided)
    network = Network(2, limits=Limits(smallest_min_batch_size=2, allow_one_sided=True))
    await network.start_all()
    question = await network.stand(**one_sided)
    window = window_at(question, 0)
    await network.advance_to(window.round_one_opens - 5)
    await network.look_after_all()
    await network.advance_to(window.round_one_opens)
    for number, value in enumerate([0, 1, 2, 2, 2]):
        device = TestDevice(network, window, number)
        await device.open_sessions()
        await device.send(device.seal(0, *device.raw([int(value == one) for one in range(3)])))
    await network.run_to_the_end(window)

    [record] = (await records(network, question)).values()

    assert [cell.raw for cell in record.cells] == [1, 3]
    assert [record.side(cell) for cell in record.cells] == [Side.SAFE, Side.DANGER]
    whole = [view for view in record.statement if view.neighbours == "whole-question"]
    assert whole[0].epsilon == Decimal("3.00000"), "the pure sum of both windows"
    assert "only a value replaced by none is protected" in whole[0].sentence


async def test_a_window_waits_until_the_one_before_has_ended() -> None:
    network, question = await standing()
    network.supervised = False
    for index in range(2):
        window = window_at(question, index)
        await network.advance_to(window.round_one_opens - 5)
        for position in range(2):
            await network.core(position).scheduler.open_windows()
        await answer_all(network, window, COINS, offset=10 * index)
    first, second = (network.core(0).context.windows[window_at(question, index).window_id] for index in range(2))
    await network.advance_to(second.closes)

    await network.core(0).scheduler.look_after(second)
    waited = network.core(0).context.windows.states[second.window_id]
    await network.core(0).scheduler.look_after(first)
    await network.core(0).scheduler.look_after(second)

    assert waited is WindowState.ANNOUNCED or waited is WindowState.COLLECTING
    found = await records(network, question)
    assert found[1].chain == ChainLink(previous=found[0].digest, previous_index=0, missing=())


async def test_a_link_that_the_own_store_contradicts_is_refused() -> None:
    network, question = await standing()
    for index in range(3):
        await run_window(network, question, index, answered=index != 1)
    await network.advance_to(question.schedule.opens(3))
    await network.look_after_all()
    helper, leader = network.core(1).context, network.core(0).context
    window = helper.windows[window_at(question, 3).window_id]
    link = await chain_link(leader.windows, leader.windows[window.window_id])
    gone = tuple(MissingWindow(index=index, reason="missed") for index in (1, 2))

    await check_link(helper.windows, window, link)
    for forged in (
        replace(link, previous=Digest(bytes(32))),
        replace(link, previous_index=0, missing=gone),
        ChainLink(previous=None, previous_index=None, missing=(MissingWindow(index=0, reason="missed"), *gone)),
    ):
        with pytest.raises(PeerRefusalError) as refusal:
            await check_link(helper.windows, window, forged)
        assert refusal.value.problem is PeerProblem.DISAGREES


async def test_a_window_one_aggregator_missed_ends_at_once_and_the_next_goes_on(tmp_path: Path) -> None:
    network, question = await standing(directory=tmp_path)
    network.supervised = False
    await run_window(network, question, 0)
    await network.stop(1)
    window = window_at(question, 2)
    await network.advance_to(window.round_one_opens)
    await network.core(0).scheduler.open_windows()
    devices = [TestDevice(network, window, number) for number in range(len(COINS))]
    for device, (first, _) in zip(devices, COINS, strict=True):
        await device.open_sessions()
        await device.send(device.first(first), to=[0])
    await network.advance_to(window.round_one_closes)
    for device, (first, second) in zip(devices, COINS, strict=True):
        await device.send(device.second(first, second), to=[0])
    await network.advance_to(window.round_two_closes)
    await network.start(1)
    before = network.clock.now()

    await network.core(1).scheduler.open_windows()
    await network.look_after_all()
    await run_window(network, question, 3)

    found = await records(network, question)
    assert (await network.missing(question, 1))[2] == "missed"
    assert list(found) == [0, 3]
    assert found[3].chain is not None
    assert found[3].chain.missing[-1] == MissingWindow(index=2, reason=AbortReason.PEER_ABORTED.value)
    assert network.clock.now() - before < 150
    await network.stop_all()


CRASHES = [
    ("leader.after_seal", 0),
    pytest.param("leader.after_open", 0, marks=pytest.mark.nightly),
    pytest.param("leader.before_release", 0, marks=pytest.mark.nightly),
    pytest.param("leader.after_release", 0, marks=pytest.mark.nightly),
    pytest.param("release.after_draw", 0, marks=pytest.mark.nightly),
    ("release.after_draw_store", 1),
    ("helper.after_seal_store", 1),
    pytest.param("helper.after_sign_store", 1, marks=pytest.mark.nightly),
    pytest.param("helper.before_deliver_store", 1, marks=pytest.mark.nightly),
    ("question.before_window_store", 0),
    ("question.after_window_store", 1),
]


@pytest.mark.parametrize(("failpoint", "side"), CRASHES)
async def test_a_crash_in_a_window_changes_nothing_and_draws_no_second_noise(
    tmp_path: Path, failpoint: str, side: int
) -> None:
    network, question = await standing(directory=tmp_path, noise=system_noise(), schedule=SLOW)
    await run_window(network, question, 0)
    await network.stop(side)
    await network.start(side, failpoint)
    await run_window(network, question, 1)
    drawn = [
        await network.core(p).context.store.read(read_step, window_at(question, 1).window_id, "commit")
        for p in range(2)
    ]
    await network.stop(side)
    await network.start(side)
    await run_window(network, question, 2)

    found = await records(network, question)

    assert list(found) == [0, 1, 2]
    assert found[2].chain == ChainLink(previous=found[1].digest, previous_index=1, missing=())
    again = [
        await network.core(p).context.store.read(read_step, window_at(question, 1).window_id, "commit")
        for p in range(2)
    ]
    assert drawn == again
    for position in range(2):
        assert len(await network.core(position).context.store.read(read_ledger)) == 3
    await network.stop_all()


@pytest.mark.parametrize("count", [2, 3])
async def test_noised_participants_are_everybody_with_every_aggregator_s_noise(count: int) -> None:
    network, question = await standing(count, participants=Participants.NOISED)
    await run_window(network, question, 0)

    [record] = (await records(network, question)).values()

    assert [cell.raw for cell in record.cells] == DIFFERENCE
    assert record.participants is not None
    assert record.participants.raw == len(COINS)
    assert record.participants.low <= len(COINS) <= record.participants.high


async def test_a_question_with_gaussian_noise_is_released_with_its_own_statement() -> None:
    release = Release(
        kind=ReleaseKind.GAUSSIAN, noise_epsilon=None, noise_variance=Fraction(20), level=Fraction(19, 20)
    )
    network, question = await standing(release=release, participants=Participants.NOISED)
    await run_window(network, question, 0)

    [record] = (await records(network, question)).values()

    assert record.participants is not None
    assert record.participants.raw == len(COINS)
    assert record.participants.high - record.participants.low > 8, "the interval is that of the noise: sd 6.3"
    assert {view.delta > 0 for view in record.statement if view.adversary == "public_and_broker"} == {True}


class CountedNoise:
    """A test's noise: 1, 2, 3 and so on, so that each number shows which draw it got."""

    def draw(self, law: NoiseLaw, count: int) -> list[int]:
        """Return the first `count` positive integers."""
        del law
        return list(range(1, count + 1))


async def test_noise_is_added_to_the_participants_too() -> None:
    network, question = await standing(noise=CountedNoise(), participants=Participants.NOISED)
    await run_window(network, question, 0)

    [record] = (await records(network, question)).values()

    # Each of the two aggregators adds a draw of its own, the last one to the number of participants.
    assert [cell.raw for cell in record.cells] == [one + 2 * draw for draw, one in enumerate(DIFFERENCE, start=1)]
    assert record.participants is not None
    assert record.participants.raw == len(COINS) + 2 * (len(DIFFERENCE) + 1)

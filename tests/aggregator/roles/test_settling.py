"""A signed release proves itself, silence is silence, and an abort is told until it is known: between aggregators."""

from dataclasses import replace
from typing import Any

import pytest
from fleetcount_aggregator.durable_steps import Step, taken
from fleetcount_aggregator.host.states import AbortReason
from fleetcount_aggregator.peers import PeerRefusalError, PeerUnreachableError
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.rows import read_ledger
from fleetcount_protocol.errors import PeerProblem
from fleetcount_protocol.ids import AggregatorId, WindowId
from fleetcount_protocol.messages import AbortWindow, FinishedRecord, ReleaseAnswer, WindowState
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import AheadClock, Network, answer_all
from tests.support.stores import StoreFolder, copied

ALPHA, BETA, GAMMA = AggregatorId("alpha"), AggregatorId("beta"), AggregatorId("gamma")
COINS = [(0, 1), (2, 2), (0, 3), (0, 4)]
GIVE_UP_S = 600


async def asked(count: int = 2) -> tuple[Network, Window]:
    """Return a network and a window of it that all devices have answered."""
    network = Network(count)
    await network.start_all()
    window = await network.ask(values=4)
    await answer_all(network, window, COINS)
    return network, window


async def released_with_copy(position: int, moment: str, count: int = 2) -> tuple[Network, Window, StoreFolder]:
    """Return a network whose window is released, and a copy of one store from the moment of a call."""
    network, window = await asked(count)
    copies: list[StoreFolder] = []

    def keep(_: str, __: str, name: str) -> None:
        if name == moment and not copies:
            copies.append(copied(network.seats[position].store_path))

    network.before = keep
    await network.run_to_the_end(window)
    network.before = lambda *_: None
    assert {state_at(network, window, place) for place in range(count)} == {WindowState.RELEASED}
    return network, window, copies[0]


async def restore(network: Network, position: int, old: StoreFolder) -> None:
    await network.stop(position)
    network.seats[position].give_store(old)
    await network.start(position)


async def answer_of(network: Network, window: Window, position: int) -> ReleaseAnswer:
    return await network.core(position).service.release(window.window_id)


def state_at(network: Network, window: Window, position: int) -> WindowState:
    return network.core(position).context.windows.states[window.window_id]


def cut_off(network: Network, *names: AggregatorId) -> None:
    """Let no call reach these aggregators, and none of theirs anybody."""

    def lose(caller: AggregatorId, other: AggregatorId, name: str) -> None:
        if caller in names or other in names:
            raise PeerUnreachableError(f"{name} is lost")

    network.before = lose


def saying(monkeypatch: pytest.MonkeyPatch, network: Network, position: int, answer: ReleaseAnswer) -> None:
    """Let an aggregator say this of every window's end."""

    async def outcome(*_: Any) -> ReleaseAnswer:
        return answer

    monkeypatch.setattr(network.core(position).helper, "outcome", outcome)


# A signed release proves itself.


@pytest.mark.parametrize("moment", ["propose_batch", "commit", "open_share", "deliver_record"])
@pytest.mark.parametrize("position", [0, 1])
async def test_an_old_copy_adopts_the_release_it_does_not_know(position: int, moment: str) -> None:
    network, window, old = await released_with_copy(position, moment)
    known = await answer_of(network, window, 1 - position)

    await restore(network, position, old)
    await network.look_after_all()

    context = network.core(position).context
    assert await answer_of(network, window, position) == known
    assert len(await context.store.read(read_ledger)) == 1
    with pytest.raises(StoreError):
        context.store.data_keys.of(window.window_id)
    assert await answer_of(network, window, 1 - position) == known


async def test_a_copy_from_before_the_windows_closed_adopts_too() -> None:
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4)
    old = copied(network.seats[1].store_path)
    await answer_all(network, window, COINS)
    await network.run_to_the_end(window)

    await restore(network, 1, old)
    await network.look_after_all()

    assert await answer_of(network, window, 1) == await answer_of(network, window, 0)
    assert len(await network.core(1).context.store.read(read_ledger)) == 1


async def test_a_helper_learns_the_outcome_from_another_helper() -> None:
    network, window, old = await released_with_copy(1, "commit", count=3)
    network.supervised = False
    await network.stop(0)

    await restore(network, 1, old)
    await network.look_after_all()

    assert await answer_of(network, window, 1) == await answer_of(network, window, 2)


async def test_what_was_given_up_is_released_when_the_record_is_seen() -> None:
    """The copy does not know that it signed, and nobody answers for hours: it gives up, and takes it back."""
    network, window, old = await released_with_copy(1, "commit")
    await restore(network, 1, old)
    cut_off(network, BETA)
    await network.look_after_all()
    network.clock.advance(2 * GIVE_UP_S)
    await network.look_after_all()
    assert (await answer_of(network, window, 1)).abort_reason == "leader_silent"

    network.before = lambda *_: None
    network.clock.advance(60)
    await network.look_after_all()

    assert await answer_of(network, window, 1) == await answer_of(network, window, 0)
    assert len(await network.core(1).context.store.read(read_ledger)) == 1


async def test_an_old_leader_that_gave_up_takes_it_back_and_hands_the_record_on() -> None:
    network, window, old = await released_with_copy(0, "propose_batch", count=3)
    known = await answer_of(network, window, 1)
    cut_off(network, ALPHA)
    await restore(network, 0, old)
    await network.look_after_all()
    assert (await answer_of(network, window, 0)).abort_reason == "peer_unreachable"

    network.before = lambda *_: None
    network.clock.advance(60)
    await network.look_after_all()
    await network.look_after_all()

    assert await answer_of(network, window, 0) == known
    assert await taken(network.core(0).context.store, window.window_id, Step.DELIVERED) is not None


async def test_nobody_adopts_without_every_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    network, window, old = await released_with_copy(1, "commit")
    known = await answer_of(network, window, 0)
    now = int(network.clock.now()) // 10 * 10
    second = await network.ask(
        values=4,
        name="later",
        round_one_opens=now + 10,
        round_one_closes=now + 20,
        round_two_closes=now + 30,
        expiry=now + 86_400,
    )
    await answer_all(network, second, COINS, offset=50)
    await network.run_to_the_end(second)
    foreign = await answer_of(network, second, 0)
    assert foreign.state is WindowState.RELEASED
    await restore(network, 1, old)
    forged = [
        replace(known, signatures=(known.signatures[0], known.signatures[0])),
        replace(known, signatures=known.signatures[:1]),
        replace(known, signatures=(*known.signatures, known.signatures[0])),
        replace(known, record=known.record[:-1] + bytes([known.record[-1] ^ 1])),
        replace(known, record=b"no record"),
        foreign,
    ]

    for answer in forged:
        saying(monkeypatch, network, 0, answer)
        await network.core(1).scheduler._settling.adopt_elsewhere(network.core(1).context.windows[window.window_id])
        finished = FinishedRecord(window_id=window.window_id, record=answer.record, signatures=answer.signatures)
        with pytest.raises(PeerRefusalError) as caught:
            await network.core(1).helper.deliver_record(ALPHA, finished)
        assert caught.value.problem is PeerProblem.DISAGREES

    assert state_at(network, window, 1) is WindowState.RELEASING
    assert not await network.core(1).context.store.read(read_ledger)


async def test_the_outcome_is_for_the_aggregators_of_the_window() -> None:
    network, window, _ = await released_with_copy(1, "commit")
    helper = network.core(1).helper

    assert (await helper.outcome(ALPHA, window.window_id)).state is WindowState.RELEASED
    for caller, window_id in ((GAMMA, window.window_id), (ALPHA, WindowId(bytes(32)))):
        with pytest.raises(PeerRefusalError) as caught:
            await helper.outcome(caller, window_id)
        assert caught.value.problem is PeerProblem.UNKNOWN_WINDOW


# Silent means silent.


async def test_a_helper_whose_clock_is_ahead_waits_for_a_leader_that_answers() -> None:
    network, window = await asked()
    context = network.core(1).context
    context.host.clock = AheadClock(network.clock, 10 * GIVE_UP_S)
    for _ in range(5):
        await network.look_after_all()
        network.clock.advance(1)
    assert state_at(network, window, 1) is WindowState.COLLECTING

    await network.run_to_the_end(window)

    assert (await answer_of(network, window, 1)).state is WindowState.RELEASED


@pytest.mark.parametrize("step", [GIVE_UP_S / 4, GIVE_UP_S])
async def test_a_long_verification_is_no_silence(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    """The leader says that it is at it, for hours: the helper waits until the window expires, and no longer."""
    network, window = await asked()
    saying(monkeypatch, network, 0, ReleaseAnswer(state=WindowState.AGREEING))
    await network.advance_to(window.round_two_closes)
    installed = network.core(1).context.windows[window.window_id]
    while network.clock.now() + step < window.expiry:
        await network.core(1).scheduler.look_after(installed)
        assert state_at(network, window, 1) is WindowState.COLLECTING
        network.clock.advance(step)

    await network.advance_to(window.expiry + GIVE_UP_S)
    await network.core(1).scheduler.look_after(installed)

    assert (await answer_of(network, window, 1)).abort_reason == "leader_slow"


async def test_a_call_about_the_window_is_a_sign_of_life() -> None:
    network, window = await asked()
    await network.advance_to(window.round_two_closes)
    cut_off(network, BETA)
    installed = network.core(1).context.windows[window.window_id]
    network.clock.advance(GIVE_UP_S)
    with pytest.raises(PeerRefusalError):
        async with network.core(1).helper.sealing(ALPHA, window.window_id):
            pass
    network.clock.advance(1.5 * GIVE_UP_S)
    await network.core(1).scheduler.look_after(installed)
    assert state_at(network, window, 1) is WindowState.COLLECTING

    network.clock.advance(GIVE_UP_S / 2)
    await network.core(1).scheduler.look_after(installed)

    assert (await answer_of(network, window, 1)).abort_reason == "leader_silent"


async def test_who_is_elected_waits_for_a_leader_as_long_as_who_has_started() -> None:
    """Until now the leader has talked to another process of this aggregator, which nothing in memory says."""
    network, window = await asked()
    context = network.core(1).context
    await network.advance_to(window.round_two_closes + 3 * GIVE_UP_S)
    cut_off(network, BETA)

    await context.windows.load(context.questions)
    await network.core(1).scheduler.look_after(context.windows[window.window_id])
    assert state_at(network, window, 1) is WindowState.COLLECTING

    network.clock.advance(2 * GIVE_UP_S)
    await network.core(1).scheduler.look_after(context.windows[window.window_id])
    assert (await answer_of(network, window, 1)).abort_reason == "leader_silent"


# An abort is told until it is known.


async def aborted_unheard(count: int = 2) -> tuple[Network, Window, list[str]]:
    """Return a network whose leader has aborted a window while beta was away, and the list of calls from now on."""
    network = Network(count)
    await network.start_all()
    window = await network.ask(values=4)
    await network.advance_to(window.round_two_closes)
    cut_off(network, BETA)
    await network.core(0).scheduler.look_after(network.core(0).context.windows[window.window_id])
    assert state_at(network, window, 0) is WindowState.ABORTED
    calls: list[str] = []
    network.before = lambda caller, other, name: calls.append(f"{caller} {name} {other}")
    return network, window, calls


@pytest.mark.parametrize("restarted", [False, True])
async def test_an_abort_is_told_again_until_every_helper_has_heard(restarted: bool) -> None:
    network, window, calls = await aborted_unheard(3)
    reason = (await answer_of(network, window, 0)).abort_reason
    if restarted:
        await network.stop(0)
        await network.start(0)
    network.clock.advance(60)
    await network.look_after_all()

    assert "alpha abort beta" in calls
    assert (await answer_of(network, window, 1)).abort_reason == reason
    calls.clear()
    for _ in range(5):
        network.clock.advance(60)
        await network.look_after_all()
    await network.stop(0)
    await network.start(0)
    await network.look_after_all()
    assert not [one for one in calls if " abort " in one]


async def test_telling_slows_down_and_ends_with_the_window() -> None:
    network, window, _ = await aborted_unheard()
    tries: list[float] = []

    def lost(*_: str) -> None:
        tries.append(network.clock.now())
        raise PeerUnreachableError("lost")

    network.before = lost
    leader = network.core(0)
    while network.clock.now() < window.round_two_closes + 3600:
        for one in leader.scheduler.pending():
            await leader.scheduler.look_after(one)
        network.clock.advance(1)
    assert 60 <= len(tries) <= 70

    await network.advance_to(window.expiry)
    for one in leader.scheduler.pending():
        await leader.scheduler.look_after(one)
    tries.clear()
    assert leader.scheduler.pending() == []
    assert tries == []


async def test_a_helper_that_came_back_empty_has_nothing_to_hear() -> None:
    network, window, _ = await aborted_unheard()
    await network.stop(1)
    network.seats[1].give_store()
    await network.start(1)
    network.clock.advance(60)
    await network.look_after_all()

    assert await taken(network.core(0).context.store, window.window_id, Step.SETTLED) is not None


async def test_a_helper_that_claims_a_release_and_shows_none_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    network, window, _ = await aborted_unheard()

    async def abort(*_: Any) -> WindowState:
        return WindowState.RELEASED

    monkeypatch.setattr(network.core(1).helper, "abort", abort)
    network.clock.advance(60)
    await network.look_after_all()

    assert state_at(network, window, 0) is WindowState.ABORTED


async def test_a_helper_that_gave_up_asks_until_the_leader_has_ended_the_window() -> None:
    network, window = await asked()
    await network.advance_to(window.round_two_closes)
    cut_off(network, BETA)
    network.clock.advance(2 * GIVE_UP_S)
    await network.core(1).scheduler.look_after(network.core(1).context.windows[window.window_id])
    assert (await answer_of(network, window, 1)).abort_reason == "leader_silent"
    network.before = lambda *_: None

    await network.core(0).leader._abort_everywhere(
        network.core(0).context.windows[window.window_id], AbortReason.PEER_UNREACHABLE
    )

    assert await taken(network.core(1).context.store, window.window_id, Step.SETTLED) is not None
    state = await network.core(1).helper.abort(ALPHA, AbortWindow(window_id=window.window_id, reason="again"))
    assert state is WindowState.ABORTED

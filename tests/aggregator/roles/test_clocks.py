"""Wall clocks that jump, and clocks of aggregators that differ: no window closes early, and nothing is aborted."""

from pathlib import Path

import pytest
from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.roles.probing import Timekeeping
from fleetcount_aggregator.storage.rows import read_latest_time
from fleetcount_aggregator.windows.question_install import UnconfirmedError
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.session import new_session
from fleetcount_protocol.clock import AnchoredClock
from fleetcount_protocol.errors import PeerProblem, RejectReason
from fleetcount_protocol.messages import BatchProposal, Receipt, SessionAccepted, SessionRefused, WindowState
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import START, Network, TestDevice, answer_all, device_identity
from tests.support.expiries import on_the_hour

COINS = [(0, 1), (2, 2), (0, 3), (0, 4)]


class Machine(AnchoredClock):
    """The clock of a machine whose wall clock can be set; time passes when it is told."""

    def __init__(self) -> None:
        self.passed_s, self.set_ahead_s = 0.0, 0.0
        super().__init__(wall=lambda: START + self.passed_s + self.set_ahead_s, passed=lambda: self.passed_s)

    def advance(self, seconds: float) -> None:
        """Let time pass until this clock has gone on by so much: a moment more while it follows the wall clock back."""
        until = self.now() + seconds
        while (left := until - self.now()) > 0:
            self.passed_s += left + 0.001


@pytest.mark.parametrize("jump", [600.0, -600.0, 86_400.0, -86_400.0])
async def test_a_jump_of_three_seconds_closes_nothing_and_aborts_nothing(jump: float) -> None:
    network = Network(2)
    machine = Machine()
    network.clock = machine  # type: ignore[assignment]  # `advance` is all that the network asks of a ManualClock.
    await network.start_all()
    window = await network.ask(values=4, round_one_closes=START + 40, round_two_closes=START + 70)
    for opens in (window.round_one_opens, window.round_one_closes):
        await network.advance_to(opens + 10)
        machine.set_ahead_s = jump
        for _ in range(3):
            machine.advance(1)
            await network.look_after_all()
            assert {network.core(one).context.windows.states[window.window_id] for one in range(2)} == {
                WindowState.COLLECTING
            }
        machine.set_ahead_s = 0.0
        machine.advance(1)
        if opens == window.round_one_opens:
            await answer_all(network, window, COINS)

    await network.run_to_the_end(window)

    answers = [await network.core(one).service.release(window.window_id) for one in range(2)]
    assert [answer.state for answer in answers] == [WindowState.RELEASED] * 2


async def with_leeway(leeway_s: float) -> tuple[Network, Window, list[TestDevice]]:
    """Return a network with leeway at window edges, and devices that have sent their first round in time."""
    limits = Limits(smallest_min_batch_size=2, give_up_s=600, first_retry_s=1, longest_retry_s=60, leeway_s=leeway_s)
    network = Network(2, limits=limits)
    await network.start_all()
    window = await network.ask(values=4)
    devices = [TestDevice(network, window, number) for number in range(3)]
    for device in devices:
        await device.open_sessions()
    return network, window, devices


@pytest.mark.parametrize(("late_s", "taken"), [(0.0, True), (0.45, True), (0.55, False), (4.0, False)])
async def test_a_device_whose_clock_is_late_is_counted_within_a_twentieth_of_the_window(
    late_s: float, taken: bool
) -> None:
    network, window, devices = await with_leeway(5.0)
    network.clock.advance(window.round_one_closes + late_s - network.clock.now())
    firsts = [await device.send(device.first(0)) for device in devices]
    network.clock.advance(window.round_two_closes + late_s - network.clock.now())
    seconds = [await device.send(device.second(0, number)) for number, device in enumerate(devices, start=1)]
    network.clock.advance(1)
    await network.look_after_all()

    assert {isinstance(one, Receipt) for answers in (*firsts, *seconds) for one in answers} == {taken}
    answer = await network.core(0).service.release(window.window_id)
    assert answer.state is (WindowState.RELEASED if taken else WindowState.ABORTED)


async def test_a_leader_waits_for_its_leeway_and_a_helper_for_its_own() -> None:
    network, window, _ = await with_leeway(0.25)
    network.clock.advance(window.round_two_closes + 0.2 - network.clock.now())
    proposal = BatchProposal(
        window_id=window.window_id, batch=0, report_ids=b"", share_digests=b"", verifier_shares=b""
    )
    await network.look_after_all()
    with pytest.raises(PeerRefusalError) as caught:
        await network.core(1).helper.propose_batch(network.seats[0].aggregator_id, proposal)

    assert caught.value.problem is PeerProblem.NOT_YET
    assert {network.core(one).context.windows.states[window.window_id] for one in range(2)} == {WindowState.COLLECTING}


HOUR, DAY = 3600.0, 86_400.0


async def restarted(network: Network, position: int, wrong_s: float) -> None:
    """Let an aggregator start with a clock that is wrong by so much, and ask its peers."""
    await network.stop(position)
    network.wrong_s[position] = wrong_s
    await network.start(position)
    await keep_time(network, position)


async def keep_time(network: Network, position: int) -> None:
    """Let an aggregator do what it does every second about its clock."""
    context = network.core(position).context
    await Timekeeping(context.host, context.store, context.peers).look()


@pytest.mark.parametrize("wrong_s", [HOUR, DAY, 400 * DAY, -HOUR, -DAY, -400 * DAY])
@pytest.mark.parametrize("position", [0, 1])
async def test_a_start_with_a_wrong_clock_ends_nothing_and_the_next_one_releases(
    tmp_path: Path, position: int, wrong_s: float
) -> None:
    limits = Limits(smallest_min_batch_size=2, give_up_s=600, keep_digests_s=60, first_retry_s=1, longest_retry_s=60)
    network = Network(2, directory=tmp_path, limits=limits)
    network.greets = True
    await network.start_all()
    window = await network.ask(values=4, round_one_closes=START + 40, round_two_closes=START + 70)
    await answer_all(network, window, COINS)
    for party in range(2):
        await keep_time(network, party)

    await restarted(network, position, wrong_s)
    core = network.core(position)
    assert "until its peers agree with the clock" in core.context.host.moments.complaint()
    for _ in range(15):
        network.clock.advance(1)
        await network.look_after_all()
        await core.retention.look()
        await keep_time(network, position)
    states = {network.core(one).context.windows.states[window.window_id] for one in range(2)}
    assert states <= {WindowState.ANNOUNCED, WindowState.COLLECTING}
    if position == 0:
        with pytest.raises(UnconfirmedError):
            await network.ask(signal="Another", name="another")
    await restarted(network, position, 0.0)
    assert core is not network.core(position)
    assert network.core(position).context.host.moments.complaint() == ""

    await network.run_to_the_end(window)

    answers = [await network.core(one).service.release(window.window_id) for one in range(2)]
    assert [answer.state for answer in answers] == [WindowState.RELEASED] * 2
    await network.stop_all()


async def test_an_operator_who_says_that_the_clock_is_right_waits_for_nobody(tmp_path: Path) -> None:
    network = Network(2, directory=tmp_path)
    network.greets = True
    await network.start_all()
    window = await network.ask(values=4)
    await keep_time(network, 0)
    await network.stop_all()
    network.clock.advance(10 * DAY)
    context = (await network.start(0)).context  # Its peer is gone for good.

    async def looked() -> WindowState:
        for _ in range(3):
            network.clock.advance(1)
            await network.look_after_all()
            await keep_time(network, 0)
        return context.windows.states[window.window_id]

    waiting = await looked()
    context.host.moments.begin(await context.store.read(read_latest_time), context.peers, is_right=True)

    assert (waiting, await looked()) == (WindowState.COLLECTING, WindowState.ABORTED)
    assert await context.store.read(read_latest_time) == int(network.clock.now()), "what is confirmed is remembered"
    await network.stop_all()


async def test_late_reports_and_certificates_are_not_refused_for_good_by_a_clock_that_may_be_wrong(
    tmp_path: Path,
) -> None:
    network = Network(2, directory=tmp_path)
    network.greets = True
    await network.start_all()
    window = await network.ask(values=4)
    for party in range(2):
        await keep_time(network, party)
    await network.advance_to(window.round_one_opens)
    device = TestDevice(network, window, 0)
    await device.open_sessions()
    first = device.first(0)

    await restarted(network, 1, DAY)
    answers = await device.send(first)
    assert all(isinstance(answer, Receipt) for answer in answers), answers
    await restarted(network, 1, 50 * 365 * DAY)  # No certificate is valid then.
    seat = network.seats[1]
    request, _ = new_session(
        seat.aggregator, seat.aggregator.hpke_keys[0], device_identity(1), on_the_hour(START, 14), SystemRandom()
    )
    [opened] = await network.core(1).service.open_sessions([request])
    again, _ = new_session(
        seat.aggregator, seat.aggregator.hpke_keys[0], device_identity(2), on_the_hour(START, 14), SystemRandom()
    )
    # What its store remembers is so old that the certificate was not made then.
    network.core(1).context.host.moments.begin(START - 20 * 365 * DAY, [network.seats[0].aggregator_id])
    [refused] = await network.core(1).service.open_sessions([again])

    assert isinstance(opened, SessionAccepted)
    assert isinstance(refused, SessionRefused)
    assert refused.reason is RejectReason.BUSY
    await network.stop_all()

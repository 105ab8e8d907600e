"""Wall clocks that jump, and clocks of aggregators that differ: no window closes early, and nothing is aborted."""

import pytest
from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_protocol.clock import AnchoredClock
from fleetcount_protocol.errors import PeerProblem
from fleetcount_protocol.messages import BatchProposal, Receipt, WindowState
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import START, Network, TestDevice, answer_all

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

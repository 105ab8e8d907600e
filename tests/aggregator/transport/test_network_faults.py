"""Lost requests, lost replies and silent parties: the same release later, or one public abort everywhere."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fleetcount_aggregator.peers import PeerUnreachableError
from fleetcount_aggregator.storage.log_format import FILE_HEADER_BYTES, HEAD_BYTES, FrameHead
from fleetcount_aggregator.storage.row_types import ReportVerdict
from fleetcount_aggregator.storage.rows import read_included, read_ledger, read_rejections
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.messages import WindowState
from fleetcount_protocol.release.record import decode_record
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import Network, TestDevice, answer_all

COINS = [(0, 1), (2, 2), (0, 3)]
DIFFERENCE = [1, 0, 1, 0]
STEPS = [
    "propose_batch",
    "finish_batch",
    "seal_set",
    "status",
    "commit",
    "open_share",
    "sign_record",
    "deliver_record",
]


class Losses:
    """Loses the first `count` requests, or replies, of one step."""

    def __init__(self, step: str, count: int) -> None:
        self._step = step
        self._left = count
        self.calls: Counter[str] = Counter()

    def __call__(self, caller: str, other: str, name: str) -> None:
        del caller, other
        self.calls[name] += 1
        if name == self._step and self._left:
            self._left -= 1
            raise PeerUnreachableError("lost")


async def ready(count: int = 2) -> tuple[Network, Window]:
    network = Network(count)
    await network.start_all()
    window = await network.ask(values=4)
    await answer_all(network, window, COINS)
    return network, window


async def states(network: Network, window: Window) -> list[tuple[WindowState, str]]:
    answers = [
        await network.core(p).service.release(window.window_id)
        for p in range(len(network.seats))
        if network.seats[p].core is not None
    ]
    return [(answer.state, answer.abort_reason) for answer in answers]


@pytest.mark.parametrize("lost", ["requests", "replies"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.nightly)])
async def test_a_lost_message_is_repeated_and_changes_nothing(count: int, step: str, lost: str) -> None:
    network, window = await ready(count)
    losses = Losses(step, 3)
    if lost == "requests":
        network.before = losses
    else:
        network.after = losses

    await network.run_to_the_end(window)

    answers = [await network.core(p).service.release(window.window_id) for p in range(count)]
    assert len({(one.record, one.signatures) for one in answers}) == 1
    assert [cell.raw for cell in decode_record(answers[0].record).cells] == DIFFERENCE
    assert losses.calls[step] > 3, "the step must really have been lost"


@pytest.mark.parametrize("step", STEPS[:-1])
async def test_a_peer_that_stays_silent_ends_in_a_public_abort(step: str) -> None:
    network, window = await ready()
    network.before = Losses(step, 10**9)

    await network.run_to_the_end(window)
    network.clock.advance(10 * network.limits.give_up_s)
    network.before = lambda *_: None
    await network.look_after_all()

    found = await states(network, window)
    assert found[0] == (WindowState.ABORTED, "peer_unreachable")
    assert found[1][0] is WindowState.ABORTED


async def test_a_record_nobody_can_compute_ends_in_a_public_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails the same way at every attempt: trying again would keep the window, and its shares, for ever."""
    network, window = await ready()

    def fail(*_: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr("fleetcount_aggregator.release.steps.record_bytes", fail)

    await network.run_to_the_end(window)

    assert await states(network, window) == [(WindowState.ABORTED, "out_of_range")] * 2


async def test_an_abandoned_batch_that_the_helper_accepted_still_ends_everywhere() -> None:
    """The scenario a well-known implementation keeps as a failing test: replies lost, the leader gives up."""
    network, window = await ready()
    network.after = Losses("finish_batch", 10**9)

    await network.run_to_the_end(window)

    assert await states(network, window) == [(WindowState.ABORTED, "peer_unreachable")] * 2
    assert [len(await network.core(p).context.store.read(read_ledger)) for p in range(2)] == [0, 0]


async def test_a_leader_that_never_comes_back_ends_in_a_public_abort_at_the_helper() -> None:
    network, window = await ready()
    await network.stop(0)
    await network.advance_to(window.round_two_closes)

    network.clock.advance(2 * network.limits.give_up_s - 1)
    await network.look_after_all()
    before = await states(network, window)
    network.clock.advance(1)
    await network.look_after_all()

    assert before == [(WindowState.COLLECTING, "")]
    assert await states(network, window) == [(WindowState.ABORTED, "leader_silent")]


async def test_a_leader_that_comes_back_too_late_aborts_with_the_helper() -> None:
    network, window = await ready()
    await network.stop(0)
    await network.advance_to(window.round_two_closes + int(2 * network.limits.give_up_s))
    await network.look_after_all()

    await network.start(0)
    await network.look_after_all()

    assert await states(network, window) == [
        (WindowState.ABORTED, "peer_aborted"),
        (WindowState.ABORTED, "leader_silent"),
    ]


async def test_a_helper_that_has_signed_waits_for_the_outcome_until_the_window_expires() -> None:
    network, window = await ready()
    network.before = Losses("deliver_record", 10**9)
    await network.advance_to(window.round_two_closes)
    network.supervised = False
    await network.stop(0)
    await network.start(0, "leader.before_release")
    await network.look_after_all()

    network.clock.advance(3 * network.limits.give_up_s)
    await network.look_after_all()
    waiting = await states(network, window)
    await network.advance_to(window.expiry)
    await network.look_after_all()

    assert waiting == [(WindowState.RELEASING, "")]
    assert await states(network, window) == [(WindowState.ABORTED, "outcome_unknown")]
    await network.stop_all()


async def test_a_record_that_could_not_be_delivered_is_delivered_later() -> None:
    network, window = await ready()
    await network.stop(1)
    await network.start(1, "helper.before_deliver_store")
    network.supervised = False
    await network.advance_to(window.round_two_closes)
    await network.look_after_all()

    await network.start_crashed()
    await network.stop(0)
    await network.start(0)
    await network.look_after_all()

    assert await states(network, window) == [(WindowState.RELEASED, "")] * 2
    await network.stop_all()


async def test_too_few_reports_are_a_public_abort_and_no_noise_is_drawn() -> None:
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4, min_batch_size=4)
    await answer_all(network, window, COINS)

    await network.run_to_the_end(window)

    assert await states(network, window) == [(WindowState.ABORTED, "too_few_reports")] * 2
    assert [len(await network.core(p).context.store.read(read_ledger)) for p in range(2)] == [0, 0]


async def test_no_reports_at_all_are_too_few() -> None:
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4)

    await network.run_to_the_end(window)

    assert await states(network, window) == [(WindowState.ABORTED, "too_few_reports")] * 2


async def test_a_window_is_installed_late_at_a_helper_that_was_down() -> None:
    network = Network(2)
    await network.start_all()
    await network.stop(1)
    network.crashed.append(1)

    window = await network.ask(values=4)
    await network.start_crashed()
    network.clock.advance(5)
    for _ in range(2):
        await network.look_after_all()
    await answer_all(network, window, COINS)
    await network.run_to_the_end(window)

    assert await states(network, window) == [(WindowState.RELEASED, "")] * 2


async def test_a_report_that_one_aggregator_does_not_accept_is_out_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    network, window = await ready(3)
    helper = network.core(2).helper
    honest = helper._batches._judge

    def without_the_first(*arguments: Any) -> bytes:
        return bytes((ReportVerdict.DROPPED,)) + honest(*arguments)[1:]

    monkeypatch.setattr(helper._batches, "_judge", without_the_first)
    sets: list[bytes | None] = []

    async def look(position: int) -> None:
        sets.append(await network.core(position).context.store.read(read_included, window.window_id))

    for position in range(3):
        purge = network.core(position).context.store.purge

        async def looking(window_id: WindowId, position: int = position, purge: Any = purge) -> None:
            await look(position)
            await purge(window_id)

        monkeypatch.setattr(network.core(position).context.store, "purge", looking)

    await network.run_to_the_end(window)

    assert await states(network, window) == [(WindowState.RELEASED, "")] * 3
    assert [None if one is None else one.count(1) for one in sets] == [2, 2, 2]


@pytest.mark.parametrize("side", [0, 1])
async def test_a_part_that_is_damaged_in_a_store_puts_its_report_out_and_no_other(tmp_path: Path, side: int) -> None:
    """Bits rot while the log waits: the report is out everywhere, counted by name where it lay."""
    network = Network(2, directory=tmp_path)
    await network.start_all()
    window = await network.ask(values=4)
    await answer_all(network, window, COINS)
    log_key = network.core(side).context.store.data_keys.of(window.window_id).log_key
    await network.stop(side)
    name = network.seats[side].aggregator_id
    [log] = tmp_path.glob(f"{name}.*.log")
    data = bytearray(log.read_bytes())
    first = FrameHead.decode(bytes(data[FILE_HEADER_BYTES : FILE_HEADER_BYTES + HEAD_BYTES]), log_key)
    assert first is not None
    data[FILE_HEADER_BYTES + first.block_at(0)] ^= 1
    log.write_bytes(data)
    await network.start(side)

    await network.run_to_the_end(window)

    assert await states(network, window) == [(WindowState.RELEASED, "")] * 2
    answer = await network.core(0).service.release(window.window_id)
    assert [cell.raw for cell in decode_record(answer.record).cells] == [0, 0, 1, 0], "all but the first device"
    counts = [
        await network.core(position).context.store.read(read_rejections, window.window_id) for position in range(2)
    ]
    expected = {RejectReason.MALFORMED: 1}
    assert counts[side] == expected
    assert sum(counts[1 - side].values()) == 1
    await network.stop_all()


@pytest.mark.parametrize("size", [1, 512])
async def test_a_batch_the_helper_has_nothing_of_is_out_and_the_others_count(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("fleetcount_aggregator.agreement.leader_batches.batch_size", lambda _: size)
    network = Network(2)
    await network.start_all()
    window = await network.ask(values=4)
    device = TestDevice(network, window, 50)
    await network.advance_to(window.round_one_opens)
    await device.open_sessions()
    await device.send(device.first(0), to=[0])
    await answer_all(network, window, COINS)
    await device.send(device.second(0, 4), to=[0])

    await network.run_to_the_end(window)

    assert await states(network, window) == [(WindowState.RELEASED, "")] * 2
    answer = await network.core(0).service.release(window.window_id)
    assert [cell.raw for cell in decode_record(answer.record).cells] == DIFFERENCE
    counts = [
        await network.core(position).context.store.read(read_rejections, window.window_id) for position in range(2)
    ]
    assert counts == [{RejectReason.MISSING_AT_PEER: 1}, {}]

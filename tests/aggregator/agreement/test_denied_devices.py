"""Reports of devices on the deny list fall out of the set, whenever the list comes, and everybody counts why."""

from pathlib import Path

import pytest
from fleetcount_aggregator.storage.rows import read_rejections
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.messages import Receipt, WindowState
from fleetcount_protocol.release.record import decode_record
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import Network, TestDevice, answer_all
from tests.support.denials import denials_of

COINS = [(0, 1), (2, 2), (0, 3)]
HONEST = [1, 0, 1, 0]
REVOKED = 100


async def collected(directory: Path) -> tuple[Network, Window]:
    """Return aggregators with the reports of three devices and of one that is to be revoked, all with receipts."""
    network = Network(2, directory=directory)
    await network.start_all()
    window = await network.ask(values=4)
    await network.advance_to(window.round_one_opens)
    device = TestDevice(network, window, REVOKED)
    await device.open_sessions()
    answers = await device.send(device.first(0))
    await answer_all(network, window, COINS)
    answers += await device.send(device.second(0, 4))
    assert all(isinstance(answer, Receipt) for answer in answers), answers
    return network, window


async def counted(network: Network, window: Window) -> tuple[list[int], list[int]]:
    """Run the window to its end; return the result, and what each aggregator counts for a certificate."""
    await network.run_to_the_end(window)
    assert network.core(0).context.windows.states[window.window_id] is WindowState.RELEASED
    record = decode_record((await network.core(0).service.release(window.window_id)).record)
    refused = [await network.core(seat).context.store.read(read_rejections, window.window_id) for seat in range(2)]
    return [cell.raw for cell in record.cells], [one.get(RejectReason.BAD_CERTIFICATE, 0) for one in refused]


async def test_without_a_deny_list_the_device_counts(tmp_path: Path) -> None:
    network, window = await collected(tmp_path)

    assert await counted(network, window) == ([1, 0, 1, 1], [0, 0])
    await network.stop_all()


@pytest.mark.parametrize("who", [(0,), (1,), (0, 1)], ids=["leader", "helper", "both"])
async def test_a_device_revoked_after_its_receipts_is_not_in_the_set(tmp_path: Path, who: tuple[int, ...]) -> None:
    network, window = await collected(tmp_path)
    for seat in who:
        network.core(seat).context.host.denials = denials_of(tmp_path / "deny-list", REVOKED)

    result, reasons = await counted(network, window)

    assert result == HONEST
    assert all(reasons[seat] == 1 for seat in who)
    await network.stop_all()


@pytest.mark.parametrize(
    ("seat", "call", "after"), [(0, "propose_batch", True), (1, "finish_batch", False), (0, "finish_batch", True)]
)
async def test_a_list_that_comes_between_the_steps_still_counts(
    tmp_path: Path, seat: int, call: str, after: bool
) -> None:
    network, window = await collected(tmp_path)
    seen: list[str] = []

    def revoke(_: AggregatorId, __: AggregatorId, name: str) -> None:
        if name == call:
            seen.append(name)
            network.core(seat).context.host.denials = denials_of(tmp_path / "deny-list", REVOKED)

    setattr(network, "after" if after else "before", revoke)

    result, reasons = await counted(network, window)

    assert seen
    assert result == HONEST
    assert reasons[seat] == 1
    await network.stop_all()


async def test_a_sealed_set_stays_what_it_is_whoever_is_revoked_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, window = await collected(tmp_path)
    begin = network.start

    async def begin_with_list(position: int, failpoint: str = "") -> object:
        core = await begin(position, failpoint)
        core.context.host.denials = denials_of(tmp_path / "deny-list", REVOKED)
        return core

    await network.stop(0)
    await network.start(0, "leader.after_seal")
    monkeypatch.setattr(network, "start", begin_with_list)

    result, _ = await counted(network, window)

    assert network.core(0).context.host.denials.keys
    assert result == [1, 0, 1, 1]
    await network.stop_all()

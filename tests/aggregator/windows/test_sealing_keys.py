"""The life of sealing keys at a running aggregator: nothing opens what was sealed to a deleted one."""

from dataclasses import replace
from pathlib import Path

import pytest
from fleetcount_aggregator.host.key_rotation import Rotation, add_key
from fleetcount_aggregator.host.keys import KeyRing
from fleetcount_aggregator.windows.sealing_keys import SealingKeys
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.session import new_session
from fleetcount_protocol.errors import QuestionError, RejectReason
from fleetcount_protocol.messages import SessionAccepted, SessionRefused, SessionRequest, WindowState
from fleetcount_protocol.window.fields import HpkeKey

from tests.support.aggregators import START, Network, answer_all, device_identity
from tests.support.expiries import on_the_hour

STEP = 1_000
ROTATION = Rotation(every_s=10 * STEP, overlap_s=STEP)


async def rotating(directory: Path, *, store: bool = False) -> tuple[Network, SealingKeys]:
    """Start aggregators of which the first has its key in a directory and rotates it."""
    keys = directory / "keys"
    keys.mkdir()
    add_key(keys, 1, post_quantum=False)
    network = Network(2, directory=directory if store else None)
    ring = KeyRing.load(keys)
    network.seats[0].keys = ring
    listed = (HpkeKey(key_id=1, public_key=ring.listed()[0][1]),)
    network.seats[0].aggregator = replace(network.seats[0].aggregator, hpke_keys=listed)
    await network.start_all()
    return network, SealingKeys(network.core(0).context.host, ROTATION)


def request(network: Network, key_id: int, expiry: int, device: int = 1) -> SessionRequest:
    seat = network.seats[0]
    listed = {one: public for one, public, _ in seat.keys.listed()}
    key = HpkeKey(key_id=key_id, public_key=listed[key_id])
    return new_session(seat.aggregator, key, device_identity(device), on_the_hour(expiry), SystemRandom())[0]


async def opened(network: Network, one: SessionRequest) -> SessionAccepted | RejectReason:
    [answer] = await network.core(0).service.open_sessions([one])
    return answer.reason if isinstance(answer, SessionRefused) else answer


async def test_keys_are_announced_active_retired_and_deleted_without_a_restart(tmp_path: Path) -> None:
    network, keys = await rotating(tmp_path)
    context = network.core(0).context
    lives: dict[int, list[int]] = {}
    for step in range(60):
        await keys.look()
        for key_id in context.host.keys.key_ids:
            lives.setdefault(key_id, []).append(step)
        newest = context.questions.key_lists.own().key_list.keys[-1]
        assert len(context.questions.key_lists.own().key_list.keys) <= 2
        assert newest.not_after > context.host.now() + STEP
        assert {path.stem for path in (tmp_path / "keys").glob("*.key")} == {
            str(one) for one in context.host.keys.key_ids
        }
        network.clock.advance(STEP)

    assert [one[0] for one in lives.values()] == [0, 9, 19, 29, 39, 49, 59]
    assert [one[-1] for one in lives.values()][:5] == [11, 21, 31, 41, 51]


async def test_a_deleted_key_is_nowhere_and_opens_nothing(tmp_path: Path) -> None:
    network, keys = await rotating(tmp_path)
    context = network.core(0).context
    await keys.look()
    window = await network.ask(values=2)
    sealed = request(network, 1, START + 40 * STEP)
    await answer_all(network, window, [(0, 1), (2, 2)])
    await network.run_to_the_end(window)
    await network.advance_to(START + 12 * STEP)
    for _ in range(2):
        await keys.look()

    assert (await network.core(0).service.release(window.window_id)).state is WindowState.RELEASED
    assert 1 not in [one.key.key_id for one in context.questions.key_lists.own().key_list.keys], (
        "devices are not told of it"
    )
    assert not (tmp_path / "keys" / "1.key").exists()
    assert context.host.keys.public_key(1) is None, "not in memory either"
    assert 1 not in context.host.keys.pairs(1)
    assert await opened(network, sealed) is RejectReason.UNKNOWN_KEY


async def test_a_session_goes_on_without_the_key_that_it_was_sealed_to(tmp_path: Path) -> None:
    network, keys = await rotating(tmp_path, store=True)
    await keys.look()
    one = request(network, 1, START + 30 * STEP)
    assert isinstance(await opened(network, one), SessionAccepted)
    await network.advance_to(START + 12 * STEP)
    for _ in range(2):
        await keys.look()
    assert 1 not in network.core(0).context.host.keys.key_ids

    await network.stop(0)
    await network.start(0)
    [found] = await network.core(0).service._intake._sessions.find([one.session_id])

    assert found is not None, "taken from the store without the key"
    await network.stop_all()


async def test_a_retired_key_opens_no_new_session(tmp_path: Path) -> None:
    network, keys = await rotating(tmp_path)
    await keys.look()
    before = request(network, 1, START + 15 * STEP)
    assert isinstance(await opened(network, before), SessionAccepted)
    await network.advance_to(START + 12 * STEP)
    await keys.look()

    later = request(network, 1, START + 40 * STEP, device=2)

    assert await opened(network, later) is RejectReason.UNKNOWN_KEY
    assert isinstance(await opened(network, before), SessionAccepted), "the one that is open goes on"


async def test_a_disk_that_fails_between_list_and_key_leaves_no_key_without_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, keys = await rotating(tmp_path)
    context = network.core(0).context
    await keys.look()
    await network.advance_to(START + 9 * STEP)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fleetcount_aggregator.windows.sealing_keys.add_key", full)
    with pytest.raises(OSError, match="No space left"):
        await keys.look()
    monkeypatch.undo()
    assert context.host.keys.key_ids == {1}
    await keys.look()

    assert [key_id for key_id, _, validity in context.host.keys.listed() if validity.not_after < START + 30 * STEP] == [
        1,
        2,
    ]


async def test_without_a_rotation_nothing_is_made_or_deleted(tmp_path: Path) -> None:
    network, _ = await rotating(tmp_path)
    network.clock.advance(1000 * STEP)

    await SealingKeys(network.core(0).context.host, None).look()

    assert [path.name for path in (tmp_path / "keys").iterdir()] == ["1.key"]


async def test_a_question_that_no_key_outlasts_is_refused_by_name(tmp_path: Path) -> None:
    """F46: what is sealed to a key is opened until its window closes: none is asked that outlasts every key."""
    network, keys = await rotating(tmp_path)
    await keys.look()
    opens = START + STEP
    closes = opens + 35 * STEP

    with pytest.raises(QuestionError, match="alpha lists no sealing key valid for the window from 1800001000 until"):
        await network.ask(
            values=2, round_one_opens=opens, round_one_closes=closes, round_two_closes=closes + 10, expiry=closes + STEP
        )


async def test_a_clock_that_is_not_confirmed_makes_and_deletes_no_key(tmp_path: Path) -> None:
    network, keys = await rotating(tmp_path)
    context = network.core(0).context
    await keys.look()
    before = {path.name: path.read_bytes() for path in (tmp_path / "keys").iterdir()}
    network.clock.advance(400 * 86_400)
    context.host.moments.begin(START, context.peers)  # It starts again, 400 days later by its clock.

    for _ in range(3):
        await keys.look()
    kept = {path.name: path.read_bytes() for path in (tmp_path / "keys").iterdir()}
    context.host.moments.begin(START, context.peers, is_right=True)
    for _ in range(3):
        await keys.look()

    assert kept == before
    assert {path.name for path in (tmp_path / "keys").glob("*.key")} != {one for one in before if one.endswith(".key")}

"""Once a window has ended, nothing an aggregator still has opens what was recorded on the way: disk, keys, all of
it.
"""

import hmac
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from fleetcount_aggregator.durable_steps import move
from fleetcount_aggregator.host.states import AbortReason
from fleetcount_aggregator.storage.session_rows import put_chains, read_chains
from fleetcount_protocol.channel.chain import KeyChain, WindowKey
from fleetcount_protocol.channel.session import accept_session, unseal_instalment
from fleetcount_protocol.errors import RejectReason, SealError
from fleetcount_protocol.ids import SessionId
from fleetcount_protocol.limits import MAX_KEYS_AHEAD
from fleetcount_protocol.messages import Instalment, Receipt, Refusal, WindowState
from fleetcount_protocol.window.window import Window

from tests.attack.suite import FIGURE
from tests.support.aggregators import Network, SimulatedCrashError, TestDevice, device_authority

_SEALED_BYTES = 12 + 32 + 36 + 16
"""Nonce, receipt key, a chain of one key and the tag."""


class Listener:
    """Devices whose messages to the first aggregator are recorded."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.recorded: list[tuple[int, Instalment]] = []

    async def answer(self, window: Window, count: int = 2) -> list[TestDevice]:
        """Let devices answer both rounds of a window; return them."""
        devices = [TestDevice(self.network, window, number) for number in range(count)]
        await self.network.advance_to(window.round_one_opens)
        for device in devices:
            await device.open_sessions()
            await self.send(device, device.first(1))
        await self.network.advance_to(window.round_one_closes)
        for device in devices:
            await self.send(device, device.second(1, 1))
        return devices

    async def send(self, device: TestDevice, parts: Sequence[Instalment]) -> None:
        self.recorded.append((0, parts[0]))
        assert all(isinstance(answer, Receipt) for answer in await device.send(parts))


def keys_on_disk(network: Network, directory: Path, sessions: set[SessionId]) -> list[tuple[SessionId, KeyChain]]:
    """Return every chain that lies anywhere in the files of the first aggregator, for who has its at-rest key.

    Every place of every file is tried, also what no table refers to any more: chains alone, and with a key kept beside.
    """
    core = network.core(0)
    found: list[tuple[SessionId, KeyChain]] = []
    content = b"\n".join(path.read_bytes() for path in directory.glob("alpha.db*") if not path.name.endswith(".lock"))
    # A sealed chain begins with twelve random bytes: most of a small database is zeros.
    places = [at for at in range(len(content) - _SEALED_BYTES) if b"\0\0" not in content[at : at + 12]]
    for key in core.context.store.data_keys.chain_keys:
        for session_id in sessions:
            cipher = AESGCM(hmac.digest(key, session_id, "sha256"))
            for size in (_SEALED_BYTES, _SEALED_BYTES + 36):
                for at in places:
                    with suppress(InvalidTag):
                        opened = cipher.decrypt(content[at : at + 12], content[at + 12 : at + size], None)
                        found.append((session_id, KeyChain.decode(opened[32:])))
    return found


def opened(network: Network, directory: Path, listener: Listener) -> int:
    """Return how many recorded messages a thief of disk, at-rest key, signing key and sealing keys opens."""
    messages = [instalment for _, instalment in listener.recorded]
    chains = keys_on_disk(network, directory, {one.session_id for one in messages})
    return sum(
        any(opens(chain, position, one) for session_id, chain in chains if session_id == one.session_id)
        for position, one in listener.recorded
    )


def opens(chain: KeyChain, position: int, instalment: Instalment) -> bool:
    key = chain.window_key(instalment.key_number)
    if key is None:
        return False
    window_key = WindowKey(session_id=instalment.session_id, number=instalment.key_number, key=key)
    with suppress(SealError):
        unseal_instalment(window_key, position, instalment)
        return True
    return False


async def asked(directory: Path) -> tuple[Network, Window, Listener]:
    network = Network(2, directory=directory)
    await network.start_all()
    return network, await network.ask(values=4), Listener(network)


async def test_disk_keys_and_a_recording_open_nothing_of_an_ended_window(
    tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    network, window, listener = await asked(tmp_path)
    devices = await listener.answer(window)
    before = opened(network, tmp_path, listener)

    await network.run_to_the_end(window)

    assert before == len(listener.recorded) == 4, "the thief's search finds what is there"
    assert opened(network, tmp_path, listener) == 0
    # The request opens no session a second time, whoever has the sealing key.
    pairs = network.seats[0].keys.pairs(1)
    alpha = network.seats[0].aggregator_id
    for device in devices:
        request = device.requests[0]
        _, secret, _ = accept_session(request, pairs, alpha, (device_authority().certificate,), network.clock.now())
        chain = KeyChain(number=1, key=secret.secret)
        assert not any(opens(chain, at, one) for at, one in listener.recorded if one.session_id == request.session_id)
    await network.stop_all()
    record_property(FIGURE, f"an aggregator's disk: 0 of {len(listener.recorded)} messages")


async def test_keys_that_are_damaged_keep_no_window_from_its_end_and_are_erased_too(tmp_path: Path) -> None:
    network, window, listener = await asked(tmp_path)
    devices = await listener.answer(window)
    context = network.core(0).context
    ids = [device.secrets[0].session_id for device in devices]
    before = dict(await context.store.read(read_chains, ids))
    await context.store.write(put_chains, [(ids[0], before[ids[0]][:-1] + bytes((before[ids[0]][-1] ^ 1,)))])

    await network.run_to_the_end(window)

    assert window.window_id not in context.store.unpurged
    after = dict(await context.store.read(read_chains, ids))
    assert after[ids[0]] == b"", "whose tag alone was wrong would still show the keys to who has the store's"
    assert ids[0] not in context.windows.sessions.live
    assert opened(network, tmp_path, listener) == 0
    await network.stop_all()


@pytest.mark.parametrize("step", ["write", "purge"])
async def test_a_crash_while_keys_are_erased_is_made_good_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """After the first of several slices, or with all keys erased and their rows still in the write-ahead log."""
    network, window, listener = await asked(tmp_path)
    await listener.answer(window)
    context = network.core(0).context
    await move(context.windows, window.window_id, WindowState.ABORTED, reason=AbortReason.DAMAGED.value)
    monkeypatch.setattr("fleetcount_aggregator.storage.store.USES_AT_ONCE", 1)
    write = getattr(context.store, step)

    async def cut_off(*arguments: object) -> None:
        if step == "write":
            await write(*arguments)
        raise SimulatedCrashError(step)

    monkeypatch.setattr(context.store, step, cut_off)
    with pytest.raises(SimulatedCrashError):
        await context.windows.purge(window.window_id)
    left = opened(network, tmp_path, listener)
    await network.stop(0)

    await network.start(0)

    assert left == 4, "what was overwritten is in the write-ahead log, or not overwritten yet"
    assert opened(network, tmp_path, listener) == 0
    assert not list(tmp_path.glob("alpha.*.log"))
    await network.stop_all()


async def test_windows_may_end_in_any_order_and_an_open_one_goes_on(tmp_path: Path) -> None:
    network, late, listener = await asked(tmp_path)
    early = await network.ask(values=4, name="the other one")
    device = TestDevice(network, late, 0)
    other = TestDevice(network, early, 0)
    await network.advance_to(early.round_one_opens)
    await device.open_sessions()
    # The second window that the device answers under these sessions takes the next key, and ends first.
    other.secrets = [secret.moved_on() for secret in device.secrets]
    other.requests = device.requests
    await listener.send(other, other.first(1))
    context = network.core(0).context
    await move(context.windows, early.window_id, WindowState.ABORTED, reason=AbortReason.DAMAGED.value)
    await context.windows.purge(early.window_id)
    assert opened(network, tmp_path, listener) == 0
    await network.stop(0)
    await network.start(0)

    await listener.send(device, device.first(1))

    assert opened(network, tmp_path, listener) == 1
    await network.stop_all()


async def test_erased_numbers_and_those_too_far_ahead_are_refused_and_stored_bytes_still_get_their_receipt(
    tmp_path: Path,
) -> None:
    network, window, listener = await asked(tmp_path)
    [device, _] = await listener.answer(window)
    context = network.core(0).context
    session_id = bytes(device.requests[0].session_id)
    context.windows.sessions.live[session_id] = context.windows.sessions.live[session_id].with_chain(
        context.windows.sessions.live[session_id].chain.without([1])
    )

    second = device.second(1, 1)
    [erased, _] = await device.send(second)
    far = device.secrets[0]
    for _ in range(MAX_KEYS_AHEAD + 2):
        far = far.moved_on()
    device.secrets[0] = far
    [too_far, _] = await device.send(device.second(1, 1))
    await network.run_to_the_end(window)
    [late, _] = await device.send(second)

    assert [answer.reason for answer in (erased, too_far) if isinstance(answer, Refusal)] == [
        RejectReason.UNKNOWN_SESSION
    ] * 2
    assert isinstance(late, Receipt)
    await network.stop_all()

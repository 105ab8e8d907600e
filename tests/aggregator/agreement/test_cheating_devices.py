"""Cheating devices: each refused by name and counted, and the honest result is as if they had never been there."""

from collections.abc import Awaitable, Callable, Sequence

import pytest
from fleetcount_aggregator.storage.rows import read_rejections
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import new_report_id
from fleetcount_protocol.messages import Receipt, Refusal
from fleetcount_protocol.release.record import decode_record
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import Network, TestDevice, answer_all, device_digest

COINS = [(0, 1), (2, 2), (0, 3)]
DIFFERENCE = [1, 0, 1, 0]
LENGTH = 5
"""V + 1 with four values."""


def unit(*hot: int, value: int = 1) -> list[int]:
    return [value if position in hot else 0 for position in range(LENGTH)]


BAD_PAIRS: dict[str, tuple[Sequence[int], Sequence[int]]] = {
    "two-hot in round two": (unit(0), unit(1, 2)),
    "two-hot in both rounds": (unit(1, 2), unit(1, 2)),
    "all zero": ([0] * LENGTH, [0] * LENGTH),
    "negative": (unit(0), [2, -1, 0, 0, 0]),
    "half and half": (unit(0), [0, (2**64 - 2**32 + 2) // 2, (2**64 - 2**32 + 2) // 2, 0, 0]),
    "a huge count": (unit(0), unit(1, value=1000)),
    "a move from one cell to another": (unit(1), unit(2)),
    "a move back to none": (unit(3), unit(0)),
    "two-hot that cancels in the difference": (unit(1, 4), unit(1, 4)),
}


async def honest_network(count: int = 2) -> tuple[Network, Window]:
    network = Network(count)
    await network.start_all()
    return network, await network.ask(values=LENGTH - 1)


async def check(network: Network, window: Window, expected: dict[RejectReason, int]) -> None:
    """The result is the honest one, and every aggregator counted the cheat under its name."""
    await network.run_to_the_end(window)
    answer = await network.core(0).service.release(window.window_id)
    assert [cell.raw for cell in decode_record(answer.record).cells] == DIFFERENCE
    for position in range(len(network.seats)):
        assert await network.core(position).context.store.read(read_rejections, window.window_id) == expected


async def send_pair(network: Network, window: Window, cheat: TestDevice, parts: Sequence[bytes], public: bytes) -> None:
    """Send a complete report of joined input shares in the two instalments of an honest one."""
    leader_split = 8 * LENGTH
    splits = [leader_split if position == 0 else 32 for position in range(len(parts))]
    first = [part[:split] for part, split in zip(parts, splits, strict=True)]
    second = [part[split:] for part, split in zip(parts, splits, strict=True)]
    await network.advance_to(window.round_one_opens)
    await cheat.open_sessions()
    await cheat.send(cheat.seal(1, b"", first))
    await answer_all(network, window, COINS)
    answers = await cheat.send(cheat.seal(2, public, second))
    assert all(isinstance(answer, Receipt) for answer in answers), answers


@pytest.mark.parametrize("name", BAD_PAIRS)
async def test_an_invalid_pair_fails_its_proof(name: str) -> None:
    network, window = await honest_network()
    cheat = TestDevice(network, window, 100)
    one, two = BAD_PAIRS[name]
    public, parts = cheat.raw([*one, *two])

    await send_pair(network, window, cheat, parts, public)

    await check(network, window, {RejectReason.INVALID_PROOF: 1})


async def test_three_aggregators_agree_that_a_proof_does_not_hold() -> None:
    network, window = await honest_network(3)
    cheat = TestDevice(network, window, 100)
    public, parts = cheat.raw([*unit(0), *unit(1, 2)])

    await send_pair(network, window, cheat, parts, public)

    await network.run_to_the_end(window)
    counts = [
        await network.core(position).context.store.read(read_rejections, window.window_id) for position in range(3)
    ]
    assert counts[0] == {RejectReason.INVALID_PROOF: 1}
    assert [sum(one.values()) for one in counts] == [1, 1, 1]


async def test_the_proof_of_another_report_does_not_hold() -> None:
    network, window = await honest_network()
    cheat, other = TestDevice(network, window, 100), TestDevice(network, window, 101)
    public, parts = cheat.raw([*unit(0), *unit(1, 2)])
    _, borrowed = other.raw([*unit(0), *unit(2)])
    measurement = 16 * LENGTH

    await send_pair(network, window, cheat, [parts[0][:measurement] + borrowed[0][measurement:], *parts[1:]], public)

    await check(network, window, {RejectReason.INVALID_PROOF: 1})


async def test_different_public_shares_put_the_report_out_everywhere() -> None:
    network, window = await honest_network()
    cheat = TestDevice(network, window, 100)
    await network.advance_to(window.round_one_opens)
    await cheat.open_sessions()
    await cheat.send(cheat.first(0))
    await answer_all(network, window, COINS)
    public, parts = cheat.raw([*unit(0), *unit(1)])
    tampered = public[:-1] + bytes([public[-1] ^ 1])
    split = [parts[0][8 * LENGTH :], parts[1][32:]]
    await cheat.send([cheat.seal(2, public, split)[0], cheat.seal(2, tampered, split)[1]])

    await check(network, window, {RejectReason.MISSING_AT_PEER: 1})


async def test_elements_beyond_the_field_are_malformed() -> None:
    network, window = await honest_network()
    cheat = TestDevice(network, window, 100)
    public, parts = cheat.raw([*unit(0), *unit(1)])

    await send_pair(network, window, cheat, [b"\xff" * 8 + parts[0][8:], *parts[1:]], public)

    await network.run_to_the_end(window)
    assert await network.core(0).context.store.read(read_rejections, window.window_id) == {RejectReason.MALFORMED: 1}


Cheat = Callable[[TestDevice], Awaitable[list[Receipt | Refusal]]]


async def wrong_length(cheat: TestDevice) -> list[Receipt | Refusal]:
    """A share of one element more."""
    return await cheat.send(cheat.seal(1, b"", [bytes(8 * LENGTH + 8), bytes(33)]))


async def swapped_shares(cheat: TestDevice) -> list[Receipt | Refusal]:
    """The leader's part to the helper and the other way round."""
    first = cheat.first(0)
    return await cheat.send([first[1], first[0]])


async def same_id_other_bytes(cheat: TestDevice) -> list[Receipt | Refusal]:
    """The same report id with a fresh sharing."""
    await cheat.send(cheat.first(0))
    cheat.rand = bytes(reversed(cheat.rand))
    return await cheat.send(cheat.first(0))


async def second_report(cheat: TestDevice) -> list[Receipt | Refusal]:
    """A second report under the same certificate."""
    await cheat.send(cheat.first(0))
    cheat.nonce = bytes(new_report_id(cheat.window.window_id, device_digest(cheat.number), SystemRandom()))
    return await cheat.send(cheat.first(0))


async def second_session(cheat: TestDevice) -> list[Receipt | Refusal]:
    """A second report under the same certificate in another session."""
    await cheat.send(cheat.first(0))
    cheat.secrets.clear()
    await cheat.open_sessions()
    return await second_report(cheat)


async def flipped_seal(cheat: TestDevice) -> list[Receipt | Refusal]:
    """One bit of the ciphertext flipped."""
    from dataclasses import replace

    return await cheat.send(
        [replace(one, ciphertext=bytes([one.ciphertext[0] ^ 1]) + one.ciphertext[1:]) for one in cheat.first(0)]
    )


@pytest.mark.parametrize(
    ("cheat", "reason"),
    [
        (wrong_length, RejectReason.MALFORMED),
        (swapped_shares, RejectReason.UNKNOWN_SESSION),
        (same_id_other_bytes, RejectReason.DUPLICATE_OTHER_BYTES),
        (second_report, RejectReason.OVER_QUOTA),
        (second_session, RejectReason.OVER_QUOTA),
        (flipped_seal, RejectReason.BAD_SEAL),
    ],
)
async def test_a_cheat_in_the_message_is_refused_by_name(cheat: Cheat, reason: RejectReason) -> None:
    network, window = await honest_network()
    device = TestDevice(network, window, 100)
    await network.advance_to(window.round_one_opens)
    await device.open_sessions()

    answers = await cheat(device)

    assert [answer.reason for answer in answers if isinstance(answer, Refusal)] == [reason, reason] or (
        cheat is swapped_shares and all(isinstance(answer, Refusal) for answer in answers)
    )
    await answer_all(network, window, COINS)
    await network.run_to_the_end(window)
    answer = await network.core(0).service.release(window.window_id)
    assert [cell.raw for cell in decode_record(answer.record).cells] == DIFFERENCE
    for position in range(2):
        counts = await network.core(position).context.store.read(read_rejections, window.window_id)
        assert sum(counts.values()) >= 1


async def test_instalments_of_another_window_round_or_aggregator_do_not_open() -> None:
    from dataclasses import replace

    network, window = await honest_network()
    other = await network.ask(values=LENGTH - 1, name="another question")
    device = TestDevice(network, window, 100)
    await network.advance_to(window.round_one_opens)
    await device.open_sessions()
    original = device.first(0)[0]
    there, here = (new_report_id(one.window_id, device_digest(100), SystemRandom()) for one in (other, window))
    transplants = [
        replace(original, window_id=other.window_id, report_id=there),
        replace(original, report_id=here),
        replace(original, window_id=other.window_id),
    ]

    answers = [(await network.core(0).service.upload([one]))[0] for one in transplants]

    reasons = [answer.reason for answer in answers if isinstance(answer, Refusal)]
    assert reasons == [RejectReason.BAD_SEAL] * 2 + [RejectReason.MALFORMED], "a name is of one window"


async def test_a_replay_of_a_whole_round_changes_nothing() -> None:
    network, window = await honest_network()
    devices = await answer_all(network, window, COINS)
    replayed = [await device.send(device.second(*coins)) for device, coins in zip(devices, COINS, strict=True)]

    assert all(isinstance(answer, Receipt) for answers in replayed for answer in answers)
    await check(network, window, {})

"""Cheating devices over real connections: each refused by its name and counted, the honest result untouched."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fleetcount_client.mqtt_transport import MqttTransport
from fleetcount_client.transport import Unreachable
from fleetcount_protocol.errors import RejectReason
from fleetcount_protocol.ids import ReportId, UserName, WindowId
from fleetcount_protocol.messages import Instalment, Receipt, Refusal
from fleetcount_protocol.window.window import Window

from tests.support.cheats import Cheat, unit
from tests.support.deployment import Deployed
from tests.support.fleet import Fleet, offer_of
from tests.support.oracle import check_release, raw_cells

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

VALUES = 12
LENGTH = VALUES + 1
HALF = (2**64 - 2**32 + 2) // 2
"""One half in the field: twice this is one."""

PAIRS: dict[str, tuple[Sequence[int], Sequence[int]]] = {
    "two-hot": (unit(LENGTH, 0), unit(LENGTH, 1, 2)),
    "two-hot that cancels": (unit(LENGTH, 1, 4), unit(LENGTH, 1, 4)),
    "negative": (unit(LENGTH, 0), [2, -1, *[0] * (LENGTH - 2)]),
    "halves": (unit(LENGTH, 0), [0, HALF, HALF, *[0] * (LENGTH - 3)]),
    "a thousand": (unit(LENGTH, 0), unit(LENGTH, 1, value=1000)),
    "round two does not follow round one": (unit(LENGTH, 1), unit(LENGTH, 2)),
    "back to none": (unit(LENGTH, 3), unit(LENGTH, 0)),
    "nothing at all": ([0] * LENGTH, [0] * LENGTH),
}
"""Pairs that no honest coin gives, each with a proof made as the protocol says."""

HONEST_CELL = 5
HONEST = (unit(LENGTH, 0), unit(LENGTH, HONEST_CELL))
POISON = "fleetcount_poison_messages_total"
Answer = Receipt | Refusal


def reasons(answers: Sequence[Answer]) -> list[RejectReason | None]:
    return [answer.reason if isinstance(answer, Refusal) else None for answer in answers]


async def wrong_length(cheat: Cheat) -> Sequence[Answer]:
    """One element more than the window has."""
    first, _ = cheat.split(cheat.shares(*HONEST)[1])
    return await cheat.send(cheat.seal(1, b"", [part + bytes(8) for part in first]))


async def flipped_seal(cheat: Cheat) -> Sequence[Answer]:
    """One bit of the ciphertext is another."""
    first, _ = cheat.split(cheat.shares(*HONEST)[1])
    sealed = cheat.seal(1, b"", first)
    return await cheat.send(
        [replace(one, ciphertext=bytes([one.ciphertext[0] ^ 1]) + one.ciphertext[1:]) for one in sealed]
    )


async def share_of_another_window(cheat: Cheat) -> Sequence[Answer]:
    """A share that was sealed for a window with the same question."""
    here, cheat.window = cheat.window, replace(cheat.window, name="the same question again")
    first, _ = cheat.split(cheat.shares(*HONEST)[1])
    sealed = cheat.seal(1, b"", first)
    cheat.window = here
    return await cheat.send(cheat.changed(sealed, window_id=here.window_id))


async def share_of_another_report(cheat: Cheat) -> Sequence[Answer]:
    """A share under a report id it was not sealed for."""
    first, _ = cheat.split(cheat.shares(*HONEST)[1])
    return await cheat.send(cheat.changed(cheat.seal(1, b"", first), report_id=ReportId(cheat.new_name())))


async def same_id_other_bytes(cheat: Cheat) -> Sequence[Answer]:
    """The same report shared anew: the first durable bytes stay."""
    assert reasons(await cheat.first(*HONEST)) == [None, None]
    cheat.rand = bytes(reversed(cheat.rand))
    return await cheat.first(*HONEST)


async def second_report(cheat: Cheat) -> Sequence[Answer]:
    """A second report under one certificate, in a second session."""
    assert reasons(await cheat.first(*HONEST)) == [None, None]
    cheat.nonce = cheat.new_name()
    await cheat.open_sessions()
    return await cheat.first(*HONEST)


async def no_session(cheat: Cheat) -> Sequence[Answer]:
    """A session nobody opened."""
    cheat.secrets = [replace(one, session_id=type(one.session_id)(bytes(16))) for one in cheat.secrets]
    return await cheat.first(*HONEST)


async def round_too_early(cheat: Cheat) -> Sequence[Answer]:
    """Round two while round one is open."""
    return await cheat.second(*HONEST)


async def round_that_is_not(cheat: Cheat) -> Sequence[Answer]:
    """A whole report in one envelope, which this window does not take."""
    public_share, parts = cheat.shares(*HONEST)
    return await cheat.send(cheat.seal(0, public_share, parts))


BAD_MESSAGES: dict[Callable[[Cheat], Awaitable[Sequence[Answer]]], RejectReason] = {
    wrong_length: RejectReason.MALFORMED,
    flipped_seal: RejectReason.BAD_SEAL,
    share_of_another_window: RejectReason.BAD_SEAL,
    share_of_another_report: RejectReason.BAD_SEAL,
    same_id_other_bytes: RejectReason.DUPLICATE_OTHER_BYTES,
    second_report: RejectReason.OVER_QUOTA,
    no_session: RejectReason.UNKNOWN_SESSION,
    round_too_early: RejectReason.TOO_EARLY,
    round_that_is_not: RejectReason.WRONG_ROUND,
}


@asynccontextmanager
async def cheats(pair: Deployed, window: Window, count: int) -> AsyncIterator[list[Cheat]]:
    """Cheats with open sessions, every other one over MQTT."""
    made = [Cheat(pair, window, ("grpc", "mqtt")[number % 2]) for number in range(count)]
    try:
        await asyncio.gather(*(one.open_sessions() for one in made))
        yield made
    finally:
        await asyncio.gather(*(one.transport.close() for one in made))


async def until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment + 0.05 - time.time()))


async def test_every_cheat_is_refused_by_name_and_the_result_is_the_honest_one(pair: Deployed, tmp_path: Path) -> None:
    window = pair.ask(VALUES, windows_s=(4.0, 4.0))
    fleet = Fleet(pair, tmp_path, window.mechanism, ["grpc", "mqtt"])
    offer = await offer_of(pair, window)
    answered = asyncio.create_task(fleet.answer(offer))
    messages = [*BAD_MESSAGES, *BAD_MESSAGES]
    async with (
        cheats(pair, window, len(messages)) as liars,
        cheats(pair, window, 2 * len(PAIRS)) as provers,
        cheats(pair, window, 4) as others,
    ):
        borrower, lender, two_faced, half = others
        await until(window.round_one_opens)
        replies = await asyncio.gather(*(say(liar) for say, liar in zip(messages, liars, strict=True)))
        pairs = [*PAIRS.values(), *PAIRS.values()]
        await asyncio.gather(*(one.first(*what) for one, what in zip(provers, pairs, strict=True)))
        await asyncio.gather(*(one.first(*HONEST) for one in (borrower, two_faced, half)))
        await until(window.round_one_closes)
        half.rand = bytes(reversed(half.rand))
        late = await half.first(*HONEST)
        seconds = await asyncio.gather(*(one.second(*what) for one, what in zip(provers, pairs, strict=True)))
        await borrowed_proof(borrower, lender)
        await two_public_shares(two_faced)
    await answered

    counted = await check_release(pair, window, fleet)
    assert counted == fleet.devices
    for say, reply in zip(messages, replies, strict=True):
        assert reasons(reply) == [BAD_MESSAGES[say]] * 2, say.__name__
    assert reasons(late) == [RejectReason.TOO_LATE] * 2
    # A proof cannot be judged by one aggregator alone: the receipts are given, the reports are not counted.
    assert all(reasons(one) == [None, None] for one in seconds)
    expected = Counter(BAD_MESSAGES[say] for say in messages)
    expected += Counter({RejectReason.INVALID_PROOF: 2 * len(PAIRS) + 1, RejectReason.TOO_LATE: 1})
    expected += Counter({RejectReason.MISSING_AT_PEER: 1})
    # Left without a second round: the one that shows half a pair, and four whose first bytes stayed.
    expected += Counter({RejectReason.HALF_PAIR: 5})
    for status in await pair.ended(window):
        assert dict(status.rejections) == dict(expected)


async def borrowed_proof(borrower: Cheat, lender: Cheat) -> None:
    """Send an honest measurement with the proof of another report."""
    words = 8 * LENGTH
    public_share, parts = borrower.shares(*HONEST)
    _, foreign = lender.shares(*HONEST)
    leader = parts[0][: 2 * words] + foreign[0][2 * words :]
    answers = await borrower.send(borrower.seal(2, public_share, borrower.split([leader, *parts[1:]])[1]))
    assert reasons(answers) == [None, None]


async def two_public_shares(cheat: Cheat) -> None:
    """Tell the two aggregators different public shares."""
    public_share, parts = cheat.shares(*HONEST)
    other = public_share[:-1] + bytes([public_share[-1] ^ 1])
    seconds = cheat.split(parts)[1]
    await cheat.send([cheat.seal(2, public_share, seconds)[0], cheat.seal(2, other, seconds)[1]])


async def test_a_stranger_who_replays_what_he_saw_or_misuses_topics_changes_nothing(
    pair: Deployed, tmp_path: Path
) -> None:
    window = pair.ask(VALUES, windows_s=(3.0, 2.0))
    poison = await asyncio.to_thread(pair.metric, 0, POISON)
    fleet = Fleet(pair, tmp_path, window.mechanism, ["grpc", "mqtt"])
    answered = asyncio.create_task(fleet.answer(await offer_of(pair, window)))
    async with cheats(pair, window, 3) as (victim, thief, unknown):
        await until(window.round_one_opens)
        seen = victim.seal(1, b"", victim.split(victim.shares(*HONEST)[1])[0])
        receipts = await victim.send(seen)

        again = await thief.send(seen)
        as_own = await thief.send(
            [replace(one, session_id=own.session_id) for one, own in zip(seen, thief.secrets, strict=True)]
        )
        thief.nonce, thief.rand = victim.nonce, bytes(reversed(victim.rand))
        stolen_name = await thief.first(*HONEST)
        nowhere = [replace(one, window_id=WindowId(bytes(32))) for one in seen]
        unknown_window = await unknown.send(nowhere)
        await misplaced(pair, window, nowhere[0])
        await until(window.round_one_closes)
        second = await victim.second(*HONEST)
    await answered

    # The very same bytes get the very same receipt, whoever brings them.
    assert again == receipts
    assert reasons(as_own) == [RejectReason.MALFORMED] * 2
    assert reasons(stolen_name) == [RejectReason.MALFORMED] * 2
    assert reasons(unknown_window) == [RejectReason.UNKNOWN_WINDOW] * 2
    assert reasons(second) == [None, None]
    assert fleet.failures == []
    statuses = await pair.ended(window)
    expected = [int(live.rounds == (0, live.truth)) for live in fleet.devices]
    expected[HONEST_CELL - 1] += 1
    assert raw_cells((await pair.release(window)).record) == expected
    for status in statuses:
        assert dict(status.rejections) == {RejectReason.MALFORMED: 2}
    # Others ask the same aggregators meanwhile.
    assert await asyncio.to_thread(pair.metric, 0, POISON) >= poison + 1


async def misplaced(pair: Deployed, window: Window, stray: Instalment) -> None:
    """Publish a report of another window on this window's topic: poison, which nobody answers."""
    short = MqttTransport(
        deployment=pair.written.name,
        broker=pair.written.mqtt_broker,
        user=lambda: UserName("stray"),
        call_timeout_s=0.5,
    )
    with pytest.raises(Unreachable):
        await short.upload(window, 0, [stray])
    await short.close()

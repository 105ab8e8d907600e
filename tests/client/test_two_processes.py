"""Two processes on one state file: what either has stored is everybody's, and neither undoes what the other began."""

import asyncio
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from fleetcount_client.config import DeliverySettings
from fleetcount_client.contact import OutcomeKind
from fleetcount_client.memory_transport import MemoryTransport
from fleetcount_client.question_rows import QuestionRows, QuestionState
from fleetcount_client.spool import SpoolFile
from fleetcount_client.spool_rows import Phase
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.messages import Instalment, Receipt, Refusal, SessionAccepted, SessionRefused, SessionRequest
from fleetcount_protocol.window.fields import Aggregator
from fleetcount_protocol.window.window import Window

from tests.client.deployment import START, Deployment

AT_ONCE = DeliverySettings(spread=Fraction(1, 10**9))


class Slow(MemoryTransport):
    """A transport whose answers take a while, in which the other process runs."""

    async def open_sessions(
        self, aggregator: Aggregator, requests: Sequence[SessionRequest]
    ) -> tuple[SessionAccepted | SessionRefused, ...]:
        for _ in range(100):
            await asyncio.sleep(0)
        return await super().open_sessions(aggregator, requests)

    async def upload(
        self, window: Window, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        for _ in range(100):
            await asyncio.sleep(0)
        return await super().upload(window, position, instalments)


async def test_what_one_process_began_the_other_delivers_and_does_not_reject(tmp_path: Path) -> None:
    world = Deployment()
    window, identity = world.ask(), world.identity()
    transports = [Slow(world.intakes, lambda: world.offers) for _ in range(2)]
    devices = [
        world.device(tmp_path / "device.db", transport, identity=identity, settings=AT_ONCE) for transport in transports
    ]

    answers = await asyncio.gather(*(device.answer() for device in devices))

    report = devices[0].spool.report(window.window_id)
    assert report is not None
    assert (report.phase, report.reason) == (Phase.DELIVERED, "")
    # The one whose step the other took first says so, and would find the answer delivered the next time.
    assert {one.kind for (one,) in answers} <= {OutcomeKind.DELIVERED, OutcomeKind.FAILED}
    assert len(world.report_ids(window, 2)) == 1
    assert len(devices[0].spool.charges()) == 1


def test_two_processes_that_draw_the_secret_of_their_coins_at_once_have_the_same(tmp_path: Path) -> None:
    one, other = (SpoolFile(tmp_path / "device.db").device() for _ in range(2))
    one.age(0.0, None)
    found = list[bytes]()

    class Second:
        """Coins of the process that is overtaken while it draws."""

        def random_bytes(self, count: int) -> bytes:
            found.append(QuestionRows(other).coin_secret(SystemRandom()))
            return SystemRandom().random_bytes(count)

    found.append(QuestionRows(one).coin_secret(Second()))

    assert len(found) == 2
    assert {*found, QuestionRows(other).coin_secret(SystemRandom())} == {found[0]}


async def test_a_question_that_its_owner_left_while_it_was_answered_stays_left(tmp_path: Path) -> None:
    world = Deployment()
    window, identity = world.ask(), world.identity()
    question_id = window.question.question_id

    class Left(MemoryTransport):
        """A transport during whose calls the owner's command leaves the question."""

        async def upload(
            self, window: Window, position: int, instalments: Sequence[Instalment]
        ) -> tuple[Receipt | Refusal, ...]:
            owners.questions.leave(question_id)
            return await super().upload(window, position, instalments)

    transport = Left(world.intakes, lambda: world.offers)
    device = world.device(tmp_path / "device.db", transport, identity=identity)
    owners = world.device(tmp_path / "device.db", world.transport(), identity=identity)

    [outcome] = await device.answer()

    assert outcome.kind is OutcomeKind.DELIVERED
    assert [(row.state, row.reason) for row in device.questions.rows()] == [(QuestionState.LEFT, "the owner's word")]


async def test_a_session_that_another_process_forgot_does_not_come_back_with_keys_of_before(tmp_path: Path) -> None:
    world = Deployment()
    identity = world.identity()
    asked = [world.offer(world.once(START + at, name=f"question {at}")) for at in (100, 400, 700)]
    one, other = (world.device(tmp_path / "device.db", world.transport(), identity=identity) for _ in range(2))

    outcomes = [*await one.answer_question(asked[0]), *await other.answer_question(asked[1])]
    for row in other.spool.sessions():
        other.spool.forget_session(row.session_id)
    outcomes += await one.answer_question(asked[2])

    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.DELIVERED] * 3
    for intake in world.intakes.values():
        sent = {(window_id, held.session_id, held.key_number) for (window_id, *_), held in intake.instalments.items()}
        assert len(sent) == len({(session_id, number) for _, session_id, number in sent}) == 3

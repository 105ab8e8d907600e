"""A device answers what is asked once, from the first judgement to the last receipt, over real cryptography."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fleetcount_client.config import DeliverySettings
from fleetcount_client.contact import OutcomeKind
from fleetcount_client.device import Device
from fleetcount_client.memory_transport import MemoryTransport
from fleetcount_client.question_rows import QuestionRows
from fleetcount_client.spool import Spool
from fleetcount_client.spool_rows import Phase, Report
from fleetcount_mechanisms.responses import KaryResponse, MangatVector
from fleetcount_protocol.errors import MachineError
from fleetcount_protocol.messages import (
    Instalment,
    QuestionOffer,
    Receipt,
    Refusal,
    SessionAccepted,
    SessionRefused,
    SessionRequest,
)
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.window.fields import Aggregator, Mode, UploadStyle
from fleetcount_protocol.window.window import Window

from tests.client.deployment import SIGNAL, START, Deployment, open_policy


@pytest.mark.parametrize("aggregators", [2, 3, 5])
async def test_a_report_of_two_instalments_is_valid_and_follows_the_coins(tmp_path: Path, aggregators: int) -> None:
    world = Deployment(aggregators)
    window = world.ask()
    device = world.device(tmp_path / "device.db", world.transport(), truth="B")

    (outcome,) = await device.answer()

    assert outcome.kind is OutcomeKind.DELIVERED, outcome
    (report_id,) = world.report_ids(window, 2)
    assert world.report_ids(window, 1) == {report_id}
    words = world.decoded(window, report_id)
    round_one, round_two = words[:4].index(1), words[4:].index(1)
    assert sorted(words) == [0] * 6 + [1, 1]
    assert round_one in (0, round_two)
    assert round_two in (round_one, 2)
    difference = world.verifies(window, report_id)
    expected = [int(v == round_two) - int(v == round_one) for v in (1, 2, 3)]
    assert [d if d <= 1 else d - (2**64 - 2**32 + 1) for d in difference] == expected


async def test_one_envelope_carries_both_rounds_in_one_message(tmp_path: Path) -> None:
    world = Deployment()
    window = world.ask(upload_style=UploadStyle.ONE_ENVELOPE)
    device = world.device(tmp_path / "device.db", world.transport())

    (outcome,) = await device.answer()

    assert outcome.kind is OutcomeKind.DELIVERED, outcome
    (report_id,) = world.report_ids(window, 0)
    assert sum(world.decoded(window, report_id)) == 2
    world.verifies(window, report_id)


@pytest.mark.parametrize(
    ("changes", "truth", "ones"),
    [
        ({"mode": Mode.RESPONSE, "mechanism": KaryResponse(keep=Fraction(1, 2), values=3)}, "B", {1}),
        ({"mode": Mode.RESPONSE, "mechanism": MangatVector(flip=Fraction(1, 2), values=3)}, frozenset("AB"), {3, 4}),
        ({"mode": Mode.DIRECT, "mechanism": None}, "B", {1}),
    ],
)
async def test_a_one_round_question_is_answered_in_one_valid_message(
    tmp_path: Path, changes: dict[str, object], truth: object, ones: set[int]
) -> None:
    world = Deployment(3)
    window = world.ask(**changes)
    policy = open_policy(allow_direct=True, allow_exact_release=True)
    device = world.device(tmp_path / "device.db", world.transport(), truth=truth, policy=policy)

    (outcome,) = await device.answer()

    assert outcome.kind is OutcomeKind.DELIVERED, outcome
    (report_id,) = world.report_ids(window, 0)
    assert sum(world.verifies(window, report_id)) in ones
    report = device.spool.report(window.window_id)
    assert report is not None
    assert report.secret == b""


def test_a_program_without_an_event_loop_answers_in_one_call(tmp_path: Path) -> None:
    world = Deployment()
    world.ask()
    device = world.device(tmp_path / "device.db", world.transport())
    read: list[str] = []

    def read_brand() -> str:
        read.append("B")
        return "B"

    outcomes = device.run({SIGNAL: read_brand}, once=True)

    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.DELIVERED]
    assert read == ["B"]


def test_a_device_runs_in_any_thread(tmp_path: Path) -> None:
    """docs/for-device-makers.md: `run` has an event loop of its own and needs no main thread."""
    world = Deployment()
    world.ask()
    device = world.device(tmp_path / "device.db", world.transport())

    with ThreadPoolExecutor(1) as pool:
        (outcome,) = pool.submit(device.run, once=True).result()

    assert outcome.kind is OutcomeKind.DELIVERED


class Counted(MemoryTransport):
    """Counts its uses and closings; offers a second question from the second question on."""

    lists = closed = 0
    later: tuple[QuestionOffer, ...] = ()

    async def list_questions(self) -> tuple[QuestionOffer, ...]:
        self.lists += 1
        return await super().list_questions() + (self.later if self.lists > 1 else ())

    async def close(self) -> None:
        self.closed += 1


async def serve_for(world: Deployment, device: Device, seconds: int) -> None:
    """Let a device serve for so long, by the world's clock, and stop it; fails if it ended by itself."""
    serving = asyncio.create_task(device.serve())
    while world.timer.now() < START + seconds and not serving.done():
        await asyncio.sleep(0)
    serving.cancel()
    await asyncio.wait([serving])
    assert serving.cancelled()


async def test_a_serving_device_takes_up_what_is_new_and_stops_when_cancelled(tmp_path: Path) -> None:
    world = Deployment()
    first, second = (world.once(name=name) for name in ("first", "second"))
    transport = Counted(world.intakes, lambda: (world.offer(first),))
    transport.later = (world.offer(second),)
    device = world.device(tmp_path / "device.db", transport)

    serving = asyncio.create_task(device.serve())
    while not all(world.report_ids(window_at(question, 0), 2) for question in (first, second)):
        await asyncio.sleep(0)
    serving.cancel()
    await asyncio.wait([serving])

    assert serving.cancelled()
    assert transport.lists > 1
    assert len(device.spool.charges()) == 2


async def test_a_serving_device_takes_up_again_what_its_disk_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Deployment()
    window = world.ask()
    device = world.device(tmp_path / "device.db", world.transport(), settings=DeliverySettings(poll_interval_s=5))
    advance, failures = Spool.advance, [MachineError("disk full")] * 2

    def fail_first(self: Spool, report: Report, phase: Phase, **more: Any) -> Report:
        if failures:
            raise failures.pop()
        return advance(self, report, phase, **more)

    monkeypatch.setattr(Spool, "advance", fail_first)
    await serve_for(world, device, 400)

    report = device.spool.report(window.window_id)
    assert report is not None
    assert report.phase is Phase.DELIVERED
    assert len(world.report_ids(window, 2)) == 1


@pytest.mark.parametrize("fails", ["tidy", "begin", "put", "join"])
async def test_a_serving_device_outlives_a_state_file_that_takes_nothing_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    world = Deployment()
    window, refused = world.ask(), world.ask(name="refused", min_batch_size=9)
    world.offers.append(world.offer(world.question()))
    policy = open_policy(smallest_min_batch_size=10)
    settings = DeliverySettings(poll_interval_s=5)
    device = world.device(tmp_path / "device.db", world.transport(), settings=settings, policy=policy)
    owner = QuestionRows if fails in ("put", "join") else Spool
    real, failures = getattr(owner, fails), [MachineError("database is locked")] * 2

    def fail_first(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr(owner, fails, fail_first)
    await serve_for(world, device, 400)

    assert failures == []
    assert len(world.report_ids(window, 2)) == 1
    assert [refusal.name for refusal in device.spool.refusals()] == [refused.name]
    assert len(device.questions.rows()) == 3


@pytest.mark.parametrize(
    "damaged", ["report SET secret", "report SET outbox", "windows SET canonical", "questions SET offer"]
)
async def test_what_is_damaged_in_the_state_file_stops_no_other_answer(tmp_path: Path, damaged: str) -> None:
    world = Deployment()
    first = world.ask(name="first")
    identity = world.identity()
    device = world.device(tmp_path / "device.db", world.transport(), identity=identity)
    answering = asyncio.create_task(device.answer())
    while device.spool.report(first.window_id) is None:
        await asyncio.sleep(0)
    answering.cancel()
    await asyncio.wait([answering])
    with device.spool.file.transaction() as connection:
        connection.execute(f"UPDATE {damaged}=x'00'")
    world.offers = []
    second = world.ask(name="second")

    again = world.device(tmp_path / "device.db", world.transport(), identity=identity)
    await serve_for(world, again, 400)

    assert len(world.report_ids(second, 2)) == 1


async def test_a_device_that_only_waits_holds_no_connection_and_no_file(tmp_path: Path) -> None:
    world = Deployment()
    world.ask()
    transport = Counted(world.intakes, lambda: world.offers)
    device = world.device(tmp_path / "device.db", transport)

    answering = asyncio.create_task(device.answer())
    while world.timer.now() < START + 30:
        await asyncio.sleep(0)
    waiting = (transport.closed, sorted(one.name for one in tmp_path.iterdir()))
    await answering

    # SQLite removes the write-ahead log when the last connection closes.
    assert waiting == (1, ["device.db"])
    assert transport.closed > 2
    assert sorted(one.name for one in tmp_path.iterdir()) == ["device.db"]


async def test_a_window_that_waits_does_not_close_the_connection_of_one_that_sends(tmp_path: Path) -> None:
    world = Deployment()
    waits, _ = world.ask(name="waits"), world.ask(name="sends")
    kept_open: list[bool] = []

    class Slow(Counted):
        sending = False

        async def upload(
            self, window: Window, position: int, instalments: Sequence[Instalment]
        ) -> tuple[Receipt | Refusal, ...]:
            while window.name == "waits" and not self.sending:
                await asyncio.sleep(0)
            if window.name == "sends" and instalments[0].round == 1:
                self.sending = True
                closed = self.closed
                while (other := device.spool.report(waits.window_id)) is None or other.phase is Phase.ROUND_ONE:
                    await asyncio.sleep(0)
                for _ in range(10):
                    await asyncio.sleep(0)
                kept_open.append(closed == self.closed)
            return await super().upload(window, position, instalments)

    transport = Slow(world.intakes, lambda: world.offers)
    at_once = DeliverySettings(spread=Fraction(1, 10**9))
    device = world.device(tmp_path / "device.db", transport, settings=at_once)

    outcomes = await device.answer()

    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.DELIVERED}
    assert kept_open == [True, True]


class Counting(MemoryTransport):
    """A transport that counts the session requests it carries."""

    sessions = 0

    async def open_sessions(
        self, aggregator: Aggregator, requests: Sequence[SessionRequest]
    ) -> tuple[SessionAccepted | SessionRefused, ...]:
        self.sessions += len(requests)
        return await super().open_sessions(aggregator, requests)


async def test_sessions_opened_ahead_are_those_of_the_next_answer_and_are_stored_with_it_only(tmp_path: Path) -> None:
    world = Deployment(3)
    world.ask()
    transport = Counting(world.intakes, lambda: world.offers)
    device = world.device(tmp_path / "device.db", transport)

    opened = await device.open_sessions(world.described, START + 50)
    stored_ahead, asked_ahead = device.spool.sessions(), transport.sessions
    (outcome,) = await device.answer()

    assert (opened, asked_ahead, stored_ahead) == (True, 3, ())
    assert outcome.kind is OutcomeKind.DELIVERED, outcome
    assert transport.sessions == 3
    assert len(device.spool.sessions()) == 3


async def test_sessions_that_one_aggregator_refuses_for_good_are_not_open(tmp_path: Path) -> None:
    world, stranger = Deployment(), Deployment()
    device = world.device(tmp_path / "device.db", world.transport(), identity=stranger.identity())

    assert not await device.open_sessions(world.described, START + 50)


async def test_a_question_that_an_unusable_file_cannot_hold_fails_as_one_window(tmp_path: Path) -> None:
    world = Deployment()
    window, state = world.ask(), tmp_path / "device.db"
    state.write_bytes(b"not a database" * 100)
    state.chmod(0o600)

    [outcome] = await world.device(state, world.transport()).answer_question(world.offers[0])

    assert (outcome.window_id, outcome.kind) == (window.window_id, OutcomeKind.FAILED)
    assert "not a database" in outcome.reason

"""A device takes part in a question window after window: reserved at once, answered at its time, freed when it
leaves.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fleetcount_client import sessions
from fleetcount_client.answering import coin_of
from fleetcount_client.charges import unit_id
from fleetcount_client.config import DeliverySettings
from fleetcount_client.contact import OutcomeKind
from fleetcount_client.device import Device
from fleetcount_client.memory_transport import MemoryTransport
from fleetcount_client.policy import JoinRule, PolicyRefusal
from fleetcount_client.private_places import PrivatePlaces, PrivateSignal
from fleetcount_client.question_rows import QuestionState
from fleetcount_client.timer import ManualTimer
from fleetcount_mechanisms.answers import Relation
from fleetcount_mechanisms.statement import epsilon_of
from fleetcount_protocol.limits import SESSION_EXPIRY_STEP_S
from fleetcount_protocol.messages import (
    Instalment,
    QuestionOffer,
    Receipt,
    Refusal,
    SessionAccepted,
    SessionRefused,
    SessionRequest,
)
from fleetcount_protocol.question.fields import Coin, Submission
from fleetcount_protocol.question.orders import OrderAction, QuestionOrder, sign_order
from fleetcount_protocol.question.question import Question, window_at
from fleetcount_protocol.window.fields import Aggregator, Mode, Release, ReleaseKind, UploadStyle
from fleetcount_protocol.window.window import Window
from fleetcount_protocol.wire.question import QUESTION_OFFER
from fleetcount_transport import failpoints

from tests.client.deployment import SIGNAL, START, Deployment, open_policy

AUTO = JoinRule.AUTO


def answered(world: Deployment, question: Question) -> list[int]:
    """Return the windows of which every aggregator holds a report of the last round."""

    def rounds(window: Window) -> int:
        return 2 if window.two_instalments else 0

    windows = [window_at(question, index) for index in range(question.schedule.windows)]
    return [index for index, window in enumerate(windows) if len(world.report_ids(window, rounds(window))) == 1]


@pytest.mark.parametrize("coin", list(Coin))
async def test_every_window_is_answered_once_at_its_time_and_its_report_is_valid(tmp_path: Path, coin: Coin) -> None:
    world = Deployment()
    question = world.question(coin=coin)
    world.offers = [world.offer(question)]
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO)

    outcomes = await device.answer()

    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.DELIVERED] * 4
    assert answered(world, question) == [0, 1, 2, 3]
    sampled = []
    for index in range(4):
        window = window_at(question, index)
        (report_id,) = world.report_ids(window, 2)
        world.verifies(window, report_id)
        words = world.decoded(window, report_id)
        sampled.append(words[:4].index(1) == 0 and words[4:].index(1) == 2)
    charges = device.spool.charges()
    assert all(charge.sent for charge in charges)
    assert len(charges) == (4 if coin is Coin.WINDOW else 1)
    assert [row.state for row in device.questions.rows()] == [QuestionState.ENDED]


async def test_a_device_that_starts_again_reads_nothing_for_what_it_has_answered_and_goes_on_with_its_sessions(
    tmp_path: Path,
) -> None:
    world, read = Deployment(), list[float]()
    schedule = replace(world.question().schedule, round_two_s=0)
    question = world.question(coin=Coin.DAY, upload_style=UploadStyle.ONE_ENVELOPE, schedule=schedule)
    world.offers, identity = [world.offer(question)], world.identity()
    transport, settings = Counting(world.intakes, lambda: world.offers), DeliverySettings(spread=Fraction(1, 10**9))

    def reading() -> str:
        read.append(world.timer.now())
        return "B"

    def device() -> Device:
        return world.device(tmp_path / "d.db", transport, join=AUTO, settings=settings, identity=identity)

    begun = device()
    first = asyncio.create_task(begun.answer({SIGNAL: reading}))
    while not any(report.phase.final for report in begun.spool.reports()):
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    outcomes = await device().answer({SIGNAL: reading})

    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.DELIVERED] * 4
    assert [int(moment - START) for moment in read] == [600, 900, 1200, 1500]
    assert transport.sessions == 2


async def test_an_offer_that_was_taken_is_read_from_the_file_by_the_next_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, read = Deployment(), list[bytes]()
    question = world.question()
    world.offers = [world.offer(question)]
    decode = type(QUESTION_OFFER).decode

    def decoded(message: Any, data: bytes) -> Any:
        if message is QUESTION_OFFER:
            read.append(data)
        return decode(message, data)

    monkeypatch.setattr(type(QUESTION_OFFER), "decode", decoded)
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO)
    device.questions.take(world.offers)
    joined = device.questions.joined(question.question_id)
    await device.close()
    assert joined is not None
    assert read == []
    again = world.device(tmp_path / "device.db", world.transport(), join=AUTO)
    assert again.questions.joined(question.question_id) == joined
    assert len(read) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"upload_style": UploadStyle.ONE_ENVELOPE},
        {"mode": Mode.DIRECT, "mechanism": None},
    ],
)
async def test_windows_in_one_message_are_answered_alike(tmp_path: Path, changes: dict[str, object]) -> None:
    world = Deployment(3)
    question = world.question(**changes, schedule=replace(world.question().schedule, round_two_s=0))
    world.offers = [world.offer(question)]
    policy = open_policy(allow_direct=True)
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO, policy=policy)

    outcomes = await device.answer()

    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.DELIVERED}
    assert answered(world, question) == [0, 1, 2, 3]


async def test_a_one_sided_question_is_joined_only_by_an_owner_who_takes_it_and_charged_as_one(tmp_path: Path) -> None:
    world = Deployment()
    shape = world.question()
    one_sided = Release(
        kind=ReleaseKind.ONE_SIDED,
        noise_epsilon=Fraction(1, 10),
        level=Fraction(19, 20),
        thresholds=(2,) * shape.domain.values,
    )
    schedule = replace(shape.schedule, round_two_s=0)
    question = world.question(mode=Mode.DIRECT, mechanism=None, schedule=schedule, release=one_sided)
    world.offers = [world.offer(question)]
    refusing = open_policy(allow_direct=True)
    device = world.device(tmp_path / "refusing.db", world.transport(), join=AUTO, policy=refusing)
    await device.answer()
    assert "allow_one_sided = true" in device.questions.rows()[0].reason

    taking = open_policy(allow_direct=True, allow_one_sided=True)
    device = world.device(tmp_path / "taking.db", world.transport(), join=AUTO, policy=taking)
    await device.answer()

    charges = device.spool.charges()
    assert {charge.relation for charge in charges} == {Relation.ONE_SIDED}
    tenth = 10**11
    assert len(charges) == question.schedule.windows
    assert all(charge.loss is not None and set(charge.loss.at) == {tenth} == {charge.loss.pure} for charge in charges)


async def test_without_the_owners_word_nothing_is_reserved_and_with_it_the_rest_is(tmp_path: Path) -> None:
    world = Deployment()
    question = world.question()
    world.offers = [world.offer(question)]
    device = world.device(tmp_path / "device.db", world.transport())

    assert await device.answer() == ()
    assert (device.spool.charges(), [row.state for row in device.questions.rows()]) == ((), [QuestionState.OFFERED])

    world.timer.advance(600 + 300 + 100)
    assert device.questions.join(question.question_id) is None
    assert [charge.asked_at - START for charge in device.spool.charges()] == [1200, 1500]
    assert not any(charge.sent for charge in device.spool.charges())
    await device.answer()
    assert answered(world, question) == [2, 3]


async def test_a_question_beyond_the_budget_is_refused_as_a_whole_and_one_within_it_is_never_left_half_way(
    tmp_path: Path,
) -> None:
    world = Deployment()
    question = world.question()
    world.offers = [world.offer(question)]
    one = epsilon_of(question.design)
    assert one is not None
    three = world.device(
        tmp_path / "three.db", world.transport(), join=AUTO, policy=open_policy(total_epsilon=Fraction(one) * 7 / 2)
    )
    four = world.device(
        tmp_path / "four.db", world.transport(), join=AUTO, policy=open_policy(total_epsilon=Fraction(one) * 4)
    )

    [refused] = await three.answer()
    assert (refused.kind, refused.rule) == (OutcomeKind.REFUSED, "total_epsilon")
    assert (three.spool.charges(), [row.state for row in three.questions.rows()]) == ((), [QuestionState.REFUSED])
    assert "the limit is" in three.questions.rows()[0].reason
    four.questions.take(world.offers)
    refusal = four.would_refuse(world.offer(world.once(START + 800)))
    assert refusal is not None
    assert refusal.rule == "total_epsilon"
    assert len(await four.answer()) == 4


async def test_leaving_frees_what_was_not_sent_and_nothing_else(tmp_path: Path) -> None:
    world = Deployment()
    question = world.question()
    world.offers = [world.offer(question)]
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO)
    await device.answer(horizon_s=601 + 300)

    freed = device.questions.leave(question.question_id)

    assert freed == 2
    assert [charge.sent for charge in device.spool.charges()] == [True, True]
    assert await device.answer() == ()
    assert answered(world, question) == [0, 1]
    assert device.questions.join(question.question_id) is None
    await device.answer()
    assert answered(world, question) == [0, 1, 2, 3]


@pytest.mark.parametrize("coin", [Coin.DAY, Coin.QUESTION])
async def test_a_unit_that_was_opened_stays_charged_whole_and_keeps_its_coin(tmp_path: Path, coin: Coin) -> None:
    world = Deployment()
    question = world.question(coin=coin)
    world.offers = [world.offer(question)]
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO)
    await device.answer(horizon_s=601)
    (charge,) = device.spool.charges()
    before = device.questions.assign(device.questions.known(device.questions.rows()[0]), 1)

    assert device.questions.leave(question.question_id) == 0
    assert device.spool.charges() == (charge,)
    assert device.questions.join(question.question_id) is None
    assert device.spool.charges() == (charge,)
    again = device.questions.assign(device.questions.known(device.questions.rows()[0]), 2)
    assert before.sampled == again.sampled  # type: ignore[union-attr]


def test_a_coin_is_fair_follows_from_the_secret_and_is_the_same_for_a_unit() -> None:
    question_id = Deployment().question().question_id
    units = [unit_id(question_id, unit) for unit in range(2000)]
    third = Fraction(1, 3)

    tossed = [coin_of(bytes(32), unit, third) for unit in units]

    # Numbers, not lists: pytest would take minutes to say where two lists of thousands differ.
    assert sum(coin != coin_of(bytes(32), unit, third) for coin, unit in zip(tossed, units, strict=True)) == 0
    assert sum(coin != coin_of(bytes(31) + b"x", unit, third) for coin, unit in zip(tossed, units, strict=True)) > 0
    # Mean 667, standard deviation 21.1; this test has fixed coins, the interval is six of them wide each way.
    assert 540 < sum(tossed) < 793
    assert not any(coin_of(bytes(32), unit, Fraction(0)) for unit in units[:50])
    assert all(coin_of(bytes(32), unit, Fraction(1)) for unit in units[:50])


async def test_a_paused_window_is_skipped_and_a_stop_frees_what_can_never_come(tmp_path: Path) -> None:
    world = Deployment()
    question = world.question()
    pause, resume = (
        world.order(question, 1, OrderAction.PAUSE, 1),
        world.order(question, 2, OrderAction.RESUME, 2),
    )
    world.offers = [world.offer(question, pause, resume)]
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO)
    await device.answer(horizon_s=600 + 601)
    assert answered(world, question) == [0, 2]
    assert len(device.spool.charges()) == 4

    world.offers = [world.offer(question, pause, resume, world.order(question, 1, OrderAction.STOP, 3, by=1))]
    assert await device.answer() == ()

    assert answered(world, question) == [0, 2]
    assert [charge.sent for charge in device.spool.charges()] == [True, True]
    assert [row.state for row in device.questions.rows()] == [QuestionState.ENDED]


async def test_a_pause_keeps_its_windows_reserved_and_a_forged_order_does_nothing(tmp_path: Path) -> None:
    world, stranger = Deployment(), Deployment()
    question = world.question()
    offer = world.offer(question)
    stop = world.order(question, 5, OrderAction.STOP, 1)
    bad = stranger.signing_keys[stop.aggregator_id]
    world.offers = [replace(offer, orders=(sign_order(stop, bad),))]
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO)

    await device.answer(horizon_s=601 + 300)
    assert answered(world, question) == [0, 1]
    world.offers = [world.offer(question, world.order(question, 1, OrderAction.PAUSE, 2))]
    await device.answer(horizon_s=1)
    assert len(device.spool.charges()) == 4
    assert device.questions.joined(question.question_id) is not None
    world.offers = [
        world.offer(
            question, world.order(question, 1, OrderAction.PAUSE, 2), world.order(question, 2, OrderAction.RESUME, 3)
        )
    ]
    await device.answer()
    assert answered(world, question) == [0, 1, 3]


@pytest.mark.parametrize("flaw", ["unsigned", "one signature", "stranger", "other deployment"])
async def test_a_question_that_not_all_trusted_aggregators_signed_is_not_even_kept(tmp_path: Path, flaw: str) -> None:
    world = Deployment()
    maker = Deployment() if flaw == "stranger" else world
    question = maker.question(deployment="elsewhere") if flaw == "other deployment" else maker.question()
    offer = maker.offer(question)
    if flaw in ("unsigned", "one signature"):
        signatures = (b"" if flaw == "unsigned" else offer.signed.signatures[0],) * 2
        offer = replace(offer, signed=replace(offer.signed, signatures=signatures))
    world.offers = [offer]
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO)

    outcomes = [*await device.answer(), *await device.answer_question(offer)]

    assert [(one.kind, one.rule) for one in outcomes] == [(OutcomeKind.REFUSED, "aggregators")] * 2
    assert device.would_refuse(offer) == PolicyRefusal(rule="aggregators", message=outcomes[0].reason)
    assert outcomes[0].reason in device.status().why_silent
    assert device.questions.rows() == ()


async def test_a_bad_copy_of_a_question_takes_nothing_from_the_good_one(tmp_path: Path) -> None:
    world = Deployment()
    offer = world.offer(world.once())
    bad = replace(offer, signed=replace(offer.signed, signatures=(bytes(64),) * 2))

    for number, listed in enumerate([(bad, offer), (offer, bad)]):
        world.timer = type(world.timer)(START)
        device = world.device(tmp_path / f"{number}.db", world.transport())
        assert device.questions.take(listed) == {}
        assert [row.state for row in device.questions.rows()] == [QuestionState.JOINED]


class Counting(MemoryTransport):
    """A transport that counts the session requests it carries."""

    sessions = 0

    async def open_sessions(
        self, aggregator: Aggregator, requests: Sequence[SessionRequest]
    ) -> tuple[SessionAccepted | SessionRefused, ...]:
        assert {request.expiry % SESSION_EXPIRY_STEP_S for request in requests} == {0}, "sessions end on the hour"
        self.sessions += len(requests)
        return await super().open_sessions(aggregator, requests)


@pytest.mark.parametrize(
    ("wanted", "ends", "expiry"),
    [(7_200, 90_000, 7_200), (7_201, 90_000, 10_800), (86_400, 8_000, 7_200), (86_400, 7_200, 7_200)],
)
def test_a_session_ends_on_the_hour_and_before_its_certificate(wanted: int, ends: int, expiry: int) -> None:
    assert sessions._expiry(wanted, ends) == expiry  # pyright: ignore[reportPrivateUsage]


async def test_windows_share_the_sessions_and_take_the_key_that_is_listed_for_their_time(tmp_path: Path) -> None:
    world = Deployment()
    question = world.question()
    world.offers = [world.offer(question)]
    transport = Counting(world.intakes, lambda: tuple(world.offers))
    device = world.device(tmp_path / "device.db", transport, join=AUTO)

    assert len(await device.answer()) == 4
    assert transport.sessions == 2

    ends = question.schedule.opens(2)
    lists = {name: world.key_list(name, not_after=ends) for name in world.sealing_keys}
    other = Deployment(timer=type(world.timer)(START))
    other.signing_keys, other.sealing_keys, other.described = world.signing_keys, world.sealing_keys, world.described
    late = other.offer(question, lists=lists)  # type: ignore[arg-type]
    other.intakes = {name: other._intake(name) for name in other.sealing_keys}  # pyright: ignore[reportPrivateUsage]
    other.offers = [late]
    short = other.device(tmp_path / "short.db", other.transport(), join=AUTO)
    await short.answer()
    assert answered(other, question) == [0, 1]


def test_a_key_list_from_the_future_is_not_taken_and_one_that_is_held_gives_way(tmp_path: Path) -> None:
    """One that was signed under a wrong clock must not keep out the true one that comes after it."""
    world = Deployment()
    question = world.question()
    name = next(iter(world.sealing_keys))
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO)

    def held(issued_at: int) -> list[int]:
        """Offer a list of that time; return the times of those that the device holds of this aggregator."""
        listed = replace(world.key_list(name), issued_at=issued_at)
        device.questions.take([world.offer(question, lists={name: listed})])
        known = device.questions.known(device.questions.rows()[0])
        return [one.key_list.issued_at for one in known.offer.key_lists if one.key_list.aggregator_id == name]

    assert held(START + 301) == []
    assert held(START + 300) == [START + 300], "clocks differ by less"
    assert held(START + 10) == [START + 300], "the later one counts"
    world.timer._now -= 1  # pyright: ignore[reportPrivateUsage]  # So that what it holds is from the future.
    assert held(START - 50) == [START - 50]
    assert held(START - 40) == [START - 40]


async def test_no_window_is_answered_under_a_key_that_two_aggregators_list(tmp_path: Path) -> None:
    world = Deployment()
    question = world.question()
    names = list(world.sealing_keys)
    first = world.key_list(names[0])
    world.offers = [world.offer(question, lists={names[1]: replace(first, aggregator_id=names[1])})]
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO)

    await device.answer()

    assert answered(world, question) == []


async def test_in_a_private_place_the_answer_is_none_and_the_window_is_answered_all_the_same(tmp_path: Path) -> None:
    world = Deployment()
    question = world.question(
        mode=Mode.DIRECT, mechanism=None, schedule=replace(world.question().schedule, round_two_s=0)
    )
    world.offers = [world.offer(question)]
    private = PrivatePlaces({SIGNAL: PrivateSignal(values=frozenset({"B"}))})
    policy = open_policy(allow_direct=True)
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO, private=private, policy=policy)

    assert len(await device.answer()) == 4

    for index in range(4):
        window = window_at(question, index)
        (report_id,) = world.report_ids(window, 0)
        assert world.decoded(window, report_id) == [1, 0, 0, 0]


async def test_a_window_passes_unanswered_while_the_programs_conditions_do_not_hold(tmp_path: Path) -> None:
    world = Deployment()
    question = world.question()
    world.offers = [world.offer(question)]
    asked: Iterator[bool] = iter([True, False, False, True])
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO, conditions=lambda: next(asked))

    outcomes = await device.answer()

    kinds = [outcome.kind for outcome in outcomes]
    assert kinds == [OutcomeKind.DELIVERED, OutcomeKind.MISSED, OutcomeKind.MISSED, OutcomeKind.DELIVERED]
    assert answered(world, question) == [0, 3]


async def test_a_serving_device_joins_what_is_offered_and_obeys_while_it_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fleetcount_client")
    world = Deployment()
    question = world.question()
    world.offers = [world.offer(question)]
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO)

    serving = asyncio.create_task(device.serve())
    while answered(world, question) != [0, 1] and not serving.done():
        await asyncio.sleep(0)
    world.offers = [world.offer(question, world.order(question, 1, OrderAction.STOP, 2))]
    while device.questions.joined(question.question_id) is not None and not serving.done():
        await asyncio.sleep(0)
    serving.cancel()
    await asyncio.wait([serving])

    assert answered(world, question) == [0, 1]
    assert [charge.sent for charge in device.spool.charges()] == [True, True]
    # Every poll finds the window that is under way among what is unfinished; it is answered once all the same.
    outcomes = [record.args for record in caplog.records if record.message.startswith("window ")]
    assert [args[1] for args in outcomes if args] == ["delivered", "delivered"]  # type: ignore[index]


class Noting(MemoryTransport):
    """A transport that says what was done over it."""

    def __init__(self, inner: MemoryTransport) -> None:
        vars(self).update(vars(inner))
        self.done: list[str] = []

    async def list_questions(self) -> tuple[QuestionOffer, ...]:
        self.done.append("list")
        return await super().list_questions()

    async def upload(
        self, window: Window, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        self.done.append("upload")
        return await super().upload(window, position, instalments)

    async def close(self) -> None:
        self.done.append("close")


class Held(MemoryTransport):
    """A transport on which every part waits until `free`; it says which parts were sent."""

    def __init__(self, inner: MemoryTransport) -> None:
        vars(self).update(vars(inner))
        self.free, self.waits = asyncio.Event(), asyncio.Event()
        self.sent: list[tuple[int, int]] = []

    async def upload(
        self, window: Window, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        self.sent += [(one.round, position) for one in instalments]
        self.waits.set()
        await self.free.wait()
        return await super().upload(window, position, instalments)


async def test_a_window_that_is_answered_just_now_is_not_taken_up_by_the_next_call(tmp_path: Path) -> None:
    world = Deployment()
    question = world.question(schedule=replace(world.question().schedule, windows=1))
    world.offers = [world.offer(question)]
    transport = Held(world.transport())
    device = world.device(tmp_path / "device.db", transport, join=AUTO)

    answering = asyncio.create_task(device.answer())
    await transport.waits.wait()
    again = asyncio.create_task(device.answer())
    for _ in range(1000):  # All that the second call can do while the part of the first one waits.
        await asyncio.sleep(0)
    transport.free.set()
    outcomes = [*await answering, *await again]

    assert sorted(transport.sent) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.DELIVERED]


async def test_a_serving_device_gives_its_connection_up_as_its_question_ends_and_not_at_the_next_poll(
    tmp_path: Path,
) -> None:
    world = Deployment()
    question = world.question()
    world.offers = [world.offer(question)]
    transport = Noting(world.transport())
    device = world.device(tmp_path / "device.db", transport, join=AUTO)

    serving = asyncio.create_task(device.serve())
    async with asyncio.timeout(60):
        while "list" not in _after_the_last_upload(transport.done) or answered(world, question) != [0, 1, 2, 3]:
            await asyncio.sleep(0)
    serving.cancel()
    await asyncio.wait([serving])

    assert _after_the_last_upload(transport.done)[0] == "close"


def _after_the_last_upload(done: list[str]) -> list[str]:
    return done[len(done) - done[::-1].index("upload") :] if "upload" in done else []


@pytest.mark.parametrize("coin", list(Coin))
async def test_a_clock_that_is_set_back_finds_no_window_that_was_not_paid_for(tmp_path: Path, coin: Coin) -> None:
    world = Deployment()
    question = world.question(coin=coin)
    world.offers = [world.offer(question)]
    world.timer.advance(600 + 650)
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO)
    await device.answer(horizon_s=1)
    assert sum(charge.answers for charge in device.spool.charges()) == 2 * Fraction(1, 4)

    world.timer = type(world.timer)(START)
    for intake in world.intakes.values():
        intake._clock = world.timer  # pyright: ignore[reportPrivateUsage]
    await world.device(tmp_path / "device.db", world.transport(), join=AUTO).answer()

    assert answered(world, question) == [2, 3]


async def test_a_question_that_is_long_over_is_forgotten_and_its_charges_are_not(tmp_path: Path) -> None:
    world = Deployment()
    question = world.question()
    world.offers = [world.offer(question)]
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO)
    await device.answer()

    world.timer.advance(open_policy().budget_period_s + 1000)
    (seen,) = await device.answer()
    assert (seen.kind, seen.reason) == (OutcomeKind.MISSED, "no window is left of it, by this device's clock")
    assert "was missed: no window is left of it" in device.status().why_silent

    assert (device.questions.rows(), len(device.spool.charges())) == ((), 4)


class Killed(BaseException):
    """The process ended here."""


POINTS = [*failpoints.QUESTION_FAILPOINTS, *failpoints.DEVICE_FAILPOINTS]


@pytest.mark.parametrize("coin", [Coin.WINDOW, Coin.QUESTION])
@pytest.mark.parametrize("point", POINTS)
async def test_a_device_killed_at_any_step_answers_every_window_once_and_loses_no_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, coin: Coin
) -> None:
    world = Deployment()
    question = world.question(coin=coin)
    world.offers = [world.offer(question)]
    sent: dict[tuple[bytes, int], set[bytes]] = {}

    class Watching(MemoryTransport):
        async def upload(
            self, window: Window, position: int, instalments: Sequence[Instalment]
        ) -> tuple[Receipt | Refusal, ...]:
            assert any(charge.sent for charge in device.spool.charges()), "sent before it was marked as sent"
            for one in instalments:
                sent.setdefault((window.window_id, one.round * 10 + position), set()).add(one.ciphertext)
            return await super().upload(window, position, instalments)

    transport = Watching(world.intakes, lambda: tuple(world.offers))
    identity = world.identity()
    hits = [0]

    def reach(name: str) -> None:
        if name == point:
            hits[0] += 1
            if hits[0] in (1, 3):
                raise Killed(name)

    monkeypatch.setattr(failpoints, "reach", reach)
    device = world.device(tmp_path / "device.db", transport, join=AUTO, identity=identity)
    for _ in range(4):
        try:
            await device.answer()
        except Killed:
            pass
        except BaseExceptionGroup as group:
            if group.subgroup(Killed) is None:
                raise
        else:
            break
        device = world.device(tmp_path / "device.db", transport, join=AUTO, identity=identity)

    assert hits[0] > 0
    assert all(len(ciphertexts) == 1 for ciphertexts in sent.values())
    held = device.spool.charges()
    assert all(charge.sent for charge in held)
    answers = answered(world, question)
    assert len(answers) >= 3
    assert len(held) == (len({window for window, _ in sent}) if coin is Coin.WINDOW else 1)


async def test_what_is_asked_once_is_answered_without_the_owners_word(tmp_path: Path) -> None:
    world = Deployment()
    question = world.once()
    world.offers = [world.offer(question)]
    device = world.device(tmp_path / "device.db", world.transport())

    assert [outcome.kind for outcome in await device.answer()] == [OutcomeKind.DELIVERED]
    assert answered(world, question) == [0]
    assert [row.state for row in device.questions.rows()] == [QuestionState.ENDED]


@pytest.mark.parametrize("style", list(UploadStyle))
async def test_who_has_answered_the_only_window_is_done_with_it(tmp_path: Path, style: UploadStyle) -> None:
    world = Deployment()
    question = world.once(upload_style=style)
    device = world.device(tmp_path / "device.db", world.transport())

    [outcome] = await device.answer_question(world.offer(question))

    assert outcome.kind is OutcomeKind.DELIVERED
    assert world.timer.now() < question.schedule.end
    assert [row.state for row in device.questions.rows()] == [QuestionState.ENDED]


async def test_exact_sums_asked_once_are_for_an_owner_who_allows_them(tmp_path: Path) -> None:
    world = Deployment()
    question = world.once(release=Release(kind=ReleaseKind.EXACT, noise_epsilon=None, level=Fraction(19, 20)))
    refusing = world.device(tmp_path / "refusing.db", world.transport())
    taking = world.device(tmp_path / "taking.db", world.transport(), policy=open_policy(allow_exact_release=True))

    [refused] = await refusing.answer_question(world.offer(question))
    [taken] = await taking.answer_question(world.offer(question))

    assert (refused.kind, refused.rule) == (OutcomeKind.REFUSED, "allow_exact_release")
    assert taken.kind is OutcomeKind.DELIVERED


async def test_a_program_asks_for_a_question_and_hears_how_every_window_ended(tmp_path: Path) -> None:
    world = Deployment()
    question = world.question()
    device = world.device(tmp_path / "device.db", world.transport())

    outcomes = await device.answer_question(world.offer(question))

    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.DELIVERED] * 4
    assert [outcome.window_id for outcome in outcomes] == [window_at(question, index).window_id for index in range(4)]


async def test_what_would_be_refused_is_said_with_nothing_stored(tmp_path: Path) -> None:
    world = Deployment()
    offers = [world.offer(one) for one in (world.question(), world.once(), world.once(min_batch_size=9))]
    device = world.device(tmp_path / "device.db", world.transport(), policy=open_policy(smallest_min_batch_size=10))

    said = [device.would_refuse(offer) for offer in offers]
    without = device.would_refuse(world.offer(world.once(signal="Vehicle.Speed")))

    assert [None if one is None else one.rule for one in said] == [None, None, "smallest_min_batch_size"]
    assert without is not None
    assert without.rule == "signals"
    assert (device.questions.rows(), device.spool.charges(), device.spool.refusals()) == ((), (), ())
    assert [device.questions.take([offer]) != {} for offer in offers] == [False, False, True]
    assert device.would_refuse(offers[1]) is None, "it takes part"


async def test_without_a_source_for_its_signal_a_question_is_refused_by_name(tmp_path: Path) -> None:
    world = Deployment()
    asked = "Vehicle.Speed"
    policy = open_policy(signals=frozenset({SIGNAL, asked}))
    device = world.device(tmp_path / "device.db", world.transport(), policy=policy)
    offer = world.offer(world.once(signal=asked))

    [refused] = await device.answer_question(offer)
    [noted] = device.spool.refusals()
    [answered_then] = await device.answer_question(offer, {asked: lambda: "B"})

    assert (refused.kind, refused.rule) == (OutcomeKind.REFUSED, "signals")
    assert refused.reason == f"no source is configured for {asked}; configured are: {SIGNAL}"
    assert (noted.rule, noted.message) == (refused.rule, refused.reason)
    assert answered_then.kind is OutcomeKind.DELIVERED
    assert device.spool.refusals() == ()


async def test_a_window_of_a_joined_question_without_a_source_is_refused_and_its_owner_reads_why(
    tmp_path: Path,
) -> None:
    world = Deployment()
    question = world.question()
    world.offers = [world.offer(question)]
    device = world.device(tmp_path / "device.db", world.transport())
    device.questions.take(world.offers)
    assert device.questions.join(question.question_id) is None, (
        "the owner's command does not know the program's sources"
    )
    device._signals = {}

    outcomes = await device.answer()

    assert {(one.kind, one.rule) for one in outcomes} == {(OutcomeKind.REFUSED, "signals")}
    assert len(outcomes) == 4
    [noted] = device.spool.refusals()
    assert noted.message == f"no source is configured for {SIGNAL}; configured are: none"
    assert [(row.state, row.rule) for row in device.questions.rows()] == [(QuestionState.ENDED, "signals")]
    assert device.spool.charges() == ()


async def test_a_window_that_opens_before_the_ledger_is_ready_is_not_answered(tmp_path: Path) -> None:
    world = Deployment()
    question, late = world.once(START + 100), world.once(START + 150)
    device = world.device(
        tmp_path / "device.db", world.transport(), policy=open_policy(fresh_ledger_wait_s=150), join=AUTO
    )
    refused = device.would_refuse(world.offer(question))
    later = device.would_refuse(world.offer(late))
    world.timer.advance(150)

    assert refused is not None
    assert refused.rule == "fresh_ledger"
    assert later is None
    assert [one.kind for one in await device.answer_question(world.offer(question))] == [OutcomeKind.DELIVERED]


async def test_how_a_question_ended_is_said_again_and_one_that_is_over_was_missed(tmp_path: Path) -> None:
    world = Deployment()
    answered_once, late = world.offer(world.once()), world.offer(world.once(name="late"))
    device = world.device(tmp_path / "device.db", world.transport())

    outcomes = [await device.answer_question(offer) for offer in (answered_once, answered_once, late)]

    kinds = [[one.kind for one in some] for some in outcomes]
    assert kinds == [[OutcomeKind.DELIVERED], [OutcomeKind.DELIVERED], [OutcomeKind.MISSED]]
    assert len(device.spool.charges()) == 1
    assert len(world.report_ids(window_at(answered_once.signed.question, 0), 2)) == 1


# A question that is counted from submission: its windows are those of the leader's start.


def submitted(world: Deployment) -> Question:
    signed = Submission(delay_s=5, earliest=START, latest=START + 600)
    return world.question(schedule=replace(world.question().schedule, first=None, submission=signed))


def start_of(world: Deployment, question: Question, start: int, by: int = 0) -> QuestionOrder:
    made = world.order(question, 1, OrderAction.PAUSE, 0, by)
    return replace(made, action=OrderAction.START, start=start)


async def test_a_device_answers_the_windows_that_follow_from_the_leaders_start(tmp_path: Path) -> None:
    world = Deployment()
    question = submitted(world)
    world.offers = [world.offer(question, start_of(world, question, START + 60))]
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO)

    outcomes = await device.answer()

    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.DELIVERED] * 4
    assert answered(world, question.started(START + 60)) == [0, 1, 2, 3]
    assert [charge.asked_at for charge in device.spool.charges()] == [
        question.started(START + 60).schedule.opens(index) for index in range(4)
    ]


@pytest.mark.parametrize(
    "start", [None, (START + 601, 0), (START - 1, 0), (START + 60, 1)], ids=["none", "late", "early", "helper"]
)
async def test_a_device_takes_no_question_without_a_start_that_all_signed(
    tmp_path: Path, start: tuple[int, int] | None
) -> None:
    world = Deployment()
    question = submitted(world)
    offer = world.offer(question, *(() if start is None else (start_of(world, question, *start),)))
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO)

    (refused,) = device.questions.take([offer]).values()
    (outcome,) = await device.answer_question(offer)

    assert (refused.kind, refused.rule) == (OutcomeKind.REFUSED, "aggregators")
    assert "no start of its leader is known" in refused.reason
    assert (outcome.kind, outcome.reason) == (refused.kind, refused.reason)
    assert (device.questions.rows(), device.spool.charges()) == ((), ())


async def test_a_second_start_moves_nothing_of_what_a_device_reserved(tmp_path: Path) -> None:
    world = Deployment()
    question = submitted(world)
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO)
    device.questions.take([world.offer(question, start_of(world, question, START + 60))])
    before = device.spool.charges()

    device.questions.take([world.offer(question, start_of(world, question, START + 300))])

    known = device.questions.joined(question.question_id)
    assert known is not None
    assert known.asked.schedule.opens(0) == START + 60
    assert device.spool.charges() == before != ()


async def test_a_start_for_fixed_times_is_not_taken_and_the_question_is_answered(tmp_path: Path) -> None:
    world = Deployment()
    question = world.question()
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO)

    assert device.questions.take([world.offer(question, start_of(world, question, START + 60))]) == {}

    known = device.questions.joined(question.question_id)
    assert known is not None
    assert (known.offer.orders, known.asked.schedule) == ((), question.schedule)


class Late:
    """What is on offer: one offer, and from a time on another."""

    def __init__(self, world: Deployment, early: QuestionOffer, moment: float, late: QuestionOffer) -> None:
        self._world, self._early, self._moment, self._late = world, early, moment, late

    def __iter__(self) -> Iterator[QuestionOffer]:
        return iter([self._late if self._world.timer.now() >= self._moment else self._early])


@pytest.mark.parametrize(
    ("after_s", "ends"), [(60, OutcomeKind.DELIVERED), (100, OutcomeKind.GIVEN_UP)], ids=["in time", "too late"]
)
async def test_a_device_that_lacks_keys_asks_for_them_as_long_as_round_one_is_open(
    tmp_path: Path, after_s: int, ends: OutcomeKind
) -> None:
    world = Deployment()
    question = world.once()
    whole = world.offer(question)
    lacks = replace(whole, key_lists=whole.key_lists[1:])
    world.offers = Late(world, lacks, question.schedule.opens(0) + after_s, whole)  # type: ignore[assignment]
    device = world.device(tmp_path / "device.db", world.transport())

    outcomes = await device.answer()

    assert [outcome.kind for outcome in outcomes] == [ends]
    assert [charge.sent for charge in device.spool.charges()] == [True] * (ends is OutcomeKind.DELIVERED)


async def test_a_device_that_waits_for_keys_does_not_answer_a_window_that_is_stopped_meanwhile(tmp_path: Path) -> None:
    world = Deployment()
    question = world.question()
    stopped = world.offer(question, world.order(question, 1, OrderAction.STOP, 1))
    lacks = replace(world.offer(question), key_lists=stopped.key_lists[1:])
    world.offers = Late(world, lacks, question.schedule.opens(1) + 30, stopped)  # type: ignore[assignment]
    device = world.device(tmp_path / "device.db", world.transport(), join=AUTO)

    outcomes = await device.answer()

    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.GIVEN_UP]
    assert answered(world, question) == []


class Jumping(ManualTimer):
    """A device's clock that is a day ahead for a while: sleepers wait as long as they would, whatever it says."""

    def now(self) -> float:
        real = super().now()
        return real + 86_400 * (JUMPS <= real < RETURNS)


JUMPS, RETURNS = START + 400, START + 1000


@pytest.mark.parametrize("rule", list(JoinRule))
async def test_a_clock_that_was_ahead_and_is_set_back_ends_no_question_for_good(tmp_path: Path, rule: JoinRule) -> None:
    """By the clock of these ten minutes every window was over: the device says so, and looks again once it is not."""
    world = Deployment(timer=Jumping(START))
    question = world.question(schedule=replace(world.question().schedule, every_s=3600))
    world.offers = [world.offer(question)]
    device = world.device(
        tmp_path / "device.db", world.transport(), join=rule, settings=DeliverySettings(poll_interval_s=300)
    )
    device.questions.take(world.offers)
    assert device.questions.join(question.question_id) is None

    serving = asyncio.create_task(device.serve())
    states = set()
    for _ in range((question.schedule.end - START) // 60):
        states.add(device.questions.rows()[0].state)
        await world.timer.sleep(60)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)

    assert states == {QuestionState.JOINED, QuestionState.ENDED}
    assert answered(world, question)[-3:] == [1, 2, 3]
    assert all(charge.sent for charge in device.spool.charges())

"""Re-sends are byte-identical and go on until every receipt is there or the window closes; a crash changes nothing."""

import asyncio
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_client.config import DeliverySettings
from fleetcount_client.contact import Outcome, OutcomeKind
from fleetcount_client.device import Device
from fleetcount_client.memory_transport import MemoryTransport
from fleetcount_client.policy import Trust
from fleetcount_client.spool import SpoolFile
from fleetcount_client.spool_rows import Phase
from fleetcount_client.transport import Unreachable
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.errors import DecodeError, RejectReason
from fleetcount_protocol.limits import MAX_KEY_NUMBER
from fleetcount_protocol.messages import Instalment, Receipt, Refusal, SessionAccepted, SessionRefused, SessionRequest
from fleetcount_protocol.question.question import window_at
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.fields import Aggregator, UploadStyle
from fleetcount_protocol.window.window import Window
from fleetcount_transport import failpoints
from scipy import stats

from tests.client.deployment import NAMES, SIGNAL, START, Deployment, open_policy

Answers = tuple[Receipt | Refusal, ...]


class Meddler(MemoryTransport):
    """A transport that lets a test come between; remembers the bytes of every upload."""

    def __init__(self, world: Deployment) -> None:
        super().__init__(world.intakes, lambda: world.offers)
        self.world = world
        self.sent: list[tuple[int, int, bytes]] = []
        self.before: Callable[[int, Instalment], None] = lambda position, instalment: None
        self.after: Callable[[int, Answers], Answers] = lambda position, answers: answers
        self.on_session: Callable[[Aggregator], None] = lambda aggregator: None

    async def open_sessions(
        self, aggregator: Aggregator, requests: Sequence[SessionRequest]
    ) -> tuple[SessionAccepted | SessionRefused, ...]:
        self.on_session(aggregator)
        for _ in range(100):  # An answer takes time, in which other answers of the device go on.
            await asyncio.sleep(0)
        return await super().open_sessions(aggregator, requests)

    async def upload(self, window: Window, position: int, instalments: Sequence[Instalment]) -> Answers:
        for instalment in instalments:
            self.sent.append((position, instalment.round, bytes(instalment.digest)))
            self.before(position, instalment)
        return self.after(position, await super().upload(window, position, instalments))

    def distinct(self) -> int:
        """Return how many different byte strings were ever sent."""
        return len(set(self.sent))


def make(tmp_path: Path, **changes: object) -> tuple[Deployment, Window, Meddler, Device]:
    world = Deployment()
    window = world.ask(**changes)
    transport = Meddler(world)
    return world, window, transport, world.device(tmp_path / "device.db", transport)


async def only(device: Device) -> Outcome:
    (outcome,) = await device.answer()
    return outcome


async def test_lost_answers_are_asked_for_again_with_the_same_bytes(tmp_path: Path) -> None:
    world, window, transport, device = make(tmp_path)
    lost = iter([True, True, False, True, False, True] + [False] * 100)

    def lose(position: int, answers: Answers) -> Answers:
        if next(lost):
            raise Unreachable("the answer was lost")
        return answers

    transport.after = lose

    outcome = await only(device)

    assert outcome.kind is OutcomeKind.DELIVERED
    assert len(transport.sent) > transport.distinct() == 4
    assert len(world.report_ids(window, 2)) == 1


@pytest.mark.parametrize("reason", [RejectReason.BUSY, RejectReason.TOO_EARLY, RejectReason.UNKNOWN_WINDOW])
async def test_a_passing_refusal_is_outwaited(tmp_path: Path, reason: RejectReason) -> None:
    _, _, transport, device = make(tmp_path)
    left = iter([True] * 3 + [False] * 100)

    def refuse(position: int, answers: Answers) -> Answers:
        (answer,) = answers
        if not next(left):
            return answers
        named = {"window_id": answer.window_id, "report_id": answer.report_id, "round": answer.round}
        return (Refusal(session_id=answer.session_id, reason=reason, **named),)  # type: ignore[arg-type]

    transport.after = refuse

    assert (await only(device)).kind is OutcomeKind.DELIVERED
    assert transport.distinct() == 4


async def test_an_answer_whose_session_an_aggregator_has_lost_ends_and_the_session_is_not_used_again(
    tmp_path: Path,
) -> None:
    world, _, transport, device = make(tmp_path)

    def forget(position: int, instalment: Instalment) -> None:
        if instalment.round == 2 and position == 1:
            world.intakes[world.described[position].aggregator_id].forget_sessions()

    transport.before = forget

    outcome = await only(device)

    assert (outcome.kind, outcome.reason) == (OutcomeKind.REJECTED, "unknown_session")
    assert 3 <= len(transport.sent) == transport.distinct() <= 4
    assert {row.aggregator_id: row.number for row in device.spool.sessions()} == {
        "alpha": 2,
        "beta": MAX_KEY_NUMBER + 1,
    }
    assert bytes(32) in {row.secret for row in device.spool.sessions()}, "its keys are erased"


@pytest.mark.parametrize("reason", [RejectReason.UNKNOWN_SESSION, RejectReason.MALFORMED])
async def test_an_aggregator_that_lacks_the_key_of_one_answer_loses_no_other_of_the_session(
    tmp_path: Path, reason: RejectReason
) -> None:
    """It keeps 64 keys below those of ended windows, and a window may end while an answer to it is on its way; or the
    session is that of a key that the device had before.
    """
    world = Deployment()
    lacks, _ = world.ask(name="lacks"), world.ask(name="other", round_one_s=300, round_two_s=200)
    later = world.once(START + 700, name="later", round_one_s=300, round_two_s=200)
    transport = Meddler(world)
    device = world.device(tmp_path / "device.db", transport, settings=DeliverySettings(spread=Fraction(1, 10**9)))

    def refuse(position: int, answers: Answers) -> Answers:
        (answer,) = answers
        if (answer.window_id, answer.round, position) != (lacks.window_id, 2, 1):
            return answers
        named = {"window_id": answer.window_id, "report_id": answer.report_id, "round": answer.round}
        return (Refusal(session_id=answer.session_id, reason=reason, **named),)  # type: ignore[arg-type]

    transport.after = refuse

    outcomes = await device.answer()
    outcomes += await device.answer_question(world.offer(later))

    assert {one.name: one.kind for one in outcomes} == {
        "lacks": OutcomeKind.REJECTED,
        "other": OutcomeKind.DELIVERED,
        "later": OutcomeKind.DELIVERED,
    }
    used = {one.session_id for one in world.intakes[world.described[1].aggregator_id].instalments.values()}
    assert len(used) == 2, "what began after that has a session of its own"


async def test_an_answer_that_begins_after_its_session_was_found_lost_opens_another(tmp_path: Path) -> None:
    world = Deployment()
    loses, waits = (world.once(name=name) for name in ("loses", "waits"))
    losing, waiting = (window_at(question, 0) for question in (loses, waits))
    transport = Meddler(world)
    device = world.device(tmp_path / "device.db", transport, settings=DeliverySettings(spread=Fraction(1, 10**9)))

    def forget(position: int, instalment: Instalment) -> None:
        if instalment.window_id == losing.window_id:
            world.intakes[world.described[position].aggregator_id].forget_sessions()

    async def read() -> str:
        while (report := device.spool.report(losing.window_id)) is None or not report.phase.final:
            await asyncio.sleep(0)
        return "B"

    transport.before = forget
    lost = asyncio.create_task(device.answer_question(world.offer(loses)))
    [outcome] = await device.answer_question(world.offer(waits), {SIGNAL: read})

    assert (await lost)[0].reason == "unknown_session"
    assert outcome.kind is OutcomeKind.DELIVERED, outcome
    assert len(world.report_ids(waiting, 2)) == 1


async def test_a_final_refusal_ends_the_report_and_erases_it(tmp_path: Path) -> None:
    _, window, transport, device = make(tmp_path)

    def refuse(position: int, answers: Answers) -> Answers:
        (answer,) = answers
        if position == 0:
            return answers
        named = {"window_id": answer.window_id, "report_id": answer.report_id, "round": answer.round}
        return (Refusal(session_id=answer.session_id, reason=RejectReason.BAD_SEAL, **named),)  # type: ignore[arg-type]

    transport.after = refuse

    outcome = await only(device)
    report = device.spool.report(window.window_id)

    assert (outcome.kind, outcome.reason) == (OutcomeKind.REJECTED, "bad_seal")
    assert 1 <= len(transport.sent) == transport.distinct() <= 2, "what has not left yet stays"
    assert report is not None
    assert (report.phase, report.secret, device.spool.outbox(window.window_id, 1)) == (Phase.REJECTED, b"", ())
    assert len(device.spool.charges()) == 1


async def test_a_forged_receipt_counts_for_nothing(tmp_path: Path) -> None:
    world, _, transport, device = make(tmp_path)

    def forge(position: int, answers: Answers) -> Answers:
        (answer,) = answers
        assert isinstance(answer, Receipt)
        if position == 0:
            return answers
        return (
            Receipt(
                window_id=answer.window_id,
                report_id=answer.report_id,
                round=answer.round,
                session_id=answer.session_id,
                digest=answer.digest,
                mac=bytes(32),
            ),
        )

    transport.after = forge

    outcome = await only(device)

    assert outcome.kind is OutcomeKind.GIVEN_UP
    assert world.timer.now() >= START + 300
    assert transport.distinct() == 4


async def test_an_aggregator_that_speaks_nonsense_is_tried_until_the_window_closes(tmp_path: Path) -> None:
    world, _, transport, device = make(tmp_path, upload_style=UploadStyle.ONE_ENVELOPE)

    def nonsense(position: int, answers: Answers) -> Answers:
        raise DecodeError("not an answer")

    transport.after = nonsense

    outcome = await only(device)

    assert outcome.kind is OutcomeKind.GIVEN_UP
    assert START + 200 <= world.timer.now() < START + 201
    assert 8 < len(transport.sent) < 60


async def test_nothing_is_charged_while_an_aggregator_is_out_of_reach(tmp_path: Path) -> None:
    _, _, transport, device = make(tmp_path)

    def away(aggregator: Aggregator) -> None:
        if aggregator.aggregator_id == "beta":
            raise Unreachable("away")

    transport.on_session = away

    outcome = await only(device)

    assert outcome.kind is OutcomeKind.GIVEN_UP
    assert (device.spool.charges(), transport.sent) == ((), [])


async def test_a_round_arrives_inside_its_window_and_at_a_time_of_its_own(tmp_path: Path) -> None:
    moments: dict[int, list[float]] = {1: [], 2: []}
    for number in range(30):
        world = Deployment()
        world.ask()
        transport = Meddler(world)

        def note(position: int, instalment: Instalment, world: Deployment = world) -> None:
            moments[instalment.round].append(world.timer.now() - START)

        transport.before = note
        await world.device(tmp_path / f"{number}.db", transport).answer()

    for round_number, (opens, last) in {1: (100, 180), 2: (200, 280)}.items():
        assert all(opens <= moment <= last for moment in moments[round_number])
        assert max(moments[round_number]) - min(moments[round_number]) > 40


async def test_parts_and_session_requests_of_one_device_leave_at_moments_of_their_own(tmp_path: Path) -> None:
    """Two parts that leave together tell the observers of two aggregators that they are of one device."""
    sessions: list[list[float]] = []
    parts: dict[int, list[list[float]]] = {1: [], 2: []}
    for number in range(40):
        world = Deployment()
        world.ask()
        transport = Meddler(world)
        asked, sent = [0.0, 0.0], {1: [0.0, 0.0], 2: [0.0, 0.0]}

        def note(
            position: int, one: Instalment, world: Deployment = world, sent: dict[int, list[float]] = sent
        ) -> None:
            sent[one.round][position] = world.timer.now() - START - 100 * one.round

        def ask(one: Aggregator, world: Deployment = world, asked: list[float] = asked) -> None:
            asked[NAMES.index(one.aggregator_id)] = world.timer.now() - START - 100

        transport.before, transport.on_session = note, ask
        await world.device(tmp_path / f"{number}.db", transport).answer()
        sessions.append(asked)
        for round_number, moments in sent.items():
            parts[round_number].append(moments)

    assert all(
        0 <= moment <= min(moments) for asked, moments in zip(sessions, parts[1], strict=True) for moment in asked
    )
    assert min(abs(first - second) for first, second in sessions) > 0
    for round_number in (1, 2):
        for position in (0, 1):
            assert stats.kstest([one[position] / 80 for one in parts[round_number]], "uniform").pvalue > 1e-6
        first, second = ([one[position] for one in parts[round_number]] for position in (0, 1))
        together = float(stats.spearmanr(first, second)[1])  # pyright: ignore[reportArgumentType]  # Its stubs lack it.
        assert together > 1e-6, "when one part leaves tells nothing of when the other does"
        apart = [abs(first - second) for first, second in parts[round_number]]
        assert min(apart) > 0
        assert sum(apart) / len(apart) > 80 / 3 - 14


async def test_who_delays_an_answer_moves_no_other_part(tmp_path: Path) -> None:
    """An aggregator that holds a call open would otherwise see the part of another leave when it lets go."""
    for number in range(10):
        world = Deployment()
        world.ask(upload_style=UploadStyle.ONE_ENVELOPE)
        transport = Slow(world)
        outcome = await only(world.device(tmp_path / f"{number}.db", transport))

        assert outcome.kind is OutcomeKind.DELIVERED
        assert transport.begun[1] < START + 180


class Slow(Meddler):
    """A transport on which aggregator 0 answers when round one is nearly over."""

    def __init__(self, world: Deployment) -> None:
        super().__init__(world)
        self.begun: dict[int, float] = {}

    async def upload(self, window: Window, position: int, instalments: Sequence[Instalment]) -> Answers:
        self.begun[position] = self.world.timer.now()
        answers = await super().upload(window, position, instalments)
        if position == 0:
            await self.world.timer.sleep(START + 195 - self.world.timer.now())
        return answers


async def test_a_device_that_starts_again_draws_only_for_what_has_no_receipt(tmp_path: Path) -> None:
    """While it tries one aggregator again and again, the other's receipt is kept: it is told nothing of a start."""
    world, window, transport, _ = make(tmp_path, upload_style=UploadStyle.ONE_ENVELOPE)
    identity, state = world.identity(), tmp_path / "again.db"
    settings = DeliverySettings(spread=Fraction(1, 10**9))
    device = world.device(state, transport, settings=settings, identity=identity)

    def away(position: int, instalment: Instalment) -> None:
        if len(transport.sent) > 8:
            raise Killed("while one is away")
        if position == 1:
            raise Unreachable("away")

    transport.before = away
    with pytest.raises(BaseExceptionGroup):
        await device.answer()
    [left] = device.spool.outbox(window.window_id, 0)
    transport.before, transport.sent = lambda *_: None, []
    outcome = await only(world.device(state, transport, settings=settings, identity=identity))

    assert outcome.kind is OutcomeKind.DELIVERED
    assert [position for position, _, _ in transport.sent] == [left.position] == [1]


async def test_a_device_that_first_hears_of_a_question_too_late_sends_nothing(tmp_path: Path) -> None:
    world, _, transport, device = make(tmp_path)
    world.timer.advance(200)

    [outcome] = await device.answer_question(world.offers[0])

    assert (outcome.kind, transport.sent, device.spool.charges()) == (OutcomeKind.MISSED, [], ())
    assert await device.answer() == (outcome,)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_report_without_a_receipt_for_round_one_still_sends_round_two_and_is_not_told_as_delivered(
    tmp_path: Path, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, window, transport, device = make(tmp_path)

    def lose(position: int, instalment: Instalment) -> None:
        if (position, instalment.round) == (1, 1):
            raise Unreachable("the request was lost")

    transport.before = lose
    if restarted:
        await killed_at("after_round_one_receipts", device, monkeypatch)
        device = world.device(tmp_path / "device.db", transport)

    outcome = await only(device)
    [again] = await device.answer_question(world.offers[0])

    assert outcome.kind is again.kind is OutcomeKind.GIVEN_UP
    assert "round one" in outcome.reason
    assert {(position, number) for position, number, _ in transport.sent} == {(0, 1), (1, 1), (0, 2), (1, 2)}
    assert world.report_ids(window, 1) == set()


class Killed(BaseException):
    """The process ended here."""


async def killed_at(name: str, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def reach(point: str) -> None:
        if point == name:
            raise Killed(point)

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "reach", reach)
        with pytest.raises(BaseExceptionGroup) as caught:
            await device.answer()
    assert caught.group_contains(Killed)


@pytest.mark.parametrize("name", failpoints.DEVICE_FAILPOINTS)
async def test_a_crash_at_any_point_resumes_with_the_same_coins_and_bytes(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Deployment()
    window = world.ask()
    transport = Meddler(world)
    identity = world.identity()

    def device() -> Device:
        return world.device(tmp_path / "device.db", transport, identity=identity, truth="B")

    first = device()
    await killed_at(name, first, monkeypatch)
    before = list(transport.sent)
    second = device()
    told = await second.answer()

    # What had ended before is in the file, and is not told again.
    assert [one.kind for one in told] == [OutcomeKind.DELIVERED] * (name != "after_round_two_receipts")
    assert [one.phase for one in second.spool.answers()] == [Phase.DELIVERED]
    assert len(world.report_ids(window, 2)) == 1
    assert len({report for _, report, _ in world.intakes[world.described[0].aggregator_id].instalments}) == 1
    assert transport.distinct() == 4
    assert set(before) <= set(transport.sent)
    assert len(second.spool.charges()) == 1
    (report_id,) = world.report_ids(window, 2)
    words = world.decoded(window, report_id)
    assert words[4:].index(1) in (words[:4].index(1), 2)
    world.verifies(window, report_id)


async def test_the_truth_is_read_once_and_round_two_reports_the_truth_of_round_one(tmp_path: Path) -> None:
    for number in range(12):
        world = Deployment()
        window = world.ask()
        readings = iter(["B", "C", "A"])
        device = world.device(tmp_path / f"{number}.db", world.transport())

        await device.answer({SIGNAL: lambda readings=readings: next(readings)})  # type: ignore[misc]

        (report_id,) = world.report_ids(window, 2)
        words = world.decoded(window, report_id)
        assert words[4:].index(1) in (words[:4].index(1), 2)
        assert next(readings) == "C"


async def test_a_wiped_ledger_is_a_waiting_period_and_no_refund(tmp_path: Path) -> None:
    world = Deployment()
    world.ask()
    policy = open_policy(fresh_ledger_wait_s=3600)
    device = world.device(tmp_path / "wiped.db", world.transport(), policy=policy)

    outcome = await only(device)

    assert (outcome.kind, outcome.rule) == (OutcomeKind.REFUSED, "fresh_ledger")
    assert [refusal.rule for refusal in device.spool.refusals()] == ["fresh_ledger"]


async def test_the_budget_holds_over_questions_and_restarts(tmp_path: Path) -> None:
    world = Deployment()
    asked = [world.offer(world.once(name=f"question {number}")) for number in range(4)]
    policy = open_policy(
        trust=Trust.NO_OPERATOR, largest_chance=Fraction(1), largest_expected_answers=3 * Fraction(1, 4)
    )
    kinds = []

    for offer in asked:
        device = world.device(tmp_path / "device.db", world.transport(), policy=policy)
        [outcome] = await device.answer_question(offer)
        kinds.append(outcome.kind)
        world.timer = type(world.timer)(START)
        for intake in world.intakes.values():
            intake._clock = world.timer

    assert [kind.value for kind in kinds] == ["delivered", "delivered", "delivered", "refused"]
    assert len(SpoolFile(tmp_path / "device.db").device().charges()) == 3


async def test_what_is_asked_at_once_shares_one_session_an_aggregator(tmp_path: Path) -> None:
    world = Deployment()
    for number in range(3):
        world.ask(name=f"question {number}")
    transport = Meddler(world)
    opened: list[str] = []
    transport.on_session = lambda aggregator: opened.append(aggregator.aggregator_id)

    at_once = DeliverySettings(spread=Fraction(1, 10**9))

    outcomes = await world.device(tmp_path / "device.db", transport, settings=at_once).answer()

    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.DELIVERED}
    assert sorted(opened) == ["alpha", "beta"]


async def test_a_disk_that_fails_before_the_charge_keeps_the_device_silent(tmp_path: Path) -> None:
    names = tuple(f"brand {number}" for number in range(2000))
    world, _, transport, _ = make(
        tmp_path, domain=Categories(names=names), mechanism=SamplingDie.uniform(Fraction(1, 100), 2000)
    )
    file = SpoolFile(tmp_path / "device.db")
    device = Device(
        identity=world.identity(),
        trust=world.trust(),
        policy=open_policy(largest_epsilon=Fraction(10)),
        spool=file.device(),
        transport=transport,
        signals={SIGNAL: lambda: "B"},
        timer=world.timer,
        idle_close_s=10**9,
    )
    file.device().age(0.0, None)
    file.rows(f"PRAGMA max_page_count={file.rows('PRAGMA page_count', ())[0][0]}", ())

    outcome = await only(device)

    assert outcome.kind is OutcomeKind.FAILED, outcome
    assert "full" in outcome.reason
    assert (transport.sent, device.spool.charges()) == ([], ())

"""A question and its orders reach every aggregator, whoever is down or crashes meanwhile; a refused one ends."""

from dataclasses import replace
from pathlib import Path

import pytest
from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.memory.installed import InstalledQuestion
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.storage.question_rows import read_questions
from fleetcount_aggregator.windows.directory import QuestionDirectory
from fleetcount_aggregator.windows.question_install import install_question
from fleetcount_protocol.errors import PeerProblem, QuestionError
from fleetcount_protocol.ids import AggregatorId, QuestionId
from fleetcount_protocol.messages import InstallQuestion, QuestionOffer, QuestionQuery, WindowState
from fleetcount_protocol.question.fields import Schedule
from fleetcount_protocol.question.key_list import verify_key_list
from fleetcount_protocol.question.orders import (
    OrderAction,
    QuestionOrder,
    SignedOrder,
    encode_signed_order,
    sign_order,
)
from fleetcount_protocol.question.question import Question, encode_signed_question, window_at

from tests.support.aggregators import START, Network

LIMITS = Limits(smallest_min_batch_size=2, give_up_s=600, first_retry_s=1, longest_retry_s=4)


def order(
    network: Network, question: Question, number: int, action: OrderAction, window: int, by: int = 0
) -> SignedOrder:
    """Return an order signed by an aggregator's operator."""
    seat = network.seats[by]
    content = QuestionOrder(
        question_id=question.question_id,
        number=number,
        action=action,
        aggregator_id=seat.aggregator_id,
        from_window=window,
    )
    return sign_order(content, seat.signing_key)


def offered(network: Network, position: int = 0) -> tuple[QuestionOffer, ...]:
    """Return what an aggregator offers in its first list."""
    own = network.seats[position].aggregator.aggregator_id
    return network.core(position).service.questions(QuestionQuery(aggregator_id=own, deployment="test")).offers


async def pass_time(network: Network, seconds: int, step: int = 5) -> None:
    """Let everybody work while time passes."""
    for _ in range(seconds // step):
        network.clock.advance(step)
        await network.look_after_all()
        await network.start_crashed()


def drop(directory: Path, network: Network, **changes: object) -> Question:
    signed, seed = network.question(**changes)
    (directory / "q.seed").write_bytes(seed)
    (directory / "q.seed").chmod(0o600)
    (directory / "q.question").write_bytes(encode_signed_question(signed))
    return signed.question


async def test_a_dropped_question_is_handed_to_everybody_and_offered_with_all_key_lists(tmp_path: Path) -> None:
    network = Network(3, limits=LIMITS)
    await network.start_all()
    question = drop(tmp_path, network)
    directory = QuestionDirectory(network.core(0).context, tmp_path)
    await directory.poll()
    before = offered(network)

    await network.look_after_all()
    await directory.poll()

    assert before == ()
    [offer] = offered(network)
    assert offer.signed.question == question
    assert (
        network.core(0)
        .service.questions(QuestionQuery(aggregator_id=AggregatorId("alpha"), deployment="elsewhere"))
        .offers
        == ()
    )
    for listed, described in zip(offer.key_lists, question.aggregators, strict=True):
        verify_key_list(listed, described)
    for position in range(3):
        assert question.question_id in network.core(position).context.questions
        assert [one.signed.question for one in offered(network, position)] == [question]
    assert not (tmp_path / "q.refused").exists()


async def test_more_question_than_one_list_holds_are_offered_in_several_and_none_that_is_over() -> None:
    network = Network(2, limits=LIMITS)
    await network.start_all()
    schedule = network.question()[0].question.schedule
    over = await network.stand(name="over soon", signal="Vehicle.Over", schedule=replace(schedule, windows=1))
    await network.advance_to(over.schedule.end)
    standing = {(await network.stand(signal=f"Vehicle.Signal{one}")).question_id for one in range(66)}
    service = network.core(0).service

    first = service.questions(QuestionQuery(aggregator_id=AggregatorId("alpha"), deployment="test"))
    last = first.offers[-1].signed.question.question_id
    second = service.questions(QuestionQuery(aggregator_id=AggregatorId("alpha"), deployment="test", after=last))

    ids = [one.signed.question.question_id for one in (*first.offers, *second.offers)]
    assert ids == sorted(standing)
    assert (len(first.offers), first.more, second.more) == (64, True, False)
    assert (
        service.questions(QuestionQuery(aggregator_id=AggregatorId("alpha"), deployment="test", after=ids[-1])).offers
        == ()
    )


async def test_a_list_looks_at_no_more_questions_than_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(2, limits=LIMITS)
    await network.start_all()
    for one in range(70):
        await network.stand(signal=f"Vehicle.Signal{one}")
    ids = [one.signed.question.question_id for one in offered(network)]
    query = QuestionQuery(aggregator_id=AggregatorId("alpha"), deployment="test", after=ids[62])
    looked_at = list[InstalledQuestion]()
    asked = InstalledQuestion.asked.fget  # type: ignore[attr-defined]  # It is a property.

    def counted(question: InstalledQuestion) -> Question:
        looked_at.append(question)
        return asked(question)

    monkeypatch.setattr(InstalledQuestion, "asked", property(counted))
    listed = network.core(0).service.questions(query)

    assert len(listed.offers) == 7
    assert {one.question_id for one in looked_at} == {one.signed.question.question_id for one in listed.offers}


async def test_offers_follow_the_clock_also_one_that_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(2, limits=LIMITS)
    await network.start_all()
    schedule = network.question()[0].question.schedule
    soon = await network.stand(name="over soon", signal="Vehicle.Over", schedule=replace(schedule, windows=1))
    long = await network.stand(name="over later")
    both, one = {soon.question_id, long.question_id}, {long.question_id}

    def ids() -> set[QuestionId]:
        return {each.signed.question.question_id for each in offered(network)}

    assert ids() == both
    await network.advance_to(soon.schedule.end)
    assert ids() == one
    before = soon.schedule.end - 1
    monkeypatch.setattr(network.clock, "now", lambda: before)
    assert ids() == both


async def test_new_questions_are_offered_and_archived_ones_are_not() -> None:
    network = Network(2, limits=LIMITS)
    await network.start_all()
    core = network.core(0)
    query = QuestionQuery(aggregator_id=AggregatorId("alpha"), deployment="test", over=True)

    def ids() -> list[QuestionId]:
        return [each.signed.question.question_id for each in core.service.questions(query).offers]

    assert ids() == []
    first = (await network.stand(name="first")).question_id
    assert ids() == [first]
    second = (await network.stand(name="second", signal="Vehicle.Speed")).question_id
    assert ids() == sorted([first, second])
    await core.context.questions.archive(core.context.questions[first])
    assert ids() == [second]


@pytest.mark.parametrize(
    ("name", "side"),
    [("question.after_install_store", 0), ("question.after_install_store", 1), ("question.after_hand_over", 0)],
)
async def test_a_crash_while_it_is_handed_over_changes_nothing(tmp_path: Path, name: str, side: int) -> None:
    network = Network(2, directory=tmp_path, limits=LIMITS)
    await network.start_all()
    await network.stop(side)
    await network.start(side, name)
    signed, seed = network.question()
    if (name, side) == ("question.after_install_store", 0):
        with pytest.raises(BaseException, match="after_install_store"):
            await install_question(network.core(0).context, signed, seed)
        await network.crash()
        await network.start_crashed()
    else:
        await install_question(network.core(0).context, signed, seed)

    await pass_time(network, 60)

    assert [one.signed.question for one in offered(network)] == [signed.question]
    assert signed.question.question_id in network.core(1).context.questions
    await network.stop_all()


async def test_a_helper_that_is_down_gets_the_question_later() -> None:
    network = Network(2, limits=LIMITS)
    network.supervised = False
    await network.start_all()
    await network.stop(1)
    question = await network.stand()
    await pass_time(network, 10)
    assert offered(network) == ()

    await network.start(1)
    await pass_time(network, 10)

    assert len(offered(network)) == 1
    assert question.question_id in network.core(1).context.questions


async def test_one_question_asks_for_the_key_list_of_a_helper_that_is_away_for_all_that_it_has() -> None:
    network = Network(2, limits=LIMITS)
    network.supervised = False
    await network.start_all()
    schedule = Schedule(first=START + 7200, every_s=60, windows=1, round_one_s=10, round_two_s=10, expiry_s=86_400)
    for number in range(5):
        await network.stand(signal=f"Vehicle.Signal{number}", schedule=schedule)
    await network.stop(0)
    await network.stop(1)
    await network.start(0)
    asked: list[int] = []
    network.before = lambda *call: asked.append(network.clock.now()) if call[2] == "install_question" else None

    await pass_time(network, 1800)

    away = len(asked)
    assert away == len(set(asked)) > 100
    await network.start(1)
    await pass_time(network, 1800)
    assert len(asked) - away == 3
    assert len(offered(network)) == 5


async def test_a_question_a_helper_refuses_is_stopped_everywhere_and_its_file_says_so(tmp_path: Path) -> None:
    network = Network(3, limits=LIMITS)
    await network.start_all()
    network.core(2).context.host.limits = replace(LIMITS, smallest_min_batch_size=1000)
    question = drop(tmp_path, network)
    directory = QuestionDirectory(network.core(0).context, tmp_path)
    await directory.poll()

    await pass_time(network, 150)
    await directory.poll()

    assert "gamma does not take the question" in (tmp_path / "q.refused").read_text()
    assert offered(network) == ()
    for position in (0, 1):
        assert set((await network.missing(question, position)).values()) == {"stopped"}
        assert not network.core(position).context.windows
    assert question.question_id not in network.core(2).context.questions


async def test_only_the_leader_hands_over_a_question() -> None:
    network = Network(3, limits=LIMITS)
    await network.start_all()
    signed, seed = network.question()
    request = InstallQuestion(signed=signed, seed=seed, orders=())

    with pytest.raises(PeerRefusalError) as refusal:
        await network.core(1).helper.install_question(AggregatorId("gamma"), request)

    assert refusal.value.problem is PeerProblem.NOT_LEADER


# Orders.


async def test_paused_windows_are_skipped_everywhere_and_resumed_ones_are_not(tmp_path: Path) -> None:
    network = Network(2, limits=LIMITS)
    await network.start_all()
    question = await network.stand()
    directory = QuestionDirectory(network.core(0).context, tmp_path)
    pause, resume = (
        order(network, question, 1, OrderAction.PAUSE, 1),
        order(network, question, 2, OrderAction.RESUME, 3),
    )
    (tmp_path / "a.order").write_bytes(encode_signed_order(pause))
    (tmp_path / "b.order").write_bytes(encode_signed_order(resume))

    await directory.poll()
    await pass_time(network, 400)

    assert not list(tmp_path.glob("*.refused"))
    assert await network.missing(question, 0) == await network.missing(question, 1) == {1: "paused", 2: "paused"}
    for position in range(2):
        question_here = network.core(position).context.questions[question.question_id]
        assert question_here.orders == (pause, resume)
        assert question_here.following == question.schedule.windows
        assert len(network.core(position).context.windows) == 3


async def test_an_order_about_a_window_that_is_decided_is_refused(tmp_path: Path) -> None:
    network = Network(2, limits=LIMITS)
    await network.start_all()
    question = await network.stand()
    await network.advance_to(question.schedule.opens(1) - 30)
    await network.look_after_all()
    late = order(network, question, 1, OrderAction.STOP, 1)
    (tmp_path / "a.order").write_bytes(encode_signed_order(late))

    await QuestionDirectory(network.core(0).context, tmp_path).poll()

    assert (tmp_path / "a.refused").read_text() == "from_window is 1, allowed: 2 to 4; those before are decided\n"
    assert network.core(0).context.questions[question.question_id].orders == ()


@pytest.mark.parametrize(
    ("action", "by", "signer", "said"),
    [
        (OrderAction.PAUSE, 0, 1, "does not verify"),
        (OrderAction.PAUSE, 1, 1, "drop it there"),
    ],
)
async def test_a_forged_order_or_another_s_is_refused(
    tmp_path: Path, action: OrderAction, by: int, signer: int, said: str
) -> None:
    network = Network(2, limits=LIMITS)
    await network.start_all()
    question = await network.stand()
    content = order(network, question, 1, action, 2, by=by).order
    forged = sign_order(content, network.seats[signer].signing_key)
    (tmp_path / "a.order").write_bytes(encode_signed_order(forged))

    await QuestionDirectory(network.core(0).context, tmp_path).poll()

    assert said in (tmp_path / "a.refused").read_text()


async def test_a_helper_may_stop_its_part_but_not_pause(tmp_path: Path) -> None:
    network = Network(3, limits=LIMITS)
    await network.start_all()
    question = await network.stand()
    directory = QuestionDirectory(network.core(1).context, tmp_path)
    (tmp_path / "a.order").write_bytes(encode_signed_order(order(network, question, 1, OrderAction.PAUSE, 2, by=1)))
    (tmp_path / "b.order").write_bytes(encode_signed_order(order(network, question, 1, OrderAction.STOP, 3, by=1)))

    await directory.poll()
    await pass_time(network, 500)

    assert "pause is beta's, allowed: alpha's" in (tmp_path / "a.refused").read_text()
    for position in range(3):
        assert await network.missing(question, position) == {3: "stopped", 4: "stopped"}


async def test_an_order_survives_crashes_of_both_sides(tmp_path: Path) -> None:
    for side in (0, 1):
        folder = tmp_path / str(side)
        folder.mkdir()
        network = Network(2, directory=folder, limits=LIMITS)
        await network.start_all()
        question = await network.stand()
        await network.stop(side)
        await network.start(side, "question.after_order_store")
        (folder / "a.order").write_bytes(encode_signed_order(order(network, question, 1, OrderAction.STOP, 2)))

        for _ in range(2):
            directory = QuestionDirectory(network.core(0).context, folder)
            try:
                await directory.poll()
            except BaseException:
                await network.crash()
                await network.start_crashed()
        await pass_time(network, 400)

        for position in range(2):
            assert await network.missing(question, position) == {2: "stopped", 3: "stopped", 4: "stopped"}
        await network.stop_all()


async def test_a_window_that_opened_before_the_order_came_ends(tmp_path: Path) -> None:
    network = Network(2, limits=LIMITS)
    network.supervised = False
    await network.start_all()
    question = await network.stand()
    await network.stop(1)
    await QuestionDirectory(network.core(0).context, tmp_path).poll()
    (tmp_path / "a.order").write_bytes(encode_signed_order(order(network, question, 1, OrderAction.STOP, 0)))
    await QuestionDirectory(network.core(0).context, tmp_path).poll()
    await network.start(1)
    await network.advance_to(question.schedule.opens(0) + 1)
    await network.core(1).scheduler.open_windows()
    await network.look_after_all()

    states = network.core(1).context.windows.states
    assert states[window_at(question, 0).window_id] is WindowState.ABORTED


# Installing.


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"deployment": "other"}, "deployment"),
        ({"min_batch_size": 9}, "min_batch_size is 9, allowed: at least 10"),
    ],
)
async def test_a_question_beyond_the_operator_s_limits_is_refused(changes: dict[str, object], match: str) -> None:
    network = Network(2, limits=replace(LIMITS, smallest_min_batch_size=10))
    await network.start_all()
    signed, seed = network.question(**{"min_batch_size": 10, **changes})

    with pytest.raises(QuestionError, match=match):
        await install_question(network.core(0).context, signed, seed)
    with pytest.raises(QuestionError, match="seed"):
        await install_question(network.core(0).context, network.question(min_batch_size=10)[0], bytes(32))
    assert not await network.core(0).context.store.read(read_questions)


async def test_a_question_that_is_over_is_refused() -> None:
    network = Network(2, limits=LIMITS)
    await network.start_all()
    signed, seed = network.question()
    network.clock.advance(signed.question.schedule.end - START)

    with pytest.raises(QuestionError, match="past"):
        await install_question(network.core(0).context, signed, seed)

"""The leader fixes the start of a question once, at its submission; nobody else does, and nothing moves it."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.host import Limits
from fleetcount_aggregator.memory.installed import InstalledQuestion
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.release.steps import ReleaseSteps
from fleetcount_aggregator.roles.outcomes import settle_restored
from fleetcount_aggregator.storage.ended import read_costs
from fleetcount_aggregator.storage.question_rows import read_questions
from fleetcount_aggregator.storage.row_types import Charged, Cost
from fleetcount_aggregator.windows.directory import QuestionDirectory
from fleetcount_aggregator.windows.question_install import install_question
from fleetcount_aggregator.windows.question_orders import take_own_order
from fleetcount_protocol.errors import PeerProblem, QuestionError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.messages import InstallQuestion, WindowState
from fleetcount_protocol.question.fields import Schedule, Submission
from fleetcount_protocol.question.orders import OrderAction, QuestionOrder, SignedOrder, sign_order
from fleetcount_protocol.question.question import Question, SignedQuestion, encode_signed_question

from tests.aggregator.roles.test_restore_catchup import Town, states
from tests.support.aggregators import START, Network, answer_all

LIMITS = Limits(smallest_min_batch_size=2, give_up_s=600, first_retry_s=1, longest_retry_s=4)
LATEST = START + 600
COUNTED = Schedule(
    first=None,
    every_s=60,
    windows=5,
    round_one_s=10,
    round_two_s=10,
    expiry_s=86_400,
    submission=Submission(delay_s=15, earliest=START, latest=LATEST),
)
ALPHA = AggregatorId("alpha")


def start_of(network: Network, signed: SignedQuestion, start: int, by: int = 0, number: int = 1) -> SignedOrder:
    seat = network.seats[by]
    order = QuestionOrder(
        question_id=signed.question.question_id,
        number=number,
        action=OrderAction.START,
        aggregator_id=seat.aggregator_id,
        start=start,
    )
    return sign_order(order, seat.signing_key)


def stop_of(network: Network, question: Question, number: int, by: int = 0, window: int = 0) -> SignedOrder:
    seat = network.seats[by]
    order = QuestionOrder(
        question_id=question.question_id,
        number=number,
        action=OrderAction.STOP,
        aggregator_id=seat.aggregator_id,
        from_window=window,
    )
    return sign_order(order, seat.signing_key)


async def running(count: int = 2) -> tuple[Network, SignedQuestion, bytes]:
    network = Network(count, limits=LIMITS)
    await network.start_all()
    return network, *network.question(schedule=COUNTED)


def drop(directory: Path, signed: SignedQuestion, seed: bytes) -> None:
    (directory / "q.seed").write_bytes(seed)
    (directory / "q.seed").chmod(0o600)
    (directory / "q.question").write_bytes(encode_signed_question(signed))


async def test_the_leader_starts_a_question_when_it_is_submitted_and_everybody_has_that_start() -> None:
    network, signed, seed = await running(3)
    network.clock.advance(101)

    installed = await install_question(network.core(0).context, signed, seed)
    await network.look_after_all()

    assert installed.asked.schedule.opens(0) == START + 120, "15 s after 101, on the grid of 10 s"
    for position in range(3):
        known = network.core(position).context.questions[signed.question.question_id]
        assert known.asked.schedule == installed.asked.schedule
        assert [(one.order.number, one.order.start) for one in known.orders] == [(1, START + 120)]
    await network.stop_all()


async def test_the_same_question_again_does_not_move_its_start_nor_does_a_restart(tmp_path: Path) -> None:
    network, signed, seed = await running()
    drop(tmp_path, signed, seed)
    await QuestionDirectory(network.core(0).context, tmp_path).poll()
    first = network.core(0).context.questions[signed.question.question_id]
    await network.stop(0)
    network.clock.advance(200)
    await network.start(0)

    await QuestionDirectory(network.core(0).context, tmp_path).poll()
    again = await install_question(network.core(0).context, signed, seed)

    assert again.asked.schedule == first.asked.schedule
    assert again.orders == first.orders
    await network.stop_all()


async def test_a_leader_that_dies_once_the_start_is_stored_hands_out_that_start() -> None:
    network, signed, seed = await running()
    await network.stop(1)
    installed = await install_question(network.core(0).context, signed, seed)
    await network.stop(0)
    network.clock.advance(30)
    await network.start(0)
    await network.start(1)

    await network.look_after_all()

    for position in range(2):
        known = network.core(position).context.questions[signed.question.question_id]
        assert known.asked.schedule == installed.asked.schedule
    await network.stop_all()


async def test_a_latest_start_that_has_passed_is_refused_the_seed_stays_and_nothing_is_charged(tmp_path: Path) -> None:
    network, signed, seed = await running()
    network.clock.advance(590)
    drop(tmp_path, signed, seed)

    await QuestionDirectory(network.core(0).context, tmp_path).poll()

    said = (tmp_path / "q.refused").read_text()
    assert said == f"the question would start {LATEST + 10}, 15 s after now, allowed: at most {LATEST}," + (
        " the latest start that all signed\n"
    )
    assert (tmp_path / "q.seed").read_bytes() == seed
    assert not await network.core(0).context.store.read(read_questions)
    await network.stop_all()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (lambda network, signed: (), "its leader's start is not with it"),
        (lambda network, signed: (start_of(network, signed, LATEST + 10),), f"allowed: .* {START} to {LATEST}"),
        (lambda network, signed: (start_of(network, signed, START - 10),), f"allowed: .* {START} to {LATEST}"),
        (lambda network, signed: (start_of(network, signed, START + 5),), "not a multiple of time_precision_s = 10"),
        (lambda network, signed: (start_of(network, signed, START + 60, by=1),), "start is beta's, allowed: alpha's"),
        (
            lambda network, signed: (replace(start_of(network, signed, START + 60), signature=bytes(64)),),
            "does not verify",
        ),
    ],
)
async def test_a_helper_takes_no_question_without_a_start_that_all_signed(
    given: Callable[[Network, SignedQuestion], tuple[SignedOrder, ...]], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    network, signed, seed = await running()
    request = InstallQuestion(signed=signed, seed=seed, orders=given(network, signed))

    with pytest.raises(PeerRefusalError) as refused:
        await network.core(1).helper.install_question(ALPHA, request)

    assert refused.value.problem is PeerProblem.WINDOW_REFUSED
    assert re.search(why, str(refused.value.__cause__))
    assert not await network.core(1).context.store.read(read_questions)
    await network.stop_all()


async def test_a_second_start_and_one_for_fixed_times_are_refused_and_change_nothing() -> None:
    network, signed, seed = await running()
    installed = await install_question(network.core(0).context, signed, seed)
    await network.look_after_all()
    helper, fixed = network.core(1).helper, network.question(name="fixed")
    await install_question(network.core(0).context, *fixed)
    await network.look_after_all()
    second = start_of(network, signed, START + 300)
    before = network.core(1).context.questions[signed.question.question_id].asked.schedule

    asked: list[Callable[[], Awaitable[object]]] = [
        lambda: helper.deliver_order(ALPHA, second),
        lambda: helper.install_question(ALPHA, InstallQuestion(signed=signed, seed=seed, orders=(second,))),
        lambda: helper.deliver_order(ALPHA, start_of(network, fixed[0], START + 300)),
    ]
    for ask in asked:
        with pytest.raises(PeerRefusalError) as refused:
            await ask()
        assert refused.value.problem is PeerProblem.CONFLICT
    for order in (second, start_of(network, fixed[0], START + 300)):
        with pytest.raises(QuestionError, match="a start is made by the leader's aggregator"):
            await take_own_order(network.core(0).context.questions, order)
    other = network.question(name="fixed, given a start")
    given = InstallQuestion(signed=other[0], seed=other[1], orders=(start_of(network, other[0], START + 300),))
    with pytest.raises(PeerRefusalError):
        await helper.install_question(ALPHA, given)
    assert network.core(1).context.questions[signed.question.question_id].asked.schedule == before
    assert installed.asked.schedule == before
    await network.stop_all()


async def test_a_leader_put_back_from_before_the_start_adopts_the_start_that_others_have(tmp_path: Path) -> None:
    town = Town(tmp_path, 0, count=3)
    network = town.network
    await network.start_all()
    town.back_up()
    late = replace(COUNTED, submission=Submission(delay_s=300, earliest=START, latest=LATEST))
    signed, seed = network.question(schedule=late)
    first = await install_question(network.core(0).context, signed, seed)
    await network.look_after_all()
    network.clock.advance(60)

    context = await town.lose_and_restore()
    with pytest.raises(QuestionError, match="put back from a backup"):
        await install_question(context, signed, seed)
    await settle_restored(context, ReleaseSteps(context.windows, context.questions, context.workers))
    again = await install_question(context, signed, seed)

    assert again.asked.schedule == first.asked.schedule
    assert again.orders == first.orders
    await network.stop_all()


async def test_a_leader_put_back_from_before_the_start_ends_the_window_that_is_open_and_asks_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    town = Town(tmp_path, 0, count=3)
    network = town.network
    await network.start_all()
    town.back_up()
    signed, seed = network.question(schedule=COUNTED, values=2)
    first = await install_question(network.core(0).context, signed, seed)
    await network.look_after_all()
    schedule, waits = first.asked.schedule, list[float]()
    await answer_all(network, first.window(0).asked, [(0, 1), (2, 2)])

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        assert len(waits) < 5, context.windows.quarantined
        await network.look_after_all()

    context = await town.lose_and_restore()
    # It is due to decide about window 1 as well, and waits until the others, who tell how that ends, have decided too.
    monkeypatch.setattr(
        "fleetcount_aggregator.roles.outcomes.asyncio", SimpleNamespace(sleep=sleep, gather=asyncio.gather)
    )
    await settle_restored(context, ReleaseSteps(context.windows, context.questions, context.workers))
    again = await install_question(context, signed, seed)

    assert len(waits) == 1
    assert again.asked.schedule == schedule
    assert again.orders == first.orders
    assert town.noise.drawn == 0
    assert again.following == 2
    last = again.window(2).asked
    await network.advance_to(last.round_one_opens - 30)
    await network.look_after_all()
    await answer_all(network, last, [(0, 1), (2, 2)], offset=10)
    await network.run_to_the_end(last)
    for index, state in enumerate((WindowState.ABORTED, WindowState.ABORTED, WindowState.RELEASED)):
        assert await states(network, again.window(index).asked) == [state] * 3, index
    await network.stop_all()


async def cost(context: Context, asked: InstalledQuestion) -> Cost:
    charged = Charged(asked.question_id, asked.asked.schedule.windows, asked.was_withdrawn)
    return (await context.store.read(read_costs, [charged]))[0]


async def test_what_is_stopped_before_its_first_window_costs_nothing_and_makes_room() -> None:
    network, signed, seed = await running()
    context = network.core(0).context
    installed = await install_question(context, signed, seed)
    assert await cost(context, installed) is Cost.OPEN

    await take_own_order(context.questions, stop_of(network, signed.question, 2))

    assert await cost(context, installed) is Cost.NOTHING
    later, seed = network.question(schedule=COUNTED, name="asked right")
    await install_question(context, later, seed)
    await network.stop_all()

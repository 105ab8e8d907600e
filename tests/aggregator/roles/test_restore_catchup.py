"""An aggregator put back from a backup takes up again what came after it and goes on; it draws nothing twice."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.release.steps import ReleaseSteps
from fleetcount_aggregator.roles.outcomes import settle_restored
from fleetcount_aggregator.storage.backup import BackupFile, put_back, write_backup
from fleetcount_aggregator.storage.database import RowSeal
from fleetcount_aggregator.storage.rows import read_high_water, read_ledger, read_ledger_rows, read_window
from fleetcount_aggregator.windows.question_install import install_question
from fleetcount_aggregator.windows.question_orders import take_own_order
from fleetcount_protocol.errors import PeerProblem, QuestionError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.messages import InstallQuestion, WindowState
from fleetcount_protocol.question.orders import OrderAction, QuestionOrder, sign_order
from fleetcount_protocol.question.question import SignedQuestion, sign_question
from fleetcount_protocol.shared import SharedIds
from fleetcount_protocol.window.window import Window

from tests.support.aggregators import START, Network, answer_all
from tests.support.counted_noise import CountedNoise


class Town:
    """Aggregators on files as the command has them, one of which loses its state and gets a backup back."""

    def __init__(self, directory: Path, lost: int, count: int = 2) -> None:
        self.directory, self.lost, self.noise = directory, lost, CountedNoise()
        self.network = Network(count, directory=directory, noise=self.noise)
        self.network.supervised = False
        for seat in self.network.seats:
            seat.store_path = directory / seat.aggregator_id / "aggregator.db"
            seat.store_path.parent.mkdir()
        seat = self.network.seats[lost]
        self.name, self.seal = seat.aggregator_id, RowSeal(seat.at_rest_key)

    def back_up(self) -> None:
        about = BackupFile(aggregator_id=self.name, deployment="test", made_at=START, keys=())
        write_backup(StorePlace(directory=self.directory / self.name), self.seal, self.directory / "backup", about, {})

    async def lose_and_restore(self) -> Context:
        await self.network.stop(self.lost)
        (self.directory / self.name).rename(self.directory / "lost")
        place = StorePlace(directory=self.directory / self.name)
        put_back(place, self.directory / "backup", lambda _: self.seal, (self.name, "test"), {})
        return (await self.network.start(self.lost)).context

    async def release(self, name: str, later: int = 0) -> Window:
        """Ask a window, answer it and let it end; each on a signal of its own, so that no budget is in the way."""
        opens = int(self.network.clock.now()) + 10 + later
        windows = {"round_one_opens": opens, "round_one_closes": opens + 10, "round_two_closes": opens + 20}
        signal = "Vehicle." + name.capitalize()
        window = await self.network.ask(values=2, name=name, signal=signal, **windows)
        await answer_all(self.network, window, [(0, 1), (2, 2)])
        await self.network.run_to_the_end(window)
        return window


async def states(network: Network, window: Window) -> Sequence[WindowState]:
    return [
        (await seat.core.service.release(window.window_id)).state for seat in network.seats if seat.core is not None
    ]


@pytest.mark.parametrize("lost", [0, 1], ids=["leader", "helper"])
async def test_a_restored_aggregator_goes_on_after_it_has_taken_up_what_came_after_the_backup(
    tmp_path: Path, lost: int
) -> None:
    town = Town(tmp_path, lost)
    network = town.network
    await network.start_all()
    before = await town.release("before")
    town.back_up()
    during = await town.release("during")
    other = network.core(1 - lost).context
    assert (await other.store.read(read_high_water))[town.name] == 2
    drawn = town.noise.drawn

    context = await town.lose_and_restore()
    assert await context.store.read(read_ledger_rows) == 1
    await settle_restored(context, ReleaseSteps(context.windows, context.questions, context.workers))

    assert town.noise.drawn == drawn, "nothing is drawn again"
    assert await states(network, before) == await states(network, during) == [WindowState.RELEASED] * 2
    answers = [await network.core(seat).service.release(during.window_id) for seat in (0, 1)]
    assert answers[0] == answers[1], "one record"
    assert {row.window_id for row in await context.store.read(read_ledger)} == {before.window_id, during.window_id}
    assert (context.questions.adopting, context.windows.quarantined) == (False, {})
    after = await town.release("after")
    assert await states(network, after) == [WindowState.RELEASED] * 2, "its peers help it again"
    await network.stop(lost)
    again = (await network.start(lost)).context
    assert (again.questions.adopting, again.windows.quarantined, await again.store.read(read_ledger_rows)) == (
        False,
        {},
        3,
    )
    await network.stop_all()


@pytest.mark.parametrize("lost", [0, 1], ids=["leader", "helper"])
async def test_a_window_under_way_of_after_the_backup_ends_once_for_all(tmp_path: Path, lost: int) -> None:
    town = Town(tmp_path, lost)
    network = town.network
    await network.start_all()
    town.back_up()
    window = await network.ask(values=2)
    await answer_all(network, window, [(0, 1), (2, 2)])

    context = await town.lose_and_restore()
    await settle_restored(context, ReleaseSteps(context.windows, context.questions, context.workers))
    await network.run_to_the_end(window)

    assert await states(network, window) == [WindowState.ABORTED] * 2
    assert town.noise.drawn == 0
    row = await context.store.read(read_window, window.window_id)
    assert row is not None
    assert row.abort_reason == "restored_backup"
    assert await context.store.read(read_ledger_rows) == 1, "charged, for nobody here can tell whether it was drawn"
    await network.stop_all()


async def test_nothing_new_is_taken_before_every_peer_has_shown_what_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    town = Town(tmp_path, 1, count=3)
    network = town.network
    await network.start_all()
    town.back_up()
    context = await town.lose_and_restore()
    await network.stop(2)
    signed, seed = network.once(values=2)
    alpha, helper = AggregatorId("alpha"), network.core(1).helper
    request = InstallQuestion(signed=signed, seed=seed, orders=())
    looked: list[PeerProblem] = []

    async def sleep(_: float) -> None:
        with pytest.raises(PeerRefusalError) as refused:
            await helper.install_question(alpha, request)
        looked.append(refused.value.problem)
        await network.start(2)

    monkeypatch.setattr(
        "fleetcount_aggregator.roles.outcomes.asyncio", SimpleNamespace(sleep=sleep, gather=asyncio.gather)
    )
    await settle_restored(context, ReleaseSteps(context.windows, context.questions, context.workers))

    assert looked == [PeerProblem.BUSY], "gamma was away once"
    assert (await helper.install_question(alpha, request)).question_id == signed.question.question_id
    await network.stop_all()


async def test_an_aggregator_shows_a_question_to_those_who_are_named_in_it_and_junk_is_not_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    town = Town(tmp_path, 0, count=3)
    network = town.network
    await network.start_all()
    town.back_up()
    pair = tuple(seat.aggregator for seat in network.seats[1:])
    named, seed = network.once(values=2)
    theirs = replace(named.question, aggregators=tuple(replace(one, hpke_keys=()) for one in pair))
    signatures = tuple(sign_question(theirs, seat.signing_key) for seat in network.seats[1:])
    await install_question(network.core(1).context, SignedQuestion(question=theirs, signatures=signatures), seed)
    helper = network.core(1).helper
    assert (await helper.shared(town.name, None)).question_ids == ()
    assert (await helper.shared(AggregatorId("gamma"), None)).question_ids == (theirs.question_id,)
    with pytest.raises(PeerRefusalError, match="unknown_window"):
        await helper.shared_question(town.name, theirs.question_id)
    forged = replace(named, signatures=(bytes(64), *named.signatures[1:]))
    context = await town.lose_and_restore()

    async def shown(*_: object) -> object:
        return InstallQuestion(signed=forged, seed=seed, orders=())

    async def lists(*_: object) -> object:
        return SharedIds(question_ids=(named.question.question_id,))

    monkeypatch.setattr(type(helper), "shared_question", shown)
    monkeypatch.setattr(type(helper), "shared", lists)
    monkeypatch.setattr(
        "fleetcount_aggregator.roles.outcomes.asyncio", SimpleNamespace(sleep=None, gather=asyncio.gather)
    )  # It waits for nobody.
    await settle_restored(context, ReleaseSteps(context.windows, context.questions, context.workers))

    assert named.question.question_id not in context.questions, "its operator never signed it"
    assert await context.store.read(read_ledger_rows) == 0
    await network.stop_all()


async def test_windows_and_orders_of_after_the_backup_are_taken_up_and_the_question_goes_on(tmp_path: Path) -> None:
    town = Town(tmp_path, 1)
    network = town.network
    await network.start_all()
    town.back_up()
    question = await network.stand(values=2)

    async def released_at(index: int) -> Window:
        await network.advance_to(question.schedule.opens(index) - 30)
        await network.look_after_all()
        windows = [one.asked for one in network.core(1).context.windows.live.values()]
        [window] = [one for one in windows if one.question.index == index]
        await answer_all(network, window, [(0, 1), (2, 2)], offset=10 * index)
        await network.run_to_the_end(window)
        return window

    released = await released_at(0)
    last = question.schedule.windows - 1
    stop = QuestionOrder(
        question_id=question.question_id, number=1, action=OrderAction.STOP, aggregator_id=town.name, from_window=last
    )
    await take_own_order(network.core(1).context.questions, sign_order(stop, network.seats[1].signing_key))
    await network.look_after_all()

    context = await town.lose_and_restore()
    assert question.question_id not in context.questions
    await settle_restored(context, ReleaseSteps(context.windows, context.questions, context.workers))

    assert question.question_id in context.questions
    assert await states(network, released) == [WindowState.RELEASED] * 2
    following = await released_at(context.questions[question.question_id].following)
    assert await states(network, following) == [WindowState.RELEASED] * 2, "its record names the one before"
    assert [one.order for one in context.questions[question.question_id].orders] == [stop]
    await network.advance_to(question.schedule.end)
    await network.look_after_all()
    assert (await network.missing(question, 1))[last] == "stopped"
    await network.stop_all()


async def test_a_leader_that_was_put_back_refuses_nothing_for_good_while_it_asks(tmp_path: Path) -> None:
    town = Town(tmp_path, 0)
    network = town.network
    await network.start_all()
    town.back_up()
    context = await town.lose_and_restore()

    assert context.questions.adopting
    with pytest.raises(QuestionError, match="put back"):
        await install_question(context, *network.once(values=2))
    await settle_restored(context, ReleaseSteps(context.windows, context.questions, context.workers))
    await install_question(context, *network.once(values=2))
    await network.stop_all()

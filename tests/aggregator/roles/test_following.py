"""A process that does not coordinate knows what the database says, and no key that was erased there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

from fleetcount_aggregator.agreement.report_set import abort_here
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.durable_steps import KEPT, move
from fleetcount_aggregator.memory.windows import Windows
from fleetcount_aggregator.roles.following import Following
from fleetcount_aggregator.storage import ended
from fleetcount_aggregator.storage.changes import Changes
from fleetcount_aggregator.storage.ended import ArchivedWindow, archive_windows, forget_windows, read_active
from fleetcount_aggregator.storage.errors import StoreAwayError, StoreError
from fleetcount_aggregator.storage.instalment_run import InstalmentRun, StoreOutcome
from fleetcount_aggregator.storage.postgres import Server
from fleetcount_aggregator.storage.question_rows import archive_question
from fleetcount_aggregator.storage.rows import read_canonical
from fleetcount_aggregator.storage.session_chains import PackedSession
from fleetcount_aggregator.storage.session_rows import put_chains
from fleetcount_aggregator.storage.store import Store
from fleetcount_aggregator.windows.retention import Retention
from fleetcount_aggregator.windows.windows import decide_windows
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.messages import WindowState

from tests.support.aggregators import Network
from tests.support.replica_stores import replica_store

ONE, OTHER = b"\1" * 16, b"\2" * 16


@dataclass
class Pair:
    """A coordinator, and a process that follows it over the same database."""

    network: Network
    context: Context
    following: Following
    leads: list[bool]


@pytest.fixture
async def pair(postgres_url: str, tmp_path: Path) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as opened:
        one, two = [await opened.enter_async_context(replica_store(postgres_url, tmp_path)) for _ in range(2)]
        assert one.lead() == 1
        network = Network(2)
        network.seats[0].open_store = lambda: one.store  # type: ignore[method-assign]
        await network.start_all()
        own = network.core(0).context
        context = Context.over(own.host, two.store, own.workers, own.peers)
        leads = [False]
        yield Pair(
            network,
            context,
            Following(
                context.windows,
                context.questions,
                Changes(two.link),
                leads=lambda: leads[0],
                forget_destroyed=two.store.forget_destroyed,
            ),
            leads,
        )


async def test_windows_and_question_are_those_of_the_database(pair: Pair) -> None:
    await pair.following.look()
    assert pair.context.windows.states == {}

    window = await pair.network.ask()
    question = await pair.network.stand()
    await pair.following.look()

    assert pair.context.windows.states[window.window_id] is WindowState.ANNOUNCED
    asked_once = pair.network.core(0).context
    assert (
        pair.context.windows.live[window.window_id].verify_key == asked_once.windows.live[window.window_id].verify_key
    )
    assert question.question_id in pair.context.questions
    await move(pair.network.core(0).context.windows, window.window_id, WindowState.ABORTED)
    pair.following.missed()
    await pair.following.look()
    assert pair.context.windows.states[window.window_id] is WindowState.ABORTED
    assert window.window_id not in pair.context.windows.live
    assert [window_id for window_id, _ in pair.context.windows.outcomes.since(0)] == [window.window_id]


async def test_a_session_whose_keys_were_erased_is_forgotten_also_while_it_is_read(pair: Pair) -> None:
    await pair.following.look()
    sessions = pair.context.windows.sessions
    for session_id in (ONE, OTHER):
        sessions.live[session_id] = PackedSession(bytes(140))

    with sessions.reading([ONE, OTHER]) as forgotten:
        await pair.network.core(0).context.store.write(put_chains, [(ONE, b"moved on")])
        await pair.following.look()
        assert list(sessions.live) == [OTHER]
        assert forgotten == {ONE}
        pair.following.missed()
        assert sessions.live == {}
        assert forgotten == {ONE, OTHER}


async def test_the_coordinator_keeps_its_own_sessions_in_step_by_itself(pair: Pair) -> None:
    await pair.following.look()
    pair.context.windows.sessions.live[ONE] = PackedSession(bytes(140))
    pair.leads[0] = True
    await pair.network.core(0).context.store.write(put_chains, [(ONE, b"moved on")])
    await pair.following.look()
    assert list(pair.context.windows.sessions.live) == [ONE]


async def test_what_failed_to_be_taken_up_is_looked_at_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    await pair.following.look()
    window, follow = await pair.network.ask(), Windows.follow

    async def fails(windows: Windows, window_id: WindowId) -> None:
        monkeypatch.setattr(Windows, "follow", follow)
        raise StoreAwayError("the server is away")

    monkeypatch.setattr(Windows, "follow", fails)
    with pytest.raises(StoreAwayError):
        await pair.following.look()
    await pair.following.look()

    assert pair.context.windows.states[window.window_id] is WindowState.ANNOUNCED


@pytest.mark.parametrize("heard", [True, False])
async def test_nothing_is_held_of_a_window_whose_key_was_destroyed_elsewhere_heard_of_or_not(
    pair: Pair, heard: bool
) -> None:
    window = await pair.network.ask()
    coordinator, store = pair.network.core(0).context, pair.context.store
    assert isinstance(store, Store)
    await pair.following.look()
    store.data_keys.of(window.window_id)
    run = InstalmentRun(
        window_id=window.window_id,
        round=1,
        expected=2,
        report_ids=bytes(16),
        certificates=bytes(32),
        digests=bytes(32),
        public_shares=b"",
        parts=b"part",
    )
    assert await store.add_instalments([run]) == [bytes((StoreOutcome.STORED,))]
    assert store.logs.writes(window.window_id)
    await move(coordinator.windows, window.window_id, WindowState.ABORTED)
    await coordinator.windows.purge(window.window_id)

    if not heard:
        pair.following.missed()
    await pair.following.look()

    assert not store.logs.writes(window.window_id)
    with pytest.raises(StoreError, match="no data key"):
        store.data_keys.of(window.window_id)


async def test_who_is_elected_finishes_a_purge_that_was_cut_off_since_its_start(pair: Pair) -> None:
    window = await pair.network.ask()
    coordinator = pair.network.core(0).context
    await move(coordinator.windows, window.window_id, WindowState.ABORTED)
    assert window.window_id in coordinator.store.data_keys.held()

    await coordinator.windows.load(coordinator.questions)

    assert window.window_id not in coordinator.store.data_keys.held()


async def test_who_is_elected_drives_no_window_that_has_come_to_rest_unheard(pair: Pair) -> None:
    window = await pair.network.ask()
    await pair.following.look()
    coordinator = pair.network.core(0).context
    await move(coordinator.windows, window.window_id, WindowState.ABORTED)
    await coordinator.store.write(
        archive_windows, [ArchivedWindow(window_id=window.window_id, expiry=window.expiry, led=True)]
    )
    assert pair.context.windows.states[window.window_id] is WindowState.ANNOUNCED

    await pair.context.windows.load(pair.context.questions)

    assert pair.context.windows.states[window.window_id] is WindowState.ABORTED
    assert (pair.context.windows.live, pair.context.windows.due) == ({}, {})


async def test_who_is_elected_has_no_question_that_was_put_to_rest_and_forgotten_unheard(pair: Pair) -> None:
    question = await pair.network.stand()
    coordinator, store = pair.network.core(0).context, pair.context.store
    assert isinstance(store, Store)
    pair.network.clock.advance(question.schedule.end + 365 * 86_400 - pair.network.clock.now())
    await decide_windows(coordinator, question.question_id)
    await pair.following.look()
    assert list(pair.context.questions) == [question.question_id]
    await coordinator.store.write(archive_question, question.question_id, question.schedule.end, "keys/")
    await coordinator.store.write(lambda db: ended._forget_question(db, question.question_id))  # type: ignore[attr-defined]

    store.engine.epoch = 1  # type: ignore[misc]
    await pair.context.questions.load(pair.context.windows)
    await pair.context.windows.load(pair.context.questions)
    await Retention(pair.context.windows, pair.context.questions).look()

    assert pair.context.questions == {}


async def test_who_is_elected_again_puts_no_window_to_rest_that_was_forgotten_meanwhile(pair: Pair) -> None:
    window = await pair.network.ask()
    await pair.following.look()
    coordinator, store = pair.network.core(0).context, pair.context.store
    assert isinstance(store, Store)
    windows = pair.context.windows
    windows._ended[window.window_id] = windows.live[window.window_id]  # As its last term has left it.
    await abort_here(coordinator.windows, window.window_id, "peer_aborted")
    await coordinator.store.write(
        archive_windows, [ArchivedWindow(window_id=window.window_id, expiry=window.expiry, led=True)]
    )
    await coordinator.store.retire([window.window_id], KEPT)
    await coordinator.store.write(forget_windows, [window.window_id])

    store.engine.epoch = 1  # type: ignore[misc]
    await pair.context.windows.load(pair.context.questions)
    await Retention(pair.context.windows, pair.context.questions).look()

    assert (pair.context.windows.live, pair.context.windows.ended) == ({}, {})


@pytest.mark.parametrize("led_before", [False, True])
async def test_who_is_elected_after_another_has_settled_a_damaged_window_has_it_in_no_quarantine(
    pair: Pair, postgres_url: str, tmp_path: Path, led_before: bool
) -> None:
    """So it is with the windows of a store that was put back: no backup has their data keys."""
    damaged = await pair.network.ask()
    await asyncio.to_thread(pair.network.core(0).context.store.data_keys.destroy, damaged.window_id)
    async with replica_store(postgres_url, tmp_path) as late:
        windows = Context.over(pair.context.host, late.store, pair.context.workers).windows
        if led_before:
            await windows.load(pair.context.questions)
            assert list(windows.quarantined) == [damaged.window_id]

        await move(pair.network.core(0).context.windows, damaged.window_id, WindowState.ABORTED)
        await windows.load(pair.context.questions)

        assert windows.quarantined == {}


async def test_a_server_that_is_away_while_windows_are_taken_up_damages_none(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = await pair.network.ask()
    coordinator = pair.network.core(0).context
    store = coordinator.store
    assert isinstance(store, Store)
    link, nobody = store.engine._reader, Server(url="postgresql://127.0.0.1:1/nobody")  # type: ignore[attr-defined]
    here, read = link._server, store.read

    async def lose_and_come_back(work: Any, *args: Any) -> Any:
        if work is read_canonical:
            link._server = here
        found = await read(work, *args)
        if work is read_active:
            link.close()
            link._server = nobody
        return found

    monkeypatch.setattr(store, "read", lose_and_come_back)
    with pytest.raises(StoreAwayError):
        await coordinator.windows.load(coordinator.questions)
    link._server = here
    assert coordinator.windows.quarantined == {}

    keys = store.data_keys
    link = keys._place._link  # type: ignore[attr-defined]
    link.close()
    link._server = nobody
    monkeypatch.setattr(keys, "seals_store", lambda: True)
    with pytest.raises(StoreAwayError):
        keys.take_up([window.window_id])
    link._server = here

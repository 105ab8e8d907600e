"""A process that does not coordinate knows what the database says, and no key that was erased there."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

from fleetcount_aggregator.agreement.report_set import abort_here
from fleetcount_aggregator.context import Context
from fleetcount_aggregator.host.states import State
from fleetcount_aggregator.journal import KEPT, move
from fleetcount_aggregator.roles.following import Following
from fleetcount_aggregator.storage import archive_rows
from fleetcount_aggregator.storage.archive import RestRow
from fleetcount_aggregator.storage.postgres import Server
from fleetcount_aggregator.storage.session_chains import PackedSession
from fleetcount_aggregator.storage.sql_store import SqlStore
from fleetcount_aggregator.storage.store import StoreAwayError, StoreError
from fleetcount_aggregator.tasks.loading import load_tasks
from fleetcount_aggregator.tasks.retention import Retention
from fleetcount_aggregator.tasks.series_install import load_series
from fleetcount_aggregator.tasks.windows import decide_windows
from fleetcount_protocol.ids import TaskId

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
        assert await one.member.stand() == 1
        one.lead(1)
        network = Network(2)
        network.seats[0].open_store = lambda: one.store  # type: ignore[method-assign]
        await network.start_all()
        empty: dict[str, object] = {
            "tasks": {},
            "states": {},
            "live": {},
            "awake": {},
            "series": {},
            "sessions": {},
            "outcomes": [],
            "ended": {},
            "purged": set(),
        }
        context = replace(network.core(0).context, store=two.store, **empty)  # type: ignore[arg-type]
        leads = [False]
        yield Pair(
            network,
            context,
            Following(context, leads=lambda: leads[0], forget_destroyed=two.store.forget_destroyed),
            leads,
        )


async def test_tasks_and_series_are_those_of_the_database(pair: Pair) -> None:
    await pair.following.follow()
    assert pair.context.states == {}

    task = await pair.network.ask()
    series = await pair.network.stand()
    pair.following.task_changed(task.task_id.hex())
    pair.following.series_changed(series.series_id.hex())
    await pair.following.follow()

    assert pair.context.states[task.task_id] is State.ANNOUNCED
    asked_once = pair.network.core(0).context
    assert pair.context.live[task.task_id].verify_key == asked_once.live[task.task_id].verify_key
    assert list(pair.context.series) == [series.series_id]
    await move(pair.network.core(0).context, task.task_id, State.ABORTED)
    pair.following.missed()
    await pair.following.follow()
    assert pair.context.states[task.task_id] is State.ABORTED
    assert task.task_id not in pair.context.live
    assert [task_id for task_id, _ in pair.context.outcomes] == [task.task_id]


async def test_a_session_whose_keys_were_erased_is_forgotten_also_while_it_is_read(pair: Pair) -> None:
    for session_id in (ONE, OTHER):
        pair.context.sessions[session_id] = PackedSession(bytes(140))

    with pair.context.reading_sessions([ONE, OTHER]) as forgotten:
        pair.following.chain_changed(ONE.hex())
        assert list(pair.context.sessions) == [OTHER]
        assert forgotten == {ONE}
        pair.following.missed()
        assert pair.context.sessions == {}
        assert forgotten == {ONE, OTHER}


async def test_the_coordinator_keeps_its_own_sessions_in_step_by_itself(pair: Pair) -> None:
    pair.context.sessions[ONE] = PackedSession(bytes(140))
    pair.leads[0] = True
    pair.following.chain_changed(ONE.hex())
    assert list(pair.context.sessions) == [ONE]


@pytest.mark.parametrize("heard", [True, False])
async def test_nothing_is_held_of_a_task_whose_key_was_destroyed_elsewhere_heard_of_or_not(
    pair: Pair, heard: bool
) -> None:
    task = await pair.network.ask()
    coordinator, store = pair.network.core(0).context, pair.context.store
    assert isinstance(store, SqlStore)
    await pair.following.follow()
    store.data_keys.of(task.task_id)
    store.logs.take(task.task_id, 0, 0)
    await move(coordinator, task.task_id, State.ABORTED)
    await coordinator.purge(task.task_id)

    if heard:
        pair.following.key_destroyed("its name")
    else:
        pair.following.missed()
    await pair.following.follow()

    assert not store.logs.writes(task.task_id, 0)
    with pytest.raises(StoreError, match="no data key"):
        store.data_keys.of(task.task_id)


async def test_who_is_elected_finishes_a_purge_that_was_cut_off_since_its_start(pair: Pair) -> None:
    task = await pair.network.ask()
    coordinator = pair.network.core(0).context
    await move(coordinator, task.task_id, State.ABORTED)
    assert task.task_id in coordinator.store.data_keys.held()

    await load_tasks(coordinator)

    assert task.task_id not in coordinator.store.data_keys.held()


async def test_who_is_elected_drives_no_task_that_has_come_to_rest_unheard(pair: Pair) -> None:
    task = await pair.network.ask()
    await pair.following.follow()
    coordinator = pair.network.core(0).context
    await move(coordinator, task.task_id, State.ABORTED)
    await coordinator.store.put_to_rest([RestRow(task_id=task.task_id, expiry=task.expiry, led=True)])
    assert pair.context.states[task.task_id] is State.ANNOUNCED

    await load_tasks(pair.context)

    assert pair.context.states[task.task_id] is State.ABORTED
    assert (pair.context.live, pair.context.awake) == ({}, {})


async def test_who_is_elected_has_no_series_that_was_put_to_rest_and_forgotten_unheard(pair: Pair) -> None:
    series = await pair.network.stand()
    coordinator, store = pair.network.core(0).context, pair.context.store
    assert isinstance(store, SqlStore)
    pair.network.clock.advance(series.schedule.end + 365 * 86_400 - pair.network.clock.now())
    await decide_windows(coordinator, series.series_id)
    await pair.following.follow()
    assert list(pair.context.series) == [series.series_id]
    await coordinator.store.rest_series(series.series_id, series.schedule.end, "keys/")
    await coordinator.store.mend(lambda db: archive_rows._forget_series(db, series.series_id))  # type: ignore[attr-defined]

    store.engine.epoch = 1  # type: ignore[misc]
    await load_series(pair.context)
    await load_tasks(pair.context)
    await Retention(pair.context).look()

    assert pair.context.series == {}


async def test_who_is_elected_again_puts_no_task_to_rest_that_was_forgotten_meanwhile(pair: Pair) -> None:
    task = await pair.network.ask()
    await pair.following.follow()
    coordinator, store = pair.network.core(0).context, pair.context.store
    assert isinstance(store, SqlStore)
    pair.context.ended[task.task_id] = pair.context.live[task.task_id]  # As its last term has left it.
    await abort_here(coordinator, task.task_id, "peer_aborted")
    await coordinator.store.put_to_rest([RestRow(task_id=task.task_id, expiry=task.expiry, led=True)])
    await coordinator.store.retire([task.task_id], KEPT)
    await coordinator.store.forget([task.task_id])

    store.engine.epoch = 1  # type: ignore[misc]
    await load_tasks(pair.context)
    await Retention(pair.context).look()

    assert (pair.context.live, pair.context.ended) == ({}, {})


@pytest.mark.parametrize("led_before", [False, True])
async def test_who_is_elected_after_another_has_settled_a_damaged_task_has_it_in_no_quarantine(
    pair: Pair, postgres_url: str, tmp_path: Path, led_before: bool
) -> None:
    """So it is with the tasks of a store that was put back: no backup has their data keys."""
    damaged = await pair.network.ask()
    await asyncio.to_thread(pair.network.core(0).context.store.data_keys.destroy, damaged.task_id)
    async with replica_store(postgres_url, tmp_path) as late:
        context = replace(pair.context, store=late.store, quarantined={})
        if led_before:
            await load_tasks(context)
            assert list(context.quarantined) == [damaged.task_id]

        await move(pair.network.core(0).context, damaged.task_id, State.ABORTED)
        await load_tasks(context)

        assert context.quarantined == {}


async def test_a_server_that_is_away_while_tasks_are_taken_up_damages_none(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await pair.network.ask()
    coordinator = pair.network.core(0).context
    store = coordinator.store
    assert isinstance(store, SqlStore)
    link, nobody = store.engine._reader, Server(url="postgresql://127.0.0.1:1/nobody")  # type: ignore[attr-defined]
    here, read_in_work, read_canonical = link._server, store.tasks_in_work, store.canonical

    async def read_and_lose() -> Sequence[TaskId]:
        found = await read_in_work()
        link.close()
        link._server = nobody
        return found

    async def come_back_and_read(task_id: TaskId) -> bytes | None:
        link._server = here
        return await read_canonical(task_id)

    monkeypatch.setattr(store, "tasks_in_work", read_and_lose)
    monkeypatch.setattr(store, "canonical", come_back_and_read)
    with pytest.raises(StoreAwayError):
        await load_tasks(coordinator)
    link._server = here
    assert coordinator.quarantined == {}

    keys = store.data_keys
    link = keys._place._link  # type: ignore[attr-defined]
    link.close()
    link._server = nobody
    monkeypatch.setattr(keys, "seals_store", lambda: True)
    with pytest.raises(StoreAwayError):
        keys.take_up([task.task_id])
    link._server = here

"""The owner of its shard decides about an instalment, wherever it came in; who owns it no more decides nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, NoReturn

import numpy as np
import pytest

pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")

from fleetcount_aggregator.storage import postgres_frames, report_log
from fleetcount_aggregator.storage.database import Database
from fleetcount_aggregator.storage.errors import StoreError
from fleetcount_aggregator.storage.instalment_run import StoreOutcome
from fleetcount_aggregator.storage.postgres_frames import PatientLink
from fleetcount_aggregator.storage.row_types import WindowChange, WindowRow
from fleetcount_aggregator.storage.shard_leases import ShardLeases, TakenShard
from fleetcount_protocol.ids import Digest, ReportId, WindowId
from fleetcount_protocol.messages import WindowState

from tests.support.instalments import StoredInstalment, outcomes_of, runs_of
from tests.support.processes import pace
from tests.support.replica_stores import ReplicaStore, replica_store

WINDOW = WindowId(b"t" * 32)
CLOSE = WindowChange(window_id=WINDOW, required=frozenset({WindowState.COLLECTING}), new_state=WindowState.AGREEING)
STORED, SAME, BUSY = StoreOutcome.STORED, StoreOutcome.SAME, StoreOutcome.BUSY


@pytest.fixture
async def pair(postgres_url: str, tmp_path: Path) -> AsyncIterator[tuple[ReplicaStore, ReplicaStore]]:
    """Two processes over one database with one open window, cut into four shards that nobody owns yet."""
    async with AsyncExitStack() as opened:
        one, two = [await opened.enter_async_context(replica_store(postgres_url, tmp_path)) for _ in range(2)]
        assert one.lead() == 1
        row = WindowRow(
            window_id=WINDOW,
            canonical=b"window",
            verify_key=b"",
            state=WindowState.COLLECTING,
            abort_reason="",
            installed_at=7,
        )
        await asyncio.to_thread(one.store.data_keys.make, WINDOW)
        await one.store.decide_windows((), row)
        yield one, two


def instalment(number: int, content: int = 0) -> StoredInstalment:
    """Return an instalment; sixteen numbers fill four shards evenly."""
    return StoredInstalment(
        window_id=WINDOW,
        report_id=ReportId(bytes((16 * number, number)) + bytes(14)),
        round=0,
        certificate=Digest(number.to_bytes(32)),
        digest=Digest(bytes((number, content)) + bytes(30)),
        public_share=b"",
        part=b"part of %2d" % number,
        expected=1,
    )


async def give(replica: ReplicaStore, rows: Sequence[StoredInstalment]) -> list[StoreOutcome]:
    return outcomes_of(await replica.reports.add_instalments(runs_of(rows)))


async def test_whatever_replica_takes_them_each_instalment_meets_its_one_owner(
    pair: tuple[ReplicaStore, ReplicaStore],
) -> None:
    one, two = pair
    rows = [instalment(number) for number in range(16)]
    assert await give(one, rows) == [BUSY] * 16
    await asyncio.gather(one.keeper.take(), two.keeper.take())
    await one.keeper.take()  # Of two that take at once, one may have to look again.
    await two.keeper.take()
    assert [one.keeper.count, two.keeper.count] == [2, 2]

    first = await asyncio.gather(give(one, rows[::2]), give(two, rows[1::2]))

    assert list(first) == [[STORED] * 8] * 2
    assert await give(two, rows) == [SAME] * 16
    other = [instalment(number, content=9) for number in range(16)]
    assert await give(one, other) == [StoreOutcome.OTHER_BYTES] * 16
    asked = [row.report_id for row in rows] + [ReportId(b"\xff" * 16)]
    for replica in pair:
        assert await replica.reports.stored(WINDOW, 0, asked) == [*(row.digest for row in rows), None]


async def test_an_owner_that_is_gone_is_followed_and_what_it_receipted_is_known(
    pair: tuple[ReplicaStore, ReplicaStore],
) -> None:
    one, two = pair
    rows = [instalment(number) for number in range(16)]
    await one.keeper.take()
    await two.keeper.take()
    assert await give(one, rows[:8]) == [STORED] * 8
    assert one.keeper.count == 2

    await one.server.stop(0)
    assert BUSY in await give(two, rows)  # Nobody has the shards of the dead yet: its lease runs still.
    await one.run_out()
    await two.keeper.take()

    assert two.keeper.count == 4
    assert await give(two, rows[:8]) == [SAME] * 8
    assert set(await give(two, rows[8:])) <= {STORED, SAME}


async def test_an_owner_that_was_followed_stores_nothing_and_gives_no_receipt(
    pair: tuple[ReplicaStore, ReplicaStore],
) -> None:
    one, two = pair
    rows = [instalment(number) for number in range(16)]
    await one.keeper.take()
    await two.keeper.take()
    held = [row for row in rows if one.keeper.owns(WINDOW, row.report_id[0] // 64)]
    await one.run_out()
    await two.keeper.take()

    # It has not noticed: by its own clock it holds its lease.
    assert one.member.holds
    assert await give(one, held) == [BUSY] * len(held)
    assert await give(two, held) == [STORED] * len(held)
    one.keeper.lost()
    await one.keeper.settle()
    assert await give(one, held) == [SAME] * len(held)


async def test_a_shard_whose_taking_had_its_answer_lost_or_that_is_written_no_more_is_taken_again(
    pair: tuple[ReplicaStore, ReplicaStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = pair
    rows = [instalment(number) for number in range(16)]
    taking = ShardLeases.take

    async def lost(leases: ShardLeases, members: int, passed: Sequence[tuple[WindowId, int]]) -> NoReturn:
        await taking(leases, members, passed)
        raise StoreError("the database does not answer")

    monkeypatch.setattr(ShardLeases, "take", lost)
    with pytest.raises(StoreError):
        await one.keeper.take()
    monkeypatch.undo()
    await one.keeper.take()
    await one.keeper.take()
    first = await give(one, rows)
    assert STORED in first

    [shard, *_] = [shard for shard in range(4) if one.keeper.owns(WINDOW, shard)]
    one.store.logs.give_up(WINDOW, shard)
    await one.keeper.take()

    assert await give(one, rows) == [SAME if outcome is STORED else outcome for outcome in first]


@pytest.mark.parametrize("why", ["written no more", "beyond its part"])
async def test_a_shard_whose_giving_back_failed_is_given_back_later(
    pair: tuple[ReplicaStore, ReplicaStore], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    one, two = pair
    await two.run_out()
    await one.keeper.take()
    assert one.keeper.count == 4
    rows = [instalment(number) for number in range(16)]
    if why == "written no more":
        one.store.logs.give_up(WINDOW, 1)
    else:
        await two.member.join()

    async def refused(leases: ShardLeases, kept: object) -> NoReturn:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(ShardLeases, "keep_only", refused)
        with pytest.raises(StoreError):
            await one.keeper.take()
    for replica in (one, two, one):
        await replica.keeper.take()

    assert await give(one, rows) == [STORED] * 16


@pytest.mark.parametrize("renamed", [True, False])
async def test_a_shard_taken_while_the_lease_was_not_sure_is_taken_again(
    pair: tuple[ReplicaStore, ReplicaStore], monkeypatch: pytest.MonkeyPatch, renamed: bool
) -> None:
    one, two = pair
    await two.run_out()
    take = ShardLeases.take

    async def late(leases: ShardLeases, *arguments: Any) -> list[TakenShard]:
        if renamed:  # It had not been heard of, and joined anew while the keeper waited for the database.
            one.keeper.lost()
            await one.member.join()
        taken = await take(leases, *arguments)
        if not renamed:  # Half a lease is over, and the next renewal comes in time.
            one.member._renewed_at = -float("inf")
        return taken

    with monkeypatch.context() as patched:
        patched.setattr(ShardLeases, "take", late)
        await one.keeper.take()
    if not renamed:
        await one.member.renew()
    for _ in range(2):
        await one.keeper.take()

    assert await give(one, [instalment(number) for number in range(16)]) == [STORED] * 16


_PAUSED = (
    "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN PERFORM pg_advisory_lock_shared(7), pg_advisory_unlock_shared(7); RETURN NULL; END $$",
    # Before the statement looks at any row, and after what it will see of them is settled.
    "CREATE TRIGGER pause BEFORE UPDATE ON shards FOR EACH STATEMENT"
    " WHEN (current_setting('test.pause', true) = 'on') EXECUTE FUNCTION pause()",
)


@pytest.mark.parametrize("how", ["joined and took it", "renewed its lease"])
async def test_a_shard_whose_owner_came_to_life_while_another_looked_for_shards_stays_its_own(
    pair: tuple[ReplicaStore, ReplicaStore], how: str
) -> None:
    looking, owner = pair
    owning = ShardLeases(owner.link, owner.member)
    if how == "renewed its lease":
        assert len(await owning.take(1)) == 4
        await owner.run_out()
    else:
        await owner.member.leave()
    for statement in (*_PAUSED, "SELECT pg_advisory_lock(7)"):
        await owner.link.rows(statement)
    await looking.link.rows("SET test.pause = 'on'")
    taking = asyncio.create_task(ShardLeases(looking.link, looking.member).take(1))
    here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    while not await owner.link.rows(f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND {here}"):
        await asyncio.sleep(0.01)
    if how == "renewed its lease":
        lives = "UPDATE members SET until = clock_timestamp() + interval '1 minute' WHERE member = %s"
        await owner.link.rows(lives, owner.member.name)
    else:
        await owner.member.join()
        assert len(await owning.take(1)) == 4
    await owner.link.rows("SELECT pg_advisory_unlock(7)")

    assert await taking == []


async def test_a_shard_of_many_small_writes_is_taken_over_with_nothing_lost_or_doubled(
    pair: tuple[ReplicaStore, ReplicaStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_frames, "_FRAMES_AT_ONCE", (3, 16))
    monkeypatch.setattr(report_log, "_ROWS_AT_ONCE", 10)
    one, two = pair
    await one.keeper.take()
    await one.keeper.take()
    rows = [
        replace(instalment(0), report_id=ReportId(n.to_bytes(16)), certificate=Digest(n.to_bytes(32)))
        for n in range(120)
    ]
    for at in range(0, 100, 2):
        assert await give(one, rows[at : at + 2]) == [STORED] * 2
    taking = asyncio.create_task(two.keeper.run())
    await one.run_out()

    while BUSY in (found := await give(two, rows)):
        await asyncio.sleep(0.02 * pace())
    taking.cancel()
    await asyncio.wait([taking])

    assert found == [SAME] * 100 + [STORED] * 20
    late = replace(rows[0], report_id=ReportId(b"\0" + b"\1" * 15), certificate=Digest(b"l" * 32))
    assert await give(one, [late]) == [BUSY], "who was followed gives no receipt"
    held = await two.store.complete_reports(WINDOW)
    assert held.ids.at(np.arange(len(held.ids))) == b"".join(row.report_id for row in rows)


async def test_a_closed_window_takes_nothing_from_anybody_and_has_every_owners_reports(
    pair: tuple[ReplicaStore, ReplicaStore],
) -> None:
    one, two = pair
    rows = [instalment(number) for number in range(16)]
    await one.keeper.take()
    await two.keeper.take()
    assert await give(two, rows[:12]) == [STORED] * 12

    await one.store.apply(CLOSE)

    for replica in pair:
        assert await give(replica, rows) == [SAME] * 12 + [StoreOutcome.CLOSED] * 4
    complete = await one.store.complete_reports(WINDOW)
    assert complete.ids.at(np.arange(12)) == b"".join(row.report_id for row in rows[:12])
    assert len(complete.ids) == 12


@pytest.mark.parametrize("stored", [True, False])
async def test_who_is_elected_while_its_own_append_is_under_way_counts_what_lies_in_the_closed_window(
    pair: tuple[ReplicaStore, ReplicaStore], monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    one, two = pair
    await one.keeper.take()
    await two.keeper.take()
    rows = [instalment(number) for number in range(16)]
    held = [row for row in rows if two.keeper.owns(WINDOW, row.report_id[0] // 64)]
    assert await give(two, held[:3]) == [STORED] * 3
    run, begun, gate = PatientLink.run, Event(), Event()

    def under_way(link: PatientLink, work: Callable[[Database], Any]) -> Any:
        """The server has done it already, or does not have it yet; who asked hears nothing for a while."""
        monkeypatch.setattr(PatientLink, "run", run)
        result = run(link, work) if stored else None
        begun.set()
        assert gate.wait(60)
        return result if stored else run(link, work)

    monkeypatch.setattr(PatientLink, "run", under_way)
    late = asyncio.create_task(give(two, held[3:4]))
    assert await asyncio.to_thread(begun.wait, 60)
    await one.store.apply(CLOSE)
    one.resign()
    two.lead()

    live = await two.store.complete_reports(WINDOW)
    gate.set()
    assert await late == [STORED if stored else BUSY]
    of_former = await one.store.complete_reports(WINDOW)
    there = b"".join(row.report_id for row in held[: 4 if stored else 3])
    for complete in (live, of_former, await two.store.complete_reports(WINDOW)):
        places = np.arange(len(complete.ids))
        assert complete.ids.at(places) == there
        assert (await asyncio.to_thread(complete.source(places).load)).damaged == ()


async def test_a_member_that_comes_late_takes_its_part_of_an_open_window(
    pair: tuple[ReplicaStore, ReplicaStore],
) -> None:
    one, two = pair
    await one.run_out()
    await two.keeper.take()
    assert two.keeper.count == 4, "alone it writes all"
    rows = [instalment(number) for number in range(16)]
    assert await give(two, rows) == [STORED] * 16
    await one.member.join()

    await one.keeper.take()
    await two.keeper.take()
    await one.keeper.take()

    assert [one.keeper.count, two.keeper.count] == [2, 2]
    assert await give(one, rows) == await give(two, rows) == [SAME] * 16, "nothing that was receipted is lost"
    await two.keeper.take()
    await one.keeper.take()
    assert [one.keeper.count, two.keeper.count] == [2, 2], "and it stays so"


async def test_a_shard_that_cannot_be_read_back_is_tried_ever_later_and_others_are_taken(
    pair: tuple[ReplicaStore, ReplicaStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    await other.run_out()
    tried: list[int] = []
    take = one.store.logs.take

    def reads(window_id: WindowId, shard: int = 0, epoch: int = 0) -> None:
        tried.append(shard)
        if shard == 1:
            raise StoreError("a block of it is damaged")
        take(window_id, shard, epoch)

    monkeypatch.setattr(one.store.logs, "take", reads)
    told = asyncio.get_running_loop().time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: told)  # However long the looks take.
    for _ in range(20):
        await one.keeper.take()
    assert tried.count(1) == 1, "looks before its pause is over try it once"

    pauses = []
    for _ in range(9):
        [(due, pause)] = one.keeper._failed.values()
        pauses.append(pause)
        told = due - 0.001
        await one.keeper.take()
        assert tried.count(1) == len(pauses)
        told = due
        await one.keeper.take()

    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    monkeypatch.undo()
    one.keeper._failed.clear()
    await one.keeper.take()
    assert one.keeper.owns(WINDOW, 1)
